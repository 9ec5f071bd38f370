"""Values given the attention: the optimum of another solver, a gap that bounds the error, and ridges that pull elsewhere."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from whichtoken.estimators.text.learning import RidgeProblem, solve_values

RNG = np.random.default_rng(0)
SHARES = sparse.csr_array(sparse.random(300, 40, 0.2, random_state=1))
SIGNS = np.where(SHARES @ RNG.standard_normal(40) + 0.3 * RNG.standard_normal(300) > 0.1, 1.0, -1.0)
ROWS = np.arange(300)
LOSSES = ["logistic", "squared_hinge"]


def objective(problem, values, bias):
    """Also its slope in the values and the bias."""
    tokens = problem.shares.shape[1]
    spread = np.ones(tokens + 1) if problem.spread is None else problem.spread
    start = np.zeros(tokens) if problem.values is None else problem.values
    mean = np.zeros(tokens) if problem.mean is None else problem.mean
    margins = problem.signs * (problem.shares @ values + bias)
    if problem.loss == "logistic":
        losses, slopes = np.logaddexp(0, -margins), -expit(-margins)
    else:
        losses, slopes = np.maximum(1 - margins, 0) ** 2, -2 * np.maximum(1 - margins, 0)
    bounds = problem.bounds * np.isin(np.arange(len(margins)), problem.rows)
    moved, level = values - start, bias - problem.bias + mean @ (values - start)
    pulls = bounds * slopes * problem.signs
    ridge = (moved**2 / spread[:-1]).sum() / 2 + level**2 / spread[-1] / 2
    slope = moved / spread[:-1] + mean * level / spread[-1] + problem.shares.T @ pulls
    return ridge + bounds @ losses, np.append(slope, level / spread[-1] + pulls.sum())


@pytest.mark.parametrize("C", [0.1, 3.0, 100.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_it_finds_the_optimum_of_another_solver(loss, C):
    weights = RNG.integers(0, 4, 300).astype(float)
    found = solve_values(RidgeProblem(SHARES, ROWS, SIGNS, C * weights, loss), tolerance=1e-10)
    peer = (
        LogisticRegression(C=C, solver="liblinear", tol=1e-10, max_iter=10**5)
        if loss == "logistic"
        else LinearSVC(C=C, dual=False, tol=1e-10, max_iter=10**5)
    )
    peer.fit(SHARES, SIGNS, sample_weight=weights)
    np.testing.assert_allclose(found.values, peer.coef_[0], rtol=1e-4, atol=1e-4 * np.abs(found.values).max())
    assert found.bias == pytest.approx(peer.intercept_[0], abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("first", "then"), [(1.0, 30.0), (30.0, 1.0)])
def test_it_ends_at_the_optimum_wherever_it_starts(loss, first, then):
    other = "logistic" if loss == "squared_hinge" else "squared_hinge"
    problem = RidgeProblem(SHARES, ROWS, SIGNS, np.full(300, then), loss)
    exact = solve_values(problem, tolerance=1e-12)
    for start in (loss, other):  # of other documents, too
        near = solve_values(RidgeProblem(SHARES, ROWS[:200], SIGNS, np.full(300, first), start))
        found = solve_values(problem, tolerance=1e-10, near=near)
        assert found.gap <= 1e-10
        np.testing.assert_allclose(found.values, exact.values, atol=1e-4 * np.abs(exact.values).max())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_bounds_what_is_missing(loss):
    problem = RidgeProblem(SHARES, ROWS, SIGNS, np.full(300, 10.0), loss)
    exact = solve_values(problem, tolerance=1e-12)
    best, _ = objective(problem, exact.values, exact.bias)
    for tolerance in (0.1, 1e-3, 1e-6):
        found = solve_values(problem, tolerance=tolerance)
        missing = objective(problem, found.values, found.bias)[0] - best
        assert found.gap <= tolerance
        assert -1e-9 * best <= missing <= found.gap * (best + missing) + 1e-9 * best


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("C", [0.1, 100.0], ids=["ascent", "newton"])
@pytest.mark.parametrize("loss", LOSSES)
def test_ridges_of_their_own_and_elsewhere(loss, C, centered):
    rows = RNG.permutation(300)[:200]
    problem = RidgeProblem(
        SHARES, rows, SIGNS, C * RNG.uniform(0.1, 2, 300), loss, RNG.uniform(0.1, 3, 41), RNG.standard_normal(40), 0.7,
        RNG.uniform(0, 0.3, 40) if centered else None,
    )  # fmt: skip
    found = solve_values(problem, tolerance=1e-12)
    value, slope = objective(problem, found.values, found.bias)
    np.testing.assert_allclose(slope, 0, atol=1e-5 * value)


def test_documents_of_weight_zero_are_not_there():
    bounds = np.where(ROWS < 200, 1.0, 0.0)
    some = solve_values(RidgeProblem(SHARES, ROWS[:200], SIGNS, np.ones(300)))
    none = solve_values(RidgeProblem(SHARES, ROWS, SIGNS, bounds))
    np.testing.assert_array_equal(some.values, none.values)


def test_certain_documents_do_not_stop_it():
    """A dual variable next to 0 or to its bound: a margin of thousands, either way."""
    shares = sparse.csr_array(np.array([[1e3, 0.0], [0.0, 1e3], [1e3, 1e-3]]))
    found = solve_values(RidgeProblem(shares, np.arange(3), np.array([1.0, -1.0, -1.0]), np.full(3, 1e3)))
    assert np.isfinite(found.values).all()
    assert found.gap <= 1e-5
