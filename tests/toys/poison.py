"""Points that are bad in every way that we could think of.

Claim   None of them is more than a failed row.
Source  None: it is a toy.
"""

import asyncio
import datetime
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whichtoken.lab import Exact, Experiment, Grid, Predicted, at_least


class UnreadableError(Exception):
    def __str__(self):
        raise ValueError("no")


class InterruptedReadingError(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class WildText(str):
    def split(self, *_):
        raise SystemExit

    def __getitem__(self, _):
        raise SystemExit


class WildTextError(Exception):
    def __str__(self):
        return WildText("wild")


class NoPickleError(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("no")


class OwnBaseError(BaseException):
    pass


class WildMapping(Mapping):
    def __getitem__(self, key):
        raise KeyboardInterrupt

    def __iter__(self):
        raise GeneratorExit

    def __len__(self):
        return 1


class WildKey:
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def endless():
    circle = {}
    circle["self"] = circle
    return circle


def fall(depth=0):
    return fall(depth + 1)


def close_everything():
    os.closerange(3, 256)


def meet(number):
    """Wait for the neighbor: 0 for 1, 2 for 3, ... Alone, it waits in vain."""
    mine, other = (Path(f"{os.environ['TOY_LOG']}.{one}") for one in (number, number ^ 1))
    mine.touch()
    deadline = time.monotonic() + 30
    while not other.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody came")
        time.sleep(0.01)


def hold_the_interpreter():
    re.match(r"(a+)+$", "a" * 60 + "b")


RAISED = {
    "plain": lambda: RuntimeError("a planted\nfault in [/bold]"),
    "no message": RuntimeError,
    "unreadable": UnreadableError,
    "interrupted reading": InterruptedReadingError,
    "wild text": WildTextError,
    "unencodable": lambda: ValueError("half a sign: \ud800"),
    "zero byte": lambda: ValueError("a\0b"),
    "50 MB": lambda: ValueError("x" * 50_000_000),
    "50 MB of lines": lambda: ValueError("x\n" * 25_000_000),
    "escapes": lambda: ValueError("\x1b[31mred\x1b[2J \u202eright to left"),
    "no pickle": NoPickleError,
    "no pickle inside": lambda: ValueError(threading.Lock()),
    "long name": lambda: type("E" * 100_000, (Exception,), {})("long"),
    "local class": lambda: type("Local\x1b", (Exception,), {})("local"),
    "own base": lambda: OwnBaseError("own"),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "exit": lambda: SystemExit("gone"),
    "exit 0": lambda: SystemExit(0),
    "cancelled": asyncio.CancelledError,
    "stop": StopIteration,
    "memory": MemoryError,
    "group": lambda: BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError("a")]),
    "recursion": fall,
    "system": lambda: OSError(28, "No space left on device"),
}
RETURNED = {
    "None": lambda: None,
    "list": lambda: [1.0],
    "text": lambda: "value",
    "number": lambda: 1.0,
    "wild mapping": WildMapping,
    "wild key": lambda: {WildKey(): 1},
    "nan": lambda: {"value": float("nan")},
    "infinite": lambda: {"value": np.array([1.0, -np.inf])},
    "object": lambda: {"value": object()},
    "complex": lambda: {"value": 1j},
    "numpy complex": lambda: {"value": np.array([1j])},
    "set": lambda: {"value": {1, 2}},
    "bytes": lambda: {"value": b"1"},
    "function": lambda: {"value": fall},
    "generator": lambda: {"value": (number for number in range(3))},
    "lock": lambda: {"value": threading.Lock()},
    "date": lambda: {"value": datetime.date(2020, 1, 1)},
    "objects in an array": lambda: {"value": np.array([object()])},
    "endless": endless,
    "deep": lambda: {"value": nested(100_000)},
    "long number": lambda: {"value": 10**5000},
}
PREDICTED = {
    "predicted text": lambda: {"value": Predicted("1")},
    "predicted texts": lambda: {"value": Predicted(["a", "b"])},
    "predicted object": lambda: {"value": Predicted(object())},
    "predicted complex": lambda: {"value": Predicted(1j)},
    "predicted set": lambda: {"value": Predicted({1.0})},
    "predicted None": lambda: {"value": Predicted(None)},
    "predicted lock": lambda: {"value": Predicted(threading.Lock())},
    "predicted nan": lambda: {"value": Predicted(float("nan"))},
    "predicted error": lambda: {"value": Predicted(1.0, float("inf"))},
    "predicted error text": lambda: {"value": Predicted(1.0, "small")},
    "predicted number": lambda: {"value": 1.0},
    "predicted list": lambda: [Predicted(1.0)],
    "predicted fault": lambda: 1 / 0,
    "predicted exit": sys.exit,
}
DEADLY = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "segmentation fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "aborted": os.abort,
    "left": lambda: os._exit(0),
    "closed": close_everything,
}
ENDLESS = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleeping": lambda: time.sleep(1e6),
    "looping": lambda: [None for _ in iter(int, 1)],
    "holding": hold_the_interpreter,
    "waiting": lambda: threading.Event().wait(),
}
QUIET = {  # these finish: what they do must not show
    "warning": lambda: warnings.warn("careful", RuntimeWarning, stacklevel=1),
    "numpy warning": lambda: np.log(np.array([0.0])),
    "fault in a thread": lambda: threading.Thread(target=fall).start(),
}


@dataclass(frozen=True)
class Point:
    kind: str = "good"
    number: int = 0


class Poison(Experiment[Point]):
    id = "toy/poison"
    presets = {"quick": (Grid(kind=["good"], number=list(range(4)), seeds=1),)}

    def run(self, point, rng):
        Path(os.environ["TOY_LOG"]).touch()
        if point.kind in RAISED:
            raise RAISED[point.kind]()
        if point.kind in RETURNED:
            return RETURNED[point.kind]()
        {**DEADLY, **ENDLESS, **QUIET}.get(point.kind, lambda: None)()
        if point.kind == "meet":
            meet(point.number)
        return {"value": rng.standard_normal()}

    def predict(self, point):
        return PREDICTED.get(point.kind, lambda: {"value": Predicted(0.0)})()

    def judge(self, rows):
        yield at_least("poison.rows", "rows", bound=0, measured=Exact(len(rows)))

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("value"))
