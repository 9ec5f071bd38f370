"""Reading attention while a model runs: hooks that keep what was asked for and nothing else."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from whichtoken.errors import UsageError
from whichtoken.inspection.adapters import Adapter, Heads
from whichtoken.inspection.interface import listen
from whichtoken.inspection.masks import Mask, compress
from whichtoken.inspection.picks import Picks, pick
from whichtoken.inspection.reading import Reading
from whichtoken.inspection.sites import Site, find_sites

Queries = str | Sequence[int]


class AttentionProbe:
    """Which token does each head pick? Records queries, keys and values of the latest forward pass of a model.

    Works with `torch.nn.MultiheadAttention`, with every model of transformers that computes attention through its attention
    interface, with BERT-like encoders of transformers 4 and with DeBERTa; others through an `Adapter`. The kernel does not
    matter: weights are recomputed from the queries and keys.

    Parameters
    ----------
    model : torch.nn.Module
        Runs as it is; in a `torch.compile`d model the hooks run without compilation.
    layers, heads : sequence of int, optional
        Which to keep; all by default. Negative numbers count from the end.
    queries : Queries, default="all"
        Which queries to keep: "all", "cls", "last" or positions.
    special : sequence of int, optional
        Ids of special tokens, or a tokenizer that knows them; needed for `picks(special=False)`.
    adapters : sequence of Adapter, default=()
        For attention modules of your own.
    hidden : bool, default=False
        Keep also what each layer was given.
    on_forward : Callable[[AttentionProbe], None], optional
        Called with the probe after each forward pass of the model: for streams of batches and for
        generation.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.inspection import AttentionProbe
    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
    >>> with AttentionProbe(model) as probe:
    ...     _ = model(torch.randn(3, 5, 8))
    >>> picks = probe.picks(layer=0, queries="cls")
    >>> picks.token.shape, probe.weights(layer=0).shape
    (torch.Size([3, 2, 1]), torch.Size([3, 2, 5, 5]))
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        queries: Queries = "all",
        special: Any = None,
        adapters: Sequence[Adapter] = (),
        hidden: bool = False,
        on_forward: Callable[[AttentionProbe], None] | None = None,
    ) -> None:
        self.model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.sites = find_sites(self.model, adapters)
        self.names = _layer_names(self.sites)
        self.queries = check_queries(queries)
        self.special_ids = _special_ids(special)
        self.tokens: Tensor | None = None  # ids of the latest forward pass, (batch, tokens)
        self.readings: dict[int, Reading] = {}
        self._layers = set(range(len(self.names)) if layers is None else (self._number(layer) for layer in layers))
        self._heads = None if heads is None else list(heads)
        self._calls: dict[int, int] = defaultdict(int)
        self._masks: dict[tuple[int, ...], tuple[Any, Mask]] = {}
        self._hidden = hidden
        self._given: dict[int, Tensor] = {}  # what a module was given, by its id
        self._on_forward = on_forward
        self._open: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._open is not None:
            raise UsageError("this probe is already open; make a second one for a second reader")
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:  # compiled code would not notice hooks that came later
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            start = self.model.register_forward_pre_hook(self._start, with_kwargs=True)
            stack.callback(start.remove)
            if self._on_forward is not None:
                stack.callback(self.model.register_forward_hook(self._finish).remove)
            for site in self.sites:
                if self._layers & set(site.layers):
                    self._attach(site, stack)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._open is not None
        self._open.close()
        self._open = None

    def reading(self, layer: int) -> Reading:
        """Queries, keys and values of a layer in the latest forward pass."""
        number = self._number(layer)
        if number not in self.readings:
            why = "no forward pass was seen" if number in self._layers else "the probe was not asked to keep it"
            raise UsageError(f"layer {layer} was not recorded: {why}")
        return self.readings[number]

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
        """The picked token, the runner-up, the gap between their scores and the weight, each (batch, heads, queries).

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
        reading = self.reading(layer)
        if queries is not None and queries != self.queries:
            reading = self._narrowed(reading, check_queries(queries))
        return pick(reading, self._excluded(reading, special, exclude), self._special(reading), alike)

    def sample(self, layer: int, texts: Tensor, queries: Tensor) -> Picks:
        """The picks of some texts of the batch and some queries, without computing those of the others."""
        return pick(self.reading(layer).of_texts(texts).at(queries.expand(len(texts), -1)))

    def _excluded(self, reading: Reading, special: bool, exclude: Tensor | None) -> Tensor | None:
        if exclude is not None:
            exclude = exclude[:, None] if exclude.dim() == 2 else exclude
        if special:
            return exclude
        flags = self._special(reading)
        if flags is None:
            raise UsageError(
                "special=False needs to know the special tokens: give AttentionProbe(model, special=tokenizer) and input_ids"
            )
        if exclude is None:
            return flags[:, None]
        return exclude | (flags[:, None, None] if exclude.dim() == 4 else flags[:, None])

    def _special(self, reading: Reading) -> Tensor | None:
        """Flags of the special tokens among the keys (batch, keys), where both are known."""
        if self.special_ids is None or self.tokens is None or self.tokens.shape[1] != reading.key.shape[2]:
            return None
        return torch.isin(self.tokens, self.special_ids.to(self.tokens.device))

    def _narrowed(self, reading: Reading, queries: Queries) -> Reading:
        if not reading.whole:
            raise UsageError(
                f"the probe kept queries={self.queries!r} only; make it with queries='all' to choose later"
            )
        return reading.at(_rows(reading.positions, reading.mask, reading.key.shape[2], queries))

    def _number(self, layer: int) -> int:
        depth = len(self.names)
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth <= layer < depth:
            raise UsageError(f"layer {layer!r} does not exist; this model has layers 0 to {depth - 1}")
        return layer % depth

    def _attach(self, site: Site, stack: ExitStack) -> None:
        if self._hidden:
            stack.callback(site.module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
        if site.adapter is not None:
            hook = site.module.register_forward_hook(partial(self._after, site), with_kwargs=True)
            stack.callback(hook.remove)
            return
        stack.callback(listen(site.module, partial(self._keep, site)))

    def _start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.clear()
        self._masks.clear()
        self.readings.clear()
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.tokens = ids if isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dim() == 2 else None

    def _finish(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        assert self._on_forward is not None
        self._on_forward(self)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("hidden_states", kwargs.get("query"))
        if isinstance(given, Tensor):
            self._given[id(module)] = given.detach()

    def _after(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        assert site.adapter is not None
        with torch.no_grad():
            self._keep(site, site.adapter.read(module, args, kwargs, output))

    def _keep(self, site: Site, heads: Heads) -> None:
        layer = site.layers[self._calls[id(site)] % len(site.layers)]
        self._calls[id(site)] += 1
        if layer in self._layers:
            with torch.no_grad():
                self.readings[layer] = self._read(heads, self._given.pop(id(site.module), None))

    def _read(self, found: Heads, hidden: Tensor | None) -> Reading:
        query, key, value = (part.detach() for part in (found.query, found.key, found.value))
        if query.is_nested:
            raise UsageError("nested tensors cannot be inspected; give padded batches and their mask")
        batch, count, queries, dim = query.shape
        offset = max(key.shape[2] - queries, 0)  # with a cache the queries are the last of the keys
        positions = torch.arange(offset, offset + queries, device=query.device).expand(batch, -1)
        mask = self._mask(found, positions)
        heads = _chosen_heads(self._heads, count, query.device)
        group = heads * key.shape[1] // count
        kept = torch.unique(group)
        if len(heads) < count:
            query, key, value = query[:, heads], key[:, kept], value[:, kept]
        reading = Reading(
            query=query,
            key=key,
            value=value,
            scale=dim**-0.5 if found.scale is None else float(found.scale),
            mask=mask.at(_all_rows(positions), heads if len(heads) < count else None),
            positions=positions,
            heads=heads,
            group=torch.searchsorted(kept, group) if len(heads) < count else group,
            softcap=found.softcap,
            null=None if found.null is None else found.null.detach()[heads],
            context=None if found.context is None else found.context.detach().transpose(1, 2)[:, heads],
            hidden=hidden,
        )
        if self.queries == "all":
            return reading
        return reading.at(_rows(positions, mask, key.shape[2], self.queries))

    def _mask(self, found: Heads, positions: Tensor) -> Mask:
        """The mask of a layer; the layers of a model share theirs, so that it is looked at once a forward pass."""
        sign = (id(found.mask), found.causal, found.window or -1, *positions.shape)
        if found.bias is None and sign in self._masks:
            return self._masks[sign][1]
        mask = compress(found.mask, positions, found.window_in_mask)
        mask = Mask(
            padding=mask.padding,
            causal=mask.causal or found.causal,
            window=mask.window or found.window,
            dense=mask.dense,
            bias=_sum(mask.bias, found.bias),
        )
        if found.bias is None:  # a bias is its layer's own
            self._masks[sign] = (found.mask, mask)  # the tensor is held too, so that its id stays its own
        return mask


def check_queries(queries: Queries) -> Queries:
    """Refuse what names no queries."""
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
        real = _real(positions, mask, keys)
        if queries == "cls":  # the first token of the text; padding may stand before it
            return real.int().argmax(1)[:, None]
        return count - 1 - real.flip(1).int().argmax(1)[:, None]
    rows = [position if position >= 0 else count + position for position in map(int, queries)]
    if not all(0 <= row < count for row in rows):
        raise UsageError(f"queries={list(queries)} reach beyond the {count} positions of this batch")
    return torch.tensor(rows, device=positions.device).expand(batch, -1)


def _real(positions: Tensor, mask: Mask, keys: int) -> Tensor:
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


def _chosen_heads(wanted: list[int] | None, count: int, device: torch.device) -> Tensor:
    if wanted is None:
        return torch.arange(count, device=device)
    for head in wanted:
        if isinstance(head, bool) or not isinstance(head, int) or not -count <= head < count:
            raise UsageError(f"head {head!r} does not exist; this layer has heads 0 to {count - 1}")
    return torch.tensor(sorted({head % count for head in wanted}), device=device)


def _layer_names(sites: list[Site]) -> list[str]:
    names = {layer: site.name for site in sites for layer in site.layers}
    return [names[layer] for layer in sorted(names)]


def _special_ids(special: Any) -> Tensor | None:
    if special is None:
        return None
    ids = getattr(special, "all_special_ids", special)
    return torch.tensor(sorted({int(i) for i in ids}), dtype=torch.long)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return first if second is None else second.detach()
    return first + second.detach()
