"""One softmax attention head with a linear readout, accurate however sure of its token it has become."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from whichtoken.checks import check_choice, check_count

LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # l(m) and log |l'(m)|
    "logistic": (lambda margin: -logsigmoid(margin), lambda margin: logsigmoid(-margin)),
    "exponential": (lambda margin: torch.exp(-margin), lambda margin: -margin),
    "linear": (lambda margin: -margin, torch.zeros_like),
}


class LogGradient(NamedTuple):
    """A gradient exp(log_scale) * direction whose size may be far below the smallest float."""

    log_scale: Tensor  # scalar, -inf if the gradient is zero
    direction: Tensor  # (d, d), largest magnitude 1


class KeyQueryAttention(torch.nn.Module):
    """f(X, z) = v . X^T softmax(X W z): query z picks among the tokens X, decoder v reads what was picked.

    The model of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581. Everything is written in differences to the winning
    token: that changes no value, but the textbook form leaves only rounding noise in dL/dW once one token wins.

    Parameters
    ----------
    dim : int
        Width d of tokens and queries.
    loss : str, default="logistic"
        `logistic`, `exponential` or `linear`: log(1 + exp(-m)), exp(-m) or -m of the label margin m = y f(X, z).
    dtype, device : torch.dtype and torch.device, optional
        Type and place of the parameters.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.mirror_descent import KeyQueryAttention
    >>> head = KeyQueryAttention(dim=3)
    >>> tokens, queries, labels = torch.randn(4, 5, 3), torch.randn(4, 3), torch.tensor([1, -1, 1, -1])
    >>> head(tokens, queries).shape, round(head.loss(tokens, queries, labels).item(), 4)
    (torch.Size([4]), 0.6931)
    """

    def __init__(
        self,
        dim: int,
        *,
        loss: str = "logistic",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_count("dim", dim, 1)
        check_choice("loss", loss, LOSSES)
        self.loss_name = loss  # the functions themselves could not be pickled
        self.weight = torch.nn.Parameter(torch.zeros(dim, dim, dtype=dtype, device=device))
        self.decoder = torch.nn.Parameter(torch.zeros(dim, dtype=dtype, device=device))

    def forward(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Outputs (n,) for tokens (n, T, d) and queries (n, d)."""
        winners, differences, scores = self.relative_to_winner(tokens, queries)
        attention = torch.softmax(scores, dim=-1)  # (n, T)
        return winners @ self.decoder + torch.sum(attention * (differences @ self.decoder), dim=-1)

    def loss(self, tokens: Tensor, queries: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the sequences; labels (n,) are -1 or +1."""
        return LOSSES[self.loss_name][0](labels * self(tokens, queries)).mean()

    def relative_to_winner(self, tokens: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Winning tokens (n, d), tokens minus their winner (n, T, d), attention scores minus the winner's (n, T)."""
        keys = queries @ self.weight.T  # (n, d)
        best = torch.argmax(torch.einsum("ntd,nd->nt", tokens, keys), dim=1)  # (n,)
        winners = tokens[torch.arange(len(tokens), device=tokens.device), best]  # (n, d)
        # the winner's row is exactly zero: whatever error the softmax makes in its gradient is multiplied by zero
        differences = tokens - winners[:, None, :]  # (n, T, d)
        return winners, differences, torch.einsum("ntd,nd->nt", differences, keys)

    @torch.no_grad()
    def log_gradient(self, tokens: Tensor, queries: Tensor, labels: Tensor) -> LogGradient:
        """dL/dW in the log domain: the direction is right even where `loss(...).backward()` underflows to zero."""
        winners, differences, scores = self.relative_to_winner(tokens, queries)
        log_attention = torch.log_softmax(scores, dim=-1)  # (n, T)
        advantage = labels[:, None] * (differences @ self.decoder)  # (n, T), token score less the winner's
        excess = torch.sum(log_attention.exp() * advantage, dim=-1)  # (n,), label margin less the winner's token score
        margins = labels * (winners @ self.decoder) + excess  # (n,)
        pulls = advantage - excess[:, None]  # (n, T), token score less label margin
        log_pulls = LOSSES[self.loss_name][1](margins)[:, None] + log_attention + pulls.abs().log()  # (n, T)
        log_pulls = log_pulls.masked_fill(differences.abs().amax(dim=-1) == 0.0, -torch.inf)
        peak = log_pulls.max()
        if peak == -torch.inf:
            return LogGradient(peak, torch.zeros_like(self.weight))
        moves = torch.einsum("nt,ntd->nd", pulls.sign() * torch.exp(log_pulls - peak), differences)  # (n, d)
        gradient = -(moves.T @ queries) / len(tokens)  # (d, d), l' is negative
        size = gradient.abs().max()
        return LogGradient(peak + size.log(), gradient / size)
