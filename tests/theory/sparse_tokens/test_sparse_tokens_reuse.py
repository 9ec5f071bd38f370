"""Query and readout trained on the same samples: identities, and simulations that the plain theory misses."""

import math

import numpy as np
import pytest

from whichtoken.datasets import SparseTokens
from whichtoken.theory.sparse_tokens import Task, erm, fit_attention, reused_erm
from whichtoken.theory.sparse_tokens.reuse import Training, _balance, _law

COMMON = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
OTHER = {"length": 5, "signal_tokens": 2, "strength": 3.0, "prevalence": 0.3}

SHORT = {"length": 4, "signal_tokens": 1, "strength": 3.0, "prevalence": 0.5}


@pytest.mark.parametrize("loss", ["logistic", "square"])
@pytest.mark.parametrize("task", [COMMON, OTHER])
def test_without_temperature_reuse_changes_nothing(task, loss):
    """Mean pooling does not know of the query: the shares that samples own along it must cancel."""
    learning = {"samples_per_dim": 1.5, "ridge": 0.02, "loss": loss}
    found = reused_erm(**task, **learning, inverse_temperature=1e-6, points=1 << 12)
    pooled = erm(model="pooled", **task, **learning)
    assert found.test_error == pytest.approx(pooled.test_error, rel=3e-3)
    assert found.train_loss == pytest.approx(pooled.train_loss, rel=6e-3)


def test_many_samples_own_nothing_of_the_query():
    learning = {"samples_per_dim": 3000.0, "inverse_temperature": 1.5, "ridge": 0.01, "loss": "square"}
    found = reused_erm(**COMMON, **learning)
    fresh = erm(**COMMON, **learning, alignment=found.alignment)
    assert found.test_error == pytest.approx(fresh.test_error, rel=5e-3)
    assert found.train_loss == pytest.approx(fresh.train_loss, rel=5e-3)


@pytest.mark.parametrize(("task", "samples_per_dim"), [(COMMON, 2.0), (OTHER, 1.0)])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_left_out_samples_and_constrained_noise_tell_one_story(task, samples_per_dim, bias_correction):
    """The shift along the third axis, by leaving one out, is the projection that the two constraints on the noise make."""
    data = Task(**task)
    # features without shares, at no temperature: R/L of the signal on positives
    flat = _law(Training(data, samples_per_dim, 1e-9, 0.01, bias_correction), 1 << 12, 0)
    positive, third = flat.label > 0, flat.signal[2]
    shift = flat.means[:, 2] - third * data.strength * data.signal_tokens / data.length * positive
    # psi_1 is all that is left then: slope a_y, -+1/2, with norm 1/(2 sqrt L)
    caught = -np.sqrt(data.length) * data.prevalence * third * data.strength * data.signal_tokens / data.length
    np.testing.assert_allclose(shift, -flat.pulls[:, 0] * caught, rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "samples_per_dim", "ridge", "loss"), [(OTHER, 1.0, 0.01, "logistic"), (SHORT, 2.0, 0.1, "square")]
)
def test_training_on_the_same_samples_has_the_predicted_loss(task, samples_per_dim, ridge, loss):
    """24 runs at d = 200; the theory of fresh samples is off by more than four standard errors."""
    dim, rng, losses = 200, np.random.default_rng(5), []
    for _ in range(24):
        sample = SparseTokens(**task, dim=dim).sample(round(samples_per_dim * dim), rng)
        fit = fit_attention([sample], ridge=ridge, head_loss=loss, target_temperature=2.0, bias_correction=True)
        losses.append(fit.head.train_loss)
    mean, error = np.mean(losses), np.std(losses, ddof=1) / math.sqrt(len(losses))
    learning = {"samples_per_dim": samples_per_dim, "inverse_temperature": 2.0, "ridge": ridge, "loss": loss}
    found = reused_erm(**task, **learning, points=1 << 12)
    fresh = erm(**task, **learning, alignment=found.alignment)
    assert abs(mean - found.train_loss) < 4 * error
    assert fresh.train_loss - mean > 4 * error


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="loss"):
        reused_erm(**COMMON, samples_per_dim=1.0, inverse_temperature=1.0, ridge=0.1, loss="hinge")


@pytest.mark.parametrize("place", [4, 5])
@pytest.mark.parametrize("loss", ["logistic", "square"])
def test_a_solver_that_strays_is_told_so_in_numbers(place, loss):
    """Where the noise or the response of the readout would overflow, the equations are finite and far from solved."""
    training = Training(Task(**COMMON), 2.0, 1.0, 0.01, loss=loss)
    law = _law(training, 256, 0)
    state = np.zeros(8)
    state[place] = 1000.0
    with np.errstate(all="ignore"):
        equations, sizes, slopes, _ = _balance(training, law, state, np.full(law.label.size, np.nan))
    assert np.isfinite(equations / sizes).all()
    assert np.isfinite(slopes).all()
    assert np.abs(equations / sizes).max() > 0.5


@pytest.mark.parametrize("loss", ["logistic", "square"])
def test_slopes_are_those_of_the_equations(loss):
    training = Training(Task(**COMMON), 2.0, 1.3, 0.05, loss=loss)
    law = _law(training, 256, 0)
    state = np.array([0.4, -0.3, 0.7, -0.2, 0.3, 0.5, 0.2, -0.1])

    def equations(x):
        return _balance(training, law, x, np.full(law.label.size, np.nan))[0]

    slopes = _balance(training, law, state, np.full(law.label.size, np.nan))[2]
    step = 1e-5 * np.eye(8)
    differences = np.stack([(equations(state + one) - equations(state - one)) / 2e-5 for one in step], axis=1)
    np.testing.assert_allclose(slopes, differences, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("strength", [0.05, 0.5, 4.0, 15.0])
@pytest.mark.parametrize("samples_per_dim", [0.01, 1.0, 1e5])
def test_weak_and_strong_signals_are_solved_with_few_and_many_samples(strength, samples_per_dim):
    training = Training(Task(20, 2, strength, 0.3), samples_per_dim, 0.2, 0.01)
    error, train_loss = training.solve(256)
    assert 0 <= error < 0.75
    assert 0 <= train_loss < 1
