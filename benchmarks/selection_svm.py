"""The max-margin problem of a `<cls>` vector over a vocabulary, beside a quadratic program in cvxpy, solved by Clarabel.

Sequences have one relevant token each; embeddings are random and have made the ideal first step. The small case is compared
with the peer, the large ones only have to be solved: cvxpy would need the difference of every pair written out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module

import numpy as np

from whichtoken.datasets import RelevantTokens, TokenCounts
from whichtoken.lab.benchmark import Measure, speed_up
from whichtoken.margin import MarginCertificate, selection_svm
from whichtoken.theory.trained_embeddings.lemmas import relevant_selection
from whichtoken.theory.trained_embeddings.one_step import ideal_first_step

PART = "Max-margin problems"
QUESTION = "How fast is the limit of a `<cls>` vector found over a vocabulary?"
WHY = {
    "cvxpy + Clarabel": {
        "win": (
            "Dual ascent finds the few tight pairs, which are then solved exactly; the cone solver gets every pair written "
            "out."
        ),
    },
}

# relevant tokens of each label, irrelevant tokens, length, pairs of sequences, dimension
SMALL = (8, 104, 16, 200, 256)
LARGE = ((40, 1920, 64, 2000, 2048), (40, 1920, 32, 4000, 2048))
FIRST_STEP = 50.0


def measure() -> Iterator[Measure]:
    embeddings, data = _problem(*SMALL)
    selected = relevant_selection(data.counts, data.labels)
    ours: list[MarginCertificate] = []
    peer: list[np.ndarray] = []
    case = f"|S|={len(embeddings)} n={len(data)}"
    yield speed_up(
        case,
        lambda: ours.append(selection_svm(embeddings, data.counts, selected)),
        lambda: peer.append(_clarabel(embeddings, ours[0].pairs)),
        "cvxpy + Clarabel",
        target=20,
        repeats=3,
    )
    assert ours[0].direction is not None
    difference = np.linalg.norm(ours[0].direction / ours[0].margin - peer[0]) / np.linalg.norm(peer[0])
    yield Measure(case, "relative difference of the solutions", float(difference), 1e-7, at_least=False)
    for sizes in LARGE:
        yield from _large(*sizes)


def _large(relevant: int, irrelevant: int, length: int, pairs: int, dim: int) -> Iterator[Measure]:
    embeddings, data = _problem(relevant, irrelevant, length, pairs, dim)
    selected = relevant_selection(data.counts, data.labels)
    wall, cpu = time.perf_counter(), time.process_time()
    found = selection_svm(embeddings, data.counts, selected)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    case = f"|S|={len(embeddings)} n={len(data)} pairs={len(found.pairs)}"
    yield Measure(case, "seconds", wall, 10, at_least=False, detail=f"{cpu:.2f} s of CPU")
    yield Measure(case, "duality gap", found.gap, 1e-8, at_least=False, detail=f"status {found.status}")


def _problem(relevant: int, irrelevant: int, length: int, pairs: int, dim: int) -> tuple[np.ndarray, TokenCounts]:
    rng = np.random.default_rng(0)
    generator = RelevantTokens(length, relevant, irrelevant)
    data = generator.sample(pairs, rng)
    E, p, v = (rng.standard_normal(shape) / np.sqrt(dim) for shape in ((generator.size, dim), dim, dim))
    return ideal_first_step(E, p, v / np.linalg.norm(v), data.counts, data.labels, FIRST_STEP)[0], data


def _clarabel(embeddings: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The program as a user writes it, with tolerances as tight as the comparison needs."""
    cvxpy = import_module("cvxpy")  # untyped in places

    p = cvxpy.Variable(embeddings.shape[1])
    demands = (embeddings[pairs[:, 0]] - embeddings[pairs[:, 1]]) @ p >= 1
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(p)), [demands])
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    solution: np.ndarray = p.value
    return solution
