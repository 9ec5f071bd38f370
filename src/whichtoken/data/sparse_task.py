"""The sparse-token task: what it is made of, and which values make sense."""

from __future__ import annotations

import math
from dataclasses import dataclass

from whichtoken.checks import check_count, check_range
from whichtoken.display.shown import Shown

LOSSES = ("logistic", "square", "hinge")


@dataclass(frozen=True)
class Task(Shown):
    """Binary classification of sequences in which few tokens of the positive class carry a weak signal.

    A negative sequence is `length` standard Gaussian tokens. A positive one has `strength` times a hidden unit vector
    added to `signal_tokens` of its tokens, at positions drawn anew for every sequence (Barnfield, Cui, Lu, arXiv
    2509.25153, section 2).

    Attributes
    ----------
    length : int
        L, tokens of a sequence.
    signal_tokens : int
        R, how many of them carry the signal in a positive sequence.
    strength : float
        Theta, size of the signal in units of the noise.
    prevalence : float
        Pi, probability of a positive sequence.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import Task
    >>> task = Task(length=10, signal_tokens=1, strength=5.0, prevalence=0.3)
    >>> round(task.separation, 4), task.trivial_error
    (1.5811, 0.3)
    """

    length: int
    signal_tokens: int
    strength: float
    prevalence: float

    def __post_init__(self) -> None:
        check_count("length", self.length, 2)
        check_signal_tokens(self.signal_tokens, self.length)
        check_range("strength", self.strength, 0.0, math.inf, include_low=True)
        check_range("prevalence", self.prevalence, 0.0, 1.0)

    @property
    def separation(self) -> float:
        """Distance of the two class means in units of the noise, for any linear model: strength * R / sqrt(L)."""
        return self.strength * self.signal_tokens / math.sqrt(self.length)

    @property
    def trivial_error(self) -> float:
        """Error of the better one of the two constant answers."""
        return min(self.prevalence, 1 - self.prevalence)


def check_signal_tokens(signal_tokens: int, length: int) -> None:
    """Refuse a number of signal tokens that sequences of this length do not have."""
    check_count("signal_tokens", signal_tokens, 1)
    if signal_tokens >= length:
        raise ValueError(f"signal_tokens={signal_tokens} must be smaller than length={length}")
