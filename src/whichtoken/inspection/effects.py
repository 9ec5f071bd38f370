"""Does a pick matter? What a pick and a head do to the decision of a model.

`pick_effects` runs the model again: without the picked token's value, with the head looking elsewhere, without the token.
`direct_contributions` needs no such runs. The output of a model is read from the residual stream, to which every attention
layer and every feed-forward layer adds. What a head adds reaches the output directly, scaled by the normalizations on its way
(held at their values), and indirectly through later layers. The direct part is exactly a sum over the tokens that the head
attends to.

Which tokens decided? `token_shares` gives the shares of the tokens in a decision, `faithfulness` tests how true any such
ranking is to the model.

Attention weights, scales of normalizations and gates of activations are held at their values on this text. What remains is
a linear network with the same output. Its gradient times the embedding of a token is what the token contributed: one
forward and one backward pass, no sampling, and the shares of tokens and biases add up to the decision. Holding attention and
normalizations is the conservative propagation of Ali et al. 2022, "XAI for Transformers: Better Explanations through
Conservative Propagation" (arXiv 2202.07304); holding also the gates makes it exact for feed-forward layers. AttnLRP (Achtibat et
al. 2024, package lxt) lets half of the relevance flow through queries and keys instead.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from whichtoken.checks import check_integer
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection import sites
from whichtoken.inspection.corpus import check_texts, encode, longest_text, pad, shuffle_weights
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.reading import Picks, Reading, excluding
from whichtoken.inspection.sites import Anatomy, Site, anatomy, check_evaluation, hook
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


FUNCTIONS = {"tanh", "gelu", "relu", "silu"}  # activations that models also call as functions
_linear: WeakSet[nn.Module] = WeakSet()  # models that were tried
MASKED = 32  # masked copies of a text at a time


def token_shares(
    model: nn.Module, inputs: Mapping[str, Tensor], *, reference: Tensor | None = None
) -> NDArray[np.float64]:
    """Explain a decision by its tokens: what each token of one text contributed to it, (tokens,).

    Reach for it when you want to know which words decided, at the price of one forward and one backward pass. Attention
    weights, scales of normalizations and gates of activations are held at their values, so that the model is linear: the
    shares of the tokens and of the biases then add up to the decision exactly (conservative propagation, Ali et al. 2022, with
    the gates held too). What would change if a weight changed is not part of a share. A model without token
    embeddings, or whose query and key projections are not found, is refused.

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    inputs : Mapping[str, Tensor]
        One text (1, tokens), as the tokenizer gives it.
    reference : Tensor of shape (width,), optional
        For an encoder without a head: the direction of its embedding that counts as its decision, such as the embedding of a
        query, or the difference of two texts; that of the text itself by default.

    Returns
    -------
    array of shape (tokens,)
        Share of each token: positive if it supported the decision.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, token_shares
    >>> inputs = load_tokenizer("my-model")("a good film", return_tensors="pt")
    >>> token_shares(load_transformer("my-model"), inputs).shape
    (5,)
    """
    check_evaluation(model)
    if model not in _linear:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
            _check_linear(model, inputs)
        _linear.add(model)
    with selections_held(model) as embedded:
        output = model(**inputs)
        score = decision(output, reference=reference).score
        [gradient] = torch.autograd.grad(score(output).sum(), [embedded[0]])
    shares = (gradient * embedded[0]).sum(-1)[0, : inputs["input_ids"].shape[1]]  # without what fills up a window
    return shares.detach().double().numpy()


def _check_linear(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Refuse a model that is not linear in its embeddings once its selections are held: its shares would not add up."""
    with selections_held(model) as embedded:
        output = model(**inputs)
        logits = getattr(output, "logits", None)
        ends = getattr(output, "last_hidden_state", output) if logits is None else logits
        # the decision may be any function of the output: along its gradient everything before it has to be linear
        [slope] = torch.autograd.grad(decision(output).score(output).sum(), [ends], retain_graph=True)
        check_linear(model, (slope * ends).sum(), embedded, "attention, norms and activations")


@contextmanager
def selections_held(model: nn.Module) -> Iterator[list[Tensor]]:
    """A context in which gradients flow as if attention weights, norms and gates were constants; yields the embeddings."""
    embedded: list[Tensor] = []

    def start(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if embedded:  # a decoder that shares the table
            return output
        embedded.append(output.detach().requires_grad_())
        return embedded[0].clone()  # some models add to it in place

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_FunctionsAsGates())
        hook(stack, sites.input_embedding(model), start)
        for site in sites.find_sites(model):
            _hold_attention(model, site, stack)
        sites.freeze_norms(sites.find_norms(model), stack)
        for module in model.modules():
            if sites.is_activation(module):
                hook(stack, module, _gate)
            elif hasattr(module, "gate_proj") and isinstance(module.gate_proj, nn.Module):
                hook(stack, module.gate_proj, _constant)
        yield embedded


def _hold_attention(model: nn.Module, site: Site, stack: ExitStack) -> None:
    module: Any = site.module
    if isinstance(module, nn.MultiheadAttention):

        def detach(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            return args[3:], given | {"query": given["query"].detach(), "key": given["key"].detach()}

        stack.callback(module.register_forward_pre_hook(detach, with_kwargs=True).remove)
        return
    projections = anatomy(model, site).query_key()
    if projections is not None:
        for projection in projections:
            hook(stack, projection, _constant)
    elif hasattr(module, "c_attn"):  # GPT-2: queries, keys and values side by side
        hook(stack, module.c_attn, _constant_queries_and_keys)
    else:
        raise UsageError(f"the query and key projections of {type(module).__name__} were not found; shares need them")


def _constant(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.detach()


def _constant_queries_and_keys(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    query, key, value = output.chunk(3, -1)
    return torch.cat([query.detach(), key.detach(), value], -1)


def _gate(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The activation as a gate: output = input times a constant."""
    x = args[0]
    # also next to 0: what cancels there is large in each token, so that a gate set to 0 would move shares by 1e-3
    gate = (output / torch.where(x == 0, 1.0, x)).detach()
    linear = x * gate
    return linear + (output - linear).detach()


class _FunctionsAsGates(TorchFunctionMode):
    """Activations that are called as functions, as in the heads of RoBERTa, are gates too."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        return _gate(function, args, output) if getattr(function, "__name__", "") in FUNCTIONS and args else output


def rounding_error(single: NDArray[np.float64], double: NDArray[np.float64]) -> float:
    """How far numbers in single precision are from those in double precision, relative to the largest of these."""
    return float(np.abs(single - double).max() / max(float(np.abs(double).max()), np.finfo(float).tiny))


@dataclass(frozen=True, eq=False)
class Curves:
    """How strongly a text still supports its decision, as tokens are deleted or inserted in the order of a ranking.

    An area is the mean over the steps: a ranking that is true to the model has a small deletion area and a large insertion
    area.
    """

    deletion: NDArray[np.float64]  # (steps + 1,)
    insertion: NDArray[np.float64]

    @property
    def deletion_area(self) -> float:
        return float(np.mean(self.deletion))

    @property
    def insertion_area(self) -> float:
        return float(np.mean(self.insertion))


@torch.no_grad()
def curves(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    ranking: ArrayLike,
    is_special: NDArray[np.bool_],
    *,
    steps: int | None = None,
    reference: Tensor | None = None,
    insertion: bool = True,
) -> Curves:
    """Both curves of one text (1, tokens) under a ranking (tokens,), largest first; special tokens always stay.

    A deleted token is masked in every layer. `steps`: at most so many groups of tokens, one token each by default. Without
    `insertion` that curve is empty, and half of the passes are saved.
    """
    order = np.array([i for i in np.argsort(-np.asarray(ranking), kind="stable") if not is_special[i]], dtype=int)
    count = len(order) if steps is None else min(steps, len(order))
    deleted = torch.ones(count + 1, len(is_special), dtype=torch.long)
    inserted = torch.ones_like(deleted)
    for step, tokens in enumerate(np.array_split(order, max(count, 1))[:count], 1):
        deleted[step:, tokens] = 0
        inserted[:step, tokens] = 0
    decided = decision(model(**inputs), reference=reference)
    found = []
    for masks in torch.split(torch.cat([deleted, inserted]) if insertion else deleted, MASKED):
        output = model(**(repeat_text(inputs, len(masks)) | {"attention_mask": masks}))
        found.append(decided.strength(output, masks).double().numpy())
    strength = np.concatenate(found)
    return Curves(strength[: count + 1], strength[count + 1 :])


Attribution = Sequence[ArrayLike] | Callable[[Any, Mapping[str, Tensor]], ArrayLike]


@dataclass(frozen=True, eq=False)
class Faithfulness(Shown):
    """How true rankings of tokens are to a model: what `faithfulness` returns.

    Attributes
    ----------
    methods : tuple of str
        Names of the attributions; the last is a random order.
    deletion, insertion : array of shape (methods, texts)
        Areas under both curves of each text: a faithful ranking has a small deletion and a large insertion area.
    randomized : array of shape (methods,)
        Mean rank correlation of an attribution with that of the same model with shuffled weights; not a number where arrays
        were given. Near 1: it says little about what the model learned.

    Examples
    --------
    >>> from whichtoken.inspection import faithfulness, load_tokenizer, load_transformer
    >>> model, tokenizer = load_transformer("my-model"), load_tokenizer("my-model")
    >>> found = faithfulness(model, ["a good film", "the bad plot"], [[0, 0, 2, 1, 0], [0, 0, 2, 1, 0]], tokenizer)
    >>> list(found.to_frame().index)
    ['attribution', 'random order']
    """

    methods: tuple[str, ...]
    deletion: NDArray[np.float64]
    insertion: NDArray[np.float64]
    randomized: NDArray[np.float64]

    def to_frame(self) -> Any:
        """A row per method: mean areas, 95 % intervals (Student t over texts), and their differences from a random order."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for name, areas in (("deletion", self.deletion), ("insertion", self.insertion)):
            for what, values in ((name, areas), (f"{name}_against_random", areas - areas[-1])):
                mean, texts = values.mean(1), values.shape[1]
                half = stats.t.ppf(0.975, texts - 1) * stats.sem(values, axis=1) if texts > 1 else np.nan
                columns |= {what: mean, f"{what}_low": mean - half, f"{what}_high": mean + half}
        columns["randomized_weights"] = self.randomized
        return pd.DataFrame(columns, index=pd.Index(self.methods, name="method"))


def faithfulness(
    model: nn.Module,
    texts: Sequence[str],
    attributions: Attribution | Mapping[str, Attribution],
    tokenizer: Any,
    *,
    steps: int = 20,
    reference: Tensor | None = None,
    seed: int = 0,
) -> Faithfulness:
    """Test whether attributions, by whatever method, rank the tokens as the model uses them.

    Reach for it with the numbers of captum, inseq, lxt or shap, or with `token_shares`: tokens are masked (deletion) or
    shown (insertion) in the order of each attribution, beside a random order. An attribution that is given as a function is
    also computed with shuffled weights (Adebayo et al. 2018): if it stays the same, it does not depend on what was learned.
    An array that has not one number per token is refused.

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    texts : sequence of str
        The texts.
    attributions : list of arrays, function, or mapping of names to these
        For each text one number per token (special tokens included, as the tokenizer gives them), or a function of the
        model and the inputs of one text that returns them.
    tokenizer : tokenizer
        That of the model.
    steps : int, default=20
        At most so many groups of tokens are masked one after the other.
    reference : Tensor of shape (width,), optional
        For an encoder without a head: see `token_shares`.
    seed : int, default=0
        Seed for the random order and the shuffled weights.

    Returns
    -------
    Faithfulness
        Areas of every text and method; `to_frame()` has means and intervals.

    Examples
    --------
    >>> from whichtoken.inspection import faithfulness, load_tokenizer, load_transformer, token_shares
    >>> model, tokenizer = load_transformer("my-model"), load_tokenizer("my-model")
    >>> faithfulness(model, ["a good film", "the bad plot"], token_shares, tokenizer).deletion.shape
    (2, 2)
    """
    check_evaluation(model)
    check_integer("steps", steps, 1)
    texts = check_texts(texts)
    named = dict(attributions) if isinstance(attributions, Mapping) else {"attribution": attributions}
    encoded, _ = encode(tokenizer, texts, longest_text(model, tokenizer))
    for name, method in named.items():
        if not callable(method) and (given := len(method) if hasattr(method, "__len__") else "no") != len(texts):
            raise UsageError(f"{name}: {given} arrays for {len(texts)} texts; give one array per text, or a function")
    shuffled = shuffle_weights(model, seed) if any(map(callable, named.values())) else model
    rng = np.random.default_rng(seed)
    areas = np.empty((2, len(named) + 1, len(texts)))
    same = np.full((len(named) + 1, len(texts)), np.nan)
    for i, ids in enumerate(encoded):
        inputs, special = pad(tokenizer, [ids]), np.isin(ids, tokenizer.all_special_ids)
        rankings = [_ranking(name, method, model, inputs, i, len(ids)) for name, method in named.items()]
        for j, method in enumerate(named.values()):
            if callable(method) and (~special).sum() > 2:
                other = _ranking("with shuffled weights", method, shuffled, inputs, i, len(ids))
                if np.ptp(rankings[j][~special]) and np.ptp(other[~special]):
                    same[j, i] = stats.spearmanr(rankings[j][~special], other[~special]).statistic
        for j, ranking in enumerate([*rankings, rng.permutation(len(ids))]):
            found = curves(model, inputs, ranking, special, steps=steps, reference=reference)
            areas[:, j, i] = found.deletion_area, found.insertion_area
    known = np.isfinite(same)
    mean = np.divide(np.nansum(same, 1), known.sum(1), out=np.full(len(same), np.nan), where=known.any(1))
    return Faithfulness((*named, "random order"), areas[0], areas[1], mean)


def _ranking(
    name: str, method: Attribution, model: Any, inputs: Mapping[str, Tensor], text: int, tokens: int
) -> NDArray[np.float64]:
    given: Any = method(model, inputs) if callable(method) else method[text]
    given = given.detach().cpu().double() if isinstance(given, Tensor) else given
    try:  # complex numbers and words have no order
        found = np.asarray(given).astype(float, casting="same_kind").ravel()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: text {text + 1} has {reprlib.repr(given)}; give one number per token") from error
    if len(found) != tokens or not np.isfinite(found).all():
        raise UsageError(
            f"{name}: text {text + 1} has {tokens} tokens and {np.isfinite(found).sum()} finite numbers; give one per token"
        )
    return found
