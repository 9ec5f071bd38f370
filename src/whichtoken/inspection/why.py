"""Why a head picked a token: the gap to the runner-up as an exact sum over what wrote the two keys.

The score of a key is linear in the key, and the key is linear in the residual stream once the scales of the normalizations are
held. Everything that was ever written there (word, position, what each earlier attention layer and each MLP added, biases)
therefore has a part in the gap, and the parts sum to it. One forward pass, in which everything that writes is held, and a
backward pass that goes through the residual stream alone give all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection import sites
from whichtoken.inspection.adapters import Heads, listen
from whichtoken.inspection.reading import Reading, read
from whichtoken.inspection.sites import Anatomy, Site, anatomy, hook

KINDS = ("word", "position", "attention", "MLP", "bias")
CLOSE = 0.5  # nats: a smaller gap has no reason that lasts
CANCELLATION = 3.0  # parts that are this much larger than their sum explain nothing
MOST_PARTS = 3  # that may be needed for 80 % of the gap
SINK = 0.3  # mean attention over all queries, as in Gu et al. 2024, When attention sink emerges
SAME = 1e-4  # relative: streams that are the sum of what was written differ by rounding, others by .7 of the largest number
INEXACT = 1e-3  # relative: then something else writes to the residual stream, and the parts are refused

Call = tuple[int, int]  # id of a module, and the number of its call in a forward pass


@dataclass(frozen=True, eq=False)
class Why(Shown):
    """Why a head picked one token rather than another: what `AttentionProbe.why` returns.

    Reach for `sentence` first. The gap is split twice: by what wrote the difference of the two keys (`parts`), and into what
    the average query of the text prefers and what only this one does (`any_query`, `this_query`). A split is not a cause:
    `flips` tries it, by recomputing the scores after the two tokens have exchanged one part.

    Attributes
    ----------
    layer, head, query : int
        Which head, and the place of its query.
    picked, runner_up : int
        Places of both tokens.
    gap : float
        Score of the pick minus score of the runner-up, in nats.
    parts : dict
        word, position, attention, MLP and bias: nats that sum to the gap. With rotary positions each part is already rotated,
        and position is what the model adds to the scores themselves.
    detail : tuple of tuple[str, float]
        The same by layer.
    any_query, this_query : float
        The gap of the average query that sees both tokens, and what this query adds to it.
    sink : bool
        Whether one of the two tokens is an attention sink of the head.
    error : float
        How far the sum of the parts is from the gap.
    words : tuple of str
        Both tokens, where the probe has a tokenizer.

    Examples
    --------
    >>> from whichtoken.inspection import AttentionProbe, load_tokenizer, load_transformer
    >>> model, tokenizer = load_transformer("my-model"), load_tokenizer("my-model")
    >>> with AttentionProbe(model, special_tokens=tokenizer) as probe:
    ...     _ = model(**tokenizer("a very good film", return_tensors="pt"))
    >>> why = probe.why(layer=1, head=2, query=0)
    >>> abs(sum(why.parts.values()) - why.gap) < 1e-4
    True
    """

    layer: int
    head: int
    query: int
    picked: int
    runner_up: int
    gap: float
    parts: dict[str, float]
    detail: tuple[tuple[str, float], ...]
    any_query: float
    this_query: float
    sink: bool
    error: float
    words: tuple[str, str] = ("the pick", "the runner-up")
    _pass: RecomputedPass | None = None

    @property
    def cancellation(self) -> float:
        """How much larger the parts are than their sum: 1 if all of them support the pick."""
        return sum(map(abs, self.parts.values())) / max(abs(self.gap), 1e-30)

    @property
    def needed(self) -> int:
        """How many parts, the largest first, make 80 % of the gap."""
        total = 0.0
        for count, part in enumerate(sorted(self.parts.values(), reverse=True), 1):
            total += part
            if total >= 0.8 * self.gap:
                return count
        return len(self.parts)

    @property
    def state(self) -> str:
        """What can be said: "too close", "no simple reason" or "readable"."""
        if self.gap < CLOSE:
            return "too close"
        readable = self.cancellation <= CANCELLATION and self.needed <= MOST_PARTS and not self.sink
        return "readable" if readable and self.main != "bias" else "no simple reason"

    @property
    def main(self) -> str:
        """The largest part."""
        return max(self.parts, key=lambda kind: self.parts[kind])

    @cached_property
    def flips(self) -> dict[str, bool]:
        """Recomputed, part by part: does the runner-up win once the two tokens have exchanged this part?"""
        assert self._pass is not None
        there = {name.split()[0] for name, _ in self.detail}
        return self._pass.flips(self.layer, self.head, self.query, self.picked, self.runner_up, there)

    @property
    def sentence(self) -> str:
        """The pick and its reason in words."""
        return f"picked {self.words[0]} over {self.words[1]}: {self.reason}"

    @property
    def reason(self) -> str:
        """The reason in words; causal words only where a recomputed pass confirms them."""
        other = self.words[1]
        if self.state == "too close":
            return f"too close for a reason (gap {self.gap:.2f})"
        if self.state == "no simple reason":
            why = f"{self.needed} parts make 80 % of the gap"
            if self.sink:
                why = "one of them is an attention sink"
            elif self.cancellation > CANCELLATION:
                why = f"parts {self.cancellation:.1f} times as large as their sum"
            elif self.main == "bias":
                why = "biases are the largest part"
            return f"no simple reason ({why})"
        phrases = {
            "word": "the word itself", "position": "its place", "attention": "what earlier layers brought there",
            "MLP": "what the MLPs made of it",
        }  # fmt: skip
        against = {
            "word": f"{other} is the better word", "position": f"{other} is better placed", "bias": "the biases oppose it",
            "attention": f"earlier layers brought more to {other}", "MLP": f"the MLPs favor {other}",
        }  # fmt: skip
        least = min(self.parts, key=lambda kind: self.parts[kind])
        text = f"{phrases[self.main]} {self.parts[self.main]:+.2f}"
        if self.parts[least] < -0.25 * self.gap:
            text += f", although {against[least]} ({self.parts[least]:+.2f})"
        outcome = f"{other} wins" if self.flips.get(self.main) else f"{self.words[0]} wins all the same"
        return f"{text}; if the two exchange it, {outcome}"

    def to_frame(self) -> Any:
        """A row per part: its kind and layer, and its nats."""
        import pandas as pd

        return pd.DataFrame(self.detail, columns=["part", "nats"])


@dataclass(eq=False)
class Stream:
    """Everything of a model that meets its residual stream: found once, for many passes."""

    sites: list[Site]
    writers: dict[int, tuple[nn.Module, str]]  # by id, with the kind of what they write
    layers: dict[int, nn.Module]  # what holds attention and MLP, by the number of the attention layer
    norms: list[nn.Module]
    biases: list[nn.Parameter]
    # whether it is the plain sum of what was written, as with norms before each part; once known
    is_sum: bool | None = None

    @classmethod
    def of(cls, model: nn.Module, known: list[Site] | None = None) -> Stream:
        """That of a model; `known` are its attention modules, where they were found."""
        parts = [anatomy(model, site) for site in (sites.find_sites(model) if known is None else known)]
        if any(part.functional for part in parts):
            raise UsageError("reasons need an output projection that is called as a module; torch's attention does not")
        biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
        layers = {number: part.layer for part in parts for number in part.site.layers}
        return cls([part.site for part in parts], _writers(model, parts), layers, sites.find_norms(model), biases)


class RecomputedPass:
    """One text through a model, with everything that writes to the residual stream held; the reasons of its picks.

    Parameters
    ----------
    model : a transformers model.
    inputs : one text, as the model takes it.
    until : the last attention layer that is needed; all by default.
    stream : the residual stream of the model, where it is known.
    """

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], until: int | None = None, stream: Stream | None = None
    ) -> None:
        self.model, self.inputs, self.until = model, inputs, until
        self.stream = Stream.of(model) if stream is None else stream
        self.written: dict[Call, Tensor] = {}
        self.heads: dict[int, Heads] = {}
        self.output: Any = None
        self._entry: Tensor | None = None  # what enters the last layer, where it is the plain sum of what was written
        self._entered: list[Call] = []  # its terms
        if until is not None and self.stream.is_sum is not False:
            self._run_sum(until)
        if self._entry is None:
            with torch.enable_grad(), ExitStack() as stack:
                sites.freeze_norms(self.stream.norms, stack)
                stack.enter_context(self._bias_gradients())
                self.output = self.run(self._hold, self.heads)

    @torch.no_grad()
    def _run_sum(self, until: int) -> None:
        """Run with gradients in the last layer alone, unless its input is not the plain sum of what was written."""
        first, last = (self.stream.layers[layer] for layer in (min(self.stream.layers), until))

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = args[0] if args else kwargs.get("hidden_states")
            if not isinstance(x, Tensor) or not _is_sum(x, list(self.written.values())):
                raise _NotASumError
            if module is not last:
                return None
            self._entry, self._entered = x.detach().requires_grad_(), list(self.written)
            stack.enter_context(torch.enable_grad())
            given = self._entry.clone()
            return ((given, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": given})

        with ExitStack() as stack, suppress(_NotASumError):
            sites.freeze_norms(sites.find_norms(last), stack)
            stack.enter_context(self._bias_gradients())
            # most streams that are not a sum show it at the first layer already
            for layer in {first, last} if self.stream.is_sum is None else {last}:
                stack.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            self.run(self._hold, self.heads)
        self.stream.is_sum = self._entry is not None
        if not self.stream.is_sum:
            self.written.clear()
            self.heads.clear()

    @contextmanager
    def _bias_gradients(self) -> Iterator[None]:
        """A context in which biases have gradients, also those of a frozen model."""
        frozen = [parameter for parameter in self.stream.biases if not parameter.requires_grad]
        try:
            for parameter in frozen:
                parameter.requires_grad_(True)
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def _hold(self, call: Call, output: Tensor) -> Tensor:
        self.written[call] = output.detach().requires_grad_()
        return self.written[call].clone()  # some models add to it in place

    def run(self, answer: Any, heads: dict[int, Heads], copies: int = 1) -> Any:
        """The output of a pass, None if it ends at the last layer needed; `answer(call, output)` replaces what is written."""
        calls: Counter[int] = Counter()
        read: Counter[str] = Counter()

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            if not isinstance(output, Tensor):  # a router of experts, no writer
                return output
            calls[id(module)] += 1
            return answer((id(module), calls[id(module)] - 1), output)

        def keep(site: Site, found: Heads) -> None:
            layer = site.layers[read[site.name] % len(site.layers)]
            read[site.name] += 1
            heads[layer] = found
            if layer == self.until:
                raise _ReachedError

        with ExitStack() as stack:
            for module, _ in self.stream.writers.values():
                hook(stack, module, after)
            for site in self.stream.sites:
                stack.callback(listen(site.module, site.adapter, partial(keep, site), lambda why: None, gradient=True))
            repeated = {
                name: value.expand(copies, *value.shape[1:]) if isinstance(value, Tensor) and len(value) == 1 else value
                for name, value in self.inputs.items()
            }
            try:
                return self.model(**repeated)
            except _ReachedError:
                return None

    def why(
        self, layer: int, head: int, query: int, picked: int, runner_up: int, words: tuple[str, str] | None = None,
        reading: Reading | None = None,
    ) -> Why:  # fmt: skip
        """The parts of one gap; `reading`: that of the head for all queries, where it is known."""
        if layer not in self.heads:
            raise UsageError(f"layer {layer} was not read; its reasons are not known")
        found = self.heads[layer]
        keys = found.key[0, head * found.key.shape[1] // found.query.shape[1]]  # (keys, dim)
        scale = found.query.shape[-1] ** -0.5 if found.scale is None else float(found.scale)
        rows = found.query[0, head].detach()  # (queries, dim)
        difference = keys[picked] - keys[runner_up]
        gap = scale * rows[query] @ difference
        if not gap.requires_grad:
            raise UsageError(
                f"{type(self.model).__name__} computes layer {layer} without gradients, which reasons need"
            )
        leaves = self.written if self._entry is None else dict.fromkeys(self._entered, self._entry)
        ends = list(leaves.values()) if self._entry is None else [self._entry]
        with self._bias_gradients():
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                gap, [*ends, *self.stream.biases], retain_graph=True, allow_unused=True
            )
        detail: defaultdict[str, float] = defaultdict(float)
        at_leaves = gradients[: len(ends)] if self._entry is None else gradients[:1] * len(leaves)
        for call, gradient in zip(leaves, at_leaves, strict=True):
            if gradient is None:
                continue
            module, kind = self.stream.writers[call[0]]
            bias: Any = getattr(module, "bias", None)
            constant = 0.0 if bias is None else float((gradient * bias.detach()).sum())
            own = float((gradient * self.written[call].detach()).nan_to_num(0.0).sum())
            detail[self._name(call, kind)] += own - constant
            detail["bias"] += constant
        for parameter, gradient in zip(self.stream.biases, gradients[len(ends) :], strict=True):
            detail["bias"] += 0.0 if gradient is None else float((gradient * parameter.detach()).sum())
        added = _added(found, head, query, picked) - _added(found, head, query, runner_up)
        detail["position"] += added
        parts = {kind: sum(value for name, value in detail.items() if name.split()[0] == kind) for kind in KINDS}
        whole = float(gap.detach()) + added
        error = abs(sum(parts.values()) - whole)
        if not error <= INEXACT * max(sum(map(abs, parts.values())), abs(whole), 0.1):
            cause = "writes to its residual stream by other modules than those that were found"
            if keys.dtype in (torch.float16, torch.bfloat16):
                cause = f"computes in {str(keys.dtype)[6:]}, which is too coarse for its parts; try model.float()"
            sums = f"the parts of layer {layer} sum to {sum(parts.values()):.3f}, its gap is {whole:.3f}"
            raise UsageError(f"{sums}: {type(self.model).__name__} {cause}")
        reading = read(found).of_heads(torch.tensor([head])) if reading is None else reading
        average, sink = _of_all_queries(reading, [picked, runner_up])
        return Why(
            layer, head, query, picked, runner_up, whole, parts, tuple(detail.items()), average, whole - average,
            sink=sink, error=error,
            words=words or ("the pick", "the runner-up"), _pass=self,
        )  # fmt: skip

    def _name(self, call: Call, kind: str) -> str:
        """A part by its kind and, beside words and positions, by its layer."""
        if kind in ("word", "position", "bias"):
            return kind
        order = [other for other in self.written if self.stream.writers[other[0]][1] == kind]
        return f"{kind} {order.index(call)}"

    @torch.no_grad()
    def flips(self, layer: int, head: int, query: int, picked: int, runner_up: int, there: set[str]) -> dict[str, bool]:
        """Which parts that are there decide: scores recomputed, norms too, after the two tokens have exchanged one of them."""
        there = there & {self.stream.writers[call[0]][1] for call in self.written}
        kinds = [kind for kind in KINDS if kind != "bias" and kind in there]
        before = self.until
        self.until = layer

        def answer(call: Call, output: Tensor) -> Tensor:
            own = self.written[call].detach()
            # (tokens, width) in OPT, whose layers flatten the batch, and of positions that all texts share
            own = own[None] if output.dim() == 2 else own
            changed = own.expand(len(kinds), *own.shape[1:]).clone()
            kind = self.stream.writers[call[0]][1]
            if kind in kinds and changed.dim() == 3:
                changed[kinds.index(kind), [picked, runner_up]] = own[0, [runner_up, picked]]
            return changed.flatten(0, 1) if output.dim() == 2 and len(output) > own.shape[1] else changed

        found: dict[int, Heads] = {}
        try:
            self.run(answer, found, len(kinds))
        finally:
            self.until = before
        asked, heads = self.heads[layer], found[layer]
        scale = asked.query.shape[-1] ** -0.5 if asked.scale is None else float(asked.scale)
        keys = heads.key[:, head * heads.key.shape[1] // heads.query.shape[1]]  # (kinds, keys, dim)
        scores = scale * keys @ asked.query[0, head, query].detach()
        added = [_added(asked, head, query, key) for key in (picked, runner_up)]
        lost = scores[:, picked] + added[0] <= scores[:, runner_up] + added[1]
        return dict(zip(kinds, lost.tolist(), strict=True))


class _NotASumError(Exception):
    """What enters a layer is not the plain sum of what was written."""


class _ReachedError(Exception):
    """The last layer that is needed was read."""


def _writers(model: nn.Module, parts: Sequence[Anatomy]) -> dict[int, tuple[nn.Module, str]]:
    """The modules that write to the residual stream, by id, with the kind of what they write."""
    table = sites.input_embedding(model)
    found: dict[int, tuple[nn.Module, str]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding):
            continue
        if module.weight is table.weight:  # a decoder may have a module of its own with the same table
            found[id(module)] = module, "word"
        elif "pos" in name.rpartition(".")[2].replace("wpe", "pos"):
            found[id(module)] = module, "position"
        elif "type" in name:
            found[id(module)] = module, "bias"
    found[id(table)] = table, "word"
    for part in parts:
        found[id(part.output)] = part.output, "attention"
        if part.feed_forward is not None:
            found[id(part.feed_forward)] = part.feed_forward, "MLP"
    return found


def _of_all_queries(reading: Reading, pair: list[int]) -> tuple[float, bool]:
    """The mean gap between two keys over the queries of a head that see both, and whether one of the two is a sink."""
    scores, real = reading.logits(), reading.seen()[0]
    weights = reading.weights(scores=scores)[0, 0, real][:, pair]  # (queries, 2)
    uncapped = scores if reading.softcap is None else reading.logits(capped=False)
    asked = uncapped[0, 0, real][:, pair]
    sees = asked > -torch.inf
    gaps = (asked[:, 0] - asked[:, 1])[sees.all(1)]
    return float(gaps.mean()), bool((weights.sum(0) > SINK * sees.sum(0).clamp_min(1)).any())


def _is_sum(x: Tensor, parts: list[Tensor]) -> bool:
    if any(part.shape[-2:] != x.shape[-2:] for part in parts):  # of an encoder, or narrower
        return False
    return float((sum(parts) - x).abs().max()) <= SAME * float(x.abs().max())


def _added(found: Heads, head: int, query: int, key: int) -> float:
    """What is added to the score of a key: relative positions and the like."""
    total = 0.0
    for square in (found.bias, found.mask if found.mask is not None and found.mask.is_floating_point() else None):
        if square is not None and square.dim() == 4:
            place = (0, head if square.shape[1] > 1 else 0, query if square.shape[2] > 1 else 0, key)
            total += float(square[place].detach())
    return total
