"""Failed rows count against a claim, also where its judge passes them over in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whichtoken.lab.experiment import Row
from whichtoken.lab.plan import RunPlan, RunTask
from whichtoken.lab.sequential import verdicts_at
from whichtoken.lab.verdicts import Claim, Verdict, shared_level

NOTE = "rows that it stands on failed, and it does not count them"


def held_back(
    plan: RunPlan, stored: Mapping[RunTask, Row[Any]], claims: Sequence[Claim], verdicts: Sequence[Verdict]
) -> list[Verdict]:
    """The verdicts, undecided where one would agree only because rows failed.

    A judge that counts failed rows gives another verdict without them, and is believed. Otherwise a verdict that would change
    without the finished rows of a point stands on that point, and those of its rows that failed might have said something else. A
    point with no finished row leaves no trace in any verdict: then all that stand on more than one point are held back.
    """
    failed = {task.point for task, row in stored.items() if row.status == "failed"}
    agreeing = {verdict.code for verdict in verdicts if verdict.state == "agrees"}
    if not failed or not agreeing:
        return list(verdicts)
    level = shared_level(claims, plan.looks)

    def changing(kept: Mapping[RunTask, Row[Any]]) -> set[str]:
        left = verdicts_at(plan, kept, level)
        return {code for code in agreeing if left.get(code) != whole.get(code)}

    whole = verdicts_at(plan, stored, level)
    finished = {task: row for task, row in stored.items() if row.status == "ok"}
    counting = changing(finished)
    points = dict.fromkeys(task.point for task in finished)
    silent = any(point not in points for point in failed)
    stands_on = {
        point: changing({task: row for task, row in stored.items() if task.point != point or row.status == "failed"})
        for point in points
        if silent or point in failed
    }
    several = {code for code in agreeing if sum(code in codes for codes in stands_on.values()) > 1} if silent else set()
    doubtful = set().union(*(codes for point, codes in stands_on.items() if point in failed), several) - counting
    return [
        replace(verdict, state="inconclusive", note="; ".join(filter(None, [verdict.note, NOTE])))
        if verdict.code in doubtful
        else verdict
        for verdict in verdicts
    ]
