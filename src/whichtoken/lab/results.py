"""From stored rows to verdicts: the part of a run that never computes a point.

Every point starts with its fewest repeats. When all of them are finished the claims are judged: a look. Points that an
undecided check depends on double their repeats, up to their most, and the next look follows. The number of looks is known in
advance and every look spends an equal part of the 5 % (Bonferroni), so the intervals of all looks hold jointly and looking more
often raises no false alarms. A look uses complete rounds only, so the rows of a run depend neither on the engine and its
workers nor on interruptions. The looks are reconstructed from the stored rows, so only rows need storing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError, in_one_line
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment, Row, Rows
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import MAP_PRESET, RunPlan, RunTask, make_plan
from whichtoken.lab.record import RunSummary, recorded_runs
from whichtoken.lab.samples import Mean
from whichtoken.lab.verdicts import WORST_FIRST, Check, Verdict, in_words, not_run, settle, shared_level

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTE = "some of its rows failed, and it does not count them"
FAULT_PREFIX = "broken: "
MOST_SHOWN = 12  # verdicts in a notebook
JSON_VERSION = 1  # of the form of `as_json`, see `tools/json_schemas.py`
NUMBERS = ("theory", "theory_error", "measured", "low", "high", "resolution")  # of a verdict
Kind = Literal["changed", "weaker", "other state", "apart", "vanished", "new"]


@dataclass(frozen=True)
class Difference(Shown):
    """One verdict that is not as recorded.

    Attributes
    ----------
    kind : str
        `changed` from agrees to disagrees or back, `weaker` if it agreed and is undecided now, `other state` for other changes,
        `apart` if the states are equal and the intervals do not overlap, `vanished` if the run does not give it any more, `new`
        if it is not on record.
    code : str
        Code of the verdict.
    was : str
        State on record.
    verdict, recorded : Verdict or None
        The verdict now and on record; None where the record has only the state.
    """

    kind: Kind
    code: str
    was: str
    verdict: Verdict | None
    recorded: Verdict | None


@dataclass(frozen=True)
class Result(Shown):
    """One run of one experiment with its rows and verdicts, as `reproduce` returns it.

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
    >>> [result] = reproduce(["mirror-descent/direction"], overrides={"p": 2.0}, seeds=3)  # doctest: +SKIP
    >>> [verdict.state for verdict in result.verdicts]  # doctest: +SKIP
    """

    plan: RunPlan
    rows: Rows[Any]
    verdicts: list[Verdict]
    missing: int
    started: str = ""
    fault: str = ""

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the figure of the claim from these rows, as its page has it; into a new figure by default."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 4.2), layout="constrained") if figure is None else figure
        self.experiment.draw(self.rows, figure)
        return figure

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

    @property
    def summary(self) -> RunSummary:
        """The same without the rows."""
        return RunSummary(
            self.id, self.preset, self.plan.overrides, self.plan.seeds, self.started, self.started,
            self.experiment.version, tuple(self.verdicts), self.fault, points=self.points, rows=len(self.all_rows),
            failed=self.failed, missing=self.missing, seconds=self.seconds,
        )  # fmt: skip

    def expected(self, verdict: Verdict) -> str:
        """State on record for this verdict; empty where there is none or it does not apply."""
        return self._recorded_states.get(verdict.code, "")

    @property
    def _recorded_states(self) -> Mapping[str, str]:
        return self.experiment.expected.get(self.preset, {}) if self.plan.as_declared else {}

    @property
    def differences(self) -> list[Difference]:
        """Verdicts that are not as recorded; empty under other settings than the declared ones, which are not on record."""
        states, run = self._recorded_states, recorded_runs().get((self.id, self.preset))
        current = run is not None and run.version == self.experiment.version
        before = {verdict.code: verdict for verdict in run.verdicts} if run is not None and current else {}
        found = []
        for verdict in self.verdicts:
            was = states.get(verdict.code, "")
            kind = _kind(verdict, was, before.get(verdict.code)) if was else None
            if kind is not None:
                found.append(Difference(kind, verdict.code, was, verdict, before.get(verdict.code)))
        complete = not self.missing and not self.fault
        gone = sorted(states.keys() - {verdict.code for verdict in self.verdicts}) if complete else []
        found += [Difference("vanished", code, states[code], None, before.get(code)) for code in gone]
        new = [verdict for verdict in self.verdicts if states and verdict.code not in states]
        return found + [Difference("new", verdict.code, "", verdict, None) for verdict in new]

    @property
    def changed(self) -> list[Verdict]:
        """Verdicts that changed from agrees to disagrees against the record, or back."""
        return self._verdicts_of("changed")

    @property
    def vanished(self) -> list[str]:
        """Codes on record that this run, although complete, does not give."""
        return [difference.code for difference in self.differences if difference.kind == "vanished"]

    @property
    def appeared(self) -> list[Verdict]:
        """Verdicts that are not on record for this preset."""
        return self._verdicts_of("new")

    def _verdicts_of(self, kind: Kind) -> list[Verdict]:
        return [item.verdict for item in self.differences if item.kind == kind and item.verdict is not None]

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
        return f"{self.id} ({self.preset}): {found}; {pluralize(len(self.all_rows), 'row')}{failed} in {self.seconds:.1f} s"

    def _facts(self) -> Mapping[str, object]:
        """The claim, then its verdicts, the worst first."""
        worst_first = sorted(self.verdicts, key=lambda verdict: WORST_FIRST.index(verdict.state))
        more = len(worst_first) - MOST_SHOWN
        found = {verdict.claim or verdict.code: verdict._short_headline() for verdict in worst_first[:MOST_SHOWN]}
        rest = {"and": f"{pluralize(more, 'more verdict')}, in its list of verdicts"} if more > 0 else {}
        return {self.experiment.title: self.experiment.claim} | found | rest


def _kind(verdict: Verdict, was: str, before: Verdict | None) -> Kind | None:
    if "not-run" in (verdict.state, was):
        return None  # without its data there is nothing to compare
    if verdict.state == was:
        return "apart" if before is not None and not overlap(verdict, before) else None
    if {verdict.state, was} == {"agrees", "disagrees"}:
        return "changed"
    return "weaker" if was == "agrees" and verdict.state == "undecided" else "other state"


def overlap(one: Verdict, other: Verdict) -> bool:
    """Whether two intervals overlap; true if one is missing or a single number, where the states say enough."""
    ends = (one.low, one.high, other.low, other.high)
    if any(end is None for end in ends) or one.low == one.high or other.low == other.high:
        return True
    low, high, low_before, high_before = (float(end) for end in ends if end is not None)
    return low <= high_before and low_before <= high


def judge(plan: RunPlan, stored: Mapping[RunTask, Row[Any]], started: str = "") -> Result:
    """The verdicts of a plan from its stored rows; an error in the experiment's judge is a fault of its claim."""
    rows: Rows[Any] = Rows.sorted(stored.values())
    missing = len(plan.tasks) - sum(task.seed is not None for task in stored)
    if plan.fault:
        return Result(plan, rows, [], missing, started, plan.fault)
    reason = next(iter(plan.absent.values()), "") if missing else ""
    try:
        checks = _checks(plan, rows, reason, nothing_stored=not stored)
        verdicts = [with_finite_numbers(verdict) for verdict in settle(checks, plan.looks, plan.look)]
        verdicts = downgrade_unsupported(rows, checks, verdicts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a claim's file does, the other claims are judged
        return Result(plan, rows, [], missing, started, f"judge() failed: {in_one_line(error)}")
    # checks that were not run say themselves what is missing
    explained = any(check.comparison == "not run" for check in checks)
    notes = _note(rows, 0 if explained else missing, reason)
    at_fault = [verdict for verdict in verdicts if verdict.note.startswith(FAULT_PREFIX)]
    fault = "; ".join(f"{verdict.code}: {verdict.note.removeprefix(FAULT_PREFIX)}" for verdict in at_fault)
    return Result(plan, rows, [_with_note(verdict, notes) for verdict in verdicts], missing, started, fault)


def judge_and_store(plan: RunPlan, ledger: Ledger, started: str) -> Result:
    """The verdicts of a run, stored with it in the ledger so that listing them judges nothing."""
    plan = with_stored_repeats(plan, ledger)
    result = judge(plan, ledger.rows(plan), started)
    ledger.put_verdicts(result.summary)
    return result


def stored_results(ledger: Ledger, runs: Iterable[RunSummary] | None = None) -> list[Result]:
    """Every run of the ledger that this program knows, the latest first, judged from its rows."""
    results = []
    for run in ledger.runs() if runs is None else runs:
        experiment = experiments().get(run.id)
        if experiment is None or run.preset not in experiment.presets:
            continue
        try:
            plan = make_plan(experiment, run.preset, run.overrides, run.seeds)
        except UsageError:  # of an earlier version, with a field that is no longer there
            continue
        plan = with_stored_repeats(plan, ledger)
        results.append(judge(plan, ledger.rows(plan), run.started))
    return results


def with_stored_repeats(plan: RunPlan, ledger: Ledger) -> RunPlan:
    """The plan with the repeats that its claims have asked for so far."""
    return with_adaptive_repeats(plan, ledger.rows(plan.largest)) if plan.looks > 1 else plan


def with_adaptive_repeats(plan: RunPlan, stored: Mapping[RunTask, Row[Any]]) -> RunPlan:
    """The plan with the repeats that its looks ask for, as far as the stored rows reach.

    Parameters
    ----------
    plan : RunPlan
        With any number of repeats.
    stored : rows by task
        The finished rows of `plan.largest`.
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
    """The points that an undecided check depends on, as it declares them."""
    try:
        checks = list(_judge_of(plan)(Rows.sorted(stored.values())))
    except KeyboardInterrupt:
        raise
    except BaseException:  # `judge` reports it
        return set()
    level = shared_level(checks, plan.looks)
    single = [part for check in checks for part in check.parts or (check,)]
    undecided = [check for check in single if check.settle(level).state == "undecided"]
    if any(check.points is None for check in undecided):
        return set(plan.points)
    asked = {point for check in undecided for point in check.points or ()}
    return {text for text, point in plan.points.items() if point in asked}


def downgrade_unsupported(rows: Rows[Any], checks: Sequence[Check], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, made undecided where one might agree only because rows of its points failed.

    A check whose sample counts failed rows keeps its verdict. A point that failed and that no check names might have changed any
    of them.
    """
    failed = {row.point for row in rows.failed}
    named = {point for check in checks for point in check.points or ()}
    unnamed = not failed <= named and all(check.points is not None for check in checks)

    def doubtful(check: Check, verdict: Verdict) -> bool:
        concerned = unnamed or check.points is None or bool(failed & check.points)
        return bool(failed) and concerned and not check.counts_failed and verdict.state == "agrees"

    return [
        _with_note(replace(verdict, state="undecided"), NOTE) if doubtful(check, verdict) else verdict
        for check, verdict in zip(checks, verdicts, strict=True)
    ]


def with_finite_numbers(verdict: Verdict) -> Verdict:
    """The verdict with plain numbers; a number that is not finite leaves it undecided and is named in its note."""
    if not isinstance(verdict.code, str) or not isinstance(verdict.claim, str):
        raise TypeError(f"code={verdict.code!r} and claim={verdict.claim!r} of a verdict must be texts")
    given: dict[str, Any] = {n: float(value) for n in NUMBERS if (value := getattr(verdict, n)) is not None}
    wrong = {name: value for name, value in given.items() if not math.isfinite(value)}
    verdict = replace(verdict, **given, evidence=tuple(map(with_finite_numbers, verdict.evidence)))
    if not wrong:
        return verdict
    said = " and ".join(f"{name} is {value}" for name, value in wrong.items())
    hidden: dict[str, Any] = {name: 0.0 if name == "theory_error" else None for name in wrong}
    return replace(verdict, **hidden, state="undecided", note=f"{FAULT_PREFIX}{said}")


def _checks(plan: RunPlan, rows: Rows[Any], reason: str, nothing_stored: bool) -> list[Check]:
    """The checks of the experiment, and those on record that it could not make."""
    on_record = plan.experiment.expected.get(plan.preset, {})
    title = plan.experiment.title
    before = recorded_runs().get((plan.experiment.id, plan.preset)) if on_record else None
    words = {verdict.code: verdict.claim or title for verdict in before.verdicts} if before else {}
    if nothing_stored and reason:
        codes = list(on_record) or [plan.experiment.id.split("/")[1]]
        return [not_run(code, words.get(code, title), reason) for code in codes]
    checks = list(_judge_of(plan)(rows))
    judged = {check.code for check in checks}
    unfinished = bool(reason or rows.failed or len(rows) < len(plan.tasks))
    for code in on_record if plan.as_declared and unfinished else ():
        if code not in judged:  # a check on record does not vanish because none of its rows finished
            sentence = words.get(code, title)
            empty = Check(code, sentence, None, Mean([]), "equal", note="no finished rows to judge")
            checks.append(not_run(code, sentence, reason) if reason else empty)
    return checks


def _judge_of(plan: RunPlan) -> Callable[[Rows[Any]], Iterator[Check]]:
    """The method that judges: a map is judged point by point."""
    return plan.experiment.judge_point if plan.preset == MAP_PRESET else plan.experiment.judge


def _note(rows: Rows[Any], missing: int, reason: str) -> str:
    failed = f"{len(rows.failed)} of {len(rows) + len(rows.failed)} rows failed" if rows.failed else ""
    unfinished = (reason or f"{missing} rows not finished") if missing else ""
    return "; ".join(filter(None, [failed, unfinished]))


def _with_note(verdict: Verdict, note: str) -> Verdict:
    return replace(verdict, note="; ".join(filter(None, [verdict.note, note])))
