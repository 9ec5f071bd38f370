"""The l_p mirror step in torch operations on whole lists of tensors: for devices and layouts that the kernels do not know."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def foreach_mirror_step(
    weights: list[Tensor], directions: list[Tensor], duals: list[Tensor], p: float, lr: float
) -> list[tuple[int, int]]:
    """What `mirror_kernels.mirror_step` does, in torch operations on whole lists."""
    images = foreach_signed_power(duals, 1 / (p - 1))
    starts = duals
    if not torch.stack([(image == weight).all() for image, weight in zip(images, weights, strict=True)]).all():
        starts = []
        for dual, new, image, weight in zip(duals, foreach_signed_power(weights, p - 1), images, weights, strict=True):
            tiny = torch.finfo(image.dtype).tiny
            underflow = (weight.abs() < tiny) & (image.abs() < tiny)
            starts.append(torch.where((image == weight) | underflow, dual, new))
    moved = list(torch._foreach_add(starts, directions, alpha=-lr))
    images = foreach_signed_power(moved, 1 / (p - 1))
    counts = [(0, 0)] * len(weights)
    if not torch.stack([image.isfinite().all() for image in images]).all():
        for index, (image, weight, given) in enumerate(zip(images, weights, directions, strict=True)):
            lost, given_finite = weight.isfinite() & ~image.isfinite(), given.isfinite()
            stay = lost & given_finite
            counts[index] = int(stay.sum()), int((lost & ~given_finite).sum())
            images[index] = torch.where(stay, weight, image)
            moved[index] = torch.where(stay, duals[index], moved[index])
    torch._foreach_copy_(duals, moved)
    torch._foreach_copy_(weights, images)
    return counts


def foreach_signed_power(values: list[Tensor] | tuple[Tensor, ...], exponent: float) -> list[Tensor]:
    """sign(v) |v|^exponent of each tensor; multiplications and a root where they suffice."""
    powers, factors = list(torch._foreach_sign(values)), list(torch._foreach_abs(values))
    doubled = round(2 * exponent)
    if math.isclose(2 * exponent, doubled, rel_tol=1e-12):
        if doubled % 2 == 1:
            torch._foreach_mul_(powers, torch._foreach_sqrt(factors))
        whole = doubled // 2
        while whole > 0:
            if whole % 2 == 1:
                torch._foreach_mul_(powers, factors)
            whole //= 2
            if whole > 0:
                torch._foreach_mul_(factors, factors)
    else:
        torch._foreach_pow_(factors, exponent)
        torch._foreach_mul_(powers, factors)
    return powers
