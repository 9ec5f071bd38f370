// Sliders that redraw as they move (approximately), and exactly when they rest; the address keeps the numbers.
import { ask, refuse } from "./frame.js";
import { chart, QUIET } from "./chart.js";

const form = document.getElementById("numbers"), mark = document.getElementById("mark"), exactPart = document.getElementById("exact");
const fields = [...form.querySelectorAll("input[type=number]")];
let curve = null, asked = 0, moving = null, waiting = null, left = new AbortController();

const numbers = () => new URLSearchParams(fields.filter((field) => field.value !== "").map((field) => [field.name, field.value]));
const spread = (slider) => [Math.log(+slider.dataset.least), Math.log(+slider.dataset.most)];

function fromSlider(slider) {
  const [low, high] = spread(slider), value = Math.exp(low + (high - low) * slider.value / 1000);
  return slider.dataset.whole ? Math.round(value) : +value.toPrecision(3);
}
function toSlider(slider, value) {
  const [low, high] = spread(slider);
  slider.value = value > 0 ? 1000 * (Math.log(value) - low) / (high - low) : 0;
  slider.setAttribute("aria-valuetext", value);
}

function show(found) {
  const models = Object.keys(found.names), labels = models.map((model) => ({ label: found.names[model], points: true }));
  labels.push({ label: "no classifier is better", dash: [6, 4], stroke: QUIET }, { label: "constant answer", dash: [2, 6], stroke: QUIET });
  curve ??= chart(document.getElementById("curve"), labels, { name: "learning-curve", xLabel: "labeled sequences", yLabel: "predicted test error", logX: true });
  const flat = (value) => found.samples.map(() => value ?? null);
  curve.set(found.samples, [...models.map((model) => found.curves[model]), flat(found.floor), flat(found.trivial)], { from: 0 });
  for (const model of models) {
    const value = found.errors[model], tile = document.getElementById(`error-${model}`);
    if (tile) tile.textContent = value === null ? "unknown" : (found.approximate ? "≈ " : "") + value.toPrecision(3);
  }
  for (const [model, samples] of Object.entries(found.capacities)) {
    document.getElementById(`capacity-${model}`).textContent = samples === null ? "separable: computed when you release the slider" : `separable up to ${+samples.toPrecision(2)}`;
  }
  document.getElementById("alignment").textContent = (found.approximate ? "≈ " : "") + found.alignment.toFixed(3);
  document.getElementById("answer").textContent = found.answer;
  mark.textContent = found.approximate ? "approximate, while you move a slider" : "exact";
  mark.className = found.approximate ? "quiet" : "agrees state";
}

function showExact(found) {
  const table = document.getElementById("forecasts");
  const line = (cells, tag) => { const row = document.createElement("tr"); for (const cell of cells) { const made = document.createElement(tag); made.textContent = cell; row.append(made); } return row; };
  table.tHead.replaceChildren(line(found.headings, "th"));
  table.tBodies[0].replaceChildren(...found.rows.map((row) => line(row, "td")));
  document.getElementById("protocol").textContent = found.protocol;
  const notes = document.getElementById("warnings");
  notes.replaceChildren(...found.warnings.map((text) => { const made = document.createElement("p"); made.className = "note"; made.textContent = text; return made; }));
  exactPart.hidden = false;
}

async function quick() {
  if (moving) { waiting = true; return; }
  moving = numbers();
  const turn = ++asked;
  try {
    const found = await ask(`/planner/quick?${moving}`);
    refuse(form);
    if (turn === asked) show(found);
  } catch (error) { refuse(form, error); }
  moving = null;
  if (waiting) { waiting = false; quick(); }
}
async function exact() {
  const turn = ++asked;
  left.abort();  // the server cancels what no client waits for
  left = new AbortController();
  history.replaceState(null, "", `?${numbers()}`);
  mark.textContent = "computing exactly …"; mark.className = "loading";
  try {
    const found = await ask(`/planner/exact?${numbers()}`, { signal: left.signal });
    if (turn !== asked) return;
    refuse(form);
    show(found); showExact(found);
  } catch (error) { if (turn === asked) { refuse(form, error); document.getElementById("answer").textContent = "These numbers have no plan."; mark.textContent = ""; } }
}

for (const slider of form.querySelectorAll("input[type=range]")) {
  const field = document.getElementById(`field-${slider.dataset.for}`);
  if (field.value) toSlider(slider, +field.value);
  slider.addEventListener("input", () => { field.value = fromSlider(slider); slider.setAttribute("aria-valuetext", field.value); quick(); });
  slider.addEventListener("change", exact);
  field.addEventListener("input", () => { toSlider(slider, +field.value); quick(); });
  field.addEventListener("change", exact);
}
form.addEventListener("submit", (event) => { event.preventDefault(); exact(); });
quick().then(exact);
