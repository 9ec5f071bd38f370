// Two models, one text: both explain it while it is typed.
import { openModel } from "./explainer_model.js";
import { say } from "./frame.js";
import { panel } from "./explainer/page.js";

const text = document.getElementById("text"), panels = [];
for (const side of document.querySelectorAll("[data-side]")) {
  try {
    const made = panel(await openModel(side.dataset.side), "");
    made.box.parentNode.remove();  // one box for both
    side.replaceChildren(made.root);
    panels.push(made);
  } catch (error) { say(side, error.message, true); }
}
const show = () => panels.forEach(({ setText }) => setText(text.value));
text.addEventListener("input", show);
show();
