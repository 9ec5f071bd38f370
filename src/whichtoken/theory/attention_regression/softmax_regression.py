"""Softmax self-attention as a regression model, with its exact gradient in memory that grows with n and not with n^2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from whichtoken.checks import check_count

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}  # attention weights at a time: two blocks fit a CPU's cache
FEWEST_ROWS = 64  # of a chunk: fewer make the matrix products slow
FEWEST_TOKENS_TO_SHARE = 500  # among threads

Result = TypeVar("Result")


class LossAndGradient(NamedTuple):
    """The loss F and its gradients."""

    loss: float
    value: Tensor  # (outputs, d)
    key_query: Tensor  # (d, d)


class SoftmaxRegression(torch.nn.Module):
    """f(x) = A h(x), where h(x) averages the context's tokens x_j with weights proportional to exp(x.B x_j).

    The layer of Goel, Soltanolkotabi, Bartlett, arXiv 2603.01514. Trained on n pairs, the training tokens are also the
    context, and the loss is (1/2n) sum_i |f(x_i) - y_i|^2. Nothing depends on the coordinates: with whitened tokens,
    the parameters are the whitened factors P and Q (see `Whitening`).

    Parameters
    ----------
    value : torch.Tensor of shape (outputs, d)
        A.
    key_query : torch.Tensor of shape (d, d)
        B.
    chunk : int, optional
        Queries at a time; by default as many as keep two blocks of attention weights in cache.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.attention_regression import SoftmaxRegression
    >>> layer = SoftmaxRegression(value=torch.eye(2), key_query=torch.zeros(2, 2))
    >>> layer(torch.zeros(1, 2), context=torch.tensor([[1.0, 0.0], [3.0, 2.0]])).tolist()  # B = 0 takes the mean
    [[2.0, 1.0]]
    """

    def __init__(self, value: Tensor, key_query: Tensor, chunk: int | None = None) -> None:
        super().__init__()
        if value.ndim != 2 or key_query.shape != (value.shape[1],) * 2:
            shapes = f"{tuple(value.shape)} and {tuple(key_query.shape)}"
            raise ValueError(f"value and key_query of shapes {shapes} must have shapes (outputs, d) and (d, d)")
        if chunk is not None:
            check_count("chunk", chunk, 1)
        self.value = torch.nn.Parameter(value.detach().clone())
        self.key_query = torch.nn.Parameter(key_query.detach().clone())
        self.chunk = chunk

    @torch.no_grad()
    def forward(self, queries: Tensor, context: Tensor) -> Tensor:
        """Outputs (m, outputs) for queries (m, d) that attend to the context (n, d)."""
        keys = self._check_tokens(context).T.contiguous()
        means = [means for _, _, means in _attend(self._check_tokens(queries), keys, self.key_query, self.chunk)]
        return torch.cat(means) @ self.value.T

    def loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Training loss of tokens (n, d) and labels (n, outputs), for any torch optimizer.

        `backward` costs nothing more: the gradient comes with the loss.
        """
        return _ExactLoss.apply(self.value, self.key_query, self._check_tokens(tokens), labels, self.chunk)  # type: ignore

    @torch.no_grad()
    def loss_and_gradient(self, tokens: Tensor, labels: Tensor) -> LossAndGradient:
        """Training loss and exact gradients, without autograd."""
        return regression_loss_and_gradient(self.value, self.key_query, self._check_tokens(tokens), labels, self.chunk)

    def _check_tokens(self, tokens: Tensor) -> Tensor:
        dim, dtype = len(self.key_query), self.key_query.dtype
        if tokens.ndim != 2 or tokens.shape[1] != dim or len(tokens) == 0:
            raise ValueError(f"tokens of shape {tuple(tokens.shape)} must have shape (n, {dim}) with n of at least 1")
        if tokens.dtype != dtype:
            raise ValueError(f"tokens of {tokens.dtype} must be of {dtype}, as the parameters are")
        return tokens


def regression_loss_and_gradient(
    value: Tensor, key_query: Tensor, tokens: Tensor, labels: Tensor, chunk: int | None = None
) -> LossAndGradient:
    """F = (1/2n) sum_i |A h_i - y_i|^2 and its gradients.

    With residuals e_i and g_i = A^T e_i, dF/dA = (1/n) sum_i e_i h_i^T and dF/dB = (1/n) sum_i x_i (C_i g_i)^T, where C_i is
    the covariance of the tokens under the weights of query i: C_i g = sum_j w_ij x_j (x_j.g) - h_i (h_i.g).
    """
    if labels.shape != (len(tokens), len(value)):
        raise ValueError(f"labels of shape {tuple(labels.shape)} must have shape {(len(tokens), len(value))}")
    keys = tokens.T.contiguous()  # (d, n)
    blocks = _map_threads(lambda rows: _sums(value, key_query, tokens[rows], labels[rows], keys, chunk), tokens)
    loss, value_gradient, key_query_gradient = (
        torch.stack(parts).sum(dim=0) / len(tokens) for parts in zip(*blocks, strict=True)
    )
    return LossAndGradient(loss.item() / 2, value_gradient, key_query_gradient)


@torch.no_grad()
def _sums(
    value: Tensor, key_query: Tensor, queries: Tensor, labels: Tensor, keys: Tensor, chunk: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared residuals and both gradients, summed over some queries."""
    loss = torch.zeros((), dtype=keys.dtype, device=keys.device)
    value_gradient, key_query_gradient = torch.zeros_like(value), torch.zeros_like(key_query)
    pulls = None
    for rows, weights, means in _attend(queries, keys, key_query, chunk):
        residuals = means @ value.T - labels[rows]  # (c, outputs)
        directions = residuals @ value  # (c, d): g_i
        pulls = torch.empty_like(weights.exponentials) if pulls is None else pulls[: len(means)]
        torch.mm(directions / weights.totals, keys, out=pulls).mul_(weights.exponentials)  # (c, n): w_ij x_j.g_i
        moves = (keys @ pulls.T).T - means * (means * directions).sum(dim=1, keepdim=True)  # (c, d): C_i g_i
        loss += residuals.square().sum()
        value_gradient += residuals.T @ means
        key_query_gradient += queries[rows].T @ moves
    return loss, value_gradient, key_query_gradient


def _map_threads(function: Callable[[slice], Result], tokens: Tensor) -> list[Result]:
    """The function on one contiguous block of rows for each of torch's threads.

    Threads inside every small operation meet after each of them, some hundred times in one gradient; where other programs
    keep a core busy, that takes several times as long as a single thread. These meet once.
    """
    threads = torch.get_num_threads() if tokens.device.type == "cpu" and len(tokens) >= FEWEST_TOKENS_TO_SHARE else 1
    blocks = [slice(len(tokens) * index // threads, len(tokens) * (index + 1) // threads) for index in range(threads)]
    if threads == 1:
        return [function(blocks[0])]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, blocks))
    finally:
        torch.set_num_threads(threads)  # this thread never had another number, but those that begin later would have 1


class _Weights(NamedTuple):
    exponentials: Tensor  # (c, n), rows not yet divided by their totals
    totals: Tensor  # (c, 1)


def _attend(
    queries: Tensor, keys: Tensor, key_query: Tensor, chunk: int | None
) -> Iterator[tuple[slice, _Weights, Tensor]]:
    """Chunks of queries: their slice, their weights (overwritten by the next chunk) and attention means (c, d).

    The keys are the context's tokens as columns (d, n): keys @ weights.T is twice as fast as weights @ context.
    """
    n = keys.shape[1]
    size = chunk or max(FEWEST_ROWS, CHUNK_ELEMENTS.get(keys.device.type, CHUNK_ELEMENTS["cuda"]) // n)
    buffer = torch.empty(min(size, len(queries)), n, dtype=keys.dtype, device=keys.device)
    all_tilts = queries @ key_query  # (m, d)
    # logits that cannot reach half the largest exponent need no shift by their maximum, which takes two more passes
    reach = all_tilts.norm(dim=1).max() * keys.norm(dim=0).max()
    harmless = bool(reach < math.log(torch.finfo(keys.dtype).max) / 2)
    for start in range(0, len(queries), size):
        rows = slice(start, start + size)
        logits = torch.mm(all_tilts[rows], keys, out=buffer[: len(all_tilts[rows])])
        exponentials = (logits if harmless else logits.sub_(logits.amax(dim=1, keepdim=True))).exp_()
        totals = exponentials.sum(dim=1, keepdim=True)
        yield rows, _Weights(exponentials, totals), (keys @ exponentials.T).T / totals


class _ExactLoss(torch.autograd.Function):
    """The loss as a node of autograd that stores its two small gradients instead of n^2 weights."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, key_query: Tensor, tokens: Tensor, labels: Tensor, chunk: int | None
    ) -> Tensor:
        found = regression_loss_and_gradient(value, key_query, tokens, labels, chunk)
        ctx.save_for_backward(found.value, found.key_query)
        return torch.tensor(found.loss, dtype=value.dtype, device=value.device)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        value_gradient, key_query_gradient = ctx.saved_tensors
        return outer[0] * value_gradient, outer[0] * key_query_gradient, None, None, None
