"""The list of claims on the terminal. Judges nothing: what it lists was stored by a run, here or for the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken import __version__
from whichtoken.display.terminal import console, printable, table
from whichtoken.display.text import counted
from whichtoken.lab.discovery import experiments, faults
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.ledger import Judged, Ledger, Run
from whichtoken.lab.plan import field_types, make_plan, type_name
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.verdicts import Verdict
from whichtoken.places import LEDGER_NAME
from whichtoken.report.sentences import least_error
from whichtoken.report.studies import place_of, request_of, stale
from whichtoken.report.terminal import coloured_counts, state_text

if TYPE_CHECKING:
    from rich.text import Text

VERDICT_FIELDS = {field.name for field in fields(Verdict)}


def print_claims(out: Path, theory: str = "") -> None:
    """A line for each claim, or for each of one theory: what became of it here, and in the longest run on record."""
    chosen = {id: claim for id, claim in experiments().items() if not theory or claim.theory == theory}
    latest: dict[str, Text] = {}
    for run, judged in _stored(out):
        if run.experiment in chosen:
            latest.setdefault(run.experiment, _so_far(chosen[run.experiment], run, judged))
    listed = table("claim", "so far", "on record")
    listed.columns[0].no_wrap = True  # an id is there to be copied
    for claim in chosen.values():
        unrun = f"not run: needs {claim.needs}" if claim.missing else "not run"
        listed.add_row(printable(claim.id), latest.get(claim.id) or printable(unrun, "dim"), _on_record(claim))
    for fault in () if theory else faults():
        listed.add_row(printable(fault.name), printable(f"broken: {fault.sentence}", "red"), "")
    console().print(listed)
    for sentence, number in Counter(claim.missing for claim in chosen.values() if claim.missing).items():
        console().print(printable(f"{number} of the {len(chosen)} claims cannot run here: each {sentence}"))
    console().print(printable("whichtoken list ID: what one claim says, its source and its fields", "dim"))


def print_claim(claim: Experiment[Any], out: Path) -> None:
    """One claim: its fields, its presets with the states on record, and the states of the runs so far."""
    screen, types = console(), field_types(claim)
    screen.print(printable(claim.id, "bold"), printable(f" {claim.title}\n\n{claim.claim}"))
    screen.print(printable(f"{claim.source}\n", "dim"))
    if claim.missing:
        screen.print(printable(f"It {claim.missing}\n", "yellow"))
    listed = table("field", "type", "default", "method")
    for field in fields(claim.point_type):
        default = "required" if field.default is MISSING else field.default
        method = "yes" if field.name in claim.method_fields else ""
        listed.add_row(*map(printable, (field.name, type_name(types[field.name]), default, method)))
    screen.print(listed)
    for preset in claim.presets:
        plan = make_plan(claim, preset)
        rows = _span(len(plan.tasks), len(plan.largest.tasks))
        size = plan.fault or f"{counted(len(plan.points), 'point')}, {rows} rows"
        screen.print(printable(f"{preset}: ", "bold") + printable(size), highlight=False)
    screen.print(_recorded_states(claim))
    for run, judged in _stored(out):
        if run.experiment == claim.id:
            screen.print(printable(f"run of {request_of(run)}, {run.started[:16].replace('T', ' ')} UTC", "bold"))
            for line in _verdict_lines(claim, run, judged):
                screen.print(printable("  ") + line, highlight=False)


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _on_record(claim: Experiment[Any]) -> Text:
    """The states of the most telling size on record."""
    for preset in sorted(claim.expected, key=place_of)[:1]:
        return printable(f"{preset}: ") + coloured_counts(Counter(claim.expected[preset].values()))
    return printable("")


def _recorded_states(claim: Experiment[Any]) -> Any:
    """Each verdict on record, with a column for each size."""
    listed = table("on record", *claim.expected)
    runs = [run for (name, _), run in recorded_runs().items() if name == claim.id]
    words = {verdict.code: verdict.claim for run in runs for verdict in run.verdicts if verdict.claim}
    for code in dict.fromkeys(code for states in claim.expected.values() for code in states):
        name = printable(code) + printable(f"\n{words[code]}" if code in words else "", "dim")
        listed.add_row(name, *(_recorded_state(claim, preset, code) for preset in claim.expected))
    return listed


def _recorded_state(claim: Experiment[Any], preset: str, code: str) -> Text:
    """The state of a verdict on record, and the error that it would have noticed."""
    state = claim.expected[preset].get(code)
    if state is None:
        return printable("")
    run = recorded_runs().get((claim.id, preset))
    found = next((verdict for verdict in run.verdicts if verdict.code == code), None) if run else None
    return state_text(state) + _notices(found)


def _notices(verdict: Verdict | None) -> Text:
    error = "" if verdict is None else least_error(verdict)
    return printable(f" (would notice {error})" if error else "", "dim")


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
    name = printable(f"{request_of(run)}: ")
    if why := stale(claim, run, judged):
        return name + printable(why, "dim")
    assert judged is not None
    if judged.fault:
        return name + printable(f"broken: {judged.fault}", "red")
    name += coloured_counts(Counter(str(verdict["state"]) for verdict in judged.verdicts))
    other = judged.package_version != __version__
    return name + printable(f" (by whichtoken {judged.package_version})" if other else "", "dim")


def _verdict_lines(claim: Experiment[Any], run: Run, judged: Judged | None) -> Iterator[Text]:
    if judged is None or stale(claim, run, judged) or judged.fault:
        yield _so_far(claim, run, judged)
    for verdict in judged.verdicts if judged is not None and not stale(claim, run, judged) else ():
        known = verdict if verdict.keys() == VERDICT_FIELDS else None  # runs of older versions have stored less
        yield (
            printable(f"{verdict['code']}: ")
            + state_text(str(verdict["state"]))
            + _notices(Verdict(**known) if known else None)
        )
