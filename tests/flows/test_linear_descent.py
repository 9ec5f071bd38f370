import numpy as np
import pytest

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.linear import linear_descent
from whichtoken.margin import key_query_svm, prompt_svm
from whichtoken.theory.mirror_descent import directional_divergence

SLOPES = {
    "logistic": lambda margins: 1.0 / (1.0 + np.exp(margins)),
    "exponential": lambda margins: np.exp(-margins),
    "linear": np.ones_like,
}


def separable(seed=1, samples=8, dim=5):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((samples, dim))
    return features * np.sign(features @ rng.standard_normal(dim))[:, None], rng.standard_normal(dim)


@pytest.mark.parametrize("p", [1.1, 2.0, 3.0])
@pytest.mark.parametrize("rule", ["plain", "normalized", "geometric"])
@pytest.mark.parametrize("loss", list(SLOPES))
def test_follows_the_textbook_formulas(p, rule, loss):
    features, start = separable()
    q, dual = p / (p - 1), np.sign(start) * np.abs(start) ** (p - 1)
    for _ in range(30):
        weights = np.sign(dual) * np.abs(dual) ** (q - 1)
        descent = SLOPES[loss](features @ weights) @ features / len(features)
        length = 1.0 if rule == "plain" else 1.0 / np.linalg.norm(descent, q)
        dual = dual + 0.01 * length * (max(1.0, np.linalg.norm(dual, q)) if rule == "geometric" else 1.0) * descent
    final = linear_descent(features, start, p=p, lr=0.01, steps=30, rule=rule, loss=loss).final
    np.testing.assert_allclose(np.exp(final.log_dual_norm) * final.dual, dual, rtol=0, atol=1e-11)


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0, 3.0])
def test_ends_in_the_max_margin_direction(p):
    features, start = separable()
    limit = prompt_svm(np.stack([features, 0 * features], axis=1), [0] * len(features), p).direction
    final = linear_descent(features, start, p=p, lr=100.0, steps=20_000).final
    assert directional_divergence(limit, final.direction, p) < 1e-5


def test_shares_its_limit_with_attention_on_the_same_constraints():
    problem = AttentionTokens().sample(np.random.default_rng(1))
    selected = problem.token_scores.argmax(axis=1)
    leads = [
        np.outer(tokens[best] - tokens[t], query)
        for tokens, query, best in zip(problem.tokens, problem.queries, selected, strict=True)
        for t in range(8)
        if t != best
    ]
    limit = key_query_svm(problem.tokens, problem.queries, selected).direction
    final = linear_descent(leads, np.zeros((10, 10)), p=2.0, lr=1.0, steps=3_000).final
    assert final.direction.shape == (10, 10)
    assert directional_divergence(limit, final.direction, 2.0) < 1e-5


@pytest.mark.parametrize("p", [1.5, 2.0])
def test_flow_keeps_the_smallest_margin_at_log_time(p):
    """t exp(-margin |w|) ~ |w|^(p-2): up to log log t, the smallest margin is log t."""
    features, start = separable()
    flow = linear_descent(features, 0 * start, p=p, lr=0.05, steps=20_000, rule="flow")
    margins = np.exp(flow.final.log_norm) * (features @ flow.final.direction)
    expected = flow.final.log_time - (p - 2.0) * flow.final.log_norm
    assert margins.min() == pytest.approx(expected, abs=5.0)
    assert flow.final.log_time > 100.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"features": np.zeros((3, 4))},
            r"^features of shape \(3, 4\) must be a list of arrays of the shape \(5,\) of start$",
        ),
        ({"start": np.full(5, np.nan)}, r"^features and start must be finite$"),
        ({"steps": -1}, r"^steps=-1 must not be negative$"),
    ],
)
def test_bad_arguments_are_named(change, message):
    features, start = separable()
    with pytest.raises(ValueError, match=message):
        linear_descent(**{"features": features, "start": start, "p": 2.0, "lr": 0.1, "steps": 10, **change})
