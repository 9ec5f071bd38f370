from itertools import pairwise

import numpy as np
import pytest

from whichtoken.datasets import AttentionRegression
from whichtoken.theory.attention_regression import balanced_factors, gram_rate, imbalance
from whichtoken.theory.attention_regression.structure_aware_descent import (
    PopulationObjective,
    RawCoordinates,
    StructureAwareDescent,
    TokenObjective,
)
from whichtoken.theory.attention_regression.whitening import ShrinkageWarning, Whitening


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
    descent = solver.minimize(*population_start(problem, solver))
    assert worst_direction(descent.final, problem.whitened_target) <= 1e-6
    losses = [iterate.loss for iterate in descent.trace]
    assert losses[8] / losses[7] == pytest.approx(gram_rate([1.0], 0.25), rel=0.02)


def test_with_the_covariance_alone_the_rate_is_that_of_the_slowest_direction():
    problem, _ = regression(tokens=160, noise=0.0, target=20.0)
    solver = StructureAwareDescent("covariance", start="moment", center=False, iterations=200, tolerance=0.0)
    descent = solver.minimize(*population_start(problem, solver))
    assert descent.trace[150].loss / descent.trace[149].loss == pytest.approx((1 - 1 / 20.0) ** 2, rel=0.01)


@pytest.mark.parametrize("step", [0.25, 0.5])
@pytest.mark.parametrize(("dim", "outputs"), [(6, 3), (3, 6)])
def test_maps_that_are_not_square_converge_at_the_slower_rate(dim, outputs, step):
    problem, rng = regression(dim=dim, outputs=outputs, target=10.0)
    target = problem.whitened_target
    start = balanced_factors(target + 1e-4 * rng.standard_normal(target.shape), logit_norm=0.3)
    solver = StructureAwareDescent(step=step, damping=1e-9, iterations=10, tolerance=0.0, backtrack=False)
    trace = solver.minimize(PopulationObjective(target), *start).trace
    assert trace[10].loss / trace[9].loss == pytest.approx(
        gram_rate([1.0, 0.9, 0.1], step, 0.0, dim, outputs), rel=0.02
    )


@pytest.mark.parametrize(("dim", "outputs"), [(5, 3), (4, 1)])
def test_covariance_rate_is_halved_by_maps_that_are_not_square(dim, outputs):
    condition = 3.0 if outputs > 1 else 1.0
    problem, _ = regression(dim=dim, outputs=outputs, tokens=400, noise=0.0, target=condition)
    solver = StructureAwareDescent("covariance", start="moment", center=False, iterations=21, tolerance=0.0)
    trace = solver.minimize(*population_start(problem, solver)).trace
    assert trace[20].loss / trace[19].loss == pytest.approx((1 - 0.5 / condition) ** 2, rel=0.02)


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
        assert np.linalg.norm(iterate.Q, 2) <= 0.5 * (1 + 1e-12)
        assert imbalance(iterate.P, iterate.Q) < 1e-10


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


@pytest.mark.parametrize("seed", [1, 19])
def test_a_loss_that_rises_has_not_converged(seed):
    """Without backtracking one of these losses comes down again and the other ends above the first."""
    problem, _ = regression(seed, dim=6, tokens=200, target=100.0, covariance=100.0)
    solver = StructureAwareDescent(damping=0.0, backtrack=False, start_samples=24, iterations=6)
    descent = solver.fit(problem.tokens, problem.labels).descent
    losses = [iterate.loss for iterate in descent.accepted]
    assert max(later / earlier for earlier, later in zip(losses, losses[3:], strict=False)) > 1.01
    assert descent.status != "converged"
    if losses[-1] > 1.001 * losses[0]:
        assert (descent.status, descent.final.loss) == ("diverged", min(losses))
    else:
        assert (descent.status, descent.final.loss) == ("iterations", losses[-1])


class Script:
    """An objective whose losses are written down; the last one stays."""

    samples = np.inf

    def __init__(self, *losses):
        self.losses = list(losses)

    def __call__(self, P, Q):
        loss = self.losses.pop(0) if len(self.losses) > 1 else self.losses[0]
        return loss, np.ones_like(P), np.ones_like(Q)


@pytest.mark.parametrize(
    ("losses", "status", "steps", "final"),
    [
        ((1.0, 0.5), "converged", 4, 0.5),
        ((1.0, 0.5, 0.4, 0.3, 0.9), "converged", 7, 0.9),  # a rise is no end, a rest below the start is one
        ((1.0, 5.0), "diverged", 10, 1.0),  # a rest above the start is none
        ((1.0, 0.5, 2.0), "diverged", 10, 0.5),
        ((1.0, 0.5, 1001.0), "diverged", 2, 0.5),
        ((1.0, 0.5, np.nan), "diverged", 2, 0.5),
    ],
)
def test_without_backtracking_training_ends_at_rest_below_its_start(losses, status, steps, final):
    solver = StructureAwareDescent(backtrack=False, damping=0.0, iterations=10)
    descent = solver.minimize(Script(*losses), np.eye(2), 0.2 * np.eye(2))
    assert (descent.status, len(descent.trace) - 1, descent.final.loss) == (status, steps, final)


@pytest.mark.parametrize("preconditioner", ["gram", "covariance"])
def test_training_starts_from_a_value_matrix_of_zeros(preconditioner):
    problem, _ = regression()
    solver = StructureAwareDescent(preconditioner)
    best = solver.fit(problem.tokens, problem.labels).descent.final.loss
    descent = solver.fit(problem.tokens, problem.labels, factors=([[0.0] * 4] * 4, np.eye(4).tolist())).descent
    assert descent.trace[0].loss > 20.0 * best
    assert descent.final.loss == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("factors", [(np.ones((4, 4)), np.zeros((4, 4))), (np.full((4, 4), np.nan), np.eye(4))])
def test_starting_factors_without_a_direction_are_refused(factors):
    problem, _ = regression()
    with pytest.raises(ValueError, match="factors P and Q must be finite, and Q must not be zero"):
        StructureAwareDescent().fit(problem.tokens, problem.labels, factors=factors)


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
        ({"start_samples": 24.5}, "start_samples=24.5 must be an integer"),
        ({"iterations": 2.5}, "iterations=2.5 must be an integer"),
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
