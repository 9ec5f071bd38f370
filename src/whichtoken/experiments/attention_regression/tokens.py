"""Short logits on centred tokens do without the Gaussian assumption.

Claim   Centred attention with short logits needs only second moments: its excess stays small for uniform, sign, Laplace and
        Student tokens and for any mean, while long logits fail on heavy tails and plain tokens on a mean that is not zero.
Source  Derived here; Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514) assume Gaussian tokens of mean zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Law = Literal["gaussian", "uniform", "sign", "laplace", "student"]
ALL_LAWS = list(get_args(Law))
HEAVY = ("laplace", "student")
# excess at |Q|_F = 0.1 over the floor of Gaussian tokens, at most: lighter tails have smaller cumulants, heavier ones larger
FLOORS: dict[Law, float] = {"gaussian": 1.5, "uniform": 1.2, "sign": 1.2, "laplace": 4.0, "student": 12.0}


@dataclass(frozen=True)
class Point:
    dim: int = 6
    tokens: int = 800
    noise: float = 0.1
    law: Law = "gaussian"
    mean: float = 0.0
    center: bool = True
    logit_norm: float = 0.3


class TokenLoss(Experiment[Point]):
    id = "attention-regression/tokens"
    version = 3
    presets = {
        "quick": (
            Grid(law=ALL_LAWS, logit_norm=[1.0, 0.1], tokens=400, seeds=8),
            Grid(mean=2.0, center=[True, False], logit_norm=0.3, tokens=400, seeds=8),
        ),
        "full": (
            Grid(law=ALL_LAWS, logit_norm=[1.0, 0.3, 0.1], seeds=20),
            Grid(law=ALL_LAWS, logit_norm=1.0, center=False, seeds=20),
            Grid(mean=2.0, center=[True, False], logit_norm=[1.0, 0.3], seeds=20),
        ),
    }
    method_fields = frozenset({"center", "logit_norm"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionRegression
        from whichtoken.experiments.attention_regression._excess import TrainingSet
        from whichtoken.theory.attention_regression import excess_floor
        from whichtoken.training.factor_objectives import TokenObjective
        from whichtoken.training.structure_aware_descent import StructureAwareDescent

        problem = AttentionRegression(
            point.dim, tokens=point.tokens, noise=point.noise, law=point.law, mean=point.mean
        ).sample(rng)
        data = TrainingSet(problem, rng, center=point.center)
        solver = StructureAwareDescent(logit_norm=point.logit_norm, center=point.center)
        descent = solver.minimise(TokenObjective(data.Z, data.Y), *solver.starting_factors(data.Z, data.Y))
        floor = excess_floor("stored", problem.whitened_target, point.noise, point.tokens, point.logit_norm)
        excess = data.stored(descent.final.P, descent.final.Q)
        return {"excess": excess, "floors": excess / (2 * floor / data.size), "status": descent.status}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        zero = rows.where(mean=0.0, center=True)
        for law in zero.levels("law"):
            runs = zero.where(law=law)
            yield at_most(
                f"tokens.short.{law}",
                f"{law} tokens, |Q|_F = 0.1: excess over the floor of Gaussian tokens",
                bound=FLOORS[law],
                measured=Mean(runs.where(logit_norm=0.1).values("floors")),
            )
            if law in HEAVY:
                yield at_least(
                    f"tokens.long.{law}",
                    f"{law} tokens: relative excess at |Q|_F = 1 over that at 0.1",
                    bound=30.0,
                    measured=Mean(runs.per_seed(_long_over_short)),
                )
        shifted = rows.where(mean=2.0, logit_norm=0.3)
        yield at_most(
            "tokens.mean.centred",
            "mean 2 in every coordinate, centred, |Q|_F = 0.3: relative excess",
            bound=2e-3,
            measured=Mean(shifted.where(center=True).values("excess")),
        )
        yield at_least(
            "tokens.mean.plain",
            "mean 2 in every coordinate, not centred, |Q|_F = 0.3: relative excess",
            bound=0.1,
            measured=Mean(shifted.where(center=False).values("excess")),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        settings = dict.fromkeys((row.point.center, row.point.logit_norm) for row in rows)
        cases = list(dict.fromkeys((row.point.law, row.point.mean) for row in rows))
        for index, (center, norm) in enumerate(settings):
            runs = rows.where(center=center, logit_norm=norm)
            found = [(place, runs.where(law=law, mean=mean)) for place, (law, mean) in enumerate(cases)]
            axes.plot(
                [place + 0.1 * index for place, some in found for _ in some],
                [row.measured["excess"] for _, some in found for row in some],
                ".", label=f"{'centred' if center else 'plain'}, logits of length {norm:g}",
            )  # fmt: skip
        axes.set_xticks(
            np.arange(len(cases)) + 0.15, [law if mean == 0 else f"{law}, mean {mean:g}" for law, mean in cases]
        )
        axes.set(yscale="log", title="Relative excess of the trained layer, one point per run")
        axes.legend()


def _long_over_short(repeat: Rows[Point]) -> float | None:
    long, short = repeat.where(logit_norm=1.0), repeat.where(logit_norm=0.1)
    return float(long.values("excess")[0] / short.values("excess")[0]) if long and short else None
