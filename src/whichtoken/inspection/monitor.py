"""Attention during training: gap, entropy, sink share and largest logit of every head, and warnings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.checks import check_integer
from whichtoken.inspection.probe import AttentionProbe

BLOW_UP = 100.0  # the logit at which MuonClip begins to clip
COLLAPSED = 1.05  # effective tokens: the head looks at one token for every query


class AttentionWarning(UserWarning):
    """Attention collapses to single tokens, or its scores grow without bound."""


@dataclass(frozen=True, eq=False)
class AttentionState:
    """The attention of one training step; arrays of shape (layers, heads)."""

    step: int
    gap: NDArray[np.float64]  # median over the sampled queries
    effective_tokens: NDArray[np.float64]  # mean
    sink_share: NDArray[np.float64]  # mean attention on the first token
    largest_logit: NDArray[np.float64]

    def summary(self) -> dict[str, float]:
        """A few numbers for a logger."""
        return {
            "attention/gap": float(np.median(self.gap)),
            "attention/effective_tokens": float(self.effective_tokens.mean()),
            "attention/sink_share": float(self.sink_share.mean()),
            "attention/largest_logit": float(self.largest_logit.max()),
        }


class AttentionMonitor:
    """Watch attention while a model trains, to notice heads that collapse or whose scores blow up.

    Reach for it when a training run diverges or stalls, or to log attention beside the loss. It reads the forward passes that
    training makes anyway, one step in `every` and a sample of each batch, and never changes what the model computes. Each
    problem is warned about once, as an `AttentionWarning`; `history` has all numbers.

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
        How many texts and queries of a batch are watched, evenly spread.

    Examples
    --------
    >>> monitor.history[-1].gap.shape  # layers, heads
    (1, 2)
    """

    def __init__(self, model: nn.Module, every: int = 50, texts: int = 4, queries: int = 8) -> None:
        for name, value in (("every", every), ("texts", texts), ("queries", queries)):
            check_integer(name, value, 1)
        self.every, self.texts, self.queries = every, texts, queries
        self.history: list[AttentionState] = []
        self.step = 0
        self._probe = AttentionProbe(model)
        self._watching = False
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
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

    @torch.no_grad()
    def _record(self) -> None:
        layers = [self._state(layer) for layer in range(len(self._probe.names)) if layer in self._probe.readings]
        gap, tokens, sink, logit = (np.stack(parts) for parts in zip(*layers, strict=True))
        self.history.append(AttentionState(self.step, gap, tokens, sink, logit))
        layer, head = np.unravel_index(np.argmax(logit), logit.shape)
        if logit.max() > BLOW_UP:
            score = f"layer {layer}, head {head} has a score of {logit.max():.0f} (above {BLOW_UP:g})"
            self._warn_once("blow-up", f"attention blows up: {score}")
        collapsed = tokens < COLLAPSED
        if collapsed.mean() > 0.5:
            count = f"{collapsed.sum()} of {collapsed.size} heads look at a single token each"
            self._warn_once("collapse", f"attention collapses: {count}")

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
        logit = masked(picks.largest_logit).nan_to_num(-torch.inf).amax(1)
        return tuple(part.cpu().numpy() for part in (gap, tokens, sink, logit))
