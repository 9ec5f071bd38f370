"""The first page: a card for each theory as in the report, a line for each claim, and the record beside this folder's runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.verdicts import Verdict
from whichtoken.report.studies import Found, Study, found, leading
from whichtoken.report.theories import THEORIES, Finding, Theory
from whichtoken.workbench.stored_claims import StoredRun, state_counts

Stored = Mapping[str, list[StoredRun]]


@dataclass(frozen=True)
class ClaimLine:
    """One claim: the latest of its runs here, and how many verdicts of each state are on record, by preset."""

    claim: Experiment[Any]
    latest: StoredRun | None
    recorded: Mapping[str, Mapping[str, int]]

    @property
    def beside(self) -> Mapping[str, Mapping[str, int]]:
        """What to show of the record: that of the same size where the claim was judged here, otherwise all."""
        if self.latest is None or self.latest.stale:
            return self.recorded
        return {preset: counts for preset, counts in self.recorded.items() if preset == self.latest.run.preset}


@dataclass(frozen=True)
class TheoryCard:
    """One theory: its findings with what became of them, and its claims."""

    id: str
    theory: Theory | None  # None for one of the user's own
    lines: list[ClaimLine]
    headlines: list[tuple[Found, str]]  # each with the claim that bears it
    fails: tuple[Found, str] | None
    figure: str  # where its panel is drawn; empty where there are no rows to draw


def theory_cards(stored: Stored) -> list[TheoryCard]:
    """The theories in the order of the report, those of users behind them."""
    lines: dict[str, list[ClaimLine]] = {}
    for claim in experiments().values():
        recorded = {preset: state_counts(states.values()) for preset, states in claim.expected.items()}
        line = ClaimLine(claim, next(iter(stored.get(claim.id, [])), None), recorded)
        lines.setdefault(claim.theory, []).append(line)
    known = {theory.id: theory for theory in THEORIES}
    leaders = leading(_studies(stored))
    order = [*(id for id in known if id in lines), *(id for id in lines if id not in known)]
    return [_card(id, known.get(id), lines[id], leaders, stored) for id in order]


def _card(
    id: str, theory: Theory | None, lines: list[ClaimLine], leaders: dict[str, Study], stored: Stored
) -> TheoryCard:
    if theory is None:
        return TheoryCard(id, None, lines, [], None, "")

    def looked_up(finding: Finding) -> tuple[Found, str]:
        item, here = found(finding, leaders), any(map(_speaks, stored.get(finding.experiment, [])))
        told = item.told if here or item.state == "not-run" else f"{item.told}, on record"
        return replace(item, told=told), finding.experiment

    claim, panel = theory.figure
    figure = f"/claims/{claim}/{stored[claim][0].id}/panel/{panel}" if stored.get(claim) else ""
    return TheoryCard(id, theory, lines, [looked_up(one) for one in theory.headlines], looked_up(theory.fails), figure)


def _studies(stored: Stored) -> Iterable[Study]:
    """What was judged in this folder; of a claim that was not, what is on record."""
    judged = {id: list(filter(_speaks, runs)) for id, runs in stored.items()}
    for id, runs in judged.items():
        yield from (_study(experiments()[id], run) for run in runs)
    for (id, _), run in recorded_runs().items():
        if id in experiments() and not judged.get(id):
            yield Study.recorded(run)


def _speaks(run: StoredRun) -> bool:
    """Whether its verdicts are there and hold for the claim as it is now."""
    return run.judged is not None and not run.stale


def _study(claim: Experiment[Any], run: StoredRun) -> Study:
    assert run.judged is not None
    verdicts = [Verdict(**stored) for stored in run.judged.verdicts]
    as_declared = not (run.run.overrides or run.run.seeds)
    return Study(claim, run.run.preset, verdicts, 0, 0, 0, 0.0, started=run.run.started, as_declared=as_declared)
