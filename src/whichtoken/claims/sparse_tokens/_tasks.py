"""What the claims about sparse tokens share: the task of a point, its sequences, and detectors of the signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from whichtoken.checks import check_range
from whichtoken.claims._runs import Array, rows_where
from whichtoken.datasets.sparse_tokens import SparseTokens
from whichtoken.lab import Rows
from whichtoken.theory import sparse_tokens

PointT = TypeVar("PointT")

LEARNING_RATE = 0.5  # of the two steps


@dataclass(frozen=True)
class OneSignalToken:
    """A task with one clear signal token among ten: fields that several points begin with."""

    length: int = 10
    signal_tokens: int = 1
    strength: float = 5.0
    prevalence: float = 0.5


def task_of(point: Any) -> dict[str, Any]:
    """The fields of a point that make up its task, as keyword arguments."""
    return {name: getattr(point, name) for name in ("length", "signal_tokens", "strength", "prevalence")}


def task_code(point: Any) -> str:
    """The task as a stable part of codes."""
    return f"L{point.length}-R{point.signal_tokens}-s{point.strength:g}-p{point.prevalence:g}"


def task_words(point: Any) -> str:
    return f"{point.signal_tokens} of {point.length} tokens with a signal of {point.strength:g}"


def sequences_of(point: Any, **options: Any) -> SparseTokens:
    """The generator of a point's sequences."""
    return SparseTokens(**task_of(point), dim=point.dim, **options)


def query_theory(point: Any, samples_per_dim: float, **options: Any) -> sparse_tokens.TwoSteps:
    """The query that theory expects after two steps at the rates of the claims."""
    rates = dict.fromkeys(("lr_readout", "lr_bias", "lr_query"), LEARNING_RATE)
    return sparse_tokens.two_steps(**task_of(point), samples_per_dim=samples_per_dim, **(rates | options))


def split_tasks(rows: Rows[PointT], *varied: str) -> Iterator[tuple[str, Rows[PointT]]]:
    """Rows, finished and failed, that differ in the `varied` fields alone, with an ending that keeps their codes apart.

    The ending names the other fields that take several values, and is empty where none does.
    """
    points = [row.point for row in (*rows, *rows.failed)]
    others = [name for name in (vars(points[0]) if points else ()) if name not in varied]
    names = [name for name in others if len({getattr(point, name) for point in points}) > 1]
    for values in dict.fromkeys(tuple(getattr(point, name) for name in names) for point in points):
        fields = dict(zip(names, values, strict=True))
        shown = ((name, f"{value:g}" if isinstance(value, float) else value) for name, value in fields.items())
        yield "".join(f".{name}-{value}" for name, value in shown), rows.where(**fields)


def split_by_name(rows: Rows[PointT], name: Callable[[PointT], str]) -> Iterator[tuple[str, PointT, Rows[PointT]]]:
    """Rows whose points have one name, task by task: the name with the ending of the task, the point and its runs."""
    for own in dict.fromkeys(name(row.point) for row in (*rows, *rows.failed)):
        for ending, runs in split_tasks(rows_where(rows, lambda point, own=own: name(point) == own)):  # type: ignore[misc]
            yield own + ending, next(iter((*runs, *runs.failed))).point, runs


def ratio_of_means(above: Array, below: Array) -> Array:
    """A value per pair whose mean is the ratio of means and whose scatter is that of the ratio, to first order."""
    ratio = above.mean() / below.mean()
    values: Array = ratio + (above - ratio * below) / below.mean()
    return values


def attended_features(
    source: SparseTokens, samples: int, alignment: float, inverse_temperature: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Attention features (samples, dim) and labels, exact in distribution, `length` times cheaper than tokens.

    The coordinates are rotated: the query is the first one, the signal lies in the plane of the first two,
    (alignment, sqrt(1 - alignment^2), 0, ...).

    Parameters
    ----------
    source : SparseTokens
        The sequences.
    samples : int
        How many.
    alignment : float
        Cosine of the query and the signal, from -1 to 1.
    inverse_temperature : float
        Times the norm of the query.
    rng : numpy Generator

    Examples
    --------
    >>> source = SparseTokens(length=8, signal_tokens=2, strength=3.0, prevalence=0.5, dim=50)
    >>> features, labels = attended_features(source, 100, 0.9, 1.0, np.random.default_rng(0))
    >>> features.shape, labels.shape
    ((100, 50), (100,))
    """
    from whichtoken.attention import pool_weights

    check_range("alignment", alignment, -1.0, 1.0, include_low=True, include_high=True)
    check_range("inverse_temperature", inverse_temperature, 0.0, math.inf, include_low=True)
    labels = source.labels(samples, rng)
    noise = rng.standard_normal((samples, source.length))
    strength = np.where(labels > 0, source.strength, 0.0)
    scores = noise.copy()
    scores[:, : source.signal_tokens] += alignment * strength[:, None]
    scores *= inverse_temperature
    starts = np.arange(0, scores.size + 1, source.length)
    attention = pool_weights(scores.ravel(), starts).reshape(scores.shape)  # (samples, length)
    signal = strength * attention[:, : source.signal_tokens].sum(axis=1)
    features = rng.standard_normal((samples, source.dim))
    features *= np.linalg.norm(attention, axis=1, keepdims=True)
    features[:, 0] = (attention * noise).sum(axis=1) + alignment * signal
    features[:, 1] += math.sqrt(1 - alignment**2) * signal
    return features, labels


def fit_given_query(
    point: Any, inverse_temperature: float, rng: np.random.Generator, loss: Any = "logistic", **options: Any
) -> tuple[float, float]:
    """Training loss and exact test error of a readout on features of a query with the point's alignment.

    Without temperature the features are mean tokens.
    """
    samples = round(point.samples_per_dim * point.dim)
    drawn = attended_features(sequences_of(point), samples, point.alignment, inverse_temperature, rng)
    head = sparse_tokens.fit_head(*drawn, point.ridge, loss)
    query, signal = np.zeros((2, point.dim))
    query[0] = inverse_temperature
    signal[:2] = point.alignment, math.sqrt(1 - point.alignment**2)
    error = sparse_tokens.exact_error(head.readout, head.bias, signal, query=query, **task_of(point), **options)
    return head.train_loss, error


def train_readout(
    model: str, data: SparseTokens, first: Any, second: Any, *, ridge: float, loss: Any, inverse_temperature: float
) -> dict[str, float]:
    """Training loss and exact test error of attention after its two steps on the `first` tokens, or of mean pooling.

    The readout is trained on the `second` tokens; None: on the first ones again.
    """
    from whichtoken.theory.sparse_tokens.two_step import attention_features, fit_attention

    if model == "pooled":
        head, query = sparse_tokens.fit_head(*attention_features(second), ridge, loss), None
    else:
        fit = fit_attention(
            first, second, ridge=ridge, head_loss=loss, target_temperature=inverse_temperature,
            lr_readout=LEARNING_RATE, lr_bias=LEARNING_RATE, bias_correction=False,  # the protocol of the source
        )  # fmt: skip
        head, query = fit.head, fit.query
    error = sparse_tokens.exact_error(head.readout, head.bias, data.direction, query=query, **task_of(data))
    return {"train_loss": head.train_loss, "test_error": error}


def train_on_all_tokens(
    data: SparseTokens,
    samples: int,
    rng: np.random.Generator,
    *,
    ridge: float,
    loss: Any,
) -> dict[str, float]:
    """Training loss and exact test error of a linear model on all tokens of a sequence."""
    tokens, labels = data.sample(samples, rng)
    head = sparse_tokens.fit_head(tokens.reshape(samples, -1), labels, ridge, loss)
    task = {name: value for name, value in task_of(data).items() if name != "length"}
    readout = head.readout.reshape(data.length, data.dim)
    error = sparse_tokens.exact_error_vectorized(readout, head.bias, data.direction, **task)
    return {"train_loss": head.train_loss, "test_error": error}


Statistic = Callable[[Array], Array]  # tokens (n, L) to scores (n,), larger for positives

CHUNK_FLOATS = 1 << 20


def draw_scores(
    statistics: Mapping[str, Statistic],
    length: int,
    signal_tokens: int,
    strength: float,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, tuple[Array, Array]]:
    """Scores of positive and of negative sequences, (draws,) each, by every statistic; tokens pass in chunks."""
    found: dict[str, tuple[list[Array], list[Array]]] = {name: ([], []) for name in statistics}
    rows = max(1, CHUNK_FLOATS // length)
    for start in range(0, draws, rows):
        for label in (0, 1):
            tokens = rng.standard_normal((min(rows, draws - start), length))
            if label == 0:
                tokens[:, :signal_tokens] += strength
            for name, statistic in statistics.items():
                found[name][label].append(statistic(tokens))
    return {name: (np.concatenate(positive), np.concatenate(negative)) for name, (positive, negative) in found.items()}


def attention(inverse_temperature: float) -> Statistic:
    """Mean token under softmax attention along the signal."""

    def statistic(tokens: Array) -> Array:
        from whichtoken.attention import pool_outputs

        starts = np.arange(0, tokens.size + 1, tokens.shape[1])
        return np.asarray(pool_outputs(inverse_temperature * tokens.ravel(), tokens.ravel(), starts), dtype=float)

    return statistic


def mean_token(tokens: Array) -> Array:
    return np.asarray(tokens.mean(axis=1))


def best_threshold(positive: Array, negative: Array) -> tuple[float, float]:
    """Least error of a cut, at equal prevalence, and the cut: halfway between two neighboring scores."""
    scores = np.concatenate([positive, negative])
    order = np.argsort(scores)
    missed = np.append(0, np.cumsum(order < len(positive))) / len(positive)
    alarmed = 1 - np.append(0, np.cumsum(order >= len(positive))) / len(negative)
    errors = (missed + alarmed) / 2
    cut = int(np.argmin(errors))
    ordered = np.concatenate([[scores.min() - 1], scores[order], [scores.max() + 1]])
    return float(errors[cut]), float(ordered[cut] + ordered[cut + 1]) / 2


def error_at(positive: Array, negative: Array, threshold: float) -> float:
    """Error of a cut, at equal prevalence."""
    return float(np.mean(positive <= threshold) + np.mean(negative > threshold)) / 2
