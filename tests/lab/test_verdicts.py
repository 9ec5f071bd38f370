"""The rules that turn measurements into states."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.lab.experiment import Row, Rows
from whichtoken.lab.samples import Exact, Mean, Resampled, Share
from whichtoken.lab.verdicts import (
    agreement,
    at_least,
    at_most,
    not_run,
    pooled,
    read_verdict,
    readable_verdicts,
    settle,
    shared_level,
)


def state(claim):
    return settle([claim])[0].state


def around(centre, spread, n=5):
    """n values with this mean and standard deviation."""
    values = np.linspace(-1, 1, n)
    return Mean(centre + spread * values / values.std(ddof=1))


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (around(1.04, 0.01), "agrees"),
        (around(1.04, 1.00), "undecided"),  # right on average, but the interval is wider than the tolerance
        (around(1.30, 0.01), "disagrees"),
        (around(1.30, 1.00), "undecided"),
        (around(1.12, 0.03), "undecided"),  # outside the tolerance, its interval not
        (around(1.08, 0.03), "undecided"),  # within the tolerance, its interval not
        (Mean([1.0, 1.0]), "undecided"),  # two seeds are too few
        (Mean([]), "undecided"),
        (Exact(1.05), "agrees"),
        (Exact(1.15), "disagrees"),
    ],
)
def test_equality_rule(sample, expected):
    assert state(agreement("a", "", theory=1.0, measured=sample, tolerance=0.1)) == expected


def test_theory_error_widens_what_is_accepted():
    for spread, expected in ((0.01, "agrees"), (0.12, "undecided")):
        claim = agreement("a", "", theory=1.0, theory_error=0.1, measured=around(1.15, spread), tolerance=0.1)
        assert state(claim) == expected
    assert state(at_least("a", "", bound=1.0, theory_error=0.1, measured=around(0.95, 0.01))) == "agrees"
    assert state(at_most("a", "", bound=1.0, theory_error=0.1, measured=around(1.15, 0.01))) == "disagrees"


def test_a_theory_that_is_wrong_by_eight_percent_does_not_agree_within_three():
    rng = np.random.default_rng(0)
    samples = 1 + 0.2 * rng.standard_normal((300, 20))
    agreed = [state(agreement("a", "", theory=1.08, measured=Mean(s), tolerance=0.03 * 1.08)) for s in samples]
    assert "agrees" not in agreed


@pytest.mark.parametrize("kind", ["equal", "at least", "at most"])
@pytest.mark.parametrize("seeds", [5, 40])
def test_a_deviation_of_the_resolution_is_noticed_nine_times_in_ten(kind, seeds):
    """The resolution comes from one interval; the noise of its width averages out over many experiments."""
    rng = np.random.default_rng(seeds)
    noise = rng.standard_normal((1500, seeds))

    def claim(values):
        if kind == "equal":
            return agreement("a", "", theory=0.0, measured=Mean(values), tolerance=1.5)
        return (at_least if kind == "at least" else at_most)(
            "a", "", bound=0.0, theory_error=1.5, measured=Mean(values)
        )

    resolution = np.mean([settle([claim(values)])[0].resolution for values in noise])
    off = noise + (-resolution if kind == "at least" else resolution)
    agreed = np.mean([state(claim(values)) == "agrees" for values in off])
    assert 0.05 < agreed < 0.15


def test_resolution_is_known_where_an_interval_is():
    assert settle([agreement("a", "", theory=1.0, measured=Exact(1.0), tolerance=0.1)])[0].resolution == 0.1
    assert settle([at_least("a", "", bound=1.0, measured=Exact(1.0))])[0].resolution == 0.0
    assert settle([agreement("a", "", theory=1.0, measured=Mean([1.0]), tolerance=0.1)])[0].resolution is None
    assert settle([not_run("a", "", "no file")])[0].resolution is None


@pytest.mark.parametrize(("centre", "expected"), [(2.0, "agrees"), (0.0, "disagrees"), (1.0, "undecided")])
def test_bound_rule(centre, expected):
    sample = around(centre, 0.1)
    opposite = {"agrees": "disagrees", "disagrees": "agrees"}.get(expected, expected)
    assert state(at_least("a", "", bound=1.0, measured=sample)) == expected
    assert state(at_most("a", "", bound=1.0, measured=sample)) == opposite


def test_five_hits_out_of_five_are_not_certainty():
    assert state(at_least("a", "", bound=0.9, measured=Share([True] * 5))) == "undecided"
    assert state(at_least("a", "", bound=0.9, measured=Share([True] * 100))) == "agrees"


def test_bootstrap_waits_for_ten_seeds():
    values = np.linspace(0.9, 1.1, 9)
    assert Resampled(values, np.median).interval(0.95).low is None
    interval = Resampled(np.append(values, 1.0), np.median).interval(0.95)
    assert interval.low < 1.0 < interval.high


def test_absent_data_is_not_run_and_takes_no_share_of_the_level():
    alone = settle([at_least("a", "", bound=0.0, measured=around(1.0, 0.1))])[0]
    beside = settle([at_least("a", "", bound=0.0, measured=around(1.0, 0.1)), not_run("b", "", "no file")])
    assert (beside[0].low, beside[1].state, beside[1].note) == (alone.low, "not-run", "no file")


@given(st.integers(2, 30))
def test_more_claims_widen_every_interval(claims):
    one = settle([at_least("a", "", bound=0.0, measured=around(1.0, 0.1))])[0]
    many = settle([at_least("a", "", bound=0.0, measured=around(1.0, 0.1))] * claims)[0]
    assert many.low < one.low


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_false_alarms_stay_at_five_percent_per_experiment(seeds):
    """2 000 experiments of four true claims each, with no tolerance to hide behind."""
    rng = np.random.default_rng(seeds)
    samples = rng.standard_normal((2000, 4, seeds))
    alarms = sum(
        any(
            verdict.state == "disagrees"
            for verdict in settle([agreement("a", "", theory=0.0, measured=Mean(s), tolerance=0.0) for s in experiment])
        )
        for experiment in samples
    )
    assert 0.036 < alarms / 2000 < 0.064  # 0.05 and three standard errors of the count


def test_power_against_a_theory_that_is_off():
    rng = np.random.default_rng(0)
    claims = [
        agreement("a", "", theory=1.2, measured=Mean(1 + 0.05 * s), tolerance=0.05)
        for s in rng.standard_normal((200, 5))
    ]
    assert np.mean([state(claim) == "disagrees" for claim in claims]) > 0.95


def test_runs_on_one_problem_count_as_one():
    rows = Rows(
        Row(method, seed, "ok", "", {"value": seed + method}, 0.0, "") for seed in range(3) for method in (0, 2)
    )
    np.testing.assert_array_equal(rows.seed_means("value"), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(rows.seed_means(lambda row: row.point > 0), [0.5, 0.5, 0.5])


def parts_at(*deviations, spread=0.01, tolerance=0.1):
    """The check of each point, with measurements that scatter about 1 + its deviation."""
    scatter = spread * np.array([-1.0, 0.0, 1.0, 0.5, -0.5])
    return [
        agreement(f"p.{k}", f"point {k}", theory=1.0, measured=Mean(1.0 + off + scatter), tolerance=tolerance)
        for k, off in enumerate(deviations)
    ]


@pytest.mark.parametrize(
    ("deviations", "state"),
    [((0.0, 0.0, 0.01), "agrees"), ((0.0, 0.5, 0.0), "disagrees"), ((0.0, 0.1, 0.0), "undecided")],
)
def test_a_pool_agrees_if_every_point_does_and_disagrees_if_one_does(deviations, state):
    verdict = pooled("p", "all points", parts_at(*deviations)).settle(0.95)
    assert verdict.state == state
    assert [part.code for part in verdict.evidence] == ["p.0", "p.1", "p.2"]
    worst = verdict.evidence[int(np.argmax(np.abs(deviations)))]
    assert (verdict.measured, verdict.low, verdict.theory) == (worst.measured, worst.low, worst.theory)


def test_a_pool_counts_once_in_the_correction_of_its_experiment():
    alone = pooled("p", "all points", parts_at(0.0))
    assert shared_level([alone]) == shared_level([pooled("p", "all points", parts_at(*[0.0] * 30))]) == 0.95


def test_points_without_bias_are_rarely_refuted_however_many_are_pooled():
    # tolerance 0.05 at a spread of 0.1: each point alone would be called wrong now and then
    rng = np.random.default_rng(0)

    def pool():
        values = 1.05 + 0.1 * rng.standard_normal((40, 6))  # on the border: the hardest case in which nothing is wrong
        return pooled(
            "p",
            "all points",
            [agreement(f"p.{k}", "", theory=1.0, measured=Mean(each), tolerance=0.05) for k, each in enumerate(values)],
        )

    refuted = sum(pool().settle(0.95).state == "disagrees" for _ in range(200))
    assert refuted <= 0.05 * 200 + 2.5 * np.sqrt(0.05 * 0.95 * 200)


def test_points_that_were_not_run_are_left_out_and_said():
    verdict = pooled("p", "all points", [*parts_at(0.0), not_run("p.9", "point 9", "no data")]).settle(0.95)
    assert (verdict.state, verdict.note) == ("agrees", "1 of 2 points not run")
    assert pooled("p", "all points", [not_run("p.9", "point 9", "no data")]).settle(0.95).state == "not-run"


def test_a_stored_verdict_is_read_with_its_evidence():
    verdict = pooled("p", "all points", parts_at(0.0, 0.1)).settle(0.95)
    stored = json.loads(json.dumps(asdict(verdict)))
    assert read_verdict(stored) == verdict == readable_verdicts([stored])[0]
