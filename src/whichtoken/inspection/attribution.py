"""Which tokens decided: shares of the tokens in a decision, and how faithful any such ranking is to the model.

Attention weights, scales of normalizations and gates of activations are held at their values on this text. What remains is
a linear network with the same output. Its gradient times the embedding of a token is what the token contributed: one
forward and one backward pass, no sampling, and the shares of tokens and biases add up to the decision. Holding attention and
normalizations is the conservative propagation of Ali et al. 2022, "XAI for Transformers: Better Explanations through
Conservative Propagation" (arXiv 2202.07304); holding also the gates makes it exact for feed-forward layers. AttnLRP (Achtibat et
al. 2024, package lxt) lets half of the relevance flow through queries and keys instead.
"""

from __future__ import annotations

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
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from whichtoken.checks import check_integer
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection import sites
from whichtoken.inspection.corpus import check_texts, encode, longest_text, pad, shuffle_weights
from whichtoken.inspection.effects import check_linear, decision, repeat_text
from whichtoken.inspection.sites import Site, anatomy, check_evaluation, hook

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
