"""Where in a sequence the signal tends to be changes nothing for attention, and helps a linear model that sees places.

Claim   With the places of the signal drawn from a law that is spread out but not uniform, attention and mean pooling have the
        training loss, the test error and the capacity of uniform places; a linear model on all tokens has those of a
        low-dimensional problem with one overlap per place.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153) allow such laws, as a secondary source reports. For attention and mean pooling, which treat all places
        alike, the law drops out of the distribution of their features; the equations for all tokens are derived here.

For all tokens the readout has an overlap m_l with the signal at each place l. With v the places of a positive sequence, its score
is theta v.m + b + |W| G; the rest is as for two Gaussians. Least squares with a ridge is solved in closed form, the capacity is
one over the least of E[(sqrt(1 + |m|^2) G - y (theta v.m + b))_+^2] over m and b, per weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions, as_predicted
from whichtoken.claims._figures import Figure, legend
from whichtoken.claims._runs import Array
from whichtoken.claims.sparse_tokens import _tasks as tasks
from whichtoken.claims.sparse_tokens.capacity import LARGE, separable_samples
from whichtoken.claims.sparse_tokens.errors import MODELS, TEST_ERROR, TRAIN_LOSS
from whichtoken.lab import Measured, Predicted, Rows
from whichtoken.theory import sparse_tokens

RIDGE = 1e-2
ALIGNMENT, TEMPERATURE = 0.8, 1.0  # of the query whose capacity is measured, and of every query
LAWS = {"early": "place l drawn with weight 1/l", "steep": "place l drawn with weight 2^-l"}
TOLERANCES = {"train_loss": TRAIN_LOSS, "test_error": TEST_ERROR, "capacity": 0.04}
QUANTITIES = {"errors": ("train_loss", "test_error"), "capacity": ("capacity",)}

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(tasks.OneSignalToken):
    length: int = 5
    strength: float = 3.0
    dim: int = 300
    law: Literal["early", "steep"] = "early"
    quantity: Literal["errors", "capacity"] = "errors"
    model: Literal["attention", "pooled", "vectorized"] = "attention"
    samples_per_dim: float = 2.0  # of the readout, and of the query before


class Positions(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.quantity == "capacity":
            expected = float(self.predict(point)["capacity"].value) * point.dim
            return {"capacity": separable_samples(expected, lambda samples: _features(point, samples, rng)) / point.dim}
        return _train(point, rng)

    def predict(self, point: Point) -> Predictions:

        if point.model == "vectorized":
            if point.quantity == "capacity":
                return {"capacity": Predicted(capacity_of_all_tokens(point))}
            loss, error = least_squares_on_all_tokens(point)
            return {"train_loss": Predicted(loss), "test_error": Predicted(error)}
        query: dict[str, Any] = {}
        if point.model == "attention":
            query = {"alignment": ALIGNMENT, "inverse_temperature": TEMPERATURE}
        if point.quantity == "capacity":
            accuracy = 1e-3
            found = sparse_tokens.capacity(model=point.model, **tasks.task_of(point), **query, accuracy=accuracy)
            return {"capacity": Predicted(found, accuracy * found)}
        if query:
            query["alignment"] = tasks.query_theory(point, point.samples_per_dim).alignment
        problem = {**tasks.task_of(point), **query, "samples_per_dim": point.samples_per_dim, "ridge": RIDGE}
        readout = sparse_tokens.erm(model=point.model, loss="square", **problem)
        return {
            "train_loss": Predicted(readout.train_loss, readout.train_loss_error),
            "test_error": Predicted(readout.test_error, readout.error_estimate),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        criteria = {
            ("errors", False): TABLE.errors,
            ("capacity", False): TABLE.capacity,
            ("errors", True): TABLE.all_tokens,
            ("capacity", True): TABLE.all_tokens_capacity,
        }
        named = list(tasks.split_by_name(rows, _name))
        for kind, criterion in criteria.items():
            for label, point, runs in named:
                if (point.quantity, point.model == "vectorized") == kind:
                    for quantity in QUANTITIES[point.quantity]:
                        code, words = (
                            f"{quantity.replace('_', '-')}.{label}",
                            f"{quantity.replace('_', ' ')} of {_words(point)}",
                        )
                        expected = as_predicted(runs, quantity, relative=_room(point, quantity))
                        yield criterion.part(code, words, runs.values(quantity), on=runs, **expected)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        names: list[str] = []
        for _, point, runs in tasks.split_by_name(Rows(rows), _name):
            for color, quantity in enumerate(TOLERANCES):
                predicted = runs.predicted(quantity) if quantity in QUANTITIES[point.quantity] else None
                if predicted is not None:
                    ratio = runs.values(quantity) / predicted.value
                    error = 2 * ratio.std() / len(ratio) ** 0.5
                    axes.errorbar(ratio.mean(), len(names), xerr=error, fmt="o", color=f"C{color}", capsize=3)
                    names.append(f"{quantity.replace('_', ' ')}, {MODELS[point.model]}, {point.law}")
        axes.axvline(1, color="grey", ls=":", label="theory")
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set(
            title="Signal mostly early in the sequence, with two standard errors", xlabel="measured over predicted"
        )
        legend(axes)


def _name(point: Point) -> str:
    samples = f"a{point.samples_per_dim:g}" if point.quantity == "errors" else "separable"
    return f"{point.model}.{point.law}.L{point.length}.d{point.dim}.{samples}"


def _words(point: Point) -> str:
    samples = f"{point.samples_per_dim:g} samples per dimension, " if point.quantity == "errors" else ""
    return f"{MODELS[point.model]}, {tasks.task_words(point)}, {LAWS[point.law]}, {samples}d = {point.dim}"


def _room(point: Point, quantity: str) -> float:
    """Relative difference that does not matter; capacities of few parameters feel finite size, as one over them."""
    parameters = point.dim * (point.length if point.model == "vectorized" else 1)
    return TOLERANCES[quantity] * (max(1.0, LARGE / parameters) if quantity == "capacity" else 1.0)


def position_weights(point: Point) -> Array:
    """Weights with which places are drawn, one after the other; they sum to one."""
    place = np.arange(1, point.length + 1)
    weights = 1.0 / place if point.law == "early" else 0.5**place
    return np.asarray(weights / weights.sum())


def _train(point: Point, rng: np.random.Generator) -> Measured:
    """Training loss and exact test error of the whole protocol, with least squares for the readout."""
    weights = position_weights(point)
    data, samples = tasks.sequences_of(point, positions=weights), round(point.samples_per_dim * point.dim)
    first, second = data.stream(samples, rng), data.stream(samples, rng)
    training: dict[str, Any] = {"ridge": RIDGE, "loss": "square"}
    if point.model == "vectorized":
        return tasks.train_on_all_tokens(data, samples, rng, **training, positions=weights)
    return tasks.train_readout(point.model, data, first, second, **training, inverse_temperature=TEMPERATURE)


def _features(point: Point, samples: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """What the readout of a model sees of tokens, and labels; the query of attention is given."""
    data = tasks.sequences_of(point, positions=position_weights(point))
    tokens, labels = data.sample(samples, rng)
    if point.model == "vectorized":
        return tokens.reshape(samples, -1), labels
    query = np.zeros(point.dim)
    if point.model == "attention":
        query[:2] = TEMPERATURE * ALIGNMENT, TEMPERATURE * math.sqrt(1 - ALIGNMENT**2)
    scores = tokens @ query
    attention = np.exp(scores - scores.max(axis=1, keepdims=True))
    attention /= attention.sum(axis=1, keepdims=True)
    return np.einsum("nl,nld->nd", attention, tokens), labels


def _scores(point: Point) -> tuple[Array, Array, Array]:
    """What a readout of all tokens sees of the signal: theta v with a 1 for the bias (k, L + 1), labels and chances (k,).

    The first of the k cases is a negative sequence, the others are the places of a positive one in the order they are drawn.
    """
    weights = position_weights(point)
    cases: list[Array] = [np.zeros(point.length)]
    chances = [1 - point.prevalence]
    for places in permutations(range(point.length), point.signal_tokens):
        taken = np.cumsum([0.0, *weights[list(places[:-1])]])
        cases.append(np.where(np.isin(np.arange(point.length), places), point.strength, 0.0))
        chances.append(point.prevalence * float(np.prod(weights[list(places)] / (1 - taken))))
    labels = np.where(np.arange(len(cases)) == 0, -1.0, 1.0)
    return np.hstack([np.array(cases), np.ones((len(cases), 1))]), labels, np.array(chances)


def least_squares_on_all_tokens(point: Point) -> tuple[float, float]:
    """Training loss and test error of ridge regression on all tokens in high dimension."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    seen, labels, chance = _scores(point)
    alpha = point.samples_per_dim / point.length  # samples per weight

    def excess(log_v: float) -> float:
        v = math.exp(log_v)
        return v * alpha * (RIDGE + 1 / (1 + v)) - 1

    v = math.exp(brentq(excess, -40.0, 40.0))
    slope = 1 / (1 + v)
    penalty = np.diag([*np.full(point.length, RIDGE + slope), 0.0])
    solution = np.linalg.solve(slope * (seen.T * chance) @ seen + penalty, slope * (seen.T * chance) @ labels)
    score, signal = seen @ solution, float(solution[:-1] @ solution[:-1])
    miss = float(chance @ (score - labels) ** 2) + signal
    rest = alpha * (v * slope) ** 2 * miss / (1 - alpha * (v * slope) ** 2)
    error = float(chance @ ndtr(-labels * score / math.sqrt(signal + rest)))
    return slope**2 * (miss + rest) / 2, error


def capacity_of_all_tokens(point: Point) -> float:
    """Samples per dimension up to which a readout of all tokens separates them."""
    from scipy.optimize import minimize
    from scipy.special import ndtr

    seen, labels, chance = _scores(point)

    def violation(x: Array) -> float:
        noise, score = math.sqrt(1 + x[:-1] @ x[:-1]), labels * (seen @ x)
        ratio = score / noise
        density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
        return float(chance @ ((noise**2 + score**2) * ndtr(-ratio) - score * noise * density))

    found = minimize(violation, np.zeros(point.length + 1), method="BFGS", options={"gtol": 1e-9})
    return point.length / float(found.fun)
