"""A row that failed is no evidence, and its absence is none either."""

from dataclasses import dataclass

from whichtoken.lab import Experiment, Grid, Mean, agreement, at_least
from whichtoken.lab.experiment import Row
from whichtoken.lab.plan import make_plan
from whichtoken.lab.results import NOTE, judge


@dataclass(frozen=True)
class Point:
    size: int = 1


class Silent(Experiment[Point]):
    """One claim per size, one over all sizes, and one that counts failures itself."""

    id = "made-up/silent"
    presets = {"quick": (Grid(size=[1, 2, 3], seeds=4),)}

    def run(self, point, rng):
        raise NotImplementedError

    def judge(self, rows):
        for size in rows.levels("size"):
            runs = rows.where(size=size)
            measured = Mean(runs.values("value"))
            yield agreement(f"size.{size}", "the value", theory=1.0, measured=measured, tolerance=0.5, on=runs)
        yield agreement("all", "the value", theory=1.0, measured=Mean(rows.values("value")), tolerance=0.5)
        counted = Mean([*rows.values("value"), *[0.9] * len(rows.failed)])
        yield at_least("counted", "the value", bound=0.5, measured=counted, counts_failed=True)

    def draw(self, rows, figure):
        raise NotImplementedError


def verdicts(fails):
    plan = make_plan(Silent(), "quick")
    stored = {}
    for task in plan.tasks:
        point, failed = plan.points[task.point], fails(plan.points[task.point].size, task.seed)
        value = {"value": 1.0 + 0.01 * task.seed + 0.001 * point.size}
        stored[task] = Row(point, task.seed, "failed" if failed else "ok", "", {} if failed else value, 0.1, "0")
    return {verdict.code: verdict for verdict in judge(plan, stored).verdicts}


def test_without_failures_all_agree():
    assert {verdict.state for verdict in verdicts(lambda size, seed: False).values()} == {"agrees"}


def test_what_stands_on_a_point_with_failed_rows_is_undecided():
    found = verdicts(lambda size, seed: size == 2 and seed == 3)
    undecided = {code for code, verdict in found.items() if verdict.state == "undecided"}
    assert undecided == {"size.2", "all"}
    assert all(NOTE in found[code].note for code in undecided)


def test_a_point_of_which_nothing_finished_holds_back_what_joins_points():
    found = verdicts(lambda size, seed: size == 2)
    assert {code: verdict.state for code, verdict in found.items()} == {
        "size.1": "agrees",
        "size.3": "agrees",
        "all": "undecided",
        "counted": "agrees",
    }


def test_a_failed_point_that_no_check_names_might_have_changed_any_of_them():
    class Forgetful(Silent):
        def judge(self, rows):
            return (check for check in super().judge(rows) if check.code.startswith("size"))

    plan = make_plan(Forgetful(), "quick")
    stored = {}
    for task in plan.tasks:
        point = plan.points[task.point]
        measured = {} if point.size == 2 else {"value": 1.0 + 0.01 * task.seed}
        stored[task] = Row(point, task.seed, "ok" if measured else "failed", "", measured, 0.1, "0")
    assert {verdict.state for verdict in judge(plan, stored).verdicts} == {"undecided"}
