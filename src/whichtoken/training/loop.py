"""Epochs over documents: learning-rate drops, held-out data, early stopping, checkpoints, a progress bar.

What happens within an epoch is an `EpochEngine`'s affair; the one-layer and the two-layer model share this loop.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.models.cls_model import logistic_loss
from whichtoken.progress import terminal_bar
from whichtoken.training.checkpoint import load_checkpoint, restore, save_checkpoint
from whichtoken.training.plan import TrainingPlan


class EpochEngine(Protocol):
    """Updates a model by whole epochs."""

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        """One pass over the documents in this order; the mean loss of its batches before their updates."""

    def decision(self, counts: csr_array) -> NDArray[np.float64]:
        """Outputs for held-out documents."""

    @property
    def parameters(self) -> Mapping[str, NDArray[Any]]:
        """The live parameters by name."""

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        """Every live array that the next epoch depends on, parameters included."""


@dataclass
class History(Shown):
    """What happened, epoch by epoch."""

    losses: list[float] = field(default_factory=list)  # mean over the batches of the epoch
    held_out_losses: list[float] = field(default_factory=list)
    held_out_accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0  # wall time, over all parts of an interrupted run
    cpu_seconds: float = 0.0

    @property
    def best_epoch(self) -> int:
        """The epoch of least held-out loss."""
        return int(np.argmin(self.held_out_losses))

    @property
    def text(self) -> str:
        """The last epoch in a few words."""
        accuracy = f", held-out accuracy {self.held_out_accuracies[-1]:.4f}" if self.held_out_accuracies else ""
        return f"loss {self.losses[-1]:.4f}{accuracy}"


@dataclass(frozen=True)
class Safeguards(Shown):
    """What watches a run.

    Parameters
    ----------
    held_out : tuple[Any, Any], optional
        Counts and labels that are judged after every epoch but never trained on.
    patience : int, optional
        Stop when the held-out loss has not fallen for this many epochs, and go back to the best parameters.
    checkpoint : Path, optional
        File to keep the state in; a run that finds it there goes on from it, to the same numbers.
    checkpoint_every : int, default=1
        Epochs between two writes; a kill loses at most this many.

    Examples
    --------
    >>> from whichtoken.training import Safeguards
    >>> guards = Safeguards(held_out=([[1, 0], [0, 1]], [1, -1]), patience=5)
    >>> guards.patience, guards.checkpoint_every
    (5, 1)
    """

    held_out: tuple[Any, Any] | None = None
    patience: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        for name in ("patience", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.patience is not None and self.held_out is None:
            raise ValueError(f"patience={self.patience} needs held_out documents to watch")
        if self.checkpoint is not None:
            object.__setattr__(self, "checkpoint", Path(self.checkpoint))
            if self.checkpoint.is_dir():
                raise UsageError(f"checkpoint={self.checkpoint} is a folder; a file in it is expected")
            if not self.checkpoint.parent.is_dir():
                raise UsageError(f"checkpoint={self.checkpoint}: its folder does not exist")


def train_by_epochs(
    engine: EpochEngine, counts: csr_array, labels: NDArray[np.int8], plan: TrainingPlan, rng: np.random.Generator,
    guards: Safeguards,
) -> History:  # fmt: skip
    """Run the plan, or what is left of it, on `engine`."""
    identity = _identity(engine, plan, counts, labels)
    history, best = _resume(engine, guards, identity, rng)
    with terminal_bar(plan.epochs, "epoch", "{task.fields[text]}", text="") as update:
        for epoch in range(len(history.losses), plan.epochs):
            if _exhausted(history, guards):
                break
            wall, cpu = time.perf_counter(), time.process_time()
            order = np.arange(len(labels)) if plan.optimizer == "gd" else rng.permutation(len(labels))
            history.losses.append(engine.epoch(order, plan.learning_rate(epoch)))
            if not np.isfinite(history.losses[-1]):
                raise ValueError(f"the loss became {history.losses[-1]} in epoch {epoch}; lower lr={plan.lr}")
            if guards.held_out is not None:
                best = _judge(engine, history, guards, best)
            if guards.checkpoint and ((epoch + 1) % guards.checkpoint_every == 0 or epoch + 1 == plan.epochs):
                _save(guards.checkpoint, engine, history, best, identity, rng)
            history.seconds += time.perf_counter() - wall
            history.cpu_seconds += time.process_time() - cpu
            update(completed=epoch + 1, text=history.text)
    if best:
        restore(engine.parameters, best)
    return history


def _judge(
    engine: EpochEngine, history: History, guards: Safeguards, best: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Append the held-out loss and accuracy; with `patience`, a copy of the parameters if they are the best so far."""
    assert guards.held_out is not None
    counts, labels = guards.held_out
    outputs = engine.decision(counts)
    history.held_out_losses.append(logistic_loss(outputs, labels))
    history.held_out_accuracies.append(float(np.mean(outputs * labels > 0)))
    if guards.patience is None or history.best_epoch < len(history.held_out_losses) - 1:
        return best
    return {name: array.copy() for name, array in engine.parameters.items()}


def _exhausted(history: History, guards: Safeguards) -> bool:
    if guards.patience is None or not history.held_out_losses:
        return False
    return len(history.held_out_losses) - 1 - history.best_epoch >= guards.patience


def _identity(engine: EpochEngine, plan: TrainingPlan, counts: csr_array, labels: NDArray[np.int8]) -> dict[str, Any]:
    """What must be equal for a run to go on; the number of epochs may grow."""
    checksum = 0
    for part in (counts.indptr, counts.indices, counts.data, labels):
        checksum = zlib.crc32(np.ascontiguousarray(part).data, checksum)
    settings: dict[str, Any] = json.loads(json.dumps(asdict(replace(plan, epochs=1))))
    E = engine.parameters["embeddings"]
    model = {"engine": type(engine).__name__, "embeddings": [*E.shape, str(E.dtype)]}
    return model | settings | {"documents": checksum}


def _save(
    path: Path, engine: EpochEngine, history: History, best: dict[str, NDArray[Any]], identity: dict[str, Any],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    arrays = {**engine.state, **{f"best.{name}": array for name, array in best.items()}}
    facts = {"identity": identity, "history": asdict(history), "rng": rng.bit_generator.state}
    save_checkpoint(path, arrays, facts)


def _resume(
    engine: EpochEngine, guards: Safeguards, identity: dict[str, Any], rng: np.random.Generator
) -> tuple[History, dict[str, NDArray[Any]]]:
    if guards.checkpoint is None or not guards.checkpoint.exists():
        return History(), {}
    stored, facts = load_checkpoint(guards.checkpoint)
    for name, value in identity.items():
        found = facts.get("identity", {}).get(name)
        if found != value:
            raise UsageError(
                f"{guards.checkpoint} was written with {name}={found}, this run has {value}; choose another file"
            )
    best = {name.removeprefix("best."): array for name, array in stored.items() if name.startswith("best.")}
    if guards.patience is not None and not best:
        raise UsageError(
            f"{guards.checkpoint} was written without patience and lacks the best parameters; choose another file"
        )
    restore(engine.state, stored)
    rng.bit_generator.state = facts["rng"]
    return History(**facts["history"]), best if guards.patience is not None else {}
