"""The mean of shifted normals is the shift.

Claim   Averaging draws of N(shift, 1) gives the shift.
Source  The law of large numbers.
"""

from dataclasses import dataclass

from whichtoken.lab import Experiment, Grid, Mean, Predicted, agreement


@dataclass(frozen=True)
class Point:
    draws: int = 400
    shift: float = 1.0
    factor: float = 1.0  # 1.2 plants a wrong theory
    method: str = "mean"


class ShiftedMean(Experiment[Point]):
    id = "toy/mean"
    presets = {"quick": (Grid(draws=[100, 400], seeds=5),), "full": (Grid(draws=400, seeds=2500),)}
    method_fields = frozenset({"factor", "method"})
    expected = {"quick": {"mean.shift": "agrees"}}

    def run(self, point, rng):
        sample = point.shift + rng.standard_normal(point.draws)
        return {"mean": getattr(sample, point.method)(), "first": float(sample[0])}

    def predict(self, point):
        return {"mean": Predicted(point.factor * point.shift, 1e-12)}

    def judge(self, rows):
        theory = rows.predicted("mean")
        yield agreement(
            "mean.shift",
            "the mean is the shift",
            theory=theory.value if theory else None,
            theory_error=theory.error if theory else 0.0,
            measured=Mean(rows.values("mean")),
            tolerance=0.11,  # the whole interval, about 0.07 each side of the mean, has to lie within it
        )

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("mean"), "o", label="<b>measured & stored</b>")
