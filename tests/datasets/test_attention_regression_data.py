import numpy as np
import pytest

from whichtoken.datasets import AttentionRegression
from whichtoken.datasets.attention_regression import LAWS, symmetric_root


@pytest.mark.parametrize("law", list(LAWS))
def test_tokens_have_the_mean_and_covariance_of_the_problem(law):
    problem = AttentionRegression(3, tokens=200_000, covariance=4.0, law=law, mean=[1.0, -2.0, 0.5]).sample(
        np.random.default_rng(0)
    )
    np.testing.assert_allclose(problem.tokens.mean(axis=0), [1.0, -2.0, 0.5], atol=0.01)
    np.testing.assert_allclose(np.cov(problem.tokens.T), problem.covariance, atol=0.02)


@pytest.mark.parametrize(("outputs", "condition"), [(None, 1.0), (2, 30.0), (7, 1000.0)])
def test_condition_numbers_are_exact(outputs, condition):
    problem = AttentionRegression(4, outputs, covariance=condition, target=condition).sample(np.random.default_rng(1))
    sizes = np.linalg.svd(problem.target, compute_uv=False)
    np.testing.assert_allclose(np.geomspace(1, 1 / condition, len(sizes)), sizes, rtol=1e-9)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(problem.covariance)[::-1], np.geomspace(1, 1 / condition, 4), rtol=1e-9
    )
    np.testing.assert_allclose(symmetric_root(problem.covariance) @ problem.target.T, problem.whitened_target.T)


def test_labels_are_the_target_plus_noise():
    problem = AttentionRegression(3, 2, tokens=100_000, noise=0.2).sample(np.random.default_rng(2))
    residuals = problem.labels - problem.tokens @ problem.target.T
    assert residuals.std() == pytest.approx(0.2, rel=0.01)
    tokens, clean = problem.draw(10, np.random.default_rng(3))
    np.testing.assert_array_equal(clean, tokens @ problem.target.T)


def test_given_matrices_are_used_and_the_stream_decides_the_rest():
    covariance, target = np.diag([1.0, 2.0]), np.array([[1.0, 2.0]])
    generator = AttentionRegression(2, 1, 50, covariance, target)
    first, second = (generator.sample(np.random.default_rng(4)) for _ in range(2))
    np.testing.assert_array_equal(first.covariance, covariance)
    np.testing.assert_array_equal(first.target, target)
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim=0 must be a whole number of at least 1"),
        ({"tokens": 0}, "tokens=0 must be a whole number of at least 1"),
        ({"noise": -1.0}, "noise=-1.0 must lie in"),
        ({"law": "cauchy"}, "law='cauchy' must be one of gaussian, uniform, sign, laplace, student"),
        ({"covariance": 0.5}, "covariance=0.5 as a condition number must be finite and at least 1"),
        ({"covariance": np.eye(2)}, r"covariance of shape \(2, 2\) must be a finite matrix of shape \(3, 3\)"),
        ({"covariance": np.diag([1.0, 1.0, 0.0])}, "covariance is singular or indefinite"),
        ({"covariance": np.eye(3) + np.eye(3, k=1)}, "covariance must be symmetric"),
        ({"target": np.zeros((2, 3))}, r"target of shape \(2, 3\) must be a finite matrix of shape \(3, 3\)"),
        ({"mean": [1.0, 2.0]}, r"mean of shape \(2,\)"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionRegression(**{"dim": 3, **arguments})
