"""What the claims about attention regression rely on: fields that are refused, brute force, moments and floors."""

import numpy as np
import pytest

from whichtoken.claims.attention_regression._training import _damped_errors
from whichtoken.claims.attention_regression.limit import Limit, Point
from whichtoken.errors import UsageError
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Row, Rows
from whichtoken.lab.plan import make_plan
from whichtoken.theory.attention_regression import gram_rate


@pytest.mark.parametrize(
    ("name", "field", "accepted"),
    [
        ("convergence", "setting", "'population', 'tokens' or 'rate'"),
        ("convergence", "start", "'same' or 'own'"),
        ("ablation", "variant", "'full', 'no-gram', .* or 'no-preconditioner'"),
        ("ablation", "start", "'spectral', 'random', 'saddle', 'rank-one', 'flipped' or 'unbalanced'"),
    ],
)
def test_unknown_choices_are_refused_before_anything_runs(name, field, accepted):
    with pytest.raises(UsageError, match=f"{field}='other' is not accepted .* should be {accepted}"):
        make_plan(experiments()[f"attention-regression/{name}"], overrides={field: "other"})


@pytest.mark.parametrize("context", [0, 1])
def test_a_limit_needs_a_context(context):
    with pytest.raises(ValueError, match=f"context={context} must be a whole number of at least 2"):
        Limit().run(Point(context=context), np.random.default_rng(0))


@pytest.mark.parametrize(("logit_norm", "beyond"), [(1.25, False), (1.6, True)])
def test_only_logits_beyond_the_bound_break_the_law(logit_norm, beyond):
    """At 1.25 the operator norm is 0.563: the error falls more slowly than 1/n on short contexts only."""
    rows = []
    for context in (20, 40):
        point = Point(logit_norm=logit_norm, context=context, tokens=80)
        measured = Limit().run(point, np.random.default_rng(0))
        rows += [Row(point, seed, "ok", "", measured, 0.0, "0", Limit().predict(point)) for seed in range(2)]
    codes = {part.code for check in Limit().judge(Rows(rows)) for part in check.parts}
    assert (f"limit.breakdown.plain.q{logit_norm:g}" in codes) == beyond
    assert (f"limit.coverage.plain.q{logit_norm:g}.n20" in codes) != beyond


def brute_force(point, rng, queries=20):
    """The error of a layer, written out by hand: diagonal factors, one query after another, no code of the package."""
    sizes = np.geomspace(1.0, 1.0 / point.condition, point.dim)
    root = np.sqrt(sizes)
    value, key_query = root * np.sqrt(sizes.sum()) / point.logit_norm, root * point.logit_norm / np.sqrt(sizes.sum())
    errors = []
    for _ in range(point.tokens // point.context):
        context = rng.standard_normal((point.context, point.dim))
        for query in rng.standard_normal((queries, point.dim)):
            logits = context @ (key_query * query)
            weights = np.exp(logits - logits.max())
            errors.append(np.sum((value * (weights @ context) / weights.sum() - sizes * query) ** 2))
    return point.context * float(np.mean(errors))


def test_brute_force_measures_what_the_layer_does():
    """Two ways to the same error, from other draws and through other code."""
    point, rng = Point(context=400, tokens=80_000), np.random.default_rng(0)
    assert brute_force(point, rng) == pytest.approx(Limit().run(point, rng)["scaled_error"], rel=0.1)


def test_damped_errors_shrink_at_the_slowest_direction_by_the_damped_rate():
    sizes, wrong = np.array([1.0, 0.1, 0.01]), np.zeros((3, 3))
    wrong[2, 2] = 1.0
    first, second = _damped_errors(np.diag(sizes), wrong, [0.02, 0.02], 0.25)
    assert np.sum(second**2) / np.sum(first**2) == pytest.approx(gram_rate(sizes, 0.25, damping=0.02))
