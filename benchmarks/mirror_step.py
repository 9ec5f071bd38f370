"""One step of MirrorDescent on ten million parameters beside torch.optim.SGD with momentum, and its memory.

SGD with momentum moves as many bytes as a step without (three arrays read, two written) and computes next to nothing: its time
is that of the memory. The roofline is the larger of that and of what a step takes on arrays that stay in the cache.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from whichtoken.lab.benchmark import CPU, Beside, Measure, cpu_seconds
from whichtoken.optim import MirrorDescent
from whichtoken.optim.mirror_descent import mirror_step

PART = "Transformers"
QUESTION = "What does a step of mirror descent cost, compared with SGD?"
WHY = {
    "torch.optim.SGD": {
        "win": "At p = 2 the step is the same as that of SGD, and without momentum there is no buffer to read and write.",
        "even": "At p = 2 with momentum, both do the same work.",
        "loss": (
            "Mirror descent raises the dual variable to a power, entry by entry, which SGD need not do: about seventy vector "
            "instructions for each vector of entries, executed while the next entries arrive from memory."
        ),
    },
}

ENTRIES = 10_000_000
MEGABYTES = ENTRIES * 4 / 2**20
REPEATS = 15
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CASES: tuple[tuple[dict[str, Any], float], ...] = (
    ({"p": 2.0}, 1.5),
    ({"p": 2.0, "momentum": 0.9}, 1.5),
    *(({"p": p}, 1.8) for p in (1.1, 1.25, 1.3, 1.5, 1.75, 3.0)),
    *(({"p": p, "momentum": 0.9}, 1.8) for p in (1.1, 1.3)),
)
FLOAT64_CASES: tuple[dict[str, Any], ...] = ({"p": 1.1}, {"p": 1.5})
IN_CACHE = 2048  # entries whose three arrays stay in the first-level cache
ALL_OPTIONS = {"p": 1.1, "momentum": 0.9, "weight_decay": 1e-3, "normalized": True}


def measure() -> Iterator[Measure]:
    torch.manual_seed(0)
    start, gradient = 0.1 * torch.randn(ENTRIES), torch.randn(ENTRIES)
    for options, target in CASES:
        yield from _beside_sgd(_case(options), start, gradient, options, target)
    wide = start.double(), gradient.double()
    for options in FLOAT64_CASES:
        yield from _beside_sgd(f"{_case(options)}, float64", *wide, options, 1.8)
    if CLEAR.exists():
        for options in ({"p": 2.0}, {"p": 1.1}, {"p": 1.3}, ALL_OPTIONS):
            growth = _peak_growth(_optimizer(MirrorDescent, start, gradient, **options))
            what, detail = "temporary memory over the parameter's", f"{growth:.1f} MB beside {MEGABYTES:.1f} MB"
            yield Measure(_case(options), what, growth / MEGABYTES, 1.0, at_least=False, detail=detail)


def _beside_sgd(
    case: str, start: torch.Tensor, gradient: torch.Tensor, options: dict[str, Any], target: float
) -> Iterator[Measure]:
    sgd = _optimizer(torch.optim.SGD, start, gradient, momentum=0.9)
    mirror = _optimizer(MirrorDescent, start, gradient, **options)
    times = [(cpu_seconds(mirror.step), cpu_seconds(sgd.step)) for _ in range(REPEATS)]
    ours, theirs = (median(column) for column in zip(*times, strict=True))
    # neighbors in time see the same machine: the median of their ratios stands more noise than a ratio of medians
    ratio = median(mine / other for mine, other in times)
    what, detail = "times the step of SGD(momentum=0.9)", f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms"
    beside = Beside("torch.optim.SGD", ours, theirs, CPU)
    yield Measure(case, what, ratio, target, at_least=False, detail=detail, beside=beside)
    if options["p"] != 2.0 and "momentum" not in options:
        arithmetic = _in_cache(start, gradient, options["p"])
        detail = f"arithmetic {arithmetic * 1e3:.1f} ms, memory {theirs * 1e3:.1f} ms, step {ours * 1e3:.1f} ms"
        yield Measure(case, "share of the roofline", max(arithmetic, theirs) / ours, 0.85, detail=detail)


def _in_cache(start: torch.Tensor, gradient: torch.Tensor, p: float) -> float:
    """What a step would take if all arrays lay in the cache."""
    weights, given = start[:IN_CACHE].numpy().copy(), gradient[:IN_CACHE].numpy().copy()
    dual, digests = np.zeros_like(weights), np.zeros(IN_CACHE, np.uint64)
    rounds = ENTRIES // IN_CACHE

    def steps() -> None:
        for _ in range(rounds):
            mirror_step(weights, given, given, dual, digests, p, 1e-9, 0.0)

    steps()
    return min(cpu_seconds(steps) for _ in range(3)) * ENTRIES / (rounds * IN_CACHE)


def _case(options: dict[str, Any]) -> str:
    return f"{ENTRIES:.0e} parameters, {', '.join(f'{name}={value}' for name, value in options.items())}"


def _optimizer(kind: Any, start: torch.Tensor, gradient: torch.Tensor, **options: Any) -> torch.optim.Optimizer:
    """One that has made two steps: its state exists and its code is compiled."""
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = gradient
    optimizer: torch.optim.Optimizer = kind([parameter], lr=1e-6, **options)
    optimizer.step()
    optimizer.step()
    return optimizer


def _peak_growth(optimizer: torch.optim.Optimizer) -> float:
    """Megabytes by which the resident memory of the process peaks during a step, as the kernel of Linux sees it."""
    CLEAR.write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    optimizer.step()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return float(line.split()[1]) / 1024
