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

from whichtoken.claims._shared import Checks, Figure, above, below, check, checks, group_by, near
from whichtoken.claims.attention_regression._training import TrainingSet, exponent_check, sample_problem
from whichtoken.display.figures import level_ticks, points_with_errors
from whichtoken.lab import Experiment, Grid, Measured, Resampled, Rows

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

    def judge(self, rows: Rows[Point]) -> Checks:
        yield from _narrow_checks(Rows(row for row in rows if _is_narrow(row.point)))
        rows = Rows((row for row in rows if not _is_narrow(row.point)), rows.failed)
        longest = Rows(row for row in rows if row.point.tokens >= MANY)
        for kind, context in KINDS.items():
            yield from checks(
                "floor",
                *exponent_check(rows, kind),
                ("constant", f"excess over its prediction, n >= {MANY}, all condition numbers",
                 near(1.0, within=0.1), longest.seed_means(f"{kind}_share")),
                where=context, ending=f".{kind}",
            )  # fmt: skip
        ratios = rows.seed_means(lambda row: row.measured["stored"] / row.measured["least_squares"])
        sentence = "excess with the training tokens as context over that of least squares"
        yield check("floor.least-squares", sentence, above(1.0), ratios)

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


def _narrow_checks(rows: Rows[Point]) -> Checks:
    for outputs, of_width in group_by(rows, "outputs"):
        for noise in rows.levels("noise"):
            runs = of_width.where(noise=noise)
            if not runs:
                continue
            gained = ("below-start", "median excess over that of the spectral start", below(0.9))
            if outputs == runs[0].point.dim:
                sentence = "median excess over that of the spectral start; training has next to nothing to gain"
                gained = ("square", sentence, above(0.8))
            # the prediction itself is a mean over cumulants that errs by 5 to 10 %
            predicted = near(1.0, within=0.2)
            yield from checks(
                "floor",
                (*gained, Resampled(runs.values("stored") / runs.values("start"), np.median)),
                ("outputs", "excess, with the mean error of least squares in place of its own, over its prediction",
                 predicted, runs.values("evened_share")),
                ("outputs-raw", "excess as it is over its prediction", predicted, runs.values("stored_share")),
                where=f"{outputs} of {runs[0].point.dim} outputs, noise {noise:g}", ending=f".k{outputs}.noise{noise:g}",
            )  # fmt: skip
