"""Trained on n tokens, attention ends at an excess error of order 1/n.

Claim   The excess of the trained layer falls as 1/n, whether its context is the training set, as many fresh tokens or
        infinite; least squares, the error of the context and the gap between covariances add up to its constant. With fewer
        outputs than features training finds a subspace in which the error of the stored context nearly vanishes; with as
        many there is next to nothing to gain on the spectral start.
Source  The order: Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514, workshop abstract), who do not say for which context; the
        constants are derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.display.figures import points_with_errors
from whichtoken.lab import (
    Claim,
    Experiment,
    Grid,
    Mean,
    Measured,
    Resampled,
    Rows,
    agreement,
    at_least,
    at_most,
    log_slope,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 800  # tokens from which on the constant is read off
KINDS: Mapping[str, str] = {
    "population": "infinite context",
    "stored": "training tokens as context",
    "fresh": "fresh tokens as context",
}


@dataclass(frozen=True)
class Point:
    dim: int = 6
    tokens: int = 800
    condition: float = 1.0  # of target and covariance
    noise: float = 0.1
    logit_norm: float = 0.3
    outputs: int = 6
    iterations: int = 20


def _narrow(outputs: list[int], noise: float, seeds: int | tuple[int, int], tokens: int = 800) -> Grid:
    """Heads of fewer outputs, trained until their subspace has turned."""
    return Grid(outputs=outputs, noise=noise, tokens=tokens, condition=3.0, iterations=100, seeds=seeds)


class Floor(Experiment[Point]):
    id = "attention-regression/floor"
    version = 4
    needs = "torch"
    presets = {
        "quick": (  # many features: less luck in a run
            Grid(dim=16, outputs=16, tokens=1600, condition=[1.0, 10.0], seeds=20),
            _narrow([6], 0.1, seeds=(12, 24), tokens=400),  # fewer outputs scatter too much for seconds
        ),
        "full": (
            Grid(tokens=[250, 500, 1000, 2000, 4000], condition=[1.0, 10.0, 100.0], seeds=32),
            _narrow([1, 2, 4, 6], 0.01, seeds=40),
            _narrow([1, 2, 4, 6], 0.1, seeds=30),
        ),
    }
    method_fields = frozenset({"iterations"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionRegression
        from whichtoken.experiments.attention_regression._excess import TrainingSet
        from whichtoken.theory.attention_regression import excess_floor
        from whichtoken.training.factor_objectives import TokenObjective
        from whichtoken.training.structure_aware_descent import StructureAwareDescent

        problem = AttentionRegression(
            point.dim, point.outputs, tokens=point.tokens, covariance=point.condition, target=point.condition,
            noise=point.noise,
        ).sample(rng)  # fmt: skip
        data = TrainingSet(problem, rng)
        solver = StructureAwareDescent(
            logit_norm=point.logit_norm, iterations=point.iterations, tolerance=0.0 if _is_narrow(point) else 1e-4
        )
        start = solver.starting_factors(data.Z, data.Y)
        final = solver.minimise(TokenObjective(data.Z, data.Y), *start).final
        measured: dict[str, float] = {kind: getattr(data, kind)(final.P, final.Q) for kind in KINDS}
        for kind in KINDS:  # the target is drawn with the data, so its floor belongs to the run
            floor = excess_floor(kind, problem.whitened_target, point.noise, point.tokens, point.logit_norm)
            measured[f"{kind}_share"] = measured[kind] / (2 * floor / data.size)
        fitted = point.noise**2 * point.outputs * (point.dim + 1) / point.tokens / data.size
        measured["least_squares"] = data.least_squares()
        # the luck of the noise is that of least squares: without it a few runs tell what the context does
        lucky = measured["stored"] - measured["least_squares"] + fitted
        measured["evened_share"] = lucky * measured["stored_share"] / measured["stored"]
        return measured | {"start": data.stored(*start)}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        yield from _narrow_claims(Rows(row for row in rows if _is_narrow(row.point)))
        rows = Rows((row for row in rows if not _is_narrow(row.point)), rows.failed)
        for kind, context in KINDS.items():
            slopes = [log_slope(rows.where(condition=k), "tokens", kind).values for k in rows.levels("condition")]
            if len(rows.levels("tokens")) > 1:
                yield agreement(
                    f"floor.slope.{kind}",
                    f"{context}: exponent of the excess in n, all condition numbers",
                    theory=-1.0,
                    measured=Mean(np.concatenate([[], *slopes])),
                    tolerance=0.1,
                )
            longest = Rows(row for row in rows if row.point.tokens >= MANY)
            yield agreement(
                f"floor.constant.{kind}",
                f"{context}: excess over its prediction, n >= {MANY}, all condition numbers",
                theory=1.0,
                measured=Mean(longest.seed_means(f"{kind}_share")),
                tolerance=0.1,
            )
        yield at_least(
            "floor.least-squares",
            "excess with the training tokens as context over that of least squares",
            bound=1.0,
            measured=Mean(rows.seed_means(lambda row: row.measured["stored"] / row.measured["least_squares"])),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        rows = Rows(row for row in rows if not _is_narrow(row.point))
        conditions = rows.levels("condition")
        for axes, k in zip(np.atleast_1d(figure.subplots(1, len(conditions), sharey=True)), conditions, strict=True):
            runs = rows.where(condition=k)
            for kind, context in KINDS.items():
                points_with_errors(axes, runs, "tokens", kind, context)
            points_with_errors(axes, runs, "tokens", "least_squares", "least squares")
            axes.set(xscale="log", yscale="log", xlabel="training tokens", title=f"Relative excess, condition {k:g}")
            axes.set_xticks(runs.levels("tokens"), [str(n) for n in runs.levels("tokens")])
            axes.minorticks_off()
        axes.legend(fontsize=8)


def _is_narrow(point: Point) -> bool:
    return point.iterations > Point.iterations


def _narrow_claims(rows: Rows[Point]) -> Iterator[Claim]:
    for outputs in rows.levels("outputs"):
        for noise in rows.levels("noise"):
            runs = rows.where(outputs=outputs, noise=noise)
            if not runs:
                continue
            what, code = f"{outputs} of {runs[0].point.dim} outputs, noise {noise:g}", f"k{outputs}.noise{noise:g}"
            gained = Resampled(runs.values("stored") / runs.values("start"), np.median)
            if outputs == runs[0].point.dim:
                yield at_least(
                    f"floor.square.{code}",
                    f"{what}: median excess over that of the spectral start; training has next to nothing to gain",
                    bound=0.8,
                    measured=gained,
                )
            else:
                yield at_most(
                    f"floor.below-start.{code}",
                    f"{what}: median excess over that of the spectral start",
                    bound=0.9,
                    measured=gained,
                )
            yield agreement(
                f"floor.outputs.{code}",
                f"{what}: excess, with the mean in place of the luck of least squares, over its prediction",
                theory=1.0,
                measured=Mean(runs.values("evened_share")),
                tolerance=0.2,  # the prediction itself is a mean over cumulants that errs by 5 to 10 %
            )
            yield agreement(
                f"floor.outputs-raw.{code}",
                f"{what}: excess as it is over its prediction",
                theory=1.0,
                measured=Mean(runs.values("stored_share")),
                tolerance=0.2,
            )
