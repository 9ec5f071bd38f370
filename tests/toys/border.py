"""A claim with borders at known places.

Claim   The mean is at most 1, which holds for tilt up to 0.8, for rate up to 20, and for rate times size up to 200.
Source  None: it is a toy.
"""

from dataclasses import dataclass

from whichtoken.lab import Experiment, Grid, Mean, at_most


@dataclass(frozen=True)
class Point:
    tilt: float = 0.0
    rate: float = 1.0
    size: int = 8
    noise: float = 0.1

    def __post_init__(self):
        if self.noise > 0.9:
            raise ValueError(f"noise={self.noise} must be at most 0.9")


class Border(Experiment[Point]):
    id = "toy/border"
    presets = {"quick": (Grid(rate=[1.0, 2.0], seeds=3),), "map": (Grid(seeds=6),)}
    ranges = {"tilt": (0.0, 3.0), "rate": (0.1, 100.0), "size": (2, 64), "noise": (0.05, 1.0)}

    def run(self, point, rng):
        level = max(point.tilt / 0.8, point.rate / 20, point.rate * point.size / 200)
        return {"value": level + point.noise * 0.1 * rng.standard_normal()}

    def judge(self, rows):
        yield at_most("border.one", "the level is at most 1", bound=1.0, measured=Mean(rows.values("value")))

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("value"))


class Window(Border):
    id = "toy/window"
    presets = {"map": (Grid(rate=50.0, seeds=4),)}
    ranges = {"rate": (0.1, 100.0)}

    def run(self, point, rng):
        return {"value": 2.0 if 5 < point.rate < 8 else 0.5}
