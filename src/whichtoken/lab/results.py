"""Rows in, verdicts out: the part of a run that never computes a point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from whichtoken.display.shown import Shown
from whichtoken.display.text import counted
from whichtoken.errors import UsageError, in_one_line
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment, Row, Rows
from whichtoken.lab.failures import held_back
from whichtoken.lab.ledger import Judged, Ledger, Run
from whichtoken.lab.plan import RunPlan, RunTask, make_plan
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.samples import Mean
from whichtoken.lab.sequential import grown
from whichtoken.lab.verdicts import Claim, Verdict, in_words, not_run, settle

AT_FAULT = "broken: "
MOST_SHOWN = 12  # verdicts in a notebook
SPEAKS_AGAINST = ("disagrees", "inconclusive", "agrees", "not-run")


@dataclass(frozen=True)
class Result(Shown):
    """One run of one experiment, judged.

    Attributes
    ----------
    plan : RunPlan
        What was to be run.
    rows : Rows[Any]
        The finished rows; `rows.failed` holds the others.
    verdicts : list[Verdict]
        What became of each claim.
    missing : int
        Planned rows that are neither finished nor failed.
    started : str
        When the run began.
    fault : str
        What is wrong with the claim itself, if it cannot be planned or its judge fails.

    Examples
    --------
    >>> from whichtoken.lab import reproduce
    >>> [result] = reproduce(["mirror-descent/direction"], set={"p": 2.0}, seeds=3)  # doctest: +SKIP
    >>> [verdict.state for verdict in result.verdicts]  # doctest: +SKIP
    """

    plan: RunPlan
    rows: Rows[Any]
    verdicts: list[Verdict]
    missing: int
    started: str = ""
    fault: str = ""

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
    def vanished(self) -> list[str]:
        """Codes on record that this run, complete as it is, does not give."""
        if not self.plan.as_declared or self.missing or self.fault:
            return []
        return sorted(self.experiment.expected.get(self.preset, {}).keys() - {v.code for v in self.verdicts})

    @property
    def appeared(self) -> list[Verdict]:
        """Verdicts that the record of this preset does not know."""
        on_record = self.experiment.expected.get(self.preset, {}) if self.plan.as_declared else {}
        return [verdict for verdict in self.verdicts if verdict.code not in on_record] if on_record else []

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
            "fault": self.fault,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "rows": [row.as_json() for row in self.all_rows],
        }

    def _headline(self) -> str:
        states = Counter(verdict.state for verdict in self.verdicts)
        found = (
            ", ".join(f"{number} {in_words(state, number)}" for state, number in states.most_common())
            or self.fault
            or "nothing judged"
        )
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.id} ({self.preset}): {found}; {counted(len(self.all_rows), 'row')}{failed} in {self.seconds:.1f} s"
        )

    def _facts(self) -> Mapping[str, object]:
        """The claim, then what became of each part of it, what speaks against it first."""
        worst_first = sorted(self.verdicts, key=lambda verdict: SPEAKS_AGAINST.index(verdict.state))
        more = len(worst_first) - MOST_SHOWN
        found = {verdict.claim or verdict.code: verdict._found() for verdict in worst_first[:MOST_SHOWN]}
        rest = {"and": f"{counted(more, 'more verdict')}, in its list of verdicts"} if more > 0 else {}
        return {self.experiment.title: self.experiment.claim} | found | rest


def judge(plan: RunPlan, stored: Mapping[RunTask, Row[Any]], started: str = "") -> Result:
    """The verdicts of a plan from those of its rows that are stored; a judge that fails is a fault of its claim."""
    rows: Rows[Any] = Rows.sorted(stored.values())
    missing = len(plan.tasks) - sum(task.seed is not None for task in stored)
    if plan.fault:
        return Result(plan, rows, [], missing, started, plan.fault)
    reason = next(iter(plan.absent.values()), "") if missing else ""
    try:
        claims = _claims(plan, rows, reason, nothing_stored=not stored)
        verdicts = [_finite(verdict) for verdict in settle(claims, plan.looks, plan.look)]
        verdicts = held_back(plan, stored, claims, verdicts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a claim's file does, the other claims are judged
        return Result(plan, rows, [], missing, started, f"judge() failed: {in_one_line(error)}")
    explained = any(claim.kind == "not run" for claim in claims)  # these say themselves what is not there
    notes = _note(rows, 0 if explained else missing, reason)
    at_fault = [verdict for verdict in verdicts if verdict.note.startswith(AT_FAULT)]
    fault = "; ".join(f"{verdict.code}: {verdict.note.removeprefix(AT_FAULT)}" for verdict in at_fault)
    verdicts = [replace(verdict, note="; ".join(filter(None, [verdict.note, notes]))) for verdict in verdicts]
    return Result(plan, rows, verdicts, missing, started, fault)


def judge_and_store(plan: RunPlan, ledger: Ledger, started: str) -> Result:
    """The verdicts of a run, kept with it in the ledger so that listing them judges nothing."""
    plan = with_repeats(plan, ledger)
    result = judge(plan, ledger.rows(plan), started)
    run = Run(plan.experiment.id, plan.preset, plan.overrides, plan.seeds, started)
    verdicts = [asdict(verdict) for verdict in result.verdicts]
    ledger.put_verdicts(run, Judged(started, plan.experiment.version, verdicts, result.fault))
    return result


def _finite(verdict: Verdict) -> Verdict:
    """The verdict with plain numbers; one that is none, such as NaN, leaves it undecided and is told in its note."""
    if not isinstance(verdict.code, str) or not isinstance(verdict.claim, str):
        raise TypeError(f"code={verdict.code!r} and claim={verdict.claim!r} of a verdict must be texts")
    numbers = {
        name: getattr(verdict, name) for name in ("theory", "theory_error", "measured", "low", "high", "resolution")
    }
    given: dict[str, Any] = {name: float(value) for name, value in numbers.items() if value is not None}
    wrong = {name: value for name, value in given.items() if not math.isfinite(value)}
    verdict = replace(verdict, **given)
    if not wrong:
        return verdict
    said = " and ".join(f"{name} is {value}" for name, value in wrong.items())
    hidden: dict[str, Any] = {name: 0.0 if name == "theory_error" else None for name in wrong}
    return replace(verdict, **hidden, state="inconclusive", note=f"{AT_FAULT}{said}")


def _claims(plan: RunPlan, rows: Rows[Any], reason: str, nothing_stored: bool) -> list[Claim]:
    """The claims of the experiment, and those on record that it could not make."""
    on_record = plan.experiment.expected.get(plan.preset, {})
    title = plan.experiment.title
    before = recorded_runs().get((plan.experiment.id, plan.preset)) if on_record else None
    words = {verdict.code: verdict.claim or title for verdict in before.verdicts} if before else {}
    if nothing_stored and reason:
        codes = list(on_record) or [plan.experiment.id.split("/")[1]]
        return [not_run(code, words.get(code, title), reason) for code in codes]
    claims = list(plan.experiment.judge(rows))
    judged = {claim.code for claim in claims}
    unfinished = bool(reason or rows.failed or len(rows) < len(plan.tasks))
    for code in on_record if plan.as_declared and unfinished else ():
        if code not in judged:  # a claim on record does not vanish because none of its rows finished
            claim = words.get(code, title)
            empty = Claim(code, claim, None, Mean([]), "equal", note="no finished rows to judge")
            claims.append(not_run(code, claim, reason) if reason else empty)
    return claims


def stored_results(ledger: Ledger, runs: Iterable[Run] | None = None) -> list[Result]:
    """Every run that the ledger remembers and this program knows, the latest first, judged from its rows."""
    chosen = ledger.runs() if runs is None else runs
    return [
        judge(whole := with_repeats(plan, ledger), ledger.rows(whole), run.started)
        for run in chosen
        if (plan := _replan(run)) is not None
    ]


def with_repeats(plan: RunPlan, ledger: Ledger) -> RunPlan:
    """The plan with as many repeats as its claims have asked for so far."""
    return grown(plan, ledger.rows(plan.largest)) if plan.looks > 1 else plan


def _replan(run: Run) -> RunPlan | None:
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
