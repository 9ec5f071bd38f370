"""More repeats where a claim is undecided; the same ones for every engine, and no false alarm for looking often."""

from collections import Counter

import numpy as np
import pytest

from whichtoken.errors import UsageError
from whichtoken.lab import Grid, Mean, agreement, reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.plan import make_plan
from whichtoken.lab.verdicts import settle


def repeats(result):
    return Counter(row.point.spread for row in result.rows)


def values(result):
    return {(row.point.spread, row.seed): row.measured["value"] for row in result.rows}


def test_only_points_of_undecided_claims_are_repeated(tmp_path, no_workers):
    [result] = reproduce(["toy/sequential"], workers=1, out=tmp_path)
    found = repeats(result)
    assert found[0.01] == 4  # decided at the first look
    assert 4 < found[0.5] < 32
    assert found[100.0] == 32  # never decided
    assert [verdict.state for verdict in result.verdicts] == ["agrees", "agrees", "undecided"]
    assert result.missing == 0


@pytest.mark.process
def test_workers_and_interruptions_do_not_matter(tmp_path):
    [alone] = reproduce(["toy/sequential"], workers=1, out=tmp_path / "one")
    [both] = reproduce(["toy/sequential"], workers=2, out=tmp_path / "two")
    reproduce(["toy/sequential"], seeds=3, workers=1, out=tmp_path / "three")  # rows of another request lie there
    reproduce(["toy/sequential"], overrides={"spread": 0.01}, seeds=9, workers=1, out=tmp_path / "three")
    [resumed] = reproduce(["toy/sequential"], workers=1, out=tmp_path / "three")
    assert values(alone) == values(both) == values(resumed)
    assert alone.verdicts == both.verdicts == resumed.verdicts


def test_afresh_is_as_from_the_start(tmp_path, no_workers):
    first, again = (reproduce(["toy/sequential"], workers=1, out=tmp_path, fresh=fresh)[0] for fresh in (False, True))
    assert values(first) == values(again)
    assert first.verdicts == again.verdicts


def test_a_number_of_seeds_is_a_number_of_seeds(tmp_path, no_workers):
    [result] = reproduce(["toy/sequential"], seeds=5, workers=1, out=tmp_path)
    assert set(repeats(result).values()) == {5}


def test_a_plan_says_how_many_rows_it_may_need():
    plan = make_plan(find("toy/sequential"))
    assert (len(plan.tasks), len(plan.largest.tasks), plan.size, plan.looks) == (12, 96, 96, 4)


@pytest.mark.parametrize("seeds", [0, (0, 4), (5, 4)])
def test_impossible_numbers_of_seeds(seeds):
    with pytest.raises(UsageError, match="must be a number of at least 1, or two of them"):
        Grid(seeds=seeds)


@pytest.mark.slow
def test_looking_often_gives_no_more_false_alarms():
    """2 000 experiments of two true claims, looked at four times; a tolerance of 0 never lets them agree and stop."""
    rng = np.random.default_rng(0)
    alarms = 0
    for experiment in rng.standard_normal((2000, 2, 32)):
        for seeds in (4, 8, 16, 32):
            claims = [
                agreement(str(k), "", theory=0.0, measured=Mean(experiment[k, :seeds]), tolerance=0.0) for k in range(2)
            ]
            if any(verdict.state == "disagrees" for verdict in settle(claims, looks=4)):
                alarms += 1
                break
    assert 0.01 < alarms / 2000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
