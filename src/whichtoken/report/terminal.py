"""Runs as people read them on the terminal: a line for each, then what is not as recorded; tables on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from whichtoken.display.terminal import console, printable, table
from whichtoken.lab.comparison import Difference, differences
from whichtoken.lab.discovery import faults
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.verdicts import Verdict, in_words
from whichtoken.report.sentences import STATES, counted_states, counts, number, sentence
from whichtoken.report.studies import Study, leading
from whichtoken.report.theories import THEORIES

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.lab.results import Result

MOST_NAMED = 3  # claims of one line; more are counted
STATE_STYLE = {"agrees": "green", "disagrees": "red", "inconclusive": "yellow", "not-run": "dim"}
DIFFERENCES = {
    "changed": ("changed", "red"),
    "vanished": ("gone", "red"),
    "new": ("new", "red"),
    "weaker": ("undecided now", "yellow"),
    "apart": ("moved", "yellow"),
    "other state": ("decided now", "dim"),
}


def print_results(results: Sequence[Result], verbose: bool = False) -> None:
    """A line for each run, then whatever is not as recorded; `verbose` puts the verdicts of each run before them."""
    screen = console()
    if verbose:
        for result in results:
            screen.print(_verdict_table(result))
    listed = table("claim", "verdicts", "time")
    for result in results:
        listed.add_row(_name(result), coloured_counts(counts(result.verdicts)), f"{result.seconds:.1f} s")
    screen.print(listed)
    for result in results:
        for line in _troubles(result):
            screen.print(line, highlight=False)
    for line in _reasons_not_run(results):
        screen.print(line, highlight=False)
    compared = [(result, differences(result)) for result in results]
    for result, found in compared:
        for item in found:
            screen.print(_difference(result, item), highlight=False)
    screen.print(printable(_beside_the_record(results, sum(len(found) for _, found in compared))))


def print_summary(studies: Iterable[Study], page: str, record: bool = False) -> None:
    """How a demonstration ends: a sentence for each family of claims, the counts, where the report is, what to try next."""
    screen, leaders = console(), leading(studies).values()
    for theory in THEORIES:
        verdicts = [verdict for study in leaders if study.experiment.theory == theory.id for verdict in study.verdicts]
        if verdicts:
            told = f": of {len(verdicts)} verdicts about {theory.about}, "
            screen.print(
                printable(theory.name, "bold") + printable(told) + coloured_counts(counts(verdicts)), highlight=False
            )
    found = counts(verdict for study in leaders for verdict in study.verdicts)
    screen.print(printable(f"In all {sum(found.values())} verdicts: {counted_states(found)}."), highlight=False)
    screen.print(printable("report: ", "bold") + printable(page), highlight=False, soft_wrap=True)
    tries = [
        ("whichtoken report --record", "what the long runs found"),
        ("whichtoken reproduce mirror-descent/direction --preset full", "one claim at its full size, in minutes"),
        ("whichtoken list", "every claim, its source and its states"),
    ]
    for command, what in tries[record:]:
        screen.print(printable("try  ", "dim") + printable(f"{command:62}") + printable(what, "dim"), highlight=False)


def print_faults() -> bool:
    """A line for each claim that could not be loaded; whether there is one."""
    screen = console()
    for fault in faults():
        screen.print(printable("broken", "red") + printable(f": {fault.name}: {fault.sentence}"), highlight=False)
    return bool(faults())


def coloured_counts(found: Mapping[str, int]) -> Text:
    """The counts of states in their colours: 12 agree, 1 disagrees."""
    told = printable("")
    present = [state for state in STATES if found.get(state)]
    for place, state in enumerate(present):
        words = f"{found[state]} {in_words(state, found[state])}"
        told += printable(", " if place else "") + printable(words, STATE_STYLE[state])
    return told if present else printable("nothing judged", "dim")


def state_text(state: str) -> Text:
    """A state in words and in its colour."""
    return printable(in_words(state, 1), STATE_STYLE.get(state, ""))


def _name(result: Result) -> Text:
    size = result.preset if result.plan.as_declared else f"{result.preset}, other settings"
    return printable(result.experiment.title) + printable(f"  {result.id} ({size})", "dim")


def _verdict_table(result: Result) -> object:
    listed = table("state", "verdict", title=result.id)
    for verdict in result.verdicts:
        told = f"{verdict.claim}{f' ({verdict.note})' if verdict.note else ''}. {sentence(verdict)}"
        listed.add_row(state_text(verdict.state), printable(verdict.code, "bold") + printable("\n" + told))
    return listed


def _troubles(result: Result) -> Iterator[Text]:
    if result.failed:
        told = f": {result.id}: {result.failed} of {len(result.all_rows)} rows; first: {result.rows.failed[0].message}"
        yield printable("failed", "red") + printable(told)
    if result.fault:
        yield printable("broken", "red") + printable(f": {result.id}: {result.fault}")
    if len(result.package_versions) > 1:
        mixture = f": {result.id} mixes rows of {', '.join(result.package_versions)}; --fresh computes them again"
        yield printable("warning", "yellow") + printable(mixture)


def _reasons_not_run(results: Sequence[Result]) -> Iterator[Text]:
    """Each reason why claims were not run, once."""
    reasons: dict[str, dict[str, None]] = {}
    for result in results:
        for verdict in result.verdicts:
            if verdict.state == "not-run" and verdict.note:
                reasons.setdefault(verdict.note, {})[result.id] = None
    for reason, ids in reasons.items():
        which = ", ".join(ids) if len(ids) <= MOST_NAMED else f"{len(ids)} claims"
        yield printable("not run", "dim") + printable(f": {which}: {reason}")


def _difference(result: Result, found: Difference) -> Text:
    name, style = DIFFERENCES[found.kind]
    if found.kind == "other state" and found.verdict is not None and found.verdict.state == "inconclusive":
        name = DIFFERENCES["weaker"][0]
    if found.kind == "new" and found.verdict is not None:
        told = f": {found.code} {in_words(found.verdict.state, 1)}{_interval(found.verdict)}, and is not on record"
        return printable(name, style) + printable(told)
    line = printable(name, style) + printable(f": {found.code} was {in_words(found.was, 1)}{_interval(found.recorded)}")
    if found.verdict is None:
        return line + printable(f", now {result.id} does not give it")
    line += printable(f", now {in_words(found.verdict.state, 1)}{_interval(found.verdict)}")
    return line + printable(f"\n    {found.verdict.claim}. {sentence(found.verdict)}", "dim")


def _interval(verdict: Verdict | None) -> str:
    if verdict is None or verdict.low is None:
        return ""
    return f" ({number(verdict.low)} to {number(verdict.high)})"


def _beside_the_record(results: Sequence[Result], different: int) -> str:
    known = sum(
        bool(result.expected(verdict)) and "not-run" not in (verdict.state, result.expected(verdict))
        for result in results
        for verdict in result.verdicts
    )
    recorded = any((result.id, result.preset) in recorded_runs() for result in results)
    told = "as on record" if recorded else "as the claim's own file expects"
    if not known and all(verdict.state == "not-run" for result in results for verdict in result.verdicts):
        return "Nothing was run: no verdict to compare with."
    if not known:
        return "None of this is on record: no verdict to compare with."
    if not different:
        return f"All {known} verdicts are {told}." if known > 1 else f"The verdict is {told}."
    return f"{different} of {known} verdicts are not {told}."
