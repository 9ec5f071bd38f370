"""The theorem at its own step size: in the limit of infinite dimension, everything that its proof says can be seen.

Claim   After a first step of 4 n^2 T^2, in the limit of infinite dimension, the flow of p diverges, selects every relevant token
        and nothing else, and its direction is the max-margin direction of that selection; each lemma on the way holds.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Theorem 5, Lemmas
        10, 12, 13, 14, 18, 19, 20, 21, Definition 16, equations (9) and (21). The limit (embeddings, p and v orthonormal) stands
        for the 10^111 dimensions of equation (10). Relevant tokens are equally frequent: otherwise the losses of two sequences
        differ by a factor of exp(thousands), and so far no integrator of ours gets through the first part of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, hits, rows_where
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims.trained_embeddings import _starts as starts
from whichtoken.lab import Check, Every, Experiment, Grid, Measured, Row, Rows, Worst

if TYPE_CHECKING:
    from whichtoken.flows.cls import ClsPath
    from whichtoken.margin import MarginCertificate

THIN = 6  # weights are computed one by one at every sixth recorded position

# What the theorem says of every run: one run that does not have it, or that failed, refutes it.
EVERY_RUN = {
    "diverges": "in which |p| grows by at least 0.99 of the last nine tenths of the way",
    "selects": "that select every relevant token (Theorem 5, first part; Lemma 14)",
    "direction": "in which p has a cosine of 0.9995 with the max-margin direction (Theorem 5, second part; Lemma 18)",
    "equivalence": "in which the max-margin solution selects exactly what p selects (equation (9))",
    "lemma13": "in which a higher score of any relevant token lowers the loss, all along the way (Lemma 13)",
    "lemma14": "whose loss starts below exp(-n), and that below what a lost token costs (Lemma 14)",
    "rival-exact": "in which the search for the shortest rival is exhaustive, as the verdict on Lemma 19 takes for granted",
}
ONE_IRRELEVANT = {"only-relevant.one": "with one irrelevant token that select nothing but relevant tokens (Lemma 6)"}
MORE_IRRELEVANT = {
    "only-relevant.more": "with several irrelevant tokens that select only relevant ones, as our condition says (Lemma 19)"
}
HOLDS: dict[str, Callable[[Row[Any]], bool]] = {
    "diverges": lambda row: row.measured["growth"] >= 0.99,
    "selects": lambda row: row.measured["selected"] == 1.0,
    "direction": lambda row: row.measured["cosine"] >= 0.9995,
    "equivalence": lambda row: row.measured["equivalent"],
    "lemma13": lambda row: row.measured["descends"],
    "lemma14": lambda row: row.measured["log_first_loss"] <= row.measured["log_target"] < row.measured["log_limit"],
    "rival-exact": lambda row: row.measured["rival_exact"],
    "only-relevant.one": lambda row: row.measured["only_relevant"],
    "only-relevant.more": lambda row: row.measured["unique"] and row.measured["only_relevant"],
}
SHARE = AtLeast("theorem.{code}", 1.0, "share of runs {what}")
# What is stated of the worst run, by measured quantity.
WORST_RUN = {
    "log_over_bound": AtMost(
        "theorem.lemma12", 0.0, "log of the loss after the first step over its bound (Lemma 12)", theory_error=1e-9
    ),
    "rise": AtMost(
        "theorem.descent", 0.0, "largest rise of the log of the loss: the flow only descends", theory_error=1e-9
    ),
    "advantage": AtLeast(
        "theorem.local-optimality", 1.0, "advantage of selected tokens over second ones, over lr/(4nT) (Definition 16)"
    ),
    "weight_violation": AtMost(
        "theorem.lemma10",
        0.0,
        "check of the program: largest violation of Lemma 10's bounds on weights, with softmax written out by places",
        theory_error=1e-9,
    ),
    "margin_share": AtLeast("theorem.margin", 0.98, "margin of p at the end over the largest possible one"),
    "from_rest": AtMost(
        "theorem.rest", 0.01, "part of the gradient from tokens that are neither first nor second (equation (21))"
    ),
    "tight": AtMost(
        "theorem.lemma20", 0.0, "distance from 1 of the smallest constraint at a solution (Lemma 20)", theory_error=1e-6
    ),
    "norm_bound": AtMost("theorem.lemma21", 1.0, "norm of the relevant-only solution over 4n (Lemma 21)"),
    "constructed": AtLeast(
        "theorem.lemma21-construction", 1.0, "margin of twice the sum of relevant initial embeddings (Lemma 21)"
    ),
    "over_rival": AtMost(
        "theorem.lemma19-hypothesis",
        1.0,
        "norm of the relevant-only solution over that of the shortest rival (Lemma 19)",
    ),
}


@dataclass(frozen=True)
class Point:
    pairs: int = 32
    length: int = 8
    relevant: int = 4  # of each label
    irrelevant: int = 24
    multiple: float = 1.0  # of the smallest first step that the theorem allows
    arc_length: float = 300.0

    @property
    def lr(self) -> float:
        return self.multiple * 4.0 * (2 * self.pairs) ** 2 * self.length**2


class Theorem(Experiment[Point]):
    id = "trained-embeddings/theorem"
    version = 2
    presets = {
        "quick": (
            Grid(seeds=4),
            Grid(pairs=8, length=4, relevant=2, irrelevant=6, seeds=8),
            Grid(pairs=8, length=4, relevant=2, irrelevant=1, seeds=8),
        ),
        "full": (
            Grid(multiple=[1.0, 4.0], seeds=20),
            Grid(irrelevant=1, seeds=20),
            Grid(pairs=[8, 16], length=[4, 8], relevant=2, irrelevant=[1, 6], seeds=20),
        ),
    }
    method_fields = frozenset({"multiple", "arc_length"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.datasets import RelevantTokens
        from whichtoken.flows.cls import cls_flow
        from whichtoken.theory.trained_embeddings.lemmas import relevant_selection

        data = RelevantTokens(point.length, point.relevant, point.irrelevant).sample(point.pairs, rng)
        start = starts.take_first_step(data, 0, point.lr, "limit", rng)
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        measured, direction, limit = starts.measure_flow(point, path, start)
        return {
            **measured,
            "only_relevant": (path.selected != relevant_selection(data.counts, data.labels)).nnz == 0,
            "norms": np.linalg.norm(path.positions, axis=1),
            "norm_bound": 1 / limit.margin / (4 * len(data)),
            **_losses(point, path, start),
            **_selections(path, start, direction, limit),
            **_rivals(start),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        one = rows_where(rows, lambda point: point.irrelevant == 1)
        more = rows_where(rows, lambda point: point.irrelevant != 1)
        for runs, table in ((rows, EVERY_RUN), (one, ONE_IRRELEVANT), (more, MORE_IRRELEVANT)):
            for code, what in table.items() if runs or runs.failed else ():
                yield SHARE(Every(hits(runs, HOLDS[code])), code=code, what=what)
        for name, criterion in WORST_RUN.items() if rows else ():
            worst = rows.values(name).min() if criterion.comparison == "at least" else rows.values(name).max()
            yield criterion(Worst(worst))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for row in rows:
            color = f"C{rows.levels('pairs').index(row.point.pairs)}"
            left.plot(row.measured["arc"][1:], row.measured["norms"][1:], color=color, alpha=0.5)
            away = np.maximum(1 - np.array(row.measured["cosines"]), 1e-16)
            right.plot(row.measured["arc"][1:], away[1:], color=color, alpha=0.5)
        label_axes(left, "Norm of p", "arc length", log="xy")
        label_axes(right, "p and the max-margin direction", "arc length", "1 - cosine", log="xy")


def _losses(point: Point, path: ClsPath, start: starts.Start) -> dict[str, Any]:
    """Lemma 12's bound, the chain of Lemma 14 and whether the loss ever rises, all in logarithms."""
    from whichtoken.theory.trained_embeddings.lemmas import log_loss_bound, loss_limit

    data = start.data
    return {
        "log_first_loss": float(path.log_losses[0]),
        "log_over_bound": float(path.log_losses[0]) - log_loss_bound(data.counts, data.labels, point.lr),
        "log_target": -float(len(data)),
        "log_limit": float(np.log(loss_limit(start.embeddings @ start.value, data.counts, data.labels))),
        "rise": float(np.diff(path.log_losses).max()),
    }


def _selections(
    path: ClsPath, start: starts.Start, direction: starts.Vector, limit: MarginCertificate
) -> dict[str, Any]:
    """What is selected at the end and in the limit, Lemmas 10, 13, 17 and 20."""
    from whichtoken.theory.trained_embeddings import selection_sets
    from whichtoken.theory.trained_embeddings.attention import dominant_share, selection_margin

    counts, labels, values = start.data.counts, start.data.labels, start.embeddings @ start.value
    solution = start.embeddings @ direction / limit.margin
    scores = path.positions @ start.embeddings.T
    return {
        "equivalent": (selection_sets(solution, counts, tie=1e-6) != path.selected).nnz == 0,
        "weight_violation": max(_weight_violation(row, counts) for row in scores[::THIN]),
        "descends": all(_lifting_lowers_loss(row, values, start) for row in scores),
        "from_rest": abs(1 - dominant_share(path.scores, values, counts, labels, solution, tie=_tie(path))),
        "tight": abs(selection_margin(solution, counts, path.selected) - 1),
    }


def _rivals(start: starts.Start) -> dict[str, Any]:
    """Lemma 19's hypothesis, our condition in its place, and Lemma 21's construction."""
    from whichtoken.theory.trained_embeddings.lemmas import relevant_selection, smallest_rival, unique_selection

    counts, labels = start.data.counts, start.data.labels
    relevant = relevant_selection(counts, labels)
    _, only = starts.selection_limit(start.embeddings, counts, relevant)
    rival = smallest_rival(start.embeddings, counts, labels)
    return {
        "over_rival": 1 / only.margin / rival.norm,
        "rival_exact": rival.exact,
        "unique": unique_selection(*start.arguments).holds,
        "constructed": starts.constructed_margin(start, relevant),
    }


def _tie(path: ClsPath) -> float:
    """A quarter of the margin: tokens that tie in the limit differ by a bounded amount, all others by one that grows with |p|."""
    from whichtoken.theory.trained_embeddings.attention import selection_margin

    return selection_margin(path.scores, path.counts, path.selected) / 4


def _lifting_lowers_loss(scores: starts.Vector, values: starts.Vector, start: starts.Start) -> bool:
    """Whether d L / d a_s < 0 for every relevant token s: Lemma 13's direction gives score 1 to one token, 0 to the others."""
    from whichtoken.flows.cls import token_pull
    from whichtoken.theory.trained_embeddings import token_classes

    counts, labels = start.data.counts, start.data.labels.astype(np.float64)
    pull, _, _ = token_pull(scores, values, counts.indptr, counts.indices, np.log(counts.data), labels)
    return bool((pull[token_classes(counts, labels).relevant] < 0).all())


def _weight_violation(scores: starts.Vector, counts: Any) -> float:
    """By how much a weight leaves Lemma 10's bounds, with softmax written out over the places of each sequence."""
    worst = -np.inf
    for x in range(counts.shape[0]):
        part = slice(counts.indptr[x], counts.indptr[x + 1])
        a = np.repeat(scores[counts.indices[part]], counts.data[part].astype(np.int64))
        gap = a.max() - a
        shares = np.exp(-gap)
        weights = shares / shares.sum()
        below = gap > 0
        worst = max(worst, 1 / len(a) - weights[~below].min(), weights.max() - 1)
        if below.any():
            worst = max(worst, (weights - 1 / (1 + np.exp(np.minimum(gap, 700))))[below].max())
            worst = max(worst, (np.exp(-gap) / len(a) - weights)[below].max())
    return float(worst)
