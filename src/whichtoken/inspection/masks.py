"""What a query may look at, in as few numbers as say it: padding, causality and a window instead of a square of flags."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whichtoken.display.shown import Shown

OLD_MASK = -1e4  # what models wrote for "never" before half precision had them ask for the smallest number


@dataclass(frozen=True, eq=False)
class Mask(Shown):
    """Which keys each query may pick, and what is added to their scores.

    `padding` (batch or 1, 1, 1, keys), True where a key may be picked; `causal`: no key after the query; `window`: only
    the last so many keys; `dense` (batch or 1, heads or 1, queries, keys): flags that need the whole square;
    `bias`, of the same form: what is added to the scores.
    """

    padding: Tensor | None = None
    causal: bool = False
    window: int | None = None
    dense: Tensor | None = None
    bias: Tensor | None = None

    def allowed(self, positions: Tensor, keys: int) -> Tensor:
        """Flags (batch, heads or 1, queries, keys) for queries at `positions` (batch, queries) in the order of the keys."""
        places = torch.arange(keys, device=positions.device)
        flags = torch.ones(*positions.shape, keys, dtype=torch.bool, device=positions.device)
        if self.causal:
            flags = places <= positions[..., None]
        if self.window is not None:
            flags = flags & (places > positions[..., None] - self.window)
        flags = flags[:, None]  # (batch, 1, queries, keys)
        for part in (self.padding, self.dense):
            flags = flags if part is None else flags & part
        return flags

    def at(self, rows: Tensor, heads: Tensor | None) -> Mask:
        """The mask of the queries in `rows` (batch, queries) and of some heads."""
        return replace(self, dense=_cut(self.dense, rows, heads), bias=_cut(self.bias, rows, heads))


def _cut(square: Tensor | None, rows: Tensor, heads: Tensor | None) -> Tensor | None:
    if square is None:
        return None
    if heads is not None and square.shape[1] > 1:
        square = square[:, heads]
    if square.shape[2] == 1:
        return square
    square = square.expand(len(rows), -1, -1, -1)
    return square.take_along_dim(rows[:, None, :, None], dim=2)


def compress(mask: Tensor | None, positions: Tensor, window: int | None = None) -> Mask:
    """The short form of a model's mask: (batch, keys) flags, or a square of flags or of numbers to add.

    A square that says no more than padding, causality and a window is not kept.
    """
    if mask is None:
        return Mask()
    if mask.dim() == 2:
        return Mask(padding=mask[:, None, None, :] > 0)
    while mask.dim() < 4:
        mask = mask[:, None] if mask.dim() == 3 else mask[None]
    if mask.dtype == torch.bool:
        return _shortened(mask, positions, window)
    low = torch.finfo(mask.dtype).min / 2
    allowed = (mask > low) & (mask != OLD_MASK)
    short = _shortened(allowed, positions, window)
    return replace(short, bias=mask) if (mask[allowed] != 0).any() else short


def _shortened(allowed: Tensor, positions: Tensor, window: int | None) -> Mask:
    if allowed.shape[1] > 1 and not bool((allowed == allowed[:, :1]).all()):
        return Mask(dense=allowed)
    allowed = allowed[:, :1]
    if allowed.shape[2] == 1 or allowed.stride(2) == 0 or bool((allowed == allowed[:, :, :1]).all()):
        return Mask(padding=allowed[:, :, :1].clone())
    padding = allowed.any(2, keepdim=True)
    for width in (None, window):
        short = Mask(padding=padding, causal=True, window=width)
        flags = short.allowed(positions, allowed.shape[3])
        # a query that may see nothing (padding on the left) is no matter of the mask: its weights mean nothing
        blind = ~allowed.any(3, keepdim=True)
        if bool(((flags == allowed) | blind).all()):
            return short
    return Mask(dense=allowed)
