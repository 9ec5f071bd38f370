"""Does a pick matter? The decision without the picked token's value, without the token in that head, without the token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.inspection.anatomy import Anatomy, anatomy
from whichtoken.inspection.decision import decision
from whichtoken.inspection.picks import Picks, excluding
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.reading import Reading


@dataclass(frozen=True, eq=False)
class PickEffects(Shown):
    """How much weaker the decision becomes, per head of a layer: positive where the picked token spoke for it.

    In log odds for a classifier; see `decision`. `removed`: the token's value taken out of the head's output; `masked`: the
    head made to look elsewhere; `deleted`: the token taken out of the text (not a number for special tokens).

    Attributes
    ----------
    layer : int
        The layer.
    decision : str
        What the score is.
    score : float
        Decision of the whole text.
    picks : Picks
        What each head picked.
    removed : array of shape (heads,)
        Effect of taking the token's value out of the head's output.
    masked : array of shape (heads,)
        Effect of making the head look elsewhere.
    deleted : array of shape (heads,)
        Effect of taking the token out of the text.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, pick_effects
    >>> inputs = load_tokenizer("my-model")("a good film", return_tensors="pt")
    >>> pick_effects(load_transformer("my-model"), inputs, layer=1).layer
    1
    """

    layer: int
    decision: str
    score: float
    picks: Picks
    removed: NDArray[np.float64]
    masked: NDArray[np.float64]
    deleted: NDArray[np.float64]


@torch.no_grad()
def pick_effects(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    layer: int,
    *,
    queries: str = "cls",
    special: Any = None,
    delete: bool = True,
) -> PickEffects:
    """The effects of the picks of all heads of a layer for one query of one text.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode.
    inputs : dict of tensors of shape (1, tokens)
        One text without padding.
    layer : int
        The layer whose heads are looked at.
    queries : str, default="cls"
        "cls" or "last".
    special : tokenizer or sequence of int, optional
        Special tokens, or a tokenizer that knows them; they are not deleted.
    delete : bool, default=True
        Also run the model without each picked token.

    Returns
    -------
    PickEffects
        One number per head and kind of effect.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, pick_effects
    >>> inputs = load_tokenizer("my-model")("a good film", return_tensors="pt")
    >>> effects = pick_effects(load_transformer("my-model"), inputs, layer=0)
    >>> effects.removed.shape, effects.deleted.shape
    ((4,), (4,))
    """
    with AttentionProbe(model, layers=[layer], queries=queries, special=special) as probe:
        output = model(**inputs)
    name, score = decision(output)
    base = float(score(output)[0])
    reading, picks = probe.reading(layer), probe.picks(layer)
    part = anatomy(probe.model, next(site for site in probe.sites if layer % len(probe.names) in site.layers))
    drops = []
    for change in _changes(reading, picks):
        with _patched(part, probe, layer, int(picks.positions[0, 0]), change):
            drops.append(base - score(model(**_repeated(inputs, len(change)))).double().numpy())
    tokens = picks.token[0, :, 0].tolist()
    special_flags = probe._special(reading)
    skip = set() if special_flags is None else set(special_flags[0].nonzero().flatten().tolist())
    lost = {t: base - float(score(model(**without(inputs, t)))[0]) for t in set(tokens) - skip} if delete else {}
    deleted = np.array([lost.get(token, np.nan) for token in tokens])
    return PickEffects(layer, name, base, picks, drops[0], drops[1], deleted)


def _changes(reading: Reading, picks: Picks) -> tuple[Tensor, Tensor]:
    """What is added to each head's output (heads, value dim) to remove the pick, and to have the head look elsewhere."""
    weights = reading.weights(precise=True)[0, :, 0]  # (heads, keys)
    values = reading.value[0, reading.group].double().nan_to_num(0.0)  # (heads, keys, value dim)
    token = picks.token[0, :, 0].clamp_min(0)[:, None]
    removed = -weights.gather(1, token) * values.take_along_dim(token[..., None], 1)[:, 0]
    picked = torch.zeros_like(weights, dtype=torch.bool).scatter(1, token, True)
    elsewhere = excluding(reading, picked[None]).weights(precise=True)[0, :, 0]
    context = (weights[..., None] * values).sum(1)
    return removed, (elsewhere[..., None] * values).sum(1) - context


@contextmanager
def _patched(part: Anatomy, probe: AttentionProbe, layer: int, query: int, change: Tensor) -> Iterator[None]:
    """In copy h of the text, add change[h] to the output of head h at one query, in one layer."""
    heads = len(change)
    calls = part.site.layers.index(layer % len(probe.names))
    seen = 0

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal seen
        seen += 1
        if seen - 1 != calls:
            return None
        x = args[0].clone()  # (heads, tokens, heads * value dim)
        split = x.view(heads, x.shape[1], heads, -1)
        split[torch.arange(heads), query, torch.arange(heads)] += change.to(x.dtype)
        return (x, *args[1:])

    def after(module: Any, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        x = output[0].clone()
        rows = torch.einsum("hd,hdw->hw", change.to(x.dtype), part.output_weight(heads))
        if module.batch_first:
            x[:, query] += rows
        else:
            x[query] += rows
        return (x, *output[1:])

    hook = (
        part.site.module.register_forward_hook(after)
        if part.functional
        else part.output.register_forward_pre_hook(before)
    )
    try:
        yield
    finally:
        hook.remove()


def _repeated(inputs: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    return {name: value.expand(times, *value.shape[1:]) for name, value in inputs.items()}


def without(inputs: Mapping[str, Tensor], token: int) -> dict[str, Tensor]:
    """One text without the token at a position."""
    return {name: torch.cat([value[:, :token], value[:, token + 1 :]], 1) for name, value in inputs.items()}
