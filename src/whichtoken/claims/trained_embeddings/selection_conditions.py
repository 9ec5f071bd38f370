"""When does attention select the relevant tokens and nothing else?

Claim   The relevant-only selection has a larger margin than every other one, hence the flow of p selects nothing else; no
        selection of everything is a limit; every max-margin solution has a tight constraint and a norm of at most 4n.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Lemmas 3, 6, 19,
        20 and 21. Hypothesis and conclusion of Lemma 19 are judged apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, hits
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims.trained_embeddings import _starts as starts
from whichtoken.lab import Check, Every, Exact, Experiment, Grid, Mean, Measured, Rows, Worst

if TYPE_CHECKING:
    from whichtoken.margin import MarginCertificate

SLACK = 1e-6  # a constraint that exceeds its right-hand side by more is not tight
FREQUENCIES = {"equal": "equal frequencies", "unequal": "frequencies 1/rank"}
RIVALS = {
    "one-more": "with one irrelevant token more",
    "all-but-one": "with all irrelevant tokens but one",
    "shortest": "of all, the shortest one",
}
HYPOTHESIS = AtMost(
    "conditions.hypothesis.{rival}.{name}", 1.0, "{words}: norm of the relevant-only solution over a rival {which}"
)
CONCLUSION = AtLeast(
    "conditions.conclusion.{name}", 1.0, "{words}: share of flows that select the relevant tokens and nothing else"
)
SEARCH = AtLeast("conditions.search", 1.0, "share of runs in which the search for the shortest rival is exhaustive")
LEMMA_6 = AtMost(
    "conditions.lemma6", 1e-10, "largest derivative of the loss along a direction with equal scores, relative"
)
LEMMA_20 = AtMost("conditions.lemma20", 1e-6, "largest distance from 1 of a constraint that has a multiplier")
LEMMA_21 = AtMost("conditions.lemma21", 1.0, "largest norm of the relevant-only solution over 4n")
CONSTRUCTION = AtLeast(
    "conditions.lemma21-construction", 1.0, "margin of twice the sum of relevant embeddings (Lemma 21: at least 1)"
)
ALL_TIGHT = AtMost(
    "conditions.all-tight", 0.0, "dim = {dim}: share of slack constraints at the solution; Lemma 3 takes none"
)


@dataclass(frozen=True)
class Point:
    pairs: int = 30
    length: int = 8
    relevant: int = 3
    irrelevant: int = 8
    equal: bool = True
    dim: int = 256
    lr: float = 2000.0
    step: Literal["actual", "ideal", "flat"] = "ideal"
    arc_length: float = 100.0


class SelectionConditions(Experiment[Point]):
    id = "trained-embeddings/selection-conditions"
    version = 4
    presets = {
        "quick": (Grid(equal=[True, False], dim=64, seeds=3), Grid(equal=[True, False], dim=256, seeds=12)),
        "full": (Grid(equal=[True, False], dim=[64, 256, 1024], seeds=24),),
    }
    method_fields = frozenset({"lr", "step", "arc_length"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.cls import cls_flow
        from whichtoken.margin import selection_svm
        from whichtoken.theory.trained_embeddings.lemmas import relevant_selection, rival_selections, smallest_rival

        start = starts.draw_start(point, rng)
        counts, labels = start.data.counts, start.data.labels
        relevant = relevant_selection(counts, labels)
        direction, limit = starts.selection_limit(start.embeddings, counts, relevant)
        rivals: dict[str, list[float]] = {"one more": [], "all but one": []}
        for family, _, selection in rival_selections(counts, labels):
            rival = selection_svm(start.embeddings, counts, selection)
            if rival.margin > 0:
                rivals[family].append(1 / rival.margin)
        shortest = smallest_rival(start.embeddings, counts, labels)
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        return {
            "norm": 1 / limit.margin,
            "one_more": min(rivals["one more"]),
            "all_but_one": min(rivals["all but one"]),
            "shortest": shortest.norm,
            "search_complete": shortest.exact,
            "only_relevant": path.selected.nnz == relevant.nnz and (path.selected != relevant).nnz == 0,
            "tied_derivative": _derivative_of_equal_scores(start),
            "norm_bound": 4.0 * len(start.data),
            "constructed": starts.constructed_margin(start, relevant),
            **tightness(start, direction, limit),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        largest = rows.where(dim=max(rows.levels("dim"), default=None))
        for name, words in FREQUENCIES.items():
            runs = largest.where(equal=name == "equal")
            if not (runs or runs.failed):
                continue
            for rival, which in RIVALS.items():
                ratio = runs.values("norm") / runs.values(rival.replace("-", "_"))
                yield HYPOTHESIS(Mean(ratio), rival=rival, name=name, words=words, which=which)
            yield CONCLUSION(Every(hits(runs, "only_relevant")), name=name, words=words)
        if rows:
            yield SEARCH(Every(hits(rows, "search_complete")))
            yield LEMMA_6(Worst(rows.values("tied_derivative").max()))
            yield LEMMA_20(Worst(rows.values("support_distance").max()))
            yield LEMMA_21(Worst((rows.values("norm") / rows.values("norm_bound")).max()))
            yield CONSTRUCTION(Mean(largest.seed_means("constructed")))
            yield ALL_TIGHT(Exact(rows.per_seed(_slack_in_few_dimensions).mean()), dim=min(rows.levels("dim")))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, equal in ((left, True), (right, False)):
            runs = rows.where(equal=equal)
            for name, label in (("norm", "relevant only"), ("one_more", "one more"), ("all_but_one", "all but one")):
                axes.plot(runs.values(name) if runs else [], "o", label=label)
            label_axes(axes, f"{'Equal' if equal else 'Unequal'} frequencies", "run", ylim=(0, None))
        left.set_ylabel("norm of the max-margin solution")
        left.legend()


def _slack_in_few_dimensions(repeat: Rows[Point]) -> float:
    return float(repeat.where(dim=min(repeat.levels("dim"))).values("slack").mean())


def _derivative_of_equal_scores(start: starts.Start) -> float:
    """|d.grad L| / (|d| |grad L|) for the d of least norm that gives all tokens score 1 (Lemma 6 says 0)."""
    from whichtoken.theory.trained_embeddings import attend

    E = start.embeddings
    direction = np.linalg.lstsq(E, np.ones(len(E)), rcond=None)[0]
    _, along_cls = attend(E @ start.cls, E @ start.value, start.data.counts, start.data.labels).gradients()
    gradient = along_cls @ E
    return float(abs(direction @ gradient) / (np.linalg.norm(direction) * np.linalg.norm(gradient)))


def tightness(start: starts.Start, direction: starts.Vector, limit: MarginCertificate) -> dict[str, float]:
    """How tight the constraints are at the solution, and the closed form M^+ 1, which takes every one for tight."""
    E, solution = start.embeddings, direction / limit.margin
    rows = E[limit.pairs[:, 0]] - E[limit.pairs[:, 1]]
    closed = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    norm = np.linalg.norm(closed)
    return {
        "support_distance": float(np.abs(rows[limit.support] @ solution - 1).max()),
        "slack": float(np.mean(rows @ solution > 1 + SLACK)),
        "closed_norm": float(norm),
        "closed_cosine": float(closed @ direction / norm),
        "closed_margin": float((rows @ closed).min()),
    }
