"""The table of statements, and samples that count failed runs."""

from types import SimpleNamespace

import numpy as np
import pytest
from whichtoken.claims._statements import (
    AtLeast,
    AtMost,
    Equals,
    compare_levels,
    hits,
    rows_where,
    values_with_failures,
)

from whichtoken.lab import Exact, Row, Rows


def row(seed, dim, **measured):
    return Row(SimpleNamespace(dim=dim), seed, "ok" if measured else "failed", "", measured, 0.0, "0")


ROWS = Rows([row(0, 2, error=4.0), row(0, 8, error=1.0), row(1, 2, error=6.0)], [row(1, 8)])


@pytest.mark.parametrize(("statement", "state"), [(AtLeast, "agrees"), (AtMost, "disagrees"), (Equals, "disagrees")])
def test_statement_relates_a_measurement_to_its_value(statement, state):
    claim = statement("dice.{sides}", 3.0, "mean of {sides} sides")(Exact(3.5), sides=6)
    assert (claim.code, claim.claim, claim.settle(0.95).state) == ("dice.6", "mean of 6 sides", state)


def test_value_and_tolerance_of_a_table_can_depend_on_the_rows():
    stated = Equals("mean", None, "the mean", tolerance=0.1, material=0.2)
    assert stated(Exact(3.5)).theory is None
    claim = stated(Exact(3.5), value=3.0, tolerance=0.6)
    assert (claim.theory, claim.tolerance, claim.material, claim.settle(0.95).state) == (3.0, 0.6, 0.2, "agrees")


def test_a_failed_run_counts_with_the_worst_value():
    assert values_with_failures(ROWS, "error", failed=9.0).tolist() == [2.5, 6.0, 9.0]
    assert hits(ROWS, lambda row: row.measured["error"] > 3) == [True, False, True, False]
    large = rows_where(ROWS, lambda point: point.dim == 8)
    assert (len(large), len(large.failed)) == (1, 1)


def test_levels_are_compared_within_repeats_that_have_both():
    assert compare_levels(ROWS, "dim", 2, 8, "error", np.divide).tolist() == [4.0]
    assert compare_levels(ROWS, "dim", 2, 8, lambda row: -row.measured["error"]).tolist() == [-3.0]
