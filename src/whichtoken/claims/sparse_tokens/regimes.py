"""Where attention beats mean pooling, and where it loses.

Claim   Attention beats a linear model on the mean token only if its query is aligned with the signal well enough; how well
        depends on temperature and samples as theory predicts, and a query without alignment does worse than none.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153) remark, as a secondary source reports, that attention loses when its query is poor; the diagram is computed
        and measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions
from whichtoken.claims._figures import Axes, Figure
from whichtoken.claims._runs import Array, pairs, rows_where
from whichtoken.claims.sparse_tokens._tasks import OneSignalToken, fit_given_query, split_tasks, task_of
from whichtoken.lab import Measured, Predicted, Rows

ACCURACY = 5e-3  # relative, of predicted errors
LEAST = 1e-300  # stands for the errors of strong signals, which underflow
TABLE = ClaimTable(__name__)
AXES = {"inverse_temperature": ("temperature", "tau"), "samples_per_dim": ("samples", "a")}


@dataclass(frozen=True)
class Point(OneSignalToken):
    dim: int = 200
    alignment: float = 0.5
    inverse_temperature: float = 1.0  # times the norm of the query
    samples_per_dim: float = 2.0
    ridge: float = 1e-2


class Regimes(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        # attention without temperature is the mean
        attention, pooled = (
            fit_given_query(point, temperature, rng, points=1 << 12)[1]
            for temperature in (point.inverse_temperature, 0.0)
        )
        return {"attention": attention, "pooled": pooled, "advantage": _halvings(pooled, attention)}

    def predict(self, point: Point) -> Predictions:
        from whichtoken.theory.sparse_tokens import erm

        learning = {"samples_per_dim": point.samples_per_dim, "ridge": point.ridge, "accuracy": ACCURACY}
        problem = task_of(point) | learning
        attention = erm(alignment=point.alignment, inverse_temperature=point.inverse_temperature, **problem)
        pooled = erm(model="pooled", **problem)
        relative = sum(found.error_estimate / max(found.test_error, LEAST) for found in (attention, pooled))
        return {
            "attention": Predicted(attention.test_error, attention.error_estimate),
            "pooled": Predicted(pooled.test_error, pooled.error_estimate),
            "advantage": Predicted(_halvings(pooled.test_error, attention.test_error), relative / math.log(2)),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        groups = [
            (f"{letter}{level:g}{ending}", runs)
            for field, (_, letter) in AXES.items()
            for level in sorted(_panel_rows(rows, field).levels(field))
            # the samples of the temperatures are judged with these
            if field != "samples_per_dim" or level != Point.samples_per_dim
            for ending, runs in split_tasks(_panel_rows(rows, field).where(**{field: level}), "alignment")
        ]
        for label, runs in groups:
            # where the advantage crosses zero, from the two alignments between which theory has it cross
            edge, beside = _predicted_edge(runs)
            some = rows_where(runs, lambda point, beside=beside: point.alignment in beside) if beside else runs  # type: ignore[misc]
            yield TABLE.edges.part(label, _words(runs), _measured_edges(some, beside), on=some, value=edge)
        for criterion, alignment in ((TABLE.loses, 0.0), (TABLE.wins, 0.8)):
            for label, runs in groups:
                some = runs.where(alignment=alignment)
                yield criterion.part(label, _words(runs), some.values("advantage"), on=some)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        for axes, field in zip(figure.subplots(1, 2), AXES, strict=True):
            # one task to a picture
            ending, some = next(split_tasks(_panel_rows(rows, field), "alignment", field), ("", Rows()))
            _draw_diagram(some, field, ending, axes)


def _halvings(error: float, smaller: float) -> float:
    """How often the error must be halved to give the smaller one."""
    return math.log2(max(error, LEAST)) - math.log2(max(smaller, LEAST))


def _panel_rows(rows: Rows[Point], field: str) -> Rows[Point]:
    """The rows of one panel: only the alignment and this field vary."""
    fixed = {name: getattr(Point, name) for name in AXES if name != field}
    return rows.where(**fixed)


def _words(runs: Rows[Point]) -> str:
    point = next(iter((*runs, *runs.failed))).point
    return f"inverse temperature {point.inverse_temperature:g}, {point.samples_per_dim:g} samples per dimension"


def _predicted_edge(runs: Rows[Point]) -> tuple[float | None, list[float]]:
    """The edge of theory, and the alignments below and above it."""
    predicted = {row.point.alignment: float(row.predicted["advantage"].value) for row in runs if row.predicted}
    edge = _crossing(predicted)
    if edge is None:
        return None, []
    return edge, [max(x for x in predicted if x < edge), min(x for x in predicted if x >= edge)]


def _measured_edges(runs: Rows[Point], beside: list[float]) -> Array:
    """A value per repeat: their mean is where the line through the mean advantages at two alignments crosses zero.

    The scatter is that of the crossing, to first order. Crossings of single repeats would be biased: noise makes several.
    """
    if not beside:
        return np.array([])
    below, above = pairs(runs, "advantage", *({"alignment": alignment} for alignment in beside))
    if not len(below):
        return np.array([])
    low, rise, step = below.mean(), above.mean() - below.mean(), beside[1] - beside[0]
    values: Array = beside[0] - step * (low / rise + (below - low) / rise - low * (above - below - rise) / rise**2)
    return values


def _crossing(advantages: Mapping[float, float]) -> float | None:
    """Alignment at which the advantage first turns positive, interpolated; None where it never does."""
    ordered = np.array(sorted(advantages.items()))
    if len(ordered) < 2:
        return None
    alignment, advantage = ordered.T
    ahead = np.flatnonzero((advantage[:-1] < 0) & (advantage[1:] >= 0))
    if not len(ahead):
        return None
    i = ahead[0]
    return float(np.interp(0.0, advantage[i : i + 2], alignment[i : i + 2]))


def _draw_diagram(rows: Rows[Point], field: str, ending: str, axes: Axes) -> None:
    """Color: theory's advantage; line: where theory puts its edge; dots: where training found it."""
    axes.set(xlabel="alignment of the query", yscale="log", ylabel=field.replace("_", " ").replace("dim", "dimension"))
    axes.set(title=f"Attention against mean pooling, by {AXES[field][0]}{ending}", xlim=(0, 1))
    across, up = sorted(rows.levels("alignment")), sorted(rows.levels(field))
    values = {(row.point.alignment, getattr(row.point, field)): row.predicted.get("advantage") for row in rows}
    table = [[values.get((x, y)) for x in across] for y in up]
    if len(across) > 1 and len(up) > 1 and all(item is not None for line in table for item in line):
        height = np.array([[item.value for item in line if item is not None] for line in table])
        levels = np.arange(-1, 3.25, 0.25)
        drawn = axes.contourf(across, up, height, levels, cmap="RdBu", vmin=-3, vmax=3, extend="both", alpha=0.8)
        axes.contour(across, up, height, [0.0], colors="black", linewidths=1.5)
        figure = axes.get_figure()
        if figure is not None:
            figure.colorbar(drawn, ax=axes, label="halvings of the error")
    axes.set_yticks(up, [f"{level:g}" for level in up])
    axes.set_yticks([], minor=True)
    for level in up:
        runs = rows.where(**{field: level})
        found = _measured_edges(runs, _predicted_edge(runs)[1])
        if len(found):
            axes.errorbar(
                found.mean(), level, xerr=found.std() / len(found) ** 0.5, fmt="o", color="black", ms=4, capsize=3
            )
