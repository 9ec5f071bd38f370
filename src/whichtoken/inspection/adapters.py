"""How queries, keys and values are read from each kind of attention module.

Most models of transformers call `attention_interface(module, query, key, value, mask, ...)`, with eager, sdpa or flash attention
behind it. While a module has a listener, the names by which its modeling file finds that function lead to a wrapper that calls
the function and passes the arguments to the listener. `torch.nn.MultiheadAttention`, window and block attention are read by
an `Adapter` each, and yours reads a kind of your own. Every other module that is called attention is traced: its matrix products
and its softmax are read as they run. The model itself is not changed.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

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
        (batch, queries, heads, value dim): the module's own result, against which the recomputed one is checked. A layer
        without it is refused, unless `dropped`.
    project : Callable
        Where the module's result is known only after its output projection: that projection, from (batch, queries,
        heads * value dim) to `context` of shape (batch, queries, width).
    dropped : bool
        Whether weights were dropped at random in this call, so that its result cannot be compared.
    cross : bool
        Whether the keys are those of another sequence than the queries.

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
    project: Callable[[Tensor], Tensor] | None = None
    dropped: bool = False
    cross: bool = False


class Adapter:
    """Base class for reading a kind of attention module that `AttentionProbe` does not know.

    Reach for it when a probe says that no attention was recognized in your model. `matches` says whether a module is of this
    kind; `read` is called after each of its forward passes with the arguments and the output, and returns `Heads`: the
    queries, keys and values behind that output, and the output itself, against which the probe checks them.

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
    ...         return Heads(x, x, x, scale=1.0, context=output[:, :, None])
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
        result = output[0].to_padded_tensor(0.0) if output[0].is_nested else output[0]
        result = result[None] if result.dim() == 2 else result if module.batch_first else result.transpose(0, 1)
        project = partial(functional.linear, weight=module.out_proj.weight, bias=module.out_proj.bias)
        return Heads(
            query, key, value, mask=mask, bias=added, null=null, context=result, project=project,
            dropped=module.training and module.dropout > 0, cross=given["query"].shape != given["key"].shape,
        )  # fmt: skip

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


class WindowAttention(Adapter):
    """Longformer and LED without global attention: each query sees the keys within a window on both sides."""

    def matches(self, module: nn.Module) -> bool:
        return hasattr(module, "one_sided_attn_window_size")

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        names = ("hidden_states", "attention_mask", "is_index_masked", "is_index_global_attn", "is_global_attn")
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("is_global_attn"):
            raise UsageError("global attention has queries and keys of its own; give a global_attention_mask of zeros")
        hidden = given["hidden_states"]
        query, key, value = (
            _split_heads(getattr(module, name)(hidden), module.num_heads) for name in ("query", "key", "value")
        )
        places = torch.arange(hidden.shape[1], device=hidden.device)
        near = (places[:, None] - places).abs() <= module.one_sided_attn_window_size
        allowed = near[None, None] & (given["attention_mask"] == 0)[:, None, None, :]
        context = output[0].unflatten(-1, (module.num_heads, -1))
        return Heads(query, key, value, mask=allowed, context=context, dropped=module.training and module.dropout > 0)


class BlockAttention(Adapter):
    """BigBird: each query sees its neighboring blocks, some random ones, and the first and the last.

    In evaluation every random block is the first one, which is seen anyway: it then counts several times.
    """

    def matches(self, module: nn.Module) -> bool:
        return hasattr(module, "num_random_blocks") and hasattr(module, "query")

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        hidden = args[0] if args else kwargs["hidden_states"]
        count = module.num_attention_heads
        query, key, value = (_split_heads(getattr(module, name)(hidden), count) for name in ("query", "key", "value"))
        allowed = output[1] > 0
        times = 1 if module.training else 1 + module.num_random_blocks
        added = torch.zeros_like(output[1])
        added[:, :, module.block_size : -module.block_size, : module.block_size] = math.log(times)
        return Heads(query, key, value, mask=allowed, bias=added, context=output[0].unflatten(-1, (count, -1)))


def _split_heads(x: Tensor, count: int) -> Tensor:
    """(batch, tokens, width) to (batch, heads, tokens, dim)."""
    return x.view(*x.shape[:-1], count, x.shape[-1] // count).transpose(1, 2)


ADAPTERS: tuple[Adapter, ...] = (TorchAttention(), WindowAttention(), BlockAttention())

Listener = Callable[[Heads], None]
Refuse = Callable[[str], None]
TABLE, EAGER = "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"

_lock = threading.RLock()
# by the id of the module, with whether they are called before the attention function
_listeners: dict[int, list[tuple[Listener, bool]]] = {}
_replaced: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # globals of a modeling file, and their old values


def uses_interface(module: nn.Module) -> bool:
    """Whether the forward pass of a module takes its attention function from transformers' table."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and TABLE in code.co_names


def listen(
    module: nn.Module, adapter: Adapter | None, listener: Listener, refuse: Refuse, gradient: bool = False
) -> Callable[[], None]:
    """Call `listener` with the arguments of each attention call of the module; returns the function that stops it.

    A call that cannot be read goes to `refuse`, as a sentence; the model runs on. `gradient`: adapters compute with
    gradients, and the output is not needed: it may not be known.
    """
    if adapter is not None:

        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            try:
                with torch.set_grad_enabled(gradient and torch.is_grad_enabled()):
                    heads = adapter.read(module, args, kwargs, output)
            except UsageError as error:
                refuse(str(error))
            else:
                listener(heads)

        return module.register_forward_hook(after, with_kwargs=True).remove
    return _listen(module, listener, gradient) if uses_interface(module) else _trace(module, listener, refuse)


def _listen(module: nn.Module, listener: Listener, before: bool) -> Callable[[], None]:
    entry = listener, before
    names = inspect.unwrap(type(module).forward).__globals__
    with _lock:
        if id(names) not in _replaced:
            _replaced[id(names)] = (names, {name: names[name] for name in (TABLE, EAGER) if name in names})
            names[TABLE] = _Table(names[TABLE])
            if EAGER in names:
                names[EAGER] = _with_listeners(names[EAGER], "eager")
        _listeners.setdefault(id(module), []).append(entry)

    def stop() -> None:
        with _lock:
            _listeners[id(module)].remove(entry)
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
        listeners = _listeners.get(id(module), [])
        mask = args[0] if args else kwargs.get("attention_mask")
        heads = partial(_interface_heads, kind, module, query, key, value, mask, kwargs)
        for listener in [listener for listener, before in listeners if before]:
            listener(heads(None))
        output = function(module, query, key, value, *args, **kwargs)
        after = [listener for listener, before in listeners if not before]
        if after:
            context = output[0]
            if kwargs.get("dropout"):  # the result to compare with is that without dropout
                with torch.no_grad():
                    context = function(module, query, key, value, *args, **kwargs | {"dropout": 0.0})[0]
            for listener in after:
                listener(heads(context))
        return output

    call._whichtoken = True  # type: ignore[attr-defined]
    return call


def _interface_heads(
    kind: str, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any], context: Tensor | None
) -> Heads:  # fmt: skip
    window, given = options.get("sliding_window"), options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if given is None else given)
    # a static cache is filled from the front
    if causal and key.shape[2] > query.shape[2] and kind in ("eager", "sdpa"):
        if mask is not None and (filled := _last_seen(mask)) < mask.shape[-1]:
            key, value, mask = key[:, :, :filled], value[:, :, :filled], mask[..., :filled]
        elif mask is None and query.shape[2] > 1:
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    if kind == "eager":
        causal = False  # its mask is complete
    elif kind == "sdpa":  # a mask is complete; without one the kernel gets a flag
        causal = causal and mask is None and query.shape[2] > 1
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


def _last_seen(mask: Tensor) -> int:
    """How many keys there are up to the last that any query may see."""
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return int(allowed.flatten(0, -2).any(0).nonzero().max()) + 1 if bool(allowed.any()) else mask.shape[-1]


# operations that leave a matrix of scores or weights what it is, up to a factor and what is added
PASSING = {
    "view", "reshape", "to", "float", "double", "half", "type_as", "type", "contiguous", "dropout", "masked_fill", "masked_fill_",
    "where", "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "__isub__", "max", "maximum", "clamp",
    "clamp_min", "squeeze", "unsqueeze", "nan_to_num",
}  # fmt: skip
FACTORS = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
DIVISORS = {"div", "div_", "__truediv__", "__itruediv__", "true_divide"}
PRODUCTS = {"matmul", "bmm", "__matmul__"}
FORBIDDEN = -5e3  # models add -1e4 or less to the scores of keys that may not be picked


@dataclass(eq=False)
class _Softmax:
    """A softmax of the scores of queries and keys, on its way through a module."""

    query: Tensor
    key: Tensor
    scale: float
    logits: Tensor | None = None
    value: Tensor | None = None
    context: Tensor | None = None


class _Trace(TorchFunctionMode):
    """Follow queries, keys and values through the operations of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Softmax] = []
        self.complete: list[Heads] = []  # those of torch's own attention function
        self.dropped = False
        self._marked: dict[int, tuple[Tensor, _Softmax, float]] = {}  # the tensors are held: no other gets their id

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        self._follow(getattr(function, "__name__", ""), args, kwargs, result)
        return result

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if name == "scaled_dot_product_attention":
            self._attended(args, kwargs, result)
        elif name in PRODUCTS:
            first, second = args[0], args[1] if len(args) > 1 else next(iter(kwargs.values()))
            self._multiplied(first, second.transpose(-1, -2) if second.dim() > 1 else second, second, result, result)
        elif name == "baddbmm":
            given = dict(zip(("input", "batch1", "batch2"), args, strict=False)) | kwargs
            product = _Softmax(given["batch1"], given["batch2"].transpose(-1, -2), 1.0)
            self._marked[id(result)] = result, product, float(kwargs.get("alpha", 1.0))
        elif name == "einsum":
            self._summed(args, result)
        else:
            self._passed(name, args, kwargs, result)

    def _passed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]
        marked = next((self._marked[id(item)] for item in given if id(item) in self._marked), None)
        if marked is None or not isinstance(result, Tensor):
            return
        _, product, scale = marked
        if name == "softmax":
            product.logits, product.scale = args[0], scale
            self.calls.append(product)
        elif name in FACTORS | DIVISORS:
            for other in args[:2]:
                if not isinstance(other, Tensor) or other.dim() == 0:
                    scale = scale * float(other) if name in FACTORS else scale / float(other)
        elif name not in PASSING:
            return
        elif name == "dropout":
            self.dropped |= bool(kwargs.get("training", args[2] if len(args) > 2 else True)) and args[0] is not result
        self._marked[id(result)] = result, product, scale

    def _multiplied(self, first: Tensor, key: Tensor, value: Tensor, result: Tensor, context: Tensor) -> None:
        found = self._marked.get(id(first))
        if found is not None and found[1].logits is not None:
            found[1].value, found[1].context = value, context
        else:
            self._marked[id(result)] = result, _Softmax(first, key, 1.0), 1.0

    def _summed(self, args: tuple[Any, ...], result: Tensor) -> None:
        if not isinstance(args[0], str) or len(args) != 3 or "." in args[0]:
            return
        inputs, _, output = args[0].replace(" ", "").partition("->")
        one, two = inputs.split(",")
        both = [letter for letter in output if letter in one and letter in two]
        ends = [[x for x in names if x not in both and x in output] for names in (one, two)]
        inner = [x for x in one if x in two and x not in output]
        if [len(part) for part in (*ends, inner)] != [1, 1, 1]:
            return
        lead = "".join(both)
        rows, columns, middle = ends[0][0], ends[1][0], inner[0]
        key = torch.einsum(f"{two}->{lead}{columns}{middle}", args[2])
        value = torch.einsum(f"{two}->{lead}{middle}{columns}", args[2])
        found = self._marked.get(id(args[1]))
        first = args[1] if found is not None else torch.einsum(f"{one}->{lead}{rows}{middle}", args[1])
        self._multiplied(first, key, value, result, torch.einsum(f"{output}->{lead}{rows}{columns}", result))

    def _attended(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = (given[name] if given[name].dim() == 4 else given[name][:, None] for name in names[:3])
        context = (result if result.dim() == 4 else result[:, None]).transpose(1, 2)
        self.complete.append(Heads(
            query, key, value, mask=given.get("attn_mask"), causal=bool(given.get("is_causal")), scale=given.get("scale"),
            context=context, dropped=bool(given.get("dropout_p")),
        ))  # fmt: skip

    def heads(self, batch: int) -> Heads:
        """What was read, if it is one attention."""
        calls = [call for call in self.calls if call.context is not None]
        if len(calls) + len(self.complete) != 1 or len(calls) != len(self.calls):
            found = len(self.calls) + len(self.complete)
            raise UsageError(
                f"{found or 'no'} softmax{'es' * (found > 1)} in it {'cannot' if found else 'can'} be matched to one attention"
            )
        if self.complete:
            return self.complete[0]
        call = calls[0]
        assert call.logits is not None
        assert call.value is not None
        assert call.context is not None
        square = call.logits.detach()
        parts = (call.query, call.key, call.value, call.context, square)
        query, key, value, context, logits = (
            part if part.dim() == 4 else part.reshape(batch, -1, *part.shape[-2:]) for part in parts
        )
        dtype = torch.promote_types(query.dtype, torch.float32)
        logits = logits.to(dtype)
        allowed = logits > FORBIDDEN
        products = query.detach().to(dtype) @ key.detach().to(dtype).transpose(-1, -2)
        added = (logits - call.scale * products).masked_fill(~allowed, 0.0)
        # in half precision what a module adds cannot be told from rounding: then all of it counts
        rounding = 100 * torch.finfo(dtype).eps * float(logits.masked_fill(~allowed, 0.0).abs().max())
        return Heads(
            query, key, value, mask=allowed, bias=None if bool((added.abs() <= rounding).all()) else added,
            scale=call.scale, context=context.transpose(1, 2), dropped=self.dropped,
        )  # fmt: skip


def _trace(module: nn.Module, listener: Listener, refuse: Refuse) -> Callable[[], None]:
    open_traces: list[_Trace] = []

    def before(module: nn.Module, args: Any) -> None:
        trace = _Trace()
        trace.__enter__()  # type: ignore[no-untyped-call]
        open_traces.append(trace)

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        trace = open_traces.pop()
        trace.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if output is None:  # the model failed
            return
        given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() > 1), None)
        try:
            heads = trace.heads(1 if given is None else len(given))
        except (UsageError, RuntimeError) as error:
            refuse(f"{error}" if isinstance(error, UsageError) else "its products do not have the shapes of attention")
        else:
            listener(heads)

    first = module.register_forward_pre_hook(before)
    last = module.register_forward_hook(after, with_kwargs=True, always_call=True)

    def stop() -> None:
        first.remove()
        last.remove()

    return stop
