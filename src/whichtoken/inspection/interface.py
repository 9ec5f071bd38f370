"""Listening at the one door through which transformers' models compute attention, whatever kernel is behind it.

Their modules call `attention_interface(module, query, key, value, mask, ...)`, with eager, sdpa or flash attention behind
it. While anybody listens, the names by which a modelling file finds that function lead through `_through`, which passes
everything on and tells the listeners of the module. Nothing of the model is changed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn

from whichtoken.inspection.adapters import Heads

Listener = Callable[[Heads], None]
TABLE, EAGER = "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"

_lock = threading.RLock()
_listeners: dict[int, list[Listener]] = {}  # by the id of the module
_replaced: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # globals of a modelling file, and what was there


def uses_interface(module: nn.Module) -> bool:
    """Whether the forward pass of a module asks transformers' table of attention functions."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and TABLE in code.co_names


def listen(module: nn.Module, listener: Listener) -> Callable[[], None]:
    """Tell `listener` what the module attends with; returns the function that ends it."""
    names = inspect.unwrap(type(module).forward).__globals__
    with _lock:
        if id(names) not in _replaced:
            _replaced[id(names)] = (names, {name: names[name] for name in (TABLE, EAGER) if name in names})
            names[TABLE] = _Table(names[TABLE])
            if EAGER in names:
                names[EAGER] = _through(names[EAGER], "eager")
        _listeners.setdefault(id(module), []).append(listener)

    def stop() -> None:
        with _lock:
            _listeners[id(module)].remove(listener)
            if not _listeners[id(module)]:
                del _listeners[id(module)]
            if not _listeners:
                _restore()

    return stop


def _restore() -> None:
    for names, originals in _replaced.values():
        names.update(originals)
    _replaced.clear()


class _Table:
    """The table of attention functions, whose functions tell the listeners."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __getitem__(self, name: str) -> Any:
        return _through(self._table[name], name)

    def get_interface(self, name: str, default: Any) -> Any:
        return _through(self._table.get_interface(name, default), name)


def _through(function: Any, kind: str) -> Any:
    if getattr(function, "_whichtoken", False):
        return function

    @wraps(function)
    def passed(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        output = function(module, query, key, value, *args, **kwargs)
        listeners = _listeners.get(id(module))
        if listeners:
            mask = args[0] if args else kwargs.get("attention_mask")
            heads = _as_heads(kind, module, query, key, value, mask, kwargs, output[0])
            for listener in tuple(listeners):
                listener(heads)
        return output

    passed._whichtoken = True  # type: ignore[attr-defined]
    return passed


def _as_heads(
    kind: str,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    options: dict[str, Any],
    context: Tensor,
) -> Heads:
    window, given = options.get("sliding_window"), options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if given is None else given)
    if kind == "eager":
        causal = False  # its mask says everything
    elif kind == "sdpa":  # a mask says everything; without one the kernel is told to be causal
        causal = causal and mask is None and query.shape[2] > 1
        if causal and key.shape[2] > query.shape[2]:  # a static cache, filled as far as the queries go
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    explicit = kind in ("eager", "sdpa")  # flash attention applies the window itself
    return Heads(
        query, key, value, causal=causal, context=context,
        # block masks of flex attention are no tensors: causality and window are all that is known of them here
        mask=mask if isinstance(mask, Tensor) else None,
        window=None if explicit else window, window_in_mask=window if explicit else None,
        scale=_scale(kind, module, query, options), softcap=options.get("softcap"), null=options.get("s_aux"),
        bias=options.get("position_bias"),
    )  # fmt: skip


def _scale(kind: str, module: Any, query: Tensor, options: dict[str, Any]) -> float:
    if options.get("scaling") is not None:
        return float(options["scaling"])
    scale = query.shape[-1] ** -0.5
    if kind == "eager" and hasattr(module, "scale_attn_weights"):  # GPT-2 of transformers 4 scales inside
        scale = scale if module.scale_attn_weights else 1.0
        scale /= module.layer_idx + 1 if module.scale_attn_by_inverse_layer_idx else 1
    return float(scale)
