from itertools import pairwise

import numpy as np
import pytest

from whichtoken.data import AttentionRegression
from whichtoken.models.whitening import ShrinkageWarning, Whitening
from whichtoken.optim.factor_objectives import PopulationObjective, RawCoordinates, TokenObjective
from whichtoken.optim.structure_aware_descent import StructureAwareDescent
from whichtoken.theory.attention_regression import covariance_rate, gram_rate


def regression(seed=0, **arguments):
    rng = np.random.default_rng(seed)
    return AttentionRegression(**{"dim": 4, "tokens": 300, **arguments}).sample(rng), rng


def population_start(problem, solver):
    Z = Whitening.from_covariance(problem.covariance).whiten(problem.tokens)
    return PopulationObjective(problem.whitened_target), *solver.starting_factors(Z, problem.labels)


def worst_direction(iterate, target):
    """Squared relative error of the map in its least accurate direction."""
    return np.linalg.norm((iterate.P @ iterate.Q.T - target) @ np.linalg.inv(target), 2) ** 2


@pytest.mark.parametrize("condition", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("field", ["target", "covariance"])
def test_gram_rate_does_not_depend_on_the_condition_number(field, condition):
    problem, _ = regression(dim=8, tokens=160, noise=0.0, **{field: condition})
    solver = StructureAwareDescent(step=0.25, start="moment", center=False, iterations=20, tolerance=0.0)
    descent = solver.minimise(*population_start(problem, solver))
    assert worst_direction(descent.final, problem.whitened_target) <= 1e-6
    losses = [iterate.loss for iterate in descent.trace]
    assert losses[8] / losses[7] == pytest.approx(gram_rate([1.0], 0.25), rel=0.02)


def test_covariance_rate_is_that_of_the_slowest_direction():
    problem, _ = regression(tokens=160, noise=0.0, target=20.0)
    solver = StructureAwareDescent("covariance", start="moment", center=False, iterations=200, tolerance=0.0)
    descent = solver.minimise(*population_start(problem, solver))
    assert descent.trace[150].loss / descent.trace[149].loss == pytest.approx(covariance_rate(20.0, 1.0), rel=0.01)


@pytest.mark.parametrize("step", [0.25, 0.5])
def test_rank_deficient_maps_converge_at_the_slower_rate(step):
    problem, _ = regression(dim=6, outputs=3, tokens=400, noise=0.0, target=10.0)
    solver = StructureAwareDescent(
        step=step, start="moment", center=False, damping=1e-9, iterations=15, tolerance=0.0, backtrack=False
    )
    trace = solver.minimise(*population_start(problem, solver)).trace
    assert trace[10].loss / trace[9].loss == pytest.approx(gram_rate([1.0, 0.5], step, dim=6), rel=0.02)


def test_spectral_start_is_already_at_the_floor_and_training_keeps_it_there():
    problem, rng = regression(dim=6, tokens=800, target=10.0, covariance=10.0)
    tokens, clean = problem.draw(500, rng)
    fit = StructureAwareDescent().fit(problem.tokens, problem.labels)
    excess = np.mean(np.sum((fit.predict(tokens) - clean) ** 2, axis=1)) / np.sum(problem.whitened_target**2)
    assert excess < 2.5e-3  # the floor is 1.0e-3 at this size
    assert fit.descent.final.loss <= 1.001 * fit.descent.trace[0].loss


def test_logits_stay_within_their_bounds_and_factors_balanced():
    problem, _ = regression(outputs=2, target=50.0)
    fit = StructureAwareDescent(start_samples=20, logit_norm=2.0, tolerance=0.0).fit(problem.tokens, problem.labels)
    for iterate in fit.descent.trace:
        assert iterate.logit_peak <= 0.5 * (1 + 1e-12)
        assert iterate.imbalance < 1e-10


def test_result_does_not_depend_on_the_size_of_the_labels():
    problem, _ = regression(target=10.0)
    solver = StructureAwareDescent(start_samples=20)
    small, large = (solver.fit(problem.tokens, factor * problem.labels) for factor in (1.0, 16.0))
    np.testing.assert_allclose(large.value, 16.0 * small.value, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(large.key_query, small.key_query, rtol=1e-9, atol=1e-10)


def test_result_does_not_depend_on_the_origin_and_unit_of_the_tokens():
    problem, rng = regression()
    tokens, _ = problem.draw(20, rng)
    solver = StructureAwareDescent(start_samples=30)
    plain = solver.fit(problem.tokens, problem.labels).predict(tokens)
    changed = solver.fit(3.0 * problem.tokens + 5.0, problem.labels).predict(3.0 * tokens + 5.0)
    np.testing.assert_allclose(changed, plain, rtol=1e-9, atol=1e-10)


def test_trace_is_complete_and_observed():
    problem, _ = regression()
    seen = []
    solver = StructureAwareDescent(start_samples=12, iterations=6, tolerance=0.0)
    fit = solver.fit(problem.tokens, problem.labels, observe=seen.append)
    assert [iterate.iteration for iterate in seen] == list(range(7))
    assert tuple(seen) == fit.descent.trace
    assert fit.descent.status == "iterations"
    Z, Y = fit.whitening.whiten(problem.tokens), problem.labels - fit.label_mean
    assert TokenObjective(Z, Y)(seen[3].P, seen[3].Q)[0] == seen[3].loss


def test_rejected_steps_are_shown_and_the_loss_never_rises():
    problem, _ = regression(dim=6, target=100.0, covariance=100.0)
    solver = StructureAwareDescent(step=1.6, start_samples=12, damping=0.0, tolerance=0.0, iterations=25)
    descent = solver.fit(problem.tokens, problem.labels).descent
    assert any(not iterate.accepted for iterate in descent.trace)
    losses = [iterate.loss for iterate in descent.accepted]
    assert all(later <= 1.001 * earlier for earlier, later in pairwise(losses))


def test_divergence_is_reported_and_the_best_iterate_returned():
    problem, _ = regression(dim=6, target=100.0, covariance=100.0)
    solver = StructureAwareDescent(
        step=1.9, start_samples=12, damping=0.0, backtrack=False, tolerance=0.0, iterations=200
    )
    descent = solver.fit(problem.tokens, problem.labels).descent
    assert descent.status == "diverged"
    assert "the iterate of least loss is returned" in descent.message
    assert descent.final.loss == min(iterate.loss for iterate in descent.accepted)


def test_constant_labels_are_predicted_exactly():
    problem, _ = regression()
    fit = StructureAwareDescent().fit(problem.tokens, np.full((300, 2), 7.0))
    np.testing.assert_array_equal(fit.predict(problem.tokens[:5]), np.full((5, 2), 7.0))
    assert fit.descent.status == "converged"


def test_fewer_tokens_than_dimensions_work_with_a_warning():
    problem, rng = regression(dim=10, outputs=1, tokens=8, noise=0.01)
    with pytest.warns(ShrinkageWarning):
        fit = StructureAwareDescent().fit(problem.tokens, problem.labels)
    assert np.isfinite(fit.predict(problem.draw(5, rng)[0])).all()


def test_a_given_context_replaces_the_training_tokens():
    problem, rng = regression(tokens=2000)
    fit = StructureAwareDescent().fit(problem.tokens, problem.labels)
    queries, clean = problem.draw(50, rng)
    np.testing.assert_array_equal(fit.predict(queries, problem.tokens), fit.predict(queries))
    fresh = fit.predict(queries, problem.draw(2000, rng)[0])
    assert not np.allclose(fresh, fit.predict(queries))
    assert np.mean((fresh - clean) ** 2) < 0.02 * np.mean(clean**2)


def test_raw_objective_is_the_whitened_one():
    problem, rng = regression()
    whitening = Whitening.from_tokens(problem.tokens)
    objective = TokenObjective(whitening.whiten(problem.tokens), problem.labels)
    P, Q = rng.standard_normal((4, 4)), 0.2 * rng.standard_normal((4, 4))
    direct = TokenObjective(problem.tokens - whitening.mean, problem.labels)(*whitening.to_raw(P, Q))
    for found, expected in zip(RawCoordinates(objective, whitening)(*whitening.to_raw(P, Q)), direct, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_float32_attention_is_enough_for_the_fast_phase():
    import torch

    problem, _ = regression()
    solver = StructureAwareDescent(start_samples=20, iterations=4, tolerance=0.0)
    whitening = Whitening.from_tokens(problem.tokens)
    Z, Y = whitening.whiten(problem.tokens), problem.labels - problem.labels.mean(axis=0)
    P, Q = solver.starting_factors(Z, Y)
    double, single = (solver.minimise(TokenObjective(Z, Y, dtype=dtype), P, Q) for dtype in (None, torch.float32))
    assert single.final.loss == pytest.approx(double.final.loss, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preconditioner": "newton"}, "preconditioner='newton' must be one of gram, covariance"),
        ({"balance": "penalty"}, "balance='penalty' diverges under preconditioner='gram'; use 'exact' or 'none'"),
        ({"start": "zero"}, "start='zero' must be one of spectral, moment, random"),
        ({"damping": "none"}, "damping='none' must be 'adaptive' or a number"),
        ({"damping": -0.1}, "damping=-0.1 must be finite and not negative"),
        ({"step": 0.0}, "step=0.0 must be finite and positive"),
        ({"logit_cap": 0.8}, r"logit_cap=0.8 must lie in \(0, 0.7071\)"),
        ({"logit_norm": -1.0}, "logit_norm=-1.0 must be finite and positive"),
        ({"start_samples": 0}, "start_samples=0 must be finite and positive"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        StructureAwareDescent(**arguments)


def test_labels_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"labels of shape \(4, 1\) must be a finite matrix of shape \(9, outputs\)"):
        StructureAwareDescent().fit(np.random.default_rng(0).standard_normal((9, 2)), np.zeros((4, 1)))


def test_starting_factors_that_do_not_fit_are_named():
    tokens = np.random.default_rng(0).standard_normal((9, 2))
    with pytest.raises(
        ValueError, match=r"factors of shapes \(1, 3\) and \(3, 3\) must have shapes \(1, 2\) and \(2, 2\)"
    ):
        StructureAwareDescent().fit(tokens, tokens[:, :1], factors=(np.ones((1, 3)), np.eye(3)))
