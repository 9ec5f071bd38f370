"""Verdicts and runs in words, the same on the terminal and in pages, and where pages show them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whichtoken.lab.verdicts import Verdict, in_words

if TYPE_CHECKING:
    from whichtoken.lab.record import RunSummary
    from whichtoken.lab.statements import Answer

STATES = ("agrees", "disagrees", "undecided", "not-run")
REGIME_WORDS = {
    "as-stated": "where the paper states it",
    "unknown": "under our reading of its hypotheses",
    "smaller-than-stated": "at smaller sizes than the paper's",
    "beyond-hypotheses": "beyond the paper's hypotheses",
}
KIND_WORDS = {
    "paper-statement": "a statement of the paper",
    "paper-figure": "a figure of the paper",
    "our-law": "a law that we derived",
    "our-threshold": "a threshold that we chose",
}
# color and sign of an answer: those of the state of a verdict where there is one alike
ANSWER_CLASS: dict[Answer, str] = {
    "supported": "agrees",
    "contradicted": "disagrees",
    "beyond its hypotheses": "beyond",
    "undetermined by the text": "undetermined",
    "undecided": "undecided",
    "not checked": "not-run",
}
WORST_FIRST = ("disagrees", "undecided", "not-run", "agrees")
PRESETS = ("full", "paper", "quick")  # the most telling first: a source often has fewer sizes than ours
NEAR_ZERO = 1e-9  # above it an error is given as a share of theory


def number(value: float | None) -> str:
    """A number with four digits, and no minus zero."""
    return "" if value is None else f"{value + 0.0:.4g}"


def sentence(verdict: Verdict) -> str:
    """What was measured, what theory says, and what would have been noticed.

    Examples
    --------
    >>> from whichtoken.lab import Mean, agreement
    >>> from whichtoken.app.pages.sentences import sentence
    >>> found = Mean([0.49, 0.5, 0.52])
    >>> sentence(agreement("coin", "heads", theory=0.5, measured=found, tolerance=0.1).settle(0.95))
    'Measured 0.5033 (0.4654 to 0.5413); theory says 0.5, with a tolerance of 0.1; an error of 18 % would have been noticed.'
    """
    if verdict.state == "not-run" or verdict.measured is None:
        if verdict.state in ("agrees", "disagrees"):
            return "The record has only the state."
        return verdict.note[:1].upper() + verdict.note[1:] + "." if verdict.note else "Nothing was measured."
    points = f" at the tightest of {len(verdict.evidence)} points" if len(verdict.evidence) > 1 else ""
    return f"Measured {_measured_text(verdict)}{points}; {_theory(verdict)}{_resolution_text(verdict)}."


def state_counts(states: Iterable[str]) -> dict[str, int]:
    """How often each state occurs, in the order in which they are always shown."""
    found = Counter(states)
    return {state: found[state] for state in STATES if found[state]}


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many verdicts there are of each state."""
    return state_counts(verdict.state for verdict in verdicts)


def describe_states(found: dict[str, int]) -> str:
    """The counts in words: 12 agree, 1 disagrees, 3 undecided."""
    return ", ".join(f"{count} {in_words(state, count)}" for state, count in found.items()) or "nothing was judged"


def _measured_text(verdict: Verdict) -> str:
    if verdict.low is None or verdict.high is None:
        return f"{number(verdict.measured)} (too few repeats for an interval)"
    if verdict.low == verdict.high:
        return f"{number(verdict.measured)} (exactly)"
    return f"{number(verdict.measured)} ({number(verdict.low)} to {number(verdict.high)})"


def _theory(verdict: Verdict) -> str:
    if verdict.theory is None:
        return "there is no prediction to compare with"
    said = f"{number(verdict.theory)}{f' ± {verdict.theory_error:.1g}' if verdict.theory_error else ''}"
    within = f", with a tolerance of {number(verdict.tolerance)}" if verdict.tolerance else ""
    # the number of a bound is often ours, so no sentence says that a paper claims it
    bounds = {"≤": f"the check requires at most {said}", "≥": f"the check requires at least {said}"}
    return bounds.get(verdict.relation, f"theory says {said}{within}")


def _resolution_text(verdict: Verdict) -> str:
    error = least_error(verdict)
    where = " at each point" if len(verdict.evidence) > 1 else ""
    return f"; {error} would have been noticed{where}" if error else ""


def least_error(verdict: Verdict) -> str:
    """The resolution of a verdict that agrees, in words: as a share of theory unless theory is near zero."""
    size, bound = verdict.resolution, verdict.relation != "="
    if verdict.state != "agrees" or verdict.theory is None or (size is not None and not math.isfinite(size)):
        return ""
    if not size:
        exact = bound and verdict.low is not None and verdict.low == verdict.high
        return "any violation" if bound and size == 0.0 else "any violation in these runs" if exact else ""
    share = size / abs(verdict.theory) if abs(verdict.theory) > NEAR_ZERO else 1.0
    if verdict.evidence:
        share = verdict.noticed or 1.0
    what = "a violation" if bound else "an error"
    return f"{what} of {f'{100 * share:.2g} %' if share < 1.0 else number(size)}"


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
