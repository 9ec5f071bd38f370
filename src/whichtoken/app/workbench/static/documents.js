// Rows to choose from: searched, sorted, by mistake, by cell of the confusion matrix; and a threshold by what errors cost.
import { element, refuse } from "./frame.js";

const MOST_LABELS = 12;  // a wider matrix says nothing to the eye
const list = document.getElementById("documents"), items = [...list.children], labels = [...new Set(items.flatMap(({ dataset }) => [dataset.true, dataset.said]))].filter(Boolean).sort();
if (labels.every((label) => /^-?\d+$/.test(label))) labels.sort((a, b) => a - b);  // in the order of the model
const labeled = items.filter(({ dataset }) => dataset.true && dataset.said), share = (item) => +item.dataset.share, wrong = (item) => item.dataset.true !== item.dataset.said;
const texts = document.getElementById("texts"), words = texts ? JSON.parse(texts.textContent).map((text) => text.toLowerCase()) : items.map((item) => item.textContent.toLowerCase());
const ORDERS = { "as in the file": null, "least confident first": (a, b) => share(a) - share(b), "most confident first": (a, b) => share(b) - share(a), "mistakes first": (a, b) => wrong(b) - wrong(a) || share(b) - share(a) };
const search = element("input"), order = element("select"), said = element("output", "", "quiet"), all = element("button", "Show all");
let cell = null, whole = false;  // whether the search is for a whole word

/** Whether a text holds a word, not only as a part of another one. */
function holds(text, word) {
  for (let place = text.indexOf(word); place >= 0; place = text.indexOf(word, place + 1))
    if (![text[place - 1], text[place + word.length]].some((beside) => /[\p{L}\p{N}]/u.test(beside ?? ""))) return true;
  return false;
}

/** Show the rows with these words, in this order, of this cell of the matrix. */
function show() {
  const asked = search.value.toLowerCase().trim(), fits = (item, place) => (whole ? holds(words[place], asked) : words[place].includes(asked)) && (!cell || (item.dataset.true === cell[0] && item.dataset.said === cell[1]));
  const shown = items.filter(fits), sort = ORDERS[order.value];
  list.replaceChildren(...(sort ? [...shown].sort(sort) : shown));
  said.textContent = shown.length === items.length ? "" : `${shown.length} of ${items.length} rows${cell ? `, labeled ${cell[0]}, predicted ${cell[1]}` : ""}`;
  all.hidden = shown.length === items.length;
}

/** The rows that contain a word. */
export function findWord(word) {
  cell = null;
  search.value = word;
  whole = words.some((text) => holds(text, word));  // stems are no words of their own
  show();
  list.parentElement.scrollIntoView({ block: "start" });
}

function matrix() {
  const made = element("table", "", "numbers"), head = made.createTHead().insertRow(), body = made.createTBody(), box = element("div", "", "scroll");
  for (const text of ["labeled", ...labels.map((label) => `predicted ${label}`)]) head.append(Object.assign(element("th", text), { scope: "col" }));
  for (const truth of labels) {
    const row = body.insertRow();
    row.append(Object.assign(element("th", truth), { scope: "row" }));
    for (const called of labels) {
      const count = labeled.filter(({ dataset }) => dataset.true === truth && dataset.said === called).length, button = element("button", String(count), "link");
      button.type = "button";
      button.setAttribute("aria-label", `${count} rows labeled ${truth}, predicted ${called}`);
      button.addEventListener("click", () => { cell = [truth, called]; search.value = ""; show(); list.parentElement.scrollIntoView({ block: "start" }); });
      row.insertCell().append(button);
    }
  }
  Object.assign(box, { tabIndex: 0 }).setAttribute("role", "region");
  box.setAttribute("aria-label", "Which rows go where");
  box.append(made);
  return box;
}

/** False alarms, misses and their cost at each threshold of the second of two labels. */
function thresholds(form) {
  const [first, second] = labels, { alarm, miss, threshold, slider } = form.elements, chance = (item) => item.dataset.said === second ? share(item) : 1 - share(item);
  const at = (line) => [labeled.filter((item) => chance(item) > line && item.dataset.true === first).length, labeled.filter((item) => chance(item) <= line && item.dataset.true === second).length];
  form.querySelector("[data-alarm]").textContent = `predicted ${second}, labeled ${first}`;
  form.querySelector("[data-miss]").textContent = `predicted ${first}, labeled ${second}`;
  const tell = () => {
    const [alarms, misses] = at(+threshold.value), cost = alarms * alarm.value + misses * miss.value;
    slider.value = threshold.value;
    form.querySelector("[data-said]").textContent = `${second} above ${threshold.value}: ${alarms} false alarm${alarms === 1 ? "" : "s"} and ${misses} miss${misses === 1 ? "" : "es"} in ${labeled.length} rows, cost ${+cost.toFixed(3)}`;
    refuse(form);
  };
  slider.addEventListener("input", () => { threshold.value = slider.value; tell(); });
  for (const field of [alarm, miss, threshold]) field.addEventListener("input", tell);
  // probabilities are calibrated, so the costs alone say where the line is
  form.querySelector("[data-best]").addEventListener("click", () => { threshold.value = +(alarm.value / (+alarm.value + +miss.value)).toFixed(3); tell(); });
  tell();
  form.hidden = false;
}

Object.assign(search, { type: "search" }).addEventListener("input", () => { whole = false; show(); });
order.append(...Object.keys(ORDERS).map((name) => new Option(name)));
order.addEventListener("change", show);
Object.assign(all, { type: "button", hidden: true }).addEventListener("click", () => { cell = null; search.value = ""; show(); });
const tools = element("div", "", "filters");
for (const [name, field] of [["search the rows", search], ["order", order]]) { const label = element("label", name); label.append(field); tools.append(label); }
tools.append(all, said);
document.getElementById("choice").append(tools);
if (labeled.length && labels.length > 1 && labels.length <= MOST_LABELS) {
  document.getElementById("confusion").append(matrix());
  document.getElementById("mistakes").hidden = false;
  const form = document.getElementById("threshold");
  if (form && labels.length === 2) thresholds(form);
}
document.addEventListener("click", ({ target }) => { const word = target.closest("[data-word]"); if (word) findWord(word.textContent); });
