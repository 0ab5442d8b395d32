/* The spans of all ranks, side by side on one clock: wheel with Ctrl or W and S zoom, dragging or A and D move. */
"use strict";

const GUTTER = 150; // pixels for the names of threads
const AXIS = 20;
const LEAST_NS = 50; // that the whole width shows at most zoomed
const MOST_ARROWS = 2000; // drawn at once: more are a thicket
const HUES = {
  compute: [125, 40], communication: [210, 60], data: [40, 80], other: [270, 30], python: [190, 18], step: [0, 0],
  memory: [20, 45], together: [0, 0],
};

function colorOf(name, index) {
  const [hue, saturation] = HUES[name.kind] ?? [0, 0];
  return `hsl(${hue} ${saturation}% ${name.kind === "together" ? 88 : 70 + ((index * 7) % 14)}%)`;
}

function timeline() {
  const data = REPORT.timeline;
  const { tracks, names, details } = data;
  const { ranks, height } = layOut(tracks);
  const colors = names.map(colorOf);
  const canvas = make("canvas", { tabindex: 0, "aria-label": "spans of all ranks over time" });
  const spacer = make("div");
  const view = make("div", { id: "view" }, canvas, spacer);
  const chosen = make("div", { id: "chosen" }, make("p", { class: "quiet" }, "A click on a span tells more of it."));
  const tip = make("div", { id: "tip", hidden: "" });
  const arrows = make("input", { type: "checkbox", checked: "" });
  const state = { from: 0, to: Math.max(1, data.end), selected: null, drag: null, frame: 0 };

  const wide = () => Math.max(100, view.clientWidth - GUTTER);
  const x = (ns) => GUTTER + ((ns - state.from) / (state.to - state.from)) * wide();
  const at = (pixel) => state.from + ((pixel - GUTTER) / wide()) * (state.to - state.from);

  function draw() {
    state.frame = 0;
    view.style.height = `${Math.max(120, Math.min(height + AXIS + 2, window.innerHeight * 0.68))}px`;
    const high = view.clientHeight;
    canvas.style.height = `${high}px`;
    spacer.style.height = `${Math.max(0, height + AXIS - high)}px`;
    const context = pen(canvas, view.clientWidth, high);
    const scroll = view.scrollTop - AXIS;
    context.save();
    context.beginPath();
    context.rect(GUTTER, AXIS, wide(), high);
    context.clip();
    for (const track of tracks) {
      track.levels.forEach((level, depth) => {
        const top = track.top + depth * ROW - scroll;
        if (top > AXIS - ROW && top < high) drawLevel(context, track, depth, level, top);
      });
    }
    if (arrows.checked) drawArrows(context, scroll);
    context.restore();
    drawNames(context, scroll, high);
    drawAxis(context);
  }

  function drawLevel(context, track, depth, level, top) {
    let last = -1;
    for (let index = firstAfter(level, state.from); index < level.start.length && level.start[index] < state.to; index += 1) {
      const left = Math.max(GUTTER - 2, x(level.start[index]));
      const right = Math.min(GUTTER + wide() + 2, x(level.start[index] + level.length[index]));
      if (right <= last + 0.3 && right - left < 1) continue; // its pixel is drawn already
      const width = Math.max(0.8, right - left - (right - left > 4 ? 0.7 : 0));
      context.fillStyle = colors[level.name[index]];
      context.fillRect(left, top, width, ROW - 1.5);
      last = left + width;
      if (width > 30) {
        context.fillStyle = "#1c2024";
        context.fillText(fitting(names[level.name[index]].text, width - 6), left + 3, top + ROW - 5);
      }
    }
    const picked = state.selected;
    if (picked && picked.track === track && picked.depth === depth) {
      context.strokeStyle = "#c62828";
      context.lineWidth = 2;
      const left = x(level.start[picked.index]);
      context.strokeRect(left, top, Math.max(2, x(level.start[picked.index] + level.length[picked.index]) - left), ROW - 2);
      context.lineWidth = 1;
    }
  }

  function drawArrows(context, scroll) {
    let count = 0;
    const middle = (track, depth) => tracks[track].top + depth * ROW - scroll + ROW / 2;
    for (const [track, depth, start, other, under, end, kind] of data.arrows) {
      if (Math.max(start, end) < state.from || Math.min(start, end) > state.to) continue;
      count += 1;
      if (count > MOST_ARROWS) return;
      context.strokeStyle = kind === "message" ? "#ad1457" : "rgba(21, 101, 192, 0.55)";
      context.beginPath();
      context.moveTo(x(start), middle(track, depth));
      context.lineTo(x(end), middle(other, under));
      context.stroke();
      context.fillStyle = context.strokeStyle;
      context.fillRect(x(end) - 1.5, middle(other, under) - 1.5, 3, 3);
    }
  }

  function drawNames(context, scroll, high) {
    context.fillStyle = "#f5f6f8";
    context.fillRect(0, 0, GUTTER - 4, high);
    context.fillStyle = "#1c2024";
    for (const one of ranks) {
      const top = one.top - scroll;
      context.fillStyle = "#d5d9de";
      if (top > AXIS) context.fillRect(0, top + 2, GUTTER + wide(), 1);
      context.fillStyle = "#1c2024";
      if (top > AXIS - HEAD) context.fillText(`rank ${one.rank}`, 6, top + 17);
    }
    context.fillStyle = "#667";
    for (const track of tracks) {
      const top = track.top - scroll;
      if (top > AXIS - 4 && top < high) context.fillText(fitting(track.name, GUTTER - 16), 12, top + ROW - 5);
    }
  }

  function drawAxis(context) {
    context.fillStyle = "#f5f6f8";
    context.fillRect(0, 0, GUTTER + wide(), AXIS);
    context.fillStyle = "#333";
    for (let part = 0; part < 5; part += 1) {
      const ns = state.from + ((state.to - state.from) * part) / 5;
      context.fillText(time(ns / 1e3), x(ns) + 2, 14);
      context.fillRect(x(ns), 0, 1, AXIS);
    }
  }

  function later() {
    state.frame ||= requestAnimationFrame(draw);
  }

  function show(from, to) {
    const length = Math.min(Math.max(to - from, LEAST_NS), data.end * 1.1 + LEAST_NS);
    const middle = Math.min(Math.max((from + to) / 2, 0), Math.max(data.end, 1));
    state.from = middle - length / 2;
    state.to = middle + length / 2;
    later();
  }

  function zoom(factor, pixel = GUTTER + wide() / 2) {
    const fixed = at(pixel);
    show(fixed - (fixed - state.from) * factor, fixed + (state.to - fixed) * factor);
  }

  const move = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const pixel = event.clientX - box.left;
    const row = rowAt(tracks, event.clientY - box.top + view.scrollTop - AXIS);
    if (!row || pixel < GUTTER) return null;
    const slack = (1.5 / wide()) * (state.to - state.from);
    const index = spanAt(row.track.levels[row.depth], at(pixel), slack);
    return index < 0 ? null : { ...row, index };
  }

  function told(span) {
    const level = span.track.levels[span.depth];
    return {
      name: names[level.name[span.index]],
      detail: details[level.detail[span.index]],
      start: level.start[span.index],
      length: level.length[span.index],
    };
  }

  function select(span) {
    state.selected = span;
    later();
    if (!span) return;
    const { name, detail, start, length } = told(span);
    const place = placeNear(span.track, span.depth, span.index, names);
    const where = place >= 0 ? ["at ", placeOf(place)] : [];
    chosen.replaceChildren(
      make("h2", {}, name.text),
      make("p", {}, `rank ${span.track.rank}, ${span.track.name}: ${time(length / 1e3)} from ${time(start / 1e3)} on, ${name.kind}`),
      make("p", {}, detail), make("p", {}, ...where),
    );
  }

  listen(canvas, view, state, { zoom, move, show, under, told, select, later, tip, end: data.end });
  arrows.addEventListener("change", later);
  const button = (text, act) => {
    const made = make("button", { type: "button" }, text);
    made.addEventListener("click", act);
    return made;
  };
  const controls = make(
    "div", { class: "controls" },
    button("zoom in", () => zoom(0.5)), button("zoom out", () => zoom(2)), button("all", () => show(0, data.end)),
    make("label", {}, arrows, " arrows"),
    make("span", { class: "quiet" }, "Ctrl and wheel, or W and S: zoom. Drag, or A and D: move. Double click: one span."),
  );
  const notes = [];
  if (data["short(us)"]) notes.push(`Spans shorter than ${time(data["short(us)"])} that follow each other are drawn as one.`);
  if (data.arrows_left_out) notes.push(`${data.arrows_left_out} arrows are left out.`);
  const element = make("div", {}, controls, ...notes.map((text) => make("p", { class: "quiet" }, text)), view, chosen, tip);
  element.redraw = draw;
  return element;
}

function fitting(text, width) {
  const most = Math.max(1, Math.floor(width / 7));
  return text.length > most ? `${text.slice(0, Math.max(1, most - 1))}\u2026` : text;
}

/* What mouse and keys do. */
function listen(canvas, view, state, act) {
  canvas.addEventListener("wheel", (event) => {
    const pixel = event.clientX - canvas.getBoundingClientRect().left;
    if (event.ctrlKey || event.metaKey) act.zoom(event.deltaY > 0 ? 1.25 : 0.8, pixel);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) act.move((event.deltaX || event.deltaY) / 1000);
    else return; // it scrolls
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    state.drag = { x: event.clientX, from: state.from, to: state.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (state.drag) {
      const share = (state.drag.x - event.clientX) / Math.max(100, view.clientWidth - GUTTER);
      state.drag.moved ||= Math.abs(state.drag.x - event.clientX) > 3;
      const shift = share * (state.drag.to - state.drag.from);
      if (state.drag.moved) act.show(state.drag.from + shift, state.drag.to + shift);
    }
    const span = state.drag?.moved ? null : act.under(event);
    act.tip.hidden = !span;
    if (span) {
      const { name, detail, length } = act.told(span);
      act.tip.textContent = `${fitting(name.text, 1200)}: ${time(length / 1e3)}${detail ? `, ${fitting(detail, 1200)}` : ""}`;
      act.tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - 320)}px`;
      act.tip.style.top = `${event.clientY + 14}px`;
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (state.drag && !state.drag.moved) act.select(act.under(event));
    state.drag = null;
  });
  canvas.addEventListener("pointerleave", () => { act.tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => {
    const span = act.under(event);
    if (span) {
      const { start, length } = act.told(span);
      act.show(start - length * 0.05, start + length * 1.05);
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const keys = {
      w: () => act.zoom(0.7), s: () => act.zoom(1.4), a: () => act.move(-0.2), d: () => act.move(0.2), 0: () => act.show(0, act.end),
      "+": () => act.zoom(0.7), "-": () => act.zoom(1.4), ArrowLeft: () => act.move(-0.2), ArrowRight: () => act.move(0.2),
    };
    const found = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (found) {
      event.preventDefault();
      found();
    }
  });
  view.addEventListener("scroll", act.later);
  window.addEventListener("resize", act.later);
}
