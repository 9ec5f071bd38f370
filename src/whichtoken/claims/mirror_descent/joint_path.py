"""The regularization path of key-query matrix and decoder leads where their training does.

Claim   As the bounds R on |W|_p and ratio R on |v|_p grow together, the decoder tends to the max-margin classifier of the
        selected tokens and the key-query matrix to the member of the family at that ratio; both divergences fall as R^-2.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581), joint regularization path;
        the family and the rate are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Below, Checks, Equals, pool_parts
from whichtoken.claims._figures import Figure, label_axes, plot_medians
from whichtoken.claims._runs import count_failed, group_by
from whichtoken.claims.mirror_descent._problems import decoder_limit
from whichtoken.lab import Experiment, Grid, Measured, Resampled, Row, Rows

RADII = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
BLOCKS = {"weights": "key-query matrix", "decoder": "decoder"}
LIMIT = Below("joint-path.limit", 1e-6, "final divergence of W or v from its limit, median")
# as on the path of W alone: directions miss their limits by 1 / R, and D_p is quadratic
RATE = Equals("joint-path.rate", -2.0, "exponent of R in the divergence of W or v, median", tolerance=0.1)


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 5
    dim: int = 8
    p: float = 2.0
    ratio: float = 0.2  # |v|_p / |W|_p


class JointPath(Experiment[Point]):
    id = "mirror-descent/joint-path"
    spot = Point(sequences=2, length=3, dim=4)
    presets = {
        "quick": (Grid(sequences=4, length=4, dim=6, seeds=10),),
        # a path with p < 2 takes several times as long as the others
        "full": (
            Grid(p=1.75, seeds=12),
            Grid(p=2.0, ratio=[0.2, 0.5], seeds=20),
            Grid(p=3.0, ratio=[0.2, 0.5], seeds=12),
        ),
    }
    method_fields = frozenset({"p", "ratio"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.datasets import AttentionTokens
        from whichtoken.flows.regularization_path import joint_regularization_path
        from whichtoken.margin import joint_limit
        from whichtoken.theory.mirror_descent import directional_divergence

        problem = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        path = joint_regularization_path(problem, RADII, p=point.p, ratio=point.ratio, rng=rng, starts=2)
        selected = path.selected[-1]
        decoder, _, margins = decoder_limit(problem, selected, point.p)
        limit = joint_limit(problem.tokens, problem.queries, selected, margins, point.ratio, point.p)
        if limit.direction is None:
            raise ValueError(f"the selected tokens {selected.tolist()} cannot be separated: no limit exists")
        pairs = {"weights": (limit.direction, path.directions), "decoder": (decoder, path.decoders)}
        return {
            **{
                name: [directional_divergence(end, each, point.p) for each in followed]
                for name, (end, followed) in pairs.items()
            },
            "stationarity": path.stationarity.max(),
        }

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        for p, runs in group_by(rows, "p"):
            failed = len(runs.failed)
            for name, block in BLOCKS.items():
                code, words = f"{name}.p{p:g}", f"p = {p:g}, {block}"
                # of every problem and ratio, not of repeats
                ends = [*(row.measured[name][-1] for row in runs), *[1.0] * failed]
                slopes = [*(_last_slope(row, name) for row in runs), *[0.0] * failed]
                yield LIMIT.part(code, words, count_failed(Resampled(ends, np.median)), on=runs)
                yield RATE.part(code, words, count_failed(Resampled(slopes, np.median)), on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        for axes, (name, words) in zip(figure.subplots(1, 2, sharey=True), BLOCKS.items(), strict=True):
            for p in rows.levels("p"):
                plot_medians(axes, RADII, rows.where(p=p).values(name), f"p = {p:g}", marker="o")
            x, y = "bound R on the length of W", "median divergence from its limit"
            label_axes(axes, words.capitalize(), x, y, log="xy", legend=True)


def _last_slope(row: Row[Point], name: str) -> float:
    """Exponent of R in a divergence, between the last two radii."""
    *_, before, last = row.measured[name]
    return float(np.log(last / before) / np.log(RADII[-1] / RADII[-2]))
