"""Memory of TextClassifier on a million documents of 100 words, streamed: the texts are never all in memory.

Two ways in: a generator given to `fit`, and `whichtoken fit text` on a file of JSON lines, which also fits the usual bag of
words and tries both on a quarter of the rows. Counted is the largest resident size of a process of its own, Python and all
libraries included. Words follow Zipf's law; every tenth has a twin, and how often it gives way to the twin is the signal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from whichtoken import TextClassifier
from whichtoken.lab.benchmark import Measure

PART = "Texts"
QUESTION = "Do a million documents fit into the memory of a laptop?"

DOCUMENTS, LENGTH, WORDS = 1_000_000, 100, 50_000
LIMIT = 4.0  # GB


def measure(documents: int = DOCUMENTS) -> Iterator[Measure]:
    """Yield the peak memory of both ways."""
    case = f"{documents} documents of {LENGTH} words, {WORDS} distinct"
    with TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.json"
        yield _peak(case, "fit on a generator", [__file__, str(documents), str(metrics)], metrics)
        table = Path(folder) / "documents.jsonl"
        with table.open("w") as file:
            file.writelines(json.dumps({"text": text, "label": label}) + "\n" for text, label in generate(documents, 0))
        model = str(Path(folder) / "model")
        command = ["-m", "whichtoken", "fit", "text", str(table), "--model", model, "--json", str(metrics)]
        yield _peak(case, "whichtoken fit text", command, metrics)


def generate(documents: int, seed: int, length: int = LENGTH) -> Iterator[tuple[str, int]]:
    """Documents and their labels, 0 or 1."""
    rng = np.random.default_rng(seed)
    names = np.array([_name(rank) for rank in range(WORDS + 1)], dtype=object)
    shares = np.cumsum(1 / np.arange(1, WORDS + 1))
    for start in range(0, documents, 1000):
        labels = rng.integers(2, size=min(1000, documents - start))
        ranks = np.searchsorted(shares, shares[-1] * rng.random((len(labels), length)))
        ranks += (ranks % 10 == 0) & (rng.random(ranks.shape) < 0.4 + 0.2 * labels[:, None])
        yield from zip(map(" ".join, names[ranks]), labels.tolist(), strict=True)


def _name(rank: int) -> str:
    """Letters for a number, short for frequent words."""
    letters = ""
    while rank or not letters:
        rank, digit = divmod(rank, 20)
        letters += "bcdfghjklmnpqrstvwxz"[digit] + "aeiou"[digit % 5]
    return letters


def _peak(case: str, what: str, command: list[str], metrics: Path) -> Measure:
    start = time.perf_counter()
    # -P: the benchmark `inspect` must not stand in for Python's module
    process = subprocess.Popen([sys.executable, "-P", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)  # not process.wait: only this says what the process used
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise RuntimeError(f"{what} ended with exit code {process.returncode}")
    found: dict[str, Any] = json.loads(metrics.read_text())["ours"]
    spent = f"{time.perf_counter() - start:.0f} s ({usage.ru_utime + usage.ru_stime:.0f} s of CPU time) in all"
    detail = f"accuracy {found['accuracy']:.4f}; our fit {found['seconds']:.0f} s, {spent}"
    return Measure(case, f"GB at the peak, {what}", usage.ru_maxrss * 1024 / 1e9, LIMIT, at_least=False, detail=detail)


def fit_stream(documents: int, metrics: Path) -> None:
    """Fit on a generator; labels are noted while the texts are read."""
    labels: list[int] = []

    def texts() -> Iterator[str]:
        for text, label in generate(documents, 0):
            labels.append(label)
            yield text

    start = time.perf_counter()
    model = TextClassifier(random_state=0).fit(texts(), labels)
    seconds = time.perf_counter() - start
    fresh, truth = zip(*generate(10_000, 1), strict=True)
    metrics.write_text(json.dumps({"ours": {"seconds": seconds, "accuracy": model.score(list(fresh), truth)}}))


if __name__ == "__main__":
    fit_stream(int(sys.argv[1]), Path(sys.argv[2]))
