"""Four geometries against the limits of four geometries, with the values of an independent implementation."""

from functools import cache

import numpy as np
import pytest

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.descent import attention_descent
from whichtoken.margin import key_query_svm
from whichtoken.theory.mirror_descent import directional_divergence, globally_optimal, locally_optimal

SETTINGS = {1.1: (0.01, 4_000), 1.75: (0.1, 1_500), 2.0: (0.1, 2_000), 3.0: (0.1, 20_000)}  # p: step size, steps
SEEDS = range(1, 101)
EXPONENTS = list(SETTINGS)

# Rows: p of the algorithm; columns: p of the max-margin problem, for the tokens that *its* algorithm selected.
MEAN_DIVERGENCE = np.array(
    [
        [0.0280, 0.2813, 0.3398, 0.4429],
        [0.2728, 0.0025, 0.0340, 0.1284],
        [0.3522, 0.0347, 0.0040, 0.0713],
        [0.5267, 0.1544, 0.0841, 0.0042],
    ]
)
MEAN_COSINE = np.array(
    [
        [0.925, 0.677, 0.618, 0.506],
        [0.710, 0.997, 0.966, 0.868],
        [0.648, 0.965, 0.996, 0.929],
        [0.529, 0.868, 0.926, 0.995],
    ]
)


@cache
def runs():
    """Per seed: the problem, and per exponent the descent and its certified limit."""
    table = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        problem = AttentionTokens().sample(rng)
        start = rng.standard_normal((10, 10))
        results = [attention_descent(problem, start, p=p, lr=lr, steps=steps) for p, (lr, steps) in SETTINGS.items()]
        limits = [
            key_query_svm(problem.tokens, problem.queries, result.selected, p=p)
            for p, result in zip(EXPONENTS, results, strict=True)
        ]
        table.append((problem, results, limits))
    return table


def cross_table(compare):
    """Compare every limit with every iterate: (seeds, p of the algorithm, p of the limit)."""
    return np.array(
        [
            [
                [compare(limit.direction, result.final.direction, result.final.p) for limit in limits]
                for result in results
            ]
            for _, results, limits in runs()
        ]
    )


def cosine(limit, iterate, _p):
    return np.sum(limit * iterate) / np.linalg.norm(limit) / np.linalg.norm(iterate)


def margin_ratio(problem, result, limit):
    """Smallest lead of a selected token along the iterate, over the largest possible one."""
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, result.final.direction, problem.queries)
    top = np.sort(scores, axis=1)
    return (top[:, -1] - top[:, -2]).min() / limit.margin


@pytest.mark.slow
def test_every_limit_is_certified():
    assert all(limit.status == "optimal" for _, _, limits in runs() for limit in limits)


@pytest.mark.slow
def test_mean_divergence_matches_the_reference():
    np.testing.assert_allclose(cross_table(directional_divergence).mean(axis=0), MEAN_DIVERGENCE, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_mean_cosine_matches_the_reference():
    np.testing.assert_allclose(cross_table(cosine).mean(axis=0), MEAN_COSINE, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_every_run_is_nearest_to_the_limit_of_its_own_geometry():
    nearest = cross_table(directional_divergence).argmin(axis=2)
    np.testing.assert_array_equal(nearest, np.broadcast_to(np.arange(4), nearest.shape))


@pytest.mark.slow
def test_share_of_optimal_tokens_matches_the_reference():
    local, best, same = np.zeros(4, int), np.zeros(4, int), 0
    for problem, results, limits in runs():
        scores = problem.token_scores
        local += [locally_optimal(scores, r.selected, c.support) for r, c in zip(results, limits, strict=True)]
        best += [globally_optimal(scores, result.selected) for result in results]
        same += len({tuple(result.selected) for result in results}) == 1
    assert local.tolist() == [92, 98, 99, 98]
    assert best.tolist() == [40, 55, 57, 52]
    assert same == 47


@pytest.mark.slow
def test_margin_ratio_matches_the_reference():
    ratios = [
        [margin_ratio(problem, *pair) for pair in zip(results, limits, strict=True)]
        for problem, results, limits in runs()
    ]
    np.testing.assert_allclose(np.mean(ratios, axis=0), [0.966, 0.978, 0.950, 0.912], rtol=0, atol=1e-3)


def mean_divergence_from_small_start(p, lr, steps, record, rule="normalized", loss="logistic"):
    """Mean D_p over 20 seeds at the recorded steps, to the limit of the tokens selected at the end."""
    rows = []
    for seed in range(1, 21):
        rng = np.random.default_rng(seed)
        problem = AttentionTokens().sample(rng)
        start = 1e-3 * rng.standard_normal((10, 10))
        result = attention_descent(problem, start, p=p, lr=lr, steps=steps, rule=rule, loss=loss, record=record)
        limit = key_query_svm(problem.tokens, problem.queries, result.selected, p=p).direction
        rows.append([directional_divergence(limit, state.direction, p) for state in result.snapshots])
    return np.mean(rows, axis=0)


@pytest.mark.parametrize(
    ("p", "reference"), [(1.1, [0.070, 7.1e-4]), (1.75, [1.2e-3]), (2.0, [0.0092, 6.0e-5]), (3.0, [0.071, 0.0076])]
)
def test_speed_of_unit_normalized_steps(p, reference):
    record = [100, 1_000][: len(reference)]
    measured = mean_divergence_from_small_start(p, lr=1.0, steps=1_000, record=record)
    np.testing.assert_allclose(measured, reference, rtol=0.04)  # two printed digits


@pytest.mark.slow
def test_speed_of_plain_steps():
    # plain steps still change tokens after 10000 steps: the reference takes those selected at 30000
    measured = mean_divergence_from_small_start(2.0, lr=10.0, steps=30_000, record=[100, 1_000, 10_000], rule="plain")
    np.testing.assert_allclose(measured, [0.219, 0.102, 0.055], rtol=0, atol=5e-4)


@pytest.mark.parametrize(("p", "lr", "step", "reference"), [(1.75, 0.03, 300, 6e-4), (3.0, 0.01, 3_000, 1.2e-4)])
def test_geometric_steps_are_a_fast_warm_start(p, lr, step, reference):
    measured = mean_divergence_from_small_start(p, lr=lr, steps=3_000, record=[step], rule="geometric")
    # steps that grow with W amplify rounding: a change of the start by 1e-12 moves this mean by up to 15 %
    np.testing.assert_allclose(measured, [reference], rtol=0.25)


@pytest.mark.parametrize(("loss", "reference"), [("logistic", 6.0e-5), ("exponential", 5.9e-5), ("linear", 6.2e-5)])
def test_loss_hardly_matters(loss, reference):
    measured = mean_divergence_from_small_start(2.0, lr=1.0, steps=1_000, record=[1_000], loss=loss)
    np.testing.assert_allclose(measured, [reference], rtol=0.01)


@pytest.mark.parametrize("p", [1.75, 2.0, 3.0])
def test_trained_margin_is_the_largest_that_a_search_without_solver_finds(p):
    """Random directions, refined at random around the best one: it shares no code with the solver of the limit."""
    rng = np.random.default_rng(4)
    problem = AttentionTokens(sequences=2, length=3, dim=2).sample(rng)
    lr = 10.0 ** (2.0 * max(p - 2.0, 0.0))
    run = attention_descent(problem, rng.standard_normal((2, 2)), p=p, lr=lr, steps=20_000)

    def margins(weights):  # (k, d, d) -> (k,)
        scores = np.einsum("ntd,kde,ne->knt", problem.tokens, weights, problem.queries)
        leads = [scores[:, i, [k]] - np.delete(scores[:, i], k, axis=1) for i, k in enumerate(run.selected)]
        return np.concatenate(leads, axis=1).min(axis=1) / (np.abs(weights) ** p).sum(axis=(1, 2)) ** (1 / p)

    best = rng.standard_normal((2, 2))
    for spread in 0.75 ** np.arange(40):
        tried = best + spread * np.abs(best).max() * rng.standard_normal((5000, 2, 2))
        tried[0] = best
        best = tried[margins(tried).argmax()]
    assert margins(run.final.direction[None])[0] / margins(best[None])[0] == pytest.approx(1.0, abs=0.01)
