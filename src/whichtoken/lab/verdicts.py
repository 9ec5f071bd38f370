"""From measurements to verdicts.

An experiment's `judge` yields claims: a statement, what theory says and what was measured. `settle` turns all claims of
one experiment into verdicts at once, because the intervals of one experiment share their 95 % (Sidak's correction).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from whichtoken.display.shown import Shown
from whichtoken.lab.samples import Interval, Mean, Sample

CONFIDENCE = 0.95
RELATIONS: dict[str, Literal["=", "≤", "≥", ""]] = {"equal": "=", "at least": "≥", "at most": "≤", "not run": ""}
State = Literal["agrees", "disagrees", "inconclusive", "not-run"]
IN_WORDS = {"agrees": "agree", "disagrees": "disagree", "inconclusive": "undecided", "not-run": "not run"}


def in_words(state: str, count: int) -> str:
    """The state as a verb or an adjective, for this number of claims."""
    return state if count == 1 and state in ("agrees", "disagrees") else IN_WORDS[state]


@dataclass(frozen=True)
class Verdict(Shown):
    """The outcome of checking one claim.

    `Claim.settle` and `reproduce` create verdicts; read `state` first, then `measured` with its interval and `theory`.

    Attributes
    ----------
    code, claim : str
        Short name of the claim, unique in its experiment, and the statement in words.
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
        Agrees, disagrees, inconclusive or not-run.
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
        How many times the claims had been judged, this one included, where repeats are added until they are decided.

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
    relation: Literal["=", "≤", "≥", ""]
    rule: str
    state: State
    note: str = ""
    resolution: float | None = None
    tolerance: float = 0.0
    level: float | None = None
    look: int = 1

    def _headline(self) -> str:
        return f"{in_words(self.state, 1)}: {self.claim}{self._numbers()}"

    def _found(self) -> str:
        """The headline without the claim."""
        return in_words(self.state, 1) + self._numbers()

    def _numbers(self) -> str:
        if self.measured is None or self.theory is None:
            return f" ({self.note})" if self.note else ""
        interval = "" if self.low is None or self.high is None else f" ({self.low:.4g} to {self.high:.4g})"
        theory = f"theory {self.relation} {self.theory:.4g}".replace("= ", "")
        return f"; measured {self.measured:.4g}{interval}, {theory}"


def readable_verdicts(stored: Sequence[Any]) -> tuple[Verdict, ...]:
    """Those of the stored values that are verdicts; a field that was not there yet has its default."""
    found = []
    for item in stored:
        with suppress(ValueError):
            found.append(_verdict_adapter().validate_python(item))
    return tuple(found)


@cache
def _verdict_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Verdict)


@dataclass(frozen=True)
class Claim(Shown):
    """A statement with its evidence, which `judge` yields; it becomes a verdict once the level of its interval is known.

    Attributes
    ----------
    code, claim : str
        Short name of the claim, unique in its experiment, and the statement in words.
    theory : float or None
        What theory says; for a bound, the bound.
    sample : Mean, Share, Resampled or Exact
        What was measured.
    kind : str
        Equal, at least, at most or not run.
    tolerance : float
        Difference from theory that still counts as agreement.
    theory_error : float
        Numerical error of the prediction.
    note : str
        Why it was not run, if it was not.
    material : float or None
        A deviation that would matter, where theory says 0 and a share of it means nothing.

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
    kind: Literal["equal", "at least", "at most", "not run"]
    tolerance: float = 0.0
    theory_error: float = 0.0
    note: str = ""
    material: float | None = None

    def settle(self, level: float, look: int = 1) -> Verdict:
        found = self.sample.interval(level)
        return Verdict(
            self.code, self.claim, self.theory, self.theory_error, found.measured, found.low, found.high,
            RELATIONS[self.kind], self._rule(level), self._state(found), self.note, self._resolution(found, level),
            self.tolerance, level, look,
        )  # fmt: skip

    def _state(self, found: Interval) -> State:
        if self.kind == "not run":
            return "not-run"
        if self.theory is None or found.measured is None or found.low is None or found.high is None:
            return "inconclusive"
        low, high = self._accepted()
        if low <= found.low and found.high <= high:
            return "agrees"
        return "disagrees" if found.high < low or found.low > high else "inconclusive"

    def _accepted(self) -> tuple[float, float]:
        """The range in which the whole interval must lie."""
        assert self.theory is not None
        reach = self.tolerance + self.theory_error
        low = -math.inf if self.kind == "at most" else self.theory - reach
        return low, math.inf if self.kind == "at least" else self.theory + reach

    def _resolution(self, found: Interval, level: float) -> float | None:
        """The smallest deviation that is detected with 90 % power."""
        if self.kind == "not run" or self.theory is None or found.low is None or found.high is None:
            return None
        rate = self.sample.undetected_rate
        if math.isinf(rate):
            return None
        half = (found.high - found.low) / 2
        return max(rate, self.tolerance + self.theory_error - half * (1 - self.sample.error_quantile(level)))

    def _rule(self, level: float) -> str:
        if self.kind == "not run":
            return "needs data that is not available"
        interval = f"its {100 * level:.1f} % interval wholly"
        error = f" + {self.theory_error:.1g}" if self.theory_error else ""
        if self.kind == "equal":
            return f"{interval} within {self.tolerance:.3g}{error} of theory"
        allowed = f", give or take {self.theory_error:.1g}" if self.theory_error else ""
        return f"{interval} {self.kind} the bound{allowed}"


def agreement(
    code: str,
    claim: str,
    *,
    theory: float | None,
    measured: Sample,
    tolerance: float,
    theory_error: float = 0.0,
    material: float | None = None,
) -> Claim:
    """The claim that a measured quantity equals its prediction.

    Parameters
    ----------
    code, claim : str
        Short name of the claim, unique in its experiment, and the statement in words.
    theory : float or None
        The prediction; None where there is none.
    measured : Mean, Share, Resampled or Exact
        The measurements.
    tolerance : float
        Difference that does not matter: the whole interval has to lie within it. It is fixed before the run.
    theory_error : float, default=0.0
        Numerical error of the prediction.
    material : float, optional
        A deviation that would matter, where theory says 0: a share of 0 says nothing about what the verdict would detect.

    Returns
    -------
    Claim
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Exact, agreement
    >>> agreement("pi", "pi is 3", theory=3.0, measured=Exact(3.1416), tolerance=0.01).settle(0.95).state
    'disagrees'
    """
    return Claim(code, claim, theory, measured, "equal", tolerance, theory_error, material=material)


def at_least(code: str, claim: str, *, bound: float, measured: Sample, theory_error: float = 0.0) -> Claim:
    """The claim that a measured quantity does not fall below a bound.

    Parameters
    ----------
    code, claim : str
        Short name of the claim, unique in its experiment, and the statement in words.
    bound : float
        The bound.
    measured : Mean, Share, Resampled or Exact
        The measurements.
    theory_error : float, default=0.0
        Numerical error of the bound.

    Returns
    -------
    Claim
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Share, at_least
    >>> at_least("wins", "wins half of the time", bound=0.5, measured=Share([True] * 20)).settle(0.95).state
    'agrees'
    """
    return Claim(code, claim, bound, measured, "at least", theory_error=theory_error)


def at_most(code: str, claim: str, *, bound: float, measured: Sample, theory_error: float = 0.0) -> Claim:
    """The claim that a measured quantity does not exceed a bound.

    Parameters
    ----------
    code, claim : str
        Short name of the claim, unique in its experiment, and the statement in words.
    bound : float
        The bound.
    measured : Mean, Share, Resampled or Exact
        The measurements.
    theory_error : float, default=0.0
        Numerical error of the bound.

    Returns
    -------
    Claim
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import Exact, at_most
    >>> at_most("gap", "the gap is small", bound=1e-8, measured=Exact(1e-3)).settle(0.95).state
    'disagrees'
    """
    return Claim(code, claim, bound, measured, "at most", theory_error=theory_error)


def not_run(code: str, claim: str, reason: str) -> Claim:
    """A claim whose data is absent.

    Parameters
    ----------
    code, claim : str
        Short name of the claim, unique in its experiment, and the statement in words.
    reason : str
        What is missing, and how to get it.

    Returns
    -------
    Claim
        To be yielded by `judge`.

    Examples
    --------
    >>> from whichtoken.lab import not_run
    >>> not_run("reviews", "holds on reviews", "put the reviews into the data folder").settle(0.95).state
    'not-run'
    """
    return Claim(code, claim, None, Mean([]), "not run", note=reason)


def settle(claims: Sequence[Claim], looks: int = 1, look: int = 1) -> list[Verdict]:
    """Verdicts of one experiment, whose intervals of all looks hold jointly with probability 95 %."""
    level = shared_level(claims, looks)
    return [claim.settle(level, look) for claim in claims]


def shared_level(claims: Sequence[Claim], looks: int = 1) -> float:
    """Confidence level of each interval: the looks share the 5 % equally, the claims of one look by Sidak's rule."""
    judged = sum(claim.kind != "not run" for claim in claims)
    return float((1 - (1 - CONFIDENCE) / looks) ** (1 / max(judged, 1)))
