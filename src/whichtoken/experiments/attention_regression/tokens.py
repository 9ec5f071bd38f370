"""Short logits on centred tokens do without the Gaussian assumption.

Claim   Centred attention with short logits ends at a floor that the fourth and sixth moments of its tokens give, be they
        Gaussian, uniform, signs or Laplace, and of any mean; long logits fail on heavy tails, plain tokens on a mean.
Source  Derived here; Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514) assume Gaussian tokens of mean zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Predicted, Rows, agreement, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Law = Literal["gaussian", "uniform", "sign", "laplace", "student"]
ALL_LAWS = list(get_args(Law))
HEAVY = ("laplace", "student")
SHORT = 0.1  # |Q|_F at which the excess is held against its floor
MANY = 16  # features at which it is: with more of them there is less luck in a run
# fourth and sixth moments of a coordinate; those of Student's law with 5 degrees of freedom do not end, nor does its floor
MOMENTS: dict[str, tuple[float, float]] = {
    "gaussian": (3.0, 15.0),
    "uniform": (9 / 5, 27 / 7),
    "sign": (1.0, 1.0),
    "laplace": (6.0, 90.0),
}


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
    version = 4
    needs = "torch"
    presets = {
        "quick": (
            Grid(law=["gaussian", "sign", "laplace"], logit_norm=SHORT, dim=MANY, tokens=1200, seeds=18),
            Grid(law=list(HEAVY), logit_norm=[1.0, SHORT], tokens=400, seeds=8),
            Grid(mean=2.0, center=[True, False], logit_norm=0.3, tokens=400, seeds=(8, 32)),
        ),
        "full": (
            Grid(law=list(MOMENTS), logit_norm=SHORT, dim=MANY, tokens=1600, seeds=32),
            Grid(law=ALL_LAWS, logit_norm=[1.0, 0.3, SHORT], seeds=20),
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

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        return {"excess": Predicted(law_floor(point))} if point.law in MOMENTS and point.center else {}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        zero = rows.where(mean=0.0, center=True)
        for law in zero.levels("law"):
            runs = zero.where(law=law)
            short = runs.where(logit_norm=SHORT, dim=max(runs.levels("dim")))
            if short and (floor := short.predicted("excess")) is not None:
                yield agreement(
                    f"tokens.short.{law}",
                    f"{law} tokens, |Q|_F = {SHORT:g}: excess over the floor that the moments of their law give",
                    theory=1.0,
                    measured=Mean(short.values("excess") / floor.value),
                    tolerance=0.1,
                )
            if law in HEAVY:
                yield at_least(
                    f"tokens.long.{law}",
                    f"{law} tokens: relative excess at |Q|_F = 1 over that at 0.1",
                    bound=30.0,
                    measured=Mean(runs.where(dim=min(runs.levels("dim"))).per_seed(_long_over_short)),
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


def law_floor(point: Point) -> float:
    """Relative excess at which short logits end, for an orthogonal target and independent coordinates of unit variance.

    Least squares contributes noise^2 (d + 1) / n. The layer computes P (b + K3[b, b] / 2 + K4[b, b, b] / 6 + ...), where b is
    the query in random directions, of length |b| = |Q|_F |z| / sqrt(d), and K3 and K4 are cumulants of the n tokens. Entries of
    K3 are sampling noise: n times their variance is E (x^3 - 3x)^2, E (x^2 - 1)^2 or 1 (three, two or no equal indices). K4 is
    the excess kurtosis on its diagonal, and what of b^3 is linear in b is fitted away.
    """
    d, short = point.dim, point.logit_norm**2 / point.dim
    fourth, sixth = MOMENTS[point.law]
    three, two = sixth - 6 * fourth + 9, fourth - 1
    length4 = d * fourth + d * (d - 1)  # E |z|^4
    length6 = d * sixth + 3 * d * (d - 1) * fourth + d * (d - 1) * (d - 2)
    spread = length4 / (d * (d + 2))  # E b_i^4 over that of a Gaussian b
    cubic = three + (d - 1) * two + 2 * (three + 3 * (d - 1) * two + (d - 1) * (d - 2))
    beyond_linear = 15 * length6 / (d * (d + 2) * (d + 4)) - (3 * spread) ** 2
    sampled = point.noise**2 * (d + 1) + short * spread * cubic / 4
    return float(sampled / point.tokens + short**2 * (fourth - 3) ** 2 / 36 * beyond_linear)


def _long_over_short(repeat: Rows[Point]) -> float | None:
    long, short = repeat.where(logit_norm=1.0), repeat.where(logit_norm=0.1)
    return float(long.values("excess")[0] / short.values("excess")[0]) if long and short else None
