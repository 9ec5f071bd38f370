import numpy as np
import pytest

from whichtoken.errors import UsageError
from whichtoken.experiments.attention_regression.limit import Limit, Point
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Row, Rows
from whichtoken.lab.plan import make_plan


@pytest.mark.parametrize(
    ("name", "field", "accepted"),
    [
        ("convergence", "setting", "'population', 'tokens' or 'rate'"),
        ("convergence", "start", "'same' or 'own'"),
        ("ablation", "variant", "'full', 'no-gram', .* or 'no-centring'"),
        ("ablation", "start", "'spectral', 'random', 'saddle' or 'flipped'"),
        ("gauge", "gauge", "'balanced', 'orthogonal', 'skewed' or 'symmetric'"),
        ("tokens", "law", "'gaussian', 'uniform', 'sign', 'laplace' or 'student'"),
        ("transformer", "task", "'characters' or 'head'"),
    ],
)
def test_unknown_choices_are_refused_before_anything_runs(name, field, accepted):
    with pytest.raises(UsageError, match=f"{field}='other' is not accepted .* should be {accepted}"):
        make_plan(experiments()[f"attention-regression/{name}"], set={field: "other"})


@pytest.mark.parametrize("context", [0, 1])
def test_a_limit_needs_a_context(context):
    with pytest.raises(ValueError, match=f"context={context} must be at least 2 tokens"):
        Limit().run(Point(context=context), np.random.default_rng(0))


@pytest.mark.parametrize(("logit_norm", "beyond"), [(1.25, False), (1.6, True)])
def test_only_logits_beyond_the_bound_break_the_law(logit_norm, beyond):
    """At 1.25 the operator norm is 0.563: the error falls more slowly than 1/n on short contexts only."""
    rows = []
    for context in (20, 40):
        point = Point(logit_norm=logit_norm, context=context, tokens=80)
        measured = Limit().run(point, np.random.default_rng(0))
        rows += [Row(point, seed, "ok", "", measured, 0.0, "0", Limit().predict(point)) for seed in range(2)]
    codes = {claim.code for claim in Limit().judge(Rows(rows))}
    assert (f"limit.breakdown.plain.q{logit_norm:g}" in codes) == beyond
    assert (f"limit.coverage.plain.q{logit_norm:g}.n20" in codes) != beyond
