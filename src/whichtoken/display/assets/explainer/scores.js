// Scores of rows and bags: one for two classes, otherwise one per class; as whichtoken.estimators._common.

/** Number of the class that scores decide for. */
export const chosenClass = (scores) => scores.length === 1 ? Number(scores[0] > 0) : scores.indexOf(Math.max(...scores));

/** Which score speaks for a class, and with which sign. */
export const sideOf = (scores, winner) => scores.length === 1 ? [0, winner ? 1 : -1] : [winner, 1];

/** Probabilities of the classes, normalized in logarithms: a sample that every class rejects must not become 0 / 0. */
export function shares(scores) {
  if (scores.length === 1) return [1 / (1 + Math.exp(scores[0])), 1 / (1 + Math.exp(-scores[0]))];
  const logs = scores.map((score) => Math.min(0, score) - Math.log1p(Math.exp(-Math.abs(score)))), top = Math.max(...logs);
  const masses = logs.map((log) => Math.exp(log - top)), total = masses.reduce((a, b) => a + b);
  return masses.map((mass) => mass / total);
}
