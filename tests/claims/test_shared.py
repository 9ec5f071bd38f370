"""Tables of checks, rules, groups and pairs of runs, which all claims share."""

from dataclasses import dataclass

import numpy as np
import pytest

from whichtoken.claims._shared import above, as_predicted, below, check, checks, each_point, group_by, near, pairs
from whichtoken.lab import Exact, Predicted, Row, Rows, agreement, at_least, at_most


@dataclass(frozen=True)
class Point:
    dim: int = 2
    method: str = "ours"


def row(point, seed, error, **predicted):
    found = {name: Predicted(*value) for name, value in predicted.items()}
    return Row(point, seed, "ok", "", {"error": error}, 0.0, "", found)


def test_rules_are_those_of_the_lab():
    sample = Exact(0.3)
    for rule, claim in (
        (above(0.1, theory_error=0.01), at_least("a.b", "c", bound=0.1, measured=sample, theory_error=0.01)),
        (below(0.1), at_most("a.b", "c", bound=0.1, measured=sample)),
        (near(0.2, within=0.05, material=0.1), agreement("a.b", "c", theory=0.2, measured=sample, tolerance=0.05, material=0.1)),
    ):  # fmt: skip
        assert check("a.b", "c", rule, sample) == claim


def test_a_table_joins_codes_and_sentences():
    entries = ("low", "the error", below(1.0), [0.1, 0.3]), ("high", "the gain", above(1.0), [2.0])
    plain = [(claim.code, claim.claim) for claim in checks("a", *entries)]
    assert plain == [("a.low", "the error"), ("a.high", "the gain")]
    placed = [(claim.code, claim.claim) for claim in checks("a", *entries, where="d = 2", ending=".d2")]
    assert placed == [("a.low.d2", "d = 2: the error"), ("a.high.d2", "d = 2: the gain")]
    assert [claim.sample.interval(0.95).measured for claim in checks("a", *entries)] == [pytest.approx(0.2), 2.0]


def test_a_prediction_allows_a_share_of_itself_and_its_own_error():
    rows = Rows(row(Point(), seed, 0.1, loss=(-2.0, 0.01)) for seed in range(2))
    rule = as_predicted(rows, "loss", relative=0.1, absolute=0.5)
    assert (rule["theory"], rule["tolerance"], rule["theory_error"]) == (-2.0, pytest.approx(0.7), 0.01)
    assert as_predicted(rows, "other", relative=0.1, absolute=0.5)["theory"] is None


def test_groups_keep_the_order_of_the_plan():
    points = [Point(4, "theirs"), Point(2, "ours"), Point(4, "ours")]
    rows = Rows(row(point, seed, 0.1) for point in points for seed in range(2))
    assert [(dim, len(runs)) for dim, runs in group_by(rows, "dim")] == [(4, 4), (2, 2)]
    assert [values for values, _ in group_by(rows, "dim", "method")] == [(4, "theirs"), (2, "ours"), (4, "ours")]
    assert [point for point, _ in each_point(rows)] == points
    assert not list(group_by(Rows(), "dim"))


def test_pairs_leave_out_repeats_that_lack_one_of_the_two():
    ours = [row(Point(method="ours"), seed, float(seed)) for seed in (0, 1, 3)]
    theirs = [row(Point(method="theirs"), seed, 10.0 * seed) for seed in (1, 2, 3)]
    one, other = pairs(Rows(ours + theirs), "error", {"method": "ours"}, {"method": "theirs"})
    np.testing.assert_array_equal(one, [1.0, 3.0])
    np.testing.assert_array_equal(other, [10.0, 30.0])
    squares, _ = pairs(Rows(ours), lambda row: row.measured["error"] ** 2, {}, {})
    np.testing.assert_array_equal(squares, [0.0, 1.0, 9.0])
