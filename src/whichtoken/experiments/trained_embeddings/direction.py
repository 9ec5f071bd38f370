"""After the first step, the <cls> vector goes to a max-margin direction.

Claim   With embeddings fixed after one step, the gradient flow of p diverges, selects every relevant token, and its direction
        tends to the max-margin direction of the tokens it selects.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Theorem 5; on
        the way the inequality of Lemma 9 and the dominant term of Lemma 17. Sizes are ours: the theorem's are out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from whichtoken.experiments.trained_embeddings._starts import limit_of, selected_share, start_of
from whichtoken.lab import Claim, Exact, Experiment, Grid, Mean, Measured, Rows, Share, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CASES = ("equal", "unequal", "one-irrelevant")
THIN = 6  # every so many recorded positions the sums over pairs of tokens are computed


@dataclass(frozen=True)
class Point:
    pairs: int = 32
    length: int = 8
    relevant: int = 4  # of each label
    irrelevant: int = 24
    equal: bool = True  # frequencies of the relevant tokens
    dim: int = 1024
    lr: float = 2000.0  # of the first step
    step: Literal["actual", "ideal", "flat"] = "actual"
    arc_length: float = 300.0


def _study(seeds: int) -> tuple[Grid, ...]:
    return Grid(equal=[True, False], seeds=seeds), Grid(irrelevant=1, seeds=seeds)


class ClsDirection(Experiment[Point]):
    id = "trained-embeddings/direction"
    version = 2
    presets = {"quick": _study(5), "full": (*_study(40), Grid(step="ideal", lr=20_000.0, seeds=40))}
    method_fields = frozenset({"lr", "step", "arc_length"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.cls import cls_flow
        from whichtoken.theory.trained_embeddings import dominant_share, local_optimality, selection_margin

        start = start_of(point, rng)
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        limit = limit_of(path.embeddings, path.counts, path.selected)
        counts, labels, values = start.data.counts, start.data.labels, start.embeddings @ start.value
        norms = np.linalg.norm(path.positions, axis=1)
        share = selected_share(path, start)
        towards_limit = path.directions @ limit.direction
        outwards = np.einsum("kd,kd->k", path.directions, path.positions) / norms
        best = start.embeddings @ limit.direction
        dominant = [
            dominant_share(start.embeddings @ position, values, counts, labels, best)
            for position in path.positions[::-THIN][::-1]
        ]
        return {
            "selected": min(share.values()),
            "only_relevant": path.selected.nnz == len(start.data) and min(share.values()) == 1.0,
            "norm": float(norms[-1]),
            "cosine": float(path.cosines(limit.direction)[-1]),
            "increment": float(path.increment_cosines(limit.direction)[-1]),
            "margin_share": selection_margin(path.scores / norms[-1], counts, path.selected) / limit.margin,
            "local_optimality": local_optimality(values, counts, labels, path.selected, path.secondary),
            "first_loss": float(np.exp(path.log_losses[0])),
            "log_loss": float(path.log_losses[-1]),
            "gap": limit.gap,
            "arc": path.arc,
            "cosines": path.cosines(limit.direction),
            "increments": path.increment_cosines(limit.direction),
            "convergence": towards_limit / outwards,  # Lemma 9 asks for at least 1 - epsilon
            "dominant_arc": path.arc[::-THIN][::-1],
            "dominant": dominant,  # Lemma 17
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        actual = rows.where(step="actual")
        cases = {
            "equal": Rows(row for row in actual if row.point.equal and row.point.irrelevant > 1),
            "unequal": Rows(row for row in actual if not row.point.equal),
            "one-irrelevant": Rows(row for row in actual if row.point.irrelevant == 1),
            "ideal": rows.where(step="ideal"),
        }
        for case, runs in cases.items():
            if not runs and case == "ideal":
                continue
            yield from _claims(case, runs)
        yield at_least(
            "direction.norm",
            "smallest |p| at the end, as a share of the distance travelled",
            bound=0.9,
            measured=_smallest([row.measured["norm"] / row.point.arc_length for row in rows]),
        )
        yield at_least(
            "direction.lemma9",
            "gain along the limit over gain of |p| at the end, both per unit of distance: at least 1 - epsilon",
            bound=0.99,
            measured=_smallest([row.measured["convergence"][-1] for row in rows]),
        )
        yield at_most(
            "direction.lemma17",
            "share of the gradient along the limit that does not come from (selected, second) pairs, at the end",
            bound=0.01,
            measured=Mean(rows.per_seed(lambda repeat: float(np.mean([_rest(row.measured) for row in repeat])))),
        )
        if rows:
            yield at_most(
                "direction.certificate",
                "largest duality gap of the limits",
                bound=1e-8,
                measured=Exact(rows.values("gap").max()),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        for label, runs in _kinds(rows).items():
            _median(left, runs, "cosines", "arc", label)
            _median(middle, runs, "increments", "arc", label)
            _median(right, runs, "dominant", "dominant_arc", label)
        left.set(title="p and its limit", ylabel="1 - cosine, median")
        middle.set(title="Increment and limit")
        right.set(title="Not by pairs (Lemma 17)", ylabel="share of the gradient")
        for axes in (left, middle, right):
            axes.set(xscale="log", yscale="log", xlabel="arc length")
        left.legend()


def _claims(case: str, runs: Rows[Point]) -> Iterator[Claim]:
    yield at_least(
        f"direction.selects.{case}",
        f"{case}: share of runs that select every relevant token",
        bound=0.7,
        measured=Share(runs.values("selected") == 1.0),
    )
    settled = Rows(row for row in runs if row.measured["selected"] == 1.0)
    yield at_least(
        f"direction.limit.{case}",
        f"{case}: cosine of p and its certified limit",
        bound=0.999 if case != "unequal" else 0.99,
        measured=Mean(settled.values("cosine")),
    )
    yield at_least(
        f"direction.increment.{case}",
        f"{case}: cosine of the last increment and the limit",
        bound=0.9999,
        measured=Mean(settled.values("increment")),
    )


def _smallest(values: list[float]) -> Exact | Mean:
    return Exact(min(values)) if values else Mean([])


def _rest(measured: Measured) -> float:
    return abs(1.0 - float(measured["dominant"][-1]))


def _kinds(rows: Rows[Point]) -> dict[str, Rows[Point]]:
    def name(point: Point) -> str:
        base = "one irrelevant" if point.irrelevant == 1 else "equal" if point.equal else "unequal"
        return base if point.step == "actual" else f"{base}, {point.step}"

    names = list(dict.fromkeys(name(row.point) for row in rows))
    return {label: Rows(row for row in rows if name(row.point) == label) for label in names}


def _median(axes: Axes, runs: Rows[Point], name: str, along: str, label: str) -> None:
    curves = np.abs(1 - np.array([row.measured[name] for row in runs], dtype=np.float64))
    arc = np.array(runs[0].measured[along])[-curves.shape[1] :]
    axes.plot(arc[1:], np.maximum(np.median(curves, axis=0), 1e-16)[1:], label=label)
