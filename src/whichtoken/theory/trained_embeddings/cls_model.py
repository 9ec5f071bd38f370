"""Attention with a `<cls>` query on token counts: parameters and loss, whatever the number of layers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.attention import pool_outputs
from whichtoken.attention.kernels import NO_NULL, lead, shortfall_of, weigh_shared
from whichtoken.attention.losses import logistic_with_slope
from whichtoken.checks import check_count
from whichtoken.datasets.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class ClsModel(Shown, ABC):
    """Trained embeddings, a query and a readout; what happens between them is a subclass's affair.

    Parameters
    ----------
    embeddings : (vocabulary, d), float32 or float64; E.
    cls : (d,), same type; the query p.
    value : (d,), same type; the readout v.
    logit_scale : what scores are multiplied with in front of each softmax; 1 as printed in the paper.
    """

    embeddings: NDArray[Any]
    cls: NDArray[Any]
    value: NDArray[Any]
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        kind = self.embeddings.dtype
        if kind not in (np.float32, np.float64) or self.embeddings.ndim != 2:
            raise ValueError(f"embeddings {self.embeddings.shape} {kind} must be a float32 or float64 matrix")
        for name, vector in (("cls", self.cls), ("value", self.value)):
            if vector.shape != self.embeddings.shape[1:] or vector.dtype != kind:
                raise ValueError(
                    f"{name} {vector.shape} {vector.dtype} must be {self.embeddings.shape[1:]} {kind}, as the embeddings"
                )

    @classmethod
    def start(
        cls, vocabulary: int, dim: int, rng: np.random.Generator, dtype: type = np.float32, logit_scale: float = 1.0
    ) -> Self:
        """The paper's start: E_s and p from N(0, I/d), v a random unit vector."""
        check_count("vocabulary", vocabulary, 1)
        check_count("dim", dim, 1)
        draws = (rng.standard_normal(shape, dtype=dtype) for shape in ((vocabulary, dim), (dim,), (dim,)))
        embeddings, query, value = draws
        scale = dtype(1 / math.sqrt(dim))
        embeddings *= scale
        return cls(embeddings, query * scale, value / np.linalg.norm(value), logit_scale)

    @property
    def query(self) -> NDArray[Any]:
        """p times the scale of the scores, (d,)."""
        query: NDArray[Any] = self.cls * self.cls.dtype.type(self.logit_scale)
        return query

    def scores(self) -> tuple[Floats, Floats]:
        """Selection score E_s.p, scaled as in the softmax, and value E_s.v of every token, (vocabulary,) each."""
        both = self.embeddings @ np.stack([self.query, self.value], axis=1)  # (vocabulary, 2)
        scores, values = np.ascontiguousarray(both.T, dtype=np.float64)
        return scores, values

    @abstractmethod
    def decision(self, counts: Any) -> Floats:
        """The output f of every document, (n,); its sign is the predicted label. An empty document has f = 0."""

    def loss(self, counts: Any, labels: Any) -> float:
        """Mean logistic loss."""
        outputs = self.decision(counts)
        return logistic_loss(outputs, binary_labels(labels, len(outputs)))


def count_matrix(counts: Any, vocabulary: int) -> csr_array:
    """Token counts (n, vocabulary) as the kernels want them: CSR with int32 everywhere, tokens of a row in order."""
    documents = as_counts(counts)
    if documents.shape[1] != vocabulary:
        raise ValueError(
            f"counts have {documents.shape[1]} columns, the embeddings {vocabulary} rows: one each per token"
        )
    if documents.nnz >= 2**31:
        raise ValueError(
            f"counts with {documents.nnz} entries are too many for one matrix; pass fewer documents at a time"
        )
    parts = (documents.data, documents.indices.astype(np.int32), documents.indptr.astype(np.int32))
    return csr_array(parts, shape=documents.shape)


def binary_labels(labels: Any, documents: int) -> NDArray[np.int8]:
    """Labels -1 and +1, one per document."""
    signs = as_signs(labels)
    if signs.shape != (documents,):
        raise ValueError(f"labels {signs.shape} must be ({documents},), one per document")
    return signs


def logistic_loss(outputs: Floats, labels: Any) -> float:
    """Mean of log(1 + exp(-y f))."""
    return float(np.logaddexp(0.0, -np.asarray(labels) * outputs).mean())


@njit(cache=True, nogil=True)
def add_gradient(
    indptr: Integers, indices: Integers, counts: Integers, labels: NDArray[np.int8], rows: NDArray[np.int64],
    weights: Floats, scores: Floats, values: Floats, along_value: Floats, along_cls: Floats, shares: Floats,
) -> float:  # fmt: skip
    """Add the gradient of the mean logistic loss of `rows` to (`along_value`, `along_cls`); return the loss.

    `weights` (vocabulary,) are e^(score - common reference): one exponential per token of the vocabulary, not per place.
    With q the attention and r = -(y/n) sigmoid(-y f): A_s = sum_X r q_s and B_s = sum_X r q_s (g_s - f); the gradient of
    E_s is A_s v + B_s p.
    """
    loss = 0.0
    for row in rows:
        start, stop = indptr[row], indptr[row + 1]
        if start == stop:  # an empty document: f = 0 and nothing to move
            loss += math.log(2.0)
            continue
        tokens = indices[start:stop]
        top, null, total = weigh_shared(weights, 0.0, scores, tokens, counts[start:stop], NO_NULL, shares)
        highest, shortfall = shortfall_of(values, tokens, shares, top, null, total)
        value, slope = logistic_with_slope(labels[row] * (highest - shortfall))
        loss += value
        pull = labels[row] * slope / len(rows) / total
        for k in range(stop - start):
            token = tokens[k]
            pulled = pull * shares[k]
            along_value[token] += pulled
            along_cls[token] += pulled * lead(values[token], highest, shortfall)
    return loss / len(rows)


@dataclass(frozen=True)
class ClsGradient(Shown):
    """Loss and gradient in score space: the embeddings' gradient has rank two, A v^T + B p^T."""

    loss: float
    along_value: Floats  # (vocabulary,) A
    along_cls: Floats  # (vocabulary,) B; its sum over the tokens of any one document is zero


class ClsAttention(ClsModel):
    """f(X) = softmax(p^T E_X^T) E_X v: attention of one query over the tokens of a document.

    Reach for it to study or train the model of the paper itself; for texts of your own, `TextClassifier` is the one.

    A document is its token counts: no tensor of shape batch x length x d is ever made. Model (1) of Wu, Shevchenko, Oymak,
    Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens.

    Parameters
    ----------
    embeddings : array of shape (vocabulary, d)
        E, float32 or float64.
    cls, value : array of shape (d,)
        The query p and the readout v, of the same type.
    logit_scale : float, default=1.0
        What the scores are multiplied with in front of the softmax; the paper prints none.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import ClsAttention
    >>> model = ClsAttention(np.eye(2), cls=np.zeros(2), value=np.array([1.0, -1.0]))
    >>> model.decision([[3, 1], [1, 1]]).tolist()  # two documents: tokens 0 and 1, three and one times; once each
    [0.5, 0.0]
    >>> ClsAttention.start(vocabulary=5, dim=8, rng=np.random.default_rng(0)).embeddings.shape
    (5, 8)
    """

    def decision(self, counts: Any) -> Floats:
        """The output f of every document, (n,); its sign is the predicted label."""
        documents = count_matrix(counts, len(self.embeddings))
        scores, values = self.scores()
        outputs = pool_outputs(scores, values, documents.indptr, documents.data, tokens=documents.indices)
        return np.asarray(outputs, dtype=np.float64)

    def gradient(self, counts: Any, labels: Any) -> ClsGradient:
        """Loss and gradient in score space; O(nonzero counts) beyond the scores."""
        documents = count_matrix(counts, len(self.embeddings))
        signs = binary_labels(labels, documents.shape[0])
        scores, values = self.scores()
        weights, shares = np.exp(scores - scores.max()), np.empty(len(scores))
        along_value, along_cls = np.zeros((2, len(scores)))
        loss = add_gradient(
            documents.indptr, documents.indices, documents.data, signs, np.arange(len(signs)),
            weights, scores, values, along_value, along_cls, shares,
        )  # fmt: skip
        return ClsGradient(loss, along_value, along_cls)

    def parameter_gradients(self, gradient: ClsGradient) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Gradients of (embeddings, cls, value): A v^T + B p^T, E^T B and E^T A, with the scale at p and at B."""
        A, B = (part.astype(self.embeddings.dtype) for part in (gradient.along_value, gradient.along_cls))
        along_cls = B @ self.embeddings * self.embeddings.dtype.type(self.logit_scale)
        return np.outer(A, self.value) + np.outer(B, self.query), along_cls, A @ self.embeddings
