"""How fast every method gets there, as two panels: on the limit, and on tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.attention_regression._methods import WORDS, arrival, arrived
from whichtoken.lab import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whichtoken.experiments.attention_regression.convergence import Point


def draw_population(rows: Rows[Point], axes: Axes) -> None:
    styles: dict[str, Callable[[Point], float]] = {
        "-": lambda point: point.target,
        "--": lambda point: point.covariance,
    }
    for index, method in enumerate(rows.levels("method")):
        for (style, condition), other in zip(styles.items(), ("covariance", "target"), strict=True):
            runs = Rows(row for row in rows.where(method=method, **{other: 1.0}) if arrived(row))
            levels = sorted({condition(row.point) for row in runs})
            medians = [np.median([arrival(row) for row in runs if condition(row.point) == level]) for level in levels]
            label = WORDS[method] if style == "-" else None
            axes.plot(levels, medians, style, marker="os"[index // 7], ms=4, color=f"C{index % 7}", label=label)
    axes.set(
        xscale="log", yscale="log", xlabel="condition number of the target (dashed: covariance)", ylabel="median iterations",
        title="Infinite context: iterations to an error of 1e-6",
    )  # fmt: skip
    if axes.has_data():
        axes.legend(fontsize=8)


def draw_tokens(rows: Rows[Point], axes: Axes) -> None:
    k = max(rows.levels("target"), default=1.0)
    hardest = rows.where(target=k)
    for index, method in enumerate(hardest.levels("method")):
        runs = hardest.where(method=method)
        curves = [min(row.measured["curves"].values(), key=min) for row in runs]
        shortest = min(map(len, curves))
        medians = np.median([curve[:shortest] for curve in curves], axis=0)
        style = "-" if index < 7 else "--"
        axes.plot(runs[0].measured["counts"][:shortest], medians, style, label=WORDS[method], marker=".", ms=4)
    axes.set(
        xscale="symlog", yscale="log", xlabel="gradient evaluations",
        title=f"Tokens, condition numbers {k:g}: median excess, best step size",
    )  # fmt: skip
    if axes.has_data():
        axes.legend(fontsize=8)
