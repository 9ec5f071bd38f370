"""Time and memory of estimators, solvers and reports at n, 4 n and 16 n, with the exponent that fits them.

An exponent of 1 means that four times the data take four times as long. Times are processor time, the faster of two runs;
memory is the peak of what Python and numpy allocate. Data are synthetic and of one kind at all sizes.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.lab.benchmark import Cases, Measure, cpu_seconds

PART = "The program itself"
QUESTION = "How do time and memory grow with the data?"

FACTORS = (1, 4, 16)
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """What is done, to how many of what at the smallest size, and the largest exponents that are all right."""

    name: str
    unit: str
    smallest: int
    prepare: Callable[[int], Work]
    time: float = 1.15
    memory: float = 1.1


def texts(count: int) -> tuple[list[str], list[int]]:
    """Documents of 60 words; each label has ten words that it prefers."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{''.join(chr(97 + int(digit)) for digit in str(number))}" for number in range(3000)])
    shares = 1 / np.arange(10, 3010)
    labels = rng.integers(0, 2, count)
    drawn = rng.choice(3000, (count, 60), p=shares / shares.sum())
    drawn[:, :3] = 10 * labels[:, None] + rng.integers(0, 10, (count, 3))
    return [" ".join(row) for row in words[drawn]], labels.tolist()


def fit_text(count: int) -> Work:
    from whichtoken import TextClassifier

    documents, labels = texts(count)
    return lambda: TextClassifier(random_state=0).fit(documents, labels)


def explain_text(count: int) -> Work:
    from whichtoken import TextClassifier

    documents, labels = texts(max(count, 400))
    model = TextClassifier(random_state=0).fit(documents[:400], labels[:400])
    return lambda: [explanation._repr_html_() for explanation in model.explain(documents[:count])]


def fit_bags(bags: int, instances: int) -> Work:
    from whichtoken import BagClassifier

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, bags)
    X = rng.standard_normal((bags, instances, 8))
    X[:, 0, 0] += 3 * labels
    return lambda: BagClassifier(instance_map="linear", random_state=0).fit(list(X), labels)


def fit_groups(count: int) -> Work:
    from whichtoken import GroupClassifier

    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, 24))
    y = X[:, :4].sum(axis=1) + rng.standard_normal(count) > 0
    return lambda: GroupClassifier(np.repeat(np.arange(6), 4), random_state=0).fit(X, y)


def fit_regression(count: int) -> Work:
    from whichtoken import AttentionRegressor

    X = np.random.default_rng(0).standard_normal((count, 5))
    return lambda: AttentionRegressor(random_state=0).fit(X, X @ np.arange(5.0))


def planted(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sequences of 8 tokens in 24 dimensions, each with the token that a planted matrix likes best."""
    rng = np.random.default_rng(0)
    tokens, queries, matrix = (rng.standard_normal(shape) for shape in ((count, 8, 24), (count, 24), (24, 24)))
    return tokens, queries, np.einsum("ntd,de,ne->nt", tokens, matrix, queries).argmax(axis=1)


def solve_margin(count: int, p: float, norm: str) -> Work:
    from whichtoken.margin import key_query_svm

    problem = planted(count)
    return lambda: key_query_svm(*problem, p, norm=norm)


def descend(count: int) -> Work:
    from whichtoken.datasets import AttentionTokens
    from whichtoken.flows import attention_descent

    problem = AttentionTokens(sequences=count, dim=10).sample(np.random.default_rng(0))
    return lambda: attention_descent(problem, np.zeros((10, 10)), p=1.75, lr=0.1, steps=300)


def train_cls(count: int) -> Work:
    from whichtoken.datasets import LevelTokens
    from whichtoken.theory.trained_embeddings.cls_model import ClsAttention, count_matrix
    from whichtoken.theory.trained_embeddings.cls_training import ClsAdamW
    from whichtoken.theory.trained_embeddings.training_loop import TrainingPlan

    data = LevelTokens(length=64).sample(count, np.random.default_rng(0))
    size, order = data.counts.shape[1], np.random.default_rng(0).permutation(count)

    def train() -> None:
        model = ClsAttention.start(size, 64, np.random.default_rng(0))
        ClsAdamW(model, count_matrix(data.counts, size), data.labels, TrainingPlan(lr=1e-3)).epoch(order, 1e-3)

    return train


CASES = (
    Case("TextClassifier.fit", "documents", 1000, fit_text),
    Case("TextClassifier.explain, as pages", "documents", 25, explain_text),
    Case("BagClassifier.fit", "bags of 10", 400, lambda count: fit_bags(count, 10)),
    Case("BagClassifier.fit", "instances in each of 60 bags", 100, lambda count: fit_bags(60, count)),
    # from more rows than features on: fewer are reduced to products of rows, which takes less memory
    Case("GroupClassifier.fit", "rows", 600, fit_groups),
    Case("AttentionRegressor.fit", "tokens", 100, fit_regression, time=2.1, memory=2.1),
    Case("key_query_svm, p = 2", "sequences", 10, lambda count: solve_margin(count, 2.0, "entrywise"), time=1.5),
    Case(
        "key_query_svm, p = 1.5",
        "sequences",
        10,
        lambda count: solve_margin(count, 1.5, "entrywise"),
        time=1.5,
        memory=2,
    ),
    Case(
        "key_query_svm, nuclear", "sequences", 5, lambda count: solve_margin(count, 1.0, "schatten"), time=1.5, memory=2
    ),
    Case("attention_descent, 300 steps", "sequences", 6, descend),
    Case("an epoch of <cls> attention", "documents", 500, train_cls),
)


def measure(wanted: Cases) -> Iterator[Measure]:
    """Yield both exponents of every case."""
    for case in CASES:
        if not wanted(f"{case.name}: {case.unit}"):
            continue
        sizes = [factor * case.smallest for factor in FACTORS]
        times, peaks = [], []
        for size in sizes:
            work = case.prepare(size)
            work()  # compilation
            times.append(min(cpu_seconds(work) for _ in range(2)))
            peaks.append(peak_bytes(work))
        counted = f"{', '.join(map(str, sizes))} {case.unit}"
        for what, unit, values, target in (("time", "s", times, case.time), ("memory", "MB", peaks, case.memory)):
            detail = f"{', '.join(f'{value:.3g}' for value in values)} {unit} for {counted}"
            slope = exponent(sizes, values)
            yield Measure(
                f"{case.name}: {case.unit}", f"exponent of {what}", slope, target, at_least=False, detail=detail
            )


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of the line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def peak_bytes(work: Work) -> float:
    """Megabytes that Python and numpy hold at most at once, beyond what they held before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def calls(work: Work) -> int:
    """How many functions Python calls, which does not depend on the machine."""
    count = 0

    def tally(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
