// The explainer of the model that the workbench begins with.
import { openModel } from "./explainer_model.js";
import { say } from "./frame.js";
import { mount } from "./explainer/page.js";

const place = document.getElementById("explainer");
try { mount(place, await openModel(place.dataset.model)); }
catch (error) { say(place, error.message, true); }
