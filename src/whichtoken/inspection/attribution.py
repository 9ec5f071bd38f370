"""Which tokens decided: exact shares of the tokens in a decision, and methods to compare them with.

Attention weights, scales of normalizations and gates of activations are held at their values on this text. What remains is
a linear network with the same output. Its gradient times the embedding of a token is what the token contributed: one
forward and one backward pass, no sampling, and the shares of tokens and biases add up to the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from whichtoken.errors import UsageError
from whichtoken.inspection.effects import decision, repeat_text
from whichtoken.inspection.sites import Site, anatomy, find_sites, freeze_norms, hook, is_activation

TINY = 1e-6


def token_shares(model: nn.Module, inputs: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """Explain a decision by its tokens: what each token of one text contributed to it, (tokens,).

    Reach for it when you want to know which words decided, at the price of one forward and one backward pass. Attention
    weights, scales of normalizations and gates of activations are held at their values, so that the model is linear: the
    shares of the tokens and of the biases then add up to the decision exactly. What would change if a weight changed is not
    part of a share. A model without token embeddings, or whose query and key projections are not found, is refused.

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    inputs : Mapping[str, Tensor]
        One text (1, tokens), as the tokenizer gives it.

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
    with selections_held(model) as embedded:
        output = model(**inputs)
        _, score = decision(output)
        [gradient] = torch.autograd.grad(score(output).sum(), [embedded[0]])
    shares = (gradient * embedded[0]).sum(-1)[0]
    return shares.detach().double().numpy()


@contextmanager
def selections_held(model: nn.Module) -> Iterator[list[Tensor]]:
    """A context in which gradients flow as if attention weights, norms and gates were constants; yields the embeddings."""
    embedded: list[Tensor] = []

    def start(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        embedded[:] = [output.detach().requires_grad_()]
        return embedded[0]

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        hook(stack, input_embedding(model), start)
        for site in find_sites(model):
            _hold_attention(model, site, stack)
        freeze_norms(model, stack)
        for module in model.modules():
            if is_activation(module):
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


def _gate(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The activation as a gate: output = input times a constant."""
    x = args[0]
    gate = torch.where(x.abs() > TINY, output / torch.where(x.abs() > TINY, x, 1.0), 0.0).detach()
    linear = x * gate
    return linear + (output - linear).detach()


def input_embedding(model: Any) -> nn.Module:
    """The table of token embeddings."""
    if hasattr(model, "get_input_embeddings"):
        found = model.get_input_embeddings()
        if isinstance(found, nn.Module):
            return found
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables:
        raise UsageError(f"{type(model).__name__} has no table of token embeddings; shares of tokens need one")
    return tables[0]


@dataclass(frozen=True, eq=False)
class Curves:
    """Probability of the decided class as tokens are deleted or inserted in the order of a ranking.

    An area is the mean over the steps: a ranking that is true to the model has a small deletion area and a large insertion
    area.
    """

    deletion: NDArray[np.float64]  # (tokens + 1,)
    insertion: NDArray[np.float64]

    @property
    def deletion_area(self) -> float:
        return float(np.mean(self.deletion))

    @property
    def insertion_area(self) -> float:
        return float(np.mean(self.insertion))


@torch.no_grad()
def curves(model: nn.Module, inputs: Mapping[str, Tensor], ranking: ArrayLike, is_special: NDArray[np.bool_]) -> Curves:
    """Both curves of one text (1, tokens) under a ranking (tokens,), largest first; special tokens always stay.

    A deleted token is masked in every layer.
    """
    order = [int(i) for i in np.argsort(-np.asarray(ranking), kind="stable") if not is_special[i]]
    deleted = torch.ones(len(order) + 1, len(is_special), dtype=torch.long)
    inserted = torch.ones_like(deleted)
    for step, token in enumerate(order, 1):
        deleted[step:, token] = 0
        inserted[:step, token] = 0
    _, score = decision(model(**inputs))
    strength = score(_masked(model, inputs, torch.cat([deleted, inserted])))
    return Curves(*np.split(torch.sigmoid(strength).double().numpy(), 2))


@torch.no_grad()
def occlusion(model: nn.Module, inputs: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """How much weaker the decision is without each token, masked in every layer: one forward pass per token."""
    output = model(**inputs)
    _, score = decision(output)
    tokens = inputs["input_ids"].shape[1]
    masks = torch.ones(tokens, tokens, dtype=torch.long) - torch.eye(tokens, dtype=torch.long)
    return (score(output) - score(_masked(model, inputs, masks))).double().numpy()


def integrated_gradients(
    model: Any,
    inputs: Mapping[str, Tensor],
    is_special: NDArray[np.bool_],
    *,
    baseline: int = 0,
    steps: int = 50,
    batch: int = 10,
) -> NDArray[np.float64]:
    """Integrated gradients (Sundararajan et al. 2017), from a text of `baseline` tokens that keeps the special ones."""
    ids = inputs["input_ids"]
    with torch.no_grad():
        _, score = decision(model(**inputs))
        table = input_embedding(model)
        start = table(torch.where(torch.as_tensor(is_special), ids, baseline))
        way = table(ids) - start  # (1, tokens, width)
    total = torch.zeros_like(way)
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    for part in torch.split((torch.arange(steps, dtype=way.dtype) + 0.5) / steps, batch):
        points = (start + part[:, None, None] * way).requires_grad_()
        with torch.enable_grad():
            strength = score(model(inputs_embeds=points, **repeat_text(rest, len(part)))).sum()
        total += torch.autograd.grad(strength, points)[0].sum(0)
    shares: NDArray[np.float64] = (total / steps * way).sum(-1)[0].double().numpy()
    return shares


def _masked(model: Any, inputs: Mapping[str, Tensor], masks: Tensor) -> Any:
    return model(**(repeat_text(inputs, len(masks)) | {"attention_mask": masks}))
