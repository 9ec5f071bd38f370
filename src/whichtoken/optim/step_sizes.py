"""Step sizes of mirror descent that move typical weights as far as gradient descent would."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from whichtoken.errors import UsageError


def matched_lr(weights: Tensor | Iterable[Tensor], lr: float, p: float) -> float:
    """The step size at which `MirrorDescent` with exponent p moves a typical weight as far as p = 2 does with `lr`.

    A dual step of size eta g moves a weight w by eta g |w|^(2-p) / (p-1), to first order; at the root mean square s of the
    weights this equals the step lr g of gradient descent for eta = lr (p-1) s^(p-2). So p can be changed alone, and runs
    with different p can be compared.

    Parameters
    ----------
    weights : tensor or tensors
        What the optimiser will train, at its start.
    lr : float
        Step size that suits plain gradient descent.
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from whichtoken.optim import matched_lr
    >>> weights = torch.full((4, 4), 0.1)
    >>> matched_lr(weights, lr=0.3, p=2.0)
    0.3
    >>> round(matched_lr(weights, lr=0.3, p=1.1), 4)
    0.2383
    """
    if not 1 < p < math.inf:
        raise UsageError(f"p={p} must be a finite number above 1")
    if not 0 < lr < math.inf:
        raise UsageError(f"lr={lr} must be a positive number")
    tensors = [weights] if isinstance(weights, Tensor) else list(weights)
    count = sum(tensor.numel() for tensor in tensors)
    if not count:
        raise UsageError("weights must hold at least one number")
    square = sum(float(torch.sum(tensor.detach().double() ** 2)) for tensor in tensors) / count
    if not 0 < square < math.inf:
        raise UsageError("weights must be finite and not all zero: their typical size sets the step")
    return lr if p == 2 else lr * (p - 1) * math.sqrt(square) ** (p - 2)
