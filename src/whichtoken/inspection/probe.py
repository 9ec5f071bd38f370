"""Recording attention while a model runs: hooks that keep the layers, heads and queries that were asked for."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from whichtoken.errors import UsageError
from whichtoken.inspection.adapters import Adapter, Heads, listen
from whichtoken.inspection.reading import Mask, Picks, Reading, full_mask, pick, query_positions, read
from whichtoken.inspection.sites import Site, check_evaluation, find_decoder, find_sites, hook
from whichtoken.inspection.why import RecomputedPass, Stream, Why
from whichtoken.inspection.words import distinct_words, whole_words

Queries = str | Sequence[int]

# how far the recomputed output of a layer may be from the model's own, relative to its largest value; some models round the
# softmax to single precision also in double
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
AGAIN = 1e-2  # relative: a second pass moves gaps by 2e-6 in single precision and by 6e-3 in bfloat16
CHECKED = 16  # queries of each text that are compared after the first pass


class AttentionProbe:
    """Record what each attention head of a model looks at, while the model runs as usual.

    Reach for it when you want the queries, keys and weights of a trained transformer, or the token that each head picks,
    without changing how the model computes attention (eager, sdpa, flash, torch's fast path): the recorded weights are those
    of eager attention, recomputed from the queries and keys of the latest forward pass. In every pass it also recomputes the
    output of each layer from them and compares it with the model's own: a layer that does not agree to the precision of its
    numbers is refused by name when it is asked for. The model runs on undisturbed.

    It reads `torch.nn.MultiheadAttention`, the attention interface of transformers, window and block attention, and any
    module with "attention" in its name that computes softmax(queries keys) values by torch's own operations. A model in which
    it recognizes no attention is refused with the names of the modules that it saw; write an `Adapter` for those.

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
        self._decoder = find_decoder(self.model)
        self._decoded: Tensor | None = None  # ids that the decoder was given
        self.readings: dict[int, Reading] = {}
        self.refused: dict[int, str] = {}  # layers that cannot be read, and why
        self._layers = set(range(len(self.names)) if layers is None else (self._number(layer) for layer in layers))
        self._heads = None if heads is None else list(heads)
        self._calls: Counter[int] = Counter()
        self._checked: set[int] = set()
        self._masks: dict[tuple[int, ...], tuple[Any, Mask]] = {}
        self._hidden = hidden
        self._special = special_tokens
        self._given: dict[str, Any] | None = None  # inputs of the latest forward pass
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
            if self._decoder is not None:
                stack.callback(self._decoder[1].register_forward_pre_hook(self._start_decoder, with_kwargs=True).remove)
            if (report := self._on_forward) is not None:
                hook(stack, self.model, lambda model, args, output: report(self))
            for site in self.sites:
                if not self._layers & set(site.layers):
                    continue
                if self._hidden:
                    stack.callback(site.module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
                keep, refuse = partial(self._keep, site), partial(self._refuse, site)
                stack.callback(listen(site.module, site.adapter, keep, refuse))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._open is not None
        self._open.close()
        self._open = None

    def reading(self, layer: int) -> Reading:
        """Queries, keys and values of a layer in the latest forward pass."""
        number = self._number(layer)
        if number in self.refused:
            raise UsageError(self.refused[number])
        if number not in self.readings:
            why = "the model did not run" if self._given is None else "the model ran without it; run it once before"
            why = why if number in self._layers else "it is not among the probe's `layers`"
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

    def why(self, layer: int, head: int, query: int, *, text: int = 0, special: bool | None = None) -> Why:
        """Say why a head picked its token rather than the runner-up: the parts of the gap, and whether they can be read.

        The text is run once more, up to the layer, with everything that writes to the residual stream held. A model that
        writes there by modules that are not found is refused, as the parts then do not sum to the gap.

        Parameters
        ----------
        layer, head : int
        query : int
            Place of the query in the text.
        text : int
            Which text of the batch.
        special : bool
            Whether special tokens can be picked; by default not where they are known and the query has other tokens to pick.

        Returns
        -------
        Why
        """
        check_evaluation(self.model)
        number = self._number(layer)
        reading = self.reading(layer)
        if self._given is None or not 0 <= text < len(reading.positions):
            raise UsageError(f"text {text} is not in the latest batch, which has {len(reading.positions)} texts")
        if head not in reading.heads.tolist():
            raise UsageError(f"head {head!r} was not recorded; recorded are {reading.heads.tolist()}")
        asked = (reading.positions[text] == query).nonzero().flatten()
        if not len(asked):
            raise UsageError(f"query {query} was not recorded; make the probe with queries='all' to choose later")
        is_special = self.special_keys(reading)
        hide = is_special is not None and not (special or (special is None and is_special.all()))
        place = reading.heads.tolist().index(head)
        one = reading.of_texts(slice(text, text + 1)).of_heads(torch.tensor([place]))
        scores = one.at(asked[None, :1]).logits(capped=False)[0, 0, 0]
        scores = scores.masked_fill(is_special[text], -torch.inf) if is_special is not None and hide else scores
        picked = int(scores.max(0).indices)
        rest = scores.index_fill(0, torch.tensor([picked], device=scores.device), -torch.inf)
        if not bool((rest > -torch.inf).any()):
            raise UsageError(f"the query at {query} has fewer than two tokens to pick: there is nothing to explain")
        runner_up = int(rest.max(0).indices)
        inputs = {
            name: value[text : text + 1] if isinstance(value, Tensor) and value.dim() else value
            for name, value in self._given.items()
        }
        words = None
        if reading.tokens is not None and hasattr(self._special, "convert_ids_to_tokens"):
            words = distinct_words(whole_words(self._special, reading.tokens[text].tolist())[0], picked, runner_up)
        held = RecomputedPass(self.model, inputs, number, self._stream)
        why = held.why(number, head, query, picked, runner_up, words, one if one.whole else None)
        if abs(why.gap - (gap := float(scores[picked] - scores[runner_up]))) > AGAIN * max(1.0, abs(gap)):
            raise UsageError(
                f"the model computes something else when the text is run again (gap {why.gap:.2f}, before {gap:.2f}):"
                " its weights have changed, or it is random; run the text again"
            )
        return why

    @cached_property
    def _stream(self) -> Stream:
        return Stream.of(self.model, self.sites)

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
        return reading.at(_rows(reading, queries))

    def special_keys(self, reading: Reading) -> Tensor | None:
        """Flags of the special tokens among the keys (batch, keys); None where special tokens or ids are not known."""
        if self._special_ids is None or reading.tokens is None:
            return None
        return torch.isin(reading.tokens, self._special_ids.to(reading.tokens.device))

    def _key_tokens(self, site: Site, heads: Heads) -> Tensor | None:
        """Ids of the keys of a layer: a decoder reads other tokens than its encoder; of those in a cache nothing is known."""
        own = self._decoder is not None and not heads.cross and f"{site.name}.".startswith(f"{self._decoder[0]}.")
        ids = self._decoded if own else self.tokens
        queries, keys = heads.query.shape[2], heads.key.shape[2]
        if ids is not None and queries == keys > ids.shape[1]:  # a model that fills up its windows by padding
            config: Any = getattr(self.model, "config", None)
            ids = nn.functional.pad(ids, (0, keys - ids.shape[1]), value=getattr(config, "pad_token_id", None) or 0)
        return ids if ids is not None and ids.shape[1] == keys else None

    def _number(self, layer: int) -> int:
        depth = len(self.names)
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth <= layer < depth:
            raise UsageError(f"layer {layer!r} does not exist; this model has layers 0 to {depth - 1}")
        return layer % depth

    def _start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.clear()
        self._masks.clear()
        self.readings.clear()
        self._given = dict(kwargs) if not args else {"input_ids": args[0], **kwargs}
        self.tokens, self._decoded = _ids(args, kwargs), None

    def _start_decoder(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._decoded = _ids(args, kwargs)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states", kwargs.get("query"))
        if isinstance(hidden, Tensor):
            self._inputs[id(module)] = hidden.detach()

    def _keep(self, site: Site, heads: Heads) -> None:
        layer = self._next_layer(site)
        if layer not in self._layers or layer in self.refused:
            return
        with torch.no_grad():
            heads = replace(heads, cross=heads.cross or is_cross(site))
            reading = read(heads, self._mask(heads), self._inputs.pop(id(site.module), None))
            reading = replace(reading, tokens=self._key_tokens(site, heads))
            why = None if heads.dropped else self._fault(layer, reading)
            if why is None:
                self.readings[layer] = self._kept(reading)
                return
        self.refused[layer] = f"{_named(site, layer)} {why}; describe it with an Adapter: see docs/inspect.md"

    def _refuse(self, site: Site, why: str) -> None:
        layer = self._next_layer(site)
        self.refused[layer] = f"{_named(site, layer)} cannot be read: {why}"

    def _next_layer(self, site: Site) -> int:
        self._calls[id(site)] += 1
        return site.layers[(self._calls[id(site)] - 1) % len(site.layers)]

    def _fault(self, layer: int, reading: Reading) -> str | None:
        """Why a reading is not what the module computed; all queries are compared at first, then some of each text."""
        if reading.context is None:
            return "gives no result to compare with"
        # GPT-J casts queries and keys of half precision to single
        kinds = (reading.query.dtype, reading.context.dtype)
        tolerance = max(TOLERANCE.get(kind, TOLERANCE[torch.float32]) for kind in kinds)
        rows = reading.positions.shape[1]
        if layer in self._checked and rows > CHECKED:
            some = torch.linspace(0, rows - 1, CHECKED, device=reading.positions.device).long()
            reading = reading.at(some.expand(len(reading.positions), -1))
        self._checked.add(layer)
        try:
            errors = [error for _, block in reading.blocks() if not math.isnan(error := block.error())]
        except RuntimeError:
            return "does not have the shapes of softmax attention"
        if not errors:
            return "has no finite result to compare with"
        error = max(errors)
        if error <= tolerance:
            return None
        return f"computes something other than softmax attention (relative difference {error:.2g})"

    def _kept(self, reading: Reading) -> Reading:
        """The heads and queries that the probe keeps."""
        if self._heads is not None:
            count = len(reading.heads)
            for head in self._heads:
                if isinstance(head, bool) or not isinstance(head, int) or not -count <= head < count:
                    raise UsageError(f"head {head!r} does not exist; this layer has heads 0 to {count - 1}")
            chosen = sorted({head % count for head in self._heads})
            reading = reading.of_heads(torch.tensor(chosen, device=reading.query.device))
        if self.queries == "all":
            return reading
        return reading.at(_rows(reading, self.queries))

    def _mask(self, found: Heads) -> Mask:
        """The mask of a layer; the layers of a model share theirs, so that it is looked at once a forward pass."""
        key = (id(found.mask), found.causal, found.window or -1, *found.query.shape[::2], found.key.shape[2])
        if found.bias is not None:
            return full_mask(found, query_positions(found))
        if key not in self._masks:
            # the tensor is held too, so that no other gets its id
            self._masks[key] = (found.mask, full_mask(found, query_positions(found)))
        return self._masks[key][1]


def is_cross(site: Site) -> bool:
    """Whether the name of an attention module says that its keys are those of another sequence."""
    name = site.name.lower().replace("_", "")
    return any(word in name for word in ("crossatt", "encoderattn", "encdecattention", "encattn"))


def _ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tokens that a module is called with."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    return ids if isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dim() == 2 else None


def _named(site: Site, layer: int) -> str:
    return f"layer {layer} ({site.name or 'the model'}, a {type(site.module).__name__})"


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


def _rows(reading: Reading, queries: Queries) -> Tensor:
    """Which of the queries of a reading are asked for: (batch, asked)."""
    batch, count = reading.positions.shape
    device = reading.positions.device
    if queries == "all":
        return torch.arange(count, device=device).expand(batch, -1)
    if queries == "cls":  # the first token of the text; padding may stand before it
        return reading.seen().int().argmax(1)[:, None]
    if queries == "last":
        return count - 1 - reading.seen().flip(1).int().argmax(1)[:, None]
    rows = [position if position >= 0 else count + position for position in map(int, queries)]
    if not all(0 <= row < count for row in rows):
        raise UsageError(f"queries={list(queries)} reach beyond the {count} positions of this batch")
    return torch.tensor(rows, device=device).expand(batch, -1)
