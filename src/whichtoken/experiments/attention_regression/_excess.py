"""What the claims about attention regression share: training data in whitened coordinates and three excess errors."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from whichtoken.data import RegressionProblem

Array = NDArray[np.float64]


class TrainingSet:
    """One problem as the layer sees it, with fresh queries on which every trained layer is measured.

    Excesses are E |f(x) - M x|^2 divided by tr(M Sigma M^T).
    """

    def __init__(self, problem: RegressionProblem, rng: np.random.Generator, center: bool = True, queries: int = 400):
        from whichtoken.models.whitening import Whitening

        self.problem, self.center = problem, center
        self.whitening = Whitening.from_tokens(problem.tokens, center)
        self.label_mean = problem.labels.mean(axis=0) if center else np.zeros(problem.labels.shape[1])
        self.Z, self.Y = self.whitening.whiten(problem.tokens), problem.labels - self.label_mean  # (n, d), (n, outputs)
        tokens, clean = problem.draw(queries, rng)
        self.queries, self.answers = self.whitening.whiten(tokens), clean - self.label_mean
        self.other_tokens = problem.draw(len(problem.tokens), rng)[0]
        self.size = float(np.sum(problem.whitened_target**2))

    def stored(self, P: Array, Q: Array) -> float:
        """The training tokens are the context: the test error of the trained layer."""
        return self._excess(P, Q, self.Z)

    def fresh(self, P: Array, Q: Array) -> float:
        """As many new tokens are the context."""
        return self._excess(P, Q, self._other_context)

    def population(self, P: Array, Q: Array) -> float:
        """The context is infinite."""
        from whichtoken.theory.attention_regression import limit_map

        A, B = self.whitening.to_raw(P, Q)
        error = limit_map(A, B, self.problem.covariance) - self.problem.target
        return float(np.sum((error @ self.problem.covariance) * error)) / self.size

    def least_squares(self) -> float:
        """The stored excess of the best linear predictor of the training labels."""
        linear_map = np.linalg.lstsq(self.Z, self.Y)[0]
        return float(np.mean(np.sum((self.queries @ linear_map - self.answers) ** 2, axis=1))) / self.size

    def last_layer(self, logit_norm: float) -> tuple[Array, Array]:
        """Q a multiple of the identity, P by least squares: what needs no training at all."""
        Q = np.eye(self.Z.shape[1]) * logit_norm / np.sqrt(self.Z.shape[1])
        means = layer_outputs(np.eye(len(Q)), Q, self.Z, self.Z)
        return np.asarray(np.linalg.lstsq(means, self.Y)[0].T, dtype=np.float64), Q

    @cached_property
    def _other_context(self) -> Array:
        tokens = self.other_tokens - self.other_tokens.mean(axis=0) if self.center else self.other_tokens
        context: Array = tokens @ self.whitening.inverse_root
        return context

    def _excess(self, P: Array, Q: Array, context: Array) -> float:
        error = layer_outputs(P, Q, self.queries, context) - self.answers
        return float(np.mean(np.sum(error**2, axis=1))) / self.size


def layer_outputs(P: Array, Q: Array, queries: Array, context: Array) -> Array:
    """Outputs (m, outputs) of a layer for queries (m, d) that attend to a context (n, d)."""
    import torch

    from whichtoken.models.softmax_regression import SoftmaxRegression

    model = SoftmaxRegression(torch.from_numpy(P), torch.from_numpy(Q))
    outputs: Array = model(torch.from_numpy(queries), torch.from_numpy(context)).numpy()
    return outputs
