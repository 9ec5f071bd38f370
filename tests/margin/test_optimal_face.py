"""How many best directions there are, where that can be said in advance."""

import numpy as np
import pytest

from whichtoken.margin import key_query_svm, prompt_svm
from whichtoken.margin.constraints import Solution, selection_constraints
from whichtoken.margin.extreme import minimal_entry_norm, simplex_solutions


def demands(*rows):
    """Sequences of two tokens, the first of which is to be selected, with the given differences."""
    return np.array([[row, np.zeros(len(row))] for row in rows]), [0] * len(rows)


@pytest.mark.parametrize(
    ("p", "rows", "dimension"),
    [
        (1, [(1.0, 0.5, 0.2)], 0),
        (1, [(1.0, 1.0, 0.2)], 1),  # whatever the first two entries share between them
        (1, [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], 2),
        (1, [(2.0, 1.0, 0.0), (0.0, 1.0, 2.0)], 1),  # of the vertices (1, 0, 1) / 2 and (0, 1, 0)
        (np.inf, [(1.0, 0.5, 0.2)], 0),
        (np.inf, [(1.0, 0.0, 0.0)], 2),  # the other two entries are free
        (np.inf, [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)], 1),
        (2, [(1.0, 0.0, 0.0)], 0),
        (1.1, [(1.0, 1.0, 1.0)], 0),
    ],
    ids=str,
)
def test_dimension_of_the_best_directions_of_a_prompt(p, rows, dimension):
    certificate = prompt_svm(*demands(*rows), p)
    assert certificate.face_dimension == dimension
    assert certificate.unique == (dimension == 0)


def test_without_a_best_direction_there_is_no_face():
    certificate = prompt_svm(*demands((1.0, 0.0), (-1.0, 0.0)), 1)
    assert certificate.status == "infeasible"
    assert certificate.face_dimension is certificate.unique is None


@pytest.mark.parametrize("p", [1.0, np.inf])
@pytest.mark.parametrize("seed", range(3))
def test_a_unique_solution_is_the_vertex_of_the_simplex_method(p, seed):
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((8, 6, 7)), rng.standard_normal((8, 7))
    selected = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((7, 7)), queries).argmax(axis=1)
    certificate = key_query_svm(tokens, queries, selected, p)
    rows, _ = selection_constraints(tokens, queries, selected, 1.0).normalize()
    (vertex,) = simplex_solutions(rows, p)
    weights = vertex.weights / np.linalg.norm(vertex.weights, p)
    assert certificate.unique
    assert certificate.gap <= 1e-12
    np.testing.assert_allclose(certificate.direction.ravel(), weights, atol=1e-9)
    np.testing.assert_array_equal(certificate.direction.ravel() == 0, weights == 0)


@pytest.mark.parametrize("p", [1.0, np.inf])
def test_weights_that_separate_nothing_are_a_start_too(p):
    tokens, selected = demands((1.0, 0.2, 0.0), (0.2, -1.0, 0.3))
    rows, _ = selection_constraints(tokens, None, selected, 1.0).normalize()
    found = minimal_entry_norm(rows, Solution(np.array([-1.0, 1.0, 0.1]), np.ones(2)), p)
    best = prompt_svm(tokens, selected, p)
    np.testing.assert_allclose(found.weights / np.linalg.norm(found.weights, p), best.direction, atol=1e-6)
