// A text model of the workbench, to be explained in the browser.
import { readModel } from "./explainer/model.js";
import { ask } from "./frame.js";

export async function openModel(id) {
  const packed = await ask(`/data/models/${id}/explainer.json`), language = packed.tokenizer.stemmer;
  const stemmer = language && new (await import(`./explainer/snowball/${language}-stemmer.js`)).default();
  return readModel(packed, stemmer);
}
