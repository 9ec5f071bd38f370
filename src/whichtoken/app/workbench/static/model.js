// A row of the data, explained: texts in the browser, while they are typed; bags and rows by the server.
import { findWord } from "./documents.js";
import { openModel } from "./explainer_model.js";
import { ask, say } from "./frame.js";
import { mount } from "./explainer/page.js";

const why = document.getElementById("why"), place = document.getElementById("answer"), id = why.dataset.model;
let turn = 0, show = async (row) => {
  const mine = ++turn;
  say(place, "Explaining …");
  try {
    const found = await ask(`/data/models/${id}/explain`, { method: "POST", headers: { "content-type": "application/json", accept: "application/json" }, body: JSON.stringify({ row }) });
    if (mine === turn) place.innerHTML = found.shown;  // the server's own HTML, escaped there
  } catch (error) { if (mine === turn) say(place, error.message, true); }
};
if (why.dataset.kind === "text") {
  try {
    const { setText } = mount(place, await openModel(id), { hint: "Click a word to find its rows.", use: findWord }), texts = JSON.parse(document.getElementById("texts").textContent);
    show = (row) => setText(texts[row]);
  } catch (error) { say(place, error.message, true); show = () => {}; }
}
why.addEventListener("click", (event) => {
  const button = event.target.closest("[data-row]");
  if (!button) return;
  why.querySelector("[data-row][aria-current]")?.removeAttribute("aria-current");
  button.setAttribute("aria-current", "true");
  const row = document.getElementById("row");
  if (row) row.value = button.dataset.row;  // for the comparison with another model
  history.replaceState(null, "", `?row=${button.dataset.row}`);
  show(+button.dataset.row);
});
// bags and rows open on the first, as texts do
const asked = new URLSearchParams(location.search).get("row") ?? (why.dataset.kind === "text" ? null : "0");
if (asked !== null) why.querySelector(`[data-row="${CSS.escape(asked)}"]`)?.click();
