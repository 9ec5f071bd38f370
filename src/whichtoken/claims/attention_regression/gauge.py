"""Among all factors of one linear map, balanced ones have the smallest finite-context error.

Claim   With short logits on centered tokens n times the error is |P|_F^2 |Q|_F^2 + |Y|_F^2 for any factors of Y = P Q^T; balanced
        factors reach its minimum, the squared nuclear norm plus the squared Frobenius norm. A symmetric positive Q, with
        which each token attends to itself, raises the error on training tokens.
Source  Derived here from the finite-context error of the layer of Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514), whose
        regularizer balances the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Above, Checks, Equals, Predictions, pool_parts
from whichtoken.claims._figures import Figure, legend
from whichtoken.claims._runs import Array, group_by, pairs
from whichtoken.claims.attention_regression._training import distance_to_limit
from whichtoken.lab import Experiment, Grid, Measured, Predicted, Rows
from whichtoken.theory.attention_regression import balanced_factors, finite_context_error, gauge_floor

QUERIES = 100  # per context
ERROR = Equals("gauge.error", None, "n times the error of the layer, for factors of every kind")
FLOOR = Equals("gauge.floor", None, "n times the error of balanced factors, against the nuclear-norm floor")
SYMMETRIC = Above(
    "gauge.symmetric", 1.05, "queries from the context: error of a symmetric Q over that of the balanced start"
)


@dataclass(frozen=True)
class Point:
    dim: int = 6
    condition: float = 10.0  # of the map
    context: int = 400
    contexts: int = 400
    logit_norm: float = 0.1
    gauge: Literal["balanced", "orthogonal", "skewed", "symmetric"] = "balanced"
    own: bool = False  # queries are tokens of the context, as in training, which is not centered then


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
        P, Q = _factors(point)
        errors = []
        for _ in range(point.contexts):
            context = rng.standard_normal((point.context, point.dim))
            queries = rng.standard_normal((QUERIES, point.dim))
            if point.own:
                queries = context[:QUERIES]
            else:
                queries, context = queries - context.mean(axis=0), context - context.mean(axis=0)
            errors.append(distance_to_limit(P, Q, queries, context))
        return {"scaled_error": point.context * float(np.mean(errors))}

    def predict(self, point: Point) -> Predictions:
        if point.own:
            return {}
        error = finite_context_error(*_factors(point), point.context, centered=True)
        return {
            "scaled_error": Predicted(point.context * float(error)),
            "floor": Predicted(gauge_floor(_target(point))),
        }

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        fresh, error = rows.where(own=False), "scaled_error"
        words = "{1} factors, condition number {0:g}"
        yield from ERROR.each(fresh, "condition gauge", "{1}.k{0:g}", words, error, predicted=error, relative=0.05)
        by_condition, balanced = ("condition", "k{:g}", "condition number {:g}"), fresh.where(gauge="balanced")
        yield from FLOOR.each(balanced, *by_condition, error, predicted="floor", relative=0.05)

        def ratio(runs: Rows[Point]) -> Array:
            return np.divide(*pairs(runs, error, {"gauge": "symmetric"}, {"gauge": "balanced"}))

        yield from SYMMETRIC.each(rows.where(own=True), *by_condition, ratio)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        fresh = rows.where(own=False)
        for index, (gauge, runs) in enumerate(group_by(fresh, "gauge")):
            for number, (_, some) in enumerate(group_by(runs, "condition")):
                place, color, label = number + 0.2 * index, f"C{index}", gauge if number == 0 else None
                values, predicted = some.values("scaled_error"), some.predicted("scaled_error")
                axes.plot(place + 0.01 * np.arange(len(values)), values, ".", color=color, label=label)
                if predicted is not None:
                    axes.hlines(predicted.value, place, place + 0.19, color=color)
        conditions = fresh.levels("condition")
        axes.set_xticks(np.arange(len(conditions)) + 0.3, [f"condition {k:g}" for k in conditions])
        axes.set(title="n times the error of centered attention: runs, and lines predicted", yscale="log")
        legend(axes)


def _target(point: Point) -> Array:
    return np.diag(np.geomspace(1.0, 1.0 / point.condition, point.dim))


def _factors(point: Point) -> tuple[Array, Array]:
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
