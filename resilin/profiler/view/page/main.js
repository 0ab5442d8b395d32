/* Reads the report, from this file or from the server, and shows one tab at a time. */
"use strict";

const TABS = { Overview: overview, Operators: operators, Kernels: kernels, Memory: memory, Timeline: timeline };

async function read() {
  const own = document.getElementById("data");
  if (own) return JSON.parse(own.textContent);
  const answer = await fetch("data.json");
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.json();
}

function start() {
  document.title = REPORT.title;
  document.getElementById("title").textContent = REPORT.title;
  const main = document.getElementById("main");
  const tabs = document.getElementById("tabs");
  const made = {};
  main.replaceChildren();
  if (REPORT.notes.length) {
    main.append(make("div", { class: "notes", id: "notes" }, ...REPORT.notes.map((text) => make("p", {}, text))));
  }
  function show(name) {
    if (!made[name]) {
      made[name] = make("section", { id: `tab-${name}`, role: "tabpanel", "aria-label": name }, TABS[name]());
      main.append(made[name]);
    }
    for (const [other, section] of Object.entries(made)) section.hidden = other !== name;
    for (const button of tabs.children) button.setAttribute("aria-selected", String(button.textContent === name));
    made[name].firstChild.redraw?.(); // a canvas knows its width once it is shown
    history.replaceState(null, "", `#${name}`);
  }
  for (const name of Object.keys(TABS)) {
    const button = make("button", { type: "button", role: "tab" }, name);
    button.addEventListener("click", () => show(name));
    tabs.append(button);
  }
  const wanted = decodeURIComponent(location.hash.slice(1));
  show(Object.hasOwn(TABS, wanted) ? wanted : "Overview");
}

read().then((report) => {
  Object.assign(REPORT, report);
  start();
}).catch((error) => {
  document.getElementById("main").replaceChildren(make("p", { class: "failed" }, `The report cannot be shown: ${error.message}`));
});
