// The page of a classifier of bags: a pasted table of instances, those that decide, and instances to strike out.
import { explainBag, readBagModel } from "./bags.js";
import { encode, readTable, someOf } from "./cells.js";
import { bars, button, byArrows, counted, lead, legend, make, modelCard, paint, signed, split, table } from "./elements.js";

const TOP = 12, MOST_BAGS = 20;  // reasons that are seen at once, and bags to choose from

const cell = (text) => /[",\n;\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
const csv = (model, rows) => [model.inputs.map(({ name }) => name), ...rows].map((row) => row.map(cell).join(",")).join("\n");

/** The smallest deletion as a sentence, and what is certified. */
function changeOf(found, size) {
  if (!found.certified) return make("p", "change", "What would change the label is known exactly for two classes only.");
  if (!found.change) return make("p", "change", "No deletion of instances changes the label, as long as one is left.");
  const { instances, to } = found.change, names = instances.map((instance) => instance + 1).join(", ");
  return make("div", "", make("p", "change", `Deleting instance${instances.length > 1 ? "s" : ""} `, make("del", "", names), " changes the label to ", make("b", "", to), ". No smaller deletion exists."),
    make("p", "certified", make("b", "", "Certified: "), found.robustTo ? `deleting any ${counted(found.robustTo, "instance")} of ${size}, whichever, changes nothing.` : `one instance of ${size} is enough to change the label.`));
}

function contributionsOf(found) {
  const heads = ["instance", "attention", "of uniform", `adds to ${found.label}`], size = found.reasons.length;
  const row = ({ name, attention, contribution }) => [name, attention.toFixed(3), (attention * size).toFixed(2), signed(contribution)], [top, rest] = split(found.reasons, TOP);
  const sums = [...(rest.length ? [[counted(rest.length, "other"), signed(rest.reduce((sum, { contribution }) => sum + contribution, 0))]] : []), [`together, for ${found.label}`, signed(found.decision)]];
  const made = make("div", "contributions", table(heads, top.map(row), sums));
  if (rest.length) {
    const more = make("details", "", make("summary", "", `The other ${counted(rest.length, "instance")}`));
    more.addEventListener("toggle", () => more.childElementCount < 2 && more.append(table(heads, rest.map(row))));
    made.append(more);
  }
  return made;
}

/** The whole explainer in an element of a page. */
export function mountBags(place, model) {
  const box = make("textarea"), wrong = make("small", "wrong"), answer = make("div", "answer"), choose = make("p", "examples buttons"), bags = make("p", "examples buttons");
  let rows = [], ids = null, shown = null, struck = new Set();
  box.rows = 6;
  box.spellcheck = false;
  wrong.setAttribute("role", "alert");
  const strike = (...instances) => {
    for (const instance of instances) struck.has(instance) ? struck.delete(instance) : struck.add(instance);
    show();
    answer.querySelector(`[data-place="${instances[0]}"]`)?.focus();
  };
  /** Numbers of the rows that stand in the bag which is shown; with a gap they may be left out. */
  function instances() {
    const places = rows.flatMap((_, k) => ids === null || ids[k] === shown ? [k] : []), found = encode(model.inputs, places.map((k) => rows[k]), model.dropMissing);
    const kept = found.flatMap((values, k) => values.includes(NaN) ? [] : [k]);
    if (!kept.length) throw new Error("Every instance of the bag has a gap, and the model leaves those out.");
    return { values: kept.map((k) => found[k]), cells: kept.map((k) => rows[places[k]]) };
  }
  function show() {
    try {
      const { values, cells } = instances(), left = values.flatMap((_, k) => struck.has(k) ? [] : [k]), found = explainBag(model, left.map((k) => values[k]));
      // places of the whole bag, not of what is left of it
      for (const reason of found.reasons) { reason.instance = left[reason.instance]; reason.name = `instance ${reason.instance + 1}`; }
      if (found.change) found.change.instances = found.change.instances.map((instance) => left[instance]);
      const most = Math.abs(found.reasons[0].contribution) || 1, byPlace = new Map(found.reasons.map((reason) => [reason.instance, reason])), line = make("p", "text"), actions = make("p", "buttons");
      values.forEach((_, k) => {
        const word = button(String(k + 1), () => { if (struck.has(k) || left.length > 1) strike(k); }, "word"), reason = byPlace.get(k), seen = model.inputs.slice(0, 4).map(({ name }, place) => `${name} ${cells[k][place]}`).join(", ");
        word.dataset.place = k;
        word.setAttribute("aria-label", `instance ${k + 1}`);
        word.setAttribute("aria-pressed", struck.has(k));
        word.title = reason ? `instance ${k + 1}: attention ${reason.attention.toFixed(3)}, adds ${signed(reason.contribution)}; ${seen}` : seen;
        if (reason) paint(word, reason.contribution / most);
        if (found.change?.instances.includes(k)) word.classList.add("decides");
        line.append(word, " ");
      });
      if (found.change) actions.append(button(found.change.instances.length > 1 ? "Strike them out" : "Strike it out", () => strike(...found.change.instances)));
      if (struck.size) actions.append(button("Put all instances back", () => { struck = new Set(); show(); }));
      answer.replaceChildren(make("div", "", lead(found), bars(model, found), byArrows(line, "instances of the bag"), legend(found, "Each number is an instance, a row of the bag; click one to strike it out."), changeOf(found, left.length), actions), contributionsOf(found));
      place.dataset.label = found.label;
      wrong.textContent = "";
      box.setAttribute("aria-invalid", false);
    } catch (error) { wrong.textContent = error.message; box.setAttribute("aria-invalid", true); }
  }
  const setBag = (id) => { shown = id; struck = new Set(); show(); };
  function read() {
    try {
      const table = readTable(model.inputs, box.value, model.bag), names = [...new Set(table.extra ?? [])];
      ({ rows } = table);
      ids = table.extra;
      bags.replaceChildren(...(names.length < 2 ? [] : [make("span", "quiet", "bags "), ...names.slice(0, MOST_BAGS).map((name) => button(name, () => setBag(name)))]));
      setBag(names[0] ?? null);
    } catch (error) { wrong.textContent = error.message; box.setAttribute("aria-invalid", true); }
  }
  const setText = (text) => { box.value = text; read(); };
  box.addEventListener("input", read);
  if (model.examples.length > 1) choose.append(make("span", "quiet", "try "), ...model.examples.map((example, k) => button(`example ${k + 1}`, () => setText(csv(model, example)))));
  place.replaceChildren(choose, make("label", "", `a bag: one instance per row, with a heading or in the order ${someOf(model.inputs.map(({ name }) => name))}`, box, wrong), bags, answer,
    modelCard(model, `One attention query${model.classes.length > 2 ? " for each label" : ""} on ${{ linear: "the instances as they are", fourier: "random waves of the instances", network: "the last layer of small networks" }[model.map]}: ${counted(model.inputs.length, "column")}, ${counted(model.classes.length, "label")} (${model.classes.slice(0, 20).join(", ")}).`, "bags"));
  setText(csv(model, model.examples[0] ?? [model.inputs.map(({ levels, fill }) => levels ? levels[0] : String(+fill.toPrecision(4)))]));
  return { setText };
}

/** Show a packed model in an element. */
export const showModel = (place, packed) => mountBags(place, readBagModel(packed));
