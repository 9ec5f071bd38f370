"""The picture of joint training: a portrait over ratios and geometries, distances to three limits, growth in plain flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.lab import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


RATIO_BINS = 10.0 ** np.arange(-4.0, 2.0)
RATIO = "length of the decoder over that of W, |v| / |W|"


def draw_portrait(rows: Rows[Any], axes: Axes) -> None:
    """Over ratio and p: cosine to the strict limit, and how many runs end with attention on single tokens."""
    ps = sorted(rows.levels("p"))
    table = np.full((len(ps), len(RATIO_BINS) - 1), np.nan)
    axes.set(title="Cosine to the strict limit, and share of runs settled", xlabel=RATIO, xscale="log", yticks=[])
    for i, p in enumerate(ps):
        runs = rows.where(p=p)
        bins = np.digitize(runs.values("ratio"), RATIO_BINS) - 1
        for j in set(bins.tolist()) & set(range(table.shape[1])):
            inside = Rows(row for row, found in zip(runs, bins, strict=True) if found == j)
            settled = inside.values("settled")
            if settled.any():
                table[i, j] = inside.values("cosine_strict")[settled].mean()
            text = f"{table[i, j]:.3f}\n{settled.mean():.0%}" if settled.any() else f"{settled.mean():.0%}"
            axes.text(np.sqrt(RATIO_BINS[j] * RATIO_BINS[j + 1]), i + 0.5, text, ha="center", va="center", fontsize=8)
    axes.pcolormesh(RATIO_BINS, np.arange(len(ps) + 1), table, cmap="Blues_r", vmin=0.7, vmax=1.1, alpha=0.6)
    axes.set_yticks(np.arange(len(ps)) + 0.5, [f"p = {p:g}" for p in ps])
    axes.grid(False)


def draw_cosines(rows: Rows[Any], axes: Axes) -> None:
    for name, words, marker in (
        ("strict", "strict problem", "v"),
        ("relaxed", "relaxed problem", "^"),
        ("family", "member of the family at that ratio", "."),
    ):
        distance = np.maximum(1 - rows.values(f"cosine_{name}"), 1e-12)
        axes.plot(rows.values("ratio"), distance, marker, ms=4, alpha=0.6, label=words)
    axes.set(xscale="log", yscale="log", title="Distance from three limits, 1 - cosine", xlabel=RATIO, xlim=(1e-4, 1e2))
    axes.legend()


def draw_flow(rows: Rows[Any], axes: Axes) -> None:
    for number, row in enumerate(rows):
        if row.seed < 4 and row.point.p == rows[0].point.p:
            times = row.measured["log_times"]
            axes.plot(times, row.measured["decoder_norms"], "C0-", lw=1, label="decoder, |v|" if number == 0 else None)
            axes.plot(
                times, row.measured["weight_norms"], "C1-", lw=1, label="key-query matrix, |W|" if number == 0 else None
            )
    axes.set(xscale="log", yscale="log", title="Plain flow: how lengths grow", xlabel="logarithm of the time")
    axes.minorticks_off()
    axes.set_xticks([100, 200, 400, 800], ["100", "200", "400", "800"])
    axes.legend()
