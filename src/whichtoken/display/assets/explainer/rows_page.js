// The page of a classifier of rows: a field and a curve for each column, what each group adds, and groups to set to their averages.
import { encode, readTable, someOf } from "./cells.js";
import { bars, button, counted, lead, legend, listed, make, modelCard, paint, shorter, signed, table, visible } from "./elements.js";
import { explainRow, leads, readRowModel } from "./rows.js";

const WIDE = 160, TALL = 48, STEPS = 80;  // of a curve
const MOST_CURVES = 40, MOST_ROWS = 20;  // curves, and pasted rows to choose from

function draw(tag, attributes, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

const written = (value) => String(+value.toPrecision(4));

/** The lead of the label as one column moves over the middle nine tenths of its training values: below the line the label changes. */
function curveOf(model, row, found, column, name) {
  const value = row[column], [first, last] = [model.ranges[2 * column], model.ranges[2 * column + 1]];
  const low = Math.min(first, value), high = Math.max(last, value), span = high - low || 1;
  const places = Array.from({ length: STEPS + 1 }, (_, k) => low + span * k / STEPS), [now, ...heights] = leads(model, row, found, column, [value, ...places]);
  const least = Math.min(0, now, ...heights), most = Math.max(0, now, ...heights), tall = most - least || 1;
  const x = (place) => (5 + (WIDE - 10) * (place - low) / span).toFixed(1), y = (height) => (5 + (TALL - 10) * (most - height) / tall).toFixed(1), zero = y(0);
  const said = `From ${written(low)} to ${written(high)}, ${name} moves the lead of ${found.label} from ${signed(heights[0])} to ${signed(heights.at(-1))}; at ${written(value)} it is ${signed(now)}`;
  return draw("svg", { class: "curve", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": visible(said) },
    draw("rect", { class: "stays", width: WIDE, height: zero }), draw("rect", { class: "changes", y: zero, width: WIDE, height: TALL - zero }),
    draw("line", { class: "border", x2: WIDE, y1: zero, y2: zero }), draw("polyline", { points: places.map((place, k) => `${x(place)},${y(heights[k])}`).join(" ") }),
    draw("circle", { cx: x(value), cy: y(now), r: 4 }));
}

/** A field for one column of the table: a number with a slider, or one of the levels. */
function fieldOf(model, input, features, changed) {
  const name = input.name.split("_").flatMap((part, k) => k ? ["_", make("wbr"), part] : [part]);  // a long one breaks between its words
  const box = make(input.levels ? "select" : "input"), wrong = make("small", "wrong"), line = make("label", "field", make("span", "", ...name), box);
  if (input.levels) {
    box.append(...["", ...input.levels].map((level) => Object.assign(make("option", "", level || "none of these"), { value: level })));
  } else {
    const slider = make("input"), low = model.ranges[2 * features[0]], high = model.ranges[2 * features[0] + 1];
    box.inputMode = "decimal";
    Object.assign(slider, { type: "range", min: low, max: high, step: "any", tabIndex: -1 });
    slider.setAttribute("aria-label", visible(`${input.name}, slider`));
    slider.addEventListener("input", () => { box.value = written(+slider.value); changed(); });
    line.slide = (value) => { slider.value = value; };
    line.append(slider);
  }
  box.setAttribute("aria-label", visible(input.name));
  wrong.setAttribute("role", "alert");
  line.append(wrong);
  box.addEventListener("input", changed);
  line.say = (sentence) => { wrong.textContent = sentence; box.setAttribute("aria-invalid", sentence !== ""); };
  return { box, line };
}

/** The whole explainer in an element of a page. */
export function mountRows(place, model) {
  const answer = make("div", "answer"), averaged = new Set(), curves = [];
  const starts = model.inputs.map((_, k) => model.inputs.slice(0, k).reduce((sum, { levels }) => sum + (levels ? levels.length : 1), 0));
  const featuresOf = (k) => Array.from({ length: model.inputs[k].levels?.length ?? 1 }, (_, j) => starts[k] + j);
  let row = Float64Array.from(model.means), pasted = [];
  const fields = model.inputs.map((input, k) => fieldOf(model, input, featuresOf(k), () => { read(k); show(); }));
  const cards = model.parts.map(({ name, columns }, part) => {
    const mean = button("Set to the average", () => { averaged.has(part) ? averaged.delete(part) : averaged.add(part); show(); }), adds = make("span", "adds");
    const inside = model.inputs.flatMap((input, k) => columns.includes(starts[k]) ? [k] : []).flatMap((k) => {
      const spot = curveSpot(k);
      return spot ? [make("div", "with-curve", fields[k].line, spot)] : [fields[k].line];
    });
    return { mean, adds, root: make("section", "part", make("h3", "", name, " ", adds), ...inside, make("p", "buttons", mean)) };
  });
  function curveSpot(k) {
    if (model.inputs[k].levels || curves.length >= MOST_CURVES) return null;
    const spot = make("div", "spot");
    curves.push([spot, starts[k], model.inputs[k].name]);
    return spot;
  }
  /** Take what stands in a field, unless it is wrong: then say so beside it. */
  function read(k) {
    const { box, line } = fields[k];
    try {
      encode([model.inputs[k]], [[box.value]])[0].forEach((value, j) => { row[starts[k] + j] = value; });
      line.say("");
      line.slide?.(row[starts[k]]);
    } catch (error) { line.say(error.message); }
  }
  function setCells(cells) {
    averaged.clear();
    cells.forEach((cell, k) => { fields[k].box.value = cell; read(k); });
    show();
  }
  function show() {
    const now = Float64Array.from(row);
    for (const part of averaged) for (const column of model.parts[part].columns) now[column] = model.means[column];
    const found = explainRow(model, now), most = Math.abs(found.reasons[0]?.contribution) || 1, line = make("p", "text"), actions = make("p", "buttons");
    for (const { part, name, contribution } of found.reasons) {
      const word = button(name, () => cards[part].mean.click(), "word");
      word.setAttribute("aria-pressed", averaged.has(part));
      paint(word, contribution / most);
      if (found.change?.parts.includes(part)) word.classList.add("decides");
      line.append(word, " ");
      const { mean, adds, root } = cards[part];
      adds.className = "adds";
      adds.textContent = averaged.has(part) ? "at the average" : `${signed(contribution)} for ${found.label}`;
      paint(adds, contribution / most);
      root.classList.toggle("averaged", averaged.has(part));
      mean.textContent = averaged.has(part) ? "Put the values back" : "Set to the average";
    }
    for (const [spot, column, name] of curves) spot.replaceChildren(curveOf(model, now, found, column, name));
    if (found.change) actions.append(button(found.change.parts.length > 1 ? "Set them to the average" : "Set it to the average", () => { found.change.parts.forEach((part) => averaged.add(part)); show(); }));
    if (averaged.size) actions.append(button("Put all values back", () => { averaged.clear(); show(); }));
    answer.replaceChildren(make("div", "", lead(found), bars(model, found), line, legend(found, "Click a group to set it to its average."), changeOf(found), actions), contributionsOf(found));
    place.dataset.label = found.label;
  }
  const choose = make("p", "examples buttons"), box = make("textarea"), wrong = make("small", "wrong"), offer = (rows, name) => choose.replaceChildren(...(rows.length < 2 ? [] : [make("span", "quiet", "rows "), ...rows.slice(0, MOST_ROWS).map((cells, k) => button(`${name} ${k + 1}`, () => setCells(cells)))]));
  box.rows = 3;
  box.placeholder = visible(shorter(model.inputs.map(({ name }) => name).join(","), 200));
  wrong.setAttribute("role", "alert");
  box.addEventListener("input", () => {
    wrong.textContent = "";
    if (!box.value.trim()) return;
    try {
      const { rows } = readTable(model.inputs, box.value);
      encode(model.inputs, rows);
      pasted = rows;
      offer(pasted, "row");
      setCells(pasted[0]);
    } catch (error) { wrong.textContent = error.message; }
  });
  const paste = make("details", "paste", make("summary", "", "Paste rows of a CSV file or a spreadsheet"), make("label", "", `with a heading, or in the order ${someOf(model.inputs.map(({ name }) => name))}`, box, wrong));
  place.replaceChildren(choose, answer, paste, make("h2", "", "Your row"), make("p", "quiet", "Each curve shows by how much the label leads as one value moves over the middle nine tenths of its training values: in the blue range the label stays, in the orange range it changes."),
    make("div", "parts", ...cards.map(({ root }) => root)), modelCard(model, `Attention selected ${counted(model.parts.filter(({ attention }) => attention !== null).length, "group")} of columns, and ${{ linear: "each column counts in proportion to its value", splines: "each column acts through a bent line", fourier: "the columns of a group act together, through random cosines" }[model.bends.kind]}.`));
  if (model.examples.length) { offer(model.examples, "example"); setCells(model.examples[0]); }
  else {
    // the average of each number, and the most frequent level
    const usual = (k) => model.inputs[k].levels[featuresOf(k).reduce((best, column, j, all) => model.means[column] > model.means[all[best]] ? j : best, 0)];
    model.inputs.forEach((input, k) => { fields[k].box.value = input.levels ? usual(k) : written(model.means[starts[k]]); read(k); });
    show();
  }
  return { setCells };
}

/** The fewest groups that change the label, as a sentence with its proof. */
function changeOf(found) {
  if (!found.change) return make("p", "change", "Setting groups to their averages does not change the label.");
  const { names, to } = found.change;
  return make("div", "", make("p", "change", "Setting ", ...listed(names.map((name) => make("b", "", name))), ` to ${names.length > 1 ? "their averages" : "its average"} changes the label to `, make("b", "", to), ". No smaller set of groups does."),
    make("details", "proof", make("summary", "", "Why no smaller set does"), make("p", "", `The decision is a sum to which every group adds its own part. So the smallest set to take away consists of the groups that speak most for ${found.label}, taken in this order.`)));
}

function contributionsOf(found) {
  const rows = found.reasons.map(({ name, attention, contribution }) => [name, attention === null ? "" : attention.toFixed(3), signed(contribution)]);
  return make("div", "contributions", table(["group", "attention", `adds to ${found.label}`], rows, [["average row", signed(found.bias)], [`together, for ${found.label}`, signed(found.decision)]]));
}

/** Show a packed model in an element. */
export const showModel = (place, packed) => mountRows(place, readRowModel(packed));
