"""Each optimizer maximizes the margin in its own norm.

Claim   Trained by an optimizer whose steps are the steepest of a norm, the key-query matrix comes as close as one likes to
        the largest margin in that norm for the tokens it selects, and stays clearly below it in every other norm; the
        distance falls as 1 / steps.
Source  Proven for homogeneous networks: Tsilivis, Vardi, Kempe, Flavors of Margin (arXiv 2410.22069), Gronich, Vardi (arXiv
        2602.16340, Adam, Muon, signum). For attention: Frobenius norm for W, nuclear norm for K and Q, Tarzanagh, Li,
        Thrampoulidis, Oymak, Transformers as Support Vector Machines (arXiv 2308.16898). All others, and the rate, are
        measured here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Axes, Figure, draw_table, format_norms, label_axes
from whichtoken.claims._problems import ProblemSize, draw_problem
from whichtoken.claims._runs import group_by, resampled_runs
from whichtoken.claims.optimizers._methods import METHODS, OWN_NORMS, START, margin_shares, norm_name, train_with
from whichtoken.lab import Measured, Resampled, Row, Rows

MethodName = Literal[
    "gd", "normalized-gd", "sign", "coordinate", "adam", "adam-default", "lion", "muon", "muon-momentum", "muon-torch",
    "shampoo", "soap", "schatten", "keys-queries", "keys-queries-muon",
]  # fmt: skip
COSTLY = ("schatten", "shampoo", "soap")  # decompose a matrix in every step
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(ProblemSize):
    method: MethodName = "sign"
    steps: int = 8000


class Margins(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.margin_norms import NORMS

        problem, start = draw_problem(point, rng, START)
        method = METHODS[point.method]
        clock = [point.steps // 16, point.steps // 8, point.steps // 4, point.steps // 2]
        run = train_with(method, problem, start, point.steps, clock)
        own = [method.norm] if method.norm in OWN_NORMS else []
        _, curve = margin_shares(problem, run, [*NORMS, *own])
        return {
            "shares": curve[-1],
            "half": curve[-2],
            "clock": [*clock, point.steps],
            "curves": {name: [shares[name] for shares in curve] for name in curve[-1]},
            "tokens": run.selected,
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        runs_of = dict(group_by(rows, "method"))
        for group, stated in TABLE.tables["groups"].items():
            for table, of in ((TABLE.own, own_share), (TABLE.limit, extrapolated_share), (TABLE.dominance, _dominance)):
                criterion = replace(
                    table, kind=stated["kind"] if table.kind == "our-law" else table.kind, regime=stated["regime"]
                )
                for name in stated["methods"]:
                    if runs := runs_of.get(name):
                        words = f"{METHODS[name].label}, {norm_name(METHODS[name].norm)} margin, {len(runs)} runs"
                        median = resampled_runs(runs, of)
                        yield criterion.part(name, words, median, on=runs, group=group, words=stated["words"])
        for name, runs in runs_of.items():
            if METHODS[name].rate and METHODS[name].norm:
                yield TABLE.rate.part(name, METHODS[name].label, _median_exponent(runs), on=runs)
        if greedy := runs_of.get("coordinate"):
            yield TABLE.slower(_median_exponent(greedy), on=greedy)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1.3, 1])
        draw_map(rows, left)
        for name in rows.levels("method"):
            if norm := METHODS[name].norm:
                runs = rows.where(method=name)
                missing = 1.0 - np.mean([row.measured["curves"][norm] for row in runs], axis=0)
                right.plot(runs[0].measured["clock"], missing, marker="o", ms=3, label=METHODS[name].label)
        y = "share of the largest margin still missing"
        label_axes(right, "Missing share, own norm", "step", y, log="xy")
        right.legend(fontsize="small")


def _median_exponent(runs: Rows[Point]) -> Resampled:
    return Resampled(runs.seed_means(missing_exponent), np.median)


def own_share(row: Row[Point]) -> float:
    """Share of the largest margin in the method's norm."""
    return float(row.measured["shares"][METHODS[row.point.method].norm])


def extrapolated_share(row: Row[Point]) -> float:
    """Twice the share at the end less that at half of the steps: exact if what is missing falls as 1 / steps."""
    return 2.0 * own_share(row) - float(row.measured["half"][METHODS[row.point.method].norm])


def _dominance(row: Row[Point]) -> float:
    own = METHODS[row.point.method].norm
    others = [share for norm, share in row.measured["shares"].items() if norm != own]
    return own_share(row) - float(max(others))


def missing_exponent(row: Row[Point]) -> float:
    """Slope of log(1 - share) in the logarithm of steps over the last two doublings."""
    missing = 1.0 - np.array(row.measured["curves"][METHODS[row.point.method].norm][-3:])
    steps = np.log(row.measured["clock"][-3:])
    return float(np.polyfit(steps, np.log(np.maximum(missing, 1e-12)), 1)[0])


def draw_map(rows: Rows[Point], axes: Axes) -> None:
    """Methods over norms: mean share of the best margin."""
    from whichtoken.flows.margin_norms import NORMS

    names = rows.levels("method")
    table = np.array(
        [
            [np.mean([row.measured["shares"][norm] for row in rows.where(method=name)]) for norm in NORMS]
            for name in names
        ]
    )
    labels, norms = [METHODS[name].label for name in names], list(NORMS)
    columns = [format_norms(norm_name(norm)) for norm in norms]

    def is_own(row: int, column: int) -> bool:
        return METHODS[names[row]].norm == norms[column]

    draw_table(axes, table, labels, columns, 3, white=table <= 0.6, bold=is_own, cmap="viridis", vmin=0.0, vmax=1.0)
    axes.set(title="Share of the largest margin (bold: own norm)")
    axes.invert_yaxis()
