"""The parts around an attention module: its projections, the block it stands in, and what writes to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whichtoken.errors import UsageError
from whichtoken.inspection.sites import Site

QUERY_KEY = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"), ("query_proj", "key_proj"))
OUTPUT = ("o_proj", "out_proj", "out_lin", "dense", "c_proj", "wo")
NORMS = ("LayerNorm", "RMSNorm")


@dataclass(frozen=True, eq=False)
class Anatomy:
    """One attention module and its surroundings."""

    site: Site
    output: nn.Module  # its output projection
    block: nn.Module  # the layer with attention and feed-forward part
    feed_forward: nn.Module | None  # the last projection of the feed-forward part

    @property
    def functional(self) -> bool:
        """Torch's own attention applies its projections without calling them as modules."""
        return isinstance(self.site.module, nn.MultiheadAttention)

    def output_weight(self, heads: int) -> Tensor:
        """What each head's output is multiplied with: (heads, head dim, width)."""
        weight = linear_weight(self.output)  # (width, heads * head dim)
        return weight.T.reshape(heads, -1, weight.shape[0])

    def query_key(self) -> tuple[nn.Module, nn.Module] | None:
        """The query and key projections, where they are modules of their own."""
        module: Any = self.site.module
        for query, key in QUERY_KEY:
            if isinstance(getattr(module, query, None), nn.Module) and isinstance(
                getattr(module, key, None), nn.Module
            ):
                return getattr(module, query), getattr(module, key)
        return None


def linear_weight(module: Any) -> Tensor:
    """Weight of a projection as (outputs, inputs); GPT-2 stores it the other way round."""
    weight: Tensor = module.weight
    return weight if isinstance(module, nn.Linear) else weight.T


def anatomy(model: nn.Module, site: Site) -> Anatomy:
    """Find the parts around an attention module by the names that models use."""
    parts = site.name.split(".") if site.name else []
    ancestors = [model.get_submodule(".".join(parts[:i])) for i in range(len(parts) - 1, -1, -1)]
    output = _output(site.module, ancestors)
    own = {id(part) for part in site.module.modules()} | {id(output)}
    for block in ancestors:
        others = [part for part in block.modules() if is_linear(part) and id(part) not in own]
        if others:
            return Anatomy(site, output, block, others[-1])
    return Anatomy(site, output, ancestors[0] if ancestors else site.module, None)


def _output(module: nn.Module, ancestors: list[nn.Module]) -> nn.Module:
    for place in (module, *(getattr(parent, "output", None) for parent in ancestors[:1])):
        for name in OUTPUT:
            if place is not None and is_linear(getattr(place, name, None)):
                found: nn.Module = getattr(place, name)
                return found
    raise UsageError(
        f"the output projection of {type(module).__name__} was not found (looked for {', '.join(OUTPUT)}); "
        "effects need it, picks do not"
    )


def is_linear(module: Any) -> bool:
    """A linear map: torch's, or the transposed one of GPT-2."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def is_norm(module: nn.Module) -> bool:
    """A normalisation of the residual stream."""
    return type(module).__name__.endswith(NORMS) and getattr(module, "weight", None) is not None


def is_activation(module: nn.Module) -> bool:
    """An activation function that is a module without parameters, such as GELU or Tanh."""
    name = type(module).__name__.lower()
    return not list(module.children()) and not list(module.parameters()) and any(
        sign in name for sign in ("gelu", "relu", "silu", "tanh", "sigmoid", "activation", "swish")
    )  # fmt: skip


def frozen_norm(module: Any, x: Tensor, output: Tensor) -> Tensor:
    """The same output, as a linear map of the input: the scale is held at this point."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    centred = x.to(dtype)
    epsilon = getattr(module, "eps", getattr(module, "variance_epsilon", 1e-6))
    if "RMS" not in type(module).__name__:
        centred = centred - centred.mean(-1, keepdim=True)
    scale = (centred.detach().square().mean(-1, keepdim=True) + epsilon).rsqrt()
    weight = 1 + module.weight if "Gemma" in type(module).__name__ else module.weight  # as Gemma's modules do
    linear: Tensor = (centred * scale).to(x.dtype) * weight
    return linear + (output - linear).detach()  # the value stays the module's own, to the last bit
