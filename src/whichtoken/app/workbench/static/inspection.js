// A map of layers by heads; choose a head to see its picks on the texts, how confidently it picks, and the effect on the decision.
import { ask, element, say } from "./frame.js";

const place = document.getElementById("inspection");
const shown = (value, digits = 2) => value === null || value === undefined ? "–" : value.toFixed(digits);
const LEGEND = "Framed: the pick; framed with dashes: the runner-up. Blue tokens speak for the decision, orange ones against it.";
const STATES = { decided: ": decided", torn: ": torn", tie: ": a tie" };
const KINDS = { content: "Picks by content", position: "Picks by position", sink: "Picks mostly sinks", mixed: "Picks neither by content nor by position" };  // of few texts it is not known
// the maps of the page of an inspection: title, meaning, numbers, and how strongly a number is colored
const MAPS = {
  survival: ["How confidently", "% of one-word changes that a typical pick survives; 95 or more is decided, 80 or more torn, less a tie", (one) => one.survival == null ? null : 100 * one.survival, (value) => (value - 50) / 50],
  gap: ["How confidently", "median gap between pick and runner-up", (one) => one.gap],
  sinks: ["Sinks", "share of attention on sinks", (one) => one.sink_share],
  direct: ["Does it matter", "mean size of what the head adds to the decision itself, over the shown texts", direct],
  added: ["Does it matter", "share of the head in what its layer adds", (one) => one.contribution],
};
let found, chosen, maps, texts, facts;

function shade(cell, share) { cell.style.background = `rgb(var(--for) / ${(0.6 * Math.max(0, Math.min(1, share))).toFixed(2)})`; }
const head = (layer, number) => found.heads.find((one) => one.layer === layer && one.head === number);

function direct({ layer, head }) {
  const parts = found.shown.flatMap((view) => view.direct ? [Math.abs(view.direct.heads[layer][head])] : []);
  return parts.length ? parts.reduce((sum, part) => sum + part) / parts.length : null;
}

function map([title, what, number, strength]) {
  const layers = 1 + Math.max(...found.heads.map((one) => one.layer)), heads = 1 + Math.max(...found.heads.map((one) => one.head));
  const most = Math.max(...found.heads.map((one) => number(one) ?? 0), 1e-12);
  const box = element("div", "", "scroll"), table = element("table", "", "headmap"), caption = element("caption", title);
  caption.append(element("small", what));
  table.append(caption);
  const first = table.createTHead().insertRow();
  for (const text of ["layer", ...Array.from({ length: heads }, (_, k) => String(k))]) first.append(element("th", text));
  const body = table.createTBody();
  for (let layer = 0; layer < layers; layer++) {
    const row = body.insertRow(); row.append(element("th", String(layer)));
    for (let k = 0; k < heads; k++) {
      const report = head(layer, k), value = report ? number(report) : null, said = shown(value, value >= 10 ? 0 : 2), button = element("button", said);
      button.type = "button"; button.dataset.layer = layer; button.dataset.head = k;
      button.setAttribute("aria-label", `layer ${layer}, head ${k}: ${title.toLowerCase()} ${said}`);
      shade(button, value === null ? 0 : strength ? strength(value) : value / most); row.insertCell().append(button);
    }
  }
  box.append(table);
  return box;
}

function showHead(layer, number) {
  chosen = [layer, number];
  history.replaceState(null, "", `?layer=${layer}&head=${number}`);
  for (const button of maps.querySelectorAll("button")) button.setAttribute("aria-pressed", +button.dataset.layer === layer && +button.dataset.head === number);
  const report = head(layer, number), picks = report.top_picks.slice(0, 5).map(([token, share]) => `${token} ${Math.round(100 * share)} %`).join(", ");
  facts.replaceChildren(element("h2", `Layer ${layer}, head ${number}${STATES[report.state] ?? ""}`), element("p", `${KINDS[report.kind] ? `${KINDS[report.kind]}, most often ` : "Picks most often "}${picks}. Median gap ${shown(report.gap)}; ${Math.round(100 * (report.sink_share ?? 0))} % of its attention goes to sinks.`));
  texts.replaceChildren(...found.shown.map((view) => {
    const box = element("article"), line = element("p", "", "words"), pick = view.picked[layer][number], rival = view.runner_up[layer][number];
    const most = Math.max(...(view.shares ?? [0]).map(Math.abs), 1e-12);
    view.tokens.forEach((token, k) => {
      const word = element("span", token.replace(/^##/, ""), k === pick ? "pick" : k === rival ? "rival" : "");
      if (view.shares) { const share = view.shares[k]; word.style.background = `rgb(var(${share > 0 ? "--for" : "--against"}) / ${(0.5 * Math.abs(share) / most).toFixed(2)})`; word.title = `share in the decision ${shown(share)}`; }
      line.append(word, (view.tokens[k + 1] ?? "").startsWith("##") ? "" : " ");
    });
    const gap = view.gap[layer][number], words = view.words ?? view.tokens;
    let sentence = pick < 0 ? "This head picks no word in this text." : `Picks “${words[pick]}”${rival < 0 ? "" : ` ahead of “${words[rival]}”`} by a gap of ${shown(gap)}.`;
    if (pick >= 0 && view.survival?.[layer]?.[number] != null) sentence += ` It survives ${Math.round(100 * view.survival[layer][number])} % of one-word changes.`;
    if (view.why && layer === found.layer && number === found.head) sentence += ` Why: ${view.why.sentence}.`;
    if (view.decision) sentence = `Decision: ${view.decision}. ${sentence}`;
    if (view.effects && view.effects.layer === layer) sentence += ` Does it matter? Removing its value weakens the decision by ${shown(view.effects.removed[number], 3)}, masking the token by ${shown(view.effects.masked[number], 3)}, deleting the token by ${shown(view.effects.deleted[number], 3)}.`;
    box.append(line, element("p", sentence, "quiet"));
    const areas = view.deletion_areas;
    if (areas && Object.keys(areas).length) box.append(element("p", `Faithfulness, area under the deletion curve (smaller is more faithful): ${Object.entries(areas).map(([name, area]) => `${name} ${shown(area, 3)}`).join(", ")}.`, "quiet"));
    return box;
  }));
}

try {
  found = await ask(place.dataset.numbers);
  maps = element("div", "", "maps"); facts = element("section"); texts = element("section"); facts.setAttribute("aria-live", "polite");
  const known = (name) => found.heads.some((one) => MAPS[name][2](one) !== null);
  maps.append(...[known("survival") ? "survival" : "gap", "sinks", known("direct") ? "direct" : "added"].map((name) => map(MAPS[name])));
  place.replaceChildren(element("p", `${found.texts} texts; picks of the ${found.queries === "cls" ? "first" : "last"} token's query. Choose a head; the stronger its blue, the larger the number.`), maps, facts, element("h2", "On the texts"), element("p", LEGEND, "quiet"), texts);
  maps.addEventListener("click", (event) => { const button = event.target.closest("button"); if (button) showHead(+button.dataset.layer, +button.dataset.head); });
  const asked = new URLSearchParams(location.search), layer = asked.get("layer"), number = asked.get("head");
  const there = layer !== null && head(+layer, +number);
  showHead(there ? +layer : found.layer, there ? +number : found.head);
} catch (error) { say(place, error.message, true); }
