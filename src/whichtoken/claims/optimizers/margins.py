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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, Equals, values_with_failures
from whichtoken.claims._figures import Axes, Figure, draw_table, label_axes
from whichtoken.claims.mirror_descent._problems import draw_problem
from whichtoken.claims.optimizers._methods import METHODS, OWN_NORMS, START, margin_shares, printed_norm, train_with
from whichtoken.lab import Check, Exact, Experiment, Grid, Mean, Measured, Resampled, Row, Rows

MethodName = Literal[
    "gd", "normalized-gd", "sign", "coordinate", "adam", "adam-default", "lion", "muon", "muon-momentum", "muon-torch",
    "shampoo", "soap", "schatten", "keys-queries", "keys-queries-muon",
]  # fmt: skip
COSTLY = ("schatten", "shampoo", "soap")  # decompose a matrix in every step
OWN = AtLeast("margins.own.{name}", 0.95, "{label}: share of the largest {norm} margin ({runs} runs{lost})")
# medians, for a run whose tokens change late is far from its course; `own` takes every run as it is
LIMIT = Equals("margins.limit.{name}", 1.0, "{label}: that share, extrapolated, median over problems", tolerance=0.02)
DOMINANCE = AtLeast("margins.dominance.{name}", 0.05, "{label}: lead over the share in the nearest other norm")
# of methods whose norm lies between two of the map
NEIGHBORS = {"schatten": 0.01}
RATE = Equals("margins.rate.{name}", -1.0, "{label}: exponent of steps in the missing share, median", tolerance=0.075)
CERTIFICATE = AtMost("margins.certificate", 1e-6, "largest duality gap of the margins")


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    method: MethodName = "sign"
    steps: int = 8000


class Margins(Experiment[Point]):
    id = "optimizers/margins"
    version = 2
    presets = {
        "quick": (
            # keys and queries have claims of their own, at more steps
            Grid(method=["normalized-gd", "sign", "coordinate", "adam", "muon"], seeds=(12, 48)),
        ),
        "full": (
            Grid(method=[name for name in METHODS if name not in COSTLY], steps=16000, seeds=(30, 60)),
            Grid(method=list(COSTLY), steps=16000, seeds=12),
        ),
    }
    method_fields = frozenset({"method", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.margin_norms import NORMS

        problem, start = draw_problem(point, rng, START)
        method = METHODS[point.method]
        clock = [point.steps // 16, point.steps // 8, point.steps // 4, point.steps // 2]
        run = train_with(method, problem, start, point.steps, clock)
        own = [method.norm] if method.norm in OWN_NORMS else []
        scale, curve = margin_shares(problem, run, [*NORMS, *own])
        return {
            "shares": curve[-1],
            "half": curve[-2],
            "clock": [*clock, point.steps],
            "curves": {name: [shares[name] for shares in curve] for name in curve[-1]},
            "gap": scale.gap,
            "margins": {name: certificate.margin for name, certificate in scale.certificates.items()},
            "unique": {name: certificate.unique for name, certificate in scale.certificates.items()},
            "settled": run.settled,
            "tokens": run.selected,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        for name in rows.levels("method"):
            method, runs = METHODS[name], rows.where(method=name)
            if not method.norm:
                continue
            words: dict[str, Any] = {"name": name, "label": method.label}
            own = Mean(values_with_failures(runs, _own))
            lost = f", {len(runs.failed)} failed" if runs.failed else ""
            value = 0.93 if method.factors > 1 else None
            yield OWN(own, value=value, norm=printed_norm(method.norm), runs=len(runs), lost=lost, **words)
            yield LIMIT(Resampled(values_with_failures(runs, _extrapolated_share), np.median), **words)
            yield DOMINANCE(Mean(values_with_failures(runs, _dominance)), value=NEIGHBORS.get(name), **words)
            if method.rate:
                yield RATE(Resampled(runs.seed_means(_exponent), np.median), **words)
        if rows:
            yield CERTIFICATE(Exact(rows.values("gap").max()))

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


def _own(row: Row[Point]) -> float:
    return float(row.measured["shares"][METHODS[row.point.method].norm])


def _extrapolated_share(row: Row[Point]) -> float:
    """Twice the share at the end less that at half of the steps: exact if what is missing falls as 1 / steps."""
    return 2.0 * _own(row) - float(row.measured["half"][METHODS[row.point.method].norm])


def _dominance(row: Row[Point]) -> float:
    own = METHODS[row.point.method].norm
    others = [share for norm, share in row.measured["shares"].items() if norm != own]
    return _own(row) - float(max(others))


def _exponent(row: Row[Point]) -> float:
    """Slope of log(1 - share) in the logarithm of steps over the last two doublings."""
    missing = 1.0 - np.array(row.measured["curves"][METHODS[row.point.method].norm][-3:])
    steps = np.log(row.measured["clock"][-3:])
    return float(np.polyfit(steps, np.log(np.maximum(missing, 1e-12)), 1)[0])


def draw_map(rows: Rows[Point], axes: Axes) -> None:
    """Methods over norms: mean share of the best margin."""
    from whichtoken.display.figures import printed
    from whichtoken.flows.margin_norms import NORMS

    names = rows.levels("method")
    table = np.array(
        [
            [np.mean([row.measured["shares"][norm] for row in rows.where(method=name)]) for norm in NORMS]
            for name in names
        ]
    )
    labels, norms = [METHODS[name].label for name in names], list(NORMS)
    columns = [printed(printed_norm(norm)) for norm in norms]

    def is_own(row: int, column: int) -> bool:
        return METHODS[names[row]].norm == norms[column]

    draw_table(axes, table, labels, columns, 3, white=table <= 0.6, bold=is_own, cmap="viridis", vmin=0.0, vmax=1.0)
    axes.set(title="Share of the largest margin (bold: own norm)")
    axes.invert_yaxis()
