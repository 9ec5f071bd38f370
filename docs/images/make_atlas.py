"""Writes what docs/atlas.md shows: its map, its tables and the tokens of one small problem, from stored rows.

    whichtoken reproduce optimizers/margins optimizers/tokens --preset full --out DIR
    python docs/images/make_atlas.py DIR full full

The two words are the presets of `margins` and `tokens`. Rows that the results file has are not computed again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from whichtoken.claims._runs import values_with_failures
from whichtoken.claims.optimizers._methods import METHODS, START, train_with
from whichtoken.claims.optimizers.margins import draw_map, extrapolated_share, missing_exponent, own_share
from whichtoken.claims.optimizers.tokens import COMPARED
from whichtoken.datasets import AttentionTokens
from whichtoken.files import write_text
from whichtoken.flows.margin_norms import NORMS
from whichtoken.lab import Resampled, reproduce
from whichtoken.lab.experiment import Rows

PAGE = Path(__file__).parent.parent / "atlas.md"
WORDS = {
    "l1": "the largest l_1 margin",
    "l2": "the largest Frobenius margin",
    "linf": "the largest margin of the largest entry (l_inf)",
    "nuclear": "the largest nuclear margin",
    "spectral": "the largest spectral margin",
    "schatten-1.5": "the largest Schatten-1.5 margin",
    "": "none of these norms",
}
RATES = {"gd": "in time: see `mirror-descent/rates`"}
SIZE = (4, 5, 4)  # sequences, tokens and dimensions of the small problem


def main(out: str, margins_preset: str, tokens_preset: str) -> None:
    """Draw the map and fill the marked parts of the page."""
    (margins,) = reproduce(["optimizers/margins"], preset=margins_preset, out=Path(out))
    (tokens,) = reproduce(["optimizers/tokens"], preset=tokens_preset, out=Path(out))
    rows = margins.rows
    plt.rcParams["svg.hashsalt"] = "whichtoken"
    figure, axes = plt.subplots(figsize=(8.0, 6.2), layout="constrained")
    draw_map(rows, axes)
    figure.savefig(Path(__file__).parent / "atlas_map.svg", metadata={"Date": None})
    text = PAGE.read_text(encoding="utf-8")
    text = filled(text, "limits", limits_table(rows))
    text = filled(text, "picked", picked_table())
    text = filled(text, "same", same_table(tokens.rows))
    write_text(PAGE, text)


def filled(text: str, part: str, table: str) -> str:
    """The page with what stands between the marks of a part replaced."""
    mark = rf"(<!-- {part}: .*? -->\n).*?(<!-- end -->)"
    found, count = re.subn(mark, lambda m: f"{m[1]}{table}\n{m[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE} needs exactly one part {part!r}, it has {count}")
    return found


def limits_table(rows: Rows[Any]) -> str:
    """If you train with X, attention converges to Y, at rate Z."""
    lines = [
        "| if you train with | attention converges to | measured share of it | extrapolated | missing share falls as |",
        "|---|---|---|---|---|",
    ]
    names = rows.levels("method")
    # the intervals of the table hold together
    level = 0.95 ** (1 / (2 * sum(bool(METHODS[name].norm) for name in names)))
    for name in names:
        method, runs = METHODS[name], rows.where(method=name)
        if method.norm:
            share, end = (median(runs, of, level) for of in (own_share, extrapolated_share))
            judged = method.rate or name == "coordinate"
            rate = (
                f"steps^{np.median(runs.seed_means(missing_exponent)):.2f}" if judged else RATES.get(name, "not judged")
            )
        else:
            nearest = max(NORMS, key=lambda norm: mean_share(rows, name, norm))
            share, end, rate = f"at most {mean_share(rows, name, nearest):.3f} ({nearest})", "", ""
        lines.append(f"| {method.label} | {WORDS[method.norm]} | {share} | {end} | {rate} |")
    return "\n".join(lines)


def median(runs: Rows[Any], of: Callable[[Any], float], level: float) -> str:
    """A median with its interval."""
    found = Resampled(values_with_failures(runs, of), np.median).interval(level)
    return f"{found.measured:.4f} ({found.low:.4f} to {found.high:.4f})"


def mean_share(rows: Rows[Any], name: str, norm: str) -> float:
    return float(np.mean([row.measured["shares"][norm] for row in rows.where(method=name)]))


def picked_table() -> str:
    """The tokens of the first small problem on which the optimizers do not all agree."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        problem = AttentionTokens(*SIZE).sample(rng)
        start = START * rng.standard_normal((SIZE[2], SIZE[2]))
        picked = {name: train_with(METHODS[name], problem, start, 8000).selected for name in COMPARED}
        if len({tuple(tokens.tolist()) for tokens in picked.values()}) > 1:
            break
    best = problem.token_scores.argmax(axis=1)
    head = " | ".join(f"sequence {i + 1}" for i in range(SIZE[0]))
    lines = [f"| seed {seed} | {head} |", "|---" * (SIZE[0] + 1) + "|"]
    lines.append("| best token | " + " | ".join(str(t) for t in best) + " |")
    for name, tokens in picked.items():
        marks = [f"{t}" if t == b else f"**{t}**" for t, b in zip(tokens, best, strict=True)]
        lines.append(f"| {METHODS[name].label} | " + " | ".join(marks) + " |")
    return "\n".join(lines)


def same_table(rows: Rows[Any]) -> str:
    """How often all optimizers select the same tokens, and each the best one."""
    starts = rows.levels("start")
    lines = [
        "| start | " + " | ".join(f"entries of size {start:g}" for start in starts) + " |",
        "|---" * (len(starts) + 1) + "|",
    ]
    same = [
        rows.where(start=start)
        .per_seed(lambda runs: float(len({tuple(row.measured["tokens"]) for row in runs}) == 1))
        .mean()
        for start in starts
    ]
    lines.append(
        "| all optimizers select the same tokens | " + " | ".join(f"{100 * x:.0f} % of problems" for x in same) + " |"
    )
    for name in rows.levels("method"):
        best = [rows.where(start=start, method=name).values("best").mean() for start in starts]
        shown = " | ".join(f"{100 * x:.1f} % of sequences" for x in best)
        lines.append(f"| {METHODS[name].label}: selects the best token in | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
