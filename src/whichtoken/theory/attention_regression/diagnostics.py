"""Where an attention layer stands in the theory of attention regression: its logits, its balance, its context's error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from whichtoken.checks import check_count
from whichtoken.display.shown import Shown
from whichtoken.theory.attention_regression import finite_context_error, imbalance
from whichtoken.theory.attention_regression.predictions import LOGIT_BOUND
from whichtoken.theory.attention_regression.whitening import Whitening


def unfuse(output: Tensor, stacked: Tensor) -> list[Tensor]:
    """Views W_O, W_V, W_K, W_Q of `out_proj.weight` (out, r) and `in_proj_weight` (3 r, d) of an `nn.MultiheadAttention`."""
    query, key, value = stacked.chunk(3)
    return [output, value, key, query]


def fuse(factors: Sequence[Tensor]) -> list[Tensor]:
    """Back from W_O, W_V, W_K, W_Q to output and stacked input projections."""
    output, value, key, query = factors
    return [output, torch.cat([query, key, value])]


def split_heads(factors: Sequence[Tensor], heads: int) -> list[Tensor]:
    """W_O (out, h r) as (h, out, r), the factors behind it (h r, d) as (h, r, d)."""
    output, *inputs = factors
    return [
        output.reshape(len(output), heads, -1).movedim(1, 0),
        *(factor.reshape(heads, -1, factor.shape[1]) for factor in inputs),
    ]


def join_heads(factors: Sequence[Tensor]) -> list[Tensor]:
    """Back from factors with a leading axis of heads."""
    output, *inputs = factors
    return [output.movedim(0, 1).flatten(1), *(factor.flatten(0, 1) for factor in inputs)]


Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadDiagnostics(Shown):
    """One head in whitened coordinates: P = W_O W_V S^(1/2) and Q = S^(1/2) W_Q^T W_K S^(1/2), times the logits' factor.

    Attributes
    ----------
    P : array of shape (out, d)
        Whitened value matrix.
    Q : array of shape (d, d)
        Whitened key-query matrix.
    context : int
        Number of tokens n that a query attends to.
    context_error : float
        Predicted E |P h - P Q^T z|^2 on n Gaussian tokens; infinite where logit_peak >= 0.707.
    coverage : float
        Share of that error which a context of this length really shows.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import attention_diagnostics
    >>> [head] = attention_diagnostics((np.eye(8), 0.1 * np.eye(8)), context=400)
    >>> round(head.logit_norm, 4), round(head.logit_peak, 4), head.imbalance < 1e-12
    (0.2828, 0.1, True)
    """

    P: Array
    Q: Array
    context: int
    context_error: float
    coverage: float

    @property
    def logit_norm(self) -> float:
        """|Q|_F, the root mean square of the logits of two independent tokens."""
        return float(np.linalg.norm(self.Q))

    @property
    def logit_peak(self) -> float:
        """|Q|_op; from 0.707 on a longer context no longer helps as 1/n, and single tokens begin to win."""
        return float(np.linalg.norm(self.Q, 2))

    @property
    def imbalance(self) -> float:
        """Relative distance of P^T P and Q^T Q from proportional: 0 if balanced; nan if the head is zero."""
        return imbalance(self.P, self.Q) if self.P.any() and self.Q.any() else math.nan

    @property
    def relative_error(self) -> float:
        """`context_error` over |P Q^T|_F^2, the mean square of the map that an infinite context computes."""
        size = float(np.sum((self.P @ self.Q.T) ** 2))
        return float(self.context_error) / size if size > 0.0 else math.nan


def attention_diagnostics(
    attention: nn.MultiheadAttention | Sequence[Any],
    context: int,
    covariance: ArrayLike | Tensor | None = None,
    *,
    heads: int = 1,
    logit_factor: float = 1.0,
    centered: bool = False,
) -> list[HeadDiagnostics]:
    """Diagnose every head of a self-attention layer.

    The theory is that of Gaussian tokens (Goel, Soltanolkotabi, Bartlett, arXiv 2603.01514); for others the logit norms and
    the balance keep their meaning and the error is an order of magnitude. Biases and masks are left out.

    Parameters
    ----------
    attention : nn.MultiheadAttention, or two or four matrices
        (A, B), value (out, d) and key-query (d, d); or (W_O, W_V, W_K, W_Q) as `torch.nn.Linear` keeps them, (out, r),
        (r, d), (s, d), (s, d). Arrays or tensors.
    context : int
        Number of tokens n that a query attends to.
    covariance : array_like or Tensor, optional
        S (d, d) of the tokens that enter the layer, the identity if None.
    heads, logit_factor : int and float
        For four matrices: W_O is split by columns and the others by rows into this many heads, and q.k is multiplied by
        this factor. A module knows its own.
    centered : bool, default=False
        Tokens have mean zero in every context.

    Returns
    -------
    list of HeadDiagnostics
        One per head.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.theory.attention_regression import attention_diagnostics
    >>> layer = torch.nn.MultiheadAttention(16, num_heads=4)
    >>> len(attention_diagnostics(layer, context=512))
    4
    """
    check_count("context", context, 2)
    if isinstance(attention, nn.MultiheadAttention):
        pairs = _four_factors(_module_factors(attention), attention.num_heads, attention.head_dim**-0.5)
    elif isinstance(attention, nn.Module):
        raise ValueError(f"attention of type {type(attention).__name__} must be an nn.MultiheadAttention or matrices")
    else:
        matrices = [_matrix(matrix) for matrix in attention]
        if len(matrices) not in (2, 4):
            raise ValueError(f"attention of {len(matrices)} matrices must be (A, B) or (W_O, W_V, W_K, W_Q)")
        if len(matrices) == 2 and (heads != 1 or logit_factor != 1.0):
            raise ValueError(f"heads={heads} and logit_factor={logit_factor} belong to four matrices, not to (A, B)")
        pairs = [(matrices[0], matrices[1])] if len(matrices) == 2 else _four_factors(matrices, heads, logit_factor)
    return [_diagnose(value, key_query, context, covariance, centered) for value, key_query in pairs]


def _module_factors(attention: nn.MultiheadAttention) -> list[Tensor]:
    stacked: Tensor | None = attention.in_proj_weight
    if stacked is not None:
        return unfuse(attention.out_proj.weight, stacked)
    if not attention.kdim == attention.vdim == attention.embed_dim:
        raise ValueError(
            f"kdim={attention.kdim} and vdim={attention.vdim} differ from embed_dim={attention.embed_dim}: queries, keys and "
            "values must be the same tokens"
        )
    return [attention.out_proj.weight, attention.v_proj_weight, attention.k_proj_weight, attention.q_proj_weight]


def _matrix(values: Any) -> Tensor:
    matrix = torch.as_tensor(values).detach()
    if matrix.ndim != 2 or not matrix.is_floating_point() or not matrix.isfinite().all():
        raise ValueError(f"factor of shape {tuple(matrix.shape)} and {matrix.dtype} must be a finite real matrix")
    return matrix.double().cpu()


def _four_factors(factors: Sequence[Tensor], heads: int, logit_factor: float) -> list[tuple[Tensor, Tensor]]:
    """A = W_O W_V and B = logit_factor W_Q^T W_K of every head."""
    output, value, key, query = (_matrix(factor) for factor in factors)
    rows, dim = value.shape
    if output.shape[1] != rows or key.shape != query.shape or key.shape[1] != dim:
        shapes = ", ".join(str(tuple(factor.shape)) for factor in factors)
        raise ValueError(f"factors of shapes {shapes} do not chain, must be (out, r), (r, d), (s, d), (s, d)")
    if heads < 1 or rows % heads or len(key) % heads:
        raise ValueError(f"heads={heads} must divide the {rows} rows of W_V and the {len(key)} rows of W_K and W_Q")
    split = zip(*split_heads([output, value, key, query], heads), strict=True)
    return [(W_O @ W_V, logit_factor * W_Q.T @ W_K) for W_O, W_V, W_K, W_Q in split]


def _diagnose(
    value: Tensor, key_query: Tensor, context: int, covariance: ArrayLike | Tensor | None, centered: bool
) -> HeadDiagnostics:
    if key_query.shape != (value.shape[1],) * 2:
        shapes = f"{tuple(value.shape)} and {tuple(key_query.shape)}"
        raise ValueError(f"A and B of shapes {shapes} must have shapes (out, d) and (d, d)")
    P, Q = value.numpy(), key_query.numpy()
    if covariance is not None:
        moment = covariance.detach().double().cpu().numpy() if isinstance(covariance, Tensor) else covariance
        whitening = Whitening.from_covariance(moment)
        if len(whitening.mean) != len(Q):
            raise ValueError(f"covariance of {len(whitening.mean)} coordinates must have {len(Q)}, as the tokens")
        P, Q = whitening.to_whitened(P, Q)
    if np.linalg.norm(Q, 2) >= LOGIT_BOUND:
        return HeadDiagnostics(P, Q, context, math.inf, 0.0)
    error = finite_context_error(P, Q, context, centered)
    return HeadDiagnostics(P, Q, context, float(error), error.coverage)
