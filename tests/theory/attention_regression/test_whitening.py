import numpy as np
import pytest

from whichtoken.theory.attention_regression.whitening import ShrinkageWarning, Whitening

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("center", [True, False])
def test_tokens_become_white(center):
    tokens = 3.0 + RNG.standard_normal((200, 4)) @ RNG.standard_normal((4, 4))
    Z = Whitening.from_tokens(tokens, center).whiten(tokens)
    np.testing.assert_allclose(Z.T @ Z / 200, np.eye(4), atol=1e-5)
    assert np.allclose(Z.mean(axis=0), 0.0) == center


def test_factors_go_there_and_back():
    whitening = Whitening.from_covariance(np.diag([1e-3, 1.0, 40.0]))
    A, B = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 3))
    for found, expected in zip(whitening.to_raw(*whitening.to_whitened(A, B)), (A, B), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("count", [60, 9])  # the second one is shrunk
@pytest.mark.filterwarnings("ignore::whichtoken.theory.attention_regression.whitening.ShrinkageWarning")
def test_units_of_the_coordinates_do_not_matter(count):
    """Whitened tokens in other units are the same up to a rotation."""
    tokens, units = RNG.standard_normal((count, 4)) @ RNG.standard_normal((4, 4)), np.array([1.0, 1e-4, 10.0, 1e4])
    plain, changed = (Whitening.from_tokens(X).whiten(X) for X in (tokens, tokens * units))
    np.testing.assert_allclose(changed @ changed.T, plain @ plain.T, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e10 / 3.0])
def test_constant_and_collinear_coordinates_stay_small(value):
    """Lengths in kilometres and in metres, and a constant whose mean is rounded."""
    lengths = RNG.standard_normal((101, 1))
    Z = Whitening.from_tokens(X := np.hstack([lengths, 1e3 * lengths, np.full((101, 1), value)])).whiten(X)
    np.testing.assert_allclose(
        Z @ Z.T, (lengths - lengths.mean()) @ (lengths - lengths.mean()).T / lengths.var(), atol=1e-5
    )


def test_few_tokens_are_shrunk_with_a_warning():
    tokens = RNG.standard_normal((5, 8))
    with pytest.warns(ShrinkageWarning, match="5 tokens are few for dim=8: .* 24 tokens need no shrinkage"):
        whitening = Whitening.from_tokens(tokens)
    assert np.abs(whitening.whiten(tokens)).max() < 10.0
    assert np.linalg.cond(whitening.root) < 100.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Whitening.from_covariance(np.zeros((2, 2))), "covariance is singular or indefinite"),
        (lambda: Whitening.from_covariance(np.array([[1.0, 2.0], [0.0, 1.0]])), "covariance must be symmetric"),
        (lambda: Whitening.from_covariance(np.ones((2, 3))), r"covariance of shape \(2, 3\) must be a finite square"),
        (lambda: Whitening.from_tokens(np.full((11, 2), 0.1)), "tokens must not all be equal"),
        (lambda: Whitening.from_tokens([[1.0, np.nan], [0.0, 1.0]]), "must be a finite matrix"),
        (
            lambda: Whitening.from_tokens(np.ones((1, 2))),
            r"\(1, 2\) must be a finite matrix \(n, d\) of at least 2 rows",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tokens_of_another_width_are_named():
    with pytest.raises(ValueError, match=r"tokens of shape \(4, 3\) must have shape \(n, 2\)"):
        Whitening.from_covariance(np.eye(2)).whiten(np.ones((4, 3)))
