"""The group transformer with encodings that are trained too, through autograd."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid, softmax

from whichtoken.theory.group_sparse.transformer import check_encodings


class LearnedEncodings(torch.nn.Module):
    """`GroupTransformer` whose encodings are parameters and start at `encoding`; all other parameters start at zero."""

    def __init__(self, group_dim: int, groups: int, encoding: str | ArrayLike = "sine") -> None:
        super().__init__()
        encodings = check_encodings(encoding, groups)
        width = group_dim + encodings.shape[1]
        self.encodings = torch.nn.Parameter(encodings.clone())
        self.W = torch.nn.Parameter(torch.zeros(width, width, dtype=torch.float64))
        self.readout = torch.nn.Linear(width, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(self.readout.weight)

    def forward(self, X: Tensor) -> Tensor:
        """Scores (batch,) of X (batch, groups, group_dim)."""
        tokens = self._tokens(X)
        scores: Tensor = self.readout(self._weights(tokens).mT @ tokens).sum(dim=(1, 2))
        return scores

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        """Mean logistic loss; y (batch,) is -1 or +1."""
        return -logsigmoid(y * self(X)).mean()

    def attention(self, X: Tensor) -> Tensor:
        """Weights (batch, groups, groups): key first, columns sum to one."""
        return self._weights(self._tokens(X))

    def _tokens(self, X: Tensor) -> Tensor:
        return torch.cat([X, self.encodings.expand(len(X), -1, -1)], dim=2)  # (batch, groups, width)

    def _weights(self, tokens: Tensor) -> Tensor:
        return softmax(tokens @ (self.W @ tokens.mT), dim=1)  # (batch, key, query)
