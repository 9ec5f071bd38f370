// One explanation of a bag or a row: the contributions that add up to the decision, the smallest change of the label.
import { element, visible } from "./frame.js";

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);

function sentence(found) {
  const line = element("p", "", "lead"), said = element("b", String(found.label));
  line.append(said, ` with probability ${found.probability.toFixed(3)} (decision ${signed(found.decision)})`);
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

/** Show an explanation in `place`. */
export const showExplanation = (place, found) => place.replaceChildren(sentence(found), flip(found), contributions(found));
