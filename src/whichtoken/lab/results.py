"""Rows in, verdicts out: the part of a run that never computes a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from whichtoken.errors import UsageError
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment, Row, Rows
from whichtoken.lab.ledger import Ledger, Run
from whichtoken.lab.plan import Plan, Task, make_plan
from whichtoken.lab.verdicts import Claim, Mean, Verdict, not_run, settle


@dataclass(frozen=True)
class Result:
    """One run of one experiment, judged."""

    plan: Plan
    rows: Rows[Any]  # the finished ones; `rows.failed` holds the others
    verdicts: list[Verdict]
    missing: int  # planned rows that are neither finished nor failed
    started: str = ""

    @property
    def experiment(self) -> Experiment[Any]:
        return self.plan.experiment

    @property
    def id(self) -> str:
        return self.experiment.id

    @property
    def preset(self) -> str:
        return self.plan.preset

    @property
    def points(self) -> int:
        return len(self.plan.points)

    @property
    def failed(self) -> int:
        return len(self.rows.failed)

    @property
    def seconds(self) -> float:
        """Computing time of all rows, whenever they were computed."""
        return sum(row.seconds for row in self.all_rows)

    @property
    def all_rows(self) -> list[Row[Any]]:
        return [*self.rows, *self.rows.failed]

    @property
    def package_versions(self) -> list[str]:
        return sorted({row.package_version for row in self.all_rows})

    def expected(self, verdict: Verdict) -> str:
        """State on record for this verdict; empty where there is none or it does not apply."""
        if not self.plan.as_declared:
            return ""
        return self.experiment.expected.get(self.preset, {}).get(verdict.code, "")

    @property
    def changed(self) -> list[Verdict]:
        """Verdicts that turned round against the record."""
        return [v for v in self.verdicts if {v.state, self.expected(v)} == {"agrees", "disagrees"}]

    @property
    def weakened(self) -> list[Verdict]:
        """Verdicts that the record has as `agrees` and this run could not decide."""
        return [v for v in self.verdicts if v.state == "inconclusive" and self.expected(v) == "agrees"]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "preset": self.preset,
            "points": self.points,
            "failed": self.failed,
            "seconds": self.seconds,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "rows": [row.as_json() for row in self.all_rows],
        }


def judge(plan: Plan, stored: Mapping[Task, Row[Any]], started: str = "") -> Result:
    """The verdicts of a plan from those of its rows that are stored."""
    rows: Rows[Any] = Rows(
        (row for row in stored.values() if row.status == "ok"),
        (row for row in stored.values() if row.status == "failed"),
    )
    missing = len(plan.tasks) - sum(task.seed is not None for task in stored)
    reason = next(filter(None, map(plan.experiment.absent, plan.points.values())), "") if missing else ""
    on_record = plan.experiment.expected.get(plan.preset, {})
    if not stored and reason:
        codes = list(on_record) or [plan.experiment.id.split("/")[1]]
        claims = [not_run(code, plan.experiment.title, reason) for code in codes]
    else:
        claims = list(plan.experiment.judge(rows))
        judged = {claim.code for claim in claims}
        for code in on_record if plan.as_declared else ():
            if code not in judged:  # a claim on record does not vanish because none of its rows finished
                empty = Claim(code, plan.experiment.title, None, Mean([]), "equal", note="no finished row to judge")
                claims.append(not_run(code, plan.experiment.title, reason) if reason else empty)
    explained = any(claim.kind == "not run" for claim in claims)  # these say themselves what is not there
    notes = _note(rows, 0 if explained else missing, reason)
    verdicts = [replace(verdict, note="; ".join(filter(None, [verdict.note, notes]))) for verdict in settle(claims)]
    return Result(plan, rows, verdicts, missing, started)


def stored_results(ledger: Ledger) -> list[Result]:
    """Every run that the ledger remembers and this program knows, the latest first."""
    return [judge(plan, ledger.rows(plan), run.started) for run in ledger.runs() if (plan := _replan(run)) is not None]


def _replan(run: Run) -> Plan | None:
    experiment = experiments().get(run.experiment)
    if experiment is None or run.preset not in experiment.presets:
        return None
    try:
        return make_plan(experiment, run.preset, run.overrides, run.seeds)
    except UsageError:  # of an earlier version, with a field that is no longer there
        return None


def _note(rows: Rows[Any], missing: int, reason: str) -> str:
    failed = f"{len(rows.failed)} of {len(rows) + len(rows.failed)} rows failed" if rows.failed else ""
    unfinished = (reason or f"{missing} rows not finished") if missing else ""
    return "; ".join(filter(None, [failed, unfinished]))
