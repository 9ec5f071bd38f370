"""Theory beside simulation, the way all claims about sparse tokens make the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import Claim, Mean, Rows, agreement

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PointT = TypeVar("PointT")


class TaskFields(Protocol):
    """The fields of a point that make up its task."""

    @property
    def length(self) -> int: ...
    @property
    def signal_tokens(self) -> int: ...
    @property
    def strength(self) -> float: ...
    @property
    def prevalence(self) -> float: ...


def task_of(point: TaskFields) -> dict[str, Any]:
    """The task as keyword arguments."""
    return {
        "length": point.length,
        "signal_tokens": point.signal_tokens,
        "strength": point.strength,
        "prevalence": point.prevalence,
    }


def apart(rows: Rows[PointT], *varied: str) -> Iterator[tuple[str, Rows[PointT]]]:
    """Rows that differ in the `varied` fields alone, group by group, with an ending that keeps their codes apart.

    The ending names the other fields that take several values, and is empty where none does.
    """
    names = [name for name in vars(rows[0].point) if name not in varied and len(rows.levels(name)) > 1] if rows else []
    for values in dict.fromkeys(tuple(getattr(row.point, name) for name in names) for row in rows):
        fields = dict(zip(names, values, strict=True))
        yield "".join(f".{name}-{_short(value)}" for name, value in fields.items()), rows.where(**fields)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def versus_theory(
    code: str,
    claim: str,
    runs: Rows[Any],
    name: str,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    values: NDArray[np.float64] | None = None,
) -> Claim:
    """The claim that the mean of a measured quantity equals the prediction of the same name.

    Parameters
    ----------
    relative, absolute : parts of the tolerance, summed: times the prediction, and as it is.
    values : what to average instead of the measured quantity itself, a value per row.
    """
    predicted = runs.predicted(name)
    sample = runs.values(name) if values is None else values
    theory = None if predicted is None else float(predicted.value)
    return agreement(
        code,
        claim,
        theory=theory,
        measured=Mean(sample),
        tolerance=relative * abs(theory or 0.0) + absolute,
        theory_error=0.0 if predicted is None else predicted.error,
    )


def legend(axes: Axes, **style: Any) -> None:
    """A legend, if any row was there to be drawn."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**style)
