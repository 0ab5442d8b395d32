/* Where the time of each rank and step goes, who made others wait, and what the run hangs on. */
"use strict";

const PARTS = [
  ["compute", "compute_time(us)", "#2e7d32"],
  ["communication, hidden by compute", "hidden_communication_time(us)", "#a5d6a7"],
  ["communication, exposed", "exposed_communication_time(us)", "#1565c0"],
  ["waiting for other ranks", "waiting_time(us)", "#c62828"],
  ["data", "data_time(us)", "#f9a825"],
  ["other", "other_time(us)", "#8e6bbf"],
  ["idle", "idle_time(us)", "#cfd8dc"],
];

/* What overlaps is taken out, so that the parts make up the whole. */
function partsOf(row) {
  const parts = PARTS.map(([, key]) => row[key]);
  parts[0] -= parts[1]; // hidden communication goes on while it computes
  parts[2] -= parts[3]; // waiting is a part of what is exposed
  return parts;
}

function bars(rows, label) {
  const longest = Math.max(1e-9, ...rows.map((row) => row["kernel_time(us)"]));
  const cells = rows.flatMap((row) => {
    const bar = make("div", { class: "bar" });
    partsOf(row).forEach((us, index) => {
      const share = (100 * us) / Math.max(1e-9, row["kernel_time(us)"]);
      const part = make("span", { title: `${PARTS[index][0]}: ${time(us)}, ${share.toFixed(1)} %` });
      part.style.width = `${(100 * us) / longest}%`;
      part.style.background = PARTS[index][2];
      bar.append(part);
    });
    return [make("div", {}, `${label(row)}, ${time(row["kernel_time(us)"])}`), bar];
  });
  return make("div", { class: "bars" }, ...cells);
}

function stepBars(rows) {
  const choice = make("select", { "aria-label": "step" });
  const place = make("div");
  const steps = [...new Set(rows.map((row) => row.step))];
  const ranks = [...new Set(rows.map((row) => row.rank))];
  choice.append(...ranks.map((rank) => make("option", { value: `r${rank}` }, `rank ${rank}, all steps`)));
  choice.append(...steps.map((step) => make("option", { value: `s${step}` }, `step ${step}, all ranks`)));
  function draw() {
    const wanted = choice.value.slice(1);
    const byRank = choice.value[0] === "r";
    const found = rows.filter((row) => String(byRank ? row.rank : row.step) === wanted).slice(0, 200);
    place.replaceChildren(bars(found, (row) => (byRank ? `step ${row.step}` : `rank ${row.rank}`)));
  }
  choice.addEventListener("change", draw);
  draw();
  return make("section", {}, make("h2", {}, "Steps"), make("div", { class: "controls" }, choice), place);
}

function waiting(cause) {
  const what = cause.after ? `no span (after ${cause.after})` : cause.name;
  const by = cause.via.length ? `, by way of rank ${cause.via.join(", ")}` : "";
  const step = cause.step === null ? "" : `step ${cause.step}: `;
  return `${step}rank ${cause.rank} was ${time(cause.excess_ns / 1e3)} longer in ${what}${by}: rank ` +
    `${cause.waiting.join(", ")} waited ${time(cause.waited_ns / 1e3)} in ${cause.at}`;
}

function hangs(hang) {
  const lines = hang.waits.map((one) => `rank ${one.rank} waits for rank ${one.waits_for.join(", ") || "any"} in ${one.at}`);
  if (hang.cycle.length) lines.unshift(`ranks ${hang.cycle.join(", ")} wait for one another`);
  lines.unshift(...hang.causes.map((one) => {
    const at = one.name ? `in ${one.name}` : one.last ? `in no span, its last was ${one.last}` : "in nothing that was recorded";
    return `rank ${one.rank} (${one.state}) is ${at}; rank ${one.waiting.join(", ")} waits for it`;
  }));
  return lines.length ? [make("div", { class: "notes hang" }, ...lines.map((text) => make("p", {}, text)))] : [];
}

function overview() {
  const { tables, waits, ranks } = REPORT;
  const parts = [
    ...hangs(waits.hang),
    make("h2", {}, "Where the time goes"),
    legend(PARTS.map(([text, , color]) => [text, color])),
    bars(tables.temporal_breakdown, (row) => `rank ${row.rank}`),
  ];
  if (tables.steps.length) parts.push(stepBars(tables.steps));
  parts.push(make("h2", {}, "Who made others wait"), tableOf(waits.totals, ["name"]));
  parts.push(...waits.longest.slice(0, 10).map((cause) => make("p", {}, waiting(cause))));
  parts.push(make("h2", {}, "Critical path"), tableOf(tables.critical_path, ["name"]));
  parts.push(make("h2", {}, "Stragglers"), tableOf(tables.potential_stragglers));
  parts.push(make("h2", {}, "Communication that compute hides"), tableOf(tables.comm_comp_overlap));
  parts.push(make("h2", {}, "Ranks"), tableOf(ranks, ["host", "state", "file"]));
  return make("div", {}, ...parts);
}
