// The page: texts that are explained while they are typed, words to strike out, two texts side by side, the words of each class.
// Everything from a text or a model becomes text content, never markup.
import { explain } from "./decide.js";
import { bars, button, byArrows, counted, DARKEST, folded, lead, legend, listed, make, modelCard, paint, shorter, signed, split, table, visible } from "./elements.js";
import { readModel } from "./model.js";

const TOP = 8;  // reasons that are seen at once
const LISTED = 15, MOST_FOUND = 60;  // words of a class, and words that a search shows
const STRONGEST = 3;  // words of each class in the first text of a page without examples

/** The strongest reason at each word: its place in `reasons`, or undefined. */
function ownersOf(found, words) {
  const at = new Map(words.map(({ start }, place) => [start, place])), owners = new Array(words.length);
  found.reasons.forEach(({ places }, owner) => {
    for (const [first, last] of places)
      for (let place = at.get(first); place < words.length && words[place].start < last; place++) owners[place] ??= owner;
  });
  return owners;
}

/** The words of a text, each a button that strikes it out and puts it back. */
function wordsOf(text, words, found, struck, strike) {
  const line = Object.assign(make("p", "text"), { dir: "auto" }), owners = ownersOf(found, words), most = Math.abs(found.reasons[0]?.contribution ?? 0) || 1;
  let end = 0;
  words.forEach(({ start, stop }, place) => {
    if (start > end) line.append(visible(text.slice(end, start)));
    const reason = found.reasons[owners[place]], word = button(text.slice(start, stop), () => strike(place), "word");
    word.setAttribute("aria-pressed", struck.has(place));
    word.dataset.place = place;
    if (reason && !struck.has(place)) {
      paint(word, reason.contribution / most);
      word.title = visible(`${reason.name}: attention ${reason.attention.toFixed(3)}, adds ${signed(reason.contribution)}`);
      if (found.change?.columns.includes(reason.column)) word.classList.add("decides");
    }
    line.append(word);
    end = Math.max(end, stop);
  });
  line.append(visible(text.slice(end)));
  return byArrows(line, "words of the text");
}

/** Whether the tokens of a text are words: striking one out in the text then takes it away, and nothing else. */
const areWords = (model, found) => !model.neighbors && !model.tokenizer.pieces && !found.reasons.some(({ name }) => name.includes(" "));

/** The smallest deletion as a sentence, and why no smaller one exists. */
function changeOf(model, found) {
  const { change, label } = found, noun = areWords(model, found) ? "word" : "token";
  if (!change) return make("p", "change", `No deletion of ${noun}s changes the label: what speaks against it, including the part that no ${noun} can take away, is too weak.`);
  const names = listed(change.names.map((name) => make("del", "", name))), said = noun === "word" ? "" : " A token here is a word, neighboring words or a piece of a word; striking out a word takes away every token that it is part of.";
  const line = make("p", "change", noun === "word" ? "Deleting " : `Taking the token${change.size > 1 ? "s" : ""} `, ...names, noun === "word" ? " changes" : " out of the count changes", " the label to ", make("b", "", change.to), `. No smaller deletion exists.${said}`);
  const fewer = change.size > 1 ? `Without the strongest ${change.size - 1 > 1 ? `${change.size - 1} of them` : "one"}, ` : `With all ${noun}s, `;
  const proof = make("details", "proof", make("summary", "", "Why none exists"), make("p", "", `The label is the sign of a sum to which every ${noun} adds its own part, so the fewest ${noun}s to delete are those that speak most for ${label}. ${fewer}the sum is still on its side (${signed(change.before)}, as a share of all parts); without ${change.size > 1 ? `all ${change.size}` : "this one"} it is ${signed(change.after)}.`));
  return make("div", "", line, proof);
}

const KINDS = [["deletions", "deletion"], ["insertions", "insertion"], ["substitutions", "substitution"], ["edits", "edit"]];

function certificateOf(model, found) {
  // that it takes at least one edit says nothing
  const telling = KINDS.filter(([kind]) => !model.logCounts || found.certificate[kind] !== 1);
  if (!telling.length) return "";
  const parts = telling.map(([kind, noun]) => (found.certificate[kind] < 0 ? `more ${kind} than there can be` : counted(found.certificate[kind], noun)) + (kind === "edits" ? " of any kind" : ""));
  return make("p", "certified", make("b", "", "Certified: "), `to change the label${telling.length < KINDS.length ? " by edits of one kind" : ""} takes ${model.logCounts ? "at least " : ""}${parts.slice(0, -1).join(", ")}${parts.length > 1 ? ", or " : ""}${parts.at(-1)}, whichever ${model.ngrams === 1 && !model.tokenizer.pieces ? "words" : "tokens"} are chosen.`);
}

function contributionsOf(found) {
  const heads = ["token", "count", "attention", `adds to ${found.label}`], [top, rest] = split(found.reasons, TOP);
  const row = ({ name, count, attention, contribution }) => [name, count, attention.toFixed(3), signed(contribution)];
  const sum = (reasons) => signed(reasons.reduce((total, { contribution }) => total + contribution, 0));
  const sums = [...(rest.length ? [[counted(rest.length, "other"), sum(rest)]] : []), ...(found.bias ? [["null token", signed(found.bias)]] : []), [`together, for ${found.label}`, signed(found.decision)]];
  const made = make("div", "contributions", table(heads, top.map(row), sums));
  if (rest.length) {
    const more = make("details", "", make("summary", "", `The other ${counted(rest.length, "token")}`));
    more.addEventListener("toggle", () => more.childElementCount < 2 && more.append(table(heads, rest.map(row))));
    made.append(more);
  }
  return made;
}

/** The text without its struck words; places stay what they are. */
const without = (text, words, struck) => words.reduce((left, { start, stop }, place) => struck.has(place) ? left.slice(0, start) + " ".repeat(stop - start) + left.slice(stop) : left, text);

/** One text with its explanation; `changed` is called with the explanation whenever it is another one. */
export function panel(model, name, changed = () => {}) {
  const box = make("textarea"), answer = make("div", "answer"), root = make("section", "side", make("label", "", name, box), answer);
  root.setAttribute("aria-label", name);
  Object.assign(box, { rows: 4, spellcheck: false, dir: "auto" });
  let struck = new Set(), words = [];
  const strike = (...places) => {
    for (const place of places) struck.has(place) ? struck.delete(place) : struck.add(place);
    draw();
    answer.querySelector(`[data-place="${places[0]}"]`)?.focus();
  };
  function draw() {
    const text = box.value, found = explain(model, without(text, words, struck));
    const line = wordsOf(text, words, found, struck, strike), actions = make("p", "buttons");
    const marked = [...line.querySelectorAll(".decides")].map((word) => Number(word.dataset.place));
    if (marked.length && areWords(model, found)) actions.append(button(marked.length > 1 ? "Strike them out" : "Strike it out", () => strike(...marked)));
    if (struck.size) actions.append(button("Put all words back", () => { struck = new Set(); draw(); }));
    answer.replaceChildren(make("div", "", lead(found), bars(model, found), line, legend(found, "Click a word to strike it out."), changeOf(model, found), actions, certificateOf(model, found)), contributionsOf(found));
    root.dataset.label = found.label;
    changed(found);
  }
  const setText = (text) => {
    if (box.value !== text) box.value = text;
    struck = new Set();
    ({ words } = model.tokenize(text));
    draw();
  };
  box.addEventListener("input", () => setText(box.value));
  return { root, box, setText };
}

/** How the tokens of two explanations differ in what they add to the label of the first. */
function differences(model, first, second) {
  const output = model.outputs > 1 ? first.winner : 0, side = model.outputs > 1 || first.winner > 0 ? 1 : -1;
  const adds = (found) => new Map(found.reasons.map(({ column, attention }) => [column, side * attention * (model.values[column * model.outputs + output] + model.bias[output])]));
  const [one, other] = [adds(first), adds(second)], columns = [...new Set([...one.keys(), ...other.keys()])];
  const rows = columns.map((column) => [column, one.get(column) ?? 0, other.get(column) ?? 0]).sort((a, b) => Math.abs(b[1] - b[2]) - Math.abs(a[1] - a[2]));
  return rows.slice(0, TOP).map(([column, a, b]) => [model.names[column], signed(a), signed(b), signed(a - b)]);
}

/** One text, or two side by side with what differs between them. */
function comparison(model, start) {
  const found = [null, null], sides = make("div", "sides"), between = make("div", "between");
  const changed = (place) => (now) => {
    found[place] = now;
    if (!found[0] || !found[1]) return;
    between.replaceChildren(make("h2", "", "What differs"), table(["token", "your text", "second text", "difference"], differences(model, found[0], found[1])), make("p", "quiet", `What each token adds to ${found[0].label}.`));
  };
  const first = panel(model, "your text", changed(0));
  sides.append(first.root);
  const add = button("Compare with a second text", () => {
    const second = panel(model, "second text", changed(1));
    sides.append(second.root);
    sides.classList.add("two-sides");
    second.setText(first.box.value);
    add.remove();
    second.box.focus();
  });
  first.setText(start);
  return { first, parts: [sides, make("div", "buttons", add), between] };
}

/** What a token would add to each class where it stands alone beside the strongest one: e^score times value. */
function strengths(model) {
  const top = model.selection.reduce((most, score) => Math.max(most, score), -Infinity);
  return model.classes.map((_, k) => {
    const output = model.outputs > 1 ? k : 0, side = model.outputs > 1 || k ? 1 : -1;
    return Float64Array.from(model.names, (_, column) => side * Math.exp(model.selection[column] - top) * model.values[column * model.outputs + output]);
  });
}

const strongestFirst = (strength) => Array.from(strength.keys()).filter((column) => strength[column] > 0).sort((a, b) => strength[b] - strength[a]);

/** The first text of a page without examples: the strongest words of each class. */
const strongestWords = (model) => strengths(model).flatMap((strength) => strongestFirst(strength).slice(0, STRONGEST).map((column) => model.names[column])).join(" ");

function wordList(model, columns, strength, most, use) {
  return make("ol", "strengths", ...columns.map((column) => {
    const word = button(model.names[column], () => use(model.names[column]), "word for");
    word.style.setProperty("--a", (DARKEST * Math.min(1, Math.abs(strength[column]) / most)).toFixed(2));
    return make("li", "", word, " ", make("span", "quiet", signed(100 * strength[column] / most).replace(/\.\d+$/, "")));
  }));
}

/** The strongest words of each class, and a search among all of them. */
function topWords(model, use, hint) {
  const all = strengths(model), most = Math.max(...all.map((strength) => strength.reduce((a, b) => Math.max(a, Math.abs(b)), 0))) || 1;
  const columns = make("div", "classes"), search = make("input"), root = make("section", "", make("h2", "", "Words of each label"), make("label", "", "search the words ", search), make("p", "quiet", `The strongest word has 100. ${hint}`), columns);
  search.type = "search";
  const show = () => {
    const asked = search.value.trim().toLowerCase();
    columns.replaceChildren(...model.classes.map((name, k) => {
      const order = strongestFirst(all[k]).filter((column) => !asked || model.names[column].includes(asked));
      const heading = make("h3", "", name, asked ? ` (${order.length})` : "");
      return make("div", "", heading, order.length ? wordList(model, order.slice(0, asked ? MOST_FOUND : LISTED), all[k], most, use) : make("p", "quiet", "no such word"));
    }));
  };
  search.addEventListener("input", show);
  show();
  return root;
}

const sentence = (model) => `One attention query on ${model.tokenizer.pieces ? "word pieces" : model.neighbors ? "words and their neighbors" : "words"}: ${counted(model.names.length, "token")}, ${counted(model.classes.length, "label")} (${model.classes.slice(0, 20).join(", ")}).`;

/** The whole explainer in an element of a page; with `data-brief`, what is not about the text is folded, with "card" only the card. `use` takes a word that is clicked. */
export function mount(place, model, { hint = "Click a word to add it to your text.", use = null } = {}) {
  const { first, parts } = comparison(model, model.examples[0] ?? strongestWords(model));
  const examples = model.examples.length < 2 ? [] : [make("p", "examples buttons", make("span", "quiet", "try "), ...model.examples.map((text) => button(shorter(text), () => first.setText(text))))];
  place.replaceChildren(...examples, ...parts);
  use ??= (word) => { first.setText(`${first.box.value.trimEnd()} ${word}`.trimStart()); first.box.focus(); };
  const open = place.dataset.brief === "card" ? 1 : "brief" in place.dataset ? 0 : 2;
  // after the first picture: lists of a large vocabulary take longer
  setTimeout(() => place.append(...[topWords(model, use, hint), modelCard(model, sentence(model))].map((part, k) => k < open ? part : folded(part))));
  return { setText: first.setText };
}

/** Show a packed model in an element. */
export const showModel = (place, packed, stemmer) => mount(place, readModel(packed, stemmer));
