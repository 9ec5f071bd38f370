"""How it moves: torch optimisers, compiled descents and flows, one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whichtoken.optim.mirror_descent import MirrorDescent

__all__ = ["MirrorDescent"]


def __getattr__(name: str) -> Any:
    # imported when asked for, because torch takes seconds and the compiled descents do without it
    if name == "MirrorDescent":
        from whichtoken.optim.mirror_descent import MirrorDescent

        return MirrorDescent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
