"""Softmax attention on ragged sequences and its gradient, exact however far apart the scores are.

    weights q_t = amount_t e^{score_t} / (e^{log_null} + sum_s amount_s e^{score_s}),    output f = sum_t q_t value_t

Sequence i is what lies between starts[i] and starts[i + 1]. With `tokens`, scores and values have one row per entry of a
vocabulary and `tokens` (N,) says which one stands at each place, as in a matrix of counts: nothing is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.ragged import as_floats, check_amounts, check_starts, check_tokens
from whichtoken.display.shown import Shown

Floats = NDArray[np.floating[Any]]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

# Loading the compiled loops takes half a second: as long as the loops on whole arrays take for so many tokens. A call of these
# costs as much as so many tokens.
TOKENS_WORTH_LOADING, TOKENS_PER_CALL = 3_000_000, 1000
# outside of these bounds shared exponentials begin to lose what is e^-650 below the winner: a sequence takes its own reference
LEAST_TOTAL, MOST_TOTAL = 1e-18, 1e18
NO_WINNER = -1  # the winner of a sequence without tokens, or in which the null token wins


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
    """Outputs and weights of softmax attention on sequences of any length, without padding.

    Reach for it when you have scores and values and want exact attention: outputs keep their digits however far apart the
    scores are, tokens may occur several times, and an optional null token takes attention that no token deserves. For slopes
    see `pool_gradient`; for the outputs or the weights alone, `pool_outputs` and `pool_weights` are faster.

    Parameters
    ----------
    scores : array_like of shape (N,) or (N, h)
        Scores in float32 or float64, for one query or h of them; with `tokens`, (vocabulary,) or (vocabulary, h). A token
        with the score -inf is absent.
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
    arguments = _Arguments.of(scores, values, starts, amounts, log_null, tokens)
    return Pooled(arguments.outputs(), arguments.log_weights())


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
    return _Arguments.of(scores, values, starts, amounts, log_null, tokens).outputs()


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
    return np.asarray(np.exp(_Arguments.of(scores, scores, starts, amounts, log_null, tokens).log_weights()))


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
    >>> slopes.scores.tolist()  # attention moves toward the larger value
    [-1.0, 1.0]
    >>> slopes.values.tolist()  # which are the attention weights
    [0.5, 0.5]
    """
    return _Arguments.of(scores, values, starts, amounts, log_null, tokens).gradient(upstream)


@dataclass(frozen=True, eq=False)
class _Arguments:
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
    def of(cls, scores: Any, values: Any, starts: Any, amounts: Any, log_null: Any, tokens: Any) -> _Arguments:
        a, g = as_floats("scores", scores), as_floats("values", values)
        starts = check_starts(starts)
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
        index = None if tokens is None else check_tokens(tokens, size, places).astype(np.int32, copy=False)
        counts = None if amounts is None else check_amounts(amounts, size).astype(np.float64, copy=False)
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
            compiled = _load_kernels(int(self.starts[-1]) * flat.shape[1] * flat.shape[2])
            (compiled.pool_all if compiled else _pool_arrays)(*self._kernel_arguments, flat)
        return flat.reshape(self.shape).astype(self.dtype, copy=False)

    def log_weights(self) -> Floats:
        size, queries = int(self.starts[-1]), self.scores.shape[1]
        flat = np.empty((queries, size))
        with np.errstate(divide="ignore"):
            log_amounts = None if self.amounts is None else np.log(self.amounts, dtype=np.float64)
        with np.errstate(all="ignore"):
            compiled = _load_kernels(flat.size)
            fill = compiled.log_weights_of if compiled else _log_weights_of_arrays
            fill(self.scores, self.starts, self.tokens, log_amounts, self.log_null, flat)
        whole = flat[0] if self.one_query else np.ascontiguousarray(flat.T)
        return whole.astype(self.scores.dtype, copy=False)

    def gradient(self, upstream: Any) -> PoolGradient:
        from whichtoken.attention.kernels import pull_back

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


_pooled_tokens = 0  # on whole arrays, in this process


def _load_kernels(size: int) -> Any:
    """The compiled loops, as soon as loading them is worth its time; None before. Both give the same numbers."""
    global _pooled_tokens
    _pooled_tokens += size + TOKENS_PER_CALL
    if _pooled_tokens <= TOKENS_WORTH_LOADING:
        return None
    from whichtoken.attention import kernels

    return kernels


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


# The same loops on whole arrays: digit for digit what `kernels` gives, without compiling or loading anything. Sums run in the
# same order: `bincount` adds what it is given from the first to the last, and here the null tokens come first. Exponentials are
# those of the C library, as in compiled code; numpy's own differ in the last digit.


def _pool_arrays(*arguments: Any) -> None:
    """Fill outputs (n, h, k); takes what the compiled loop takes."""
    scores, exponentials, reference, values, starts, tokens, amounts, log_null, outputs = arguments
    places = _Places.of(starts)
    for h in range(scores.shape[1]):
        found = scores[:, h].astype(np.float64, copy=False)
        own = found if tokens is None else found[tokens]
        if exponentials is None:
            weighed = _weigh(places, own, amounts, log_null[:, h])
        else:
            weighed = _weigh_shared(places, exponentials[:, h][tokens], reference[h], own, amounts, log_null[:, h])
        shares, top, null, total = weighed
        for k in range(values.shape[1]):
            each = values[:, k] if tokens is None else values[:, k][tokens]
            best = np.zeros(len(top), np.float64 if values.shape[1] == 1 else values.dtype)
            best[top != NO_WINNER] = each[top[top != NO_WINNER]]
            lacking = best[places.rows] - each  # of several values in their own precision
            if values.shape[1] == 1:
                lost = places.sums(null * best, shares * lacking) / total
            else:
                lost = places.sums(null / total * best, shares / total[places.rows] * lacking)
            outputs[:, h, k] = best - lost


def _log_weights_of_arrays(
    scores: Any, starts: Any, tokens: Any, log_amounts: Any, log_null: Any, log_weights: Any
) -> None:
    """Fill log_weights (h, N)."""
    places = _Places.of(starts)
    for h in range(scores.shape[1]):
        found = scores[:, h].astype(np.float64, copy=False)
        own = found if tokens is None else found[tokens]
        there = own if log_amounts is None else np.where(log_amounts > -math.inf, own, -math.inf)
        peak = places.maxima(there)
        some = peak > -math.inf
        peak = np.where(some, peak, 0.0)
        # differences of scores first: adding the logarithm of an amount to a large score would round it away
        gaps = (own - peak[places.rows]) + (0.0 if log_amounts is None else log_amounts)
        null_gap = log_null[:, h] - peak
        highest = places.maxima(gaps)
        top = places.first(gaps, np.where(highest > null_gap, highest, math.nan))
        best = np.where(some, np.maximum(highest, null_gap), 0.0)
        null = np.where(log_null[:, h] > -math.inf, _each(math.exp, np.where(some, null_gap - best, 0.0)), 0.0)
        lowered = gaps - best[places.rows]
        shares = _each(math.exp, lowered)
        shares[top[top != NO_WINNER]] = 0.0  # the winner's own share is 1
        rest = places.sums(np.where(top != NO_WINNER, null, 0.0), shares)
        lowered -= _each(math.log1p, rest)[places.rows]
        log_weights[h] = np.where(some[places.rows], lowered, -math.inf)


@dataclass(frozen=True, eq=False)
class _Places:
    """Which sequence every token belongs to."""

    starts: Ints  # (n + 1,)
    rows: Ints  # (N,)

    @classmethod
    def of(cls, starts: Any) -> _Places:
        return cls(np.asarray(starts, np.int64), np.repeat(np.arange(len(starts) - 1), np.diff(starts)))

    @cached_property
    def _both(self) -> Ints:
        return np.concatenate([np.arange(len(self.starts) - 1), self.rows])

    def sums(self, first: Array, terms: Array) -> Array:
        """`first` (n,) plus the terms (N,) of each sequence, in their order."""
        return np.bincount(self._both, np.concatenate([first, terms]), minlength=len(first)).astype(np.float64)

    def maxima(self, terms: Array) -> Array:
        """The largest term of each sequence, (n,); -inf without any."""
        found = np.full(len(self.starts) - 1, -math.inf)
        filled = np.diff(self.starts) > 0
        if filled.any():
            found[filled] = np.maximum.reduceat(terms, self.starts[:-1][filled])
        return found

    def first(self, terms: Array, wanted: Array) -> Ints:
        """Where the first term of each sequence is that equals `wanted` (n,); NO_WINNER if none does."""
        found = np.full(len(wanted), NO_WINNER)
        hits = np.flatnonzero(terms == wanted[self.rows])[::-1]
        found[self.rows[hits]] = hits
        return found


def _weigh(places: _Places, scores: Array, amounts: Any, log_null: Array) -> tuple[Array, Ints, Array, Array]:
    """Shares (N,), then winner, share of the null and total of each sequence."""
    there = scores if amounts is None else np.where(amounts > 0, scores, -math.inf)
    peak = np.maximum(places.maxima(there), log_null)
    some = peak > -math.inf
    peak = np.where(some, peak, 0.0)
    shares = _each(math.exp, np.where(some[places.rows], there - peak[places.rows], -math.inf))
    if amounts is not None:
        shares *= amounts
    null = _each(math.exp, np.where(some, log_null - peak, -math.inf))
    total = np.where(some, places.sums(null, shares), 1.0)
    return shares, _winners(places, shares, null), null, total


def _weigh_shared(
    places: _Places, exponentials: Array, reference: float, scores: Array, amounts: Any, log_null: Array
) -> tuple[Array, Ints, Array, Array]:
    """As `_weigh`, from e^{score - reference} of every token (N,)."""
    shares = exponentials if amounts is None else amounts * exponentials
    null = _each(math.exp, np.minimum(log_null - reference, 700.0))
    total = places.sums(null, shares)
    top = _winners(places, shares, null)
    lost = ~((total > LEAST_TOTAL) & (total < MOST_TOTAL))
    if lost.any():
        own = _weigh(places, scores, amounts, log_null)
        shares = np.where(lost[places.rows], own[0], shares)
        top, null, total = (np.where(lost, one, other) for one, other in zip(own[1:], (top, null, total), strict=True))
    return shares, top, null, total


def _winners(places: _Places, shares: Array, null: Array) -> Ints:
    most = places.maxima(shares)
    return places.first(shares, np.where(most > null, most, math.nan))


def _each(function: Callable[[float], float], numbers: Array) -> Array:
    return np.fromiter(map(function, numbers.tolist()), np.float64, len(numbers))
