"""Trained on n tokens, attention ends at an excess error of order 1/n.

Claim   The excess of the trained layer falls as 1/n, whether its context is the training set, as many fresh tokens or
        infinite; least squares, the error of the context and the gap between covariances add up to its constant. With fewer
        outputs than features training finds a subspace in which the error of the stored context nearly vanishes; with as
        many there is next to nothing to gain on the spectral start.
Source  The order: Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514, workshop abstract), who do not say for which context; the
        constants are derived here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Above, AtLeast, Below, Checks, Equals, PaperEquals, pool_parts
from whichtoken.claims._figures import Figure, level_ticks, points_with_errors
from whichtoken.claims._runs import group_by, rows_where
from whichtoken.claims.attention_regression._training import TrainingSet, exponents, sample_problem
from whichtoken.lab import Experiment, Grid, Measured, Resampled, Rows

MANY = 800  # tokens from which on the constant is read off
KINDS: Mapping[str, str] = {
    "population": "infinite context",
    "stored": "training tokens as context",
    "fresh": "fresh tokens as context",
}
# the order that the abstract gives, for each context that its authors may mean
SLOPE = PaperEquals(
    "floor.slope.{kind}", -1.0, "{context}: exponent of the excess in n, all condition numbers", tolerance=0.1
)
# what we derived
CONSTANT = Equals(
    "floor.constant", 1.0, f"excess over its prediction, n >= {MANY}, all condition numbers", tolerance=0.1
)
LEAST_SQUARES = AtLeast(
    "floor.least-squares", 1.0, "excess with the training tokens as context over that of least squares"
)
# the prediction itself is a mean over cumulants that errs by 5 to 10 %
OUTPUTS = Equals(
    "floor.outputs",
    1.0,
    "excess, with the mean error of least squares in place of its own, over its prediction",
    tolerance=0.2,
)
OUTPUTS_RAW = Equals("floor.outputs-raw", 1.0, "excess as it is over its prediction", tolerance=0.2)
BELOW_START = Below(
    "floor.below-start", 0.9, "fewer outputs than features: median excess over that of the spectral start"
)
SQUARE = Above("floor.square", 0.8, "as many outputs as features: median excess over that of the spectral start")


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
        "quick": (  # many features: a run scatters less
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
        from whichtoken.theory.attention_regression.structure_aware_descent import StructureAwareDescent, TokenObjective

        data = TrainingSet(sample_problem(point, rng), rng)
        solver = StructureAwareDescent(
            logit_norm=point.logit_norm, iterations=point.iterations, tolerance=0.0 if _is_narrow(point) else 1e-4
        )
        start = solver.starting_factors(data.Z, data.Y)
        final = solver.minimize(TokenObjective(data.Z, data.Y), *start).final
        measured: dict[str, float] = {kind: getattr(data, kind)(final.P, final.Q) for kind in KINDS}
        for kind in KINDS:  # the target is drawn with the data, so its floor belongs to the run
            measured[f"{kind}_share"] = measured[kind] / data.floor(kind, point.logit_norm)
        fitted = point.noise**2 * point.outputs * (point.dim + 1) / point.tokens / data.size
        measured["least_squares"] = data.least_squares()
        # the noise moves the layer as it moves least squares: without that a few runs tell what the context does
        evened = measured["stored"] - measured["least_squares"] + fitted
        measured["evened_share"] = evened * measured["stored_share"] / measured["stored"]
        return measured | {"start": data.stored(*start)}

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        wide = rows_where(rows, lambda point: not _is_narrow(point))
        longest = rows_where(wide, lambda point: point.tokens >= MANY)
        for kind, context in KINDS.items():
            if len(slopes := exponents(wide, kind)):
                yield SLOPE(slopes, on=wide, kind=kind, context=context)
        for kind, context in KINDS.items():
            yield CONSTANT.part(kind, context, longest.seed_means(f"{kind}_share"), on=longest)
        yield LEAST_SQUARES(
            wide.seed_means(lambda row: row.measured["stored"] / row.measured["least_squares"]), on=wide
        )
        groups = list(group_by(rows_where(rows, _is_narrow), "outputs", "noise"))
        # fewer outputs before as many as features
        for (count, noise), runs in sorted(groups, key=lambda group: group[0][0] == Point.dim):
            gained = Resampled(runs.values("stored") / runs.values("start"), np.median)
            yield (SQUARE if count == Point.dim else BELOW_START).part(*_narrow_words(count, noise), gained, on=runs)
        for (count, noise), runs in groups:
            yield OUTPUTS.part(*_narrow_words(count, noise), runs.values("evened_share"), on=runs)
            yield OUTPUTS_RAW.part(*_narrow_words(count, noise), runs.values("stored_share"), on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        rows = Rows(row for row in rows if not _is_narrow(row.point))
        panels = np.atleast_1d(figure.subplots(1, len(rows.levels("condition")), sharey=True))
        for axes, (k, runs) in zip(panels, group_by(rows, "condition"), strict=True):
            for kind, context in (*KINDS.items(), ("least_squares", "least squares")):
                points_with_errors(axes, runs, "tokens", kind, context)
            axes.set(xscale="log", yscale="log", xlabel="training tokens", title=f"Relative excess, condition {k:g}")
            level_ticks(axes, runs.levels("tokens"))
        axes.legend(fontsize=8)


def _is_narrow(point: Point) -> bool:
    return point.iterations > Point.iterations


def _narrow_words(count: int, noise: float) -> tuple[str, str]:
    return f"k{count}.noise{noise:g}", f"{count} of {Point.dim} outputs, noise {noise:g}"
