// One explanation: colored words that can be deleted, the contributions that add up to the decision, the smallest change of the label.
import { ask, element, say, visible } from "./frame.js";

export const explain = (model, asked) => ask(`/data/models/${model}/explain`, { method: "POST", headers: { "content-type": "application/json", accept: "application/json" }, body: JSON.stringify(asked) });

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);

function paint(made, value, most) {
  const strength = Math.round(55 * Math.min(1, Math.abs(value) / (most || 1)));
  if (strength > 2) made.style.background = `color-mix(in srgb, var(${value > 0 ? "--for" : "--against"}) ${strength}%, transparent)`;
}

/** Pieces of a text with the strongest reason at each place: [start, stop, reason or null]. */
function pieces(found) {
  const owner = new Array(found.text.length).fill(-1), order = found.reasons.map((_, k) => k).reverse();
  // Python counts characters, JavaScript UTF-16 units
  const units = []; let unit = 0;
  for (const character of found.text) { units.push(unit); unit += character.length; }
  units.push(unit);
  for (const k of order) for (const [first, last] of found.reasons[k].places) owner.fill(k, units[first], units[last]);
  const made = [];
  for (let start = 0, stop = 1; stop <= owner.length; stop++) {
    if (stop === owner.length || owner[stop] !== owner[start]) { made.push([start, stop, owner[start] < 0 ? null : found.reasons[owner[start]]]); start = stop; }
  }
  return made;
}

function sentence(found, before) {
  const line = element("p", "", "lead"), said = element("b", String(found.label));
  line.append(said, ` with probability ${found.probability.toFixed(3)} (decision ${signed(found.decision)})`);
  if (before) line.append(element("span", ` before: ${before.label}, ${signed(before.decision)}`, "quiet"));
  return line;
}

function flip(found) {
  const change = found.counterfactual;
  const kind = found.reasons[0]?.instance !== undefined ? "instance" : found.reasons[0]?.group !== undefined ? "group" : "token";
  const named = change && change.map((part) => kind === "instance" ? `instance ${part}` : `“${part}”`).join(", ");
  const said = kind === "group"
    ? (change ? `With ${named} at the average, the label changes, and no smaller change does.` : "Setting groups to their average does not change the label.")
    : (change ? `Without ${named}, the label changes, and no smaller change does.` : "No deletion changes the label.");
  const proof = found.certificate || {}, kinds = [["deletions", "deletion"], ["insertions", "insertion"], ["substitutions", "substitution"]];
  const parts = kinds.filter(([name]) => proof[name] !== undefined).map(([name, word]) => proof[name] < 0 ? `no number of ${name}` : `${proof[name]} ${proof[name] === 1 ? word : name}`);
  return element("p", said + (parts.length ? ` Certified: the fewest changes that could change the label are ${parts.join(", ")}.` : ""));
}

function table(rows, heads) {
  const made = element("table", "", "numbers"), head = made.createTHead().insertRow(), body = made.createTBody();
  for (const text of heads) head.append(element("th", text));
  for (const row of rows) { const line = body.insertRow(); for (const cell of row) line.insertCell().textContent = visible(cell); }
  const box = element("div", "", "scroll"); box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", "Contributions"); box.append(made);
  return box;
}

function contributions(found) {
  const top = found.reasons.slice(0, 12), rest = found.reasons.slice(12);
  const name = (reason) => reason.token ?? reason.group ?? `instance ${reason.instance}`;
  const rows = top.map((reason) => [name(reason), reason.attention === null ? "" : reason.attention.toFixed(3), signed(reason.contribution)]);
  const others = rest.reduce((sum, reason) => sum + reason.contribution, 0);
  if (rest.length) rows.push([`${rest.length} more`, "", signed(others)]);
  const parts = found.reasons.reduce((sum, reason) => sum + reason.contribution, 0);
  rows.push(["bias", "", signed(found.bias ?? found.decision - parts)], ["decision", "", signed(found.decision)]);
  return table(rows, ["", "attention", "contribution"]);
}

/** Show an explanation in `place`; words of a text can be deleted. */
export function showExplanation(place, model, found) {
  const deleted = new Set(), first = found;
  const draw = (now) => {
    const focus = place.querySelector("button:focus")?.dataset.start;
    const parts = [sentence(now, deleted.size ? first : null)];
    if (first.text !== undefined && first.text !== null) {
      const line = element("p", "", "words"), most = Math.max(...first.reasons.map((reason) => Math.abs(reason.contribution)), 0);
      for (const [start, stop, reason] of pieces(first)) {
        const text = first.text.slice(start, stop);
        if (!reason) { line.append(visible(text)); continue; }
        const word = element("button", text); word.type = "button"; word.dataset.start = start;
        word.title = `${reason.token}: attention ${reason.attention.toFixed(3)}, contribution ${signed(reason.contribution)}`;
        word.setAttribute("aria-pressed", deleted.has(start));
        paint(word, reason.contribution, most);
        word.addEventListener("click", async () => {
          deleted.has(start) ? deleted.delete(start) : deleted.add(start);
          word.setAttribute("aria-pressed", deleted.has(start));
          const left = pieces(first).map(([a, b]) => deleted.has(a) ? " " : first.text.slice(a, b)).join("");
          try { draw(left.trim() ? await explain(model, { text: left }) : { ...first, label: "nothing left", decision: 0, probability: 0, reasons: [], counterfactual: null }); }
          catch (error) { say(place, error.message, true); }
        });
        line.append(word);
      }
      const sides = `Blue speaks for ${first.label}, orange against it.`;
      parts.push(line, element("p", `${sides} Click a word to strike it.`, "quiet"));
    }
    parts.push(flip(now), contributions(now));
    place.replaceChildren(...parts);
    if (focus !== undefined) place.querySelector(`button[data-start="${focus}"]`)?.focus();
  };
  draw(found);
}
