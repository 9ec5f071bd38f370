"""What is minimised over a pair of attention factors: the exact loss on tokens, or its long-context limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from whichtoken.extras import needed_by
from whichtoken.theory.attention_regression import population_loss

if TYPE_CHECKING:
    import torch

    from whichtoken.models.whitening import Whitening

Array = NDArray[np.float64]
Found = tuple[float, Array, Array]


class FactorObjective(Protocol):
    """A loss of two factors, with its gradients."""

    @property
    def samples(self) -> float:
        """Number of training pairs behind the loss; infinite for a population."""

    def __call__(self, P: Array, Q: Array) -> Found:
        """Loss, gradient in P, gradient in Q."""


class PopulationObjective:
    """1/2 |P Q^T - Y|_F^2, the limit of infinitely many tokens; `target` is Y (outputs, d)."""

    samples = math.inf

    def __init__(self, target: Array) -> None:
        self.target = target

    def __call__(self, P: Array, Q: Array) -> Found:
        return population_loss(P, Q, self.target)


class TokenObjective:
    """(1/2n) sum_i |P h_i - y_i|^2 on tokens (n, d), which are the context as well, and labels (n, outputs).

    Parameters
    ----------
    device
        Where the n^2 attention weights are computed; the factors stay float64 arrays on the CPU.
    dtype
        Type of the attention weights.
    """

    def __init__(
        self,
        tokens: Array,
        labels: Array,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        chunk: int | None = None,
    ) -> None:
        with needed_by("attention regression"):
            import torch

        self.samples: float = len(tokens)
        self.chunk = chunk
        self.tokens = torch.as_tensor(tokens, dtype=dtype or torch.float64, device=device)
        self.labels = torch.as_tensor(labels, dtype=dtype or torch.float64, device=device)

    def __call__(self, P: Array, Q: Array) -> Found:
        import torch

        from whichtoken.models.softmax_regression import regression_loss_and_gradient

        value, key_query = (torch.as_tensor(x, dtype=self.tokens.dtype, device=self.tokens.device) for x in (P, Q))
        found = regression_loss_and_gradient(value, key_query, self.tokens, self.labels, self.chunk)
        return found.loss, found.value.double().cpu().numpy(), found.key_query.double().cpu().numpy()


class RawCoordinates:
    """An objective of (P, Q) as a function of the raw factors A = P S^(-1/2) and B = S^(-1/2) Q S^(-1/2)."""

    def __init__(self, objective: FactorObjective, whitening: Whitening) -> None:
        self.objective, self.whitening, self.samples = objective, whitening, objective.samples

    def __call__(self, P: Array, Q: Array) -> Found:
        """Loss and gradients at A, B, which take the places of P and Q."""
        loss, P_gradient, Q_gradient = self.objective(*self.whitening.to_whitened(P, Q))
        root = self.whitening.root
        return loss, P_gradient @ root, root @ Q_gradient @ root
