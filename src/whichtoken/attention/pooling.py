"""Softmax pooling of ragged sequences and its pull-back, exact at any spread of scores: one family for every head.

    weights q_t = amount_t e^{score_t} / (e^{log_null} + sum_s amount_s e^{score_s}),    output f = sum_t q_t value_t

Sequence i is what lies between starts[i] and starts[i + 1]. With `tokens`, scores and values have one row per entry of a
vocabulary and `tokens` (N,) says which one stands at each place, as in a matrix of counts: nothing is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.items import as_floats, checked_amounts, checked_starts, checked_tokens
from whichtoken.display.shown import Shown

Floats = NDArray[np.floating[Any]]

# loading the compiled loops takes half a second: as long as whole arrays take for so many tokens, in calls that cost as much as
# so many
WORTH_LOADING, CALL = 3_000_000, 1000


@dataclass(frozen=True, eq=False)
class Pooled(Shown):
    """What attention makes of sequences: the result of `softmax_pool`.

    Attributes
    ----------
    outputs : array of shape (n, [h], [k])
        With an axis for several queries and one for several values.
    log_weights : array of shape (N,) or (N, h)
        Logarithm of the weight of every token; -inf where a token is absent.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.attention import softmax_pool
    >>> pooled = softmax_pool(scores=[0.0, 0.0, 5.0], values=[1.0, 3.0, 7.0], starts=[0, 2, 3])
    >>> pooled.outputs.tolist()
    [2.0, 7.0]
    >>> np.exp(pooled.log_weights).round(3).tolist()
    [0.5, 0.5, 1.0]
    """

    outputs: Floats
    log_weights: Floats


@dataclass(frozen=True, eq=False)
class PoolGradient(Shown):
    """Slopes of <upstream, outputs>, each of the shape of what it belongs to: the result of `pool_gradient`.

    Attributes
    ----------
    scores : array
        Slopes in the scores.
    values : array
        Slopes in the values.
    log_null : array or None
        Slopes in the scores of the null token, if there is one.

    Examples
    --------
    >>> from whichtoken.attention import pool_gradient
    >>> slopes = pool_gradient([1.0], scores=[0.0, 0.0], values=[0.0, 4.0], starts=[0, 2])
    >>> slopes.scores.tolist(), slopes.values.tolist(), slopes.log_null
    ([-1.0, 1.0], [0.5, 0.5], None)
    """

    scores: Floats
    values: Floats
    log_null: Floats | None


def softmax_pool(
    scores: ArrayLike,
    values: ArrayLike,
    starts: ArrayLike,
    amounts: ArrayLike | None = None,
    log_null: ArrayLike | None = None,
    *,
    tokens: ArrayLike | None = None,
) -> Pooled:
    """Outputs and weights of softmax attention on ragged sequences.

    Parameters
    ----------
    scores : array_like of shape (N,) or (N, h)
        Scores in float32 or float64, for one query or h of them; with `tokens`, (vocabulary,) or (vocabulary, h). -inf: absent.
    values : array_like of shape (N,) or (N, k)
        What is averaged; with `tokens`, (vocabulary,) or (vocabulary, k).
    starts : array_like of shape (n + 1,)
        Where each sequence begins, ascending from 0 to N. An empty sequence has the output 0.
    amounts : array_like of shape (N,), optional
        How often each token occurs, at least 0; 1 by default. A token with amount 2 counts as two.
    log_null : scalar, (n,), or for several queries also (h,) or (n, h), optional
        Score of a null token of value 0 in every sequence, which takes what the others do not get.
    tokens : array_like of shape (N,), optional
        Entry of the vocabulary at each place.

    Returns
    -------
    Pooled
        `outputs` of every sequence and `log_weights` of every token.

    Raises
    ------
    ValueError
        If shapes do not fit together, or scores hold NaN or +inf.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.attention import softmax_pool
    >>> pooled = softmax_pool(scores=[800.0, 0.0, 1.0], values=[2.5, -1.0, 4.0], starts=[0, 2, 3])
    >>> pooled.outputs.tolist()  # exact, however far apart the scores are
    [2.5, 4.0]
    >>> twice = softmax_pool([0.0, 0.0], [0.0, 3.0], [0, 2], amounts=[1, 2])  # the second token occurs twice
    >>> round(float(twice.outputs[0]), 6)
    2.0
    """
    asked = _Request.of(scores, values, starts, amounts, log_null, tokens)
    return Pooled(asked.outputs(), asked.log_weights())


def pool_outputs(
    scores: ArrayLike,
    values: ArrayLike,
    starts: ArrayLike,
    amounts: ArrayLike | None = None,
    log_null: ArrayLike | None = None,
    *,
    tokens: ArrayLike | None = None,
) -> Floats:
    """The outputs of `softmax_pool` without the weights, in less time and memory.

    Parameters
    ----------
    scores, values, starts, amounts, log_null, tokens : array_like
        As in `softmax_pool`.

    Returns
    -------
    array of shape (n, [h], [k])
        One output per sequence, query and value.

    Examples
    --------
    >>> from whichtoken.attention import pool_outputs
    >>> pool_outputs(scores=[0.0, 0.0], values=[1.0, 3.0], starts=[0, 2, 2]).tolist()  # the second sequence is empty
    [2.0, 0.0]
    """
    return _Request.of(scores, values, starts, amounts, log_null, tokens).outputs()


def pool_weights(
    scores: ArrayLike,
    starts: ArrayLike,
    amounts: ArrayLike | None = None,
    log_null: ArrayLike | None = None,
    *,
    tokens: ArrayLike | None = None,
) -> Floats:
    """The weights of `softmax_pool` alone, (N,) or (N, h).

    Parameters
    ----------
    scores, starts, amounts, log_null, tokens : array_like
        As in `softmax_pool`.

    Returns
    -------
    array of shape (N,) or (N, h)
        Attention on every token; the weights of a sequence sum to 1, less what its null token takes.

    Examples
    --------
    >>> from whichtoken.attention import pool_weights
    >>> pool_weights(scores=[0.0, 0.0, 2.0], starts=[0, 2, 3]).tolist()
    [0.5, 0.5, 1.0]
    >>> pool_weights(scores=[0.0, 0.0], starts=[0, 2], log_null=0.0).round(3).tolist()  # a third goes to the null token
    [0.333, 0.333]
    """
    return np.asarray(np.exp(_Request.of(scores, scores, starts, amounts, log_null, tokens).log_weights()))


def pool_gradient(
    upstream: ArrayLike,
    scores: ArrayLike,
    values: ArrayLike,
    starts: ArrayLike,
    amounts: ArrayLike | None = None,
    log_null: ArrayLike | None = None,
    *,
    tokens: ArrayLike | None = None,
) -> PoolGradient:
    """Pull slopes `upstream` in the outputs, (n, [h], [k]), back to scores, values and `log_null`.

    d score_t = q_t <upstream, value_t - f>, in differences to the winning token: its relative accuracy survives saturation,
    down to the smallest float. With `tokens`, slopes are sums over all places of an entry.

    Parameters
    ----------
    upstream : array_like of shape (n, [h], [k])
        Slopes in the outputs.
    scores, values, starts, amounts, log_null, tokens : array_like
        As in `softmax_pool`.

    Returns
    -------
    PoolGradient
        Slopes in scores, values and null scores.

    Examples
    --------
    >>> from whichtoken.attention import pool_gradient
    >>> slopes = pool_gradient([1.0], scores=[0.0, 0.0], values=[0.0, 4.0], starts=[0, 2])
    >>> slopes.scores.tolist()  # attention moves towards the larger value
    [-1.0, 1.0]
    >>> slopes.values.tolist()  # which are the attention weights
    [0.5, 0.5]
    """
    return _Request.of(scores, values, starts, amounts, log_null, tokens).gradient(upstream)


@dataclass(frozen=True, eq=False)
class _Request:
    """Checked arguments, with axes for queries and values."""

    scores: Floats  # (N or vocabulary, h)
    values: Floats  # (N or vocabulary, k)
    starts: NDArray[Any]  # (n + 1,)
    tokens: NDArray[Any] | None  # (N,)
    amounts: NDArray[Any] | None  # (N,)
    log_null: Floats  # (n, h), -inf for none
    null_shape: tuple[int, ...] | None  # of log_null as it was given
    shape: tuple[int, ...]  # of the outputs
    one_query: bool
    one_value: bool

    @classmethod
    def of(cls, scores: Any, values: Any, starts: Any, amounts: Any, log_null: Any, tokens: Any) -> _Request:
        a, g = as_floats("scores", scores), as_floats("values", values)
        starts = checked_starts(starts)
        size = int(starts[-1])
        places = size if tokens is None else len(a)
        for name, array in (("scores", a), ("values", g)):
            if array.ndim not in (1, 2) or len(array) != places:
                where = "starts end" if tokens is None else "scores have rows"
                raise ValueError(
                    f"{name} of shape {array.shape} must have one or two axes and {places} rows: as {where}"
                )
        if np.isnan(a).any() or np.isposinf(a).any():
            raise ValueError("scores contain NaN or +inf; a score must be finite, or -inf for a token that is absent")
        # one type each: kernels are compiled for every combination
        index = None if tokens is None else checked_tokens(tokens, size, places).astype(np.int32, copy=False)
        counts = None if amounts is None else checked_amounts(amounts, size).astype(np.float64, copy=False)
        shape = (len(starts) - 1, *a.shape[1:])
        null_shape = None if log_null is None else np.shape(log_null)
        return cls(
            a if a.ndim == 2 else a[:, None], g if g.ndim == 2 else g[:, None],
            starts, index, counts, _null_scores(log_null, shape), null_shape,
            (*shape, *g.shape[1:]), a.ndim == 1, g.ndim == 1,
        )  # fmt: skip

    @property
    def dtype(self) -> Any:
        return np.result_type(self.scores, self.values)

    @property
    def _kernel_arguments(self) -> tuple[Any, ...]:
        if self.tokens is None:
            return self.scores, None, None, self.values, self.starts, None, self.amounts, self.log_null
        # one exponential per entry of the vocabulary instead of one per place
        highest = np.max(self.scores, axis=0, initial=-np.inf).astype(np.float64)
        reference = np.where(np.isfinite(highest), highest, 0.0)  # (h,)
        exponentials = np.exp(self.scores - reference)
        return (
            self.scores, exponentials, reference, self.values, self.starts, self.tokens, self.amounts, self.log_null,
        )  # fmt: skip

    def outputs(self) -> Floats:
        flat = np.empty((len(self.starts) - 1, self.scores.shape[1], self.values.shape[1]))
        with np.errstate(all="ignore"):
            _loops(int(self.starts[-1]) * flat.shape[1] * flat.shape[2]).pool_all(*self._kernel_arguments, flat)
        return flat.reshape(self.shape).astype(self.dtype, copy=False)

    def log_weights(self) -> Floats:
        size, queries = int(self.starts[-1]), self.scores.shape[1]
        flat = np.empty((queries, size))
        with np.errstate(divide="ignore"):
            log_amounts = None if self.amounts is None else np.log(self.amounts, dtype=np.float64)
        with np.errstate(all="ignore"):
            loops = _loops(flat.size)
            loops.log_weights_of(self.scores, self.starts, self.tokens, log_amounts, self.log_null, flat)
        whole = flat[0] if self.one_query else np.ascontiguousarray(flat.T)
        return whole.astype(self.scores.dtype, copy=False)

    def gradient(self, upstream: Any) -> PoolGradient:
        from whichtoken.attention.pooling_kernels import pull_back

        slopes = np.asarray(upstream, dtype=np.float64)
        if slopes.shape != self.shape:
            raise ValueError(f"upstream of shape {slopes.shape} must have the shape of the outputs, {self.shape}")
        slopes = slopes.reshape(self.shape[0], self.scores.shape[1], self.values.shape[1])
        d_scores, d_values = np.zeros(self.scores.shape), np.zeros(self.values.shape)
        d_null = np.zeros(self.log_null.shape)
        pull_back(*self._kernel_arguments, slopes, d_scores, d_values, d_null)
        return PoolGradient(
            (d_scores[:, 0] if self.one_query else d_scores).astype(self.scores.dtype, copy=False),
            (d_values[:, 0] if self.one_value else d_values).astype(self.values.dtype, copy=False),
            None if self.null_shape is None else self._summed_null(d_null),
        )

    def _summed_null(self, d_null: Floats) -> Floats:
        """Slopes of the null scores that were given, each for all that share it."""
        assert self.null_shape is not None
        given = d_null[:, 0] if self.one_query else d_null
        extra = tuple(range(given.ndim - len(self.null_shape)))
        kept = given.sum(axis=extra)
        ones = tuple(axis for axis, size in enumerate(self.null_shape) if size == 1)
        return np.asarray(kept.sum(axis=ones, keepdims=True))


class _Spent:
    """Tokens that have been pooled on whole arrays in this process."""

    tokens = 0


def _loops(size: int) -> ModuleType:
    """On arrays or compiled, which give the same numbers: compiled as soon as that would have been worth its time."""
    _Spent.tokens += size + CALL
    if _Spent.tokens > WORTH_LOADING:
        from whichtoken.attention import pooling_kernels

        return pooling_kernels
    from whichtoken.attention import pooling_arrays

    return pooling_arrays


def _null_scores(log_null: Any, shape: tuple[int, ...]) -> Floats:
    """Scores of the null token, (n, h)."""
    found = np.asarray(-np.inf if log_null is None else log_null, dtype=np.float64)
    if np.isnan(found).any() or np.isposinf(found).any():
        raise ValueError("log_null contains NaN or +inf; it must be finite, or -inf for no null token")
    try:
        whole = np.broadcast_to(found, shape)
    except ValueError:
        raise ValueError(f"log_null of shape {found.shape} must be one number or fit the shape {shape}") from None
    return whole.reshape(shape[0], shape[1] if len(shape) > 1 else 1).copy()
