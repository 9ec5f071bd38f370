"""The low-dimensional problem reproduces the original training objective.

Claim   The training objective of the readout, minimized with its overlaps with query and signal held fixed, is the potential
        of the low-dimensional problem at these overlaps: not only their minima agree, the whole surfaces do.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153): a summary of the paper says that the original and a surrogate problem are asymptotically equivalent. The
        potential is derived here, and compared here as a surface.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.claims._checks import Above, Checks, Criterion, Equals, PaperEquals, Predictions, pool_parts
from whichtoken.claims._figures import Figure
from whichtoken.claims._runs import Array, share_of_runs
from whichtoken.claims.sparse_tokens._tasks import attended_features, sequences_of, split_tasks, task_of
from whichtoken.lab import Check, Experiment, Grid, Measured, Predicted, Rows

if TYPE_CHECKING:
    from whichtoken.theory.sparse_tokens import FeatureLaw, Readout

STEPS = (-0.8, -0.4, 0.0, 0.4, 0.8)  # of the two overlaps, from where theory puts the minimum
CENTER = len(STEPS) ** 2 // 2
LAWS, NODES = 4, 1 << 10
WHAT = "training objective with pinned overlaps over the potential"
LEVEL = PaperEquals("surrogate.level", None, f"{WHAT}, mean over the surface", tolerance=0.03)
WORST = Equals("surrogate.worst", None, f"{WHAT}, where the two surfaces differ most", tolerance=0.03)
SHAPE = Equals("surrogate.shape", None, f"{WHAT}, height of the corners above the center", tolerance=0.03)
MINIMUM = Above("surrogate.minimum", 0.8, "share of runs whose surface is lowest where the potential is, on the grid")
PROX_STEPS = 20


@dataclass(frozen=True)
class Point:
    length: int = 5
    signal_tokens: int = 2
    strength: float = 3.0
    prevalence: float = 0.3
    dim: int = 100
    samples_per_dim: float = 2.0
    alignment: float = 0.7
    inverse_temperature: float = 1.5
    ridge: float = 0.1


class Surrogate(Experiment[Point]):
    id = "sparse-tokens/surrogate"
    version = 2
    presets = {"quick": (Grid(dim=100, seeds=(30, 120)),), "full": (Grid(dim=[100, 200, 400], seeds=(60, 120)),)}

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        samples = round(point.samples_per_dim * point.dim)
        query = (point.alignment, point.inverse_temperature)
        features, labels = attended_features(sequences_of(point), samples, *query, rng)
        start = np.zeros(point.dim - 1)
        surface = []
        for overlaps in _pins(point):
            value, start = _least_objective(features, labels, overlaps, point.ridge, start)
            surface.append(value)
        return {"surface": surface}

    def predict(self, point: Point) -> Predictions:
        from whichtoken.theory.sparse_tokens import Task, attention_law

        task, center = Task(**task_of(point)), predicted_minimum(point)
        laws = [
            attention_law(task, point.alignment, point.inverse_temperature, NODES, seed=seed) for seed in range(LAWS)
        ]
        surfaces = np.array([[potential(law, point, pin, center) for pin in _pins(point)] for law in laws])
        errors = 2 * surfaces.std(axis=0, ddof=1) / math.sqrt(LAWS)
        return {"surface": Predicted(surfaces.mean(axis=0), float(errors.max()))}

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        groups = [
            (f"d{dim}{ending}", task.where(dim=dim))
            for ending, task in split_tasks(rows, "dim")
            for dim in sorted({row.point.dim for row in (*rows, *rows.failed)})
        ]
        for criterion in (LEVEL, WORST, SHAPE):
            for label, runs in groups:
                yield _compare(criterion, label, runs)
        for label, runs in groups:
            lowest = share_of_runs(runs, lambda row: np.argmin(row.measured["surface"]) == CENTER)
            yield MINIMUM.part(label, label, lowest, on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        largest = rows.where(dim=max(rows.levels("dim"), default=0))
        ending, runs = next(split_tasks(largest), ("", largest))  # one task to a picture
        if not runs:
            return
        side = len(STEPS)
        measured = runs.values("surface").reshape(-1, side, side)  # overlap with the query, then with the signal
        predicted = runs.predicted("surface")
        theory = None if predicted is None else np.array(predicted.value).reshape(side, side)
        for axes, what, transpose in ((left, "query", False), (right, "signal off the query", True)):
            surfaces = measured.swapaxes(1, 2) if transpose else measured
            for column, step in enumerate(STEPS):
                mean, error = surfaces[:, :, column].mean(axis=0), surfaces[:, :, column].std(axis=0) / len(runs) ** 0.5
                axes.errorbar(STEPS, mean, error, fmt="o", ms=4, capsize=3, color=f"C{column}", label=f"{step:+.1f}")
                if theory is not None:
                    axes.plot(STEPS, (theory.T if transpose else theory)[:, column], color=f"C{column}", lw=1.5)
            axes.set(xlabel=f"overlap with the {what}, minus its optimum")
        left.set(title=f"Potential (lines), training at d = {runs[0].point.dim} (dots){ending}", ylabel="objective")
        left.legend(title="other overlap", fontsize=8)


def _compare(criterion: Criterion, label: str, runs: Rows[Point]) -> Check:
    """Measured surfaces over the predicted one: their mean, the place where they differ most, or the height of their corners."""
    predicted = runs.predicted("surface")
    known = predicted is not None and len(runs) > 0
    surfaces = runs.values("surface").reshape(len(runs), len(STEPS) ** 2)
    theory = np.ones(len(STEPS) ** 2) if predicted is None else np.array(predicted.value)
    ratios = surfaces / theory
    if criterion is LEVEL:
        values = ratios.mean(axis=1)
    elif criterion is SHAPE:
        values = _height(surfaces) / (_height(theory) if known else 1.0)
    else:
        values = ratios[:, int(np.abs(ratios.mean(axis=0) - 1).argmax())] if len(runs) else np.array([])
    error = 0.0 if predicted is None else predicted.error / theory.min()
    return criterion.part(label, label, values, on=runs, value=1.0 if known else None, theory_error=error)


def _height(surfaces: Array) -> Array:
    """Mean height of the four corners above the center of (..., pins) surfaces."""
    side = len(STEPS)
    corners = surfaces[..., [0, side - 1, -side, -1]].mean(axis=-1)
    return np.asarray(corners - surfaces[..., CENTER])


@lru_cache(maxsize=8)  # every repeat of a point asks for it
def predicted_minimum(point: Point) -> Readout:
    from whichtoken.theory.sparse_tokens import erm

    return erm(
        **task_of(point),
        alignment=point.alignment,
        inverse_temperature=point.inverse_temperature,
        samples_per_dim=point.samples_per_dim,
        ridge=point.ridge,
    )


def _pins(point: Point) -> list[tuple[float, float]]:
    """Overlaps with query and signal at which the surfaces are compared."""
    center = predicted_minimum(point)
    return [(center.query_overlap + along, center.signal_overlap + across) for along, across in product(STEPS, STEPS)]


def _least_objective(
    features: Array, labels: Array, overlaps: tuple[float, float], ridge: float, start: Array
) -> tuple[float, Array]:
    """Least logistic training objective of a readout with its first two coordinates fixed, and the rest of it."""
    from scipy.optimize import minimize
    from scipy.special import expit

    offset = features[:, :2] @ overlaps
    rest = np.hstack([features[:, 2:], np.ones((len(labels), 1))])
    penalty = np.append(np.full(rest.shape[1] - 1, ridge), 0.0)

    def objective(x: Array) -> tuple[float, Array]:
        margin = labels * (rest @ x + offset)
        slope = -labels * expit(-margin) / len(labels)
        return float(np.logaddexp(0, -margin).mean() + penalty @ x**2 / 2), rest.T @ slope + penalty * x

    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-7, "ftol": 1e-12})
    return float(found.fun) + ridge / 2 * math.hypot(*overlaps) ** 2, found.x


def potential(law: FeatureLaw, point: Point, overlaps: tuple[float, float], start: Readout) -> float:
    """The saddle value over bias b, norm of the rest sig and response V, at fixed overlaps om and m.

    E[M(r; rho V)] - sig^2 / (2 alpha V) + (ridge/2)(om^2 + m^2 + sig^2), with M the Moreau envelope of the loss.
    """
    from scipy.optimize import root

    (om, m), alpha, ridge = overlaps, point.samples_per_dim, point.ridge

    def parts(x: Array) -> tuple[Array, Array, Array, Array]:
        mean, noise = law.score(om, m, x[0], m**2 + math.exp(2 * x[1]))
        width = law.spread * math.exp(x[2])
        score = law.label * (mean + noise * law.gauss)
        fitted = _logistic_prox(score, width)
        return noise, width, fitted, (score - fitted) / width  # the last: slope of the loss at the fitted score

    def balance(x: Array) -> Array:
        noise, _, _, slope = parts(x)
        sig2, v = math.exp(2 * x[1]), math.exp(x[2])
        bias = law.weight @ (law.label * slope)
        pull = law.weight @ (law.label * slope * law.gauss * law.spread / noise)
        energy = law.weight @ (law.spread * slope**2)
        return np.array([bias, pull + ridge - 1 / (alpha * v), alpha * v**2 * energy / sig2 - 1])

    found = root(balance, [start.bias, math.log(start.rest_norm), math.log(start.response)], tol=1e-9)
    if not found.success:
        raise ValueError(f"no saddle point at overlaps {om:.3g}, {m:.3g}: {found.message}")
    _, width, fitted, slope = parts(found.x)
    sig2, v = math.exp(2 * found.x[1]), math.exp(found.x[2])
    envelope = law.weight @ (np.logaddexp(0, -fitted) + width * slope**2 / 2)
    return float(envelope - sig2 / (2 * alpha * v) + ridge / 2 * (om**2 + m**2 + sig2))


def _logistic_prox(score: Array, width: Array) -> Array:
    """Solve u - width * sigmoid(-u) = score by Newton's method; the left side grows at least as fast as u."""
    from scipy.special import expit

    u = score + width / 2
    for _ in range(PROX_STEPS):
        slope = expit(-u)
        u = np.clip(u - (u - width * slope - score) / (1 + width * slope * (1 - slope)), score, score + width)
    return u
