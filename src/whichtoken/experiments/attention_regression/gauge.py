"""Among all factors of one linear map, balanced ones have the smallest finite-context error.

Claim   With short logits on centred tokens n times the error is |P|_F^2 |Q|_F^2 + |Y|_F^2 for any factors of Y = P Q^T; balanced
        factors reach its minimum, the squared nuclear norm plus the squared Frobenius norm. A symmetric positive Q, with
        which each token attends to itself, raises the error on training tokens.
Source  Derived here from the finite-context error of the layer of Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514), whose
        regulariser balances the factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Predicted, Rows, agreement, at_least
from whichtoken.theory.attention_regression import balanced_factors, finite_context_error, gauge_floor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERIES = 100  # per context


@dataclass(frozen=True)
class Point:
    dim: int = 6
    condition: float = 10.0  # of the map
    context: int = 400
    contexts: int = 400
    logit_norm: float = 0.1
    gauge: Literal["balanced", "orthogonal", "skewed", "symmetric"] = "balanced"
    own: bool = False  # queries are tokens of the context, as in training, which is not centred then


class Gauge(Experiment[Point]):
    id = "attention-regression/gauge"
    version = 2
    needs = "torch"
    presets = {
        "quick": (
            Grid(gauge=["balanced", "orthogonal", "skewed"], contexts=200, seeds=(10, 40)),
            Grid(gauge=["balanced", "symmetric"], own=True, condition=3.0, contexts=20, logit_norm=0.75, seeds=10),
        ),
        "full": (
            Grid(gauge=["balanced", "orthogonal", "skewed"], condition=[3.0, 10.0, 100.0], seeds=20),
            Grid(gauge=["balanced", "symmetric"], own=True, condition=[3.0, 10.0], logit_norm=0.75, seeds=20),
        ),
    }
    method_fields = frozenset({"gauge", "logit_norm", "own"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.experiments.attention_regression._excess import layer_outputs

        P, Q = _factors(point)
        errors = []
        for _ in range(point.contexts):
            context, queries = (
                rng.standard_normal((point.context, point.dim)),
                rng.standard_normal((QUERIES, point.dim)),
            )
            if point.own:
                queries = context[:QUERIES]
            else:
                queries, context = queries - context.mean(axis=0), context - context.mean(axis=0)
            errors.append(np.mean(np.sum((layer_outputs(P, Q, queries, context) - queries @ Q @ P.T) ** 2, axis=1)))
        return {"scaled_error": point.context * float(np.mean(errors))}

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        if point.own:
            return {}
        error = finite_context_error(*_factors(point), point.context, centred=True)
        return {
            "scaled_error": Predicted(point.context * float(error)),
            "floor": Predicted(gauge_floor(_target(point))),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        fresh, own = rows.where(own=False), rows.where(own=True)
        for k in fresh.levels("condition"):
            runs = fresh.where(condition=k)
            for gauge in runs.levels("gauge"):
                predicted = runs.where(gauge=gauge).predicted("scaled_error")
                if predicted is not None:
                    yield agreement(
                        f"gauge.error.{gauge}.k{k:g}",
                        f"{gauge} factors of a map with condition number {k:g}: n times the error",
                        theory=predicted.value,
                        measured=Mean(runs.where(gauge=gauge).values("scaled_error")),
                        tolerance=0.05 * predicted.value,
                    )
            if (floor := runs.predicted("floor")) is not None and runs.where(gauge="balanced"):
                yield agreement(
                    f"gauge.floor.k{k:g}",
                    f"condition number {k:g}: n times the error of balanced factors, against the nuclear-norm floor",
                    theory=floor.value,
                    measured=Mean(runs.where(gauge="balanced").values("scaled_error")),
                    tolerance=0.05 * floor.value,
                )
        for k in own.levels("condition"):
            yield at_least(
                f"gauge.symmetric.k{k:g}",
                f"condition number {k:g}, queries from the context: error of a symmetric Q over that of the balanced start",
                bound=1.05,
                measured=Mean(own.where(condition=k).per_seed(_symmetric_ratio)),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for index, gauge in enumerate(rows.where(own=False).levels("gauge")):
            runs = rows.where(own=False, gauge=gauge)
            for place, k in enumerate(runs.levels("condition")):
                values = runs.where(condition=k).values("scaled_error")
                predicted = runs.where(condition=k).predicted("scaled_error")
                axes.plot(place + 0.2 * index + 0.01 * np.arange(len(values)), values, ".", color=f"C{index}",
                          label=gauge if place == 0 else None)  # fmt: skip
                if predicted is not None:
                    axes.hlines(predicted.value, place + 0.2 * index, place + 0.2 * index + 0.19, color=f"C{index}")
        conditions = rows.where(own=False).levels("condition")
        axes.set_xticks(np.arange(len(conditions)) + 0.3, [f"condition {k:g}" for k in conditions])
        axes.set(title="n times the error of centred attention: runs, and lines predicted", yscale="log")
        if axes.has_data():
            axes.legend()


def _target(point: Point) -> NDArray[np.float64]:
    return np.diag(np.geomspace(1.0, 1.0 / point.condition, point.dim))


def _factors(point: Point) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Factors of the target in the gauge of the point, all with |Q|_F = logit_norm.

    The target's singular vectors are rotated against each other, so that a balanced Q is not symmetric by accident.
    """
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((point.dim, point.dim)))[0]
    target = _target(point) @ turn
    P, Q = balanced_factors(target, point.logit_norm)
    if point.gauge == "orthogonal":
        Q = np.eye(point.dim) * point.logit_norm / np.sqrt(point.dim)
        P = target @ np.linalg.inv(Q).T
    elif point.gauge == "skewed":
        stretch = np.geomspace(1.0, 4.0, point.dim)
        P, Q = P / stretch, Q * stretch
    elif point.gauge == "symmetric":
        right = np.linalg.svd(target)[2]  # V^T
        P, Q = P @ right, Q @ right
    scale = point.logit_norm / float(np.linalg.norm(Q))
    return P / scale, Q * scale


def _symmetric_ratio(repeat: Rows[Point]) -> float | None:
    symmetric, balanced = repeat.where(gauge="symmetric"), repeat.where(gauge="balanced")
    if not symmetric or not balanced:
        return None
    return float(symmetric.values("scaled_error")[0] / balanced.values("scaled_error")[0])
