"""Search for an instance that breaks a statement about all instances, and prove what is found in exact arithmetic.

Random small instances are drawn and moved toward a violation. One that violates the statement in floating point is rounded to as
few digits as it can bear and computed again in rational numbers, or with 50 digits where the statement has exponentials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from whichtoken.display.shown import Shown

DIGITS = 50
GUARD = 20  # digits of a second computation, which says how many of the first are right
STEPS = 200  # moves of one instance
MOST_INSTANCES = 2000
Instance = Mapping[str, Any]  # arrays of numbers by their names


@dataclass(frozen=True)
class Lemma(Shown):
    """A statement about every instance of a problem, as a margin that is never negative.

    Attributes
    ----------
    code, claim : str
        Its name in the claim, and the statement in words.
    draw : callable
        Takes a random generator and returns a random small instance: arrays by their names.
    margin : callable
        Takes an instance and the arithmetic, whose `exp`, `log`, `sqrt` and `number` it uses; at least 0 where the statement
        holds, and infinite where a hypothesis fails. Everything else must be sums, products, quotients and comparisons.
    arithmetic : {"rational", "decimal"}
        How a counterexample is proven: in rational numbers, or with 50 digits.

    Examples
    --------
    >>> from whichtoken.lab.instances import Lemma, search_instances
    >>> square = Lemma("square", "x^2 >= x", lambda rng: {"x": rng.normal(size=1)},
    ...                lambda at, numbers: at["x"][0] ** 2 - at["x"][0])
    >>> found, _ = search_instances(square)
    >>> found.instance, found.margin  # doctest: +SKIP
    ({'x': ['1/2']}, '-1/4')
    """

    code: str
    claim: str
    draw: Callable[[np.random.Generator], Instance]
    margin: Callable[[Instance, Any], Any]
    arithmetic: Literal["rational", "decimal"] = "rational"


@dataclass(frozen=True)
class InstanceProof(Shown):
    """An instance that breaks a statement, and its margin in exact arithmetic.

    Attributes
    ----------
    instance : mapping of str to nested lists of str
        The numbers as fractions or decimals, exactly as they were used.
    margin : str
        What is at least 0 if the statement holds.
    arithmetic : str
        How it was computed, in words.
    """

    instance: Mapping[str, Any]
    margin: str
    arithmetic: str

    @property
    def sentence(self) -> str:
        given = ", ".join(f"{name} = {_text(value)}" for name, value in self.instance.items())
        return f"at {given} the margin is {self.margin[:24]} < 0, in {self.arithmetic}"


FLOATS = SimpleNamespace(exp=np.exp, log=np.log, sqrt=np.sqrt, number=float)


def search_instances(
    lemma: Lemma, seconds: float = 10.0, seed: int = 0, most: int = MOST_INSTANCES
) -> tuple[InstanceProof | None, int]:
    """A proven counterexample, or None, and how many random instances were tried.

    Parameters
    ----------
    lemma : Lemma
        The statement.
    seconds : float, default=10.0
        Time after which the search stops.
    seed : int, default=0
        Of the random instances.
    most : int, default=2000
        Number of instances after which it stops.

    Returns
    -------
    certificate : InstanceProof or None
        The first instance that breaks the statement, proven.
    tried : int
        Random instances, each moved toward a violation.

    Examples
    --------
    See `Lemma`.
    """
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    for tried in range(1, most + 1):
        instance = _worst_nearby(lemma, lemma.draw(rng), rng)
        if _margin(lemma, instance) < 0 and (certificate := _proof(lemma, instance)) is not None:
            return certificate, tried
        if time.monotonic() > end:
            break
    return None, tried


def _worst_nearby(lemma: Lemma, instance: Instance, rng: np.random.Generator) -> Instance:
    """The instance moved downhill by random steps whose size adapts."""
    size, best = 0.5, _margin(lemma, instance)
    for _ in range(STEPS):
        if best < 0 or size < 1e-6:
            break
        moved = {name: value + size * rng.standard_normal(np.shape(value)) for name, value in instance.items()}
        found = _margin(lemma, moved)
        if found < best:
            instance, best, size = moved, found, 1.5 * size
        else:
            size *= 0.93
    return instance


def _margin(lemma: Lemma, instance: Instance) -> float:
    with np.errstate(all="ignore"):
        found = float(lemma.margin(instance, FLOATS))
    return math.inf if math.isnan(found) else found


def _proof(lemma: Lemma, instance: Instance) -> InstanceProof | None:
    """The instance with as few digits as possible that still breaks the statement, in exact arithmetic."""
    kind: Any = Fraction if lemma.arithmetic == "rational" else Decimal
    for digits in (0, 1, 2, 3, 6, 12, 17):
        texts = {name: _each(np.asarray(value), f"{{:.{digits}f}}".format) for name, value in instance.items()}
        exact = {name: _each(value, lambda text: kind(text) + 0) for name, value in texts.items()}
        if kind is Fraction:
            margin = lemma.margin(exact, SimpleNamespace(number=Fraction))
            words, proven = "rational arithmetic", margin < 0
        else:
            margin, again = (_in_digits(lemma, exact, n) for n in (DIGITS, DIGITS + GUARD))
            words, proven = f"{DIGITS}-digit arithmetic", margin < 0 and abs(margin - again) < abs(margin) / 1000
        if proven:
            return InstanceProof(
                {name: _each(value, str).tolist() for name, value in exact.items()}, str(margin), words
            )
    return None


def _in_digits(lemma: Lemma, instance: Instance, digits: int) -> Any:
    with localcontext() as context:
        context.prec = digits
        numbers = SimpleNamespace(exp=lambda x: x.exp(), log=lambda x: x.ln(), sqrt=lambda x: x.sqrt(), number=Decimal)
        return lemma.margin(instance, numbers)


def _each(values: Any, function: Callable[[Any], Any]) -> Any:
    """An array of objects: a function of every number."""
    found = np.empty(np.shape(values), dtype=object)
    for place in np.ndindex(found.shape):
        found[place] = function(values[place])
    return found


def _text(value: Any) -> str:
    return f"({', '.join(map(_text, value))})" if isinstance(value, list) else str(value)
