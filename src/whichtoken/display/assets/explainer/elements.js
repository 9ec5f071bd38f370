// Parts that the pages of texts, rows and bags share. Everything from a user or a model becomes text content, never markup.
const BARS = 5;  // labels with a bar; the others share one
const FAINT = 0.02;  // share of the strongest part below which there is no color
export const DARKEST = 0.55;  // opacity of the strongest part

/** A user's text with control and bidi characters written as escapes: none reverses the reading. */
export const visible = (text) => String(text).replace(/(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
  const code = character.codePointAt(0).toString(16);
  return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
});

/** An element with text or other elements inside. */
export function make(tag, kind = "", ...inside) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...inside.map((part) => typeof part === "object" ? part : visible(part)));
  return made;
}

export function button(text, action, kind = "") {
  const made = make("button", kind, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

export const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
export const listed = (parts) => parts.flatMap((part, place) => place ? [", ", part] : [part]);

/** The first parts and the others: a single other stands with the first. */
export const split = (parts, most) => parts.length === most + 1 ? [parts, []] : [parts.slice(0, most), parts.slice(most)];

/** A line of buttons of which the tab key reaches one and the arrow keys the others. */
export function byArrows(line, name) {
  const buttons = [...line.querySelectorAll("button")];
  buttons.forEach((one, place) => { one.tabIndex = place ? -1 : 0; });
  line.setAttribute("role", "toolbar");
  line.setAttribute("aria-label", name);
  line.addEventListener("focusin", ({ target }) => {
    for (const one of buttons) one.tabIndex = one === target ? 0 : -1;
  });
  line.addEventListener("keydown", (event) => {
    const on = getComputedStyle(line).direction === "rtl" ? -1 : 1, step = { ArrowRight: on, ArrowLeft: -on, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  return line;
}

/** A table from rows of cells, in a box that scrolls; the first cell is the row's heading, the others are numbers. */
export function table(heads, rows, sums = []) {
  const made = make("table"), box = make("div", "scroll", made), line = (cells, parent) => {
    const row = make("tr", "", make("th", "", cells[0]), ...cells.slice(1).map((cell) => make("td", "number", cell)));
    row.firstChild.scope = "row";
    parent.append(row);
  };
  const head = make("tr", "", ...heads.map((text, place) => Object.assign(make("th", place ? "number" : "", text), { scope: "col" })));
  made.append(make("thead", "", head), make("tbody"), make("tfoot"));
  for (const cells of rows) line(cells, made.tBodies[0]);
  for (const [name, value] of sums) line([name, ...Array(heads.length - 2).fill(""), value], made.tFoot);
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", heads.at(-1));
  return box;
}

/** Bars of the probabilities, the largest first. */
export function bars(model, found) {
  const order = found.probabilities.map((share, k) => [model.classes[k], share, k === found.winner]).sort((a, b) => b[2] - a[2] || b[1] - a[1]);
  const others = order.slice(BARS), body = make("tbody");
  const rows = order.slice(0, BARS).concat(others.length ? [[counted(others.length, "other"), others.reduce((sum, row) => sum + row[1], 0), false]] : []);
  for (const [name, share, predicted] of rows) {
    const bar = make("span", "bar"), row = make("tr", predicted ? "predicted" : "", make("th", "", name), make("td", "", bar), make("td", "number", share.toFixed(3)));
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    row.firstChild.scope = "row";
    body.append(row);
  }
  return make("table", "bars", body);
}

/** Blue for what speaks for the label, orange with dots for what speaks against it. */
export function paint(word, share) {
  if (Math.abs(share) < FAINT) return;
  word.style.setProperty("--a", (DARKEST * Math.abs(share)).toFixed(2));
  word.classList.add(share > 0 ? "for" : "against");
}

/** The label and its probability. */
export function lead(found) {
  const share = found.probabilities[found.winner].toFixed(3), tie = found.probabilities.some((other, k) => k !== found.winner && other.toFixed(3) === share);
  const said = make("p", "lead", make("b", "", found.label), ` with probability ${share}${tie ? ", nearly a tie" : ""}`);
  said.setAttribute("role", "status");
  return said;
}

/** What the colors say. */
export const legend = (found, hint) => make("p", "quiet", make("mark", "", "Blue"), ` speaks for ${found.label}, `, make("mark", "against", "orange with dots"), ` against it. ${hint}`);

export const shorter = (text, most = 40) => [...text].slice(0, most).join("") + ([...text].length > most ? "…" : "");

const percent = (value, ends) => `${value.toFixed(3)}${ends && ends[0] !== null ? ` (${ends[0].toFixed(3)} to ${ends[1].toFixed(3)})` : ""}`;

/** What the model is, in a sentence, what it was trained on, how good it is, and what is left out of the page. */
export function modelCard(model, sentence, noun = "rows") {
  const { card, notes } = model, root = make("section", "", make("h2", "", "The model"));
  root.append(make("p", "", `${sentence} Contributions add up to the decision, and nothing is sampled.`));
  if (card?.data) root.append(make("p", "", `Learned from ${card.evaluation?.training ?? card.data.rows} of ${card.data.rows} ${noun} of ${card.data.file}.`));
  if (card?.evaluation) {
    const scores = [card.evaluation.ours, card.evaluation.baseline, card.evaluation.majority].filter(Boolean);
    root.append(table(["model", "accuracy", "log loss", "AUC"], scores.map((score) => [score.name, ...["accuracy", "log_loss", "auc"].map((name) => score[name] == null ? "" : percent(score[name], score.intervals?.[name]))])));
    root.append(make("p", "quiet", `On ${card.evaluation.test} held-out ${noun} (${card.evaluation.judged_by}), with 95 % intervals.`));
  }
  const said = [...notes, ...(card?.evaluation?.notes ?? []), ...(card?.limits ?? [])];
  if (said.length) root.append(make("ul", "", ...said.map((sentence) => make("li", "", sentence))));
  return root;
}

/** A part that unfolds below its heading. */
export function folded(part) {
  const heading = part.querySelector("h2");
  heading.remove();
  return make("details", "", make("summary", "", heading.textContent), part);
}
