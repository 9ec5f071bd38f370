"""The prompt problem beside a quadratic program in cvxpy, solved by Clarabel.

Tokens are standard normal. Selected tokens are those that a planted prompt likes best, so that a solution exists, or random
ones, so that none does and both sides have to prove it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np

from whichtoken.lab.benchmark import Measure, speed_up
from whichtoken.margin import MarginCertificate, prompt_svm

PART = "Max-margin problems"
QUESTION = "How fast is the limit of a trained prompt found, or proven not to exist?"
WHY = {
    "cvxpy + Clarabel": {
        "win": (
            "Few tokens compete for the margin: whichtoken solves for a handful of rows at a time and certifies the result on "
            "all of them, while a general cone solver factorizes all rows at once."
        ),
    },
}

SIZES = ((100, 20, 100), (200, 50, 200))  # sequences, tokens, dimension


def measure() -> Iterator[Measure]:
    for sequences, length, dim in SIZES:
        rng = np.random.default_rng(0)
        tokens = rng.standard_normal((sequences, length, dim))
        planted = (tokens @ rng.standard_normal(dim)).argmax(axis=1)
        yield from _feasible(f"n={sequences} T={length} d={dim}", tokens, planted)
        arbitrary = rng.integers(0, length, sequences)
        yield from _infeasible(f"n={sequences} T={length} d={dim} no solution", tokens, arbitrary)


def _feasible(case: str, tokens: np.ndarray, selected: np.ndarray) -> Iterator[Measure]:
    ours: list[MarginCertificate] = []
    peer: list[float] = []
    yield speed_up(
        case,
        lambda: ours.append(prompt_svm(tokens, selected)),
        lambda: peer.append(_clarabel(tokens, selected)),
        "cvxpy + Clarabel",
        target=50,
        repeats=1,
    )
    yield Measure(case, "duality gap", ours[-1].gap, 1e-8, at_least=False)
    difference = abs(ours[-1].margin / peer[-1] - 1)
    yield Measure(case, "relative difference of the margins", difference, 1e-6, at_least=False)


def _infeasible(case: str, tokens: np.ndarray, selected: np.ndarray) -> Iterator[Measure]:
    ours: list[MarginCertificate] = []
    yield speed_up(
        case,
        lambda: ours.append(prompt_svm(tokens, selected)),
        lambda: _clarabel(tokens, selected),
        "cvxpy + Clarabel",
        target=30,
        repeats=1,
    )
    rows = _rows(tokens, selected)
    residual = np.linalg.norm(ours[-1].multipliers @ rows) / np.linalg.norm(rows, axis=1).max()
    detail = f"status {ours[-1].status}"
    yield Measure(case, "length of the Farkas combination", float(residual), 1e-9, at_least=False, detail=detail)


def _rows(tokens: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Selected minus unselected token, (n (T - 1), d)."""
    sequence = np.arange(len(tokens))
    keep = np.ones(tokens.shape[:2], dtype=bool)
    keep[sequence, selected] = False
    rows: np.ndarray = (tokens[sequence, selected][:, None] - tokens)[keep]
    return rows


def _clarabel(tokens: np.ndarray, selected: np.ndarray) -> float:
    """Margin of the program as a user writes it, 0 if it is infeasible."""
    cvxpy = import_module("cvxpy")  # untyped in places

    weights = cvxpy.Variable(tokens.shape[2])
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(weights)), [_rows(tokens, selected) @ weights >= 1])
    problem.solve(solver=cvxpy.CLARABEL)
    return 0.0 if weights.value is None else float(1 / np.linalg.norm(weights.value))
