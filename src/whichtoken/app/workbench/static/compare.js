import { say } from "./frame.js";
import { explain, showExplanation } from "./explanation.js";

const sides = [...document.querySelectorAll("[data-side]")], text = document.getElementById("text");
async function compare() {
  await Promise.all(sides.map(async (side) => {
    say(side, "Explaining …");
    try { showExplanation(side, side.dataset.side, await explain(side.dataset.side, { text: text.value })); }
    catch (error) { say(side, error.message, true); }
  }));
}
document.getElementById("own").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
compare();
