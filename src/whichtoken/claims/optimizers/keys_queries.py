"""Keys and queries trained apart: the nuclear norm, and what other optimizers make of them.

Claim   Gradient descent on K and Q takes W = K Q^T to the largest margin in the nuclear norm; a third factor lowers its
        rank further. Muon on K and Q maximizes the spectral margin of W all the same. Adam and sign descent on K and Q
        maximize the margin in none of the norms of the map.
Source  Nuclear norm: Tarzanagh, Li, Thrampoulidis, Oymak (arXiv 2308.16898), Sheen, Chen, Wang, Zhou (arXiv 2403.08699).
        The others are measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, format_norms, label_axes
from whichtoken.claims._problems import ProblemSize, draw_problem
from whichtoken.claims._runs import group_by, mean_of_runs, pairs, resampled_runs
from whichtoken.claims.optimizers._methods import START, Method, margin_shares, norm_name, train_with
from whichtoken.lab import Measured, Row, Rows

TABLE = ClaimTable(__name__)
TRAINED = TABLE.tables["trained"]


@dataclass(frozen=True)
class Point(ProblemSize):
    method: Literal["gd", "muon", "sign", "adam"] = "gd"
    depth: int = 2  # number of factors of W
    steps: int = 8000


class KeysQueries(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.margin_norms import NORMS

        problem, start = draw_problem(point, rng, START)
        trained = TRAINED[point.method]
        # with steps k^-(1 - 1/depth) of the factors, W moves by steps of constant size
        options = {**trained["options"], "lr_power": 1.0 - 1.0 / point.depth}
        method = Method("", trained["optimizer"], options, factors=point.depth)
        run = train_with(method, problem, start, point.steps)
        _, [shares] = margin_shares(problem, run, NORMS)
        values = np.linalg.svd(run.final.direction, compute_uv=False)
        return {
            "shares": shares,
            # effective: all singular values equal give their number
            "rank": float(values.sum() ** 2 / (values**2).sum()),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        own, none = [], []
        for name, runs in group_by(rows.where(depth=2), "method"):
            words, norm = TRAINED[name]["words"], TRAINED[name]["norm"]
            if norm:
                yield TABLE[norm](mean_of_runs(runs, _lead), on=runs)
                share = resampled_runs(runs, _own_share)
                own.append(TABLE.own.part(name, f"{words}, {norm} margin", share, on=runs))
            else:
                largest = mean_of_runs(runs, lambda row: max(row.measured["shares"].values()), failed=1.0)
                none.append(TABLE.none.part(name, words, largest, on=runs))
        yield from (*own, *none)
        trained = rows.where(method="gd")
        for shallow, deep in pairwise(sorted(trained.levels("depth"))):
            lost = np.subtract(*pairs(trained, "rank", {"depth": shallow}, {"depth": deep}))
            yield TABLE.rank.part(f"{shallow}to{deep}", f"from {shallow} to {deep} factors", lost, on=trained)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for name in rows.where(depth=2).levels("method"):
            shares = [row.measured["shares"] for row in rows.where(depth=2, method=name)]
            means = {format_norms(norm_name(norm)): np.mean([share[norm] for share in shares]) for norm in shares[0]}
            left.plot(list(means), list(means.values()), "o-", label=f"{TRAINED[name]['words']} on K and Q")
        label_axes(left, "In which norm?", y="mean share of the largest margin", ylim=(0.0, 1.05), legend=True)
        depths = sorted(rows.where(method="gd").levels("depth"))
        right.boxplot([rows.where(method="gd", depth=depth).values("rank") for depth in depths], tick_labels=depths)
        label_axes(right, "Gradient descent", "number of factors", "effective rank of the map")


def _own_share(row: Row[Point]) -> float:
    return float(row.measured["shares"][TRAINED[row.point.method]["norm"]])


def _lead(row: Row[Point]) -> float:
    others = [share for name, share in row.measured["shares"].items() if name != TRAINED[row.point.method]["norm"]]
    return _own_share(row) - float(max(others))
