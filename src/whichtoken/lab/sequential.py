"""More repeats where a claim is undecided, and only there.

Every point starts with its fewest repeats. When all of them are finished the claims are judged: a look. Points that take part
in an undecided claim double their repeats, up to their most, and the next look follows. The number of looks is known beforehand
and every look spends an equal part of the 5 % (Bonferroni), so the intervals of all looks hold together and looking again is
no way to an alarm. A look sees whole rounds alone: the rows of a run depend neither on the engine nor on its workers, nor on
how often it was interrupted. What was looked at is found again from the stored rows, so nothing but rows needs storing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whichtoken.lab.experiment import Row, Rows
from whichtoken.lab.plan import RunPlan, RunTask
from whichtoken.lab.verdicts import Claim, Verdict, shared_level


def grown(plan: RunPlan, stored: Mapping[RunTask, Row[Any]]) -> RunPlan:
    """The plan with the repeats that its looks ask for, as far as the stored rows reach.

    Parameters
    ----------
    plan : RunPlan
        With its fewest repeats, or any.
    stored : rows by task
        Those of `plan.largest` that are finished.
    """
    plan = replace(plan, repeats={text: least for text, (least, _) in plan.bounds.items()})
    while plan.looks > 1 and all(task in stored for task in plan.tasks if task.point not in plan.absent):
        asked = _undecided_points(plan, {task: stored[task] for task in plan.tasks if task in stored})
        assert plan.repeats is not None
        repeats = {
            text: min(2 * count, plan.bounds[text][1]) if text in asked else count
            for text, count in plan.repeats.items()
        }
        if repeats == plan.repeats:
            break
        plan = replace(plan, repeats=repeats)
    return plan


def _undecided_points(plan: RunPlan, stored: Mapping[RunTask, Row[Any]]) -> set[str]:
    """Points without which an undecided claim would be another: found by leaving each out, for a judge takes any rows."""
    claims = _claims(plan, stored)
    level = shared_level(claims, plan.looks)
    undecided = [verdict for claim in claims if (verdict := claim.settle(level)).state == "inconclusive"]
    if not undecided:
        return set()
    asked = set()
    for point, (_, most) in plan.bounds.items():
        if plan.repeats is None or plan.repeats[point] < most:
            left = verdicts_at(plan, {task: row for task, row in stored.items() if task.point != point}, level)
            if any(left.get(verdict.code) != verdict for verdict in undecided):
                asked.add(point)
    return asked


def verdicts_at(plan: RunPlan, stored: Mapping[RunTask, Row[Any]], level: float) -> dict[str, Verdict]:
    """What these rows alone would say, by code, with intervals of this level."""
    return {claim.code: claim.settle(level) for claim in _claims(plan, stored)}


def _claims(plan: RunPlan, stored: Mapping[RunTask, Row[Any]]) -> list[Claim]:
    """None where the judge fails, which is told when the run is judged."""
    try:
        return list(plan.experiment.judge(Rows.sorted(stored.values())))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return []
