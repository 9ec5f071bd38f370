"""Where attention happens in a model: its attention modules in the order of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from whichtoken.errors import UsageError
from whichtoken.inspection.adapters import ADAPTERS, Adapter
from whichtoken.inspection.interface import uses_interface


@dataclass(frozen=True, eq=False)
class Site:
    """One attention module; `layers` are the numbers of its calls in a forward pass (several where layers share weights)."""

    name: str
    module: nn.Module
    adapter: Adapter | None  # None: it is read through transformers' attention interface
    layers: tuple[int, ...]


def find_sites(model: nn.Module, adapters: Sequence[Adapter] = ()) -> list[Site]:
    """The attention modules of a model, in the order in which the model lists them."""
    found: list[tuple[str, nn.Module, Adapter | None]] = []
    for name, module in model.named_modules():
        own = next((adapter for adapter in adapters if adapter.matches(module)), None)
        if own is None and uses_interface(module):
            found.append((name, module, None))
            continue
        adapter = own or next((adapter for adapter in ADAPTERS if adapter.matches(module)), None)
        if adapter is not None:
            found.append((name, module, adapter))
    if not found:
        raise no_attention(model)
    return _numbered(model, found)


def _numbered(model: nn.Module, found: list[tuple[str, nn.Module, Adapter | None]]) -> list[Site]:
    config = getattr(model, "config", None)
    depth = getattr(config, "num_hidden_layers", None)
    shared = getattr(config, "num_hidden_groups", None)  # ALBERT: groups of layers share weights
    if shared is None or not isinstance(depth, int):
        return [Site(name, module, adapter, (i,)) for i, (name, module, adapter) in enumerate(found)]
    each = len(found) // shared  # attention modules of a group, called one after the other
    layers: list[list[int]] = [[] for _ in found]
    for layer in range(depth):
        group = int(layer / (depth / shared))
        for inner in range(each):
            layers[group * each + inner].append(layer * each + inner)
    return [
        Site(name, module, adapter, tuple(calls)) for (name, module, adapter), calls in zip(found, layers, strict=True)
    ]


def no_attention(model: nn.Module) -> UsageError:
    """The sentence for a model in which no attention was recognised: what was seen, and what to write."""
    kinds = list(dict.fromkeys(type(module).__name__ for module in model.modules()))[1:]
    named = [kind for kind in kinds if "atten" in kind.lower()]
    seen = ", ".join((named or kinds)[:8]) or "no modules"
    return UsageError(
        f"no attention was recognised in {type(model).__name__} (seen: {seen}); "
        "if it attends, describe its attention module with a subclass of whichtoken.inspection.Adapter: see docs/inspect.md"
    )
