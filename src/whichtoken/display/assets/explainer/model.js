// A text model as the page holds it: names of its tokens, their selection scores and values, and the functions on them.
import { readNumbers } from "./numbers.js";
import { makeTokenizer } from "./tokenize.js";

/** Names from lines that begin with the number (base 36) of characters they share with the line before. */
function readNames(text) {
  let name = "";
  return text.split("\n").map((line) => (name = name.slice(0, parseInt(line[0], 36)) + line.slice(1)));
}

/** The model of a page; `stemmer` is Snowball's, if it has one. */
export function readModel(packed, stemmer) {
  const names = readNames(packed.names);
  return {
    ...packed, names, columns: new Map(names.map((name, column) => [name, column])), selection: readNumbers(packed.selection),
    values: readNumbers(packed.values), outputs: packed.bias.length, logNull: packed.logNull ?? -Infinity,
    tokenize: makeTokenizer(packed.tokenizer, stemmer), strongest: new Map(),
  };
}

/** Where the tokens of the vocabulary, single ones, pairs and triples, stand in a text, by column in ascending order. */
export function findTokens(model, text) {
  const { words, tokens } = model.tokenize(text), found = new Map();
  for (let n = 1; n <= model.ngrams; n++) {
    for (let first = 0; first + n <= tokens.length; first++) {
      const part = tokens.slice(first, first + n), column = model.columns.get(part.map((token) => token.name).join(" "));
      if (column === undefined) continue;
      if (!found.has(column)) found.set(column, []);
      found.get(column).push([part[0].start, part[n - 1].stop]);
    }
  }
  const entries = [...found].sort((a, b) => a[0] - b[0]);
  return { words, entries: entries.map(([column, places]) => ({ column, places, count: places.length })) };
}

/** What enters the softmax in place of a count. */
export const amountOf = (model, count) => model.logCounts ? Math.log2(1 + count) : count;

/** Attention of each entry: amount e^score over the sum of all and of the null token. */
export function attentionOf(model, entries) {
  let top = model.logNull;
  for (const { column } of entries) top = Math.max(top, model.selection[column]);
  const masses = entries.map(({ column, count }) => amountOf(model, count) * Math.exp(model.selection[column] - top));
  const total = masses.reduce((sum, mass) => sum + mass, Math.exp(model.logNull - top));
  return masses.map((mass) => mass / total);
}

/** f + b, one number for two classes, otherwise one per class. */
export function outputsOf(model, entries, attention = attentionOf(model, entries)) {
  const outputs = new Array(model.outputs).fill(0);
  entries.forEach(({ column }, place) => outputs.forEach((_, k) => { outputs[k] += attention[place] * model.values[column * model.outputs + k]; }));
  return outputs.map((output, k) => output + model.bias[k]);
}

/** Number of the class that outputs decide for. */
export const decide = (outputs) => outputs.length === 1 ? Number(outputs[0] > 0) : outputs.indexOf(Math.max(...outputs));

/** Probabilities of the classes. */
export function probabilitiesOf(model, outputs) {
  const scaled = outputs.map((output, k) => model.temperature * output + model.shifts[k]);
  if (scaled.length === 1) return [1 / (1 + Math.exp(scaled[0])), 1 / (1 + Math.exp(-scaled[0]))];
  const top = Math.max(...scaled), masses = scaled.map((output) => Math.exp(output - top)), total = masses.reduce((a, b) => a + b);
  return masses.map((mass) => mass / total);
}
