/* The table of operators, of all ranks or of one. */
"use strict";

const SHOWN = {
  name: { text: true }, kind: { text: true }, shapes: { text: true }, place: { text: true },
};

function columnsOf(names) {
  return names.map((name) => ({ title: name, text: Boolean(SHOWN[name]) }));
}

function choices(label, options) {
  const select = make("select", { "aria-label": label }, ...options.map(([value, text]) => make("option", { value }, text)));
  return select;
}

function operators() {
  const { columns, rows, left_out } = REPORT.operators;
  const names = columns.slice(1);
  const ranks = [...new Set(rows.map((row) => row[0]))];
  const rank = choices("rank", ranks.map((one) => [one, one < 0 ? "all ranks" : `rank ${one}`]));
  const kinds = [...new Set(rows.map((row) => row[2]))];
  const kind = choices("kind", [["", "all but Python"], ["*", "all kinds"], ...kinds.map((one) => [one, one])]);
  const grid = table(columnsOf(names), [], { place: names.indexOf("place"), sort: names.indexOf("self(us)") });

  function draw() {
    const wanted = kind.value;
    const found = rows.filter((row) => String(row[0]) === rank.value &&
      (wanted === "*" || (wanted ? row[2] === wanted : row[2] !== "python")));
    grid.rows(found.map((row) => row.slice(1)));
  }
  rank.addEventListener("change", draw);
  kind.addEventListener("change", draw);
  draw();
  const parts = [make("div", { class: "controls" }, rank, kind), grid.element];
  if (left_out) parts.push(make("p", { class: "quiet" }, `${left_out} rows with less time are left out`));
  return make("div", {}, ...parts);
}
