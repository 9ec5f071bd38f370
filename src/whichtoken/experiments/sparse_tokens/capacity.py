"""How many samples a linear readout can separate.

Claim   Training sets are linearly separable up to a capacity, in samples per dimension, that a convex problem in three
        variables gives; a readout of all tokens has length times the capacity of mean pooling, attention lies between
        the two if its query is aligned, and below both if it is not.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), Conjecture 1; the formula (Gordon's comparison) is derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.experiments.sparse_tokens._comparison import apart, legend, task_of
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Predicted, Resampled, Rows, agreement, at_least

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

LARGE = 100  # parameters from which the limit is held to 4 %; below, finite size shows, as one over the parameters
SEARCHED = (0.6, 1.5)  # multiples of the predicted capacity
RESOLUTION = 0.01
ORDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "aligned-over-pooled": ({"model": "attention", "alignment": 0.8}, {"model": "pooled"}),
    "pooled-over-unaligned": ({"model": "pooled"}, {"model": "attention", "alignment": 0.0}),
    "vectorized-over-aligned": ({"model": "vectorized"}, {"model": "attention", "alignment": 0.8}),
}


@dataclass(frozen=True)
class Point:
    length: int = 5
    signal_tokens: int = 1
    strength: float = 2.0
    prevalence: float = 0.5
    dim: int = 100
    model: Literal["attention", "pooled", "vectorized"] = "attention"
    alignment: float = 0.8
    inverse_temperature: float = 1.0


def _name(point: Point) -> str:
    alignment = f"-{point.alignment:g}" if point.model == "attention" else ""
    return f"{point.model}{alignment}.L{point.length}.d{point.dim}"


def _described(point: Point) -> str:
    model = {
        "attention": f"attention, alignment {point.alignment:g}",
        "pooled": "mean token",
        "vectorized": "all tokens",
    }
    return f"{model[point.model]}, {point.length} tokens, d = {point.dim}"


class Capacity(Experiment[Point]):
    id = "sparse-tokens/capacity"
    version = 2
    presets = {
        "quick": (
            Grid(dim=50, model=["attention", "pooled"], seeds=32),
            Grid(dim=10, model="vectorized", seeds=32),
        ),
        "full": (
            Grid(dim=[50, 100], alignment=0.8, seeds=(48, 96)),
            Grid(dim=200, alignment=0.8, seeds=(20, 40)),
            Grid(alignment=0.0, seeds=(48, 96)),
            Grid(model="pooled", seeds=(48, 96)),
            Grid(dim=20, model="vectorized", seeds=(48, 96)),
            Grid(length=10, strength=3.0, alignment=0.9, dim=150, seeds=(32, 64)),
        ),
    }

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        capacity = float(self.predict(point)["capacity"].value)
        low, high = (round(multiple * capacity * point.dim) for multiple in SEARCHED)
        features, labels = _sample(point, high, rng)
        # once a prefix of the sample cannot be separated no longer one can, so halving finds where that happens
        while high - low > max(1, RESOLUTION * capacity * point.dim):
            middle = (low + high) // 2
            if separable(features[:middle], labels[:middle]):
                low = middle
            else:
                high = middle
        return {"capacity": (low + high) / 2 / point.dim}

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        from whichtoken.theory import sparse_tokens

        query: dict[str, Any] = {}
        if point.model == "attention":
            query = {"alignment": point.alignment, "inverse_temperature": point.inverse_temperature}
        accuracy = 1e-3
        capacity = sparse_tokens.capacity(model=point.model, **task_of(point), **query, accuracy=accuracy)
        return {"capacity": Predicted(capacity, accuracy * capacity)}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for name, runs in _groups(rows):
            predicted = runs.predicted("capacity")
            yield agreement(
                f"capacity.crossing.{name}",
                f"samples at which half of the sets stop being separable, over the prediction ({_described(runs[0].point)})",
                theory=None if predicted is None else 1.0,
                measured=Resampled(_relative(runs), np.median),
                tolerance=0.04 * max(1.0, LARGE / _parameters(runs[0].point)),
                theory_error=0.0 if predicted is None else predicted.error / predicted.value,
            )
        for code, (more, fewer) in ORDERS.items():
            for ending, task in apart(rows.where(length=Point.length), "model", "alignment", "dim"):
                yield from _order(code + ending, task, more, fewer)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for _, runs in _groups(rows):
            ordered = np.sort(_relative(runs))
            share = 1 - np.arange(len(ordered)) / len(ordered)
            axes.step(
                np.append(ordered, ordered[-1]),
                np.append(share, 0),
                where="pre",
                lw=1.5,
                label=_described(runs[0].point),
            )
        axes.axvline(1, color="grey", ls=":")
        axes.axhline(0.5, color="grey", lw=0.8)
        axes.set(title="Share of training sets that a linear readout separates", ylim=(0, 1.02))
        axes.set(xlabel="samples, over the number at which theory sees the end")
        legend(axes, fontsize=8)


def _groups(rows: Rows[Point]) -> Iterator[tuple[str, Rows[Point]]]:
    """The rows of each point, with its name."""
    for name in dict.fromkeys(_name(row.point) for row in rows):
        for ending, runs in apart(Rows(row for row in rows if _name(row.point) == name)):
            yield name + ending, runs


def separable(features: Array, labels: Array) -> bool:
    """Whether some readout and bias give every sample its sign: the largest margin of a bounded readout, by LP."""
    from scipy.optimize import linprog

    samples, dim = features.shape
    signed = labels[:, None] * np.hstack([features, np.ones((samples, 1))])
    found = linprog(
        np.append(np.zeros(dim + 1), -1.0),
        A_ub=np.hstack([-signed, np.ones((samples, 1))]),
        b_ub=np.zeros(samples),
        bounds=[(-1, 1)] * (dim + 1) + [(None, 1)],
        method="highs",
    )
    if not found.success:
        raise ValueError(f"the linear program of {samples} samples in {dim} dimensions failed: {found.message}")
    return bool(-found.fun > 1e-9)


def _sample(point: Point, samples: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Features that the model's readout sees; mean tokens are attention features at inverse temperature zero."""
    from whichtoken.data import SparseTokens
    from whichtoken.models.attended_features import attended_features

    data = SparseTokens(**task_of(point), dim=point.dim)
    if point.model == "vectorized":
        tokens, labels = data.sample(samples, rng)
        return tokens.reshape(samples, -1), labels
    temperature = point.inverse_temperature if point.model == "attention" else 0.0
    return attended_features(data, samples, point.alignment, temperature, rng)


def _parameters(point: Point) -> int:
    return point.dim * (point.length if point.model == "vectorized" else 1)


def _relative(runs: Rows[Point]) -> Array:
    """Measured capacities over the predicted one."""
    predicted = runs.predicted("capacity")
    values: Array = runs.values("capacity") / (1.0 if predicted is None else predicted.value)
    return values


def _order(code: str, rows: Rows[Point], more: dict[str, Any], fewer: dict[str, Any]) -> Iterator[Claim]:
    """The claim that one model separates more samples than another, in the task that both were measured in."""
    runs = (rows.where(**model) for model in (more, fewer))
    more_runs, fewer_runs = (some.where(dim=max(some.levels("dim"), default=0)) for some in runs)
    above, below = more_runs.values("capacity"), fewer_runs.values("capacity")
    if repeats := min(len(above), len(below)):
        names = [_described(some[0].point) for some in (more_runs, fewer_runs)]
        claim = f"samples per dimension that can be separated: {names[0]}, minus {names[1]}"
        difference = Mean(above[:repeats] - below[:repeats])
        yield at_least(f"capacity.order.{code}", claim, bound=0.0, measured=difference)
