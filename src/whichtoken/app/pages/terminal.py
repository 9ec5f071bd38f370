"""Runs and claims on the terminal: a line for each, then the differences from the record; tables on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken import __version__
from whichtoken.app.pages.sentences import ANSWER_CLASS, STATES, counts, least_error, number, place_of, sentence
from whichtoken.display.terminal import console, printable, say, suggest, table
from whichtoken.display.text import pluralize
from whichtoken.files import LEDGER_NAME
from whichtoken.lab.discovery import experiments, faults
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import field_types, make_plan, type_name
from whichtoken.lab.record import RunSummary, recorded_runs
from whichtoken.lab.statements import Answer, count_answers, judge_papers
from whichtoken.lab.verdicts import Verdict, in_words

if TYPE_CHECKING:
    from rich.text import Text

    from whichtoken.lab.results import Difference, Result

MOST_NAMED = 3  # claims in one line; more are only counted
STATE_STYLE = {"agrees": "green", "disagrees": "red", "undecided": "yellow", "not-run": "dim"}
# of answers, by their class in pages
ANSWER_STYLE = {**STATE_STYLE, "beyond": "magenta", "undetermined": "yellow"}
DIFFERENCES = {
    "changed": ("changed", "red"),
    "vanished": ("gone", "red"),
    "new": ("new", "red"),
    "weaker": ("undecided now", "yellow"),
    "apart": ("moved", "yellow"),
    "other state": ("decided now", "dim"),
}


def print_results(results: Sequence[Result], verbose: bool = False) -> None:
    """Print a line for each run, then the differences from the record; with `verbose`, first the verdicts of each run."""
    screen = console()
    for result in results if verbose else ():
        screen.print(_verdict_table(result))
    listed = table("claim", "verdicts", "time")
    for result in results:
        size = result.preset if result.plan.as_declared else f"{result.preset}, other settings"
        name = printable(result.experiment.title) + printable(f"  {result.id} ({size})", "dim")
        listed.add_row(name, colored_counts(counts(result.verdicts)), f"{result.seconds:.1f} s")
    screen.print(listed)
    changes = [_difference(result, item) for result in results for item in result.differences]
    problems = [line for result in results for line in _problems(result)]
    for line in (*problems, *_reasons_not_run(results), *changes, _compared_with_record(results, len(changes))):
        say(line)


def print_summary(studies: Iterable[RunSummary], page: str, record: bool = False) -> None:
    """Print a line of answers for each paper, the counts, where the report is, and what to try next."""
    papers = judge_papers(studies)
    for paper in papers:
        if any(judged.evidence for judged in (*paper.statements, *paper.ours)):
            text = printable(f": of {len(paper.statements)} statements about {paper.source.about}, ")
            say(printable(paper.source.title, "bold") + text + _answers(paper.counts))
    found = count_answers(judged for paper in papers for judged in paper.statements)
    say(printable(f"All {sum(found.values())} statements: ") + _answers(found) + printable("."))
    say(printable("report: ", "bold") + printable(page), wrap=False)
    tries = [
        ("whichtoken report --record", "what the long runs found"),
        ("whichtoken reproduce mirror-descent/direction --preset full", "one claim at its full size, in minutes"),
        ("whichtoken list", "every claim, its source and its states"),
    ]
    for command, what in tries[record:]:
        say(printable("try  ", "dim") + printable(f"{command:62}") + printable(what, "dim"))


def _answers(found: Mapping[Answer, int]) -> Text:
    """How many statements have each answer, in their colors."""
    parts = (printable(f"{count} {answer}", ANSWER_STYLE[ANSWER_CLASS[answer]]) for answer, count in found.items())
    return printable(", ").join(parts)


def print_faults() -> bool:
    """Print a line for each claim that could not be loaded; return whether there is one."""
    for fault in faults():
        say(printable("broken", "red") + printable(f": {fault.name}: {fault.sentence}"))
    return bool(faults())


def colored_counts(found: Mapping[str, int]) -> Text:
    """The counts of states in their colors: 12 agree, 1 disagrees."""
    parts = [
        printable(f"{found[state]} {in_words(state, found[state])}", STATE_STYLE[state])
        for state in STATES if found.get(state)
    ]  # fmt: skip
    return printable(", ").join(parts) if parts else printable("no verdicts", "dim")


def state_text(state: str) -> Text:
    """A state in words and in its color."""
    return printable(in_words(state, 1), STATE_STYLE.get(state, ""))


def _verdict_table(result: Result) -> object:
    listed = table("state", "verdict", title=result.id)
    for verdict in result.verdicts:
        text = f"{verdict.claim}{f' ({verdict.note})' if verdict.note else ''}. {sentence(verdict)}"
        listed.add_row(state_text(verdict.state), printable(verdict.code, "bold") + printable("\n" + text))
    return listed


def _problems(result: Result) -> Iterator[Text]:
    if result.failed:
        rows = f"{result.failed} of {pluralize(len(result.all_rows), 'row')}"
        text = f": {result.id}: {rows} failed; the first reason: {result.rows.failed[0].message}"
        yield printable("failed", "red") + printable(text)
    if result.fault:
        yield printable("broken", "red") + printable(f": {result.id}: {result.fault}")
    if len(result.package_versions) > 1:
        text = f": {result.id} mixes rows of {', '.join(result.package_versions)}; --fresh computes them again"
        yield printable("warning", "yellow") + printable(text)


def _reasons_not_run(results: Sequence[Result]) -> Iterator[Text]:
    """Each reason why claims were not run."""
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
    if found.kind == "other state" and found.verdict is not None and found.verdict.state == "undecided":
        name = DIFFERENCES["weaker"][0]
    if found.kind == "new" and found.verdict is not None:
        text = f": {found.code} {in_words(found.verdict.state, 1)}{_interval(found.verdict)}, and is not on record"
        return printable(name, style) + printable(text)
    line = printable(name, style) + printable(f": {found.code} was {in_words(found.was, 1)}{_interval(found.recorded)}")
    if found.verdict is None:
        return line + printable(f", now {result.id} does not give it")
    line += printable(f", now {in_words(found.verdict.state, 1)}{_interval(found.verdict)}")
    return line + printable(f"\n    {found.verdict.claim}. {sentence(found.verdict)}", "dim")


def _interval(verdict: Verdict | None) -> str:
    if verdict is None or verdict.low is None:
        return ""
    return f" ({number(verdict.low)} to {number(verdict.high)})"


def _compared_with_record(results: Sequence[Result], different: int) -> str:
    states = [(verdict.state, result.expected(verdict)) for result in results for verdict in result.verdicts]
    known = sum(bool(was) and "not-run" not in (now, was) for now, was in states)
    recorded = any((result.id, result.preset) in recorded_runs() for result in results)
    expected = "as on record" if recorded else "as the claim's own file expects"
    if all(now == "not-run" for now, _ in states):
        return "Nothing was run: no verdict to compare with."
    if not known:
        return "None of these runs is on record, so there is no verdict to compare with."
    if known == 1:
        return f"The verdict is {'not ' if different else ''}{expected}."
    if not different:
        return f"All {known} verdicts are {expected}."
    return f"{different} of {known} verdicts {'is' if different == 1 else 'are'} not {expected}."


def print_claims(out: Path, theory: str = "") -> None:
    """Print a line for each claim, or for each of one theory: its verdicts here, and in the longest run on record."""
    chosen = {id: claim for id, claim in experiments().items() if not theory or claim.theory == theory}
    latest: dict[str, Text] = {}
    for run in _stored_runs(out):
        if run.id in chosen:
            latest.setdefault(run.id, _so_far(run))
    with_runs = bool(latest) or any(claim.missing for claim in chosen.values())
    listed = table("claim", *(["so far"] if with_runs else []), "on record")
    # so that an id can be copied
    listed.columns[0].no_wrap = listed.columns[-1].no_wrap = True
    for claim in chosen.values():
        unrun = f"not run: needs {claim.needs}" if claim.missing else "not run"
        # the states on record, of the most informative size
        recorded = printable("")
        if claim.expected:
            size = min(claim.expected, key=place_of)
            recorded = printable(f"{size}: ") + _states(Counter(claim.expected[size].values()), with_runs)
        so_far = [latest.get(claim.id) or printable(unrun, "dim")] if with_runs else []
        listed.add_row(printable(claim.id), *so_far, recorded)
    for fault in () if theory else faults():
        listed.add_row(printable(fault.name), printable(f"broken: {fault.sentence}", "red"))
    console().print(listed)
    for reason, claims in Counter(claim.missing for claim in chosen.values() if claim.missing).items():
        why = f", because each {reason}" if claims > 1 else f": it {reason}"
        say(f"{claims} of {pluralize(len(chosen), 'claim')} cannot run here{why}")
    suggest("whichtoken list ID  (what a claim says)", "whichtoken reproduce ID")


def _states(found: Mapping[str, int], short: bool) -> Text:
    """The counts of states; in short, only how many agree, in the color of the state that matters most."""
    if not short:
        return colored_counts(found)
    worst = next((state for state in ("disagrees", "undecided", "not-run") if found.get(state)), "agrees")
    return printable(f"{found.get('agrees', 0)} of {sum(found.values())} agree", STATE_STYLE[worst])


def print_claim(claim: Experiment[Any], out: Path) -> None:
    """Print one claim: its fields, its presets, the states on record, and the states of the runs so far."""
    screen, types = console(), field_types(claim)
    say(printable(claim.id, "bold") + printable(f"  {claim.title}\n\n{claim.claim}"))
    say(f"{claim.source}\n", "dim")
    if claim.missing:
        say(f"It {claim.missing}\n", "yellow")
    listed = table("field", "type", "default", "method")
    for field in fields(claim.point_type):
        default = "required" if field.default is MISSING else field.default
        method = "yes" if field.name in claim.method_fields else ""
        listed.add_row(*map(printable, (field.name, type_name(types[field.name]), default, method)))
    screen.print(listed)
    for preset in claim.presets:
        plan = make_plan(claim, preset)
        least, most = len(plan.tasks), len(plan.largest.tasks)
        rows = str(least) if least == most else f"{least} to {most}"
        size = plan.fault or f"{pluralize(len(plan.points), 'point')}, {rows} rows"
        say(printable(f"{preset}: ", "bold") + printable(size))
    screen.print(_recorded_states(claim))
    for run in _stored_runs(out):
        if run.id == claim.id:
            say(f"run of {run.request}, {run.started[:16].replace('T', ' ')} UTC", "bold")
            if run.stale or run.fault:
                say(printable("  ") + _so_far(run))
            for verdict in () if run.stale else run.verdicts:
                say(printable(f"  {verdict.code}: ") + state_text(verdict.state) + _notices(verdict))


def _recorded_states(claim: Experiment[Any]) -> Any:
    """A table of the verdicts on record, with a column for each size."""
    listed = table("on record", *claim.expected)
    runs = [run for (name, _), run in recorded_runs().items() if name == claim.id]
    words = {verdict.code: verdict.claim for run in runs for verdict in run.verdicts if verdict.claim}
    for code in dict.fromkeys(code for states in claim.expected.values() for code in states):
        name = printable(code) + printable(f"\n{words[code]}" if code in words else "", "dim")
        listed.add_row(name, *(_recorded_state(claim, preset, code) for preset in claim.expected))
    return listed


def _recorded_state(claim: Experiment[Any], preset: str, code: str) -> Text:
    """The state of a verdict on record, and the smallest error that it would have noticed."""
    state = claim.expected[preset].get(code)
    if state is None:
        return printable("")
    run = recorded_runs().get((claim.id, preset))
    found = next((verdict for verdict in run.verdicts if verdict.code == code), None) if run else None
    return state_text(state) + _notices(found)


def _notices(verdict: Verdict | None) -> Text:
    error = "" if verdict is None else least_error(verdict)
    return printable(f" (would notice {error})" if error else "", "dim")


def _stored_runs(out: Path) -> list[RunSummary]:
    """The runs of a folder's ledger, the latest first."""
    if not (out / LEDGER_NAME).exists():
        return []
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        return ledger.runs()


def _so_far(run: RunSummary) -> Text:
    """What a run came to, in a few words."""
    name = printable(f"{run.request}: ")
    if run.stale:
        return name + printable(run.stale, "dim")
    if run.fault:
        return name + printable(f"broken: {run.fault}", "red")
    name += colored_counts(counts(run.verdicts))
    other = run.package_version != __version__
    return name + printable(f" (by whichtoken {run.package_version})" if other else "", "dim")
