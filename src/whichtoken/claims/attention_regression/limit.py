"""Attention over a long context is a linear map, with an error that falls as 1/n while the logits are short.

Claim   On n Gaussian tokens a softmax attention layer differs from its linear limit by a mean squared error c/n with a
        known c, as long as the whitened key-query matrix has operator norm below 1/sqrt(2); beyond, the error falls more
        slowly than 1/n.
Source  The limit is that of Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514); the constants and their domain are derived
        here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.checks import check_count
from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions, as_predicted
from whichtoken.claims._figures import Figure, legend, points_with_errors
from whichtoken.claims._runs import Array, group_by, rows_where
from whichtoken.claims.attention_regression._training import distance_to_limit
from whichtoken.lab import Measured, Predicted, Row, Rows, log_slope
from whichtoken.theory.attention_regression import balanced_factors, finite_context_error
from whichtoken.theory.attention_regression.predictions import LOGIT_BOUND

QUERIES = 200  # per context
FEWEST_TOKENS = 400  # from which on the constant is read off
SHORT = 0.8  # |Q|_F up to which the formula is exact; longer logits need longer contexts than these
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    dim: int = 8
    condition: float = 3.0  # of the map
    logit_norm: float = 0.5  # |Q|_F
    context: int = 400
    centered: bool = False
    tokens: int = 51_200  # of all contexts together


class Limit(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        check_count("context", point.context, 2)
        P, Q = _factors(point)
        errors = []
        for _ in range(max(1, point.tokens // point.context)):
            context = rng.standard_normal((point.context, point.dim))
            queries = rng.standard_normal((QUERIES, point.dim))
            origin = context.mean(axis=0) if point.centered else 0.0
            errors.append(distance_to_limit(P, Q, queries - origin, context - origin))
        error = float(np.mean(errors))
        return {"error": error, "scaled_error": point.context * error, "peak": float(np.linalg.norm(Q, 2))}

    def predict(self, point: Point) -> Predictions:
        try:
            error = finite_context_error(*_factors(point), point.context, point.centered)
        except ValueError:  # beyond the bound there is no prediction, and that is one
            return {}
        return {"scaled_error": Predicted(point.context * float(error)), "coverage": Predicted(error.coverage)}

    def judge(self, rows: Rows[Point]) -> Checks:
        for (centered, norm), runs in group_by(rows, "centered", "logit_norm"):
            kind = "centered" if centered else "plain"
            label, words = f"{kind}.q{norm:g}", f"{kind} tokens, |Q|_F = {norm:g}"
            several, slope = len(runs.levels("context")) > 1, log_slope(runs, "context", "error")
            if norm <= SHORT:
                if several:
                    yield TABLE.slope.part(label, words, slope, on=runs)
                longest = rows_where(runs, lambda point: point.context >= FEWEST_TOKENS)
                yield TABLE.constant.part(label, words, longest.seed_means(_share), on=longest)
                continue
            for context, some in group_by(runs, "context"):
                if some.predicted("coverage") is not None:
                    predicted, shares = as_predicted(some, "coverage", absolute=0.1), [_share(row) for row in some]
                    where = f"{words}, n = {context}"
                    yield TABLE.coverage.part(f"{label}.n{context}", where, shares, on=some, **predicted)
            if runs and runs.values("peak").min() >= LOGIT_BOUND and several:
                yield TABLE.breakdown.part(label, words, slope, on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        for axes, centered in zip(figure.subplots(1, 2), (False, True), strict=True):
            for index, (norm, runs) in enumerate(group_by(rows.where(centered=centered), "logit_norm")):
                label, color = f"logits of length |Q| = {norm:g}", f"C{index}"
                points_with_errors(axes, runs, "context", "scaled_error", label, color=color)
                if (predicted := runs.predicted("scaled_error")) is not None:
                    axes.axhline(predicted.value, color=color, lw=1)
            axes.set_title("Centered tokens" if centered else "Plain tokens: error times n, lines predicted")
            axes.set(xscale="log", yscale="log", xlabel="tokens in the context")
            legend(axes, ncols=2, fontsize=8)


def _factors(point: Point) -> tuple[Array, Array]:
    return balanced_factors(np.diag(np.geomspace(1.0, 1.0 / point.condition, point.dim)), point.logit_norm)


def _share(row: Row[Point]) -> float:
    """The measured error over the predicted one."""
    return float(row.measured["scaled_error"] / row.predicted["scaled_error"].value)
