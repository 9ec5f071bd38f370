"""Does a pick matter? What a pick and a head do to the decision of a model.

`pick_effects` runs the model again: without the picked token's value, with the head looking elsewhere, without the token.
`direct_contributions` needs no such runs. The output of a model is read from the residual stream, to which every attention
layer and every feed-forward layer adds. What a head adds reaches the output directly, scaled by the normalizations on its way
(held at their values), and indirectly through later layers. The direct part is exactly a sum over the tokens that the head
attends to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.picks import Picks, excluding
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.reading import Reading
from whichtoken.inspection.sites import Anatomy, anatomy, check_evaluation, hook
from whichtoken.inspection.why import Call, RecomputedPass

CURVED = 1e-2  # second derivative of a decision, relative to its largest share, above which a model is not linear
_direct: WeakSet[nn.Module] = WeakSet()  # models that were tried
Score = Callable[..., Tensor]  # output of the model, and the mask of its tokens -> (batch,)


@dataclass(frozen=True, eq=False)
class TextDecision(Shown):
    """What a model decided for one text: its name, and two functions that say how strongly an output supports it.

    `score(output, mask=None)` has a gradient; `strength` lies between 0 and 1, or -1 and 1 for an embedding.
    """

    name: str
    unit: str
    score: Score
    strength: Score


def decision(output: Any, reference: Tensor | None = None) -> TextDecision:
    """What a model decided for one text.

    A classifier: log odds of the class that it predicted. A language model: log odds of the next token. Any other encoder: the
    length of its mean embedding along a fixed direction, `reference`, by default that of the whole text. (The cosine with the
    whole text has the gradient zero there: it cannot say which token mattered.)
    """
    logits = getattr(output, "logits", None)
    if logits is None:
        towards = (embedding(output)[:1] if reference is None else reference[None]).detach()
        unit = functional.normalize(towards, dim=-1)
        return TextDecision(
            "embedding" if reference is None else "similarity",
            f"its length along {'its own direction' if reference is None else 'the reference'}",
            lambda other, mask=None: (embedding(other, mask) * unit).sum(-1),
            lambda other, mask=None: functional.cosine_similarity(embedding(other, mask), unit),
        )  # fmt: skip
    chosen = int(_last(logits)[0].argmax())

    def score(other: Any, mask: Tensor | None = None) -> Tensor:
        return _log_odds(_last(other.logits), chosen)

    name = f"class {chosen}" if logits.dim() == 2 else f"next token {chosen}"
    return TextDecision(name, "log odds", score, lambda other, mask=None: torch.sigmoid(score(other)))


def _log_odds(logits: Tensor, chosen: int) -> Tensor:
    """Log of the probability of one class over that of all others: (batch,)."""
    others = torch.cat([logits[:, :chosen], logits[:, chosen + 1 :]], 1)
    return logits[:, chosen] - others.logsumexp(1) if others.shape[1] else logits[:, 0]


def _last(logits: Tensor) -> Tensor:
    return logits if logits.dim() == 2 else logits[:, -1]


def embedding(output: Any, mask: Tensor | None = None) -> Tensor:
    """The mean of the last hidden states over the tokens of a mask: (batch, width)."""
    hidden = getattr(output, "last_hidden_state", output)
    if not isinstance(hidden, Tensor):
        raise UsageError(
            f"{type(output).__name__} has neither logits nor hidden states, so there is no decision to measure"
        )
    if mask is None:
        return hidden.mean(1)
    kept = mask.to(hidden.dtype)[..., None]
    return (hidden * kept).sum(1) / kept.sum(1).clamp_min(1)


def check_linear(model: nn.Module, decided: Tensor, ends: Sequence[Tensor], held: str) -> None:
    """Refuse a model whose decision is not linear in `ends` once what is `held` is: their parts would not add up."""
    first = torch.autograd.grad(decided, ends, create_graph=True, materialize_grads=True)
    total = torch.stack([(one * end).sum() for one, end in zip(first, ends, strict=True)]).sum()
    second = torch.autograd.grad(total, ends, retain_graph=True, materialize_grads=True)
    shares = [(one * end).detach().sum(-1) for one, end in zip(first, ends, strict=True)]
    twice = [(two * end).detach().sum(-1) for two, end in zip(second, ends, strict=True)]
    largest = max(float(part.abs().max()) for part in shares)
    curved = max(float((two - one).abs().max()) for one, two in zip(shares, twice, strict=True))
    if curved > CURVED * largest:
        raise UsageError(
            f"{type(model).__name__} is not linear when its {held} are held (difference {curved:.2g}, largest share"
            f" {largest:.2g}): parts of it were not found, and shares would not add up"
        )


def repeat_text(inputs: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """A batch of copies of one text."""
    return {name: value.expand(times, *value.shape[1:]) for name, value in inputs.items()}


@dataclass(frozen=True, eq=False)
class PickEffects(Shown):
    """How much weaker the decision becomes without a pick, per head of a layer: what `pick_effects` returns.

    A positive number means that the picked token supported the decision. The unit is log odds for a classifier and for a
    language model, length of the embedding for any other encoder.

    Attributes
    ----------
    layer : int
        The layer.
    decision : str
        What was decided.
    score : float
        How strongly the whole text supports it.
    picks : Picks
        What each head picked.
    removed : array of shape (heads,)
        Effect of taking the token's value out of the head's output; not a number where there was nothing to pick.
    masked : array of shape (heads,)
        Effect of making the head look elsewhere.
    deleted : array of shape (heads,)
        Effect of taking the token out of the text; not a number for special tokens.

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

    def to_frame(self) -> Any:
        """A row per head: its pick and the effects of it."""
        effects = {name: getattr(self, name) for name in ("removed", "masked", "deleted")}
        return self.picks.to_frame().assign(layer=self.layer, **effects)


@torch.no_grad()
def pick_effects(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    layer: int,
    *,
    queries: str = "cls",
    special_tokens: Any = None,
    special: bool = True,
    delete: bool = True,
    reference: Tensor | None = None,
) -> PickEffects:
    """Measure whether the picks of a layer matter: the change of the decision without each of them.

    Reach for it when you know what a head picks and want to know what that does. Every effect is a measured difference
    between two runs of the model, for one query of one text; none is estimated by a gradient. A layer whose output
    projection is not found is refused.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode.
    inputs : dict of tensors of shape (1, tokens)
        One text without padding.
    layer : int
        The layer of the heads.
    queries : str, default="cls"
        "cls" or "last".
    special_tokens : tokenizer or sequence of int, optional
        Ids of the special tokens, or a tokenizer that knows them; they are not deleted.
    special : bool, default=True
        Whether special tokens can be picked.
    delete : bool, default=True
        Also run the model without each picked token.
    reference : Tensor of shape (width,), optional
        For an encoder without a head: the direction of its embedding that counts as its decision; that of the text by default.

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
    check_evaluation(model)
    with AttentionProbe(model, layers=[layer], queries=queries, special_tokens=special_tokens) as probe:
        output = model(**inputs)
    decided = decision(output, reference=reference)
    score = decided.score
    base = float(score(output)[0])
    reading, picks = probe.reading(layer), probe.picks(layer, special=special)
    part = anatomy(probe.model, probe.site(layer))
    part.output_weight(len(reading.heads), reading.value.shape[-1])  # refuses what cannot be patched
    drops = []
    for change in _changes(reading, picks):
        with _patched(part, part.site.layers.index(layer % len(probe.names)), int(picks.positions[0, 0]), change):
            drops.append(base - score(model(**repeat_text(inputs, len(change)))).double().numpy())
    tokens = picks.token[0, :, 0].tolist()
    flags = probe.special_keys(reading)
    kept = set() if flags is None else set(flags[0].nonzero().flatten().tolist())
    lost = {}
    for token in set(tokens) - kept - {-1} if delete else ():
        rest = {name: torch.cat([ids[:, :token], ids[:, token + 1 :]], 1) for name, ids in inputs.items()}
        lost[token] = base - float(score(model(**rest))[0])
    deleted = np.array([lost.get(token, np.nan) for token in tokens])
    removed, masked = (np.where(picks.token[0, :, 0].numpy() < 0, np.nan, drop) for drop in drops)
    return PickEffects(layer, decided.name, base, picks, removed, masked, deleted)


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
def _patched(part: Anatomy, call: int, query: int, change: Tensor) -> Iterator[None]:
    """In copy h of the text, add change[h] to the output of head h at one query, in one call of the module."""
    heads = len(change)
    calls = 0

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal calls
        calls += 1
        if calls - 1 != call:
            return None
        x = args[0].clone()  # (heads, tokens, heads * value dim)
        split = x.view(heads, x.shape[1], heads, -1)
        split[torch.arange(heads), query, torch.arange(heads)] += change.to(x.dtype)
        return (x, *args[1:])

    def after(module: Any, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        x = output[0].clone()
        rows = torch.einsum("hd,hdw->hw", change.to(x.dtype), part.output_weight(*change.shape))
        if module.batch_first:
            x[:, query] += rows
        else:
            x[query] += rows
        return (x, *output[1:])

    with ExitStack() as stack:
        if part.functional:
            hook(stack, part.site.module, after)
        else:
            stack.callback(part.output.register_forward_pre_hook(before).remove)
        yield


@dataclass(frozen=True, eq=False)
class DirectContributions(Shown):
    """Direct contributions of heads and tokens to the decision: what `direct_contributions` returns."""

    decision: str
    score: float
    values: list[NDArray[np.float64]]  # by layer: (heads, tokens)
    # largest difference, over heads, to the true change of the decision when the head's direct part is removed
    error: float

    @property
    def heads(self) -> NDArray[np.float64]:
        """Contribution of each head: (layers, heads)."""
        return np.stack([layer.sum(1) for layer in self.values])

    def to_frame(self) -> Any:
        """A row per layer, head and token."""
        import pandas as pd

        rows = [(i, *place, value) for i, layer in enumerate(self.values) for place, value in np.ndenumerate(layer)]
        return pd.DataFrame(rows, columns=["layer", "head", "token", "contribution"])


def direct_contributions(
    model: nn.Module, inputs: Mapping[str, Tensor], *, reference: Tensor | None = None, check: bool = True
) -> DirectContributions:
    """Find the heads and tokens that contribute most to a decision: one text (1, tokens) without padding.

    Reach for it to choose the head to look at: it ranks all heads with one forward and one backward pass. The scales of the
    normalizations are held and the model's classifier is linearized at this text. `error` says what that costs: the largest
    difference between a head's contribution and the change of the decision when it is taken out of the residual stream while
    all later layers repeat what they wrote. Torch's own attention is refused, as its output projection is not a module call.

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    inputs : Mapping[str, Tensor]
        One text, as the tokenizer gives it.
    reference : Tensor of shape (width,), optional
        For an encoder without a head: the direction of its embedding that counts as its decision; that of the text by default.
    check : bool, default=True
        Whether to measure `error`, at the price of one forward pass of as many copies as there are heads in every layer.

    Returns
    -------
    DirectContributions
        By layer, head and token.

    Examples
    --------
    >>> from whichtoken.inspection import direct_contributions, load_transformer, load_tokenizer
    >>> inputs = load_tokenizer("my-model")("a good film", return_tensors="pt")
    >>> direct_contributions(load_transformer("my-model"), inputs).heads.shape
    (2, 4)
    """
    check_evaluation(model)
    with AttentionProbe(model) as probe, torch.no_grad():
        output = model(**inputs)
    decided = decision(output, reference=reference)
    score = decided.score
    parts = [anatomy(probe.model, probe.site(layer)) for layer in range(len(probe.names))]
    if any(part.functional for part in parts):
        raise UsageError(
            "direct contributions need an output projection that is called as a module; torch's attention does not"
        )
    streams: list[Any] = []
    with ExitStack() as stack:
        hook(stack, getattr(model, "base_model", model), lambda module, args, output: streams.append(output))
        held, base = RecomputedPass(probe.model, inputs), float(score(output)[0])
    calls = [_output_call(parts, layer) for layer in range(len(parts))]
    with torch.enable_grad():
        strength, ends = score(held.output).sum(), [held.written[call] for call in calls]
        if model not in _direct and (last := getattr(streams[0], "last_hidden_state", None)) is not None:
            # the classifier is linearized: only what lies before it has to be linear
            [slope] = torch.autograd.grad(strength, [last], retain_graph=True)
            check_linear(model, (slope * last).sum(), ends, "norms and writers")
            _direct.add(model)
    gradients = torch.autograd.grad(strength, ends, materialize_grads=True)
    values, worst = [], 0.0 if check else math.nan
    for layer, part in enumerate(parts):
        reading = probe.reading(layer)
        matrix = part.output_weight(len(reading.heads), reading.value.shape[-1]).detach()
        pulled = torch.einsum("tw,hdw->htd", gradients[layer][0], matrix)  # (heads, queries, dim)
        weights = reading.weights()[0]  # (heads, queries, keys)
        each = torch.einsum("hqk,hqd->hkd", weights, pulled)
        values.append((each * reading.value[0, reading.group]).sum(-1).double().numpy())
        if not check:
            continue
        removed = torch.einsum("htd,hdw->htw", reading.output()[0], matrix)
        with torch.no_grad():
            repeated = _replay(held.written | {calls[layer]: ends[layer] - removed})
            drops = base - score(held.run(repeated, {}, len(removed))).double().numpy()
        worst = max(worst, float(np.abs(drops - values[layer].sum(1)).max()))
    return DirectContributions(decided.name, base, values, worst)


def _output_call(parts: list[Anatomy], layer: int) -> Call:
    """The output projection of a layer and which of its calls it is (layers may share weights)."""
    output = parts[layer].output
    return id(output), sum(parts[i].output is output for i in range(layer))


def _replay(written: dict[Call, Tensor]) -> Callable[[Call, Tensor], Tensor]:
    # OPT writes (copies * tokens, width), and some models add to it in place
    return lambda call, output: written[call].repeat(len(output) // len(written[call]), *[1] * (output.dim() - 1))
