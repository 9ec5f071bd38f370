"""Attention with a `<cls>` query on token counts: parameters and loss, whatever the number of layers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClsModel(Shown, ABC):
    """Trained embeddings, a query and a readout; what happens between them is a subclass's affair.

    Parameters
    ----------
    embeddings : (vocabulary, d), float32 or float64; E.
    cls : (d,), same type; the query p.
    value : (d,), same type; the readout v.
    """

    embeddings: NDArray[Any]
    cls: NDArray[Any]
    value: NDArray[Any]

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
    def start(cls, vocabulary: int, dim: int, rng: np.random.Generator, dtype: type = np.float32) -> Self:
        """The paper's start: E_s and p from N(0, I/d), v a random unit vector."""
        if vocabulary < 1 or dim < 1:
            raise ValueError(f"vocabulary={vocabulary} and dim={dim} must be at least 1")
        draws = (rng.standard_normal(shape, dtype=dtype) for shape in ((vocabulary, dim), (dim,), (dim,)))
        embeddings, query, value = draws
        scale = dtype(1 / math.sqrt(dim))
        embeddings *= scale
        return cls(embeddings, query * scale, value / np.linalg.norm(value))

    def scores(self) -> tuple[Floats, Floats]:
        """Selection score E_s.p and value E_s.v of every token, (vocabulary,) each."""
        both = self.embeddings @ np.stack([self.cls, self.value], axis=1)  # (vocabulary, 2)
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
