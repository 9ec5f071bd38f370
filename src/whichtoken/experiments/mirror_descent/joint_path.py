"""The regularisation path of key-query matrix and decoder leads where their training does.

Claim   As the bounds R on |W|_p and ratio R on |v|_p grow together, the decoder tends to the max-margin classifier of the
        selected tokens and the key-query matrix to the member of the family at that ratio; both divergences fall as R^-2.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581), joint regularisation path;
        the family and the rate are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.mirror_descent._decoder_limit import decoder_limit
from whichtoken.lab import Claim, Exact, Experiment, Grid, Measured, Resampled, Rows, agreement, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADII = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
BLOCKS = {"weights": "key-query matrix", "decoder": "decoder"}
RATE = -2.0  # as on the path of W alone: directions miss their limits by 1 / R, and D_p is quadratic
TOLERANCE = 0.1


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
        from whichtoken.data import AttentionTokens
        from whichtoken.flows.joint_path import joint_regularization_path
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

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for p in rows.levels("p"):
            runs = rows.where(p=p)
            for name, words in BLOCKS.items():
                divergence = np.array([row.measured[name] for row in runs])
                yield at_most(
                    f"joint-path.limit.{name}.p{p:g}",
                    f"p = {p:g}, {words}: divergence from its limit at R = {RADII[-1]:g}, median of {len(runs)} paths",
                    bound=1e-6,
                    measured=Resampled([*divergence[:, -1], *[1.0] * len(runs.failed)], np.median),
                )
                slopes = np.log(divergence[:, -1] / divergence[:, -2]) / np.log(RADII[-1] / RADII[-2])
                yield agreement(
                    f"joint-path.rate.{name}.p{p:g}",
                    f"p = {p:g}, {words}: exponent of that divergence as a power of R at the end, median",
                    theory=RATE,
                    measured=Resampled([*slopes, *[0.0] * len(runs.failed)], np.median),
                    tolerance=TOLERANCE,
                )
        if rows:
            yield at_most(
                "joint-path.stationary",
                "largest divergence between a minimiser and its steepest descent direction",
                bound=1e-6,
                measured=Exact(rows.values("stationarity").max()),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        for axes, (name, words) in zip(figure.subplots(1, 2, sharey=True), BLOCKS.items(), strict=True):
            for p in rows.levels("p"):
                curves = np.array([row.measured[name] for row in rows.where(p=p)])
                axes.plot(RADII, np.median(curves, axis=0), "o-", label=f"p = {p:g}")
            axes.set(
                xscale="log",
                yscale="log",
                title=words.capitalize(),
                xlabel="bound R on the length of W",
                ylabel="median divergence from its limit",
            )
            axes.legend()
