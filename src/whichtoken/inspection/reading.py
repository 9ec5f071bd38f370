"""What one attention layer computed in one forward pass: queries, keys, values, and the pick of each query.

A pick says which token, ahead of which, by how much, and how far the query must move before it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.adapters import Heads
from whichtoken.inspection.words import whole_words, word_offsets

# what older models add to the scores of masked keys
OLD_MASK = -1e4
BLOCK = 1 << 22  # scores held at a time, so that long texts need no square of their length


@dataclass(frozen=True, eq=False)
class Mask(Shown):
    """Which keys each query may pick, and what is added to their scores.

    `padding` (batch or 1, 1, 1, keys), True where a key may be picked; `causal`: no key after the query; `window`: only
    this many of the latest keys; `dense` (batch or 1, heads or 1, queries, keys): flags that need the whole square;
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

        def cut(square: Tensor | None) -> Tensor | None:
            if square is None:
                return None
            if heads is not None and square.shape[1] > 1:
                square = square[:, heads]
            if square.shape[2] == 1:
                return square
            return square.expand(len(rows), -1, -1, -1).take_along_dim(rows[:, None, :, None], dim=2)

        return replace(self, dense=cut(self.dense), bias=cut(self.bias))


def compress(mask: Tensor | None, positions: Tensor, window: int | None = None) -> Mask:
    """The short form of a model's mask: (batch, keys) flags, or a square of flags or of numbers to add.

    A square that contains no more than padding, causality and a window is replaced by these.
    """
    if mask is None:
        return Mask()
    if mask.dim() == 2:
        return Mask(padding=mask[:, None, None, :] > 0)
    while mask.dim() < 4:
        mask = mask[:, None] if mask.dim() == 3 else mask[None]
    if mask.dtype == torch.bool:
        return _short_form(mask, positions, window)
    low = torch.finfo(mask.dtype).min / 2
    allowed = (mask > low) & (mask != OLD_MASK)
    short = _short_form(allowed, positions, window)
    return replace(short, bias=mask) if (mask[allowed] != 0).any() else short


def _short_form(allowed: Tensor, positions: Tensor, window: int | None) -> Mask:
    if allowed.shape[1] > 1 and not bool((allowed == allowed[:, :1]).all()):
        return Mask(dense=allowed)
    allowed = allowed[:, :1]
    if allowed.shape[2] == 1 or allowed.stride(2) == 0 or bool((allowed == allowed[:, :, :1]).all()):
        return Mask(padding=allowed[:, :, :1].clone())
    padding = allowed.any(2, keepdim=True)
    for width in (None, window):
        short = Mask(padding=padding, causal=True, window=width)
        flags = short.allowed(positions, allowed.shape[3])
        # the weights of a query that may see nothing (padding on the left) mean nothing
        blind = ~allowed.any(3, keepdim=True)
        if bool(((flags == allowed) | blind).all()):
            return short
    return Mask(dense=allowed)


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
    null: Tensor | None = None  # (heads,): score of a learned null token that takes weight and has value 0
    context: Tensor | None = None  # (batch, heads, queries, value dim): the model's own output of the heads
    hidden: Tensor | None = None  # (batch, tokens, width): input of the layer
    whole: bool = True  # every query of the forward pass is here
    project: Callable[[Tensor], Tensor] | None = None  # `context` is (batch, queries, width), after this projection
    cross: bool = False  # the keys are those of another sequence
    tokens: Tensor | None = None  # ids of the keys, (batch, keys), where they are known

    def logits(self, precise: bool = False, capped: bool = True) -> Tensor:
        """Scores (batch, heads, queries, keys); keys that may not be picked have -inf."""
        # half precision cannot represent a gap of .01 at a score of 10
        dtype = torch.float64 if precise else torch.promote_types(self.query.dtype, torch.float32)
        keys = self.key[:, self.group].to(dtype)
        scores = self.query.to(dtype) @ keys.transpose(-1, -2) * self.scale
        if self.softcap is not None and capped:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.mask.bias is not None:
            scores = scores + self.mask.bias.to(dtype)
        return scores.masked_fill_(~self.mask.allowed(self.positions, self.key.shape[2]), -torch.inf)

    def weights(self, precise: bool = False, scores: Tensor | None = None) -> Tensor:
        """Attention weights (batch, heads, queries, keys); a query that may see nothing has zeros.

        `scores`: those of `logits`, where they are known.
        """
        scores = self.logits(precise) if scores is None else scores
        if self.null is None:
            return torch.softmax(scores, -1).nan_to_num_(0.0)
        null = self.null.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, null], -1), -1)[..., :-1]

    def output(self) -> Tensor:
        """Values weighted by attention: (batch, heads, queries, value dim)."""
        weights = self.weights()
        # padding may hold NaN; with weight 0 it must add nothing
        return weights @ self.value[:, self.group].to(weights.dtype).nan_to_num(0.0)

    def error(self) -> float:
        """Largest difference between the model's own output and the one recomputed here, relative to the largest output.

        Not a number where the module's own output is not known.
        """
        if self.context is None:
            return float("nan")
        ours, theirs = self.output(), self.context.to(torch.promote_types(self.context.dtype, torch.float32))
        if self.project is not None:
            ours = self.project(ours.transpose(1, 2).flatten(2).to(self.context.dtype))[:, None]
            theirs = theirs[:, None]
        blind = ~self.mask.allowed(self.positions, self.key.shape[2]).any(3)  # its weights mean nothing
        # the values of padding may be NaN, and then make the model's own output NaN
        skipped = blind | ~self.seen()[:, None] | ~theirs.isfinite().all(-1)
        if skipped.all():
            return float("nan")
        off, size = (part.abs().amax(-1)[~skipped].max() for part in (ours.to(theirs.dtype) - theirs, theirs))
        return float(off / size.clamp_min(torch.finfo(theirs.dtype).tiny))

    def seen(self) -> Tensor:
        """Whether a query is a token of the text: (batch, queries). Padding is not: it may not pick itself."""
        if self.cross or (self.mask.padding is None and self.mask.dense is None):
            return torch.ones_like(self.positions, dtype=torch.bool)
        keys = self.key.shape[2]
        allowed = self.mask.allowed(self.positions, keys).any(1)  # (batch, queries, keys)
        own = self.positions.clamp(0, keys - 1)[..., None]
        return allowed.expand(len(self.positions), -1, -1).take_along_dim(own, 2)[..., 0]

    def at(self, rows: Tensor) -> Reading:
        """The reading of some queries: `rows` (batch, queries) counts those that are here."""
        index, context = rows[:, None, :, None], self.context
        if context is not None:  # without heads where it is projected
            context = context.take_along_dim(*((index, 2) if self.project is None else (rows[..., None], 1)))
        return replace(
            self, query=self.query.take_along_dim(index, 2), context=context,
            positions=self.positions.take_along_dim(rows, 1), mask=self.mask.at(rows, None), whole=False,
        )  # fmt: skip

    def of_heads(self, heads: Tensor) -> Reading:
        """The reading of some heads."""
        kept, group = torch.unique(self.group[heads], return_inverse=True)
        rows = torch.arange(self.positions.shape[1], device=heads.device).expand(len(self.positions), -1)
        return replace(
            self, query=self.query[:, heads], key=self.key[:, kept], value=self.value[:, kept], group=group, heads=heads,
            mask=self.mask.at(rows, heads), null=None if self.null is None else self.null[heads], project=None,
            # of some heads alone the projected output is not known
            context=None if self.context is None or self.project is not None else self.context[:, heads],
        )  # fmt: skip

    def of_texts(self, texts: Tensor | slice) -> Reading:
        """The reading of some texts of the batch."""

        def cut(part: Tensor | None) -> Tensor | None:
            return part if part is None or len(part) == 1 < len(self.query) else part[texts]

        mask = replace(self.mask, padding=cut(self.mask.padding), dense=cut(self.mask.dense), bias=cut(self.mask.bias))
        return replace(
            self, query=self.query[texts], key=self.key[texts], value=self.value[texts], mask=mask,
            positions=self.positions[texts], context=cut(self.context), hidden=cut(self.hidden), tokens=cut(self.tokens),
        )  # fmt: skip

    def received(self) -> Tensor:
        """Mean attention that each key gets from the queries that may see it: (batch, heads, keys)."""
        batch, heads, _, _ = self.query.shape
        mass = torch.zeros(batch, heads, self.key.shape[2], dtype=torch.float32, device=self.query.device)
        askers = torch.zeros_like(mass)
        for _, block in self.blocks():
            scores, real = block.logits(), block.seen()[:, None, :, None]
            mass += (block.weights(scores=scores).float() * real).sum(2)
            askers += ((scores > -torch.inf) & real).sum(2)
        return mass / askers.clamp_min(1)

    def blocks(self) -> Iterator[tuple[slice, Reading]]:
        """Consecutive queries, so few at a time that their scores fit into memory."""
        batch, heads, queries, _ = self.query.shape
        step = max(1, BLOCK // (batch * heads * self.key.shape[2]))
        if step >= queries:
            yield slice(0, queries), self
            return
        for start in range(0, queries, step):
            rows = torch.arange(start, min(start + step, queries), device=self.query.device)
            yield slice(start, start + len(rows)), self.at(rows.expand(batch, -1))


def read(found: Heads, mask: Mask | None = None, hidden: Tensor | None = None) -> Reading:
    """What one call of an attention module computed; `mask` where its short form is known already."""
    query, key, value = (part.detach() for part in (found.query, found.key, found.value))
    if query.is_nested:
        raise UsageError("nested tensors cannot be inspected; give padded batches and their mask")
    count = query.shape[1]
    positions = query_positions(found)
    heads = torch.arange(count, device=query.device)
    context = None if found.context is None else found.context.detach()
    return Reading(
        query, key, value, query.shape[-1] ** -0.5 if found.scale is None else float(found.scale),
        full_mask(found, positions) if mask is None else mask, positions, heads, group=heads * key.shape[1] // count,
        softcap=found.softcap, null=None if found.null is None else found.null.detach(), hidden=hidden, project=found.project,
        cross=found.cross, context=context if context is None or found.project is not None else context.transpose(1, 2),
    )  # fmt: skip


def query_positions(found: Heads) -> Tensor:
    """Where the queries stand among the keys, (batch, queries): with a cache they are the last."""
    batch, _, queries, _ = found.query.shape
    offset = max(found.key.shape[2] - queries, 0)
    return torch.arange(offset, offset + queries, device=found.query.device).expand(batch, -1)


def full_mask(found: Heads, positions: Tensor) -> Mask:
    """Everything that a module does to its scores, in short form."""
    mask = compress(found.mask, positions, found.window_in_mask)
    mask = replace(mask, causal=mask.causal or found.causal, window=mask.window or found.window)
    if found.bias is None:
        return mask
    return replace(mask, bias=found.bias.detach() if mask.bias is None else mask.bias + found.bias.detach())


@dataclass(frozen=True, eq=False)
class Picks(Shown):
    """What each head picked: the answer of `AttentionProbe.picks`, in tensors of shape (batch, heads, queries).

    Reach for `gap` and `radius` to see how confident a pick is: the radius is a certificate, no smaller change of the query
    changes the pick. `token` and `runner_up` are positions among the keys; the first of equals is the pick. `runner_up` is -1
    and the gap infinite where there was only one token to pick; `token` is -1 where there was none.

    Attributes
    ----------
    token, runner_up : Tensor of shape (batch, heads, queries)
        Positions among the keys.
    gap : Tensor
        Score of the pick minus score of the runner-up.
    weight : Tensor
        Attention on the pick.
    entropy : Tensor
        Entropy of the weights, in nats.
    largest_logit : Tensor
        Largest score.
    special_mass : Tensor or None
        Attention on special tokens, where they are known.
    positions : Tensor of shape (batch, queries)
        Where the queries are.
    heads : Tensor of shape (heads,)
        Numbers of the heads.
    valid : Tensor of shape (batch, queries)
        Whether the query is a token, not padding.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.inspection import AttentionProbe
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
    >>> with AttentionProbe(model) as probe:
    ...     _ = model(torch.randn(3, 5, 8))
    >>> picks = probe.picks(layer=0)
    >>> picks.gap.shape, bool((picks.effective_tokens <= 5 + 1e-4).all())
    (torch.Size([3, 2, 5]), True)
    """

    token: Tensor
    runner_up: Tensor
    gap: Tensor
    weight: Tensor
    entropy: Tensor
    largest_logit: Tensor
    special_mass: Tensor | None
    positions: Tensor
    heads: Tensor
    valid: Tensor
    _reading: Reading = field(repr=False)
    _alike: Tensor | None = field(default=None, repr=False)

    @property
    def effective_tokens(self) -> Tensor:
        """How many tokens the head looks at: the exponential of the entropy."""
        return self.entropy.exp()

    def to_frame(self) -> Any:
        """A row per text, head and query that is a token."""
        import pandas as pd

        texts, heads, rows = torch.where(self.valid[:, None].expand_as(self.token))
        names = ("token", "runner_up", "gap", "weight", "entropy", "largest_logit")
        columns = {name: getattr(self, name)[texts, heads, rows].cpu().numpy() for name in names}
        places = self.positions[texts, rows].cpu().numpy()
        return pd.DataFrame(
            {"text": texts.cpu().numpy(), "head": self.heads[heads].cpu().numpy(), "query": places} | columns
        )

    def words(self, tokenizer: Any, texts: Sequence[str] | None = None) -> Any:
        """The same table with whole words: of the query, the pick and the runner-up; with `texts`, where the pick stands in them.

        Parameters
        ----------
        tokenizer : tokenizer
            That of the model.
        texts : sequence of str, optional
            The texts of the batch: then `start` and `end` are the first and last character of the picked word.
        """
        if self._reading.tokens is None:
            raise UsageError("words need the tokens of the keys: give the model input_ids")
        table = self.to_frame()
        found = [whole_words(tokenizer, ids) for ids in self._reading.tokens.tolist()]
        for name, column in (("query_word", "query"), ("word", "token"), ("runner_up_word", "runner_up")):
            places = zip(table["text"], table[column], strict=True)
            table[name] = [found[text][0][place] if place >= 0 else "" for text, place in places]
        if texts is not None:
            spans = [word_offsets(tokenizer, text, found[i][1]) for i, text in enumerate(texts)]
            ends = [spans[text][place] for text, place in zip(table["text"], table["token"], strict=True)]
            table["start"], table["end"] = [start for start, _ in ends], [end for _, end in ends]
        return table

    @cached_property
    def radius(self) -> Tensor:
        """Certified: no change of the query vector of smaller Euclidean norm changes the pick.

        The least, over all tokens t that could be picked instead, of gap_t / (scale |k_pick - k_t|). Computed in double
        precision. Rotary positions do not change it. Where scores have a bias that depends on the query (DeBERTa), the
        bias is held.
        """
        blocks = self._reading.blocks()
        return torch.cat([_radius(block, self.token[:, :, rows], self._alike) for rows, block in blocks], 2)


def pick(
    reading: Reading, exclude: Tensor | None = None, is_special: Tensor | None = None, alike: Tensor | None = None
) -> Picks:
    """The picks of all queries of a reading; `exclude` (batch, heads or 1, [queries,] keys) cannot be picked.

    Tokens with the same number in `alike` (batch, keys) are the same choice: none is the other's rival.
    """
    seen = reading.seen()  # a token stays one if it cannot be picked
    reading = reading if exclude is None else excluding(reading, exclude)
    parts = [_pick(block, is_special, alike) for _, block in reading.blocks()]
    token, runner_up, gap, weight, entropy, largest, mass = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    return Picks(
        token, runner_up, gap, weight, entropy, largest, None if is_special is None else mass,
        reading.positions, reading.heads, seen, reading, alike,
    )  # fmt: skip


def excluding(reading: Reading, exclude: Tensor) -> Reading:
    """The reading as if the flagged keys, (batch, heads or 1, [queries,] keys), were not there."""
    allowed = ~(exclude if exclude.dim() == 4 else exclude[:, :, None, :])
    dense = allowed if reading.mask.dense is None else reading.mask.dense & allowed
    return replace(reading, mask=replace(reading.mask, dense=dense))


def _pick(reading: Reading, is_special: Tensor | None, alike: Tensor | None) -> tuple[Tensor, ...]:
    scores = reading.logits()  # (batch, heads, queries, keys)
    best, token = scores.max(-1)
    rivals = scores.scatter(-1, token[..., None], -torch.inf)
    if alike is not None:
        kinds = alike[:, None, None].expand(*token.shape, -1)
        rivals = rivals.masked_fill(kinds == kinds.gather(-1, token[..., None]), -torch.inf)
    second, runner_up = rivals.max(-1)
    none, alone = best == -torch.inf, second == -torch.inf
    peak = torch.where(none, 0.0, best)
    if reading.null is not None:
        null = reading.null.to(scores.dtype)[None, :, None]
        peak = torch.maximum(peak, null)
    unnormalized = (scores - peak[..., None]).exp()
    total = unnormalized.sum(-1)
    if reading.null is not None:
        total = total + (null - peak).exp()
    total = total.clamp_min(torch.finfo(scores.dtype).tiny)
    # - sum w log w with log w = score - peak - log total; a forbidden token adds nothing
    weighted = (unnormalized * (scores - peak[..., None]).masked_fill(scores == -torch.inf, 0.0)).sum(-1)
    share = unnormalized.sum(-1) / total
    entropy = share * total.log() - weighted / total
    return (
        token.masked_fill(none, -1),
        runner_up.masked_fill(alone, -1),
        torch.where(alone, torch.inf, best - second).masked_fill(none, 0.0),
        (best - peak).exp() / total,
        entropy,
        best,
        torch.zeros_like(best) if is_special is None else (unnormalized * is_special[:, None, None]).sum(-1) / total,
    )


def _radius(reading: Reading, token: Tensor, alike: Tensor | None) -> Tensor:
    """Radius of the query for each pick, in double precision."""
    # without the cap, which keeps the order where no bias is added after it
    scores = reading.logits(precise=True, capped=False)
    index = token.clamp_min(0)[..., None]
    best = scores.take_along_dim(index, -1)
    gaps = (best - scores).clamp_min(0.0)  # (batch, heads, queries, keys); infinite where forbidden
    if alike is not None:
        kinds = alike[:, None, None].expand_as(gaps)
        gaps = gaps.masked_fill(kinds == kinds.gather(-1, index), torch.inf)
    keys = reading.key[:, reading.group].double()
    picked = keys.take_along_dim(index, 2)  # (batch, heads, queries, dim)
    # not by a matrix product, in which the distance of near keys cancels
    distance = torch.cdist(picked, keys, compute_mode="donot_use_mm_for_euclid_dist")
    # a token with the same key as the pick is the same choice
    ratio = torch.where(distance > 0, gaps / (abs(reading.scale) * distance), torch.inf)
    return ratio.scatter(-1, index, torch.inf).amin(-1).masked_fill(token < 0, 0.0)
