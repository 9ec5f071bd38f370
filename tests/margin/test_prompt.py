"""The prompt problem against solvers that know nothing of this package."""

import cvxpy
import numpy as np
import pytest
from scipy.optimize import minimize

from whichtoken.margin import prompt_svm

PRECISE = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}


def planted(sequences: int, length: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((sequences, length, dim))
    return tokens, (tokens @ rng.standard_normal(dim)).argmax(axis=1)


def rows_of(tokens, selected):
    return np.array([x[s] - x[t] for x, s in zip(tokens, selected, strict=True) for t in range(len(x)) if t != s])


def reference_norm(rows, rhs, p, equalities=None) -> float:
    weights = cvxpy.Variable(rows.shape[1])
    conditions = [rows @ weights >= rhs]
    if equalities is not None:
        conditions.append(equalities @ weights == 0)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.pnorm(weights, p)), conditions)
    problem.solve(solver=cvxpy.CLARABEL, **PRECISE)
    return problem.value


@pytest.mark.parametrize("p", [1, 1.1, 1.5, 2, 3, np.inf])
@pytest.mark.parametrize("rhs", ["one", "sequence", "constraint", "zeros"])
def test_margin_equals_that_of_a_cone_solver(p, rhs):
    tokens, selected = planted(5, 4, 6)
    rows, rng = rows_of(tokens, selected), np.random.default_rng(1)
    given = {
        "one": 1.0,
        "sequence": rng.random(5) + 0.5,
        "constraint": rng.random(15) + 0.5,
        "zeros": np.array([1.0, 0.0, 2.0, 0.0, 1.0]),
    }[rhs]
    demands = np.repeat(given, 3) if np.shape(given) == (5,) else given
    certificate = prompt_svm(tokens, selected, p, given)
    assert certificate.status == "optimal"
    assert 1 / certificate.margin == pytest.approx(reference_norm(rows, demands, p), rel=1e-7)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_direction_equals_that_of_a_descent_method(p):
    tokens, selected = planted(3, 3, 4, seed=4)
    rows = rows_of(tokens, selected)
    outcome = minimize(
        lambda w: np.sum(np.abs(w) ** p),
        np.linalg.pinv(rows) @ np.full(len(rows), 2.0),
        jac=lambda w: p * np.sign(w) * np.abs(w) ** (p - 1),
        constraints={"type": "ineq", "fun": lambda w: rows @ w - 1, "jac": lambda w: rows},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    certificate = prompt_svm(tokens, selected, p)
    np.testing.assert_allclose(certificate.direction, outcome.x / np.linalg.norm(outcome.x, p), atol=1e-5)


@pytest.mark.parametrize("p", [1, 1.1, 2, 3, np.inf])
def test_selected_sets_get_equal_scores(p):
    rng = np.random.default_rng(6)
    tokens = [rng.standard_normal((length, 8)) for length in (4, 3, 5)]
    certificate = prompt_svm(tokens, [{1, 3}, 2, [0, 2, 4]], p)
    rows, equalities = [], []
    for x, chosen in zip(tokens, ([1, 3], [2], [0, 2, 4]), strict=True):
        rows += [x[chosen[0]] - x[t] for t in range(len(x)) if t not in chosen]
        equalities += [x[chosen[0]] - x[t] for t in chosen[1:]]
    rows, equalities = np.array(rows), np.array(equalities)
    assert certificate.status == "optimal"
    assert 1 / certificate.margin == pytest.approx(reference_norm(rows, 1.0, p, equalities), rel=1e-7)
    np.testing.assert_allclose(equalities @ certificate.direction, 0, atol=1e-12)
    combined = certificate.multipliers @ rows + certificate.equality_multipliers @ equalities
    q = np.inf if p == 1 else 1 / (1 - 1 / p)
    assert np.linalg.norm(combined, q) == pytest.approx(certificate.dual_bound, rel=1e-9)
    assert certificate.pairs.tolist() == [[0, 0], [0, 2], [1, 0], [1, 1], [2, 1], [2, 3]]


@pytest.mark.parametrize("p", [1.1, 2, np.inf])
def test_a_copy_of_a_selected_token_counts_as_selected(p):
    tokens, selected = planted(4, 4, 5, seed=2)
    with_copy = np.concatenate([tokens, tokens[np.arange(4), selected][:, None]], axis=1)
    plain, doubled = prompt_svm(tokens, selected, p), prompt_svm(with_copy, selected, p)
    as_set = prompt_svm(with_copy, [{s, 4} for s in selected], p)
    assert doubled.margin == as_set.margin == plain.margin
    np.testing.assert_array_equal(doubled.multipliers, plain.multipliers)
    np.testing.assert_array_equal(doubled.pairs, plain.pairs)


def test_one_sequence_of_two_tokens_in_closed_form():
    """The margin of a single difference a is its dual norm; the direction aligns with it."""
    tokens = np.array([[[3.0, -4.0], [0.0, 0.0]]])
    for p, margin in ((1, 4.0), (2, 5.0), (np.inf, 7.0), (3, (3**1.5 + 4**1.5) ** (2 / 3))):
        certificate = prompt_svm(tokens, [0], p)
        assert certificate.margin == pytest.approx(margin, rel=1e-10)
        assert certificate.multipliers.tolist() == [1.0]
    np.testing.assert_allclose(prompt_svm(tokens, [0]).direction, [0.6, -0.8], atol=1e-12)
    np.testing.assert_allclose(prompt_svm(tokens, [0], 1).direction, [0.0, -1.0], atol=1e-12)


@pytest.mark.parametrize("p", [1.1, 2, 3])
def test_scaling_tokens_scales_the_margin_and_scaling_rhs_divides_it(p):
    tokens, selected = planted(6, 5, 6, seed=3)
    certificate = prompt_svm(tokens, selected, p)
    larger, stricter = prompt_svm(1e3 * tokens, selected, p), prompt_svm(tokens, selected, p, rhs=7.0)
    assert larger.margin == pytest.approx(1e3 * certificate.margin, rel=1e-9)
    assert stricter.margin == pytest.approx(certificate.margin / 7, rel=1e-9)
    np.testing.assert_allclose(larger.direction, certificate.direction, atol=1e-7)
    np.testing.assert_allclose(stricter.direction, certificate.direction, atol=1e-7)


def test_rotating_the_tokens_rotates_the_euclidean_direction():
    tokens, selected = planted(6, 5, 6, seed=5)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))
    straight, rotated = prompt_svm(tokens, selected), prompt_svm(tokens @ rotation, selected)
    assert rotated.margin == pytest.approx(straight.margin, rel=1e-10)
    np.testing.assert_allclose(rotated.direction, straight.direction @ rotation, atol=1e-9)


def test_margin_is_continuous_down_to_the_linear_program_and_up_to_it():
    tokens, selected = planted(6, 5, 8, seed=7)
    ends = prompt_svm(tokens, selected, 1).margin, prompt_svm(tokens, selected, np.inf).margin
    near = prompt_svm(tokens, selected, 1.005), prompt_svm(tokens, selected, 200.0)
    # |w|_p changes by at most the factor dim**(1 - 1/p) from p = 1, and dim**(1/p) to p = inf
    assert ends[0] <= near[0].margin <= ends[0] * 8 ** (1 - 1 / 1.005)
    assert ends[1] / 8 ** (1 / 200) <= near[1].margin <= ends[1]
    margins = [prompt_svm(tokens, selected, p).margin for p in (1, 1.02, 1.1, 1.5, 2, 4, 10, np.inf)]
    assert margins == sorted(margins)
