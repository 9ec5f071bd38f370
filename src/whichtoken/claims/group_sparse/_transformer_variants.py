"""The group transformer with the parts that the theory leaves out, each behind a switch."""

from __future__ import annotations

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid, softmax

from whichtoken.checks import check_count
from whichtoken.theory.group_sparse.transformer import check_encodings


class GroupTransformerProbe(torch.nn.Module):
    """A transformer over groups of variables: which additions keep the selection of the relevant group?

    With all switches off it is `GroupTransformer`, trained through autograd.

    Parameters
    ----------
    group_dim, groups, encoding : int, int, str or array
        As for `GroupTransformer`.
    learned_encoding : bool, default=False
        Train the encodings too, from `encoding`.
    key_dim : int, optional
        Score tokens by <W_K z_i, W_Q z_j>/sqrt(key_dim) instead of z_i^T W z_j.
    residual : bool, default=False
        Add the attended tokens to the tokens instead of replacing them.
    layer_norm : bool, default=False
        Normalize the tokens before each layer.
    hidden : int, optional
        Read out with a network of this many ReLU units instead of the value vector.
    layers : int, default=1
        Attention layers.
    generator : torch.Generator, optional
        Source of the random start of the factors and of the readout network; everything else starts at zero.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.claims.group_sparse._transformer_variants import GroupTransformerProbe
    >>> model = GroupTransformerProbe(group_dim=2, groups=4, layers=2, residual=True)
    >>> model.attention(torch.randn(3, 4, 2, dtype=torch.float64)).shape
    torch.Size([2, 3, 4, 4])
    """

    def __init__(
        self,
        group_dim: int,
        groups: int,
        encoding: str | ArrayLike = "sine",
        *,
        learned_encoding: bool = False,
        key_dim: int | None = None,
        residual: bool = False,
        layer_norm: bool = False,
        hidden: int | None = None,
        layers: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for field, value in (("group_dim", group_dim), ("key_dim", key_dim), ("hidden", hidden), ("layers", layers)):
            if value is not None:
                check_count(field, value, 1)
        encodings = check_encodings(encoding, groups)
        width = group_dim + encodings.shape[1]
        self.residual = residual
        self.encodings = torch.nn.Parameter(encodings.clone(), requires_grad=learned_encoding)
        self.scorers = torch.nn.ModuleList(_Scorer(width, key_dim, generator) for _ in range(layers))
        self.norms = torch.nn.ModuleList(
            torch.nn.LayerNorm(width, dtype=torch.float64) if layer_norm else torch.nn.Identity() for _ in range(layers)
        )
        self.readout = _readout(width, hidden, generator)

    def forward(self, X: Tensor) -> Tensor:
        """Scores (batch,) of X (batch, groups, group_dim)."""
        tokens, _ = self._attend(X)
        scores: Tensor = self.readout(tokens).sum(dim=(1, 2))
        return scores

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        """Mean logistic loss; y (batch,) is -1 or +1."""
        return -logsigmoid(y * self(X)).mean()

    def attention(self, X: Tensor) -> Tensor:
        """Weights of every layer, (layers, batch, groups, groups): key first, columns sum to one."""
        return torch.stack(self._attend(X)[1])

    def rollout(self, X: Tensor) -> Tensor:
        """Weights from the input to the output tokens, (batch, groups, groups): the layers' attention multiplied."""
        total = torch.eye(X.shape[1], dtype=X.dtype)
        for S in self.attention(X):
            total = total @ ((S + torch.eye(len(S[0]), dtype=S.dtype)) / 2 if self.residual else S)
        return total

    def _attend(self, X: Tensor) -> tuple[Tensor, list[Tensor]]:
        tokens = torch.cat([X, self.encodings.expand(len(X), -1, -1)], dim=2)  # (batch, groups, width)
        weights = []
        for norm, scorer in zip(self.norms, self.scorers, strict=True):
            normalized = norm(tokens)
            S = softmax(scorer(normalized), dim=1)  # (batch, key, query)
            attended = S.mT @ normalized
            tokens = tokens + attended if self.residual else attended
            weights.append(S)
        return tokens, weights


class _Scorer(torch.nn.Module):
    """z_i^T W z_j for all pairs, (batch, key, query), W whole or in two factors."""

    def __init__(self, width: int, key_dim: int | None, generator: torch.Generator | None) -> None:
        super().__init__()
        self.key_dim = key_dim
        if key_dim is None:
            self.W = torch.nn.Parameter(torch.zeros(width, width, dtype=torch.float64))
        else:
            # with both factors at zero their gradients vanish forever
            self.W_K = torch.nn.Parameter(_xavier(key_dim, width, generator))
            self.W_Q = torch.nn.Parameter(_xavier(key_dim, width, generator))

    def forward(self, tokens: Tensor) -> Tensor:
        if self.key_dim is None:
            return tokens @ (self.W @ tokens.mT)
        keys, queries = tokens @ self.W_K.T, tokens @ self.W_Q.T  # (batch, groups, key_dim)
        return torch.bmm(keys, queries.mT) / math.sqrt(self.key_dim)


def _readout(width: int, hidden: int | None, generator: torch.Generator | None) -> torch.nn.Module:
    if hidden is None:
        linear = torch.nn.Linear(width, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(linear.weight)
        return linear
    first = torch.nn.Linear(width, hidden, dtype=torch.float64)
    second = torch.nn.Linear(hidden, 1, bias=False, dtype=torch.float64)
    first.weight.data = _xavier(hidden, width, generator)
    second.weight.data = _xavier(1, hidden, generator)
    torch.nn.init.zeros_(first.bias)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


def _xavier(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    empty = torch.empty(rows, columns, dtype=torch.float64)
    return torch.nn.init.xavier_uniform_(empty, generator=generator)
