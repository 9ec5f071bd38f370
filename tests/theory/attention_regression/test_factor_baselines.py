import numpy as np
import pytest

from whichtoken.theory.attention_regression.factor_baselines import TORCH_OPTIMIZERS, run_baseline
from whichtoken.theory.attention_regression.structure_aware_descent import PopulationObjective

RATES = {"gradient": 0.2, "adam": 0.03, "muon": 0.003, "lbfgs": 1.0, "alternating": 1.0, "gauss-newton": 1.0}


def problem():
    rng = np.random.default_rng(0)
    target = rng.standard_normal((3, 3)) + 3 * np.eye(3)
    left, sizes, right = np.linalg.svd(target)
    start = 0.1 * rng.standard_normal((2, 3, 3))
    return PopulationObjective(target), left * np.sqrt(sizes) + start[0], right.T * np.sqrt(sizes) + start[1]


@pytest.mark.parametrize(("method", "lr"), RATES.items())
def test_every_method_minimizes_from_near_the_solution(method, lr):
    evaluations = run_baseline(method, *problem(), lr=lr, budget=60)
    assert len(evaluations) == 60
    assert min(evaluation.loss for evaluation in evaluations) < 0.02 * evaluations[0].loss


@pytest.mark.parametrize(("method", "steps"), [("alternating", 1), ("gauss-newton", 4)])
def test_second_order_methods_solve_the_limit_in_a_few_steps(method, steps):
    objective, P, Q = problem()
    evaluations = run_baseline(method, objective, P, Q, lr=1.0, budget=10)
    assert evaluations[steps].loss < 1e-12 * evaluations[0].loss


def test_gradient_descent_is_gradient_descent():
    objective, P, Q = problem()
    _, P_gradient, Q_gradient = objective(P, Q)
    second = run_baseline("gradient", objective, P, Q, lr=0.1, budget=2)[1]
    np.testing.assert_allclose(second.P, P - 0.1 * P_gradient, atol=1e-14)
    np.testing.assert_allclose(second.Q, Q - 0.1 * Q_gradient, atol=1e-14)


def test_a_method_that_diverges_stops():
    evaluations = run_baseline("gradient", *problem(), lr=1e3, budget=1000)
    assert len(evaluations) < 100
    assert evaluations[-1].loss > 1e100


def test_unknown_method_is_named():
    with pytest.raises(
        ValueError, match="method='sgd' must be one of gradient, adam, muon, lbfgs, alternating, gauss-newton"
    ):
        run_baseline("sgd", *problem(), lr=1.0, budget=2)
    assert set(TORCH_OPTIMIZERS) < set(RATES)
