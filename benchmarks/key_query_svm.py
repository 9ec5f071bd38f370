"""The key-query problem for several p beside `cvxpy.pnorm`, which Clarabel solves with power cones.

Tokens and queries are standard normal; selected tokens are those that a planted matrix likes best.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np

from whichtoken.lab.benchmark import Measure, speed_up
from whichtoken.margin import MarginCertificate, key_query_svm

PART = "Max-margin problems"
QUESTION = "How fast is the limit of a key-query matrix found in l_p norms?"
WHY = {
    "cvxpy + Clarabel": {
        "win": (
            "The constraints are rank-one matrices and few of them are tight, which whichtoken's interior-point method "
            "exploits; cvxpy adds a power cone for every entry of the matrix."
        ),
    },
}

SEQUENCES, LENGTH, DIM = 40, 12, 40
EXPONENTS = (1.1, 1.75, 2.0, 3.0)


def measure() -> Iterator[Measure]:
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((SEQUENCES, LENGTH, DIM))
    queries = rng.standard_normal((SEQUENCES, DIM))
    selected = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((DIM, DIM)), queries).argmax(axis=1)
    for p in EXPONENTS:
        yield from _compare(tokens, queries, selected, p)


def _compare(tokens: np.ndarray, queries: np.ndarray, selected: np.ndarray, p: float) -> Iterator[Measure]:
    case = f"n={SEQUENCES} T={LENGTH} d={DIM} p={p:g}"
    ours: list[MarginCertificate] = []
    peer: list[float] = []
    yield speed_up(
        case,
        lambda: ours.append(key_query_svm(tokens, queries, selected, p)),
        lambda: peer.append(_clarabel(tokens, queries, selected, p)),
        "cvxpy + Clarabel",
        target=100,
        repeats=1,
    )
    yield Measure(case, "duality gap", ours[-1].gap, 1e-6, at_least=False)
    difference = abs(1 / ours[-1].margin / peer[-1] - 1)
    yield Measure(case, "relative difference of the objectives", difference, 1e-6, at_least=False)


def _clarabel(tokens: np.ndarray, queries: np.ndarray, selected: np.ndarray, p: float) -> float:
    """Smallest l_p norm, from the program as a user writes it; for p = 2 from the faster quadratic one."""
    cvxpy = import_module("cvxpy")  # untyped in places

    sequence = np.arange(len(tokens))
    keep = np.ones(tokens.shape[:2], dtype=bool)
    keep[sequence, selected] = False
    differences = tokens[sequence, selected][:, None] - tokens  # (n, T, d)
    rows = np.einsum("ntd,ne->ntde", differences, queries)[keep].reshape(-1, tokens.shape[2] * queries.shape[1])
    weights = cvxpy.Variable(rows.shape[1])
    objective = cvxpy.sum_squares(weights) if p == 2 else cvxpy.pnorm(weights, p)
    cvxpy.Problem(cvxpy.Minimize(objective), [rows @ weights >= 1]).solve(solver=cvxpy.CLARABEL)
    return float(np.linalg.norm(weights.value, p))
