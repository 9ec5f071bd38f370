"""What pages say about runs: which one stands for its claim, what was found, and what was checked on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whichtoken.app.pages.sentences import counts, describe_states, state_counts
from whichtoken.lab.record import RunSummary
from whichtoken.lab.verdicts import Verdict, in_words

WORST_FIRST = ("disagrees", "undecided", "not-run", "agrees")
PRESETS = ("full", "paper", "quick")  # the most telling first: a source often has fewer sizes than ours


@dataclass(frozen=True)
class Checked:
    """What a run on this machine came to, for pages about another: those of the record."""

    request: str  # in a few words
    date: str
    states: Mapping[str, str]  # by code

    @classmethod
    def of(cls, run: RunSummary) -> Checked | None:
        """None for a run that was not judged to its end, judged nothing, or is of an older version of the claim."""
        if run.fault or run.stale or not {*run.states.values()} - {"not-run"}:
            return None
        return cls(run.request, run.started[:10], run.states)

    @property
    def state(self) -> str:
        """The state that speaks most against the claim."""
        return next(state for state in WORST_FIRST if state in self.states.values())

    @property
    def told(self) -> str:
        """One word where all verdicts are alike, otherwise their numbers."""
        found = state_counts(self.states.values())
        return in_words(self.state, 1) if len(found) == 1 else describe_states(found)


def page_name(experiment_id: str) -> str:
    """File of an experiment's page."""
    return experiment_id.replace("/", "-") + ".html"


def anchor(preset: str, code: str) -> str:
    """Where a verdict stands on its experiment's page."""
    return f"{preset}.{code}"


def place_of(preset: str) -> int:
    """Where a size stands among those told; one that a user has made stands behind them."""
    return PRESETS.index(preset) if preset in PRESETS else len(PRESETS)


@dataclass(frozen=True)
class Highlight:
    """The verdict that stands for a family of claims (codes alike up to the second dot), and how the others came out."""

    verdict: Verdict
    others: str


def highlights(verdicts: Sequence[Verdict], most: int) -> list[Highlight]:
    """One verdict of each family, the one that speaks most against it; families that disagree come first."""
    order = ("disagrees", "undecided", "agrees", "not-run")
    families: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        families.setdefault(tuple(verdict.code.split(".")[:2]), []).append(verdict)
    chosen = []
    for family in families.values():
        worst = min(family, key=lambda verdict: order.index(verdict.state))
        rest = [verdict for verdict in family if verdict is not worst]
        chosen.append(Highlight(worst, f"{len(rest)} more alike: {describe_states(counts(rest))}" if rest else ""))
    return sorted(chosen, key=lambda item: item.verdict.state != "disagrees")[:most]
