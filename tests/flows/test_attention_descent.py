import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numba import njit

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.descent import attention_descent
from whichtoken.margin import key_query_svm
from whichtoken.norms import power_norm
from whichtoken.theory.mirror_descent import (
    alternating_growth,
    directional_divergence,
    divergence_rate,
    globally_optimal,
)

EXPONENTS = [1.1, 1.5, 1.75, 2.0, 3.0]
SLOPES = {
    "logistic": lambda margins: -1.0 / (1.0 + np.exp(margins)),
    "exponential": lambda margins: -np.exp(-margins),
    "linear": lambda margins: -np.ones_like(margins),
}


def problem_and_start(seed=1, std=1.0):
    rng = np.random.default_rng(seed)
    problem = AttentionTokens().sample(rng)
    return problem, std * rng.standard_normal((10, 10))


def attention_scores(problem, weights):
    return np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)


def textbook_descent(problem, weights, p, lr, steps, rule, loss):
    """The formulas as written in the paper; accurate while the softmax is not saturated."""
    q = p / (p - 1)
    slope = SLOPES.get(loss, loss)
    dual = np.sign(weights) * np.abs(weights) ** (p - 1)
    for _ in range(steps):
        attention = np.exp(attention_scores(problem, np.sign(dual) * np.abs(dual) ** (q - 1)))
        attention /= attention.sum(axis=1, keepdims=True)
        margins = np.sum(attention * problem.token_scores, axis=1)
        factors = slope(margins)[:, None] * attention * (problem.token_scores - margins[:, None])
        gradient = np.einsum("nt,ntd,ne->de", factors, problem.tokens, problem.queries) / len(margins)
        length = 1.0 if rule == "plain" else 1.0 / np.sum(np.abs(gradient) ** q) ** (1 / q)
        if rule == "geometric":
            length *= max(1.0, np.sum(np.abs(dual) ** q) ** (1 / q))
        dual = dual - lr * length * gradient
    return dual


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("rule", ["plain", "normalized", "geometric"])
@pytest.mark.parametrize("loss", list(SLOPES))
def test_follows_the_textbook_formulas(p, rule, loss):
    problem, start = problem_and_start()
    final = attention_descent(problem, start, p=p, lr=0.01, steps=20, rule=rule, loss=loss).final
    expected = textbook_descent(problem, start, p, 0.01, 20, rule, loss)
    np.testing.assert_allclose(np.exp(final.log_dual_norm) * final.dual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("p", EXPONENTS)
def test_state_is_a_unit_dual_and_a_unit_direction(p):
    problem, start = problem_and_start()
    start_state = attention_descent(problem, start, p=p, lr=0.1, steps=0).final
    assert power_norm(start_state.dual, p / (p - 1)) == pytest.approx(1.0, rel=1e-13)
    assert power_norm(start_state.direction, p) == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(np.exp(start_state.log_norm) * start_state.direction, start, rtol=1e-12)


def test_zero_start_shares_attention_equally():
    problem, start = problem_and_start()
    result = attention_descent(problem, 0 * start, p=2.0, lr=1e-3, steps=1, rule="plain", record=[0])
    assert result.snapshots[0].log_norm == -np.inf
    assert not result.snapshots[0].direction.any()
    expected = textbook_descent(problem, 0 * start, 2.0, 1e-3, 1, "plain", "logistic")
    np.testing.assert_allclose(np.exp(result.final.log_norm) * result.final.direction, expected, rtol=1e-12)


def test_snapshots_are_where_shorter_runs_end():
    problem, start = problem_and_start()
    record = [40, 0, 7, 40]
    snapshots = attention_descent(problem, start, p=1.75, lr=0.1, steps=60, record=record).snapshots
    assert [state.step for state in snapshots] == [0, 7, 40]
    for state in snapshots:
        shorter = attention_descent(problem, start, p=1.75, lr=0.1, steps=state.step).final
        np.testing.assert_array_equal(state.dual, shorter.dual)
        assert state.log_dual_norm == shorter.log_dual_norm


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_last_change_is_when_the_winners_last_changed(seed):
    problem, start = problem_and_start(seed)
    result = attention_descent(problem, start, p=2.0, lr=0.1, steps=300, record=range(301))
    winners = [attention_scores(problem, state.direction).argmax(axis=1) for state in result.snapshots]
    np.testing.assert_array_equal(result.selected, winners[-1])
    changes = [step for step in range(1, 301) if (winners[step] != winners[step - 1]).any()]
    assert result.last_change == changes[-1] > 0
    assert result.settled == (changes[-1] <= 225)


def test_start_that_never_changes_its_mind_has_settled_at_once():
    problem, start = problem_and_start()
    trained = attention_descent(problem, start, p=2.0, lr=1.0, steps=1000).final.direction
    assert attention_descent(problem, 1e3 * trained, p=2.0, lr=0.1, steps=100).last_change == 0


@pytest.mark.parametrize("p", EXPONENTS)
def test_norm_beyond_every_float_leaves_a_finite_direction(p):
    problem, start = problem_and_start()
    final = attention_descent(problem, start, p=p, lr=0.5, steps=20_000, rule="geometric").final
    assert final.log_dual_norm > 750.0  # exp overflows at 710
    assert power_norm(final.direction, p) == pytest.approx(1.0, rel=1e-12)


def test_carrying_the_norm_apart_changes_nothing():
    """Above 1e80 only the closest runner-up counts, so that geometric steps see no scale; 1e100 is where it is split off."""
    problem, start = problem_and_start()
    small, large = (
        attention_descent(problem, start * 2.0**power, p=2.0, lr=0.01, steps=50, rule="geometric").final
        for power in (290, 340)
    )
    np.testing.assert_allclose(large.dual, small.dual, rtol=0, atol=1e-13)
    assert large.log_norm - small.log_norm == pytest.approx(50 * np.log(2.0), rel=1e-12)


@pytest.mark.parametrize("gap", [10.0, 720.0, 5000.0])
def test_copy_of_the_winning_token_does_not_drown_the_others(gap):
    problem, start = problem_and_start()
    trained = attention_descent(problem, start, p=2.0, lr=1.0, steps=3000)
    top = np.sort(attention_scores(problem, trained.final.direction), axis=1)
    weights = trained.final.direction * gap / (top[:, -1] - top[:, -2]).min()
    winners = problem.tokens[np.arange(6), trained.selected][:, None]
    doubled = replace(problem, tokens=np.concatenate([problem.tokens, winners], axis=1))
    one, two = (attention_descent(x, weights, p=2.0, lr=10.0, steps=1).final.dual for x in (problem, doubled))
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-4 if gap < 20 else 1e-11)


def test_tokens_of_equal_score_leave_the_start_alone():
    problem, start = problem_and_start()
    flat = replace(problem, decoder=0 * problem.decoder)
    final = attention_descent(flat, start, p=2.0, lr=1.0, steps=10).final
    np.testing.assert_allclose(np.exp(final.log_norm) * final.direction, start, rtol=1e-14)


def test_reaches_the_certified_limit():
    cosines = []
    for seed in range(1, 21):
        problem, start = problem_and_start(seed, std=1e-3)
        result = attention_descent(problem, start, p=2.0, lr=1.0, steps=3000)
        limit = key_query_svm(problem.tokens, problem.queries, result.selected, p=2.0)
        assert limit.status == "optimal"
        cosines.append(np.sum(limit.direction * result.final.direction))
    assert np.mean(cosines) >= 0.9999


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0, 3.0])
def test_norm_grows_and_divergence_falls_as_predicted(p):
    # near the limit D_p jitters from step to step, so that each decade ends in a mean over twenty steps
    record, rates = [*range(2_400, 3_000, 30), *range(24_000, 30_000, 300)], []
    for seed in range(1, 6):
        problem, start = problem_and_start(seed, std=1e-3)
        result = attention_descent(problem, start, p=p, lr=1.0, steps=30_000, record=record)
        limit = key_query_svm(problem.tokens, problem.queries, result.selected, p=p)
        divergence = [directional_divergence(limit.direction, state.direction, p) for state in result.snapshots]
        rates.append(np.log10(np.mean(divergence[:20]) / np.mean(divergence[20:])))
        norms = constraint_norms(problem, result, p)
        growth = 1.0 if p >= 2.0 else alternating_growth(limit.margin, limit.multipliers, norms)
        assert result.final.log_dual_norm == pytest.approx(math.log(30_000 * growth), abs=0.015)
    assert np.mean(rates) == pytest.approx(divergence_rate(p), abs=0.1)


def squared_hinge_like(margin):
    """log |l'| of the smooth loss l(m) = softplus(-m)^2 / 2: softplus(-m) / (1 + exp(m))."""
    gate = math.log1p(math.exp(-abs(margin)))
    return math.log(max(-margin, 0.0) + gate) - max(margin, 0.0) - gate


@pytest.mark.parametrize("wrap", [lambda f: f, njit], ids=["python", "numba"])
def test_loss_of_the_user_follows_its_own_slope(wrap):
    problem, start = problem_and_start()
    final = attention_descent(
        problem, start, p=2.0, lr=0.01, steps=20, rule="plain", loss=wrap(squared_hinge_like)
    ).final
    expected = textbook_descent(
        problem, start, 2.0, 0.01, 20, "plain", lambda margins: -np.logaddexp(0.0, -margins) / (1.0 + np.exp(margins))
    )
    np.testing.assert_allclose(np.exp(final.log_dual_norm) * final.dual, expected, rtol=0, atol=1e-11)


def test_log_slope_of_a_named_loss_changes_nothing():
    problem, start = problem_and_start()
    named, own = (
        attention_descent(problem, start, p=1.5, lr=1.0, steps=500, loss=x) for x in ("exponential", lambda m: -m)
    )
    np.testing.assert_array_equal(named.final.dual, own.final.dual)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_flow_far_out_is_poly_logarithmic(p):
    """The divergence falls as (log t)^-2 min(1, p - 1)."""
    slopes = []
    for seed in range(1, 6):
        problem, start = problem_and_start(seed, std=1e-3)
        record = np.geomspace(2_000, 20_000, 12).astype(int)
        flow = attention_descent(problem, start, p=p, lr=0.1, steps=20_000, rule="flow", record=record)
        if flow.last_change > 1_000:
            continue
        limit = key_query_svm(problem.tokens, problem.queries, flow.selected, p=p).direction
        divergence = [directional_divergence(limit, state.direction, p) for state in flow.snapshots]
        slopes.append(np.polyfit(np.log([state.log_time for state in flow.snapshots]), np.log(divergence), 1)[0])
        assert flow.final.log_time > 200.0
    assert len(slopes) >= 4
    assert np.mean(slopes) == pytest.approx(-2.0 * min(1.0, p - 1.0), abs=0.2)


def test_time_of_plain_steps_is_their_number_times_their_size():
    problem, start = problem_and_start()
    final = attention_descent(problem, start, p=2.0, lr=0.3, steps=50, rule="plain").final
    assert final.log_time == pytest.approx(np.log(15.0), rel=1e-12)


@pytest.mark.parametrize(("p", "share"), [(1.75, 0.64), (2.0, 0.66)])
def test_share_of_zero_starts_that_select_every_best_token(p, share):
    hits = 0
    for seed in range(1, 51):
        problem, start = problem_and_start(seed, std=0.0)
        selected = attention_descent(problem, start, p=p, lr=0.1, steps=2_000).selected
        hits += globally_optimal(problem.token_scores, selected)
    assert hits / 50 == pytest.approx(share, abs=0.021)  # one run in fifty may sit on the fence


def constraint_norms(problem, result, p):
    """|(x_i,alpha_i - x_it) z_i^T|_q, by sequence and unselected token."""
    q = p / (p - 1)
    return [
        power_norm(tokens[chosen] - token, q) * power_norm(query, q)
        for tokens, query, chosen in zip(problem.tokens, problem.queries, result.selected, strict=True)
        for token in np.delete(tokens, chosen, axis=0)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": 1.0}, r"^p=1.0 must be a finite number above 1$"),
        ({"lr": 0.0}, r"^lr=0.0 must be a finite positive number$"),
        ({"steps": -1}, r"^steps=-1 must not be negative$"),
        ({"record": [3, 11]}, r"^record=\[3, 11\] must lie between 0 and steps=10$"),
        ({"rule": "adaptive"}, r"^rule='adaptive' must be one of plain, normalized, geometric, flow$"),
        ({"loss": "hinge"}, r"^loss='hinge' must be one of logistic, exponential, linear or a function that gives log"),
        ({"loss": lambda m: "steep"}, r"^loss=<function .*> must be a function of one float that numba can compile: "),
        ({"loss": lambda m: m - np.inf * 0.0}, r"must return log \|l'\(m\)\| as a number, it returns nan at m = 0$"),
        (
            {"loss": partial(max, 0.0)},
            r"^loss=functools.partial.* must be a function of one float that numba can compile: \S",
        ),
        ({"loss": 3}, r"^loss=3 must be one of logistic, exponential, linear or a function that gives log"),
        ({"start": np.zeros((3, 3))}, r"^start of shape \(3, 3\) must be a finite matrix of shape \(10, 10\)$"),
        ({"start": np.full((10, 10), np.nan)}, r"must be a finite matrix"),
    ],
)
def test_bad_arguments_are_named(change, message):
    problem, start = problem_and_start()
    with pytest.raises(ValueError, match=message):
        attention_descent(problem, **{"start": start, "p": 2.0, "lr": 0.1, "steps": 10, **change})


@pytest.mark.parametrize("field", ["tokens", "queries", "decoder"])
def test_data_that_is_no_number_is_refused(field):
    problem, _ = problem_and_start()
    spoilt = getattr(problem, field).copy()
    spoilt.flat[3] = np.nan
    with pytest.raises(ValueError, match=f"^{field} must hold finite numbers$"):
        replace(problem, **{field: spoilt})
