"""Does a pick stay under dropout, without the end of the text, with synonyms: confidence without known right picks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from whichtoken.display.shown import Shown
from whichtoken.inspection.attribution import input_embedding
from whichtoken.inspection.probe import AttentionProbe


@dataclass(frozen=True, eq=False)
class PickStability(Shown):
    """Share of repeats in which a head's pick stays the same token, (layers, heads) each: what `pick_stability` returns.

    Attributes
    ----------
    dropout : array of shape (layers, heads)
        With dropout switched on.
    truncation : array of shape (layers, heads)
        With the end cut off; not a number where the pick was cut off.
    synonyms : array of shape (layers, heads)
        With words replaced by near ones.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, pick_stability
    >>> inputs = load_tokenizer("my-model")("a very good film", return_tensors="pt")
    >>> stability = pick_stability(load_transformer("my-model"), inputs, repeats=2)
    >>> bool(((0 <= stability.dropout) & (stability.dropout <= 1)).all())
    True
    """

    dropout: NDArray[np.float64]
    truncation: NDArray[np.float64]
    synonyms: NDArray[np.float64]


@torch.no_grad()
def pick_stability(
    model: Any,
    inputs: Mapping[str, Tensor],
    *,
    queries: str = "cls",
    special_tokens: Any = None,
    repeats: int = 8,
    seed: int = 0,
) -> PickStability:
    """Measure how stable the picks for one text (1, tokens) are under small changes of the model and of the text.

    Reach for it when the right picks are not known (otherwise use `PickConfidence`). The text is read again under dropout,
    cut short, and with words replaced by near ones. Cut: the last token before the end is deleted, one more each time, up to
    half of the text. Synonyms: in each repeat every fifth token, drawn at random, becomes its nearest neighbor in the
    embedding; special tokens stay.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model, in evaluation mode.
    inputs : Mapping[str, Tensor]
        One text, as the tokenizer gives it.
    queries : str, default="cls"
        Whose picks, "cls" or "last".
    special_tokens : tokenizer or sequence of int, optional
        Ids of the special tokens, or a tokenizer that knows them.
    repeats : int, default=8
        Times that each change is tried.
    seed : int, default=0
        Seed for the changes.

    Returns
    -------
    PickStability
        Shares of the repeats in which the pick stays.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, pick_stability
    >>> tokenizer = load_tokenizer("my-model")
    >>> inputs = tokenizer("a very good film", return_tensors="pt")
    >>> pick_stability(load_transformer("my-model"), inputs, special_tokens=tokenizer, repeats=2).dropout.shape
    (2, 4)
    """
    ids = torch.tensor(sorted(getattr(special_tokens, "all_special_ids", special_tokens or ())), dtype=torch.long)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = _picks(model, inputs, queries)
        tokens = inputs["input_ids"].shape[1]
        ends = [tokens - 1 - cut for cut in range(1, min(repeats, tokens // 2) + 1)]
        shorter = [(_picks(model, _cut(inputs, end), queries), end) for end in ends]
        replaced = [_picks(model, _with_synonyms(model, inputs, ids), queries) for _ in range(repeats)]
        dropped = [_picks(model, inputs, queries, training=True) for _ in range(repeats)]
    kept = np.array([np.where(base < end, found == base, np.nan) for found, end in shorter])
    seen = np.isfinite(kept)
    share = np.divide(np.nansum(kept, 0), seen.sum(0), out=np.full(base.shape, np.nan), where=seen.any(0))
    return PickStability(
        dropout=np.mean([found == base for found in dropped], 0),
        truncation=share,
        synonyms=np.mean([found == base for found in replaced], 0),
    )


def _picks(model: nn.Module, inputs: Mapping[str, Tensor], queries: str, training: bool = False) -> NDArray[np.int64]:
    before = model.training
    model.train(training)
    try:
        with AttentionProbe(model, queries=queries) as probe:
            model(**inputs)
        return np.stack([probe.picks(layer).token[0, :, 0].numpy() for layer in range(len(probe.names))])
    finally:
        model.train(before)


def _cut(inputs: Mapping[str, Tensor], end: int) -> dict[str, Tensor]:
    """The text up to `end`, and its last token (the separator)."""
    return {name: torch.cat([value[:, :end], value[:, -1:]], 1) for name, value in inputs.items()}


def _with_synonyms(model: Any, inputs: Mapping[str, Tensor], fixed: Tensor) -> dict[str, Tensor]:
    """The text with a fifth of its tokens replaced by their nearest neighbors; the ids in `fixed` stay."""
    ids = inputs["input_ids"].clone()
    free = (~torch.isin(ids[0], fixed)).nonzero().flatten()
    chosen = free[torch.randperm(len(free))[: -(-len(free) // 5)]]
    table: Tensor = input_embedding(model).weight.detach()  # type: ignore[operator]
    near = functional.normalize(table[ids[0, chosen]], dim=1) @ functional.normalize(table, dim=1).T
    near[torch.arange(len(chosen)), ids[0, chosen]] = -torch.inf
    near[:, fixed] = -torch.inf
    ids[0, chosen] = near.argmax(1)
    return dict(inputs) | {"input_ids": ids}
