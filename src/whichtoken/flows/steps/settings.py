"""What every optimiser of `attention_descent` declares: its options, checked, and the numbers its compiled step reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from numba import njit, types

from whichtoken.checks import check_range

_FLOATS, _FLOAT, _INT = types.float64[::1], types.float64, types.int64
# (weights, descent, log_scale, memory, logs, options, lr, k, rows, columns): move a matrix, flat, along exp(log_scale) * descent
# in its k-th step, k = 1, 2, ...; `memory` and `logs` are the step's own, zeros and -inf at the start
STEP = types.void(_FLOATS, _FLOATS, _FLOAT, _FLOATS, _FLOATS, _FLOATS, _FLOAT, _INT, _INT, _INT)
# (parameters, logs, options, rows, columns, weights) -> log_size: write the weights, divided by exp(log_size)
READ = types.float64(_FLOATS, _FLOATS, _FLOATS, _INT, _INT, _FLOATS)


@dataclass(frozen=True)
class Settings(ABC):
    """Options of one optimiser. A subclass adds fields, which become keyword arguments of `attention_descent`."""

    @property
    @abstractmethod
    def step(self) -> Any:
        """The compiled step, a function of type `STEP`."""

    @property
    def read(self) -> Any:
        """Compiled: how the weights are read off the parameters, a function of type `READ`."""
        return as_they_are

    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """The options in the order in which the compiled step reads them."""

    def memory(self, rows: int, columns: int) -> int:
        """How many floats the step remembers of a matrix of this shape."""
        return 0


@njit(cache=True, nogil=True)
def as_they_are(parameters: Any, logs: Any, options: Any, rows: int, columns: int, weights: Any) -> float:
    """The weights are the parameters."""
    weights[:] = parameters
    return 0.0


def check_share(name: str, value: float) -> None:
    """Refuse a decay of an average outside [0, 1)."""
    check_range(name, value, 0.0, 1.0, include_low=True)


def check_not_negative(name: str, value: float) -> None:
    """Refuse what is not a finite number of at least 0."""
    check_range(name, value, 0.0, float("inf"), include_low=True)


def check_betas(betas: tuple[float, float]) -> None:
    """Refuse anything but two shares."""
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"betas={betas} must be two numbers in [0, 1)")
    for place, beta in enumerate(betas):
        check_share(f"betas[{place}]", beta)
