"""How queries, keys and values are read from one kind of attention module; write a subclass for a kind of your own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError


@dataclass(frozen=True, eq=False)
class Heads(Shown):
    """What an adapter reads: the arguments of softmax attention in one call of a module.

    Attributes
    ----------
    query : Tensor
        (batch, heads, queries, dim).
    key : Tensor
        (batch, key heads, keys, dim).
    value : Tensor
        (batch, key heads, keys, value dim).
    mask : Tensor
        Flags or numbers to add, up to (batch, heads, queries, keys), or (batch, keys).
    causal : bool
        Whether a query sees only what comes before it.
    window : int
        Each query sees only the last so many keys.
    window_in_mask : int
        The same where the mask already says so: lets the mask be kept short.
    scale : float
        None: one over the square root of dim.
    softcap : float
        Bound on the scores, if the model has one.
    null : Tensor of shape (heads,) or None
        Score of a null token that takes attention and gives nothing.
    bias : Tensor
        Added to the scores, up to (batch, heads, queries, keys).
    context : Tensor
        (batch, queries, heads, value dim), if the module has it.

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
    """Reads one kind of attention module.

    `matches` says whether a module is of this kind; `read` is called after each of its forward passes with the arguments
    and the output, and returns the queries, keys and values behind it.

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


class TorchAttention(Adapter):
    """`torch.nn.MultiheadAttention`, alone or inside `TransformerEncoderLayer`, whichever path it took."""

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, nn.MultiheadAttention)

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        names = (
            "query",
            "key",
            "value",
            "key_padding_mask",
            "need_weights",
            "attn_mask",
            "average_attn_weights",
            "is_causal",
        )
        given = dict(zip(names, args, strict=False)) | kwargs
        if module.bias_k is not None:
            raise UsageError("attention with add_bias_kv=True cannot be inspected: one of its keys is no token")
        if given["key"].is_nested:  # the encoder's fast path packs padded texts; unpack them
            lengths = torch.tensor([len(text) for text in given["key"].unbind()])
            given |= {name: given[name].to_padded_tensor(0.0) for name in ("query", "key", "value")}
            given["key_padding_mask"] = torch.arange(given["key"].shape[1]) >= lengths[:, None]
        inputs = [_batch_first(given[name], module.batch_first) for name in ("query", "key", "value")]
        query, key, value = (
            _heads(functional.linear(x, weight, bias), module.num_heads)
            for x, (weight, bias) in zip(inputs, torch_projections(module), strict=True)
        )
        mask, bias = _torch_masks(module, given, len(query))
        null = query.new_zeros(module.num_heads) if module.add_zero_attn else None  # a key of zeros has score 0
        return Heads(query, key, value, mask=mask, bias=bias, null=null)


def torch_projections(module: Any) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of the query, key and value projections of `torch.nn.MultiheadAttention`."""
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _torch_masks(module: Any, given: dict[str, Any], batch: int) -> tuple[Tensor | None, Tensor | None]:
    """Flags of the keys that may be picked (here True forbids, unlike elsewhere), and what is added to the scores."""
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
    """Encoders that compute attention in a method of their own: BERT, RoBERTa, ALBERT, DistilBERT before transformers 5.

    Known by the names of their projections; relative positions inside the scores are not.
    """

    NAMES = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))

    def matches(self, module: nn.Module) -> bool:
        plain = getattr(module, "position_embedding_type", "absolute") in ("absolute", None)
        return plain and self._names(module) is not None and _head_count(module) is not None

    def _names(self, module: nn.Module) -> tuple[str, str, str] | None:
        linear = lambda name: isinstance(getattr(module, name, None), nn.Linear)  # noqa: E731
        return next((names for names in self.NAMES if all(map(linear, names))), None)

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
        count = _head_count(module) or 1
        query, key, value = (_heads(getattr(module, name)(hidden), count) for name in names)
        bare = not any(hasattr(module, name) for name in ("dense", "out_lin"))  # its output is not projected yet
        context = output[0].view(*output[0].shape[:2], count, -1) if bare else None
        return Heads(query, key, value, mask=mask, context=context)


class Disentangled(Adapter):
    """DeBERTa (v2 and v3): the scores of relative positions are a bias here, recomputed by the module's own method."""

    def matches(self, module: nn.Module) -> bool:
        return hasattr(module, "disentangled_attention_bias") and hasattr(module, "query_proj")

    def read(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Heads:
        names = (
            "hidden_states",
            "attention_mask",
            "output_attentions",
            "query_states",
            "relative_pos",
            "rel_embeddings",
        )
        given = dict(zip(names, args, strict=False)) | kwargs
        hidden = given["hidden_states"]
        asking = hidden if given.get("query_states") is None else given["query_states"]
        count = module.num_attention_heads
        query, key, value = (
            _heads(projection(x), count)
            for projection, x in ((module.query_proj, asking), (module.key_proj, hidden), (module.value_proj, hidden))
        )
        factor = 1 + sum(kind in module.pos_att_type for kind in ("c2p", "p2c"))
        bias = None
        if module.relative_attention:
            flat = [part.reshape(-1, *part.shape[2:]) for part in (query, key)]
            found = module.disentangled_attention_bias(
                *flat, given.get("relative_pos"), given["rel_embeddings"], factor
            )
            bias = found.view(len(query), count, *found.shape[-2:]) if isinstance(found, Tensor) else None
        mask = given["attention_mask"].bool()
        scale = 1 / float(torch.sqrt(torch.tensor(query.shape[-1] * factor, dtype=torch.float)))  # rounded as it does
        return Heads(query, key, value, mask=mask, bias=bias, scale=scale)


def _heads(x: Tensor, count: int) -> Tensor:
    """(batch, tokens, width) to (batch, heads, tokens, dim)."""
    return x.view(*x.shape[:-1], count, x.shape[-1] // count).transpose(1, 2)


def _head_count(module: nn.Module) -> int | None:
    counts = (getattr(module, name, None) for name in ("num_attention_heads", "n_heads", "num_heads"))
    return next((count for count in counts if isinstance(count, int)), None)


def _batch_first(x: Tensor, already: bool) -> Tensor:
    if x.dim() == 2:
        return x[None]
    return x if already else x.transpose(0, 1)


ADAPTERS: tuple[Adapter, ...] = (TorchAttention(), Disentangled(), NamedProjections())
