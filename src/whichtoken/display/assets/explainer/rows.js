// A classifier of rows, as whichtoken.estimators.groups: scores are sums over groups of columns, bent or not.
import { readNumbers } from "./numbers.js";
import { chosenClass, shares, sideOf } from "./scores.js";

/** The model of a page. */
export function readRowModel(packed) {
  const { bends } = packed, [means, coef, ranges, weights, offsets, bendCoef] = [packed.means, packed.coef, packed.ranges, bends.weights, bends.offsets, bends.coef].map(readNumbers);
  const byColumn = Array.from(means, () => []);
  for (let bend = 0; bend < offsets.length; bend++)
    for (let k = bends.starts[bend]; k < bends.starts[bend + 1]; k++) byColumn[bends.columns[k]].push([bend, weights[k]]);
  const bent = bends.kind === "splines" ? (sum) => Math.min(Math.max(sum, 0), 1) : Math.cos;
  return { ...packed, means, coef, ranges, offsets, bendCoef, byColumn, bent, width: means.length, count: offsets.length };
}

/** Sums of columns that are bent. */
function sumsOf(model, row) {
  const sums = Float64Array.from(model.offsets);
  model.byColumn.forEach((bends, column) => { for (const [bend, weight] of bends) sums[bend] += weight * row[column]; });
  return sums;
}

/** Scores of a row of numbers. */
export function scoresOf(model, row) {
  const bent = sumsOf(model, row).map(model.bent);
  return model.intercept.map((intercept, k) => {
    let score = intercept;
    for (let column = 0; column < model.width; column++) score += model.coef[k * model.width + column] * row[column];
    for (let bend = 0; bend < model.count; bend++) score += model.bendCoef[k * model.count + bend] * bent[bend];
    return score;
  });
}

/** What each column adds to the scores of the average row: its distance times the slope, averaged over the way. */
function termsOf(model, row) {
  const start = sumsOf(model, model.means), end = sumsOf(model, row);
  const steep = end.map((sum, bend) => sum === start[bend] ? 0 : (model.bent(sum) - model.bent(start[bend])) / (sum - start[bend]));
  return model.intercept.map((_, k) => Float64Array.from(row, (value, column) => {
    let slope = model.coef[k * model.width + column];
    for (const [bend, weight] of model.byColumn[column]) slope += steep[bend] * model.bendCoef[k * model.count + bend] * weight;
    return (value - model.means[column]) * slope;
  }));
}

const sumOver = (numbers, places) => places.reduce((sum, place) => sum + numbers[place], 0);

/** The fewest parts without which the label changes: in a sum, those are the largest; null if no set does it. */
function fewestChanges(added, scores, winner) {
  const [own, side] = sideOf(scores, winner);
  const duels = scores.length === 1 ? [[added[0].map((gain) => side * gain), side * scores[0]]]
    : scores.flatMap((score, rival) => rival === own ? [] : [[added[own].map((gain, part) => gain - added[rival][part]), scores[own] - score]]);
  let fewest = null;
  for (const [gains, lead] of duels) {
    const order = [...gains.keys()].sort((a, b) => gains[b] - gains[a]);
    let sum = 0;
    const size = order.findIndex((part) => (sum += gains[part]) > lead) + 1;
    if (size && (!fewest || size < fewest.length)) fewest = order.slice(0, size);
  }
  return fewest;
}

/** Why a row gets its label: `decision` is `bias`, that of the average row, plus what each part adds. */
export function explainRow(model, row) {
  const scores = scoresOf(model, row), winner = chosenClass(scores), [own, side] = sideOf(scores, winner), terms = termsOf(model, row);
  const added = terms.map((each) => model.parts.map(({ columns }) => sumOver(each, columns))), flips = fewestChanges(added, scores, winner);
  const rest = flips && scores.map((score, k) => score - sumOver(added[k], flips));
  return {
    scores, winner, label: model.classes[winner], probabilities: shares(scores), decision: side * scores[own], bias: side * scoresOf(model, model.means)[own],
    reasons: model.parts.map(({ name, attention }, part) => ({ part, name, attention, contribution: side * added[own][part] })).sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution)),
    columns: terms[own].map((term) => side * term),
    change: flips && { parts: flips, names: flips.map((part) => model.parts[part].name), to: model.classes[chosenClass(rest)] },
  };
}

/** By how much the label leads its strongest rival, for values of one column, everything else as in the row. */
export function leads(model, row, { scores, winner }, column, values) {
  const sums = sumsOf(model, row), [own, side] = sideOf(scores, winner);
  return values.map((value) => {
    const step = value - row[column], moved = scores.map((score, k) => {
      for (const [bend, weight] of model.byColumn[column]) score += model.bendCoef[k * model.count + bend] * (model.bent(sums[bend] + weight * step) - model.bent(sums[bend]));
      return score + model.coef[k * model.width + column] * step;
    });
    return moved.length === 1 ? side * moved[0] : moved[own] - Math.max(...moved.filter((_, k) => k !== own));
  });
}
