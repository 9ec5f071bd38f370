"""Attention trained in four stages: one step on readout and bias, one on the query, then a convex head.

The protocol of Barnfield, Cui, Lu, arXiv 2509.25153, section 4. Samples come in chunks of tokens (k, L, d) and labels
(k,), from anything that can be iterated again (a `TokenStream`, or a list with one pair of arrays): two passes over the
first set, one over the second, and never more than one chunk in memory. The two slopes, `readout_slope` and
`query_slope`, are also those that `BagClassifier` steps along, on bags of any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from whichtoken.attention import RaggedArray, pool_weights
from whichtoken.checks import check_choice, check_range
from whichtoken.datasets.sparse_tokens import LOSSES
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.alignment import constant_score, loss_slope
from whichtoken.theory.sparse_tokens.convex_head import ConvexHead, fit_head

Array = NDArray[np.float64]
Chunks: TypeAlias = Iterable[tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class QuerySteps(Shown):
    """Query, readout and bias after two gradient steps from zero."""

    query: Array  # (d,)
    readout: Array  # (d,)
    bias: float


@dataclass(frozen=True, eq=False)
class TwoStepFit(Shown):
    """A trained attention classifier: score = <readout, X^T softmax(inverse_temperature X query)> + bias."""

    query: Array  # (d,)
    readout: Array  # (d,)
    bias: float
    inverse_temperature: float
    steps: QuerySteps
    head: ConvexHead


def fit_attention(
    first: Chunks,
    second: Chunks | None = None,
    *,
    ridge: float,
    loss: str = "logistic",
    head_loss: str | None = None,
    target_temperature: float | None = None,
    lr_readout: float = 0.5,
    lr_bias: float = 0.5,
    lr_query: float = 0.5,
    inverse_temperature: float = 1.0,
    bias_correction: bool | None = None,
) -> TwoStepFit:
    """Train query, readout and bias.

    Parameters
    ----------
    first, second : iterable of (tokens (n, L, d), labels (n,))
        Samples of the two gradient steps and of the head; without a second set the head reuses the first.
    ridge : float
        Ridge of the head.
    loss : {"logistic", "square", "hinge"}, default="logistic"
        Loss of the two steps.
    head_loss : str, optional
        Loss of the head; `loss` by default.
    target_temperature : float, optional
        Scale the query so that inverse_temperature * |query| takes this value. Steps of order one leave a query so
        short that attention is almost uniform; 1 to 2 is a good choice.
    lr_readout, lr_bias, lr_query, inverse_temperature, bias_correction : as in `two_step_query`
        How the two steps are taken.

    Returns
    -------
    TwoStepFit
        Query, readout, bias, and how they came about.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import SparseTokens
    >>> from whichtoken.theory.sparse_tokens import fit_attention
    >>> rng = np.random.default_rng(0)
    >>> data = SparseTokens(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=20)
    >>> fit = fit_attention([data.sample(400, rng)], [data.sample(400, rng)], ridge=0.01, target_temperature=1.5)
    >>> fit.head.train_error < 0.1
    True
    """
    steps = two_step_query(
        first,
        loss=loss,
        lr_readout=lr_readout,
        lr_bias=lr_bias,
        lr_query=lr_query,
        inverse_temperature=inverse_temperature,
        bias_correction=bias_correction,
    )
    query = steps.query
    if target_temperature is not None:
        check_range("target_temperature", target_temperature, 0.0, math.inf, include_low=True)
        query = query * (target_temperature / (inverse_temperature * np.linalg.norm(query)))
    features, labels = attention_features(first if second is None else second, query, inverse_temperature)
    head = fit_head(features, labels, ridge, head_loss or loss)
    return TwoStepFit(query, head.readout, head.bias, inverse_temperature, steps, head)


def two_step_query(
    samples: Chunks,
    *,
    loss: str = "logistic",
    lr_readout: float = 0.5,
    lr_bias: float = 0.5,
    lr_query: float = 0.5,
    inverse_temperature: float = 1.0,
    bias_correction: bool | None = None,
    fresh: Chunks | None = None,
) -> QuerySteps:
    """Take a gradient step on readout and bias, then one on the query.

    Parameters
    ----------
    samples : iterable of (tokens (n, L, d), labels (n,))
        The training data, in chunks.
    loss : {"logistic", "square", "hinge"}, default="logistic"
        Loss of the readout.
    lr_readout, lr_bias, lr_query : float
        Step sizes.
    inverse_temperature : float, default=1.0
        beta inside the softmax.
    bias_correction : bool, optional
        Put the bias at the best constant score before the second step, which keeps the query of a rare, weak signal from
        turning away from it, and the luck of the labels from scattering it. Not defined for the hinge loss; by default
        it is made for the others. False is the protocol of the source.
    fresh : as `samples`, optional
        Other samples for the second step; the same ones by default.

    Returns
    -------
    QuerySteps
        Query, readout and bias.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import SparseTokens
    >>> from whichtoken.theory.sparse_tokens import two_step_query
    >>> data = SparseTokens(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=20)
    >>> steps = two_step_query([data.sample(400, np.random.default_rng(0))])
    >>> bool(steps.query @ data.direction / np.linalg.norm(steps.query) > 0.9)  # the query has found the signal
    True
    """
    check_choice("loss", loss, LOSSES)
    if isinstance(samples, Iterator):
        raise ValueError(
            "samples must be iterable twice: a list of (tokens, labels) or a TokenStream, "
            f"not a {type(samples).__name__}"
        )
    readout, mean_slope, prevalence = _first_step(samples, loss, lr_readout)
    corrected = loss != "hinge" if bias_correction is None else bias_correction
    bias = constant_score(prevalence, loss) if corrected else -lr_bias * mean_slope
    total, count = np.zeros_like(readout), 0
    for tokens, labels in samples if fresh is None else fresh:
        total += query_slope(_bags(tokens), readout, partial(_slopes_at, loss, bias, labels))
        count += len(labels)
    return QuerySteps(-lr_query * inverse_temperature / count * total, readout, bias)


def _slopes_at(loss: str, bias: float, labels: Array, scores: Array) -> Array:
    return loss_slope(loss, scores + bias, labels)


def readout_slope(bags: RaggedArray, slopes: Array) -> Array:
    """Slope (d,) of a sum of losses in the readout where the query is 0: sum_i slopes_i (mean of bag i)."""
    return _weighted_sum(bags, np.repeat(slopes / bags.lengths, bags.lengths))


def query_slope(bags: RaggedArray, readout: Array, slopes_at: Callable[[Array], Array]) -> Array:
    """Slope (d,) in a query that is 0: sum_i slopes_i (covariance of bag i) readout.

    `slopes_at` says how the losses fall with the scores, (n,), where the readout sees the means (n,) of the bags.
    """
    along = (bags.vectors @ readout.astype(bags.vectors.dtype)).astype(np.float64)  # (total,)
    means = np.add.reduceat(along, bags.starts[:-1]) / bags.lengths
    along -= np.repeat(means, bags.lengths)
    return _weighted_sum(bags, np.repeat(slopes_at(means) / bags.lengths, bags.lengths) * along)


def _weighted_sum(bags: RaggedArray, weights: Array) -> Array:
    return np.asarray(weights.astype(bags.vectors.dtype) @ bags.vectors, dtype=np.float64)


def _bags(tokens: Array) -> RaggedArray:
    """Sequences of one length, (k, L, d), without a copy."""
    count, length, dim = tokens.shape
    return RaggedArray.unchecked(np.arange(0, count * length + 1, length), tokens.reshape(-1, dim))


def _first_step(samples: Chunks, loss: str, lr_readout: float) -> tuple[Array, float, float]:
    """Readout after the step, mean slope of the loss at zero, and share of positive labels."""
    total: Array | float = 0.0
    slopes: list[Array] = []
    positive = 0
    for tokens, labels in samples:
        if not (np.abs(labels) == 1).all():
            raise ValueError(f"labels must be -1 or +1; got {np.unique(labels)[:5].tolist()}")
        slope = loss_slope(loss, np.zeros(len(labels)), labels)
        total = total + readout_slope(_bags(tokens), slope)
        slopes.append(slope)
        positive += int(np.count_nonzero(labels > 0))
    count = sum(map(len, slopes))
    if not 0 < positive < count:
        raise ValueError(f"labels must contain both classes; got {positive} positive of {count}")
    return -lr_readout / count * np.asarray(total), float(np.concatenate(slopes).mean()), positive / count


def attention_features(
    samples: Chunks, query: Array | None = None, inverse_temperature: float = 1.0
) -> tuple[Array, Array]:
    """Pooled tokens (n, d) and labels (n,): softmax attention for a query, the mean token without one."""
    features, targets = [], []
    for tokens, labels in samples:
        if query is None:
            features.append(tokens.mean(axis=1))
        else:
            scores = inverse_temperature * (tokens @ query)  # (k, L)
            attention = pool_weights(scores.ravel(), np.arange(len(tokens) + 1) * scores.shape[1])
            # sequences of one length: a product of matrices is three times as fast as the ragged kernel
            features.append(np.einsum("kl,kld->kd", attention.reshape(scores.shape), tokens))
        targets.append(labels)
    return np.concatenate(features), np.concatenate(targets)
