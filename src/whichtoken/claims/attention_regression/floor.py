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

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, level_ticks, points_with_errors
from whichtoken.claims._runs import group_by, rows_where
from whichtoken.claims.attention_regression._training import TrainingSet, exponents, sample_problem
from whichtoken.lab import Measured, Resampled, Rows

MANY = 800  # tokens from which on the constant is read off
KINDS: Mapping[str, str] = {
    "population": "infinite context",
    "stored": "training tokens as context",
    "fresh": "fresh tokens as context",
}
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    dim: int = 6
    tokens: int = 800
    condition: float = 1.0  # of target and covariance
    noise: float = 0.1
    logit_norm: float = 0.3
    outputs: int = 6
    iterations: int = 20


class Floor(Claim[Point], table=TABLE):
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
        wide = rows_where(rows, lambda point: not _is_narrow(point))
        longest = rows_where(wide, lambda point: point.tokens >= MANY)
        for kind, context in KINDS.items():
            if len(slopes := exponents(wide, kind)):
                yield TABLE.slope(slopes, on=wide, kind=kind, context=context)
        for kind, context in KINDS.items():
            yield TABLE.constant.part(kind, context, longest.seed_means(f"{kind}_share"), on=longest)
        yield TABLE.least_squares(
            wide.seed_means(lambda row: row.measured["stored"] / row.measured["least_squares"]), on=wide
        )
        groups = list(group_by(rows_where(rows, _is_narrow), "outputs", "noise"))
        # fewer outputs before as many as features
        for (count, noise), runs in sorted(groups, key=lambda group: group[0][0] == Point.dim):
            gained = Resampled(runs.values("stored") / runs.values("start"), np.median)
            yield (TABLE.square if count == Point.dim else TABLE.below_start).part(
                *_narrow_words(count, noise), gained, on=runs
            )
        for (count, noise), runs in groups:
            yield TABLE.outputs.part(*_narrow_words(count, noise), runs.values("evened_share"), on=runs)
            yield TABLE.outputs_raw.part(*_narrow_words(count, noise), runs.values("stored_share"), on=runs)

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
