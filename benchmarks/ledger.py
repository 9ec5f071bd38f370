"""What the laboratory itself costs: ten thousand points that compute nothing."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from whichtoken.lab.benchmark import Measure, seconds

PART = "The program itself"
QUESTION = "How much overhead does the laboratory add to each point that it runs?"

POINTS = 10_000
TINY = '''"""Points that compute nothing.

Claim   The laboratory is cheap beside the science that it runs.
Source  This file.
"""

from dataclasses import dataclass

from whichtoken.lab import Exact, Experiment, Grid, at_least


@dataclass(frozen=True)
class Point:
    number: int = 0


class Tiny(Experiment[Point]):
    id = "bench/tiny"
    presets = {"quick": (Grid(number=list(range(%d)), seeds=1),)}

    def run(self, point, rng):
        return {"value": rng.random()}

    def judge(self, rows):
        yield at_least("tiny.rows", "rows", bound=0, measured=Exact(len(rows)))

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("value"))
'''


def measure() -> Iterator[Measure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "experiments").mkdir()
        (folder / "experiments" / "tiny.py").write_text(TINY % POINTS)
        environment = {**os.environ, "WHICHTOKEN_EXPERIMENTS": str(folder / "experiments")}
        command = [sys.executable, "-P", "-m", "whichtoken", "reproduce", "bench/tiny", "--workers", "2", "--out", name]

        def run() -> None:
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        case = f"{POINTS} tiny points"
        first = seconds(run)
        detail = f"{first:.1f} s with the start of two workers and a transaction per row"
        yield Measure(case, "ms of overhead per point", 1e3 * first / POINTS, 5, at_least=False, detail=detail)
        yield Measure(case, "s to start again on the finished ledger", seconds(run), 2, at_least=False)
