"""How many tokens does random attention attend to?

Claim   Softmax over L independent N(0, s^2) scores attends to L exp(-s^2) tokens, counted as 1 / sum of squared weights.
Source  The law of large numbers, for numerator and denominator: (E e^x)^2 / E e^2x = exp(-s^2).

A claim of your own is a file like this one, in any folder:

    WHICHTOKEN_EXPERIMENTS=examples/claims whichtoken reproduce mine/attended-tokens
    WHICHTOKEN_EXPERIMENTS=examples/claims whichtoken reproduce mine/attended-tokens --set spread=3 --set length=1000
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.lab import Check, Experiment, Grid, Mean, Measured, Predicted, Rows, agreement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    length: int = 100_000
    spread: float = 1.0


class AttendedTokens(Experiment[Point]):
    id = "mine/attended-tokens"
    presets = {
        "quick": (Grid(spread=[0.5, 1.0, 1.5], seeds=20),),
        "full": (Grid(spread=[0.5, 1.0, 1.5], seeds=100),),
    }
    expected = {preset: {f"attended.s{spread}": "agrees" for spread in (0.5, 1.0, 1.5)} for preset in ("quick", "full")}

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        weights = np.exp(point.spread * rng.standard_normal(point.length))
        return {"share": weights.sum() ** 2 / (weights**2).sum() / point.length}

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        return {"share": Predicted(np.exp(-(point.spread**2)))}

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        for spread in rows.levels("spread"):
            group = rows.where(spread=spread)
            theory = group.predicted("share")
            yield agreement(
                f"attended.s{spread}",
                f"share of the tokens attended to at s = {spread}",
                theory=theory.value if theory else None,
                measured=Mean(group.values("share")),
                tolerance=0.02,
            )

    def draw(self, rows: Rows[Point], figure: "Figure") -> None:
        axes = figure.subplots()
        axes.plot([row.point.spread for row in rows], rows.values("share"), ".", label="measured")
        spread = np.linspace(0.1, 2, 50)
        axes.plot(spread, np.exp(-(spread**2)), label="exp(-s²)")
        axes.set(xlabel="standard deviation s of the scores", ylabel="share of tokens attended to")
        axes.legend()
