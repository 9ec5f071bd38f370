"""Mirror steps on singular values, of all matrices of one shape together.

Matrices are tensors of shape (..., rows, columns); `heads` splits the rows, so that each head has singular values of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def stacked(tensors: Sequence[Tensor], heads: int) -> Tensor:
    """All heads of all tensors, which have one shape, (tensors * ... * heads, rows / heads, columns)."""
    rows, columns = tensors[0].shape[-2:]
    return torch.cat([tensor.reshape(-1, rows // heads, columns) for tensor in tensors])


def unstacked(matrices: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The heads back in the shapes of their tensors."""
    pieces = matrices.chunk(len(tensors))
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def spectral_power(matrices: Tensor, exponent: float) -> Tensor:
    """The same singular vectors, with singular values raised to a power."""
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    powers: Tensor = (left * values.pow(exponent).unsqueeze(-2)) @ right
    return powers


def unit_directions(matrices: Tensor, q: float) -> Tensor:
    """Each matrix over its Schatten-q norm, a zero one as it is; the largest entry is divided out first."""
    peaks = torch.linalg.vector_norm(matrices, torch.inf, dim=(-2, -1), keepdim=True)
    units = matrices / torch.where(peaks == 0, 1.0, peaks)
    sizes = torch.linalg.vector_norm(torch.linalg.svdvals(units), q, dim=-1)[..., None, None]
    return units / torch.where(sizes == 0, 1.0, sizes)


def spectral_mirror_step(
    weights: Tensor, direction: Tensor, dual: Tensor, image: Tensor, p: float, lr: float
) -> tuple[Tensor, Tensor, Tensor]:
    """U <- U - lr * direction and the W that belongs to it, for matrices (k, rows, columns).

    Where W is not `image`, what the last step made it, U is first derived from W. A matrix that would leave the range of
    the dtype stays as it was.

    Returns
    -------
    tuple of Tensor
        W, U, and which matrices stayed, (k,).
    """
    changed = (weights != image).any(dim=-1).any(dim=-1)
    start = dual
    if changed.any():
        start = dual.clone()
        start[changed] = spectral_power(weights[changed], p - 1)
    moved = start - lr * direction
    stayed = ~torch.isfinite(moved).flatten(1).all(dim=1)
    moved[stayed] = 0.0  # singular values of what is not finite do not exist
    result = spectral_power(moved, 1 / (p - 1))
    stayed |= ~torch.isfinite(result).flatten(1).all(dim=1)
    kept = stayed[:, None, None]
    return torch.where(kept, weights, result), torch.where(kept, start, moved), stayed
