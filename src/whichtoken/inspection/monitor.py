"""Attention during training: gap, entropy, sink share and largest logit of every head, warnings, and a clip of the logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.checks import check_integer
from whichtoken.errors import UsageError
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.sites import Site, anatomy, linear_weight

BLOW_UP = 100.0  # the logit at which MuonClip begins to clip
COLLAPSED = 1.05  # effective tokens: the head looks at one token for every query


class AttentionWarning(UserWarning):
    """Attention collapses to single tokens, or its scores grow without bound."""


@dataclass(frozen=True, eq=False)
class AttentionState:
    """The attention of one training step; arrays of shape (layers, heads), with a row per layer of `layers`."""

    step: int
    layers: NDArray[np.int64]  # those that can be read
    gap: NDArray[np.float64]  # median over the sampled queries
    effective_tokens: NDArray[np.float64]  # mean
    sink_share: NDArray[np.float64]  # mean attention on the first token
    max_logit: NDArray[np.float64]  # of all queries of the batch, as MuonClip takes it

    def summary(self) -> dict[str, float]:
        """A few numbers for a logger."""
        return {
            "attention/gap": float(np.median(self.gap)),
            "attention/effective_tokens": float(self.effective_tokens.mean()),
            "attention/sink_share": float(self.sink_share.mean()),
            "attention/max_logit": float(self.max_logit.max()),
        }

    def to_frame(self) -> Any:
        """A row per head."""
        import pandas as pd

        rows, heads = np.indices(self.gap.shape)
        names = ("gap", "effective_tokens", "sink_share", "max_logit")
        columns = {name: getattr(self, name).ravel() for name in names}
        return pd.DataFrame({"step": self.step, "layer": self.layers[rows.ravel()], "head": heads.ravel()} | columns)


class AttentionMonitor:
    """Watch attention while a model trains, to notice heads that collapse or whose scores blow up.

    Reach for it when a training run diverges or stalls, or to log attention beside the loss: `log=wandb.log` or any other
    function of a dict. It reads the forward passes that training makes anyway, one step in `every` and a sample of each
    batch, and does not change what the model computes, unless you ask for `qk_clip`. Each problem is warned about once, as an
    `AttentionWarning`; `history` has all numbers. In transformers' `Trainer` use `trainer_callback()`, in Lightning
    `lightning_callback()`.

    >>> import torch
    >>> from whichtoken.inspection import AttentionMonitor
    >>> layer = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
    >>> monitor = AttentionMonitor(layer, every=1)
    >>> for _ in range(3):
    ...     with monitor:
    ...         layer(torch.randn(2, 5, 8)).square().mean().backward()
    >>> len(monitor.history), sorted(monitor.history[0].summary())[0]
    (3, 'attention/effective_tokens')

    Parameters
    ----------
    model : nn.Module
        The model that trains.
    every : int, default=50
        One step in this many is watched; the others run without hooks.
    texts, queries : int
        How many texts and queries of a batch are watched, evenly spread; the largest logit is that of all of them.
    log : callable, optional
        Called with the summary of each watched step, a dict of floats with its "step".
    qk_clip : float, optional
        Heads whose largest logit was above it have their query and key weights scaled down before the next step, so that the
        logit would have been this one (QK-Clip of MuonClip, Kimi Team 2025, arXiv 2507.20534). Watch every step with it. Heads
        that share keys are scaled by their queries alone.

    Examples
    --------
    >>> monitor.history[-1].gap.shape  # layers, heads
    (1, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 50,
        texts: int = 4,
        queries: int = 8,
        *,
        log: Callable[[dict[str, float]], object] | None = None,
        qk_clip: float | None = None,
    ) -> None:
        for name, value in (("every", every), ("texts", texts), ("queries", queries)):
            check_integer(name, value, 1)
        if qk_clip is not None and not qk_clip > 0:
            raise UsageError(f"qk_clip={qk_clip} must be positive; MuonClip uses 100")
        self.every, self.texts, self.queries, self.log, self.qk_clip = every, texts, queries, log, qk_clip
        self.history: list[AttentionState] = []
        self.step = 0
        self._probe = AttentionProbe(model)
        self._watching = False
        self._warned: set[str] = set()
        self._excess: NDArray[np.float64] | None = None  # largest logits that are to be clipped
        if qk_clip is not None:
            for site in self._probe.sites:
                _query_key_rows(self._probe.model, site, 1)  # refuses what cannot be clipped before a step is made

    def __enter__(self) -> Self:
        if self._watching:  # the loop was interrupted in a step
            self._probe.__exit__()
        # not after the forward pass that showed the logits: its backward pass still needs the weights
        if self._excess is not None:
            self._clip(self._excess)
            self._excess = None
        self._watching = self.step % self.every == 0
        if self._watching:
            self._probe.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._watching:
            self._probe.__exit__()
            self._watching = False
            if kind is None and self._probe.readings:
                self._record()
            elif kind is None and self._probe.refused:
                self._warn_once("refused", f"nothing is watched: {next(iter(self._probe.refused.values()))}")
            self._probe.readings.clear()
        self.step += 1

    def trainer_callback(self) -> Any:
        """The same as a callback of Hugging Face's `Trainer`: Trainer(..., callbacks=[monitor.trainer_callback()])."""
        from whichtoken.inspection.loading import transformers_package

        monitor = self

        class Callback(transformers_package().TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                monitor.__enter__()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                seen = len(monitor.history)
                monitor.__exit__(None, None, None)
                if len(monitor.history) > seen and state.log_history is not None:
                    state.log_history.append({"step": state.global_step, **monitor.history[-1].summary()})

        return Callback()

    def lightning_callback(self) -> Any:
        """The same as a callback of Lightning: lightning.Trainer(..., callbacks=[monitor.lightning_callback()])."""
        monitor = self
        base = _lightning().Callback

        class Callback(base):  # type: ignore[misc,valid-type]
            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
                monitor.__enter__()

            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
                seen = len(monitor.history)
                monitor.__exit__(None, None, None)
                if len(monitor.history) > seen:
                    module.log_dict(monitor.history[-1].summary())

        return Callback()

    def to_frame(self) -> Any:
        """A row per watched step and head."""
        import pandas as pd

        return pd.concat([state.to_frame() for state in self.history], ignore_index=True)

    @torch.no_grad()
    def _record(self) -> None:
        layers = np.array(sorted(self._probe.readings))
        states = (self._state(layer) for layer in layers.tolist())
        gap, tokens, sink, logit = (np.stack(parts) for parts in zip(*states, strict=True))
        self.history.append(AttentionState(self.step, layers, gap, tokens, sink, logit))
        if self.log is not None:
            self.log({"step": float(self.step), **self.history[-1].summary()})
        if self.qk_clip is not None and logit.max() > self.qk_clip:
            self._excess = logit
        layer, head = np.unravel_index(np.argmax(logit), logit.shape)
        if logit.max() > BLOW_UP:
            score = f"layer {layers[layer]}, head {head} has a score of {logit.max():.0f} (above {BLOW_UP:g})"
            self._warn_once("blow-up", f"attention blows up: {score}")
        collapsed = tokens < COLLAPSED
        if collapsed.mean() > 0.5:
            count = f"{collapsed.sum()} of {collapsed.size} heads look at a single token each"
            self._warn_once("collapse", f"attention collapses: {count}")

    @torch.no_grad()
    def _clip(self, logits: NDArray[np.float64]) -> None:
        """Scale the query and key weights of heads above the threshold, half of the factor each."""
        assert self.qk_clip is not None
        factors = np.minimum(1.0, self.qk_clip / np.maximum(logits, 1e-30))
        for layer, heads in zip(self.history[-1].layers.tolist(), factors, strict=True):
            site = self._probe.site(layer)
            query, key = _query_key_rows(self._probe.model, site, len(heads))
            for head, factor in enumerate(heads):
                if factor < 1:
                    shared = len(key) < len(query)
                    for part in query[head]:
                        part *= factor if shared else factor**0.5
                    for part in () if shared else key[head]:
                        part *= factor**0.5

    def _warn_once(self, kind: str, sentence: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"step {self.step}: {sentence}", AttentionWarning, stacklevel=4)

    def _state(self, layer: int) -> tuple[NDArray[np.float64], ...]:
        reading = self._probe.reading(layer)
        batch, count = reading.positions.shape
        some = torch.linspace(0, batch - 1, min(batch, self.texts)).long()
        rows = torch.linspace(0, count - 1, min(count, self.queries)).long()
        picks = self._probe.sample(layer, some, rows)
        weights = picks._reading.weights()  # (texts, heads, queries, keys)
        real = picks.valid[:, None].expand_as(picks.gap)

        def masked(x: Tensor) -> Tensor:  # (heads, texts * queries), gaps where a query is padding
            return torch.where(real, x.double(), torch.nan).movedim(1, 0).flatten(1)

        gap = masked(picks.gap.clamp_max(1e6)).nanmedian(1).values
        tokens = masked(picks.effective_tokens).nanmean(1)
        sink = masked(weights[..., 0]).nanmean(1)
        # of every query: one that is not in the sample may be the largest
        seen = reading.seen()[:, None, :, None]
        parts = [
            block.logits().masked_fill(~seen[:, :, rows], -torch.inf).amax((0, 2, 3))
            for rows, block in reading.blocks()
        ]
        logit = torch.stack(parts).amax(0).double()
        return tuple(part.cpu().numpy() for part in (gap, tokens, sink, logit))


def _query_key_rows(model: nn.Module, site: Site, heads: int) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Views on the rows of weights and biases that make the queries, and the keys, of each head."""
    module: Any = site.module
    if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
        parts = [
            module.in_proj_weight.chunk(3)[:2],
            (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2],
        ]
        pairs = list(zip(*parts, strict=True))
    else:
        found = anatomy(model, site).query_key()
        if found is None or any("norm" in name for name, _ in module.named_children()):
            raise UsageError(
                f"qk_clip cannot scale the queries and keys of {type(module).__name__}: they are not projections alone"
            )
        pairs = [(linear_weight(part), getattr(part, "bias", None)) for part in found]
    dim = pairs[0][0].shape[0] // heads
    result = []
    for weight, bias in pairs:
        count = weight.shape[0] // dim
        rows = [slice(head * dim, (head + 1) * dim) for head in range(count)]
        result.append([[part[row] for part in (weight, bias) if part is not None] for row in rows])
    return result[0], result[1]


def _lightning() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return import_module(name)
    raise UsageError("Lightning is not installed: pip install lightning")
