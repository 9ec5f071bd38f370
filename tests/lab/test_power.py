"""A changed prediction is noticed, or the verdict has no teeth."""

import numpy as np
import pytest
from tools.recording import notices

from whichtoken.lab import Exact, Mean, agreement, at_least, at_most
from whichtoken.lab.verdicts import settle

SPREAD = np.array([-1.0, 1.0] * 10)


def equality(tolerance, noise=0.01, theory=2.0, **options):
    return agreement(
        "code", "claim", theory=theory, measured=Mean(theory + noise * SPREAD), tolerance=tolerance, **options
    )


def test_a_narrow_equality_notices_what_a_wide_one_does_not():
    assert notices(equality(tolerance=0.05), 0.95, 0.05)
    assert notices(equality(tolerance=0.15), 0.95, 0.1)
    assert not notices(equality(tolerance=0.25), 0.95, 0.1)


def test_both_directions_have_to_be_noticed():
    leaning = agreement("code", "claim", theory=2.0, measured=Exact(2.09), tolerance=0.1)
    assert leaning.settle(0.95).state == "agrees"
    assert not notices(leaning, 0.95, 0.05)  # 2.1 would be said to agree as well


def test_a_theory_of_zero_is_changed_by_what_matters():
    assert notices(equality(0.05, theory=0.0, noise=0.001, material=0.06), 0.95, 0.1)
    assert not notices(equality(0.05, theory=0.0, noise=0.001, material=0.04), 0.95, 0.1)


@pytest.mark.parametrize(("bound", "expected"), [(1.05, True), (1.2, False)])
def test_bounds_are_changed_towards_the_measurement(bound, expected):
    assert notices(at_most("code", "claim", bound=bound, measured=Exact(1.0)), 0.95, 0.1) is expected
    assert notices(at_least("code", "claim", bound=-bound, measured=Exact(-1.0)), 0.95, 0.1) is expected


@pytest.mark.parametrize("deviation", [0.5, 1.0])
def test_resolution_is_the_deviation_that_nine_of_ten_samples_would_have_noticed(deviation):
    """Against simulation: samples whose truth is off by the stated resolution are said to agree once in ten at most."""
    rng = np.random.default_rng(5)
    stated, agreed = [], []
    for _ in range(400):
        sample = rng.normal(0.0, deviation, size=12)
        [verdict] = settle([agreement("code", "claim", theory=0.0, measured=Mean(sample), tolerance=2.0)])
        stated.append(verdict.resolution)
    for _ in range(2000):
        sample = rng.normal(np.median(stated), deviation, size=12)
        [verdict] = settle([agreement("code", "claim", theory=0.0, measured=Mean(sample), tolerance=2.0)])
        agreed.append(verdict.state == "agrees")
    assert 0.05 < np.mean(agreed) < 0.15
