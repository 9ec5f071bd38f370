"""Attention over a long context is a linear map, with an error that falls as 1/n while the logits are short.

Claim   On n Gaussian tokens a softmax attention layer differs from its linear limit by a mean squared error c/n with a
        known c, as long as the whitened key-query matrix has operator norm below 1/sqrt(2); beyond, the error falls more
        slowly than 1/n.
Source  The limit is that of Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514); the constants and their domain are derived
        here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.display.figures import points_with_errors
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Predicted, Row, Rows, agreement, at_least, log_slope
from whichtoken.theory.attention_regression import balanced_factors, finite_context_error
from whichtoken.theory.attention_regression.context import LOGIT_BOUND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERIES = 200  # per context
BRUTE_QUERIES = 20  # per context, one by one
FEWEST_TOKENS = 400  # from which on the constant is read off
SHORT = 0.8  # |Q|_F up to which the formula is exact; longer logits need longer contexts than these


@dataclass(frozen=True)
class Point:
    dim: int = 8
    condition: float = 3.0  # of the map
    logit_norm: float = 0.5  # |Q|_F
    context: int = 400
    centred: bool = False
    tokens: int = 51_200  # of all contexts together


class Limit(Experiment[Point]):
    id = "attention-regression/limit"
    version = 3
    needs = "torch"
    presets = {
        "quick": (
            Grid(logit_norm=[0.5, 0.75], context=100, tokens=3200, seeds=20),
            Grid(logit_norm=[0.5, 0.75], context=[400, 1600], tokens=12_800, seeds=20),
            Grid(logit_norm=1.6, context=[100, 400, 1600], tokens=6400, seeds=10),
            Grid(logit_norm=0.5, context=400, centred=True, tokens=25_600, seeds=20),
        ),
        "full": (
            Grid(logit_norm=[0.1, 0.5, 0.75, 1.0, 1.25, 1.6], context=[100, 400, 1600, 6400], seeds=20),
            Grid(logit_norm=[0.1, 0.5, 1.0], context=[100, 400, 1600, 6400], centred=True, seeds=20),
        ),
    }
    method_fields = frozenset({"logit_norm", "centred"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.experiments.attention_regression._excess import layer_outputs

        if point.context < 2:
            raise ValueError(f"context={point.context} must be at least 2 tokens")
        P, Q = _factors(point)
        errors = []
        for _ in range(max(1, point.tokens // point.context)):
            context, queries = (
                rng.standard_normal((point.context, point.dim)),
                rng.standard_normal((QUERIES, point.dim)),
            )
            origin = context.mean(axis=0) if point.centred else 0.0
            found = layer_outputs(P, Q, queries - origin, context - origin)
            errors.append(np.mean(np.sum((found - (queries - origin) @ Q @ P.T) ** 2, axis=1)))
        error = float(np.mean(errors))
        return {
            "error": error,
            "scaled_error": point.context * error,
            "brute_error": point.context * _brute_force(point, rng) if _is_brute(point) else None,
            "peak": float(np.linalg.norm(Q, 2)),
        }

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        try:
            error = finite_context_error(*_factors(point), point.context, point.centred)
        except ValueError:  # beyond the bound there is no prediction, and that is one
            return {}
        return {"scaled_error": Predicted(point.context * float(error)), "coverage": Predicted(error.coverage)}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for centred in rows.levels("centred"):
            kind = "centred" if centred else "plain"
            for norm in rows.where(centred=centred).levels("logit_norm"):
                runs, name = rows.where(centred=centred, logit_norm=norm), f"{kind}.q{norm:g}"
                if norm <= SHORT:
                    yield from _short_claims(runs, kind, name, norm)
                else:
                    yield from _coverage_claims(runs, kind, name, norm)
                if runs.values("peak").min() >= LOGIT_BOUND and len(runs.levels("context")) > 1:
                    yield at_least(
                        f"limit.breakdown.{name}",
                        f"{kind} tokens, |Q|_F = {norm:g}: exponent of the error in n, slower than 1/n",
                        bound=-0.9,
                        measured=log_slope(runs, "context", "error"),
                    )

        yield from _brute_claims(rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        for axes, centred in zip(figure.subplots(1, 2), (False, True), strict=True):
            for index, norm in enumerate(rows.where(centred=centred).levels("logit_norm")):
                runs = rows.where(centred=centred, logit_norm=norm)
                points_with_errors(
                    axes, runs, "context", "scaled_error", f"logits of length |Q| = {norm:g}", color=f"C{index}"
                )
                if (predicted := runs.predicted("scaled_error")) is not None:
                    axes.axhline(predicted.value, color=f"C{index}", lw=1)
            axes.set(
                xscale="log",
                yscale="log",
                title="Centred tokens" if centred else "Plain tokens: error times n, lines predicted",
                xlabel="tokens in the context",
            )
            if axes.has_data():
                axes.legend(ncols=2, fontsize=8)


def _factors(point: Point) -> tuple[np.ndarray, np.ndarray]:
    return balanced_factors(np.diag(np.geomspace(1.0, 1.0 / point.condition, point.dim)), point.logit_norm)


def _brute_force(point: Point, rng: np.random.Generator) -> float:
    """The same error as by hand: diagonal factors, fresh contexts, one query after another, and no other code of ours."""
    sizes = np.geomspace(1.0, 1.0 / point.condition, point.dim)
    root = np.sqrt(sizes)
    value, key_query = root * np.sqrt(sizes.sum()) / point.logit_norm, root * point.logit_norm / np.sqrt(sizes.sum())
    errors = []
    for _ in range(max(1, point.tokens // point.context)):
        context = rng.standard_normal((point.context, point.dim))
        mean = context.mean(axis=0) if point.centred else np.zeros(point.dim)
        for query in rng.standard_normal((BRUTE_QUERIES, point.dim)):
            logits = (context - mean) @ (key_query * (query - mean))
            weights = np.exp(logits - logits.max())
            attended = weights @ (context - mean) / weights.sum()
            errors.append(np.sum((value * attended - sizes * (query - mean)) ** 2))
    return float(np.mean(errors))


def _is_brute(point: Point) -> bool:
    return point.logit_norm <= SHORT and point.context >= FEWEST_TOKENS


def _brute_claims(rows: Rows[Point]) -> Iterator[Claim]:
    short = Rows(row for row in rows if _is_brute(row.point) and "scaled_error" in row.predicted)
    if short:
        yield agreement(
            "limit.brute-force",
            f"softmax attention written out query by query, |Q|_F <= {SHORT:g}, n >= {FEWEST_TOKENS}: error over its prediction",
            theory=1.0,
            measured=Mean(short.seed_means(_brute_share)),
            tolerance=0.08,
        )


def _brute_share(row: Row[Point]) -> float:
    return float(row.measured["brute_error"] / row.predicted["scaled_error"].value)


def _short_claims(runs: Rows[Point], kind: str, name: str, norm: float) -> Iterator[Claim]:
    contexts = runs.levels("context")
    if len(contexts) > 1:
        yield agreement(
            f"limit.slope.{name}",
            f"{kind} tokens, |Q|_F = {norm:g}: exponent of the error in n",
            theory=-1.0,
            measured=log_slope(runs, "context", "error"),
            tolerance=0.06,
        )
    longest = Rows(row for row in runs if row.point.context >= FEWEST_TOKENS)
    yield agreement(
        f"limit.constant.{name}",
        f"{kind} tokens, |Q|_F = {norm:g}: error over its prediction, n >= {FEWEST_TOKENS}",
        theory=1.0,
        measured=Mean(longest.seed_means(_share)),
        tolerance=0.08,
    )


def _share(row: Row[Point]) -> float:
    """The measured error over the predicted one."""
    return float(row.measured["scaled_error"] / row.predicted["scaled_error"].value)


def _coverage_claims(runs: Rows[Point], kind: str, name: str, norm: float) -> Iterator[Claim]:
    for context in runs.levels("context"):
        at_length = Rows(row for row in runs.where(context=context) if "coverage" in row.predicted)
        predicted = at_length.predicted("coverage")
        if predicted is not None:
            yield agreement(
                f"limit.coverage.{name}.n{context}",
                f"{kind} tokens, |Q|_F = {norm:g}, n = {context}: share of the predicted error that is there",
                theory=predicted.value,
                measured=Mean([_share(row) for row in at_length]),
                tolerance=0.1,
            )
