/* Memory over time, by what it is for, of a rank's device. */
"use strict";

const CHART = { left: 80, right: 10, top: 10, bottom: 36, height: 320 };

function memory() {
  const { series, owners, colors, columns } = REPORT.memory;
  if (!series.length) {
    return make("p", { class: "quiet" }, "No memory is in these traces: record with profile_memory=True.");
  }
  const choice = choices("device", series.map((one, index) => [index, `rank ${one.rank}, ${one.device}`]));
  const canvas = make("canvas", { class: "chart", role: "img", "aria-label": "memory over time" });
  const about = make("p");
  const shown = make("div");

  function draw() {
    const one = series[Number(choice.value)];
    const used = owners.map((_, index) => index).filter((index) => one.highest[index]);
    about.textContent = `At most ${bytes(one.peak)}, at ${time(one["peak_at(us)"])}.`;
    chart(canvas, one, colors);
    const blocks = table(
      columns.map((name) => ({
        title: name, text: name !== "bytes", show: name === "bytes" ? bytes : undefined,
      })),
      one.blocks.map(([size, owner, ...rest]) => [size, owners[owner], ...rest]), { place: columns.indexOf("place"), sort: 0 },
    );
    const more = one.left_out ? [make("p", { class: "quiet" }, `${one.left_out} smaller ones are left out`)] : [];
    shown.replaceChildren(
      legend(used.map((index) => [`${owners[index]}, at most ${bytes(one.highest[index])}`, colors[index]])),
      make("h2", {}, "In use at that time"), blocks.element, ...more,
    );
  }
  choice.addEventListener("change", draw);
  const element = make("div", {}, make("div", { class: "controls" }, choice), about, canvas, shown);
  element.redraw = draw;
  return element;
}

function chart(canvas, one, colors) {
  const width = canvas.clientWidth || 1000;
  const { left, right, top, bottom, height } = CHART;
  const context = pen(canvas, width, height);
  const times = one["times(us)"];
  const first = times[0];
  const whole = Math.max(1e-9, times[times.length - 1] - first);
  const peak = Math.max(1, one.peak);
  const x = (us) => left + ((us - first) / whole) * (width - left - right);
  const y = (count) => top + (1 - count / peak) * (height - top - bottom);
  const below = one.sizes.map(() => 0);
  for (let owner = 0; owner < colors.length; owner += 1) {
    context.fillStyle = colors[owner];
    one.sizes.forEach((row, index) => {
      if (row[owner] > 0) {
        const end = index + 1 < times.length ? x(times[index + 1]) : width - right;
        const high = y(below[index] + row[owner]);
        context.fillRect(x(times[index]), high, Math.max(1, end - x(times[index]) + 0.5), y(below[index]) - high);
        below[index] += row[owner];
      }
    });
  }
  context.strokeStyle = "#999";
  context.strokeRect(left, top, width - left - right, height - top - bottom);
  context.fillStyle = "#333";
  for (let part = 0; part <= 4; part += 1) {
    context.textAlign = "right";
    context.fillText(bytes(Math.round((peak * part) / 4)), left - 6, y((peak * part) / 4) + 4);
    context.textAlign = part === 4 ? "right" : "center";
    context.fillText(time(first + (whole * part) / 4), x(first + (whole * part) / 4), height - 18);
  }
}
