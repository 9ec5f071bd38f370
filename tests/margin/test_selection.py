"""The vocabulary form of the prompt problem: against a cone solver, against the token form, and at its limits."""

import cvxpy
import numpy as np
import pytest
from scipy import sparse

from whichtoken.datasets import RelevantTokens
from whichtoken.margin import prompt_svm, selection_svm
from whichtoken.margin.constraints import make_graph, spanning_forest, vocabulary_constraints
from whichtoken.margin.selection import PairProblem
from whichtoken.theory.trained_embeddings.attention import selection_margin
from whichtoken.theory.trained_embeddings.lemmas import relevant_selection, rival_selections
from whichtoken.theory.trained_embeddings.one_step import ideal_first_step

PRECISE = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}


def problem(dim=40, lr=50.0, relevant=3, irrelevant=10, length=4, pairs=30, seed=0):
    rng = np.random.default_rng(seed)
    generator = RelevantTokens(length, relevant, irrelevant, equal=False)
    data = generator.sample(pairs, rng)
    E, p, v = (rng.standard_normal(shape) / np.sqrt(dim) for shape in ((generator.size, dim), dim, dim))
    return ideal_first_step(E, p, v / np.linalg.norm(v), data.counts, data.labels, lr)[0], data


def reference(embeddings, pairs, ties=()):
    p = cvxpy.Variable(embeddings.shape[1])
    conditions = [(embeddings[pairs[:, 0]] - embeddings[pairs[:, 1]]) @ p >= 1]
    conditions += [(embeddings[i] - embeddings[j]) @ p == 0 for i, j in ties]
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(p)), conditions).solve(solver=cvxpy.CLARABEL, **PRECISE)
    return p.value


@pytest.mark.parametrize("lr", [0.0, 50.0, 2000.0, 100_000.0])
@pytest.mark.parametrize("dim", [20, 40])
def test_solution_equals_that_of_a_cone_solver(dim, lr):
    embeddings, data = problem(dim, lr)
    found = selection_svm(embeddings, data.counts, relevant_selection(data.counts, data.labels))
    expected = reference(embeddings, found.pairs)
    assert found.status == "optimal"
    np.testing.assert_allclose(found.direction / found.margin, expected, atol=1e-7 * np.linalg.norm(expected))


@pytest.mark.parametrize("index", range(0, 20, 3))
def test_tied_tokens_get_equal_scores(index):
    embeddings, data = problem()
    _, tied, selection = list(rival_selections(data.counts, data.labels))[index]
    found = selection_svm(embeddings, data.counts, selection)
    ties = {tuple(row.indices[[0, k]]) for row in selection for k in range(1, row.nnz)}
    expected = reference(embeddings, found.pairs, ties)
    assert found.status == "optimal"
    assert len(tied) in (1, 9)
    np.testing.assert_allclose(found.direction / found.margin, expected, atol=1e-7 * np.linalg.norm(expected))
    np.testing.assert_allclose([(embeddings[i] - embeddings[j]) @ found.direction for i, j in ties], 0, atol=1e-10)
    rows = embeddings[found.pairs[:, 0]] - embeddings[found.pairs[:, 1]]
    equalities = np.array([embeddings[i] - embeddings[j] for i, j in sorted(ties)])
    combined = found.multipliers @ rows + found.equality_multipliers @ equalities
    assert np.linalg.norm(combined) == pytest.approx(found.dual_bound, rel=1e-9)


def test_agrees_with_the_token_form():
    embeddings, data = problem()
    selected = relevant_selection(data.counts, data.labels)
    found = selection_svm(embeddings, data.counts, selected)
    tokens = [embeddings[row.indices] for row in data.counts]
    places = [
        int(np.flatnonzero(np.isin(row.indices, chosen.indices))[0])
        for row, chosen in zip(data.counts, selected, strict=True)
    ]
    expected = prompt_svm(tokens, places)
    assert found.margin == pytest.approx(expected.margin, rel=1e-9)
    np.testing.assert_allclose(found.direction, expected.direction, atol=1e-7)


def test_all_forms_of_a_selection_are_one():
    embeddings, data = problem()
    selected = relevant_selection(data.counts, data.labels)
    by_matrix = selection_svm(embeddings, data.counts, selected)
    by_sets = selection_svm(embeddings, data.counts.toarray(), [set(row.indices.tolist()) for row in selected])
    by_index = selection_svm(embeddings, data.counts, selected.indices)
    dense = selection_svm(embeddings, data.counts, selected.toarray())
    for other in (by_sets, by_index, dense):
        np.testing.assert_array_equal(other.direction, by_matrix.direction)
        np.testing.assert_array_equal(other.pairs, by_matrix.pairs)


def test_a_tight_constraint_exists():
    embeddings, data = problem(dim=200)
    selected = relevant_selection(data.counts, data.labels)
    found = selection_svm(embeddings, data.counts, selected)
    scores = embeddings @ found.direction / found.margin
    assert selection_margin(scores, data.counts, selected) == pytest.approx(1, abs=1e-9)


def test_contradictory_demands_have_a_farkas_vector():
    embeddings = np.random.default_rng(0).standard_normal((4, 9))
    counts = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 0]])
    found = selection_svm(embeddings, counts, [0, 1, 2])
    rows = embeddings[found.pairs[:, 0]] - embeddings[found.pairs[:, 1]]
    assert found.status == "infeasible"
    assert found.direction is None
    assert found.multipliers.sum() == pytest.approx(1)
    assert np.linalg.norm(found.multipliers @ rows) <= 1e-12


def test_a_cycle_through_tied_tokens_has_a_farkas_vector():
    embeddings = np.random.default_rng(0).standard_normal((4, 9))
    counts = np.array([[1, 1, 1, 0], [1, 1, 0, 1], [0, 1, 0, 0], [1, 0, 0, 1]])
    found = selection_svm(embeddings, counts, [[0, 1], [0, 1], [1], [3]])
    rows = embeddings[found.pairs[:, 0]] - embeddings[found.pairs[:, 1]]
    combined = found.multipliers @ rows + found.equality_multipliers @ (embeddings[[0]] - embeddings[[1]])
    assert found.status == "infeasible"
    assert np.linalg.norm(combined) <= 1e-9


def test_too_few_dimensions_have_a_farkas_vector():
    embeddings, data = problem(dim=3)
    found = selection_svm(embeddings, data.counts, relevant_selection(data.counts, data.labels))
    rows = embeddings[found.pairs[:, 0]] - embeddings[found.pairs[:, 1]]
    assert found.status == "infeasible"
    assert np.linalg.norm(found.multipliers @ rows) <= 1e-9 * np.linalg.norm(rows, axis=1).max()
    assert (found.multipliers >= 0).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_one_or_two_dimensions_are_enough_for_a_ranking(dim):
    embeddings = np.arange(1.0, 6.0)[:, None] * np.eye(1, dim)
    counts, selected = np.ones((1, 5), dtype=int), [4]
    found = selection_svm(embeddings, counts, selected)
    assert found.status == "optimal"
    assert found.margin == pytest.approx(1)
    np.testing.assert_allclose(found.direction, np.eye(1, dim)[0], atol=1e-9)


def test_ties_that_leave_no_difference_have_a_farkas_vector():
    embeddings = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    counts = np.array([[1, 1, 0, 0], [1, 0, 1, 1]])  # tokens 0 and 1 tie, then 2 cannot be told from them
    found = selection_svm(embeddings, counts, [[0, 1], [2]])
    rows = embeddings[found.pairs[:, 0]] - embeddings[found.pairs[:, 1]] if found.direction is None else None
    assert found.status == "infeasible"
    combined = found.multipliers @ rows + found.equality_multipliers @ (embeddings[[0]] - embeddings[[1]])
    assert np.linalg.norm(combined) <= 1e-9


def test_tokens_with_equal_embeddings_are_one():
    embeddings, data = problem()
    doubled = np.vstack([embeddings, embeddings[:1]])  # a second name for token 0, used in every other sequence
    counts = sparse.hstack([data.counts, sparse.csr_array((len(data), 1), dtype=np.int32)]).tolil()
    for row in range(0, len(data), 2):
        counts[row, len(embeddings)], counts[row, 0] = counts[row, 0], 0
    selected = relevant_selection(data.counts, data.labels)
    renamed = [
        [len(embeddings) if token == 0 and row % 2 == 0 else token for token in chosen.indices]
        for row, chosen in enumerate(selected)
    ]
    found = selection_svm(doubled, sparse.csr_array(counts.tocsr()), renamed)
    expected = selection_svm(embeddings, data.counts, selected)
    assert found.margin == pytest.approx(expected.margin, rel=1e-9)


def test_complete_and_general_search_find_the_same_worst_pairs():
    rng = np.random.default_rng(0)
    first, second = (x.ravel() for x in np.meshgrid(np.arange(3), np.arange(3, 8), indexing="ij"))
    gram = np.eye(8)
    scores = rng.standard_normal(8)
    whole, worst = PairProblem(gram, first, second).most_violated(scores, 0.0)
    kept = np.arange(len(first)) != np.argmin(scores[second] - scores[first])  # one pair fewer: no longer complete
    part, also = PairProblem(gram, first[kept], second[kept]).most_violated(scores, 0.0)
    assert worst == also
    assert {(int(first[k]), int(second[k])) for k in whole} >= {
        (int(first[kept][k]), int(second[kept][k])) for k in part
    }


def test_graphs_have_the_indices_that_every_scipy_reads():
    graph = make_graph(np.array([[0, 4], [3, 1]], dtype=np.int64), 5)
    assert (graph.indices.dtype, graph.indptr.dtype) == (np.int32, np.int32)


def test_spanning_forest_prefers_large_weights():
    pairs = np.array([[0, 1], [0, 2], [1, 2], [3, 4]])
    np.testing.assert_array_equal(spanning_forest(pairs, 5, np.array([1.0, 3.0, 2.0, 0.0])), [1, 2, 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": np.ones((2, 3))}, "one row per token"),
        ({"embeddings": np.full((3, 3), np.nan)}, "finite"),
        ({"selected": [0]}, "1 entries for 2 sequences"),
        ({"selected": [2, 1]}, r"selected\[0\] names token 2, which sequence 0 does not contain"),
        ({"selected": [[], 1]}, r"selected\[0\] is empty"),
        ({"selected": [0.5, 1.0]}, "must be a token index"),
        ({"selected": [[0, 1], [1, 2]]}, "nothing to separate"),
        ({"counts": [[1, -1, 0], [0, 1, 1]]}, "less than 0"),
    ],
)
def test_refuses_what_makes_no_sense(change, message):
    given = {"embeddings": np.eye(3), "counts": np.array([[1, 1, 0], [0, 1, 1]]), "selected": [0, 1]} | change
    with pytest.raises(ValueError, match=message):
        selection_svm(**given)


def test_says_how_much_memory_is_missing(monkeypatch):
    monkeypatch.setattr("whichtoken.machine.available_memory", lambda: 1000)
    embeddings, data = problem()
    with pytest.raises(ValueError, match="max-margin problem of 16 tokens"):
        selection_svm(embeddings, data.counts, relevant_selection(data.counts, data.labels))


def test_pairs_are_distinct_and_sorted():
    embeddings, data = problem(pairs=200)
    constraints = vocabulary_constraints(embeddings, data.counts, relevant_selection(data.counts, data.labels))
    codes = constraints.pairs @ [len(embeddings), 1]
    assert (np.diff(codes) > 0).all()
    assert len(codes) <= 6 * 10
