"""Summaries that several claims share."""

from __future__ import annotations

from typing import Any

import numpy as np

from whichtoken.lab.experiment import Rows
from whichtoken.lab.samples import Mean


def log_slope(rows: Rows[Any], x: str, y: str) -> Mean:
    """Exponent of `y` as a power of the field `x`: a least-squares slope in logarithms for each seed, then their mean.

    Parameters
    ----------
    rows : Rows[Any]
        Rows of several values of `x`.
    x : str
        A field of the point.
    y : str
        A measured quantity.

    Returns
    -------
    Mean
        One exponent per seed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from whichtoken.lab import Row, Rows, log_slope
    >>> rows = Rows(Row(SimpleNamespace(dim=dim), seed, "ok", "", {"error": dim**-0.5}, 0.1, "0.1.0")
    ...             for dim in (4, 16, 64) for seed in range(3))
    >>> log_slope(rows, "dim", "error").values.round(6).tolist()
    [-0.5, -0.5, -0.5]
    """

    def slope(repeat: Rows[Any]) -> float | None:
        horizontal = np.array([getattr(row.point, x) for row in repeat], dtype=np.float64)
        if len(np.unique(horizontal)) < 2:
            return None
        return float(np.polyfit(np.log(horizontal), np.log(repeat.values(y)), 1)[0])

    return Mean(rows.per_seed(slope))
