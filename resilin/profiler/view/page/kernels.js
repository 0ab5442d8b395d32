/* What ran on devices, and how well it filled them. */
"use strict";

function kernels() {
  const { devices, columns, rows, left_out } = REPORT.kernels;
  if (!rows.length) {
    return make("p", { class: "quiet" }, "No kernels of a device are in these traces.");
  }
  const words = ["name", "kind", "grid", "block"];
  const grid = table(
    columns.map((name) => ({ title: name, text: words.includes(name), show: name === "bytes" ? shownBytes : undefined })),
    rows, { sort: columns.indexOf("total(us)") },
  );
  const parts = [
    make("h2", {}, "Devices"), tableOf(devices, ["device"]),
    make("p", { class: "quiet" }, "Utilisation: the share of time in which something ran. SM efficiency and occupancy: " +
      "averages over the time of kernels, as far as the trace has blocks and warps of each."),
    make("h2", {}, "Kernels and copies"), grid.element,
  ];
  if (left_out) parts.push(make("p", { class: "quiet" }, `${left_out} rows with less time are left out`));
  return make("div", {}, ...parts);
}

function shownBytes(value) {
  return value === null ? "" : bytes(value);
}
