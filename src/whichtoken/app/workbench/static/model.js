// A document or a text of one's own, explained.
import { say } from "./frame.js";
import { explain, showExplanation } from "./explanation.js";

const why = document.getElementById("why"), answer = document.getElementById("answer"), model = why.dataset.model;
let turn = 0;
async function show(asked) {
  const mine = ++turn;
  say(answer, "Explaining …");
  try { const found = await explain(model, asked); if (mine === turn) showExplanation(answer, model, found); }
  catch (error) { if (mine === turn) say(answer, error.message, true); }
}
why.addEventListener("click", (event) => {
  const button = event.target.closest("[data-row]");
  if (!button) return;
  why.querySelector("[data-row][aria-current]")?.removeAttribute("aria-current");
  button.setAttribute("aria-current", "true");
  history.replaceState(null, "", `?row=${button.dataset.row}`);
  show({ row: +button.dataset.row });
});
document.getElementById("own")?.addEventListener("submit", (event) => { event.preventDefault(); show({ text: document.getElementById("text").value }); });
const asked = new URLSearchParams(location.search).get("row");
if (asked !== null) why.querySelector(`[data-row="${CSS.escape(asked)}"]`)?.click();
