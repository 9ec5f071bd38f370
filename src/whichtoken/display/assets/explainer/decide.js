// What decided and what would change it: as whichtoken.theory.trained_embeddings.decisions, one document at a time.
//
// The sign of f + b is that of the sum over tokens of amount_s e^{a_s} (g_s + b), plus e^{null} b: softmax divides by a positive
// number. So the fewest tokens whose deletion flips a decision are those that speak most for it, and fewer cannot.
import { amountOf, attentionOf, decide, findTokens, outputsOf, probabilitiesOf } from "./model.js";

const ZERO = 1e-12;  // sums below this share of their terms are rounding
const FARTHEST = 600;  // e to it stands for any larger ratio of two votes
const MOST = 2 ** 62;  // and this for any larger number of tokens
export const NEVER = -1;  // no number of changes flips the decision

/** Values and bias of the winner against each rival: functions of the column, so that nothing is copied. */
function duelsOf(model, winner) {
  const { outputs, values, bias } = model;
  if (outputs === 1) return [{ key: "0", value: (column) => values[column], bias: bias[0] }];
  return bias.flatMap((_, rival) => rival === winner ? [] : [{
    key: `${winner} ${rival}`, value: (column) => values[column * outputs + winner] - values[column * outputs + rival], bias: bias[winner] - bias[rival],
  }]);
}

/** The highest selection score of a document, to which its terms are relative; 0 without tokens. */
const topOf = (model, entries) => entries.length ? entries.reduce((top, { column }) => Math.max(top, model.selection[column]), -Infinity) : 0;

/** The terms of one duel, the strongest for its decision first; each may be cast several times. */
function ballotOf(model, entries, duel, terms) {
  const top = topOf(model, entries), nullTerm = duel.bias * Math.exp(Math.min(model.logNull - top, FARTHEST));
  let total = 0, mass = 0;
  for (const { signed, times } of terms) { total += times * signed; mass += times * Math.abs(signed); }
  total += nullTerm;
  mass += Math.abs(nullTerm);
  const zero = ZERO * mass, usual = duel.bias > 0 ? 1 : -1;
  const decision = total > zero ? 1 : total < -zero ? -1 : usual;
  const votes = terms.map(({ column, signed, times }) => ({ column, vote: decision * signed, times })).sort((a, b) => b.vote - a.vote);
  return { decision, votes, nullVote: decision * nullTerm, support: decision * total, zero, yields: decision !== usual, top };
}

const termOf = (model, duel, top, column) => Math.exp(model.selection[column] - top) * (duel.value(column) + duel.bias);

/** Fewest of the strongest votes to take away, each with `extra` more, until the decision flips; those with `useful` only. */
function fewest(ballot, extra, useful) {
  const { votes, nullVote, yields } = ballot;
  let found = NEVER, rest = nullVote, mass = Math.abs(nullVote), before = votes.reduce((sum, { times }) => sum + times, 0);
  const flips = ({ vote, times }, taken) => {
    const kept = times - taken, gone = before + taken, left = rest + kept * vote - gone * extra;
    const zero = ZERO * (mass + kept * Math.abs(vote) + gone * Math.abs(extra));
    return yields ? left <= zero : left < -zero;
  };
  // sums over what stays, the weakest first: a small rest would be lost beside what is taken away
  for (let place = votes.length - 1; place >= 0; place--) {
    const entry = votes[place];
    before -= entry.times;
    if (useful(entry.vote) && entry.times > 0) {
      let least = flips(entry, 1) ? 1 : flips(entry, entry.times) ? entry.times : 0;
      for (let low = 1; least - low > 1;) {
        const middle = Math.floor((low + least) / 2);
        if (flips(entry, middle)) least = middle; else low = middle;
      }
      if (least) found = before + least;
    }
    rest += entry.times * entry.vote;
    mass += entry.times * Math.abs(entry.vote);
  }
  return found;
}

/** How many steps take a support away. */
function repeats({ yields, zero }, support, step) {
  if (!(step > 0)) return NEVER;
  const needed = yields ? Math.ceil((support - zero) / step) : Math.floor((support + zero) / step) + 1;
  return Math.min(MOST, Math.max(1, needed));
}

/** Logarithm and sign of the strongest vote against a decision that any token of the vocabulary has. */
function strongestAgainst(model, duel, decision) {
  const key = `${duel.key} ${decision}`;
  if (!model.strongest.has(key)) {
    let opposed = -Infinity, weakest = Infinity;
    for (let column = 0; column < model.names.length; column++) {
      const vote = -decision * (duel.value(column) + duel.bias), size = model.selection[column] + Math.log(Math.abs(vote));
      if (vote > 0) opposed = Math.max(opposed, size);
      weakest = Math.min(weakest, size);
    }
    model.strongest.set(key, opposed > -Infinity ? { sign: 1, size: opposed } : { sign: -1, size: weakest });
  }
  return model.strongest.get(key);
}

/** The smallest set of tokens whose deletion decides one duel otherwise, with what is left before and after its last token. */
function deletionOf(model, entries, duel) {
  const top = topOf(model, entries);
  const terms = entries.map(({ column, count }) => ({ column, signed: amountOf(model, count) * termOf(model, duel, top, column), times: 1 }));
  const ballot = ballotOf(model, entries, duel, terms), size = fewest(ballot, 0, (vote) => vote > 0);
  const taken = ballot.votes.slice(0, Math.max(0, size)), share = (sum, { vote }) => sum - vote;
  const unit = ballot.votes.reduce((sum, { vote }) => sum + Math.abs(vote), Math.abs(ballot.nullVote)) || 1;
  return { size, columns: taken.map(({ column }) => column), before: taken.slice(0, -1).reduce(share, ballot.support) / unit, after: taken.reduce(share, ballot.support) / unit };
}

/** The smallest deletion that changes the label, over all rivals; null if none does. */
export function smallestDeletion(model, entries, winner) {
  let found = null;
  for (const duel of duelsOf(model, winner)) {
    const deletion = deletionOf(model, entries, duel);
    if (deletion.size !== NEVER && (!found || deletion.size < found.size)) found = deletion;
  }
  return found;
}

function certifyDuel(model, entries, duel) {
  const top = topOf(model, entries);
  // deleting j of c occurrences takes away at most the share j / c of their concave amount
  const terms = entries.map(({ column, count }) => ({ column, signed: amountOf(model, count) / count * termOf(model, duel, top, column), times: count }));
  const ballot = ballotOf(model, entries, duel, terms), { sign, size } = strongestAgainst(model, duel, ballot.decision);
  const against = sign * Math.exp(Math.min(FARTHEST, Math.max(-FARTHEST, size - top))), useful = Math.max(against, 0);
  let removed = 0, favorable = 0;
  for (const { vote, times } of ballot.votes) if (vote > 0) { removed += times; favorable += times * vote; }
  const mixed = fewest(ballot, useful, (vote) => vote > 0), longer = repeats(ballot, ballot.support - favorable - removed * useful, useful);
  return {
    deletions: fewest(ballot, 0, (vote) => vote > 0), insertions: repeats(ballot, ballot.support, useful),
    substitutions: fewest(ballot, against, (vote) => vote + against > 0), edits: mixed !== NEVER ? mixed : longer !== NEVER ? removed + longer : NEVER,
  };
}

/** How many occurrences must be deleted, inserted or substituted before the label can change, over all rivals. */
export function certify(model, entries, winner) {
  const proofs = duelsOf(model, winner).map((duel) => certifyDuel(model, entries, duel));
  const least = (kind) => proofs.map((proof) => proof[kind]).filter((number) => number !== NEVER).reduce((a, b) => Math.min(a, b), Infinity);
  return Object.fromEntries(["deletions", "insertions", "substitutions", "edits"].map((kind) => [kind, least(kind) === Infinity ? NEVER : least(kind)]));
}

/** Why a text gets its label: `decision` is `bias` plus the sum of the contributions, which are positive where they speak for it. */
export function explain(model, text) {
  const { words, entries } = findTokens(model, text), attention = attentionOf(model, entries), outputs = outputsOf(model, entries, attention);
  const winner = decide(outputs), output = model.outputs > 1 ? winner : 0, side = model.outputs > 1 || winner > 0 ? 1 : -1;
  const reasons = entries.map(({ column, places, count }, k) => ({
    column, name: model.names[column], count, places, attention: attention[k],
    contribution: side * attention[k] * (model.values[column * model.outputs + output] + model.bias[output]),
  }));
  const decision = side * outputs[output], change = smallestDeletion(model, entries, winner), gone = new Set(change?.columns);
  return {
    text, words, winner, label: model.classes[winner], decision, outputs, probabilities: probabilitiesOf(model, outputs),
    bias: reasons.reduce((rest, { contribution }) => rest - contribution, decision),
    reasons: reasons.sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution)),
    change: change && { ...change, names: change.columns.map((column) => model.names[column]), to: model.classes[decide(outputsOf(model, entries.filter(({ column }) => !gone.has(column))))] },
    certificate: certify(model, entries, winner),
  };
}
