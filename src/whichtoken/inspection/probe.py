"""Recording attention while a model runs: hooks that keep the layers, heads and queries that were asked for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from whichtoken.errors import UsageError
from whichtoken.inspection.adapters import Adapter, Heads, listen
from whichtoken.inspection.picks import Picks, pick
from whichtoken.inspection.reading import Mask, Reading, compress
from whichtoken.inspection.sites import Site, find_sites, hook

Queries = str | Sequence[int]


class AttentionProbe:
    """Record what each attention head of a model looks at, while the model runs as usual.

    Reach for it when you want the queries, keys and weights of a trained transformer, or the token that each head picks,
    without changing how the model computes attention (eager, sdpa, flash, torch's fast path): the recorded weights are those
    of eager attention, recomputed from the queries and keys of the latest forward pass. `error` compares the output that
    follows from them with the model's own.

    It reads `torch.nn.MultiheadAttention`, every model of transformers that computes attention through its attention
    interface, BERT-like encoders of transformers 4, and DeBERTa. A model in which it recognizes no attention is refused with
    the names of the modules that it saw; write an `Adapter` for those.

    >>> import torch
    >>> from whichtoken.inspection import AttentionProbe
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
    >>> with AttentionProbe(model) as probe:
    ...     _ = model(torch.randn(3, 5, 8))
    >>> probe.picks(layer=0, queries="cls").token.shape  # batch, heads, queries
    torch.Size([3, 2, 1])

    Parameters
    ----------
    model : torch.nn.Module
        Runs as it is; in a `torch.compile`d model the hooks run without compilation.
    layers, heads : sequence of int, optional
        Which to keep; all by default. Negative numbers count from the end.
    queries : Queries, default="all"
        Which queries to keep: "all", "cls", "last" or positions.
    special_tokens : tokenizer or sequence of int, optional
        Ids of the special tokens, or a tokenizer that knows them; needed for `picks(special=False)`.
    adapters : sequence of Adapter, default=()
        For attention modules of your own.
    hidden : bool, default=False
        Keep also the input of each layer.
    on_forward : Callable[[AttentionProbe], None], optional
        Called with the probe after each forward pass of the model: for streams of batches and for generation.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.inspection import AttentionProbe
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
    >>> with AttentionProbe(model) as probe:
    ...     _ = model(torch.randn(3, 5, 8))
    >>> probe.weights(layer=0).shape
    torch.Size([3, 2, 5, 5])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        queries: Queries = "all",
        special_tokens: Any = None,
        adapters: Sequence[Adapter] = (),
        hidden: bool = False,
        on_forward: Callable[[AttentionProbe], None] | None = None,
    ) -> None:
        self.model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.sites = find_sites(self.model, adapters)
        names = {layer: site.name for site in self.sites for layer in site.layers}
        self.names = [names[layer] for layer in sorted(names)]
        self.queries = check_queries(queries)
        ids = getattr(special_tokens, "all_special_ids", special_tokens)
        self._special_ids = None if ids is None else torch.tensor(sorted({int(i) for i in ids}), dtype=torch.long)
        self.tokens: Tensor | None = None  # ids of the latest forward pass, (batch, tokens)
        self.readings: dict[int, Reading] = {}
        self._layers = set(range(len(self.names)) if layers is None else (self._number(layer) for layer in layers))
        self._heads = None if heads is None else list(heads)
        self._calls: Counter[int] = Counter()
        self._masks: dict[tuple[int, ...], tuple[Any, Mask]] = {}
        self._hidden = hidden
        self._inputs: dict[int, Tensor] = {}  # hidden states that a module was called with, by its id
        self._on_forward = on_forward
        self._open: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._open is not None:
            raise UsageError("this probe is already open; make a second one for a second reader")
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:  # compiled code would not notice hooks that came later
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.callback(self.model.register_forward_pre_hook(self._start, with_kwargs=True).remove)
            if (report := self._on_forward) is not None:
                hook(stack, self.model, lambda model, args, output: report(self))
            for site in self.sites:
                if not self._layers & set(site.layers):
                    continue
                if self._hidden:
                    stack.callback(site.module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
                if site.adapter is None:
                    stack.callback(listen(site.module, partial(self._keep, site)))
                else:
                    after = partial(self._after, site)
                    stack.callback(site.module.register_forward_hook(after, with_kwargs=True).remove)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._open is not None
        self._open.close()
        self._open = None

    def reading(self, layer: int) -> Reading:
        """Queries, keys and values of a layer in the latest forward pass."""
        number = self._number(layer)
        if number not in self.readings:
            why = "the model did not run" if number in self._layers else "it is not among the probe's `layers`"
            raise UsageError(f"layer {layer} was not recorded: {why}")
        return self.readings[number]

    def site(self, layer: int) -> Site:
        """The attention module of a layer."""
        number = self._number(layer)
        return next(site for site in self.sites if number in site.layers)

    def weights(self, layer: int) -> Tensor:
        """Attention weights (batch, heads, queries, keys), as eager attention computes them."""
        return self.reading(layer).weights()

    def error(self, layer: int) -> float:
        """How far the model's own attention output is from the one recomputed here, relative to its largest value."""
        return self.reading(layer).error()

    def picks(
        self,
        layer: int,
        queries: Queries | None = None,
        special: bool = True,
        exclude: Tensor | None = None,
        alike: Tensor | None = None,
    ) -> Picks:
        """Which token each query picks, ahead of which, by how much: the first thing to ask of a head.

        The picked token, the runner-up, the gap between their scores and the weight are recomputed from the recorded queries
        and keys, each (batch, heads, queries). Queries that the probe did not keep are refused, and so is `special=False`
        where the special tokens are not known.

        Parameters
        ----------
        layer : int
        queries : "cls", "last", "all" or positions
            Those that the probe keeps by default.
        special : bool
            False: special tokens cannot be picked, as if they were not there.
        exclude : flags (batch, keys), (batch, heads, keys) or (batch, heads, queries, keys), optional
            Tokens that cannot be picked, such as attention sinks.
        alike : numbers (batch, keys), optional
            Tokens with the same number are the same choice, as symmetric atoms of a molecule are: the runner-up, the gap
            and the radius are those of another choice.
        """
        reading = self.selected(layer, queries)
        is_special = self.special_keys(reading)
        if exclude is not None:
            exclude = exclude[:, None] if exclude.dim() == 2 else exclude
        if not special:
            if is_special is None:
                raise UsageError(
                    "special=False needs to know the special tokens:"
                    " give AttentionProbe(model, special_tokens=tokenizer) and input_ids"
                )
            flags = is_special[:, None]
            exclude = flags if exclude is None else exclude | (flags[:, None] if exclude.dim() == 4 else flags)
        return pick(reading, exclude, is_special, alike)

    def sample(self, layer: int, texts: Tensor, queries: Tensor) -> Picks:
        """The picks of some texts of the batch and some queries, without computing those of the others."""
        return pick(self.reading(layer).of_texts(texts).at(queries.expand(len(texts), -1)))

    def selected(self, layer: int, queries: Queries | None = None) -> Reading:
        """The reading of a layer for some of its queries; all that the probe keeps by default."""
        reading = self.reading(layer)
        if queries is None or queries == self.queries:
            return reading
        queries = check_queries(queries)
        if not reading.whole:
            raise UsageError(
                f"the probe kept queries={self.queries!r} only; make it with queries='all' to choose later"
            )
        return reading.at(_rows(reading.positions, reading.mask, reading.key.shape[2], queries))

    def special_keys(self, reading: Reading) -> Tensor | None:
        """Flags of the special tokens among the keys (batch, keys); None where special tokens or ids are not known."""
        if self._special_ids is None or self.tokens is None or self.tokens.shape[1] != reading.key.shape[2]:
            return None
        return torch.isin(self.tokens, self._special_ids.to(self.tokens.device))

    def _number(self, layer: int) -> int:
        depth = len(self.names)
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth <= layer < depth:
            raise UsageError(f"layer {layer!r} does not exist; this model has layers 0 to {depth - 1}")
        return layer % depth

    def _start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.clear()
        self._masks.clear()
        self.readings.clear()
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.tokens = ids if isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dim() == 2 else None

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states", kwargs.get("query"))
        if isinstance(hidden, Tensor):
            self._inputs[id(module)] = hidden.detach()

    def _after(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        assert site.adapter is not None
        with torch.no_grad():
            self._keep(site, site.adapter.read(module, args, kwargs, output))

    def _keep(self, site: Site, heads: Heads) -> None:
        layer = site.layers[self._calls[id(site)] % len(site.layers)]
        self._calls[id(site)] += 1
        if layer in self._layers:
            with torch.no_grad():
                self.readings[layer] = self._read(heads, self._inputs.pop(id(site.module), None))

    def _read(self, found: Heads, hidden: Tensor | None) -> Reading:
        query, key, value = (part.detach() for part in (found.query, found.key, found.value))
        if query.is_nested:
            raise UsageError("nested tensors cannot be inspected; give padded batches and their mask")
        batch, count, queries, dim = query.shape
        offset = max(key.shape[2] - queries, 0)  # with a cache the queries are the last of the keys
        positions = torch.arange(offset, offset + queries, device=query.device).expand(batch, -1)
        mask = self._mask(found, positions)
        heads = self._kept_heads(count, query.device)
        group = heads * key.shape[1] // count
        kept = torch.unique(group)
        if len(heads) < count:
            query, key, value = query[:, heads], key[:, kept], value[:, kept]
        reading = Reading(
            query, key, value, dim**-0.5 if found.scale is None else float(found.scale),
            mask.at(_all_rows(positions), heads if len(heads) < count else None), positions, heads,
            group=torch.searchsorted(kept, group) if len(heads) < count else group,
            softcap=found.softcap,
            null=None if found.null is None else found.null.detach()[heads],
            context=None if found.context is None else found.context.detach().transpose(1, 2)[:, heads],
            hidden=hidden,
        )  # fmt: skip
        return reading if self.queries == "all" else reading.at(_rows(positions, mask, key.shape[2], self.queries))

    def _kept_heads(self, count: int, device: torch.device) -> Tensor:
        if self._heads is None:
            return torch.arange(count, device=device)
        for head in self._heads:
            if isinstance(head, bool) or not isinstance(head, int) or not -count <= head < count:
                raise UsageError(f"head {head!r} does not exist; this layer has heads 0 to {count - 1}")
        return torch.tensor(sorted({head % count for head in self._heads}), device=device)

    def _mask(self, found: Heads, positions: Tensor) -> Mask:
        """The mask of a layer; the layers of a model share theirs, so that it is looked at once a forward pass."""
        key = (id(found.mask), found.causal, found.window or -1, *positions.shape)
        if found.bias is None and key in self._masks:
            return self._masks[key][1]
        mask = compress(found.mask, positions, found.window_in_mask)
        mask = replace(mask, causal=mask.causal or found.causal, window=mask.window or found.window)
        if found.bias is None:
            self._masks[key] = (found.mask, mask)  # the tensor is held too, so that no other gets its id
            return mask
        bias = found.bias.detach()
        return replace(mask, bias=bias if mask.bias is None else mask.bias + bias)


def check_queries(queries: Queries) -> Queries:
    """The queries, if they name any."""
    if isinstance(queries, str):
        if queries not in ("all", "cls", "last"):
            raise UsageError(f"queries='{queries}' is not known; choose 'all', 'cls', 'last' or a list of positions")
        return queries
    positions = [int(position) for position in queries]
    if not positions:
        raise UsageError("queries=[] names no position; choose 'all', 'cls', 'last' or a list of positions")
    return positions


def _rows(positions: Tensor, mask: Mask, keys: int, queries: Queries) -> Tensor:
    """Which of the queries at `positions` (batch, queries) are asked for: (batch, asked)."""
    batch, count = positions.shape
    if queries == "all":
        return _all_rows(positions)
    if queries == "cls" or queries == "last":
        real = _is_token(positions, mask, keys)
        if queries == "cls":  # the first token of the text; padding may stand before it
            return real.int().argmax(1)[:, None]
        return count - 1 - real.flip(1).int().argmax(1)[:, None]
    rows = [position if position >= 0 else count + position for position in map(int, queries)]
    if not all(0 <= row < count for row in rows):
        raise UsageError(f"queries={list(queries)} reach beyond the {count} positions of this batch")
    return torch.tensor(rows, device=positions.device).expand(batch, -1)


def _is_token(positions: Tensor, mask: Mask, keys: int) -> Tensor:
    """Whether the query at a position is a token and not padding: (batch, queries)."""
    if mask.padding is not None:
        known = mask.padding[:, 0, 0]
    elif mask.dense is not None:
        known = mask.dense.any(2).any(1)
    else:
        return torch.ones_like(positions, dtype=torch.bool)
    return known.expand(len(positions), keys).take_along_dim(positions.clamp(0, keys - 1), 1)


def _all_rows(positions: Tensor) -> Tensor:
    return torch.arange(positions.shape[1], device=positions.device).expand(len(positions), -1)
