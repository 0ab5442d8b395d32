/* Tables that sort by a column and show rows that hold a word. A click on a row with a known place opens it. */
"use strict";

const FEW_ROWS = 200;
const TEXT_CHARS = 300; // of a cell; the whole is in its title

/* columns: {title, text, show}; text: it is no number; rows: arrays; place: the number of the column with the place. */
function table(columns, rows, { place = -1, sort = -1, filter = true } = {}) {
  const state = { sort, down: true, word: "", all: false };
  const head = make("tr");
  const body = make("tbody");
  const more = make("button", { type: "button" });
  const count = make("span", { class: "quiet" });
  columns.forEach((column, index) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      state.down = state.sort === index ? !state.down : !column.text;
      state.sort = index;
      draw();
    });
    head.append(make("th", { class: column.text ? "text" : null, scope: "col" }, button));
  });
  more.addEventListener("click", () => {
    state.all = true;
    draw();
  });

  function chosen() {
    const word = state.word.toLowerCase();
    const found = word ? rows.filter((row) => columns.some((c, i) => c.text && i !== place && textOf(row[i]).includes(word))) : [...rows];
    if (state.sort >= 0) {
      found.sort((a, b) => (state.down ? -1 : 1) * compare(a[state.sort], b[state.sort]));
    }
    return found;
  }

  function draw() {
    const found = chosen();
    const shown = state.all ? found : found.slice(0, FEW_ROWS);
    body.replaceChildren(...shown.map((row) => line(columns, row, place)));
    [...head.children].forEach((cell, index) => {
      if (index === state.sort) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    more.hidden = shown.length === found.length;
    more.textContent = `show all ${found.length} rows`;
    count.textContent = `${found.length} rows`;
  }

  const search = make("input", { type: "search", placeholder: "rows with this word", "aria-label": "rows with this word" });
  search.addEventListener("input", () => {
    state.word = search.value;
    draw();
  });
  draw();
  const grid = make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), body));
  const element = make("div", {}, ...(filter ? [make("div", { class: "controls" }, search, count)] : []), grid, more);
  return { element, rows(now) { rows = now; state.all = false; draw(); } };
}

function textOf(value) {
  return String(value ?? "").toLowerCase();
}

function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : -1;
  if (b === null || b === undefined) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
}

function line(columns, row, place) {
  const element = make("tr");
  columns.forEach((column, index) => {
    const value = row[index];
    if (index === place) {
      element.append(make("td", { class: "text" }, placeOf(value)));
      return;
    }
    const text = column.show ? column.show(value) : number(value);
    const short = text.length > TEXT_CHARS ? `${text.slice(0, TEXT_CHARS)}...` : text;
    element.append(make("td", column.text ? { class: "text", title: text } : {}, short));
  });
  if (place >= 0 && opens(row[place])) {
    element.className = "opens";
    element.addEventListener("click", (event) => {
      if (!event.target.closest("a")) open_(row[place]);
    });
  }
  return element;
}

/* A table of objects: columns are the keys of the first. */
function tableOf(objects, words = []) {
  if (!objects.length) return make("p", { class: "quiet" }, "none");
  const names = Object.keys(objects[0]);
  const columns = names.map((name) => ({ title: name, text: words.includes(name) }));
  return table(columns, objects.map((one) => names.map((name) => one[name])), { filter: false }).element;
}
