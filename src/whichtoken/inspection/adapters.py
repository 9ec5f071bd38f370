"""How queries, keys and values are read from each kind of attention module.

Modules of torch and older models of transformers are read by an `Adapter`: one for each kind, and yours for a kind of your
own. Newer models of transformers all call `attention_interface(module, query, key, value, mask, ...)`, with eager, sdpa or
flash attention behind it. While a module has a listener, the names by which its modeling file finds that function lead to a
wrapper that calls the function and passes the arguments to the listener. The model itself is not changed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError


@dataclass(frozen=True, eq=False)
class Heads(Shown):
    """What an adapter returns: the arguments of softmax attention in one call of a module.

    Reach for it when you write an `Adapter`. Only query, key and value are needed; the other fields say what else the module
    does to its scores. What you leave out is taken as absent.

    Attributes
    ----------
    query : Tensor
        (batch, heads, queries, dim).
    key : Tensor
        (batch, key heads, keys, dim).
    value : Tensor
        (batch, key heads, keys, value dim).
    mask : Tensor
        Flags (True: may be picked) or numbers to add to the scores, up to (batch, heads, queries, keys), or (batch, keys).
    causal : bool
        Whether a query sees only the keys up to its own position.
    window : int
        Each query sees only this many of the latest keys.
    window_in_mask : int
        The same window, if the mask already contains it: a mask that says no more is not stored as a square.
    scale : float
        Factor of the scores; None: one over the square root of dim.
    softcap : float
        Bound on the scores, if the model has one.
    null : Tensor of shape (heads,) or None
        Score of a null token that takes attention and has value 0.
    bias : Tensor
        Added to the scores, up to (batch, heads, queries, keys).
    context : Tensor
        (batch, queries, heads, value dim): the module's own result, against which the recomputed one is checked.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.inspection import Heads
    >>> heads = Heads(query=torch.ones(1, 2, 3, 4), key=torch.ones(1, 2, 3, 4), value=torch.ones(1, 2, 3, 4), causal=True)
    >>> heads.scale is None, heads.causal
    (True, True)
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    causal: bool = False
    window: int | None = None
    window_in_mask: int | None = None
    scale: float | None = None
    softcap: float | None = None
    null: Tensor | None = None
    bias: Tensor | None = None
    context: Tensor | None = None


class Adapter:
    """Base class for reading a kind of attention module that `AttentionProbe` does not know.

    Reach for it when a probe says that no attention was recognized in your model. `matches` says whether a module is of this
    kind; `read` is called after each of its forward passes with the arguments and the output, and returns `Heads`: the
    queries, keys and values behind that output.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.inspection import Adapter, AttentionProbe, Heads
    >>> class Tiny(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.softmax(x @ x.mT, -1) @ x
    >>> class TinyAdapter(Adapter):
    ...     def matches(self, module):
    ...         return isinstance(module, Tiny)
    ...     def read(self, module, args, kwargs, output):
    ...         x = args[0][:, None]  # one head
    ...         return Heads(x, x, x, scale=1.0)
    >>> model = torch.nn.Sequential(Tiny())
    >>> with AttentionProbe(model, adapters=[TinyAdapter()]) as probe:
    ...     _ = model(torch.eye(3)[None])
    >>> probe.picks(layer=0).token.tolist()  # each token picks itself
    [[[0, 1, 2]]]
    """

    def matches(self, module: nn.Module) -> bool:
        raise NotImplementedError

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        raise NotImplementedError


TORCH_ARGUMENTS = (
    "query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal"
)  # fmt: skip


class TorchAttention(Adapter):
    """`torch.nn.MultiheadAttention`, alone or inside `TransformerEncoderLayer`, with or without its fast path."""

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, nn.MultiheadAttention)

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        given = dict(zip(TORCH_ARGUMENTS, args, strict=False)) | kwargs
        if module.bias_k is not None:
            raise UsageError("attention with add_bias_kv=True cannot be inspected: one of its keys is not a token")
        # the encoder's fast path packs padded texts
        if given["key"].is_nested:
            lengths = torch.tensor([len(text) for text in given["key"].unbind()])
            given |= {name: given[name].to_padded_tensor(0.0) for name in ("query", "key", "value")}
            given["key_padding_mask"] = torch.arange(given["key"].shape[1]) >= lengths[:, None]
        if module._qkv_same_embed_dim:
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        parts = []
        for x, weight, bias in zip((given["query"], given["key"], given["value"]), weights, biases, strict=True):
            batch_first = x[None] if x.dim() == 2 else x if module.batch_first else x.transpose(0, 1)
            parts.append(_split_heads(functional.linear(batch_first, weight, bias), module.num_heads))
        query, key, value = parts
        mask, added = self._masks(module, given, len(query))
        # a key of zeros has score 0
        null = query.new_zeros(module.num_heads) if module.add_zero_attn else None
        return Heads(query, key, value, mask=mask, bias=added, null=null)

    def _masks(self, module: Any, given: dict[str, Any], batch: int) -> tuple[Tensor | None, Tensor | None]:
        """Flags of the keys that may be picked (torch's own flags forbid), and what is added to the scores."""
        allowed, added = None, None
        for name in ("key_padding_mask", "attn_mask"):
            mask = given.get(name)
            if mask is None:
                continue
            mask = mask if mask.dim() > 1 else mask[None]
            if name == "key_padding_mask":
                mask = mask[:, None, None, :]
            elif mask.dim() == 3:
                mask = mask.view(batch, module.num_heads, *mask.shape[1:])
            else:
                mask = mask[None, None]
            flags = ~mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            allowed = flags if allowed is None else allowed & flags
            if mask.dtype != torch.bool and bool((mask[flags] != 0).any()):
                numbers = mask.masked_fill(~flags, 0.0)
                added = numbers if added is None else added + numbers
        return allowed, added


class NamedProjections(Adapter):
    """BERT, RoBERTa, ALBERT and DistilBERT before transformers 5, which compute attention in a method of their own.

    Recognized by the names of their projections. Relative positions inside the scores are not supported.
    """

    NAMES = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))

    def matches(self, module: nn.Module) -> bool:
        plain = getattr(module, "position_embedding_type", "absolute") in ("absolute", None)
        return plain and self._names(module) is not None and self._head_count(module) is not None

    def _names(self, module: nn.Module) -> tuple[str, str, str] | None:
        linear = lambda name: isinstance(getattr(module, name, None), nn.Linear)  # noqa: E731
        return next((names for names in self.NAMES if all(map(linear, names))), None)

    def _head_count(self, module: nn.Module) -> int | None:
        counts = (getattr(module, name, None) for name in ("num_attention_heads", "n_heads", "num_heads"))
        return next((count for count in counts if isinstance(count, int)), None)

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        names = self._names(module)
        assert names is not None
        if names[0] == "q_lin":
            given = dict(zip(("query", "key", "value", "mask"), args, strict=False)) | kwargs
            hidden, mask = given["query"], given.get("mask")
            mask = mask if mask is None or mask.dim() > 2 else mask != 0
        else:
            given = dict(zip(("hidden_states", "attention_mask"), args, strict=False)) | kwargs
            hidden, mask = given["hidden_states"], given.get("attention_mask")
        count = self._head_count(module) or 1
        query, key, value = (_split_heads(getattr(module, name)(hidden), count) for name in names)
        # without an output projection inside, the module's output is that of the heads
        bare = not any(hasattr(module, name) for name in ("dense", "out_lin"))
        context = output[0].view(*output[0].shape[:2], count, -1) if bare else None
        return Heads(query, key, value, mask=mask, context=context)


DEBERTA_ARGUMENTS = (
    "hidden_states", "attention_mask", "output_attentions", "query_states", "relative_pos", "rel_embeddings"
)  # fmt: skip


class Disentangled(Adapter):
    """DeBERTa (v2 and v3): the scores of relative positions are a bias, recomputed by the module's own method."""

    def matches(self, module: nn.Module) -> bool:
        return hasattr(module, "disentangled_attention_bias") and hasattr(module, "query_proj")

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        given = dict(zip(DEBERTA_ARGUMENTS, args, strict=False)) | kwargs
        hidden = given["hidden_states"]
        asking = hidden if given.get("query_states") is None else given["query_states"]
        count = module.num_attention_heads
        pairs = (module.query_proj, asking), (module.key_proj, hidden), (module.value_proj, hidden)
        query, key, value = (_split_heads(projection(x), count) for projection, x in pairs)
        factor = 1 + sum(kind in module.pos_att_type for kind in ("c2p", "p2c"))
        bias = None
        if module.relative_attention:
            flat = [part.reshape(-1, *part.shape[2:]) for part in (query, key)]
            found = module.disentangled_attention_bias(
                *flat, given.get("relative_pos"), given["rel_embeddings"], factor
            )
            bias = found.view(len(query), count, *found.shape[-2:]) if isinstance(found, Tensor) else None
        # in single precision, as the module computes it
        scale = 1 / float(torch.sqrt(torch.tensor(query.shape[-1] * factor, dtype=torch.float)))
        return Heads(query, key, value, mask=given["attention_mask"].bool(), bias=bias, scale=scale)


def _split_heads(x: Tensor, count: int) -> Tensor:
    """(batch, tokens, width) to (batch, heads, tokens, dim)."""
    return x.view(*x.shape[:-1], count, x.shape[-1] // count).transpose(1, 2)


ADAPTERS: tuple[Adapter, ...] = (TorchAttention(), Disentangled(), NamedProjections())

Listener = Callable[[Heads], None]
TABLE, EAGER = "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"

_lock = threading.RLock()
_listeners: dict[int, list[Listener]] = {}  # by the id of the module
_replaced: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # globals of a modeling file, and their old values


def uses_interface(module: nn.Module) -> bool:
    """Whether the forward pass of a module takes its attention function from transformers' table."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and TABLE in code.co_names


def listen(module: nn.Module, listener: Listener) -> Callable[[], None]:
    """Call `listener` with the arguments of each attention call of the module; returns the function that stops it."""
    names = inspect.unwrap(type(module).forward).__globals__
    with _lock:
        if id(names) not in _replaced:
            _replaced[id(names)] = (names, {name: names[name] for name in (TABLE, EAGER) if name in names})
            names[TABLE] = _Table(names[TABLE])
            if EAGER in names:
                names[EAGER] = _with_listeners(names[EAGER], "eager")
        _listeners.setdefault(id(module), []).append(listener)

    def stop() -> None:
        with _lock:
            _listeners[id(module)].remove(listener)
            if not _listeners[id(module)]:
                del _listeners[id(module)]
            if not _listeners:
                for names, originals in _replaced.values():
                    names.update(originals)
                _replaced.clear()

    return stop


class _Table:
    """transformers' table of attention functions, with the wrapper around each function."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __getitem__(self, name: str) -> Any:
        return _with_listeners(self._table[name], name)

    def get_interface(self, name: str, default: Any) -> Any:
        return _with_listeners(self._table.get_interface(name, default), name)


def _with_listeners(function: Any, kind: str) -> Any:
    if getattr(function, "_whichtoken", False):
        return function

    @wraps(function)
    def call(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        output = function(module, query, key, value, *args, **kwargs)
        listeners = _listeners.get(id(module))
        if listeners:
            mask = args[0] if args else kwargs.get("attention_mask")
            heads = _interface_heads(kind, module, query, key, value, mask, kwargs, output[0])
            for listener in tuple(listeners):
                listener(heads)
        return output

    call._whichtoken = True  # type: ignore[attr-defined]
    return call


def _interface_heads(
    kind: str, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any], context: Tensor
) -> Heads:  # fmt: skip
    window, given = options.get("sliding_window"), options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if given is None else given)
    if kind == "eager":
        causal = False  # its mask is complete
    elif kind == "sdpa":  # a mask is complete; without one the kernel gets a flag
        causal = causal and mask is None and query.shape[2] > 1
        if causal and key.shape[2] > query.shape[2]:  # a static cache, filled as far as the queries go
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scale = options.get("scaling")
    if scale is None:
        scale = query.shape[-1] ** -0.5
        if kind == "eager" and hasattr(module, "scale_attn_weights"):  # GPT-2 of transformers 4 scales inside
            scale = scale if module.scale_attn_weights else 1.0
            scale /= module.layer_idx + 1 if module.scale_attn_by_inverse_layer_idx else 1
    explicit = kind in ("eager", "sdpa")  # flash attention applies the window itself
    return Heads(
        query, key, value, causal=causal, context=context, scale=float(scale),
        # block masks of flex attention are not tensors: causality and window are all that is known of them here
        mask=mask if isinstance(mask, Tensor) else None,
        window=None if explicit else window, window_in_mask=window if explicit else None,
        softcap=options.get("softcap"), null=options.get("s_aux"), bias=options.get("position_bias"),
    )  # fmt: skip
