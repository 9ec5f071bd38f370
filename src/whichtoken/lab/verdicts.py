"""From measurements to verdicts.

An experiment's `judge` yields checks: a sentence, what theory says and what was measured. `settle` turns all checks of
one experiment into verdicts at once, because the intervals of one experiment share their 95 % (Sidak's correction). `pooled`
asks one question at many points and counts as one check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from whichtoken.display.shown import Shown
from whichtoken.lab.samples import Interval, Mean, Sample

if TYPE_CHECKING:
    from whichtoken.lab.experiment import Rows

CONFIDENCE = 0.95
Relation = Literal["=", "≤", "≥", ""]
Comparison = Literal["equal", "at least", "at most", "not run"]
State = Literal["agrees", "disagrees", "undecided", "not-run"]
# What a check is about: a sentence of a paper, a figure of a paper, a law that we derived, a threshold that we chose.
Kind = Literal["paper-statement", "paper-figure", "our-law", "our-threshold"]
# Whether the points lie where the paper makes its statement. `unknown`: a hypothesis of the paper was not read.
Regime = Literal["as-stated", "beyond-hypotheses", "smaller-than-stated", "unknown"]
WORST_FIRST: tuple[State, ...] = ("disagrees", "undecided", "agrees", "not-run")
RELATIONS: dict[Comparison, Relation] = {"equal": "=", "at least": "≥", "at most": "≤", "not run": ""}
IN_WORDS = {"agrees": "agree", "disagrees": "disagree", "undecided": "undecided", "not-run": "not run"}


def in_words(state: str, count: int) -> str:
    """The state as a verb or an adjective, for this number of claims."""
    return state if count == 1 and state in ("agrees", "disagrees") else IN_WORDS[state]


@dataclass(frozen=True)
class Verdict(Shown):
    """The outcome of one check.

    `Check.settle` and `reproduce` create verdicts; read `state` first, then `measured` with its interval and `theory`. A
    pooled verdict shows the numbers of the point that leaves the least room, and holds the verdict of every point as evidence.

    Attributes
    ----------
    code, claim : str
        Short name of the check, unique in its experiment, and the statement in words.
    theory : float or None
        What theory says.
    theory_error : float
        Numerical error of that.
    measured : float or None
        What was measured.
    low, high : float or None
        The interval of the measurement.
    relation : str
        How the measurement relates to theory if the claim holds.
    rule : str
        What decides the state.
    state : str
        Agrees, disagrees, undecided or not-run.
    note : str
        Why it was not run, or how many rows failed or are missing.
    resolution : float or None
        The smallest true deviation from theory (of a bound: violation) at which this verdict would, with a probability of
        90 %, not have said `agrees`. It is reported and decides nothing.
    tolerance : float
        Difference from theory that still counts as agreement.
    level : float or None
        Confidence of the interval, after all corrections.
    look : int
        How many times the checks had been judged, this one included, where repeats are added until they are decided.
    kind : str
        What it is about: `paper-statement`, `paper-figure`, `our-law` or `our-threshold`.
    regime : str
        Whether it was measured where the paper makes its statement: `as-stated`, `beyond-hypotheses`, `smaller-than-stated` or
        `unknown`.
    evidence : tuple of Verdict
        The verdicts of the single points of a pooled check; empty otherwise.

    Examples
    --------
    >>> from whichtoken.lab import Mean, agreement
    >>> claim = agreement("coin", "heads are as likely as tails", theory=0.5, measured=Mean([0.49, 0.5, 0.52]), tolerance=0.1)
    >>> verdict = claim.settle(0.95)
    >>> verdict.state, verdict.relation, round(verdict.measured, 4)
    ('agrees', '=', 0.5033)
    """

    code: str
    claim: str
    theory: float | None
    theory_error: float
    measured: float | None
    low: float | None
    high: float | None
    relation: Relation
    rule: str
    state: State
    note: str = ""
    resolution: float | None = None
    tolerance: float = 0.0
    level: float | None = None
    look: int = 1
    kind: Kind = "our-law"
    regime: Regime = "unknown"
    evidence: tuple[Verdict, ...] = ()

    @property
    def speaks_for_paper(self) -> bool:
        """Whether it is about a sentence or a figure of a paper, not about a law or a threshold of ours."""
        return self.kind.startswith("paper-")

    @property
    def noticed(self) -> float | None:
        """The relative deviation from theory that it would have noticed, at every point; None if theory says 0 or is silent."""
        parts = self.evidence or (self,)
        judged = [part for part in parts if part.state != "not-run"]
        if not judged or any(part.resolution is None or not part.theory for part in judged):
            return None
        return max(abs(part.resolution / part.theory) for part in judged if part.resolution is not None and part.theory)

    def _headline(self) -> str:
        return f"{in_words(self.state, 1)}: {self.claim}{self._numbers()}"

    def _short_headline(self) -> str:
        """The headline without the claim."""
        return in_words(self.state, 1) + self._numbers()

    def _numbers(self) -> str:
        if self.measured is None or self.theory is None:
            return f" ({self.note})" if self.note else ""
        interval = "" if self.low is None or self.high is None else f" ({self.low:.4g} to {self.high:.4g})"
        theory = f"theory {self.relation} {self.theory:.4g}".replace("= ", "")
        return f"; measured {self.measured:.4g}{interval}, {theory}"


def read_verdict(stored: Mapping[str, Any]) -> Verdict:
    """A verdict of the record, whose fields are as they were written."""
    return Verdict(**{**stored, "evidence": tuple(map(read_verdict, stored.get("evidence", ())))})


def readable_verdicts(stored: Sequence[Any]) -> tuple[Verdict, ...]:
    """Those of the stored values that are verdicts; a field that was not there yet has its default."""
    found = []
    for item in stored:
        with suppress(ValueError):
            found.append(_verdict_adapter().validate_python(_with_current_words(item)))
    return tuple(found)


def _with_current_words(stored: Any) -> Any:
    """A stored verdict, in which `undecided` may still be called `inconclusive`, as in ledgers on record."""
    if isinstance(stored, Mapping) and stored.get("state") == "inconclusive":
        return {**stored, "state": "undecided"}
    return stored


@cache
def _verdict_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Verdict)


@dataclass(frozen=True)
class Check(Shown):
    """A sentence with its measurements, which `judge` yields; it becomes a verdict once the level of its interval is known.

    Attributes
    ----------
    code, claim : str
        Short name of the check, unique in its experiment, and the statement in words.
    theory : float or None
        What theory says; for a bound, the bound.
    sample : Mean, Share, Resampled or Exact
        What was measured.
    comparison : str
        Equal, at least, at most or not run.
    tolerance : float
        Difference from theory that still counts as agreement.
    theory_error : float
        Numerical error of the prediction.
    note : str
        Why it was not run, if it was not.
    material : float or None
        A deviation that would matter, where theory says 0 and a share of it means nothing.
    kind : str
        What it is about: `paper-statement`, `paper-figure`, `our-law` (default) or `our-threshold`.
    regime : str
        Whether its points lie where the paper makes its statement: `as-stated`, `beyond-hypotheses`, `smaller-than-stated`
        or `unknown` (default).
    points : frozenset or None
        The points that it depends on; None for all of them. If it is undecided these get more repeats, and if rows of these
        failed it cannot agree.
    counts_failed : bool
        Whether failed rows are part of the sample.
    parts : tuple of Check
        The single points of a pooled check, which agrees if it does at every point.

    Examples
    --------
    >>> from whichtoken.lab import Exact, at_most
    >>> at_most("gap", "the gap is small", bound=1e-8, measured=Exact(1e-9)).settle(0.95).state
    'agrees'
    """

    code: str
    claim: str
    theory: float | None
    sample: Sample
    comparison: Comparison
    tolerance: float = 0.0
    theory_error: float = 0.0
    note: str = ""
    material: float | None = None
    kind: Kind = "our-law"
    regime: Regime = "unknown"
    points: frozenset[Any] | None = None
    counts_failed: bool = False
    parts: tuple[Check, ...] = ()

    def settle(self, level: float, look: int = 1) -> Verdict:
        if self.parts:
            return self._settle_parts(level, look)
        found = self.sample.interval(level)
        return Verdict(
            self.code, self.claim, self.theory, self.theory_error, found.measured, found.low, found.high,
            RELATIONS[self.comparison], self._rule(level), self._state(found), self.note, self._resolution(found, level),
            self.tolerance, level, look, self.kind, self.regime,
        )  # fmt: skip

    def _settle_parts(self, level: float, look: int) -> Verdict:
        """Agree where every point does, disagree where one does for certain, and show the point with the least room.

        Agreement at every point needs no correction: if the statement is false at one of them, that one alone lets it pass with
        the level's probability at most. Disagreement at any point does, so the points share the level by Sidak's rule.
        """
        evidence = tuple(part.settle(level, look) for part in self.parts)
        judged = [
            (part, verdict) for part, verdict in zip(self.parts, evidence, strict=True) if verdict.state != "not-run"
        ]
        if not judged:
            return replace(evidence[0], code=self.code, claim=self.claim, kind=self.kind, regime=self.regime)
        strict = level ** (1 / len(judged))
        state: State = "undecided"
        if all(verdict.state == "agrees" for _, verdict in judged):
            state = "agrees"
        elif any(part._state(part.sample.interval(strict)) == "disagrees" for part, _ in judged):
            state = "disagrees"
        _, tightest = min(judged, key=lambda pair: (WORST_FIRST.index(pair[1].state), pair[0]._room(level)))
        left_out = len(evidence) - len(judged)
        points = f"{len(judged)} points" if len(judged) > 1 else "1 point"
        note = f"{left_out} of {len(evidence)} points not run" if left_out else ""
        return replace(
            tightest, code=self.code, claim=self.claim, state=state, rule=f"at each of {points}: {tightest.rule}",
            note="; ".join(filter(None, [self.note, note])), kind=self.kind, regime=self.regime, evidence=evidence,
        )  # fmt: skip

    def _state(self, found: Interval) -> State:
        if self.comparison == "not run":
            return "not-run"
        if self.theory is None or found.measured is None or found.low is None or found.high is None:
            return "undecided"
        low, high = self._limits()
        if low <= found.low and found.high <= high:
            return "agrees"
        return "disagrees" if found.high < low or found.low > high else "undecided"

    def _room(self, level: float) -> float:
        """Distance of the interval from the border of what is accepted, in units of the tolerance or of theory."""
        found = self.sample.interval(level)
        if self.theory is None or found.low is None or found.high is None:
            return -math.inf
        low, high = self._limits()
        return min(found.low - low, high - found.high) / (self.tolerance + self.theory_error or abs(self.theory) or 1.0)

    def _limits(self) -> tuple[float, float]:
        """The range in which the whole interval must lie."""
        assert self.theory is not None
        reach = self.tolerance + self.theory_error
        low = -math.inf if self.comparison == "at most" else self.theory - reach
        return low, math.inf if self.comparison == "at least" else self.theory + reach

    def _resolution(self, found: Interval, level: float) -> float | None:
        """The smallest deviation that is detected with 90 % power."""
        if self.comparison == "not run" or self.theory is None or found.low is None or found.high is None:
            return None
        rate = self.sample.undetected_rate
        if math.isinf(rate):
            return None
        half = (found.high - found.low) / 2
        return max(rate, self.tolerance + self.theory_error - half * (1 - self.sample.error_quantile(level)))

    def _rule(self, level: float) -> str:
        if self.comparison == "not run":
            return "needs data that is not available"
        interval = f"its {100 * level:.1f} % interval wholly"
        error = f" + {self.theory_error:.1g}" if self.theory_error else ""
        if self.comparison == "equal":
            return f"{interval} within {self.tolerance:.3g}{error} of theory"
        allowed = f", give or take {self.theory_error:.1g}" if self.theory_error else ""
        return f"{interval} {self.comparison} the bound{allowed}"


def points_of(rows: Rows[Any]) -> frozenset[Any]:
    """The points of these rows, failed ones included: what a check on them depends on."""
    return frozenset(row.point for row in (*rows, *rows.failed))


def pooled(
    code: str, claim: str, parts: Iterable[Check], *, kind: Kind = "our-law", regime: Regime = "unknown"
) -> Check:
    """One check that asks the same question at many points.

    It agrees if every point does, and disagrees if one does at a level that the points share. In the Sidak correction of its
    experiment it counts once, so that more points of one question widen no interval.

    Parameters
    ----------
    code, claim : str
        Short name of the check, unique in its experiment, and the statement in words.
    parts : iterable of Check
        The check of each point, at least one.
    kind, regime : str
        What it is about and where its points lie: see `Check`.

    Returns
    -------
    Check
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Exact, agreement, pooled
    >>> parts = [agreement(f"square.{n}", f"n = {n}", theory=n * n, measured=Exact(n**2), tolerance=0.1) for n in (1, 2, 3)]
    >>> verdict = pooled("square", "squares are products", parts).settle(0.95)
    >>> verdict.state, len(verdict.evidence)
    ('agrees', 3)
    """
    found = tuple(parts)
    if not found:
        raise ValueError(f"the pooled check {code} has no points")
    points = (
        None
        if any(part.points is None for part in found)
        else frozenset().union(*(part.points or () for part in found))
    )
    judged = [part for part in found if part.comparison != "not run"]
    first = (judged or found)[0]
    return Check(
        code, claim, first.theory, first.sample, first.comparison, kind=kind, regime=regime, points=points,
        counts_failed=all(part.counts_failed for part in found), parts=found,
    )  # fmt: skip


class CheckOptions(TypedDict, total=False):
    """What `agreement`, `at_least` and `at_most` take beside their numbers."""

    theory_error: float  # numerical error of theory or of the bound
    material: float  # see `Check`, as the next two
    kind: Kind
    regime: Regime
    counts_failed: bool  # whether the measurements count the rows that failed
    on: Rows[Any]  # the rows that were measured; all rows of the experiment if not given


def _compare(
    code: str,
    claim: str,
    theory: float | None,
    measured: Sample,
    comparison: Comparison,
    on: Any = None,
    **options: Any,
) -> Check:
    return Check(code, claim, theory, measured, comparison, points=None if on is None else points_of(on), **options)


def agreement(
    code: str, claim: str, *, theory: float | None, measured: Sample, tolerance: float, **options: Unpack[CheckOptions]
) -> Check:
    """The check that a measured quantity equals its prediction.

    Parameters
    ----------
    code, claim : str
        Short name of the check, unique in its experiment, and the statement in words.
    theory : float or None
        The prediction; None where there is none.
    measured : Mean, Share, Resampled or Exact
        The measurements.
    tolerance : float
        Difference that does not matter: the whole interval has to lie within it. It is fixed before the run.
    **options : of `CheckOptions`
        `theory_error`, `material`, `kind`, `regime`, `on`, `counts_failed`.

    Returns
    -------
    Check
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Exact, agreement
    >>> agreement("pi", "pi is 3", theory=3.0, measured=Exact(3.1416), tolerance=0.01).settle(0.95).state
    'disagrees'
    """
    return _compare(code, claim, theory, measured, "equal", tolerance=tolerance, **options)


def at_least(code: str, claim: str, *, bound: float, measured: Sample, **options: Unpack[CheckOptions]) -> Check:
    """The check that a measured quantity does not fall below a bound.

    Parameters
    ----------
    code, claim : str
        As of `agreement`.
    bound : float
        The smallest value that is allowed.
    measured : Mean, Share, Resampled or Exact
        As of `agreement`.
    **options : of `CheckOptions`
        As of `agreement`.

    Returns
    -------
    Check
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Share, at_least
    >>> at_least("wins", "wins half of the time", bound=0.5, measured=Share([True] * 20)).settle(0.95).state
    'agrees'
    """
    return _compare(code, claim, bound, measured, "at least", **options)


def at_most(code: str, claim: str, *, bound: float, measured: Sample, **options: Unpack[CheckOptions]) -> Check:
    """The check that a measured quantity does not exceed a bound.

    Parameters
    ----------
    code, claim : str
        As of `agreement`.
    bound : float
        The largest value that is allowed.
    measured : Mean, Share, Resampled or Exact
        As of `agreement`.
    **options : of `CheckOptions`
        As of `agreement`.

    Returns
    -------
    Check
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Exact, at_most
    >>> at_most("gap", "the gap is small", bound=1e-8, measured=Exact(1e-3)).settle(0.95).state
    'disagrees'
    """
    return _compare(code, claim, bound, measured, "at most", **options)


def not_run(code: str, claim: str, reason: str) -> Check:
    """A check whose data is absent.

    Parameters
    ----------
    code, claim : str
        Short name of the check, unique in its experiment, and the statement in words.
    reason : str
        What is missing, and how to get it.

    Returns
    -------
    Check
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import not_run
    >>> not_run("reviews", "holds on reviews", "put the reviews into the data folder").settle(0.95).state
    'not-run'
    """
    return Check(code, claim, None, Mean([]), "not run", note=reason)


def settle(checks: Sequence[Check], looks: int = 1, look: int = 1) -> list[Verdict]:
    """Verdicts of one experiment, whose intervals of all looks hold jointly with probability 95 %."""
    level = shared_level(checks, looks)
    return [check.settle(level, look) for check in checks]


def shared_level(checks: Sequence[Check], looks: int = 1) -> float:
    """Confidence level of each interval: the looks share the 5 % equally, the checks of one look by Sidak's rule."""
    judged = sum(check.comparison != "not run" for check in checks)
    return float((1 - (1 - CONFIDENCE) / looks) ** (1 / max(judged, 1)))
