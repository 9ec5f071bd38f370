"""Keys and queries trained apart: the nuclear norm, and what other optimisers make of them.

Claim   Gradient descent on K and Q takes W = K Q^T to the largest margin in the nuclear norm; a third factor lowers its
        rank further. Muon on K and Q maximises the spectral margin of W all the same. Adam and sign descent on K and Q
        maximise the margin in none of the norms of the map.
Source  Nuclear norm: Tarzanagh, Li, Thrampoulidis, Oymak (arXiv 2308.16898), Sheen, Chen, Wang, Zhou (arXiv 2403.08699).
        The others are measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken.experiments.optimisers._methods import Method, all_runs, draw_problem, printed_norm, train_with
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Row, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gd": ("normalized-gd", {"lr": 0.2}, "nuclear"),
    "muon": ("muon", {"lr": 0.2, "momentum": 0.0}, "spectral"),
    "sign": ("sign", {"lr": 0.06}, ""),
    "adam": ("adam", {"lr": 0.06, "betas": (0.9, 0.9), "eps": 0.0}, ""),
}
WORDS = {"gd": "gradient descent", "muon": "Muon", "sign": "sign descent", "adam": "Adam"}


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    method: Literal["gd", "muon", "sign", "adam"] = "gd"
    depth: int = 2  # number of factors of W
    steps: int = 8000


class KeysQueries(Experiment[Point]):
    id = "optimisers/keys-queries"
    version = 2
    presets = {
        "quick": (Grid(method=["gd", "muon", "adam"], seeds=(6, 24)), Grid(depth=[1, 2], seeds=(6, 24))),
        "full": (
            Grid(method=["gd", "muon", "sign", "adam"], steps=32000, seeds=30),
            Grid(depth=[1, 2, 3], steps=32000, seeds=30),
        ),
    }
    method_fields = frozenset({"method", "depth", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.margin_norms import margin_scale

        problem, start = draw_problem(point, rng)
        optimizer, options, _ = TRAINED[point.method]
        # with steps k^-(1 - 1/depth) of the factors, W moves by steps of constant size
        method = Method("", optimizer, {**options, "lr_power": 1.0 - 1.0 / point.depth}, factors=point.depth)
        run = train_with(method, problem, start, point.steps, [point.steps // 4, point.steps // 2])
        scale = margin_scale(problem.tokens, problem.queries, run.selected)
        curve = [scale.shares(state.direction) for state in (*run.snapshots, run.final)]
        values = np.linalg.svd(run.final.direction, compute_uv=False)
        return {
            "shares": curve[-1],
            "curves": {name: [shares[name] for shares in curve] for name in curve[-1]},
            # effective: all singular values equal give their number
            "rank": float(values.sum() ** 2 / (values**2).sum()),
            "gap": scale.gap,
            "settled": run.settled,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        pairs = rows.where(depth=2)
        for name in pairs.levels("method"):
            runs, norm = pairs.where(method=name), TRAINED[name][2]
            if norm:
                yield at_least(
                    f"keys-queries.own.{name}",
                    f"{WORDS[name]} on K and Q: share of the largest {norm} margin",
                    bound=0.9,
                    measured=Mean(all_runs(runs, partial(_share, norm=norm))),
                )
                yield at_least(
                    f"keys-queries.dominance.{name}",
                    f"{WORDS[name]} on K and Q: lead of the {norm} share over that in the nearest other norm",
                    bound=0.05,
                    measured=Mean(all_runs(runs, partial(_lead, norm=norm))),
                )
            else:
                yield at_most(
                    f"keys-queries.none.{name}",
                    f"{WORDS[name]} on K and Q: largest share in any of the norms",
                    bound=0.9,
                    measured=Mean(all_runs(runs, lambda row: max(row.measured["shares"].values()), failed=1.0)),
                )
        by_depth = rows.where(method="gd")
        depths = sorted(by_depth.levels("depth"))
        for shallow, deep in pairwise(depths):
            yield at_least(
                f"keys-queries.rank.{shallow}to{deep}",
                f"gradient descent on {deep} factors instead of {shallow}: effective rank lost",
                bound=0.0,
                measured=Mean(by_depth.per_seed(partial(_rank_lost, shallow=shallow, deep=deep))),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        from whichtoken.display.figures import printed

        left, right = figure.subplots(1, 2)
        for name in rows.where(depth=2).levels("method"):
            runs = rows.where(depth=2, method=name)
            shares = {
                norm: np.mean([row.measured["shares"][norm] for row in runs]) for norm in runs[0].measured["shares"]
            }
            left.plot(
                [printed(printed_norm(norm)) for norm in shares],
                list(shares.values()),
                "o-",
                label=f"{WORDS[name]} on K and Q",
            )
        left.set(ylim=(0.0, 1.05), ylabel="mean share of the largest margin", title="In which norm?")
        left.legend()
        depths = sorted(rows.where(method="gd").levels("depth"))
        right.boxplot([rows.where(method="gd", depth=depth).values("rank") for depth in depths], tick_labels=depths)
        right.set(xlabel="number of factors", ylabel="effective rank of the map", title="Gradient descent")


def _share(row: Row[Point], norm: str) -> float:
    return float(row.measured["shares"][norm])


def _lead(row: Row[Point], norm: str) -> float:
    shares = row.measured["shares"]
    return float(shares[norm] - max(share for name, share in shares.items() if name != norm))


def _rank_lost(repeat: Rows[Point], shallow: int, deep: int) -> float | None:
    ranks = {row.point.depth: row.measured["rank"] for row in repeat}
    return ranks[shallow] - ranks[deep] if {shallow, deep} <= set(ranks) else None
