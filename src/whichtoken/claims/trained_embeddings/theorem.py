"""The theorem at its own step size: in the limit of infinite dimension, everything that its proof says can be seen.

Claim   After a first step of 4 n^2 T^2, in the limit of infinite dimension, the flow of p diverges, selects every relevant token,
        and its direction is the max-margin direction of that selection; what the lemmas on the way state holds. Where relevant
        tokens are equally frequent, the hypothesis of Lemma 19 holds as well, and nothing else is selected.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Theorem 5, Lemmas
        12, 13, 14, 18, 21, Definition 16, and what is expected after Lemma 19. The limit (embeddings, p and v orthonormal)
        stands for the 10^111 dimensions of equation (10). Where relevant tokens are not equally frequent, the losses of two
        sequences differ by a factor that grows exponentially with n T: 8 sequences of 2 tokens are what our integrator follows
        to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken import datasets, flows
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import every_run, rows_where
from whichtoken.claims.trained_embeddings import _starts as starts
from whichtoken.lab import Measured, Row, Rows, Worst
from whichtoken.theory import trained_embeddings

if TYPE_CHECKING:
    from whichtoken.flows.cls import ClsPath

# What the theorem says of every run: one run that does not have it, or that failed, refutes it.
EVERY_RUN: dict[str, tuple[str, Callable[[Row[Any]], bool]]] = {
    "diverges": (
        "in which |p| grows by at least 0.99 of the last nine tenths of the way",
        lambda row: row.measured["growth"] >= 0.99,
    ),
    "selects": (
        "that select every relevant token (Theorem 5, first part; Lemma 14)",
        lambda row: row.measured["selected"] == 1.0,
    ),
    "direction": (
        "in which p has a cosine of 0.9995 with the max-margin direction",
        lambda row: row.measured["cosine"] >= 0.9995,
    ),
    "lemma13": (
        "in which a higher score of any relevant token lowers the loss, all along the way (Lemma 13)",
        lambda row: row.measured["descends"],
    ),
    "lemma14": (
        "whose loss starts below exp(-n), and that below what a lost token costs (Lemma 14)",
        lambda row: row.measured["log_first_loss"] <= row.measured["log_target"] < row.measured["log_limit"],
    ),
}
TABLE = ClaimTable(__name__)
# what is stated of the worst run, with the measured quantity
WORST_RUN = (
    (TABLE.lemma12, "log_over_bound"),
    (TABLE.local_optimality, "advantage"),
    (TABLE.lemma21, "norm_bound"),
    (TABLE.lemma21_construction, "constructed"),
)


@dataclass(frozen=True)
class Point:
    pairs: int = 32
    length: int = 8
    relevant: int = 4  # of each label
    irrelevant: int = 24
    multiple: float = 1.0  # of the smallest first step that the theorem allows
    arc_length: float = 300.0
    equal: bool = True  # frequencies of the relevant tokens

    @property
    def lr(self) -> float:
        return self.multiple * 4.0 * (2 * self.pairs) ** 2 * self.length**2


class Theorem(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.trained_embeddings.lemmas import relevant_selection

        data = datasets.RelevantTokens(point.length, point.relevant, point.irrelevant, point.equal).sample(
            point.pairs, rng
        )
        start = starts.take_first_step(data, 0, point.lr, "limit", rng)
        path = flows.cls_flow(*start.arguments, arc_length=point.arc_length)
        measured, direction, limit = starts.measure_flow(point, path, start)
        return {
            **measured,
            "increment": float(path.increment_cosines(direction)[-1]),
            "only_relevant": (path.selected != relevant_selection(data.counts, data.labels)).nnz == 0,
            "norms": np.linalg.norm(path.positions, axis=1),
            "norm_bound": 1 / limit.margin / (4 * len(data)),
            **_losses(point, path, start),
            "descends": all(
                _lifting_lowers_loss(scores, start.embeddings @ start.value, start)
                for scores in path.positions @ start.embeddings.T
            ),
            **_rivals(start),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        for code, (what, holds) in EVERY_RUN.items():
            for name, equal in (("equal", True), ("unequal", False)):
                runs = rows.where(equal=equal)
                share = every_run(runs, holds)
                yield TABLE.share.part(name, f"{name} frequencies", share, on=runs, code=code, what=what)
        one = rows_where(rows, lambda point: point.irrelevant == 1)
        more = rows_where(rows, lambda point: point.irrelevant != 1 and point.equal)
        yield TABLE.one_irrelevant(every_run(one, "only_relevant"), on=one)
        only = every_run(more, lambda row: row.measured["unique"] and row.measured["only_relevant"])
        yield TABLE.more_irrelevant(only, on=more)
        for criterion, name in WORST_RUN if rows else ():
            worst = rows.values(name).min() if criterion.comparison == "at least" else rows.values(name).max()
            yield criterion(Worst(worst))
        if more:
            yield TABLE.rival(Worst(more.values("over_rival").max()), on=more)

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
    """Lemma 12's bound and the chain of Lemma 14, in logarithms."""
    from whichtoken.theory.trained_embeddings.lemmas import log_loss_bound, loss_limit

    data = start.data
    return {
        "log_first_loss": float(path.log_losses[0]),
        "log_over_bound": float(path.log_losses[0]) - log_loss_bound(data.counts, data.labels, point.lr),
        "log_target": -float(len(data)),
        "log_limit": float(np.log(loss_limit(start.embeddings @ start.value, data.counts, data.labels))),
    }


def _rivals(start: starts.Start) -> dict[str, Any]:
    """Lemma 19's hypothesis, our condition in its place, and Lemma 21's construction."""
    from whichtoken.theory.trained_embeddings.lemmas import relevant_selection, smallest_rival, unique_selection

    counts, labels = start.data.counts, start.data.labels
    relevant = relevant_selection(counts, labels)
    _, only = starts.selection_limit(start.embeddings, counts, relevant)
    return {
        "over_rival": 1 / only.margin / smallest_rival(start.embeddings, counts, labels).norm,
        "unique": unique_selection(*start.arguments).holds,
        "constructed": starts.constructed_margin(start, relevant),
    }


def _lifting_lowers_loss(scores: starts.Vector, values: starts.Vector, start: starts.Start) -> bool:
    """Whether d L / d a_s < 0 for every relevant token s: Lemma 13's direction gives score 1 to one token, 0 to the others."""
    from whichtoken.flows.cls import token_pull

    counts, labels = start.data.counts, start.data.labels.astype(np.float64)
    pull, _, _ = token_pull(scores, values, counts.indptr, counts.indices, np.log(counts.data), labels)
    return bool((pull[trained_embeddings.token_classes(counts, labels).relevant] < 0).all())
