"""Looking into a transformer: which token each head picks, how surely, and does it matter. Loaded when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.inspection.adapters import Adapter, Heads
    from whichtoken.inspection.picks import Picks
    from whichtoken.inspection.probe import AttentionProbe

_HOME = {
    "Adapter": "adapters",
    "AttentionProbe": "probe",
    "Heads": "adapters",
    "Picks": "picks",
}

__all__ = ["Adapter", "AttentionProbe", "Heads", "Picks"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
