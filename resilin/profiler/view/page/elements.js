/* Elements and numbers as text. What a trace says becomes text nodes and attributes here, never markup. */
"use strict";

const REPORT = {}; // filled once by main.js

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children); // strings become text nodes
  return element;
}

function time(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return `${(us / 1e6).toFixed(3)} s`;
  if (size >= 1e3) return `${(us / 1e3).toFixed(3)} ms`;
  return `${us.toFixed(size >= 100 ? 1 : 3)} us`;
}

function bytes(count) {
  for (const [unit, size] of [["GB", 2 ** 30], ["MB", 2 ** 20], ["KB", 2 ** 10]]) {
    if (Math.abs(count) >= size) return `${(count / size).toFixed(2)} ${unit}`;
  }
  return `${count} B`;
}

function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 3 });
}

/* Where a function is: a link for VS Code, a button for the user's own editor, or text where the file is not known. */
function placeOf(index) {
  const place = index >= 0 ? REPORT.places[index] : null;
  if (!place) return "";
  if (place.link.startsWith("vscode://file/")) return make("a", { href: place.link }, place.text);
  if (!place.opens) return place.text;
  const link = make("a", { href: "#" }, place.text);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    event.stopPropagation();
    open_(index);
  });
  return link;
}

function opens(index) {
  const place = index >= 0 ? REPORT.places[index] : null;
  return Boolean(place) && (place.opens || place.link.startsWith("vscode://file/"));
}

/* The server knows the file by its number; a link is followed as if it were clicked. */
async function open_(index) {
  const place = REPORT.places[index];
  if (!place.opens) {
    location.assign(place.link);
    return;
  }
  const answer = await fetch(`open/${index}`, { method: "POST" });
  if (!answer.ok) say(`${place.text}: ${await answer.text()}`);
}

function say(text) {
  document.getElementById("main").prepend(make("p", { class: "notes hang", role: "alert" }, text));
}

function legend(entries) {
  const parts = entries.map(([text, color]) => {
    const mark = make("i");
    mark.style.background = color;
    return make("span", {}, mark, text);
  });
  return make("div", { class: "legend" }, ...parts);
}

/* A canvas as sharp as the screen, in units of the page. */
function pen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11px system-ui, sans-serif";
  context.clearRect(0, 0, width, height);
  return context;
}
