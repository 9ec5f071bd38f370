"""Repeats are added where they decide something.

Claim   The mean of normal draws is their shift.
Source  The law of large numbers.
"""

from dataclasses import dataclass

from whichtoken.lab import Experiment, Grid, Mean, agreement


@dataclass(frozen=True)
class Point:
    spread: float = 1.0
    shift: float = 0.0


class Sequential(Experiment[Point]):
    id = "toy/sequential"
    presets = {"quick": (Grid(spread=[0.01, 0.5, 100.0], seeds=(4, 32)),)}

    def run(self, point, rng):
        return {"value": point.shift + point.spread * rng.standard_normal()}

    def judge(self, rows):
        for spread in rows.levels("spread"):
            runs = rows.where(spread=spread)
            found = Mean(runs.values("value"))
            yield agreement(f"zero.{spread}", "zero", theory=0.0, measured=found, tolerance=1.0, on=runs)

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("value"))
