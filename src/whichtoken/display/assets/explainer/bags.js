// A classifier of bags with one query per score, as whichtoken.estimators.bags.
import { readNumbers } from "./numbers.js";
import { chosenClass, shares, sideOf } from "./scores.js";

/** The model of a page. */
export function readBagModel(packed) {
  const scores = packed.scores.map(({ query, readout, bias, map }) => ({
    query: readNumbers(query), readout: readNumbers(readout), bias,
    map: map && { ...map, mean: readNumbers(map.mean), scale: readNumbers(map.scale), layers: map.layers.map((layer) => ({ ...layer, weights: readNumbers(layer.weights), offsets: readNumbers(layer.offsets) })) },
  }));
  return { ...packed, scores };
}

const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);

/** What attention sees of an instance: itself, cosines, or the last layer of networks side by side. */
function features(map, instance) {
  if (!map) return instance;
  const scaled = instance.map((value, k) => (value - map.mean[k]) / map.scale[k]), { copies } = map, out = [];
  for (let copy = 0; copy < copies; copy++) {
    let hidden = scaled;
    map.layers.forEach(({ wide, narrow, weights, offsets }, place) => {
      const sums = Float64Array.from({ length: narrow }, (_, unit) => {
        let sum = offsets[copy * narrow + unit];
        for (let k = 0; k < wide; k++) sum += hidden[k] * weights[(copy * wide + k) * narrow + unit];
        return sum;
      });
      if (map.kind === "fourier") hidden = sums.map(Math.cos);
      else if (map.gate && place === map.layers.length - 1) hidden = Float64Array.from({ length: narrow / 2 }, (_, unit) => Math.max(sums[unit], 0) / (1 + Math.exp(-sums[narrow / 2 + unit])));
      else hidden = sums.map((sum) => Math.max(sum, 0));
    });
    out.push(...hidden);
  }
  return out;
}

/** Attention of each instance, and what it adds to one score: weights sum to one, so the bias is shared out with them. */
function pool({ query, readout, bias, map }, bag) {
  const seen = bag.map((instance) => features(map, instance)), scores = seen.map((one) => dot(query, one)), values = seen.map((one) => dot(readout, one) + bias);
  const top = Math.max(...scores), masses = scores.map((score) => Math.exp(score - top)), total = masses.reduce((a, b) => a + b);
  return { terms: masses.map((mass, k) => mass * values[k]), attention: masses.map((mass) => mass / total), added: masses.map((mass, k) => mass / total * values[k]) };
}

/** A provably smallest set of instances without which the label is another one; empty if there is none. */
function smallestDeletion(terms) {
  const positive = terms.reduce((a, b) => a + b) > 0, order = [...terms.keys()].sort((a, b) => positive ? terms[b] - terms[a] : terms[a] - terms[b]);
  let left = 0, size = 0;
  // summed from the other end: differences of sums would be rounding once little is left
  for (let k = order.length - 1; k > 0; k--) {
    left += terms[order[k]];
    if (positive ? left <= 0 : left > 0) size = k;
  }
  return order.slice(0, size);
}

/** Why a bag of rows of numbers gets its label: `decision` is the sum of what the instances add. */
export function explainBag(model, bag) {
  const pools = model.scores.map((score) => pool(score, bag)), scores = pools.map(({ added }) => added.reduce((a, b) => a + b));
  const winner = chosenClass(scores), [own, side] = sideOf(scores, winner), certified = scores.length === 1, deleted = certified ? smallestDeletion(pools[0].terms) : [];
  const reasons = pools[own].attention.map((attention, instance) => ({ instance, attention, contribution: side * pools[own].added[instance] }));
  return {
    scores, winner, label: model.classes[winner], probabilities: shares(scores), decision: side * scores[own], certified,
    reasons: reasons.sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution)),
    change: deleted.length ? { instances: deleted, to: model.classes[1 - winner] } : null, robustTo: certified ? (deleted.length || bag.length) - 1 : null,
  };
}
