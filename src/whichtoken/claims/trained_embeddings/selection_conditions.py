"""When does attention select the relevant tokens and nothing else?

Claim   At 1024 dimensions some other selection has a shorter solution than the relevant-only one, and the flow of p selects
        nothing but relevant tokens all the same; the relevant-only solution has a norm of at most 4n. At every solution all
        constraints are tight.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Lemmas 3, 19 and
        21. A first step of 2000 and up to 1024 dimensions are below what Lemmas 19 and 21 ask for: what they say is judged in
        `trained-embeddings/theorem`. The last sentence is a step in the proof of Lemma 3, which asks for more dimensions than
        tokens only; the others are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import every_run
from whichtoken.claims.trained_embeddings import _starts as starts
from whichtoken.lab import Exact, Measured, Rows, Worst
from whichtoken.lab.instances import Lemma

if TYPE_CHECKING:
    from whichtoken.margin import MarginCertificate

SLACK = 1e-6  # a constraint that exceeds its right-hand side by more is not tight
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(starts.FlowPoint):
    pairs: int = 30
    relevant: int = 3
    irrelevant: int = 8
    dim: int = 256
    step: Literal["actual", "ideal", "flat"] = "ideal"
    arc_length: float = 100.0


def _least_multiplier(instance: Any, _: Any) -> Any:
    """Of the two constraints of one sequence (selected token, two others), up to a positive factor: tight if not negative."""
    selected, one, other = instance["embeddings"]
    first, second = selected - one, selected - other
    return min(first @ first, second @ second) - first @ second


class SelectionConditions(Claim[Point], table=TABLE):
    lemmas = (
        Lemma(
            "conditions.all-tight",
            "at the solution for a sequence of three tokens in six dimensions both constraints are tight",
            lambda rng: {"embeddings": rng.standard_normal((3, 6))},
            _least_multiplier,
        ),
    )

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
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        return {
            "norm": 1 / limit.margin,
            "one_more": min(rivals["one more"]),
            "all_but_one": min(rivals["all but one"]),
            "shortest": smallest_rival(start.embeddings, counts, labels).norm,
            "only_relevant": path.selected.nnz == relevant.nnz and (path.selected != relevant).nnz == 0,
            "norm_bound": 4.0 * len(start.data),
            "constructed": starts.constructed_margin(start, relevant),
            "slack": loose_share(start, direction, limit),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        dims = [row.point.dim for row in (*rows, *rows.failed)]
        if not dims:
            return
        largest, fewest = rows.where(dim=max(dims)), rows.where(dim=min(dims))
        for name, words in TABLE.tables["frequencies"].items():
            runs = largest.where(equal=name == "equal")
            if not (runs or runs.failed):
                continue
            for rival, which in TABLE.tables["rivals"].items():
                ratio = runs.values("norm") / runs.values(rival.replace("-", "_")) if runs else []
                yield TABLE.hypothesis(ratio, on=runs, rival=rival, name=name, words=words, which=which)
            yield TABLE.conclusion(every_run(runs, "only_relevant"), on=runs, name=name, words=words)
        yield TABLE.construction(largest.seed_means("constructed"), on=largest)
        if rows:
            yield TABLE.lemma_21(Worst((rows.values("norm") / rows.values("norm_bound")).max()))
        if fewest:
            yield TABLE.all_tight(Exact(fewest.seed_means("slack").mean()), on=fewest, dim=min(dims))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, equal in ((left, True), (right, False)):
            runs = rows.where(equal=equal)
            for name, label in (("norm", "relevant only"), ("one_more", "one more"), ("all_but_one", "all but one")):
                axes.plot(runs.values(name) if runs else [], "o", label=label)
            label_axes(axes, f"{'Equal' if equal else 'Unequal'} frequencies", "run", ylim=(0, None))
        left.set_ylabel("norm of the max-margin solution")
        left.legend()


def loose_share(start: starts.Start, direction: starts.Vector, limit: MarginCertificate) -> float:
    """Share of the constraints that are not tight at the solution; the closed form M^+ 1 takes every one for tight."""
    rows = start.embeddings[limit.pairs[:, 0]] - start.embeddings[limit.pairs[:, 1]]
    return float(np.mean(rows @ (direction / limit.margin) > 1 + SLACK))
