"""Where does a claim stop holding? Search its parameters for the border, like a property-based test with statistics.

A trial runs the points of the preset `map` with some fields changed and judges them as always. The search moves one field at a
time away from the default, ring by ring, so that the smallest change that breaks a check is found first and the costly end of a
range last; it bisects between the last value that holds and the first that fails; then it changes several fields at once and
shrinks what fails. Whatever it reports failed again on repeats that the search never looks at, at a level that all reports share.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError, in_one_line, unknown
from whichtoken.files import DEFAULT_FOLDER, LEDGER_NAME
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.discovery import find
from whichtoken.lab.engines import Engine, TimeLimit, parse_engine
from whichtoken.lab.experiment import Experiment, Predicted, Row, Rows
from whichtoken.lab.instances import InstanceProof, search_instances
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import MAP_PRESET, RunPlan, RunTask, field_types, make_plan, read_point
from whichtoken.lab.reproduce import store_outcome
from whichtoken.lab.results import downgrade_unsupported, with_finite_numbers
from whichtoken.lab.verdicts import CONFIDENCE, Check, Verdict, settle
from whichtoken.progress import progress_lines

RINGS = 4  # values between the default and each end of a range
REFINEMENTS = 2  # times that values between those are tried
REFINING = 0.5  # share of the budget that must be left for that
FAR_APART = 10.0  # ends of a range whose ratio is larger are searched on a logarithmic scale
PRECISION = 0.05  # relative width of a border at which the search stops
MOST_DOUBLINGS = 3  # of the repeats of a trial whose check is undecided
COMBINED = 16  # trials with several fields changed, at a time
MAP_VALUES = 9  # of each field of a map, at most
MAP_SHARE = 0.4  # of a budget of rows for the first look at a map
COSTLY = 0.34  # share of what is left of the budget that one trial may take
SEARCHING = 0.75  # share of the budget for the search; the rest is for fresh repeats
ROW_FIELDS = ("seed", "status", "message", "measured", "seconds", "package_version")
FRESH = 1_000_000  # number of the first repeat that only confirms
SCHEMA = 1  # version of the JSON form of a result
State = Literal["holds", "fails", "undecided", "cannot run"]
Changes = tuple[tuple[str, Any], ...]  # fields and their values, sorted by name


@dataclass(frozen=True)
class Budget(Shown):
    """How long a search may take: seconds of time, or a number of rows.

    >>> from whichtoken.lab.borders import Budget
    >>> Budget.parse("10m").seconds, Budget.parse("500rows").rows
    (600.0, 500)
    """

    seconds: float = math.inf
    rows: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Budget:
        """From 60s, 10m, 2h or 500rows."""
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|rows)", str(text).strip())
        if not found or not float(found[1]):
            raise UsageError("{budget} is not a time or a number of rows; write 60s, 10m, 2h or 500rows", budget=text)
        number = float(found[1])
        return cls(rows=int(number)) if found[2] == "rows" else cls(number * {"s": 1, "m": 60, "h": 3600}[found[2]])


@dataclass(frozen=True)
class Border(Shown):
    """The value of one field at which a check stops holding, everything else as in the claim.

    Attributes
    ----------
    code, claim : str
        The check that fails beyond the border, and its words.
    field : str
        The field of the point.
    value : float
        Where the measurement crosses what is accepted, by a line through the trials in between.
    low, high : float
        The check agrees at one end of this interval and disagrees at the other.
    fails : {"above", "below"}
        On which side the check fails.
    verdict : Verdict
        Of fresh repeats at the failing end.
    """

    code: str
    claim: str
    field: str
    value: float
    low: float
    high: float
    fails: Literal["above", "below"]
    verdict: Verdict

    def __str__(self) -> str:
        sign = ">" if self.fails == "above" else "<"
        return f"fails as soon as {self.field} {sign} {self.value:.3g} (between {self.low:.4g} and {self.high:.4g})"


@dataclass(frozen=True)
class CounterExample(Shown):
    """A point at which a check fails: as few fields changed as possible, each as little as possible.

    `certificate` is the proof in exact arithmetic, where the claim is about every instance of a problem.
    """

    code: str
    claim: str
    changes: Mapping[str, Any]
    verdict: Verdict | None
    certificate: InstanceProof | None = None

    def __str__(self) -> str:
        if self.certificate is not None:
            return f"fails for one instance: {self.certificate.sentence}"
        changed = ", ".join(f"{name} = {_short(value)}" for name, value in self.changes.items())
        return f"fails at {changed or 'the default'}"


@dataclass(frozen=True)
class BorderTrial(Shown):
    """One set of changes, with the verdict on each check there."""

    changes: Changes
    repeats: int
    verdicts: Mapping[str, Verdict]
    message: str = ""

    def state(self, code: str) -> State:
        if code not in self.verdicts:
            return "cannot run"
        found = self.verdicts[code].state
        return "holds" if found == "agrees" else "fails" if found == "disagrees" else "undecided"

    def margin(self, code: str) -> float | None:
        """Distance of the measurement from failing, in units of the tolerance or of theory; below 0 the check fails."""
        verdict = self.verdicts.get(code)
        if verdict is None or verdict.theory is None or verdict.measured is None:
            return None
        reach = verdict.tolerance + verdict.theory_error
        above, below = verdict.theory + reach - verdict.measured, verdict.measured - verdict.theory + reach
        inside = {"≤": above, "≥": below}.get(verdict.relation, min(above, below))
        return inside / (reach or abs(verdict.theory) or 1.0)


@dataclass(frozen=True)
class StressResult(Shown):
    """What a search found.

    Attributes
    ----------
    claim : str
        Id of the claim.
    held : list of str
        Codes of the checks that hold at the default, which the search tried to break.
    borders : list of Border
        Where one field alone breaks a check.
    counterexamples : list of CounterExample
        Points where several fields together do, the default itself if a check fails there, and instances of a problem.
    searched : mapping of str to (low, high)
        The part of each range that was tried.
    notes : list of str
        What was left out, and why.
    trials : list of BorderTrial
        Every set of changes that was tried.
    rows : int
        Repeats that were judged.
    seconds : float
        Time of the search.
    default : mapping of str to value
        The searched fields of the point that the search started from.
    map_fields : tuple of str
        The fields of the map.

    Examples
    --------
    >>> from whichtoken.lab import StressResult
    >>> StressResult(claim="toy/mean", held=["mean.shift"])
    <StressResult: toy/mean: nothing that breaks it was found (0 trials, 0 rows)>
    """

    claim: str
    held: list[str]
    borders: list[Border] = field(default_factory=list)
    counterexamples: list[CounterExample] = field(default_factory=list)
    searched: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    trials: list[BorderTrial] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0
    default: dict[str, float] = field(default_factory=dict)
    map_fields: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The result as plain values, every trial with its states and margins."""
        trials = [
            {
                "changes": dict(trial.changes),
                "repeats": trial.repeats,
                "states": {code: trial.state(code) for code in trial.verdicts},
                "margins": {code: trial.margin(code) for code in trial.verdicts},
            }
            for trial in self.trials
        ]
        return {"schema": SCHEMA, **asdict(replace(self, trials=[])), "trials": trials}

    def _headline(self) -> str:
        found = [f"{border.code} {border}" for border in self.borders] + [f"{c.code} {c}" for c in self.counterexamples]
        tried = f"{pluralize(len(self.trials), 'trial')}, {pluralize(self.rows, 'row')}"
        return f"{self.claim}: {'; '.join(found) or self.nothing} ({tried})"

    @property
    def nothing(self) -> str:
        """What to say of a search that found nothing."""
        tried = len(self.held) or not len(self.searched)
        return "nothing that breaks it was found" if tried else "no check holds at the default, so nothing was searched"


def stress(
    claim: str,
    budget: str = "60s",
    *,
    fields: Sequence[str] | None = None,
    map_fields: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    engine: str = "local",
    workers: int | None = None,
    out: str | Path = DEFAULT_FOLDER,
) -> StressResult:
    """Search the parameters of a claim for the places where it stops holding.

    Use it to learn whether a theorem holds at your size, and what happens if an assumption fails. Nothing is reported that did
    not fail again on fresh repeats: if every check is true wherever it was tried, the chance of any report is at most 5 %.

    Parameters
    ----------
    claim : str
        Id of a claim that declares `ranges`.
    budget : str, default="60s"
        Time or rows: 60s, 10m, 2h or 500rows. A search by rows finds the same on every machine.
    fields : sequence of str, optional
        The fields to change; all that have a range when not given.
    map_fields : sequence of one or two str, optional
        Also try a grid of these fields over their ranges, for a map.
    overrides : mapping of str to value, optional
        Fields of the default point to change before the search.
    engine : str, default="local"
        Where the rows are computed, as in `reproduce`.
    workers : int, optional
        Processes of the local engine.
    out : path, default="whichtoken-output"
        Folder of the results. Rows go into the ledger, so that a second search with a larger budget continues.

    Returns
    -------
    StressResult
        Borders of single fields, and points where several fields together break a check.

    Raises
    ------
    UsageError
        If the claim declares no ranges, or a field, the budget or the engine is unknown.

    Examples
    --------
    >>> from whichtoken.lab import stress
    >>> found = stress("mirror-descent/direction", "60s")  # doctest: +SKIP
    >>> [str(border) for border in found.borders]  # doctest: +SKIP
    """
    experiment = find(claim)
    if not experiment.ranges and not experiment.lemmas:
        raise UsageError(f"{claim} declares no ranges to search; add `ranges` to its class, field -> (low, high)")
    for name in (*(fields or ()), *map_fields):
        if name not in experiment.ranges:
            raise unknown("range", name, experiment.ranges, claim)
    if len(map_fields) > 2 or len(set(map_fields)) < len(map_fields):
        raise UsageError("{map_fields}: a map has one or two different fields", map_fields=",".join(map_fields))
    limit = Budget.parse(budget)
    runner = parse_engine(engine, workers)
    names = tuple(dict.fromkeys([*(fields or experiment.ranges), *map_fields]))
    search = _Search(experiment, limit, names, overrides or {}, tuple(map_fields))
    with Ledger.writing(Path(out) / LEDGER_NAME) as ledger, runner.keep_workers(), progress_lines(search.describe):
        search.open(ledger, runner)
        return search.result()


@dataclass(frozen=True)
class _Axis:
    """One field with its range, on the scale on which it is searched."""

    name: str
    low: float
    high: float
    default: float
    whole: bool

    @property
    def logarithmic(self) -> bool:
        return self.low > 0 and self.high / self.low >= FAR_APART

    def value(self, place: float) -> Any:
        """The value at a place from 0 (low) to 1 (high)."""
        power = self.low * (self.high / self.low) ** place if self.logarithmic else None
        value = self.low + (self.high - self.low) * place if power is None else power
        return round(value) if self.whole else float(f"{value:.4g}")

    def place(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ring(self, number: int) -> list[Any]:
        """The values at a relative distance number / RINGS from the default toward both ends."""
        start, share = min(max(self.place(self.default), 0.0), 1.0), number / RINGS
        found = (self.value(start + (end - start) * share) for end in (0.0, 1.0))
        return [value for value in dict.fromkeys(found) if value != self.default]

    def middle(self, one: float, other: float) -> Any | None:
        """The value half-way; None if the two are as close as they need to be."""
        # near 0 no share of the value is small enough: there a share of the range is
        scale = max(abs(one), abs(other), 0.02 * (self.high - self.low))
        if abs(one - other) <= PRECISION * scale:
            return None
        found = self.value((self.place(one) + self.place(other)) / 2)
        return None if found in (one, other) else found


@dataclass
class _Bracket:
    """A check that holds at one value of a field and fails at another, and the values in between at which it is undecided."""

    code: str
    axis: _Axis
    holds: float
    fails: float
    outer: float  # one farther off at which it fails too
    unsure: tuple[float, float] | None = None  # the one next to `holds`, the one next to `fails`

    def next_values(self) -> list[Any]:
        """The values to try next; none if the border is as narrow as it can be."""
        nearer, farther = self.unsure or (self.fails, None)
        found = [self.axis.middle(self.holds, nearer)]
        found += [] if farther is None else [self.axis.middle(farther, self.fails)]
        return [value for value in found if value is not None]

    def learn(self, value: float, state: State) -> None:
        if state == "holds":
            self.holds, self.unsure = value, self.unsure if self._before(value) else None
        elif state == "fails":
            self.fails, self.unsure = value, None if self._before(value) else self.unsure
        else:
            nearer, farther = self.unsure or (value, value)
            self.unsure = (value, farther) if self._before(value) else (nearer, value)

    def _before(self, value: float) -> bool:
        """Whether a value lies between the one that holds and the undecided ones."""
        return self.unsure is not None and abs(value - self.holds) < abs(self.unsure[0] - self.holds)


class _Search:
    """One search: the rows and trials so far, and what is left of the budget."""

    def __init__(
        self, experiment: Experiment[Any], budget: Budget, names: tuple[str, ...], overrides: Mapping[str, Any],
        map_fields: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.experiment, self.budget, self.map_fields = experiment, budget, map_fields
        self.preset = MAP_PRESET if MAP_PRESET in experiment.presets else "quick"
        base = make_plan(experiment, self.preset, overrides)
        self.overrides = base.overrides
        if listed := next((name for name, values in base.overrides.items() if len(values) > 1), ""):
            raise UsageError(f"{experiment.id}: give {listed} one value; a search starts from one point")
        if reason := next(iter(base.absent.values()), ""):
            raise UsageError(reason)
        point, kinds = next(iter(base.points.values())), field_types(experiment)
        self.axes = []
        for name in names:
            low, high = map(float, experiment.ranges[name])
            self.axes.append(_Axis(name, low, high, float(getattr(point, name)), kinds[name] is int))
        self.least = max(least for least, _ in base.bounds.values())
        self.started, self.running, self.used, self.phase = time.monotonic(), False, 0, "start"
        self.full = False  # whether no further trial fits into the rows of the search
        self.rows: dict[RunTask, Row[Any]] = {}
        self.predicted: dict[str, Any] = {}
        self.trials: dict[Changes, BorderTrial] = {}
        self.cost: dict[Changes, float] = {}
        self.notes: list[str] = []

    def open(self, ledger: Ledger, engine: Engine) -> None:
        """Start the clock, and read what earlier runs have stored."""
        self.ledger, self.engine, self.started = ledger, engine, time.monotonic()
        for stored in ledger.records([self.experiment.id]):
            if stored["version"] != self.experiment.version:
                continue
            text = canonical_json(stored["point"])
            self.predicted[text] = {name: Predicted(**item) for name, item in stored["predicted"].items()}
            row = Row(read_point(self.experiment, text), *(stored[name] for name in ROW_FIELDS))
            self.rows[RunTask(self.experiment.id, text, row.seed)] = row

    def result(self) -> StressResult:
        if not self.axes:
            return self._summary([], [], self._instances())
        self._try([()])
        base = self.trials[()]
        held = [code for code, verdict in base.verdicts.items() if verdict.state == "agrees"]
        broken = [(code, ()) for code in base.verdicts if base.state(code) == "fails"]
        for code in base.verdicts:
            if base.state(code) == "undecided":
                self.notes.append(f"{code} is undecided at the default, and was left out")
        if not base.verdicts:
            self.notes.append(f"nothing can be judged at the default: {base.message or 'no check applies there'}")
        brackets: list[_Bracket] = []
        combined: list[tuple[str, Changes]] = []
        if held:
            if self.map_fields:
                self._phase("map")
                self._try(grid := self._grid(), held, doublings=0)
            self._widen(held)
            self._phase("values between those distances")
            self._refine(held)
            self._phase("bisection")
            self._bisect(list(self._brackets(held)))
            self._phase("several fields at once")
            combined = [found for found in self._combine(held) if len(found[1]) > 1]
            # shrinking may have found a field that fails alone, where the rings had jumped over
            brackets = self._bisect(list(self._brackets(held)))
            self._phase("what the map left undecided")
            for _ in range(MOST_DOUBLINGS if self.map_fields else 0):
                self._judge(self._double_repeats(grid, held))
        self._phase("fresh repeats")
        borders, found = self._confirm(brackets, [*broken, *combined])
        self._phase("instances")
        found += self._instances()
        return self._summary(held, borders, found)

    def describe(self) -> str:
        """A line of progress."""
        tried = f"{pluralize(len(self.trials), 'trial')}, {pluralize(self.used, 'row')}"
        return f"{self.phase}: {tried}, {100 * (1 - self.left):.0f} % of the budget"

    def _phase(self, name: str) -> None:
        self.phase = name

    @property
    def left(self) -> float:
        """Share of the budget that is left."""
        used = (time.monotonic() - self.started) / self.budget.seconds, self.used / self.budget.rows
        return max(0.0, 1.0 - max(used))

    @property
    def searching(self) -> bool:
        return not self.full and self.left > 1.0 - SEARCHING

    def _plan(self, changes: Changes, repeats: int, first: int = 0) -> RunPlan:
        overrides = {**self.overrides, **{name: [value] for name, value in changes}}
        return replace(make_plan(self.experiment, self.preset, overrides, repeats), first=first)

    def _compute(self, plans: Iterable[RunPlan], kept: float = 0.0) -> None:
        """Run what is not stored, until this share of the budget is left; a row that its end interrupts is not stored either."""
        plans = list(plans)
        owner = {text: plan for plan in plans for text in plan.points}
        tasks = list(dict.fromkeys(task for plan in plans for task in plan.tasks if task not in self.rows))
        if type(self.experiment).predict is not Experiment.predict:
            texts = [text for text in owner if text not in self.predicted]
            tasks = [*(RunTask(self.experiment.id, text, None) for text in texts), *tasks]
        if not tasks:
            return
        seconds = self.budget.seconds - (time.monotonic() - self.started if self.running else 0.0)
        self.engine.limit = TimeLimit(max(seconds, 1.0))
        with closing(self.engine.map(tasks)) as outcomes:
            for task, outcome in outcomes:
                if not self.running:  # starting workers and compiling kernels is not part of the search
                    self.running, self.started = True, time.monotonic() - outcome.seconds
                if "(timeout)" not in outcome.message:
                    row = store_outcome(self.ledger, owner[task.point], task, outcome)
                    if row is None:
                        self.predicted[task.point] = outcome.values
                    else:
                        self.rows[task] = row
                if self.left <= kept:
                    break

    def _rows_of(self, plan: RunPlan) -> Rows[Any]:
        """The finished rows of a plan; empty unless every repeat is there, so that no slow row is left out of a sample."""
        if not all(task in self.rows for task in plan.tasks):
            return Rows()
        return Rows.sorted(
            replace(self.rows[task], predicted=self.predicted.get(task.point, {})) for task in plan.tasks
        )

    def _try(
        self, wanted: Iterable[Changes], codes: Sequence[str] | None = None, doublings: int = MOST_DOUBLINGS
    ) -> None:
        """Judge these changes, with more repeats where a check that matters is undecided."""
        repeats = dict.fromkeys((changes for changes in wanted if changes not in self.trials), self.least)
        self._judge(repeats)
        for _ in range(doublings):
            if self.trials and not self.searching:
                return
            repeats = self._double_repeats(repeats, codes)
            self._judge(repeats)

    def _double_repeats(self, tried: Iterable[Changes], codes: Sequence[str] | None) -> dict[Changes, int]:
        """Twice the repeats of each point, for the changes at which a check that matters is undecided."""
        return {
            changes: 2 * self.trials[changes].repeats // len(self._plan(changes, 1).points)
            for changes in tried
            if changes in self.trials
            and any(
                verdict.state == "undecided" and (codes is None or code in codes)
                for code, verdict in self.trials[changes].verdicts.items()
            )
        }

    def _judge(self, repeats: Mapping[Changes, int]) -> None:
        """Judge what fits into the share of the budget that is not kept for fresh repeats; the default in any case."""
        kept = 1.0 - SEARCHING if self.trials else 0.0
        room = (self.left - kept) * self.budget.rows if math.isfinite(self.budget.rows) and self.trials else math.inf
        plans: dict[Changes, RunPlan] = {}
        for changes, count in repeats.items():
            try:
                plan = self._plan(changes, count)
            except UsageError as error:
                self.trials[changes] = BorderTrial(changes, 0, {}, str(error))
                continue
            new = len(plan.tasks) - (self.trials[changes].repeats if changes in self.trials else 0)
            if new <= room:
                plans[changes], room = plan, room - new
            else:
                self.full = self.full or changes not in self.trials
        self._compute(plans.values(), kept)
        for changes, plan in plans.items():
            rows = self._rows_of(plan)
            if not rows and not rows.failed:
                continue  # the budget ended before
            checks, message = self._checks(rows)
            self.used += len(plan.tasks) - (self.trials[changes].repeats if changes in self.trials else 0)
            self.cost[changes] = sum(row.seconds for row in (*rows, *rows.failed))
            found = map(with_finite_numbers, downgrade_unsupported(rows, checks, settle(checks)))
            self.trials[changes] = BorderTrial(changes, len(plan.tasks), {v.code: v for v in found}, message)

    def _checks(self, rows: Rows[Any]) -> tuple[list[Check], str]:
        """The checks on these rows, and why there are none."""
        message = next((row.message for row in rows.failed), "")
        if not rows:
            return [], message
        try:
            return list(self.experiment.judge_point(rows)), message
        except KeyboardInterrupt:
            raise
        except Exception as error:  # a claim of a user may fail to judge what is far from its presets
            return [], f"the point cannot be judged: {in_one_line(error)}"

    def _widen(self, held: Sequence[str]) -> None:
        """Try each field alone, in rings around the default."""
        stopped: dict[tuple[str, bool], str] = {}
        for ring in range(1, RINGS + 1):
            if not self.searching:
                self.notes.append(f"the budget of the search ended before distance {ring} of {RINGS} from the default")
                break
            self._phase(f"distance {ring} of {RINGS} from the default")
            wanted: list[Changes] = []
            for axis in self.axes:
                for value in axis.ring(ring):
                    side = axis.name, value > axis.default
                    expected = self._expected_cost(axis, value)
                    if side in stopped:
                        continue
                    if expected > COSTLY * self.left * self.budget.seconds:
                        words = f"{axis.name} = {_short(value)} was not tried: it would take about {expected:.0f} s"
                        stopped[side] = words
                    else:
                        wanted.append(((axis.name, value),))
            self._try(wanted, held)
        self.notes += stopped.values()

    def _refine(self, held: Sequence[str]) -> None:
        """Try the values half-way between those tried, where a claim may fail in a window that the rings jumped over."""
        for _ in range(REFINEMENTS):
            if self.left < REFINING:
                return
            wanted: list[Changes] = []
            for axis in self.axes:
                tried = sorted(value for value, trial in self._alone(axis).items() if trial.verdicts)
                between = (axis.middle(one, other) for one, other in pairwise(tried))
                wanted += [((axis.name, value),) for value in between if value is not None]
            self._try(wanted, held)

    def _alone(self, axis: _Axis) -> dict[Any, BorderTrial]:
        """The trials in which nothing but this field was changed, by its value, the nearest to the default first."""
        found = {axis.default: self.trials[()]}
        found |= {changes[0][1]: t for changes, t in self.trials.items() if [n for n, _ in changes] == [axis.name]}
        return dict(sorted(found.items(), key=lambda item: abs(axis.place(item[0]) - axis.place(axis.default))))

    def _expected_cost(self, axis: _Axis, value: float) -> float:
        """Seconds of a trial, by the growth of the two before it in the same direction."""
        side = [
            other
            for other in self._alone(axis)
            if other != axis.default and (other > axis.default) == (value > axis.default)
        ]
        costs = [self.cost.get((), 0.0), *(self.cost.get(((axis.name, other),), 0.0) for other in side)][-2:]
        return costs[-1] * max(1.0, costs[-1] / max(costs[0], 1e-3)) if len(costs) > 1 else costs[0]

    def _brackets(self, held: Sequence[str]) -> Iterator[_Bracket]:
        """For each field and check: two neighboring values, at one of which it holds and at the other fails."""
        for axis in self.axes:
            tried = self._alone(axis)
            for code in held:
                states = sorted(
                    (value, state) for value in tried if (state := tried[value].state(code)) in ("holds", "fails")
                )
                runs = [(state, [value for value, _ in run]) for state, run in groupby(states, key=itemgetter(1))]
                for (state, run), (_, after) in pairwise(runs):
                    holds, failing = (run[-1], after) if state == "holds" else (after[0], run[::-1])
                    # the middle of those that fail fails most clearly
                    yield _Bracket(code, axis, holds, failing[0], outer=failing[len(failing) // 2])

    def _bisect(self, brackets: list[_Bracket]) -> list[_Bracket]:
        """Narrow every bracket to the precision that is wanted, one or two trials of each at a time."""
        open_ones = list(brackets)
        while open_ones and self.searching:
            wanted = [(bracket, value) for bracket in open_ones for value in bracket.next_values()]
            self._try([((b.axis.name, value),) for b, value in wanted], [b.code for b in open_ones])
            for bracket, value in wanted:
                if (trial := self.trials.get(((bracket.axis.name, value),))) is not None:
                    bracket.learn(value, trial.state(bracket.code))
            open_ones = [bracket for bracket in open_ones if bracket.next_values()]
        return brackets

    def _combine(self, held: Sequence[str]) -> list[tuple[str, Changes]]:
        """Change several fields at once, each within what it stands alone, and shrink what fails."""
        from scipy.stats import qmc

        found: dict[str, Changes] = {}
        sampler = qmc.Sobol(max(len(self.axes), 1), rng=np.random.default_rng(0))
        boxes = [self._safe(axis, held) for axis in self.axes]
        while len(self.axes) > 1 and self.left > 0.45 and len(found) < len(held):
            wanted = [c for place in sampler.random(COMBINED) if (c := self._inside(boxes, place)) not in self.trials]
            if not wanted:
                break
            self._try(wanted, held)
            for code in held:
                failing = [c for c in wanted if c in self.trials and self.trials[c].state(code) == "fails"]
                if failing and code not in found:
                    found[code] = self._shrink(code, min(failing, key=len))
        return list(found.items())

    def _safe(self, axis: _Axis, held: Sequence[str]) -> tuple[float, float]:
        """Ends of the range around the default in which the field alone breaks nothing, as places."""
        ends = [axis.default, axis.default]
        for side in (0, 1):
            for value, trial in self._alone(axis).items():
                if value == axis.default or (value > axis.default) != bool(side):
                    continue
                if not all(trial.state(code) == "holds" for code in held):
                    break
                ends[side] = value
        return axis.place(ends[0]), axis.place(ends[1])

    def _inside(self, boxes: Sequence[tuple[float, float]], places: Any) -> Changes:
        """Changes at these places of the boxes."""
        values = (
            (axis, axis.value(low + (high - low) * float(place)))
            for axis, (low, high), place in zip(self.axes, boxes, places, strict=True)
        )
        return tuple(sorted((axis.name, value) for axis, value in values if value != axis.default))

    def _grid(self) -> list[Changes]:
        """All combinations of some values of the fields of the map, as many as the rows allow; the default is one of them."""
        axes = [axis for axis in self.axes if axis.name in self.map_fields]
        affordable = min(MAP_SHARE * self.budget.rows / self.least, MAP_VALUES**2)
        number = min(max(int(affordable ** (1 / len(axes))), 3), MAP_VALUES)
        values = [{axis.default, *(axis.value(place) for place in np.linspace(0, 1, number - 1))} for axis in axes]
        points = (zip((axis.name for axis in axes), chosen, strict=True) for chosen in product(*map(sorted, values)))
        defaults = {axis.name: axis.default for axis in axes}
        return [tuple(sorted((n, v) for n, v in point if v != defaults[n])) for point in points]

    def _shrink(self, code: str, changes: Changes) -> Changes:
        """The same failure with fewer fields changed, and with smaller changes."""
        axes = {axis.name: axis for axis in self.axes}

        def fails(candidate: Changes) -> bool:
            self._try([candidate], [code])
            return candidate in self.trials and self.trials[candidate].state(code) == "fails"

        for name, _ in changes:
            fewer = tuple(item for item in changes if item[0] != name)
            if fewer and self.searching and fails(fewer):
                changes = fewer
        for name in dict(changes):
            axis, holds = axes[name], axes[name].default
            while self.searching and (middle := axis.middle(holds, dict(changes)[name])) is not None:
                nearer = tuple(sorted({**dict(changes), name: middle}.items()))
                if fails(nearer):
                    changes = nearer
                else:
                    holds = middle
        return changes

    def _confirm(
        self, brackets: Sequence[_Bracket], others: Sequence[tuple[str, Changes]]
    ) -> tuple[list[Border], list[CounterExample]]:
        """Keep what fails again on fresh repeats, at a level that all candidates share."""
        ends = {id(b): [((b.axis.name, value),) for value in dict.fromkeys((b.fails, b.outer))] for b in brackets}
        candidates = dict.fromkeys([(b.code, end) for b in brackets for end in ends[id(b)]] + [*others])
        level = CONFIDENCE ** (1 / max(len(candidates), 1))
        fresh = self._fresh_checks(dict.fromkeys(changes for _, changes in candidates))
        confirmed: dict[tuple[str, Changes], Verdict] = {}
        for code, changes in candidates:
            check = fresh.get(changes, {}).get(code)
            verdict = None if check is None else with_finite_numbers(check.settle(level))
            if verdict is not None and verdict.state == "disagrees":
                confirmed[code, changes] = verdict
        borders = []
        for b in brackets:
            if (end := next((end for end in ends[id(b)] if (b.code, end) in confirmed), None)) is None:
                self._drop(b.code, ends[id(b)][0], fresh)
                continue
            b.fails, verdict = end[0][1], confirmed[b.code, end]
            low, high = sorted((b.holds, b.fails))
            side: Literal["above", "below"] = "above" if b.fails > b.holds else "below"
            borders.append(Border(b.code, verdict.claim, b.axis.name, self._crossing(b), low, high, side, verdict))
        found = []
        for code, changes in others:
            if (code, changes) not in confirmed:
                self._drop(code, changes, fresh)
            else:
                found.append(
                    CounterExample(code, confirmed[code, changes].claim, dict(changes), confirmed[code, changes])
                )
        return borders, found

    def _drop(self, code: str, changes: Changes, fresh: Mapping[Changes, Any]) -> None:
        place = ", ".join(f"{name} = {_short(value)}" for name, value in changes) or "the default"
        why = "but not again on fresh repeats" if changes in fresh else "and the budget ended before fresh repeats"
        self.notes.append(f"{code} failed at {place}, {why}; it is not reported")

    def _crossing(self, bracket: _Bracket) -> float:
        """Where the measurement crosses what is accepted: the root of a line through the trials between both ends."""
        axis, places, margins = bracket.axis, [], []
        ends = sorted(axis.place(value) for value in (bracket.holds, bracket.fails))
        for value, trial in self._alone(axis).items():
            margin = trial.margin(bracket.code)
            if ends[0] <= axis.place(value) <= ends[1] and margin is not None and math.isfinite(margin):
                places.append(axis.place(value))
                margins.append(margin)
        middle = (ends[0] + ends[1]) / 2
        if len(places) > 1 and np.ptp(margins) > 0:
            slope, offset = np.polyfit(np.array(places) - middle, margins, 1)
            middle = middle - offset / slope if slope else middle
        place = min(max(float(middle), ends[0]), ends[1])
        low, high = axis.low, axis.high
        return float(low * (high / low) ** place if axis.logarithmic else low + (high - low) * place)

    def _fresh_checks(self, wanted: Iterable[Changes]) -> dict[Changes, dict[str, Check]]:
        """The checks of these changes on twice as many repeats as the search has used, none of which it has seen."""
        plans = {}
        for changes in wanted:
            points = len(self._plan(changes, 1).points)
            used = self.trials[changes].repeats // max(points, 1)
            plans[changes] = self._plan(changes, 2 * max(used, self.least), first=FRESH)
        # the cheap ones first, so that the end of the budget costs as few reports as possible
        for changes in sorted(plans, key=lambda changes: self.cost.get(changes, 0.0)):
            if self.left > 0:
                self._compute([plans[changes]])
        found = {}
        for changes, plan in plans.items():
            rows = self._rows_of(plan)
            if rows or rows.failed:
                self.used += len(plan.tasks)
                found[changes] = {check.code: check for check in self._checks(rows)[0]}
        return found

    def _instances(self) -> list[CounterExample]:
        """Instances of a problem that break a claim about every instance, each proven in exact arithmetic."""
        found = []
        for lemma in self.experiment.lemmas:
            share = self.left * min(self.budget.seconds, 60.0) / max(len(self.experiment.lemmas), 1)
            certificate, tried = search_instances(lemma, seconds=max(share, 1.0))
            if certificate is None:
                self.notes.append(f"{lemma.code}: holds for {tried} random instances and in their neighborhoods")
            else:
                found.append(CounterExample(lemma.code, lemma.claim, {}, None, certificate))
        return found

    def _summary(self, held: list[str], borders: list[Border], counterexamples: list[CounterExample]) -> StressResult:
        searched = {}
        for axis in self.axes:
            tried = [axis.default]
            tried += [v for t in self.trials.values() if t.verdicts for name, v in t.changes if name == axis.name]
            searched[axis.name] = (min(tried), max(tried))
        refused = {trial.message for trial in self.trials.values() if trial.message and not trial.verdicts}
        self.notes += [message for message in sorted(refused)[:3] if not any(message in note for note in self.notes)]
        return StressResult(
            self.experiment.id, held, borders, counterexamples, searched, self.notes, list(self.trials.values()), self.used,
            time.monotonic() - self.started, {axis.name: axis.default for axis in self.axes}, self.map_fields,
        )  # fmt: skip


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
