import cvxpy
import numpy as np
import pytest

from whichtoken.margin import key_query_svm, prompt_svm

PRECISE = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
# two sequences on which joint training is illustrated in arXiv 2410.14581; queries are the first tokens
PLANE = np.array([[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]])


def planted(sequences: int, length: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((sequences, length, dim)), rng.standard_normal((sequences, dim))
    scores = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((dim, dim)), queries)
    return tokens, queries, scores.argmax(axis=1)


@pytest.mark.parametrize("p", [1, 1.1, 1.75, 2, 3, np.inf])
def test_norm_and_direction_equal_those_of_a_cone_solver(p):
    tokens, queries, selected = planted(4, 4, 4)
    matrix = cvxpy.Variable((4, 4))
    conditions = [
        (x[s] - x[t]) @ matrix @ z >= 1
        for x, z, s in zip(tokens, queries, selected, strict=True)
        for t in range(4)
        if t != s
    ]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.pnorm(cvxpy.vec(matrix, order="C"), p)), conditions)
    problem.solve(solver=cvxpy.CLARABEL, **PRECISE)
    certificate = key_query_svm(tokens, queries, selected, p)
    assert certificate.status == "optimal"
    assert 1 / certificate.margin == pytest.approx(problem.value, rel=1e-7)
    if 1 < p < np.inf:  # at the ends the minimizer need not be unique
        np.testing.assert_allclose(certificate.direction, matrix.value / problem.value, atol=1e-4)


@pytest.mark.parametrize(
    ("p", "selected", "direction"),
    [
        (1.75, (1, 0), (-0.3221, -0.2471, -0.3059, 0.7817)),
        (2.0, (1, 0), (-0.3554, -0.2859, -0.3364, 0.8239)),
        (3.0, (0, 0), (0.5225, -0.1536, -0.3171, 0.9367)),
    ],
)
def test_limits_of_joint_mirror_descent_in_the_plane(p, selected, direction):
    certificate = key_query_svm(PLANE, PLANE[:, 0], selected, p)
    np.testing.assert_allclose(certificate.direction.ravel(), direction, atol=1e-4)


@pytest.mark.parametrize("p", [1, 1.3, 2, 4, np.inf])
def test_equal_queries_along_an_axis_reduce_to_the_prompt_problem(p):
    tokens, _, _ = planted(5, 4, 6, seed=1)
    selected = (tokens @ np.arange(1.0, 7.0)).argmax(axis=1)
    queries = np.zeros((5, 6))
    queries[:, 2] = 2.0
    matrix, vector = key_query_svm(tokens, queries, selected, p), prompt_svm(tokens, selected, p)
    assert matrix.margin == pytest.approx(2 * vector.margin, rel=1e-8)
    if 1 < p < np.inf:
        np.testing.assert_allclose(matrix.direction[:, 2], vector.direction, atol=1e-7)
        np.testing.assert_allclose(np.delete(matrix.direction, 2, axis=1), 0, atol=1e-7)


@pytest.mark.parametrize("p", [1.05, 1.1, 1.75, 3, 10])
def test_a_size_that_is_never_written_out_satisfies_the_optimality_conditions(p):
    tokens, queries, selected = planted(20, 10, 30, seed=2)
    certificate = key_query_svm(tokens, queries, selected, p)
    assert certificate.gap <= 1e-11
    matrix = np.sign(certificate.direction) * np.abs(certificate.direction) ** (p - 1)
    combined = np.zeros((30, 30))
    for (i, t), multiplier in zip(certificate.pairs, certificate.multipliers, strict=True):
        combined += multiplier * np.outer(tokens[i, selected[i]] - tokens[i, t], queries[i])
    np.testing.assert_allclose(matrix, combined / certificate.dual_bound, atol=1e-6)
    assert 0 < len(certificate.support) < len(certificate.multipliers)


def test_a_zero_query_makes_the_problem_infeasible_and_is_the_proof():
    tokens, queries, selected = planted(3, 4, 5, seed=3)
    queries[1] = 0.0
    certificate = key_query_svm(tokens, queries, selected)
    assert certificate.status == "infeasible"
    assert set(certificate.pairs[certificate.support, 0]) == {1}
    assert key_query_svm(tokens, queries, selected, rhs=[1.0, 0.0, 1.0]).status == "optimal"


def test_weights_get_sparser_as_p_falls():
    """Effective number of entries (sum |w|)^2 / sum w^2, d^2 = 100: about 10, 15, 54, 64, 81 for p = 1, 1.1, 1.75, 2, 3."""
    effective = []
    for p in (1, 1.1, 1.75, 2, 3):
        values = []
        for seed in range(4):
            tokens, queries, selected = planted(6, 8, 10, seed)
            weights = np.abs(key_query_svm(tokens, queries, selected, p).direction)
            values.append(weights.sum() ** 2 / np.sum(weights**2))
        effective.append(np.mean(values))
    assert effective == sorted(effective)
    np.testing.assert_allclose(effective, [10.2, 15.3, 54.2, 63.5, 81.3], rtol=0.3)


@pytest.mark.parametrize("scale", [1e-200, 1e-155, 1e160, 1e200])
def test_products_beyond_float64_are_refused_not_called_infeasible(scale):
    tokens, queries, selected = planted(3, 4, 5)
    with pytest.raises(ValueError, match="leave the range of float64"):
        key_query_svm(scale * tokens, scale * queries, selected)
