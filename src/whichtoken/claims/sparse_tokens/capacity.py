"""How many samples a linear readout can separate.

Claim   Training sets are linearly separable up to a capacity, in samples per dimension, that a convex problem in three
        variables gives; a readout of all tokens has length times the capacity of mean pooling, attention lies between
        the two if its query is aligned, and below both if it is not.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), Conjecture 1; the formula (Gordon's comparison) is derived here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken.claims._shared import Array, Checks, Figure, Predictions, above, check, near, pairs
from whichtoken.claims.sparse_tokens._tasks import attended_features, sequences_of, split_by_name, split_tasks, task_of
from whichtoken.display.figures import legend
from whichtoken.lab import Experiment, Grid, Measured, Predicted, Resampled, Rows

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


def _words(point: Point) -> str:
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
            Grid(dim=50, model=["attention", "pooled"], seeds=(32, 128)),
            Grid(dim=10, model="vectorized", seeds=(32, 128)),
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

    def predict(self, point: Point) -> Predictions:
        from whichtoken.theory import sparse_tokens

        query: dict[str, Any] = {}
        if point.model == "attention":
            query = {"alignment": point.alignment, "inverse_temperature": point.inverse_temperature}
        accuracy = 1e-3
        capacity = sparse_tokens.capacity(model=point.model, **task_of(point), **query, accuracy=accuracy)
        return {"capacity": Predicted(capacity, accuracy * capacity)}

    def judge(self, rows: Rows[Point]) -> Checks:
        for name, runs in split_by_name(rows, _name):
            point, predicted = runs[0].point, runs.predicted("capacity")
            parameters = point.dim * (point.length if point.model == "vectorized" else 1)
            yield check(
                f"capacity.crossing.{name}",
                f"samples at which half of the sets stop being separable, over the prediction ({_words(point)})",
                near(
                    None if predicted is None else 1.0,
                    within=0.04 * max(1.0, LARGE / parameters),
                    theory_error=0.0 if predicted is None else predicted.error / predicted.value,
                ),
                Resampled(_relative(runs), np.median),
            )
        for code, models in ORDERS.items():
            for ending, task in split_tasks(rows.where(length=Point.length), "model", "alignment", "dim"):
                more, fewer = ({**model, "dim": max(task.where(**model).levels("dim"), default=0)} for model in models)
                more_samples, fewer_samples = pairs(task, "capacity", more, fewer)
                if len(more_samples):
                    names = [_words(task.where(**model)[0].point) for model in (more, fewer)]
                    sentence = f"samples per dimension that can be separated: {names[0]}, minus {names[1]}"
                    yield check(f"capacity.order.{code}{ending}", sentence, above(0.0), more_samples - fewer_samples)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for _, runs in split_by_name(rows, _name):
            ordered = np.sort(_relative(runs))
            share = 1 - np.arange(len(ordered)) / len(ordered)
            label = _words(runs[0].point)
            axes.step(np.append(ordered, ordered[-1]), np.append(share, 0), where="pre", lw=1.5, label=label)
        axes.axvline(1, color="grey", ls=":")
        axes.axhline(0.5, color="grey", lw=0.8)
        axes.set(title="Share of training sets that a linear readout separates", ylim=(0, 1.02))
        axes.set(xlabel="samples, over the number at which theory sees the end")
        legend(axes, fontsize=8)


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
    data = sequences_of(point)
    if point.model == "vectorized":
        tokens, labels = data.sample(samples, rng)
        return tokens.reshape(samples, -1), labels
    temperature = point.inverse_temperature if point.model == "attention" else 0.0
    return attended_features(data, samples, point.alignment, temperature, rng)


def _relative(runs: Rows[Point]) -> Array:
    """Measured capacities over the predicted one."""
    predicted = runs.predicted("capacity")
    return np.asarray(runs.values("capacity") / (1.0 if predicted is None else predicted.value))
