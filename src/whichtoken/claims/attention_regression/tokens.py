"""Short logits on centered tokens do without the Gaussian assumption.

Claim   Centered attention with short logits ends at a floor that the fourth and sixth moments of its tokens give, be they
        Gaussian, uniform, signs or Laplace, and of any mean; long logits fail on heavy tails, plain tokens on a mean.
Source  Derived here; Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514) assume Gaussian tokens of mean zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from whichtoken.claims._checks import Above, Below, Checks, Equals, Predictions, pool_parts
from whichtoken.claims._figures import Figure
from whichtoken.claims._runs import group_by, pairs, rows_where
from whichtoken.claims.attention_regression._training import TrainingSet, sample_problem
from whichtoken.lab import Experiment, Grid, Measured, Predicted, Rows

Law = Literal["gaussian", "uniform", "sign", "laplace", "student"]
ALL_LAWS = list(get_args(Law))
HEAVY = ("laplace", "student")
SHORT = 0.1  # |Q|_F at which the excess is held against its floor
FLOOR = Equals(
    "tokens.short",
    1.0,
    f"|Q|_F = {SHORT:g}: excess over the floor that the moments of the tokens' law give",
    tolerance=0.1,
)
LONG = Above("tokens.long", 30.0, "heavy tails: relative excess at |Q|_F = 1 over that at 0.1")
CENTERED = Below("tokens.mean.centered", 2e-3, "tokens of mean 2, centered: relative excess")
PLAIN = Above("tokens.mean.plain", 0.1, "tokens of mean 2, not centered: relative excess")
MANY = 16  # features at which it is: with more of them a run scatters less
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
        from whichtoken.theory.attention_regression.structure_aware_descent import StructureAwareDescent, TokenObjective

        data = TrainingSet(sample_problem(point, rng), rng, center=point.center)
        solver = StructureAwareDescent(logit_norm=point.logit_norm, center=point.center)
        descent = solver.minimize(TokenObjective(data.Z, data.Y), *solver.starting_factors(data.Z, data.Y))
        excess = data.stored(descent.final.P, descent.final.Q)
        return {"excess": excess, "floors": excess / data.floor("stored", point.logit_norm), "status": descent.status}

    def predict(self, point: Point) -> Predictions:
        return {"excess": Predicted(law_floor(point))} if point.law in MOMENTS and point.center else {}

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        for law, runs in group_by(rows.where(mean=0.0, center=True), "law"):
            many = runs.where(logit_norm=SHORT, dim=max(runs.levels("dim"), default=MANY))
            if (floor := many.predicted("excess")) is not None:
                yield FLOOR.part(law, f"{law} tokens", many.values("excess") / floor.value, on=many)
            if law in HEAVY:
                few = rows_where(runs, lambda point: point.dim == Point.dim and point.logit_norm in (1.0, SHORT))
                ratio = np.divide(*pairs(few, "excess", {"logit_norm": 1.0}, {"logit_norm": SHORT}))
                yield LONG.part(law, f"{law} tokens", ratio, on=few)
        for center, criterion in ((True, CENTERED), (False, PLAIN)):
            shifted = rows.where(mean=2.0, logit_norm=0.3, center=center)
            yield criterion(shifted.values("excess"), on=shifted)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        cases = [case for case, _ in group_by(rows, "law", "mean")]
        for index, ((center, norm), runs) in enumerate(group_by(rows, "center", "logit_norm")):
            found = [(place, runs.where(law=law, mean=mean)) for place, (law, mean) in enumerate(cases)]
            axes.plot(
                [place + 0.1 * index for place, some in found for _ in some],
                [row.measured["excess"] for _, some in found for row in some],
                ".", label=f"{'centered' if center else 'plain'}, logits of length {norm:g}",
            )  # fmt: skip
        names = [law if mean == 0 else f"{law}, mean {mean:g}" for law, mean in cases]
        axes.set_xticks(np.arange(len(cases)) + 0.15, names)
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
