"""Where attention happens in a model: its attention modules in the order of the layers, and the modules around each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.adapters import ADAPTERS, Adapter, uses_interface

QUERY_KEY = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"), ("query_proj", "key_proj"), ("q", "k"))
OUTPUT = ("o_proj", "out_proj", "out_lin", "dense", "c_proj", "wo", "Wo", "o")
ACTIVATIONS = ("gelu", "relu", "silu", "tanh", "sigmoid", "activation", "swish")
_forms: WeakKeyDictionary[nn.Module, tuple[bool, int]] = WeakKeyDictionary()  # of the norms that were tried


@dataclass(frozen=True, eq=False)
class Site(Shown):
    """One attention module; `layers` are the numbers of its calls in a forward pass (several where layers share weights)."""

    name: str
    module: nn.Module
    adapter: Adapter | None  # None: it is read through transformers' attention interface, or traced
    layers: tuple[int, ...]


def find_sites(model: nn.Module, adapters: Sequence[Adapter] = ()) -> list[Site]:
    """The attention modules of a model, in the order in which the model lists them."""
    found: list[tuple[str, nn.Module, Adapter | None]] = []
    for name, module in model.named_modules():
        adapter = next((adapter for adapter in (*adapters, *ADAPTERS) if adapter.matches(module)), None)
        if adapter is not None or uses_interface(module) or _is_innermost_attention(module):
            found.append((name, module, adapter))
    # what stands inside a module that is read is part of it
    outer = tuple(f"{name}." for name, module, adapter in found if adapter is not None or uses_interface(module))
    found = [item for item in found if not item[0].startswith(outer)]
    if not found:
        kinds = list(dict.fromkeys(type(module).__name__ for module in model.modules()))[1:]
        named = [kind for kind in kinds if "atten" in kind.lower()]
        raise UsageError(
            f"no attention was recognized in {type(model).__name__} (seen: {', '.join((named or kinds)[:8]) or 'no modules'});"
            " if it attends, describe its attention module with a subclass of whichtoken.inspection.Adapter: see docs/inspect.md"
        )
    config = getattr(model, "config", None)
    depth = getattr(config, "num_hidden_layers", None)
    shared = getattr(config, "num_hidden_groups", None)  # ALBERT: groups of layers share weights
    if shared is None or not isinstance(depth, int):
        return [Site(*parts, (i,)) for i, parts in enumerate(found)]
    each = len(found) // shared  # attention modules of a group, called one after the other
    layers: list[list[int]] = [[] for _ in found]
    for layer in range(depth):
        group = int(layer / (depth / shared))
        for inner in range(each):
            layers[group * each + inner].append(layer * each + inner)
    return [Site(*parts, tuple(calls)) for parts, calls in zip(found, layers, strict=True)]


def find_decoder(model: Any) -> tuple[str, nn.Module] | None:
    """The decoder of an encoder-decoder model and its name in it; it reads other tokens than the encoder."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    decoder = model.get_decoder()
    return next(((name, part) for name, part in model.named_modules() if name and part is decoder), None)


def _is_innermost_attention(module: nn.Module) -> bool:
    """A module that is called attention and has none inside: it is traced."""
    if "atten" not in type(module).__name__.lower():
        return False
    inside = [part for part in module.modules() if "atten" in type(part).__name__.lower()]
    return inside == [module]


@dataclass(frozen=True, eq=False)
class Anatomy:
    """One attention module and its surroundings."""

    site: Site
    output: nn.Module  # its output projection
    feed_forward: nn.Module | None  # the last projection of the feed-forward part of its layer
    layer: nn.Module  # what holds both

    @property
    def functional(self) -> bool:
        """Torch's own attention applies its projections without calling them as modules."""
        return isinstance(self.site.module, nn.MultiheadAttention)

    def output_weight(self, heads: int, dim: int) -> Tensor:
        """What each head's output is multiplied with: (heads, head dim, width)."""
        weight = linear_weight(self.output)  # (width, heads * head dim)
        if weight.shape[1] != heads * dim:
            raise UsageError(
                f"the output projection of {type(self.site.module).__name__} takes more than what its heads give; "
                "effects need one that does not, picks do not"
            )
        return weight.T.reshape(heads, -1, weight.shape[0])

    def query_key(self) -> tuple[nn.Module, nn.Module] | None:
        """The query and key projections, where they are modules of their own."""
        for names in QUERY_KEY:
            query, key = (getattr(self.site.module, name, None) for name in names)
            if isinstance(query, nn.Module) and isinstance(key, nn.Module):
                return query, key
        return None


def linear_weight(module: Any) -> Tensor:
    """Weight of a projection as (outputs, inputs); GPT-2 stores it the other way round."""
    weight: Tensor = module.weight
    return weight if isinstance(module, nn.Linear) else weight.T


def anatomy(model: nn.Module, site: Site) -> Anatomy:
    """Find the parts around an attention module by the names that models use."""
    parts = site.name.split(".") if site.name else []
    ancestors = [model.get_submodule(".".join(parts[:i])) for i in range(len(parts) - 1, -1, -1)]
    places = [site.module, *(getattr(parent, "output", None) for parent in ancestors[:1])]
    candidates = (getattr(place, name, None) for place in places for name in OUTPUT)
    output = next((module for module in candidates if _is_linear(module)), None)
    if output is None:
        raise UsageError(
            f"the output projection of {type(site.module).__name__} was not found (looked for {', '.join(OUTPUT)}); "
            "effects need it, picks do not"
        )
    own = {id(part) for part in site.module.modules()} | {id(output)}
    for layer in ancestors:
        others = [part for part in layer.modules() if _is_linear(part) and id(part) not in own]
        if others:
            return Anatomy(site, output, others[-1], layer)
    return Anatomy(site, output, None, site.module)


def _is_linear(module: Any) -> bool:
    """A linear map: torch's, or the transposed one of GPT-2."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def input_embedding(model: Any) -> nn.Module:
    """The table of token embeddings."""
    if hasattr(model, "get_input_embeddings"):
        found = model.get_input_embeddings()
        if isinstance(found, nn.Module):
            # T5 and BART never call the table that encoder and decoder share: each has a module of its own with these weights
            twins = [part for part in model.modules() if isinstance(part, nn.Embedding) and part.weight is found.weight]
            return twins[1] if len(twins) > 1 else found
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables:
        raise UsageError(f"{type(model).__name__} has no table of token embeddings; shares and reasons need one")
    return tables[0]


def is_activation(module: nn.Module) -> bool:
    """An activation function that is a module without parameters, such as GELU or Tanh."""
    name = type(module).__name__.lower()
    bare = not list(module.children()) and not list(module.parameters())
    return bare and any(known in name for known in ACTIVATIONS)


def check_evaluation(model: nn.Module) -> None:
    """Refuse a model whose dropout would make every run another one."""
    # of a module, or a number that a layer gives to functional dropout
    rates = (
        getattr(part, name, None)
        for part in model.modules()
        if part.training
        for name in (("p",) if "Dropout" in type(part).__name__ else ("dropout", "attention_dropout"))
    )
    if any(isinstance(rate, int | float) and rate for rate in rates):
        raise UsageError(f"{type(model).__name__} is in training mode with dropout on; call model.eval() first")


def hook(stack: ExitStack, module: nn.Module, function: Callable[..., Any]) -> None:
    """Call `function` after each forward pass of a module until the stack is closed."""
    stack.callback(module.register_forward_hook(function).remove)


def find_norms(model: nn.Module) -> list[nn.Module]:
    """The layer norms and RMS norms of a model that have weights."""
    names = ("LayerNorm", "RMSNorm")
    return [
        part for part in model.modules() if type(part).__name__.endswith(names) and getattr(part, "weight", None) is not None
    ]  # fmt: skip


def freeze_norms(norms: Sequence[nn.Module], stack: ExitStack) -> None:
    """Until the stack is closed, gradients flow through the norms as if their scales were constants."""
    for module in norms:
        hook(stack, module, _frozen_norm)


def _frozen_norm(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The same output, as a linear map of the input: the scale is held at this point."""
    if module not in _forms:
        _forms[module] = _norm_form(module, args[0], output)
    held: Tensor = _HeldNorm.apply(output, args[0], getattr(module, "bias", None), module)  # type: ignore[no-untyped-call]
    return held


def _scale(module: Any, x: Tensor, centered: bool) -> Tensor:
    """What a norm multiplies each row with, in single precision at least."""
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    epsilon = getattr(module, "eps", getattr(module, "variance_epsilon", 1e-6))
    if centered:  # a kernel of its own; torch's variance takes several times as long
        return torch.native_layer_norm(wide, wide.shape[-1:], None, None, epsilon)[2]
    return (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()


@torch.no_grad()
def _norm_form(module: Any, x: Tensor, output: Tensor) -> tuple[bool, int]:
    """Whether a norm subtracts the mean, and what it adds to its weight: the form that gives the module's own output.

    Names say little: T5's layer norm does not subtract the mean, and some RMS norms multiply by 1 + weight.
    """
    name, bias = type(module).__name__, getattr(module, "bias", None)
    likely = ("RMS" not in name, int("Gemma" in name))
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    for centered, shift in sorted(product((True, False), (0, 1)), key=lambda form: form != likely):
        middle = wide - wide.mean(-1, keepdim=True) if centered else wide
        linear = (middle * _scale(module, x, centered)).to(x.dtype) * (module.weight + shift)
        # padding may be NaN
        rest = (output - (linear if bias is None else linear + bias)).nan_to_num(0.0)
        if rest.abs().max() <= max(1e-5, 4 * torch.finfo(output.dtype).eps) * output.nan_to_num(0.0).abs().max():
            return centered, shift
    raise UsageError(
        f"{name} is not a layer norm or RMS norm of a known form; shares and reasons have to hold its scale"
    )


class _HeldNorm(torch.autograd.Function):
    """The output of a norm, with the gradient of `x * scale * weight + bias`.

    The scale is computed on the way back: most norms stand before a part whose output is held, and are never reached.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, bias: Tensor | None, module: nn.Module) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        centered, shift = _forms[ctx.module]
        # padding may be NaN; nothing flows there
        scale = _scale(ctx.module, ctx.saved_tensors[0], centered).nan_to_num(0.0)
        flow = gradients[0] * (ctx.module.weight.detach() + shift) * scale
        flow = flow - flow.mean(-1, keepdim=True) if centered else flow
        bias = gradients[0].flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return None, flow.to(gradients[0].dtype), bias, None
