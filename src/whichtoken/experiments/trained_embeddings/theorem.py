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

from whichtoken.experiments.trained_embeddings._starts import (
    MarginLimit,
    Start,
    constructed_margin,
    first_step_on,
    limit_of,
    selected_share,
)
from whichtoken.lab import Claim, Every, Experiment, Grid, Measured, Rows, Worst, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whichtoken.flows.cls import ClsPath

THIN = 6  # every so many recorded positions the weights are computed one by one

EVERY_RUN: tuple[tuple[str, str, Callable[[Measured], bool]], ...] = (
    (
        "diverges",
        "in which |p| grows by at least 0.99 of the last nine tenths of the way",
        lambda m: m["growth"] >= 0.99,
    ),
    (
        "selects",
        "that select every relevant token (Theorem 5, first part; Lemma 14)",
        lambda m: m["selected"] == 1.0,
    ),
    (
        "direction",
        "in which p and the max-margin direction of its selection have a cosine of 0.9995 (Theorem 5, second part; Lemma 18)",
        lambda m: m["cosine"] >= 0.9995,
    ),
    (
        "equivalence",
        "in which the max-margin solution selects exactly what p selects (equation (9))",
        lambda m: m["equivalent"],
    ),
    (
        "lemma13",
        "in which a higher score of any relevant token lowers the loss, all along the way: nothing is stationary (Lemma 13)",
        lambda m: m["descends"],
    ),
    (
        "lemma14",
        "whose loss starts below exp(-n), and that below what a lost token costs (Lemma 14)",
        lambda m: m["log_first_loss"] <= m["log_target"] < m["log_limit"],
    ),
    (
        "rival-exact",
        "in which the search for the shortest rival is exhaustive, as the verdict on Lemma 19's hypothesis takes for granted",
        lambda m: m["rival_exact"],
    ),
)
# code, sentence, what was measured, relation to the bound, bound, its numerical error
WORST_RUN: tuple[tuple[str, str, str, Callable[..., Claim], float, float], ...] = (
    (
        "lemma12",
        "logarithm of the loss after the first step over its bound (Lemma 12)",
        "log_over_bound",
        at_most,
        0.0,
        1e-9,
    ),
    ("descent", "largest rise of the log of the loss: the flow only descends", "rise", at_most, 0.0, 1e-9),
    (
        "local-optimality",
        "advantage of the selected tokens over the second ones, over lr/(4nT) (Definition 16)",
        "advantage",
        at_least,
        1.0,
        0.0,
    ),
    (
        "lemma10",
        "a check of the program, as softmax cannot fail it: largest violation of Lemma 10's bounds on attention weights, with the"
        " softmax written out place by place",
        "weight_violation",
        at_most,
        0.0,
        1e-9,
    ),
    ("margin", "margin of p at the end over the largest possible one", "margin_share", at_least, 0.98, 0.0),
    (
        "rest",
        "part of the gradient along the limit that comes from tokens that are neither first nor second (equation (21))",
        "from_rest",
        at_most,
        0.01,
        0.0,
    ),
    (
        "lemma20",
        "distance from 1 of the smallest constraint at a max-margin solution (Lemma 20)",
        "tight",
        at_most,
        0.0,
        1e-6,
    ),
    ("lemma21", "norm of the relevant-only solution over 4n (Lemma 21)", "norm_bound", at_most, 1.0, 0.0),
    (
        "lemma21-construction",
        "margin of twice the sum of the relevant initial embeddings, by which Lemma 21 is proven",
        "constructed",
        at_least,
        1.0,
        0.0,
    ),
    (
        "lemma19-hypothesis",
        "norm of the relevant-only solution over that of the shortest rival, found by exact search (Lemma 19)",
        "over_rival",
        at_most,
        1.0,
        0.0,
    ),
)


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
        from whichtoken.data import RelevantTokens
        from whichtoken.flows.cls import cls_flow
        from whichtoken.theory.trained_embeddings import relevant_selection, selection_margin

        data = RelevantTokens(point.length, point.relevant, point.irrelevant).sample(point.pairs, rng)
        start = first_step_on(data, 0, point.lr, "limit", rng)
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        limit = limit_of(path.embeddings, path.counts, path.selected)
        norms = np.linalg.norm(path.positions, axis=1)
        late = int(np.searchsorted(path.arc, point.arc_length / 10))
        return {
            "selected": min(selected_share(path, start).values()),
            "only_relevant": (path.selected != relevant_selection(data.counts, data.labels)).nnz == 0,
            "growth": float((norms[-1] - norms[late]) / (path.arc[-1] - path.arc[late])),
            "cosine": float(path.cosines(limit.direction)[-1]),
            "cosines": path.cosines(limit.direction),
            "arc": path.arc,
            "norms": norms,
            "margin_share": selection_margin(path.scores / norms[-1], data.counts, path.selected) / limit.margin,
            "norm_bound": 1 / limit.margin / (4 * len(data)),
            **_losses(point, path, start),
            **_selections(point, path, start, limit),
            **_rivals(start),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for code, what, holds in EVERY_RUN:
            yield from _every(rows, code, what, holds)
        alone, among = _split(rows)
        yield from _every(
            alone,
            "only-relevant.one",
            "with one irrelevant token in the vocabulary that select nothing but relevant tokens (Lemma 6)",
            lambda found: found["only_relevant"],
        )
        yield from _every(
            among,
            "only-relevant.more",
            "with several irrelevant tokens that select nothing but relevant ones, as our condition for Lemma 19 says",
            lambda found: found["unique"] and found["only_relevant"],
        )
        for code, what, name, relation, bound, error in WORST_RUN if rows else ():
            worst = rows.values(name).min() if relation is at_least else rows.values(name).max()
            yield relation(f"theorem.{code}", what, bound=bound, measured=Worst(worst), theory_error=error)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for row in rows:
            colour = f"C{rows.levels('pairs').index(row.point.pairs)}"
            left.plot(row.measured["arc"][1:], row.measured["norms"][1:], color=colour, alpha=0.5)
            away = np.maximum(1 - np.array(row.measured["cosines"]), 1e-16)
            right.plot(row.measured["arc"][1:], away[1:], color=colour, alpha=0.5)
        left.set(title="Norm of p", xlabel="arc length", xscale="log", yscale="log")
        right.set(
            title="p and the max-margin direction", xlabel="arc length", ylabel="1 - cosine", xscale="log", yscale="log"
        )


def _every(rows: Rows[Point], code: str, what: str, holds: Callable[[Measured], bool]) -> Iterator[Claim]:
    """A statement about every run: one that fails, or that could not be followed, is against it."""
    hits = [bool(holds(row.measured)) for row in rows] + [False] * len(rows.failed)
    if hits:
        yield at_least(f"theorem.{code}", f"share of runs {what}", bound=1.0, measured=Every(hits))


def _split(rows: Rows[Point]) -> tuple[Rows[Point], Rows[Point]]:
    """Runs with one irrelevant token, and those with more."""

    def of(alone: bool) -> Rows[Point]:
        return Rows(*([row for row in part if (row.point.irrelevant == 1) == alone] for part in (rows, rows.failed)))

    return of(True), of(False)


def _losses(point: Point, path: ClsPath, start: Start) -> dict[str, Any]:
    """Lemma 12's bound, the chain of Lemma 14 and whether the loss ever rises, all in logarithms."""
    from whichtoken.theory.trained_embeddings import loss_limit
    from whichtoken.theory.trained_embeddings.bounds import log_loss_bound

    data = start.data
    return {
        "log_first_loss": float(path.log_losses[0]),
        "log_over_bound": float(path.log_losses[0]) - log_loss_bound(data.counts, data.labels, point.lr),
        "log_target": -float(len(data)),
        "log_limit": float(np.log(loss_limit(start.embeddings @ start.value, data.counts, data.labels))),
        "rise": float(np.diff(path.log_losses).max()),
    }


def _selections(point: Point, path: ClsPath, start: Start, limit: MarginLimit) -> dict[str, Any]:
    """What is selected at the end and in the limit, Definition 16, Lemmas 10, 13, 17 and 20."""
    from whichtoken.theory.trained_embeddings import dominant_share, local_optimality, selection_margin, selection_sets

    counts, labels, values = start.data.counts, start.data.labels, start.embeddings @ start.value
    solution = start.embeddings @ limit.direction / limit.margin
    advantage = local_optimality(values, counts, labels, path.selected, path.secondary)
    scores = path.positions @ start.embeddings.T
    return {
        "equivalent": (selection_sets(solution, counts, tie=1e-6) != path.selected).nnz == 0,
        "advantage": advantage / (point.lr / (4 * len(start.data) * point.length)),
        "weight_violation": max(_weight_violation(row, counts) for row in scores[::THIN]),
        "descends": all(_lifting_descends(row, values, start) for row in scores),
        "from_rest": abs(1 - dominant_share(path.scores, values, counts, labels, solution, tie=_tie(path))),
        "tight": abs(selection_margin(solution, counts, path.selected) - 1),
    }


def _rivals(start: Start) -> dict[str, Any]:
    """Lemma 19's hypothesis, our condition in its place, and Lemma 21's construction."""
    from whichtoken.theory.trained_embeddings import relevant_selection, smallest_rival, unique_selection

    counts, labels = start.data.counts, start.data.labels
    relevant = relevant_selection(counts, labels)
    only = limit_of(start.embeddings, counts, relevant)
    rival = smallest_rival(start.embeddings, counts, labels)
    return {
        "over_rival": 1 / only.margin / rival.norm,
        "rival_exact": rival.exact,
        "unique": unique_selection(*start.arguments).holds,
        "constructed": constructed_margin(start, relevant),
    }


def _tie(path: ClsPath) -> float:
    """A quarter of the margin: tokens that tie in the limit differ by a bounded amount, all others by one that grows with |p|."""
    from whichtoken.theory.trained_embeddings import selection_margin

    return selection_margin(path.scores, path.counts, path.selected) / 4


def _lifting_descends(scores: np.ndarray[Any, Any], values: np.ndarray[Any, Any], start: Start) -> bool:
    """Whether d L / d a_s < 0 for every relevant token s: Lemma 13's direction gives score 1 to one token, 0 to the others."""
    from whichtoken.flows.cls_kernels import token_pull
    from whichtoken.theory.trained_embeddings import token_classes

    counts, labels = start.data.counts, start.data.labels.astype(np.float64)
    pull, _, _ = token_pull(scores, values, counts.indptr, counts.indices, np.log(counts.data), labels)
    return bool((pull[token_classes(counts, labels).relevant] < 0).all())


def _weight_violation(scores: np.ndarray[Any, Any], counts: Any) -> float:
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
