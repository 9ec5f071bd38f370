// Pasted tables: cells by column, and the numbers that a model makes of them; gaps and levels as in whichtoken.app.readers.
const GAPS = new Set(["", "na", "n/a", "nan", "null", "none", "<na>", "nat"]);
const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
const LARGEST = 1e100;
const LISTED = 12;  // names of columns in a sentence

const isGap = (cell) => GAPS.has(cell.trim().toLowerCase());
const numberOf = (cell) => NUMBER.test(cell.trim()) ? Number(cell) : NaN;
const quoted = (text) => `“${[...text].slice(0, 40).join("")}”`;

/** Some names of many. */
export const someOf = (names) => names.slice(0, LISTED).join(", ") + (names.length > LISTED ? `, … (${names.length})` : "");

/** Rows of cells from a CSV file or a spreadsheet; the first line says what separates them. */
export function readCells(text) {
  const first = text.trimStart().split("\n", 1)[0], separator = ["\t", ";", ","].find((sign) => first.includes(sign)) ?? ",";
  const rows = [[""]];
  let inside = false;
  for (let k = 0; k < text.length; k++) {
    const sign = text[k], row = rows.at(-1);
    if (sign === '"' && inside && text[k + 1] === '"') { row[row.length - 1] += sign; k++; }
    else if (sign === '"' && (inside || row.at(-1) === "")) inside = !inside;
    else if (sign === separator && !inside) row.push("");
    else if (sign === "\n" && !inside) rows.push([""]);
    else if (sign !== "\r") row[row.length - 1] += sign;
  }
  return rows.map((row) => row.map((cell) => cell.trim())).filter((row) => row.some((cell) => cell !== ""));
}

/** The cells of the model's columns, found by name below a heading or else by their order, and those of one more column. */
export function readTable(inputs, text, extra = null) {
  const rows = readCells(text), names = inputs.map(({ name }) => name);
  if (!rows.length) throw new Error(`Paste rows with the columns ${someOf(names)}.`);
  const headed = rows[0].some((cell) => names.includes(cell)), heads = headed ? rows.shift() : names;
  const missing = names.filter((name) => !heads.includes(name));
  if (missing.length) throw new Error(`The table lacks ${someOf(missing)}; the model needs ${someOf(names)}.`);
  if (!rows.length) throw new Error("There is a heading but no row below it.");
  const ragged = rows.findIndex((row) => row.length !== heads.length);
  if (ragged >= 0) throw new Error(`Row ${ragged + 1} has ${rows[ragged].length} cells; ${headed ? "the heading" : "the model"} has ${heads.length} columns${headed ? "" : `: ${someOf(names)}`}.`);
  const places = names.map((name) => heads.indexOf(name)), other = heads.indexOf(extra);
  return { rows: rows.map((row) => places.map((place) => row[place])), extra: other < 0 ? null : rows.map((row) => row[other]) };
}

/** Numbers of one column, NaN for its gaps. */
function numbersOf({ name }, cells) {
  return cells.map((cell, row) => {
    if (isGap(cell)) return NaN;
    const value = numberOf(cell);
    if (!(Math.abs(value) <= LARGEST)) throw new Error(`Column ${name} holds ${quoted(cell)}${cells.length > 1 ? ` in row ${row + 1}` : ""}; it must hold numbers.`);
    return value;
  });
}

/** The level of each cell, undefined for a gap or a text that the model does not know. */
function levelsOf(input, cells) {
  const filled = cells.filter((cell) => !isGap(cell)), count = filled.filter((cell) => !Number.isNaN(numberOf(cell))).length;
  if (2 * count < filled.length) return cells.map((cell) => isGap(cell) ? undefined : cell);
  // texts that look like numbers: of 1, 01 and 1.0 the shortest
  const written = new Map([...input.levels].sort((a, b) => b.length - a.length).map((level) => [numberOf(level), level]));
  return numbersOf(input, cells).map((value) => Number.isNaN(value) ? undefined : written.get(value));
}

/** Rows of numbers: gaps are filled, or stay NaN where `drop` is set, and a column of texts becomes one of 0 and 1 for each level. */
export function encode(inputs, rows, drop = false) {
  const columns = inputs.flatMap((input, place) => {
    const cells = rows.map((row) => row[place]);
    if (!input.levels) return [numbersOf(input, cells).map((value) => Number.isNaN(value) && !drop ? input.fill : value)];
    const found = levelsOf(input, cells);
    return input.levels.map((level) => found.map((text) => Number(text === level)));
  });
  return rows.map((_, row) => Float64Array.from(columns, (column) => column[row]));
}
