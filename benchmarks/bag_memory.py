"""Memory of BagClassifier on 10 000 bags of 500 instances of 64 single-precision numbers, 1.28 GB that nothing may copy.

Counted are all arrays that the fit allocates beside the data, at their peak.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

from whichtoken import BagClassifier
from whichtoken.lab.benchmark import Measure

PART = "Bags"
QUESTION = "How much memory does a fit need beyond the data itself?"

BAGS, LENGTH, DIM = 10_000, 500, 64


def measure() -> Iterator[Measure]:
    """Yield the peak of what is allocated, over the size of the data."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((BAGS, LENGTH, DIM), dtype=np.float32)
    y = np.arange(BAGS) % 2
    X[y == 1, 0, 0] += 5  # no model but attention can use one instance of 500
    tracemalloc.start()
    try:
        start = time.perf_counter()
        model = BagClassifier().fit(X, y)
        spent = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    detail = f"{peak / 1e9:.2f} GB beside {X.nbytes / 1e9:.2f} GB, {spent:.0f} s, {model.pooling_} pooling"
    yield Measure(
        f"{BAGS} x {LENGTH} x {DIM}",
        "peak allocation over the data",
        peak / X.nbytes,
        0.75,
        at_least=False,
        detail=detail,
    )
