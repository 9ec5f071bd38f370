"""What one attention layer computed in one forward pass: queries, keys, values, and everything that follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whichtoken.display.shown import Shown
from whichtoken.inspection.masks import Mask

BLOCK = 1 << 22  # scores held at a time, so that long texts need no square of their length


@dataclass(frozen=True, eq=False)
class Reading(Shown):
    """Queries, keys and values of the chosen heads, as the scores were computed from them (after rotary positions).

    The score of key t for query q is `scale * q @ k_t`, capped at `softcap` where the model does so, plus the bias of the
    mask. Heads that share keys (grouped queries) share them here too.
    """

    query: Tensor  # (batch, heads, queries, dim)
    key: Tensor  # (batch, key heads, keys, dim)
    value: Tensor  # (batch, key heads, keys, value dim)
    scale: float
    mask: Mask
    positions: Tensor  # (batch, queries): place of each query among the keys
    heads: Tensor  # (heads,): number of each head in its layer
    group: Tensor  # (heads,): key head of each head
    softcap: float | None = None
    null: Tensor | None = None  # (heads,): score of a learned null token that takes weight and gives nothing
    context: Tensor | None = None  # (batch, heads, queries, value dim): what the model itself made of it
    hidden: Tensor | None = None  # (batch, tokens, width): what the layer was given
    whole: bool = field(default=True)  # every query of the forward pass is here

    def logits(self, precise: bool = False, capped: bool = True) -> Tensor:
        """Scores (batch, heads, queries, keys); keys that may not be picked have -inf."""
        dtype = torch.float64 if precise else _working(self.query.dtype)
        keys = self.key[:, self.group].to(dtype)
        scores = self.query.to(dtype) @ keys.transpose(-1, -2) * self.scale
        if self.softcap is not None and capped:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.mask.bias is not None:
            scores = scores + self.mask.bias.to(dtype)
        return scores.masked_fill(~self.mask.allowed(self.positions, self.key.shape[2]), -torch.inf)

    def weights(self, precise: bool = False) -> Tensor:
        """Attention weights (batch, heads, queries, keys); a query that may see nothing has zeros."""
        scores = self.logits(precise)
        if self.null is None:
            return torch.softmax(scores, -1).nan_to_num(0.0)
        null = self.null.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, null], -1), -1)[..., :-1]

    def output(self) -> Tensor:
        """What the heads make of the weights: (batch, heads, queries, value dim)."""
        weights = self.weights()
        # padding may hold anything; with weight 0 it must add nothing
        return weights @ self.value[:, self.group].to(weights.dtype).nan_to_num(0.0)

    def error(self) -> float:
        """Largest difference between the model's own output and the one recomputed here, relative to the largest output."""
        if self.context is None:
            return float("nan")
        seen = self.seen()
        ours, theirs = self.output(), self.context.to(_working(self.context.dtype))
        difference = (ours - theirs).abs().amax(-1).masked_fill(~seen[:, None], 0)
        return float(difference.max() / theirs.abs().max().clamp_min(torch.finfo(theirs.dtype).tiny))

    def seen(self) -> Tensor:
        """Whether a query is a token of the text: (batch, queries). Padding is not."""
        if self.mask.padding is None:
            return torch.ones_like(self.positions, dtype=torch.bool)
        keys = self.key.shape[2]
        real = self.mask.padding[:, 0, 0].expand(len(self.positions), keys)
        # queries of another sequence than the keys (cross-attention) have no place among them
        return real.take_along_dim(self.positions.clamp(0, keys - 1), 1) | (self.positions >= keys)

    def at(self, rows: Tensor) -> Reading:
        """The reading of some queries: `rows` (batch, queries) counts those that are here."""
        index = rows[:, None, :, None]
        return replace(
            self,
            query=self.query.take_along_dim(index, 2),
            context=None if self.context is None else self.context.take_along_dim(index, 2),
            positions=self.positions.take_along_dim(rows, 1),
            mask=self.mask.at(rows, None),
            whole=False,
        )

    def of_texts(self, texts: Tensor) -> Reading:
        """The reading of some texts of the batch."""

        def cut(part: Tensor | None) -> Tensor | None:
            return part if part is None or len(part) == 1 < len(self.query) else part[texts]

        mask = replace(self.mask, padding=cut(self.mask.padding), dense=cut(self.mask.dense), bias=cut(self.mask.bias))
        return replace(
            self, query=self.query[texts], key=self.key[texts], value=self.value[texts], mask=mask,
            positions=self.positions[texts], context=cut(self.context), hidden=cut(self.hidden),
        )  # fmt: skip

    def blocks(self) -> Iterator[tuple[slice, Reading]]:
        """Runs of queries, so small that the scores of one fit into memory."""
        batch, heads, queries, _ = self.query.shape
        step = max(1, BLOCK // (batch * heads * self.key.shape[2]))
        for start in range(0, queries, step):
            rows = torch.arange(start, min(start + step, queries), device=self.query.device)
            whole = step >= queries
            yield slice(start, start + len(rows)), self if whole else self.at(rows.expand(batch, -1))


def _working(dtype: torch.dtype) -> torch.dtype:
    """Half precision cannot tell a gap of .01 at a score of 10: compute in single precision then."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
