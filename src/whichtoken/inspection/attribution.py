"""Which tokens decided: with every selection held as it was, a transformer is linear, and each token's share is exact.

Attention weights, scales of normalisations and gates of activations are held at their values on this text. What remains is
a linear network with the same output. Its gradient times the embedding of a token is what the token contributed: one
forward and one backward pass, no sampling, and the shares of tokens and biases add up to the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.errors import UsageError
from whichtoken.inspection.anatomy import anatomy, frozen_norm, is_activation, is_norm
from whichtoken.inspection.decision import decision
from whichtoken.inspection.sites import find_sites

TINY = 1e-6


def token_shares(model: nn.Module, inputs: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """What each token of one text (1, tokens) contributed to the decision, with the selections held: (tokens,).

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    inputs : Mapping[str, Tensor]
        One text, as the tokenizer gives it.

    Returns
    -------
    array of shape (tokens,)
        Shares of the decision.

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
    """While it lasts, gradients flow as if attention weights, norms and gates were constants; yields the embeddings."""
    embedded: list[Tensor] = []

    def start(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        embedded[:] = [output.detach().requires_grad_()]
        return embedded[0]

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.callback(input_embedding(model).register_forward_hook(start).remove)
        for site in find_sites(model):
            _hold_attention(model, site, stack)
        for module in model.modules():
            if is_norm(module):
                hook = lambda module, args, output: frozen_norm(module, args[0], output)  # noqa: E731
                stack.callback(module.register_forward_hook(hook).remove)
            elif is_activation(module):
                stack.callback(module.register_forward_hook(_gate).remove)
            elif hasattr(module, "gate_proj") and isinstance(module.gate_proj, nn.Module):
                stack.callback(module.gate_proj.register_forward_hook(_constant).remove)
        yield embedded


def _hold_attention(model: nn.Module, site: Any, stack: ExitStack) -> None:
    module = site.module
    if isinstance(module, nn.MultiheadAttention):

        def detached(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            return args[3:], given | {"query": given["query"].detach(), "key": given["key"].detach()}

        stack.callback(module.register_forward_pre_hook(detached, with_kwargs=True).remove)
        return
    projections = anatomy(model, site).query_key()
    if projections is not None:
        for projection in projections:
            stack.callback(projection.register_forward_hook(_constant).remove)
    elif hasattr(module, "c_attn"):  # GPT-2: queries, keys and values side by side
        stack.callback(module.c_attn.register_forward_hook(_constant_two_thirds).remove)
    else:
        raise UsageError(f"the query and key projections of {type(module).__name__} were not found; shares need them")


def _constant(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.detach()


def _constant_two_thirds(module: nn.Module, args: Any, output: Tensor) -> Tensor:
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
