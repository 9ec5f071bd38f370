"""The pick of a query: which token, ahead of which, by how much, and how far the query must move before it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.reading import Reading
from whichtoken.inspection.words import whole_words, word_offsets


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
