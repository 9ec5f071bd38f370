"""First contact: what a newcomer's commands cost in processor time, each in a process of its own, and what is installed.

Processor time of the command and of all processes that it starts, which hardly depends on what else the machine does. `make test`
has a goal of 540 s and is measured by hand, in a fresh clone: tests of processes need the environment of a shell.
"""

from __future__ import annotations

import csv
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from statistics import median

import numpy as np

from whichtoken.datasets.corpora import read_movie_reviews
from whichtoken.errors import UsageError
from whichtoken.lab.benchmark import CPU, Measure

PART = "The program itself"
QUESTION = "How long does a newcomer wait, and how much has to be installed?"

TEXTS = 3000
SENTENCE = "An effective but dull film that never comes alive at all."


def measure() -> Iterator[Measure]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        yield _row("--help", 0.3, ["--help"], folder, repeats=7)
        yield _row("list", 0.5, ["list"], folder, repeats=7)
        table = _short_texts(folder)
        fit = ["fit", "text", str(table), "--model", "model"]
        cold = [_cpu_seconds(fit, folder, f"kernels-{number}") for number in range(3)]
        case = f"fit text, {TEXTS} short texts"
        yield Measure(case, f"{CPU}, cold kernels", median(cold), 8.0, at_least=False)
        yield _row(case, 4.0, fit, folder, repeats=3)
        yield _row("explain MODEL 'a sentence'", 1.0, ["explain", "model", SENTENCE], folder, repeats=7)
        yield _row("report --record", 10.0, ["report", "--record"], folder, repeats=1)
        demo = _cpu_seconds(["demo", "--out", "demo"], folder, "kernels-demo")
        yield Measure("demo", f"{CPU}, cold kernels", demo, 120.0, at_least=False)
    yield Measure("the base package", "GB installed, without torch", _installed_bytes() / 1e9, 0.9, at_least=False)


def _row(case: str, goal: float, arguments: list[str], folder: Path, repeats: int) -> Measure:
    _cpu_seconds(arguments, folder)
    found = median(_cpu_seconds(arguments, folder) for _ in range(repeats))
    return Measure(case, f"{CPU}, warm", found, goal, at_least=False)


def _cpu_seconds(arguments: list[str], folder: Path, kernels: str = "kernels-0") -> float:
    """Processor time of one command, and of the processes that it waited for."""
    command = [sys.executable, "-P", "-m", "whichtoken", *arguments]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "NUMBA_CACHE_DIR": str(folder / kernels)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode:
        raise UsageError(f"{' '.join(command)} failed: {(done.stdout + done.stderr)[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _short_texts(folder: Path) -> Path:
    """Sentences about films and whether they praise it, as a user's table has them."""
    reviews = read_movie_reviews("rotten_tomatoes")
    chosen = np.random.default_rng(0).permutation(len(reviews.texts))[:TEXTS]
    path = folder / "texts.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows((reviews.texts[row], int(reviews.labels[row])) for row in chosen)
    return path


def _installed_bytes() -> int:
    """Files of this package and of all that it needs here; torch is an extra."""
    sizes: dict[str, int] = {}
    waiting = ["whichtoken"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in sizes or name == "torch":
            continue
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # needed on other machines only
            continue
        files = (Path(str(found.locate_file(file))) for file in found.files or ())
        sizes[name] = sum(path.stat().st_size for path in files if path.is_file())
        waiting += [
            match[0]
            for text in found.requires or ()
            if "extra ==" not in text and (match := re.match(r"[\w.-]+", text))
        ]
    return sum(sizes.values())
