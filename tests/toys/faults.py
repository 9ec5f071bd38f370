"""Points that fail in every way that a point can.

Claim   The good points average to zero.
Source  None: it is a toy.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whichtoken.lab import Experiment, Grid, Mean, Predicted, agreement


@dataclass(frozen=True)
class Point:
    fault: str = "none"
    number: int = 0
    pause: float = 0.0


class Faults(Experiment[Point]):
    id = "toy/faults"
    presets = {
        "quick": (Grid(fault=["none", "raise", "nan", "object", "exit"], seeds=3),),
        "full": (Grid(fault="none", number=list(range(12)), pause=0.15, seeds=1),),
    }

    def run(self, point, rng):
        note(f"{point.fault} {point.number}")
        time.sleep(point.pause)
        if point.fault == "raise":
            raise RuntimeError("a planted\nfault in [/bold]")
        if point.fault == "exit":
            raise SystemExit("gone")
        if point.fault == "die" or (point.fault == "die once" and first_time()):
            os.kill(os.getpid(), signal.SIGKILL)
        value = {"nan": np.nan, "object": object()}.get(point.fault, rng.standard_normal())
        return {"value": value, "nested": {"list": [1, value]}}

    def predict(self, point):
        return {"value": Predicted(1 / (point.fault != "bad theory") - 1)}

    def judge(self, rows):
        yield agreement("faults.zero", "zero", theory=0.0, measured=Mean(rows.values("value")), tolerance=3.0)

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("value"))


def note(text):
    """Leave a trace of every execution where the test can count it."""
    if log := os.environ.get("TOY_LOG"):
        with Path(log).open("a") as file:
            file.write(text + "\n")


def first_time():
    try:
        Path(os.environ["TOY_LOG"] + ".died").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
