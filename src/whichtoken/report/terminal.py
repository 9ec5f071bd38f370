"""Claims and verdicts as people read them on the terminal. Judges nothing: what it lists was stored by the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken import __version__
from whichtoken.display.terminal import console, printable, table
from whichtoken.lab.discovery import experiments, faults
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.ledger import Judged, Ledger, Run
from whichtoken.lab.plan import field_types, make_plan, type_name
from whichtoken.places import LEDGER_NAME

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.lab.results import Result

STATE_STYLE = {"agrees": "green", "disagrees": "red", "inconclusive": "yellow", "not-run": "dim"}


def print_claims(out: Path) -> None:
    """Every claim, its source and what became of it so far; a claim broken says so in its own line."""
    latest: dict[str, Text] = {}
    for run, judged in _stored(out):
        if run.experiment in experiments():
            latest.setdefault(run.experiment, _so_far(experiments()[run.experiment], run, judged))
    listed = table("claim", "title", "source", "so far")
    for claim in experiments().values():
        state = latest.get(claim.id) or printable("not run", "dim")
        listed.add_row(printable(claim.id), printable(claim.title), printable(claim.source), state)
    for fault in faults():
        listed.add_row(printable(fault.name), "", "", printable(f"broken: {fault.sentence}", "red"))
    console().print(listed)


def print_claim(claim: Experiment[Any], out: Path) -> None:
    """One claim: its fields, its presets with the states on record, and the states of the runs so far."""
    screen, types = console(), field_types(claim)
    screen.print(printable(claim.id, "bold"), printable(f" {claim.title}\n\n{claim.claim}"))
    screen.print(printable(f"{claim.source}\n", "dim"))
    listed = table("field", "type", "default", "method")
    for field in fields(claim.point_type):
        default = "required" if field.default is MISSING else field.default
        method = "yes" if field.name in claim.method_fields else ""
        listed.add_row(*map(printable, (field.name, type_name(types[field.name]), default, method)))
    screen.print(listed)
    for preset in claim.presets:
        plan = make_plan(claim, preset)
        size = plan.fault or f"{len(plan.points)} points, {_span(len(plan.tasks), len(plan.largest.tasks))} rows"
        screen.print(printable(f"{preset}: ", "bold") + printable(size), highlight=False)
        for code, state in claim.expected.get(preset, {}).items():
            screen.print(printable(f"  {code}: ") + _state(state), highlight=False)
    for run, judged in _stored(out):
        if run.experiment == claim.id:
            screen.print(printable(f"run of {_request(run)}, {run.started[:16].replace('T', ' ')} UTC", "bold"))
            for line in _verdict_lines(claim, run, judged):
                screen.print(printable("  ") + line, highlight=False)


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def print_results(results: Sequence[Result]) -> None:
    """The verdicts of runs, then a line for each run: its size, its failures and what changed against the record."""
    listed = table("verdict", "claim", "theory", "measured", "95 % interval", "state")
    for result in results:
        for verdict in result.verdicts:
            listed.add_row(
                printable(verdict.code),
                printable(verdict.claim) + printable(f" ({verdict.note})" if verdict.note else "", "dim"),
                f"{verdict.relation.replace('=', '')} {_number(verdict.theory)}".strip(),
                _number(verdict.measured),
                "" if verdict.low is None else f"{_number(verdict.low)} .. {_number(verdict.high)}",
                _state(verdict.state),
            )
    screen = console()
    screen.print(listed)
    for result in results:
        for line in _result_lines(result):
            screen.print(line, highlight=False)


def print_faults() -> bool:
    """A line for each claim that could not be loaded; whether there is one."""
    screen = console()
    for fault in faults():
        screen.print(printable("broken", "red") + printable(f": {fault.name}: {fault.sentence}"), highlight=False)
    return bool(faults())


def _result_lines(result: Result) -> Iterator[Text]:
    first = f"; first: {result.rows.failed[0].message}" if result.failed else ""
    yield printable(
        f"{result.id} {result.preset}: {result.points} points, {result.failed} failed, "
        f"{result.seconds:.1f} s of computing{first}"
    )
    if result.fault:
        yield printable("broken", "red") + printable(f": {result.id}: {result.fault}")
    for verdict in result.changed:
        yield printable("changed", "red") + printable(
            f": {verdict.code} was {result.expected(verdict)}, now {verdict.state}"
        )
    for verdict in result.weakened:
        yield printable("warning", "yellow") + printable(f": {verdict.code} was agrees, now inconclusive")
    if len(result.package_versions) > 1:
        mixture = f": {result.id} mixes rows of {', '.join(result.package_versions)}; --fresh computes them again"
        yield printable("warning", "yellow") + printable(mixture)


def _stored(out: Path) -> Iterator[tuple[Run, Judged | None]]:
    """The runs of a folder's ledger, the latest first, each with what it came to."""
    if not (out / LEDGER_NAME).exists():
        return
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        judged = ledger.judged()
        for run in ledger.runs():
            yield run, judged.get(run.key)


def _so_far(claim: Experiment[Any], run: Run, judged: Judged | None) -> Text:
    """What a run came to, in a few words."""
    name = printable(f"{_request(run)}: ")
    if stale := _stale(claim, run, judged):
        return name + printable(stale, "dim")
    assert judged is not None
    if judged.fault:
        return name + printable(f"broken: {judged.fault}", "red")
    counts = Counter(str(verdict["state"]) for verdict in judged.verdicts)
    for place, (state, number) in enumerate(counts.items()):
        name += printable(", " if place else "") + _state(state, f"{number} ")
    other = judged.package_version != __version__
    return name + printable(f" (by whichtoken {judged.package_version})" if other else "", "dim")


def _verdict_lines(claim: Experiment[Any], run: Run, judged: Judged | None) -> Iterator[Text]:
    if judged is None or _stale(claim, run, judged) or judged.fault:
        yield _so_far(claim, run, judged)
    for verdict in judged.verdicts if judged is not None and not _stale(claim, run, judged) else ():
        noticed = verdict.get("resolution")  # runs of before it was stored have none
        yield (
            printable(f"{verdict['code']}: ")
            + _state(str(verdict["state"]))
            + printable("" if noticed is None else f", would notice a deviation of {_number(noticed)}", "dim")
        )


def _stale(claim: Experiment[Any], run: Run, judged: Judged | None) -> str:
    """Why the stored verdicts do not speak for the run any more; empty when they do."""
    if judged is None or judged.started != run.started:
        return "not finished; run it again"
    if judged.version != claim.version:
        return f"judged for version {judged.version}, now {claim.version}; run it again"
    return ""


def _request(run: Run) -> str:
    changes = "".join(f" {name}={','.join(map(str, values))}" for name, values in run.overrides.items())
    return f"{run.preset}{changes}{f' ({run.seeds} seeds)' if run.seeds else ''}"


def _state(state: str, before: str = "") -> Text:
    return printable(f"{before}{state}", STATE_STYLE.get(state, ""))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
