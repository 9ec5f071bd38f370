"""Criteria, pools, groups and pairs of runs, which all claims share."""

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from whichtoken.claims import _checks
from whichtoken.claims._checks import ClaimTable, Criterion, as_predicted, pool_parts
from whichtoken.claims._runs import (
    each_point,
    group_by,
    hits,
    mean_of_runs,
    pairs,
    rows_where,
    share_of_runs,
    values_with_failures,
)
from whichtoken.claims.trained_embeddings import tuples
from whichtoken.lab import Exact, Predicted, Row, Rows

AtLeast, AtMost, Equals = (partial(Criterion, comparison) for comparison in ("at least", "at most", "equal"))


@dataclass(frozen=True)
class Point:
    dim: int = 2
    method: str = "ours"


def row(seed, error=None, predicted=None, **fields):
    status, measured = ("failed", {}) if error is None else ("ok", {"error": error})
    found = {name: Predicted(*value) for name, value in (predicted or {}).items()}
    return Row(Point(**fields), seed, status, "", measured, 0.0, "", found)


ROWS = Rows([row(0, 4.0, dim=2), row(0, 1.0, dim=8), row(1, 6.0, dim=2)], [row(1, dim=8), row(0, dim=16)])


@pytest.mark.parametrize(("criterion", "state"), [(AtLeast, "agrees"), (AtMost, "disagrees"), (Equals, "disagrees")])
def test_a_criterion_relates_a_measurement_to_its_value(criterion, state):
    check = criterion("dice.{sides}", 3.0, "mean of {sides} sides")(Exact(3.5), sides=6)
    assert (check.code, check.claim, check.settle(0.95).state) == ("dice.6", "mean of 6 sides", state)


def test_value_and_tolerance_of_a_table_can_depend_on_the_rows():
    stated = Equals("mean", None, "the mean", tolerance=0.1, material=0.2)
    assert stated(Exact(3.5)).theory is None
    check = stated(Exact(3.5), value=3.0, tolerance=0.6)
    assert (check.theory, check.tolerance, check.material, check.settle(0.95).state) == (3.0, 0.6, 0.2, "agrees")


def test_plain_values_are_averaged():
    assert AtLeast("a", 0.0, "")([0.1, 0.3]).sample.interval(0.95).measured == pytest.approx(0.2)


def test_a_pool_has_the_words_of_its_criterion_and_the_points_of_its_parts():
    stated = AtMost("error", 7.0, "the error", kind="paper-statement", regime="as-stated")
    check = stated.pool(
        stated.part(f"d{dim}", f"d = {dim}", runs.values("error"), on=runs) for dim, runs in group_by(ROWS, "dim")
    )
    assert [part.code for part in check.parts] == ["error.d2", "error.d8", "error.d16"]
    assert [part.claim for part in check.parts] == ["d = 2", "d = 8", "d = 16"]
    assert check.points == {Point(dim=dim) for dim in (2, 8, 16)}
    verdict = check.settle(0.95)
    assert (verdict.code, verdict.claim, verdict.kind, verdict.regime) == (
        "error",
        "the error",
        stated.kind,
        stated.regime,
    )
    assert verdict.state == "undecided", "a point of which nothing finished is a part without a measurement"


def test_parts_of_a_criterion_become_one_check_where_the_first_of_them_stands():
    error, other = AtMost("error.{of}", 7.0, "the error of {of}"), AtLeast("other", 0.0, "something else")

    @pool_parts
    def judge(self, rows):
        yield from error.each(rows, "dim method", "d{}", "d = {}, {}", "error", of="ours")
        yield other(rows.values("error"), on=rows)
        yield error.part("late", "late", rows.values("error"), on=rows, of="ours")
        yield other.part("none", "no rows", [], on=Rows())

    first, second = judge(None, ROWS)
    assert (first.code, first.claim, second.code) == ("error.ours", "the error of ours", "other")
    assert [part.code for part in first.parts] == [
        "error.ours.d2",
        "error.ours.d8",
        "error.ours.d16",
        "error.ours.late",
    ]
    assert first.parts[1].claim == "d = 8, ours"


def test_a_sample_of_all_runs_says_that_it_counts_those_that_failed():
    stated = AtMost("error", 7.0, "the error")
    assert stated(mean_of_runs(ROWS, "error", failed=9.0), on=ROWS).counts_failed
    assert stated(share_of_runs(ROWS, lambda row: True), on=ROWS).counts_failed
    assert not stated(ROWS.values("error"), on=ROWS).counts_failed


def test_a_prediction_allows_a_share_of_itself_and_its_own_error():
    rows = Rows(row(seed, 0.1, {"loss": (-2.0, 0.01)}) for seed in range(2))
    found = as_predicted(rows, "loss", relative=0.1, absolute=0.5)
    assert found == {"value": -2.0, "tolerance": pytest.approx(0.7), "theory_error": 0.01}
    assert as_predicted(rows, "other", relative=0.1, absolute=0.5)["value"] is None


def test_groups_keep_the_order_of_the_plan_and_points_that_failed():
    assert [(dim, len(runs), len(runs.failed)) for dim, runs in group_by(ROWS, "dim")] == [
        (2, 2, 0),
        (8, 1, 1),
        (16, 0, 1),
    ]
    assert [values for values, _ in group_by(ROWS, "dim", "method")] == [(2, "ours"), (8, "ours"), (16, "ours")]
    assert [point.dim for point, _ in each_point(ROWS)] == [2, 8, 16]
    assert not list(group_by(Rows(), "dim"))


def test_pairs_leave_out_repeats_that_lack_one_of_the_two():
    ours = [row(seed, float(seed), method="ours") for seed in (0, 1, 3)]
    theirs = [row(seed, 10.0 * seed, method="theirs") for seed in (1, 2, 3)]
    one, other = pairs(Rows(ours + theirs), "error", {"method": "ours"}, {"method": "theirs"})
    np.testing.assert_array_equal(one, [1.0, 3.0])
    np.testing.assert_array_equal(other, [10.0, 30.0])
    squares, _ = pairs(Rows(ours), lambda row: row.measured["error"] ** 2, {}, {})
    np.testing.assert_array_equal(squares, [0.0, 1.0, 9.0])


def test_a_failed_run_counts_with_the_worst_value():
    assert values_with_failures(ROWS, "error", failed=9.0).tolist() == [2.5, 6.0, 9.0, 9.0]
    assert hits(ROWS, lambda row: row.measured["error"] > 3) == [True, False, True, False, False]
    large = rows_where(ROWS, lambda point: point.dim == 8)
    assert (len(large), len(large.failed)) == (1, 1)


TABLES = sorted(
    path for path in Path(_checks.__file__).parent.glob("*/[a-z]*.toml") if path.with_suffix(".py").is_file()
)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_entry_of_a_table_is_used_by_its_claim(path):
    source = path.with_suffix(".py").read_text("utf-8")
    table = ClaimTable(f"whichtoken.claims.{path.parent.name}.{path.stem}")
    named = set(re.findall(r"TABLE\.(\w+)", source)) - {"presets", "ranges", "shared", "tables"}
    pools = set(re.findall(r'^within = "(\w+)"', path.read_text("utf-8"), re.MULTILINE))
    computed = [name.split("{")[0] for name in re.findall(r'TABLE\[f"(.*?)"\]', source)]
    criteria = set(table.criteria)
    assert named <= criteria
    # a claim may take a criterion by a name that stands in one of its other tables
    listed = set(re.findall(r'"([\w-]+)"', json.dumps(table.tables))) if "TABLE[" in source else set()
    others = criteria - named - pools - listed
    assert [name for name in others if not any(name.startswith(start) for start in computed)] == []
    assert table.presets or "presets = {" in source
    assert set(table.shared) <= set(re.findall(r'use = "(\w+)"', path.read_text("utf-8")))


def test_a_list_among_the_values_of_a_field_is_a_tuple_of_the_point():
    table = ClaimTable("whichtoken.claims.trained_embeddings.reviews")
    grid = table.presets["full"][1]
    assert (grid.least, grid.most) == (5, 5)
    assert [point["drops"] for point in grid.points({})] == [(40, 80)]


def test_a_variant_of_a_claim_keeps_its_grids_and_pools_its_own_parts():
    from whichtoken.claims.sparse_tokens.capacity import TABLE, Capacity

    class Variant(Capacity):
        id = "mine/variant"

    class Judged(Capacity):
        ranges = {"dim": (20, 40)}

        def judge(self, rows):
            for dim in (20, 40):
                yield Equals("variant.mean", 1.0, "mean", tolerance=0.5).part(f"d{dim}", f"d = {dim}", [1.0, 1.1, 0.9])

    assert (Variant.presets, Variant.ranges) == (TABLE.presets, TABLE.ranges)
    assert (Judged.presets, Judged.ranges) == (TABLE.presets, {"dim": (20, 40)})
    assert [check.code for check in Judged().judge(Rows([]))] == ["variant.mean"]


def test_what_a_table_declares_is_not_declared_in_the_class_too():
    """The class was overruled in silence: its random streams were others."""
    with pytest.raises(TypeError, match="method_fields, needs of a claim with a table stand in the table"):
        type("Twice", (_checks.Claim,), {"needs": "torch", "method_fields": frozenset()}, table=tuples.TABLE)


def test_a_pool_of_several_criteria_is_undecided_without_one_of_them():
    whole = Equals("all", None, "all of it")
    one, other = (replace(AtMost(f"all.{name}", 1.0, name), within=whole) for name in ("one", "other"))

    def checks(*samples):
        judged = pool_parts(lambda self, rows: (c(s, on=on) for c, s, on in samples))
        return [check.settle(0.95) for check in judged(None, ROWS)]

    low = [0.1, 0.2, 0.3]
    assert [(found.code, found.state) for found in checks((one, low, ROWS), (other, low, ROWS))] == [("all", "agrees")]
    assert [found.state for found in checks((one, low, ROWS), (other, [], Rows()))] == ["undecided"]
    assert not checks((one, [], Rows()), (other, [], Rows()))
