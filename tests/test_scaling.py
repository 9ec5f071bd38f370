"""Work that grows faster than it did is found by counting, not by a clock."""

import math
import runpy
from collections import Counter

import pytest

from whichtoken.lab.benchmark import benchmark_files
from whichtoken.margin import euclidean, extreme, interior

scaling = runpy.run_path(str(benchmark_files()["scaling"]))
# Limits are exponents that the structure implies, plus this: between n and 4 n a factor of 1.15, between 10 and 160 one of 1.32.
SLACK = 0.1
QUICK = ("attention_descent", "key_query_svm", "TextClassifier.explain")


def growth(count, work):
    """Exponent between n and 4 n."""
    return math.log(count(work(4)) / count(work(1)), 4)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.name.startswith(QUICK) else pytest.mark.slow, id=case.name)
        for case in scaling["CASES"]
    ],
)
def test_calls_and_memory_grow_no_faster_than_the_data(case):
    work = {factor: case.prepare(factor * case.smallest) for factor in (1, 4)}
    for each in work.values():
        each()  # what is compiled or imported once is not counted
    # one call for each of the data at most; arrays as long as the data, or as long as all pairs of them
    assert growth(scaling["calls"], work.get) <= 1 + SLACK
    assert growth(scaling["peak_bytes"], work.get) <= (2 if case.memory >= 2 else 1) + SLACK


@pytest.mark.parametrize(("p", "norm"), [(2.0, "entrywise"), (1.5, "entrywise"), (1.0, "schatten")])
def test_factorizations_of_a_margin_do_not_become_more_with_more_sequences(p, norm, monkeypatch):
    """Cubes of the sizes of Cholesky factors, from 10 to 160 sequences: n^3 for a fixed number of them with all rows."""
    operations = Counter()
    for module in (euclidean, interior, extreme):

        def counted(matrix, ridge, original=module.cholesky):
            operations["all"] += len(matrix) ** 3
            return original(matrix, ridge)

        monkeypatch.setattr(module, "cholesky", counted)
    found = []
    for sequences in (10, 160):
        operations.clear()
        scaling["solve_margin"](sequences, p, norm)()
        found.append(operations["all"])
    assert math.log(found[1] / found[0], 16) <= 3 + SLACK, found
