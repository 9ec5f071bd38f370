"""The one-layer `<cls>` model in score space: one selection score and one value score per token, instead of embeddings.

With `<cls>` vector and value vector an orthonormal pair, embeddings of dimension two express every decision of the model, so
a_s = p.E_s and g_s = v.E_s are trained themselves. `queries` attention heads add up; `outputs` values per token and head make
several classes. The loss is the mean logistic (softmax) loss plus ridge terms on a and g. One compiled pass is an epoch.

======  ==================================================
symbol  meaning
======  ==================================================
a, g    selection scores (|S|, H), values (|S|, H, K)
b       bias (K,)
S       vocabulary; H queries, K outputs
======  ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.attention import pool_outputs
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]
STEP_SELECTION, STEP_VALUE = 0.02, 0.2  # a is on a logarithmic scale, g on that of the output
LEAST_STEPS = 600  # fewer do not bring the value scores to their size, whatever the number of documents


@dataclass(frozen=True)
class Scores(Shown):
    """A trained model."""

    selection: Array  # a, (|S|, queries)
    values: Array  # g, (|S|, queries, outputs)
    bias: Array  # (outputs,)
    log_null: float = -np.inf  # score of a null token of value 0, which takes what the others do not get

    def outputs(self, amounts: sparse.csr_array) -> Array:
        """f + b of documents, (n, outputs); a document without tokens gets the bias."""
        total = np.tile(self.bias, (amounts.shape[0], 1))
        for h in range(self.selection.shape[1]):
            scores, values = np.ascontiguousarray(self.selection[:, h]), np.ascontiguousarray(self.values[:, h])
            total += pool_outputs(scores, values, amounts.indptr, amounts.data, self.log_null, tokens=amounts.indices)
        return total


class ScoreDescent:
    """Mini-batch Adam on the scores; its state stays, so that training can go on with new documents.

    Parameters
    ----------
    tokens, queries, outputs
        |S|, H, K. One output is the binary model.
    ridge_selection, ridge_value
        Factors of |a|^2 / 2 and |g|^2 / 2 beside the mean loss.
    rng
        Order of the documents; start of several queries, which must differ to become different.
    """

    def __init__(
        self, tokens: int, ridge_selection: float, ridge_value: float, rng: np.random.Generator, *, queries: int = 1,
        outputs: int = 1,
    ) -> None:  # fmt: skip
        self.ridge_selection, self.ridge_value, self.rng = ridge_selection, ridge_value, rng
        start = rng.standard_normal((tokens, queries)) if queries > 1 else np.zeros((tokens, 1))
        self.selection: Array = start
        self.values: Array = np.zeros((tokens, queries, outputs))
        self.bias: Array = np.zeros(outputs)
        self._moments = tuple(np.zeros((2, *part.shape)) for part in (self.selection, self.values, self.bias))
        self._steps = 0

    @property
    def scores(self) -> Scores:
        """The model as it is now, a copy."""
        return Scores(self.selection.copy(), self.values.copy(), self.bias.copy())

    def fit(self, amounts: sparse.csr_array, targets: Array, weights: Array, epochs: int, batch: int) -> Self:
        """Train with a step length that falls to zero like a cosine."""
        for epoch in range(epochs):
            self.epoch(amounts, targets, weights, batch, (1 + np.cos(np.pi * epoch / epochs)) / 2)
        return self

    def epoch(self, amounts: sparse.csr_array, targets: Array, weights: Array, batch: int, factor: float = 1.0) -> None:
        """Go once through the documents.

        `amounts` (n, |S|) are counts or what stands for them, `targets` (n, outputs) 0 or 1, `weights` (n,) of documents.
        """
        from whichtoken.theory.trained_embeddings.score_descent_kernels import run_epoch

        moments_a, moments_g, moments_b = self._moments
        self._steps = run_epoch(
            amounts.indptr, amounts.indices, amounts.data, targets, weights, self.rng.permutation(len(weights)), batch,
            self.selection, self.values, self.bias, moments_a, moments_g, moments_b, self._steps,
            factor * STEP_SELECTION, factor * STEP_VALUE, self.ridge_selection, self.ridge_value,
        )  # fmt: skip


def schedule(documents: int, epochs: int, batch: int) -> tuple[int, int]:
    """Epochs and batch size: small sets are seen more often, in smaller batches, until there are enough steps."""
    size = int(np.clip(documents // 32, 1, batch))
    steps = -(-documents // size)
    return max(epochs, -(-LEAST_STEPS // steps)), size
