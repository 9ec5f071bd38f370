"""Two-layer attention, model (36), on token counts: self-attention, skip connection, LayerNorm, then a `<cls>` query.

With U (u, d) the embeddings of the u distinct tokens of a document, everything behind the first layer depends on U only
through the Gram matrix G = U U^T and the vectors Up, Uv, U1/d: with P = softmax(G + log c) and W = P + I the rows of the
first layer are W U, their means W U1/d and their squared norms the diagonal of W G W^T. So one product of size u^2 d makes
the forward pass, one more the backward pass, and u x u matrices do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.cls_model import ClsModel, binary_labels, count_matrix, logistic_loss
from whichtoken.theory.trained_embeddings.cls_training import (
    ClsAdamW,
    Moments,
    Rows,
    Rule,
    check_guards,
    fill_table,
    skip,
    skip_rows,
    training_documents,
    update_vector,
)
from whichtoken.theory.trained_embeddings.training_loop import History, Safeguards, TrainingPlan, train_by_epochs

# what the package does not export itself
__all__ = ["TwoLayerAttention", "train_two_layer"]

Array = NDArray[Any]
LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's
GROUP_ENTRIES = 1 << 17  # of the u x u matrices of a group


class Group(NamedTuple):
    """Documents of similar size, each filled up to u tokens with its first, which then counts zero times."""

    documents: NDArray[np.intp]  # (b,)
    entries: NDArray[np.intp]  # (b, u) places in the arrays of the count matrix
    counts: NDArray[np.int32]  # (b, u)


class Batch(NamedTuple):
    """What the documents of a batch share."""

    tokens: NDArray[np.int32]  # (touched,) that occur, ascending
    places: NDArray[np.intp]  # of each entry of the count matrix among them
    embeddings: Array  # (touched, d)
    vectors: Array  # (3, d): p times the scale, v, 1/d
    projections: Array  # (touched, 3): of the embeddings on these
    scale: Any  # of the scores in front of both softmaxes

    def places_of(self, group: Group) -> Iterator[NDArray[np.intp]]:
        """The places of each document's tokens, without those that only fill up."""
        for places, counts in zip(self.places[group.entries], group.counts, strict=True):
            yield places[: np.count_nonzero(counts)]

    @property
    def vector_sums(self) -> tuple[Any, Any]:
        """The sums of the coordinates of p and v, which LayerNorm's centering needs."""
        return self.vectors[0].sum(), self.vectors[1].sum()


class Layers(NamedTuple):
    """Forward pass of a group."""

    attention: Array  # (b, u, u) P
    mixed: Array  # (b, u, u) W G
    projections: Array  # (b, u, 3): Up, Uv, U1/d
    center: Array  # (b, u) mean of each row of the first layer
    inverse: Array  # (b, u) one over its standard deviation
    weights: Array  # (b, u) attention of the query
    scores: Array  # (b, u)
    values: Array  # (b, u) readout of each row after LayerNorm

    @property
    def outputs(self) -> NDArray[np.float64]:
        return np.asarray(np.einsum("bi,bi->b", self.weights, self.values, dtype=np.float64))


@dataclass(frozen=True)
class TwoLayerGradient(Shown):
    """Loss and gradients; only the rows of tokens that occur."""

    loss: float
    tokens: NDArray[np.int32]  # (touched,) ascending
    rows: Array  # (touched, d)
    cls: Array  # (d,)
    value: Array  # (d,)


class TwoLayerAttention(ClsModel):
    """f(X) = softmax(p^T E'^T) E' v with E' = LayerNorm(softmax(E_X E_X^T) E_X + E_X), without affine weights.

    Equation (36) of Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens.
    Parameters and their start are those of one layer.

    Parameters
    ----------
    embeddings : array of shape (vocabulary, d)
        E, float32 or float64.
    cls, value : array of shape (d,)
        The query p and the readout v, of the same type.
    logit_scale : float, default=1.0
        What the scores are multiplied with in front of both softmaxes; the paper prints none, 1/sqrt(d) is usual.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.two_layer import TwoLayerAttention
    >>> model = TwoLayerAttention.start(vocabulary=5, dim=8, rng=np.random.default_rng(0), dtype=np.float64)
    >>> outputs = model.decision([[1, 0, 2, 0, 0], [0, 0, 0, 0, 0]])
    >>> outputs.shape, float(outputs[1])  # an empty document gives zero
    ((2,), 0.0)
    """

    def decision(self, counts: Any) -> NDArray[np.float64]:
        """The output f of every document, (n,); zero for an empty one."""
        documents = count_matrix(counts, len(self.embeddings))
        batch, result = self._batch(documents), np.zeros(documents.shape[0])
        for group in _groups(documents):
            result[group.documents] = _forward(batch, group).outputs
        return result

    def gradient(self, counts: Any, labels: Any) -> TwoLayerGradient:
        """Mean logistic loss and its gradients."""
        documents = count_matrix(counts, len(self.embeddings))
        signs, batch = binary_labels(labels, documents.shape[0]), self._batch(documents)
        rows, outputs = np.zeros_like(batch.embeddings), np.zeros(len(signs))
        d_projections, d_sums = np.zeros_like(batch.projections), np.zeros(2)
        for group in _groups(documents):
            layers = _forward(batch, group)
            outputs[group.documents] = layers.outputs
            y = signs[group.documents]
            pulls = -y / (1 + np.exp(y * layers.outputs)) / len(signs)
            d_gram, d_projected, sums = _backward(layers, batch, pulls.astype(rows.dtype))
            d_sums += sums
            for i, places in enumerate(batch.places_of(group)):
                distinct = len(places)
                add_rows(rows, places, d_gram[i, :distinct, :distinct] @ batch.embeddings[places])
                add_rows(d_projections, places, d_projected[i])
        rows += d_projections @ batch.vectors
        cls, value = d_projections[:, :2].T @ batch.embeddings + d_sums[:, None].astype(rows.dtype)
        return TwoLayerGradient(logistic_loss(outputs, signs), batch.tokens, rows, cls * batch.scale, value)

    def _batch(self, documents: csr_array) -> Batch:
        tokens, places = np.unique(documents.indices, return_inverse=True)
        d = len(self.cls)
        vectors = np.stack([self.query, self.value, np.full_like(self.cls, 1 / d)])
        embeddings, scale = self.embeddings[tokens], self.cls.dtype.type(self.logit_scale)
        return Batch(tokens, places, embeddings, vectors, embeddings @ vectors.T, scale)


def _groups(documents: csr_array) -> Iterator[Group]:
    """Documents that are not empty, by number of distinct tokens, so that little is filled up."""
    sizes = np.diff(documents.indptr)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    start = 0
    while start < len(order):
        # as many as fit the cache, and none that would have to be filled up by more than a tenth
        widest = sizes[order[start]] * 1.1 + 2
        stop = start + int(np.searchsorted(sizes[order[start:]], widest, side="right"))
        stop = min(stop, start + max(1, GROUP_ENTRIES // int(sizes[order[start]]) ** 2))
        members = order[start:stop]
        places = np.arange(sizes[members[-1]])
        real = places < sizes[members, None]
        entries = documents.indptr[members, None] + np.where(real, places, 0)
        yield Group(members, entries, np.where(real, documents.data[entries], 0))
        start = stop


def _forward(batch: Batch, group: Group) -> Layers:
    d, counts = batch.embeddings.shape[1], group.counts
    # what fills up keeps zeros here, no more than the squared norm on the diagonal, so that no maximum below is theirs
    gram = np.zeros((*counts.shape, counts.shape[1]), dtype=batch.embeddings.dtype)
    for square, places in zip(gram, batch.places_of(group), strict=True):
        tokens, distinct = batch.embeddings[places], len(places)
        np.matmul(tokens, tokens.T, out=square[:distinct, :distinct])  # one by one: numpy computes one triangle only
    multiplicity = counts.astype(gram.dtype)
    attention = gram - gram.max(axis=2, keepdims=True)
    attention *= batch.scale
    np.exp(attention, out=attention)
    attention *= multiplicity[:, None, :]
    attention /= attention.sum(axis=2, keepdims=True)
    projections = batch.projections[batch.places[group.entries]]
    rows = attention @ projections + projections
    mixed = attention @ gram
    mixed += gram
    squares = np.einsum("bij,bij->bi", mixed, attention) + np.einsum("bii->bi", mixed)  # diagonal of W G W^T
    center = rows[..., 2]
    variance = np.maximum(squares / d - center**2, 0)  # rounding of rows that are nearly constant may fall below
    inverse = 1 / np.sqrt(variance + LAYER_NORM_EPS, dtype=gram.dtype)
    cls_sum, value_sum = batch.vector_sums
    scores = (rows[..., 0] - center * cls_sum) * inverse
    scores = np.where(counts > 0, scores, scores[:, :1])  # what fills up must not be the maximum
    values = (rows[..., 1] - center * value_sum) * inverse
    weights = multiplicity * np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return Layers(attention, mixed, projections, center, inverse, weights, scores, values)


def _backward(layers: Layers, batch: Batch, pulls: Array) -> tuple[Array, Array, tuple[Any, Any]]:
    """Gradients for dL/df = `pulls` (b,): of G (symmetrized), of the projections (b, u, 3), and of the sums of p and v."""
    attention, projections, inverse = layers.attention, layers.projections, layers.inverse
    cls_sum, value_sum = batch.vector_sums
    top = np.argmax(layers.weights, axis=1)[:, None]
    # relative to the row attended most, whose own difference is then exactly zero
    gaps = layers.values - np.take_along_axis(layers.values, top, axis=1)
    d_values = pulls[:, None] * layers.weights
    d_scores = d_values * (gaps - np.einsum("bi,bi->b", layers.weights, gaps)[:, None])
    d_rows = np.empty_like(projections)  # of W times the projections
    d_rows[..., 0], d_rows[..., 1] = d_scores * inverse, d_values * inverse
    d_variance = -0.5 * inverse**2 * (d_scores * layers.scores + d_values * layers.values)
    d_rows[..., 2] = -cls_sum * d_rows[..., 0] - value_sum * d_rows[..., 1]
    d_rows[..., 2] -= 2 * layers.center * d_variance
    d_squares = d_variance / batch.vectors.shape[1]
    d_attention = d_rows @ projections.mT
    d_attention += (2 * d_squares)[..., None] * layers.mixed
    d_attention -= np.einsum("bij,bij->bi", d_attention, attention)[..., None]
    d_attention *= attention  # of the logits
    d_attention *= batch.scale  # of G
    weighted = (2 * d_squares)[..., None] * attention
    d_gram = attention.mT @ weighted  # with the next three lines 2 W^T diag W
    d_gram += weighted
    d_gram += weighted.mT
    np.einsum("bii->bi", d_gram)[...] += 2 * d_squares
    d_gram += d_attention
    d_gram += d_attention.mT
    d_projections = attention.mT @ d_rows + d_rows
    sums = tuple(-np.einsum("bi,bi->", d_rows[..., k], layers.center) for k in (0, 1))
    return d_gram, d_projections, (sums[0], sums[1])


@njit(cache=True, nogil=True)
def add_rows(rows: Array, places: NDArray[np.intp], addends: Array) -> None:
    """rows[places] += addends[: len(places)] in one pass."""
    for k in range(len(places)):
        for j in range(rows.shape[1]):
            rows[places[k], j] += addends[k, j]


def train_two_layer(
    model: TwoLayerAttention,
    counts: Any,
    labels: Any,
    plan: TrainingPlan,
    rng: np.random.Generator,
    *,
    guards: Safeguards | None = None,
) -> History:
    """Train `model` in place with AdamW.

    Parameters
    ----------
    model, counts, labels, plan, rng, guards : as in `train_cls`
        The model, the documents, and how to train.

    Returns
    -------
    History
        Losses, epoch by epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.two_layer import TwoLayerAttention
    >>> from whichtoken.theory.trained_embeddings import TrainingPlan
    >>> from whichtoken.theory.trained_embeddings.two_layer import train_two_layer
    >>> rng = np.random.default_rng(0)
    >>> model = TwoLayerAttention.start(vocabulary=3, dim=8, rng=rng)
    >>> history = train_two_layer(model, [[1, 0, 1], [0, 1, 1]], [1, -1], TrainingPlan(epochs=20, drops=()), rng)
    >>> history.losses[-1] < history.losses[0]
    True
    """
    if plan.optimizer != "adamw":
        raise ValueError(f"optimizer={plan.optimizer!r} must be adamw for two layers")
    documents, signs = training_documents(model, TwoLayerAttention, counts, labels)
    guards = check_guards(guards or Safeguards(), len(model.embeddings))
    return train_by_epochs(TwoLayerAdamW(model, documents, signs, plan), documents, signs, plan, rng, guards)


class TwoLayerAdamW(ClsAdamW):
    """The same state as for one layer; the gradient of a row is no longer of rank two, so it comes in a buffer."""

    model: TwoLayerAttention

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        schedule, rule = self._next_steps(order, lr)
        embeddings, cls, value = self.moments
        steps = len(rule.sizes)
        table = np.empty((steps + 1, 7))
        fill_table(table, rule, -1, steps, False)
        skip_rows(embeddings, schedule.before, table, rule)
        loss = 0.0
        for step in range(steps):
            batch = order[schedule.starts[step] : schedule.starts[step + 1]]
            gradient = self.model.gradient(self.counts[batch], self.documents.labels[batch])
            part = slice(schedule.bounds[step], schedule.bounds[step + 1])
            # the gradient's tokens are those of the schedule, ascending in both
            step_rows(embeddings, gradient.tokens, schedule.missed[part], gradient.rows, table, rule, step)
            update_vector(*cls, gradient.cls[None], rule, step)
            if self.plan.train_value:
                update_vector(*value, gradient.value[None], rule, step)
            loss += gradient.loss
        return loss / steps


@njit(cache=True, nogil=True)
def step_rows(
    embeddings: Moments, tokens: NDArray[np.int32], missed: NDArray[np.int32], gradients: Rows, table: Array, rule: Rule,
    step: int,
) -> None:  # fmt: skip
    """AdamW on the rows of `tokens` with `gradients` (touched, d), then the steps that each misses."""
    longest = 0
    for count in missed:
        longest = max(longest, count)
    fill_table(table, rule, step, longest, False)
    for k in range(len(tokens)):
        row, mean = embeddings.parameter[tokens[k]], embeddings.mean[tokens[k]]
        square = embeddings.square[tokens[k]]
        update_vector(row, mean, square, gradients[k : k + 1], rule, step)
        if missed[k]:
            skip(row, mean, square, table, rule, step, missed[k])
