"""Training on documents by epochs: the plan, learning-rate drops, held-out data, checkpoints, a progress bar.

An `EpochEngine` does what happens within an epoch; the one-layer and the two-layer model share this loop.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from whichtoken.checks import check_choice, check_count
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.progress import terminal_bar
from whichtoken.reading import readable
from whichtoken.theory.trained_embeddings.cls_model import logistic_loss

Optimizer = Literal["adamw", "sgd", "gd"]


@dataclass(frozen=True)
class TrainingPlan(Shown):
    """A training procedure; the defaults are those of Wu, Shevchenko, Oymak, Mondelli for the reviews (appendix E).

    Reach for it to train `<cls>` attention as the paper does, or with one thing of that changed.

    Parameters
    ----------
    optimizer : {"adamw", "sgd", "gd"}, default="adamw"
        The update of torch.optim.AdamW, SGD on batches, or gradient descent on all documents at once.
    lr : float, default=0.01
        Learning rate.
    epochs : int, default=500
        Passes over the documents.
    batch_size : int, default=128
        Documents of a batch.
    weight_decay : float, default=1e-08
        Of AdamW; the others do not use it.
    drops : tuple of int, default=(100, 200)
        Epochs before which the learning rate is multiplied by `drop_factor`.
    drop_factor : float, default=0.1
        See `drops`.
    train_value : bool, default=False
        Whether the readout v is trained too; the theory keeps it fixed.
    betas, eps : tuple of float, and float
        Of AdamW; the others do not use them.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import TrainingPlan
    >>> plan = TrainingPlan(lr=0.01, epochs=300, drops=(100, 200))
    >>> plan.learning_rate(0), round(plan.learning_rate(150), 6)
    (0.01, 0.001)
    """

    optimizer: Optimizer = "adamw"
    lr: float = 1e-2
    epochs: int = 500
    batch_size: int = 128
    weight_decay: float = 1e-8
    drops: tuple[int, ...] = (100, 200)
    drop_factor: float = 0.1
    train_value: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, get_args(Optimizer))
        for name, positive in (("lr", True), ("eps", True), ("drop_factor", True), ("weight_decay", False)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                raise ValueError(f"{name}={value} must be {'positive' if positive else 'at least 0'} and finite")
        check_count("epochs", self.epochs, 1)
        check_count("batch_size", self.batch_size, 1)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas} must lie in [0, 1)")
        if list(self.drops) != sorted(set(self.drops)) or min(self.drops, default=1) < 1:
            raise ValueError(f"drops={self.drops} must be increasing epochs, at least 1")

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch; the first is 0."""
        return self.lr * self.drop_factor ** sum(drop <= epoch for drop in self.drops)


def save_checkpoint(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON-able facts; a kill at any moment leaves the old file or the new one.

    Arrays among the facts, such as the state of some generators, become lists.
    """
    from safetensors.numpy import save_file

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # safetensors writes the memory of an array as it lies, whatever its order
        rows = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(rows, part, metadata={"facts": json.dumps(facts, default=np.ndarray.tolist)})
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What `save_checkpoint` wrote."""
    from safetensors import safe_open

    with readable(path, "a checkpoint of a training run"), safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()["facts"])
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


class EpochEngine(Protocol):
    """Updates a model by whole epochs."""

    def epoch(self, order: NDArray[np.int64], lr: float) -> float:
        """One pass over the documents in this order; the mean loss of its batches before their updates."""

    def decision(self, counts: csr_array) -> NDArray[np.float64]:
        """Outputs for held-out documents."""

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
    def text(self) -> str:
        """The last epoch in a few words."""
        accuracy = f", held-out accuracy {self.held_out_accuracies[-1]:.4f}" if self.held_out_accuracies else ""
        return f"loss {self.losses[-1]:.4f}{accuracy}"


@dataclass(frozen=True)
class Safeguards(Shown):
    """What watches a run.

    Reach for it when a training run is long: it is evaluated on the way, and survives a kill.

    Parameters
    ----------
    held_out : tuple[Any, Any], optional
        Counts and labels that are evaluated after every epoch but never trained on.
    checkpoint : Path, optional
        File to keep the state in; a run that finds it there goes on from it, to the same numbers.
    checkpoint_every : int, default=1
        Epochs between two writes; a kill loses at most this many.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import Safeguards
    >>> Safeguards(held_out=([[1, 0], [0, 1]], [1, -1])).checkpoint_every
    1
    """

    held_out: tuple[Any, Any] | None = None
    checkpoint: Path | None = None
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        check_count("checkpoint_every", self.checkpoint_every, 1)
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
    history = _resume(engine, guards, identity, rng)
    with terminal_bar(plan.epochs, "epoch", "{task.fields[text]}", text="") as update:
        for epoch in range(len(history.losses), plan.epochs):
            wall, cpu = time.perf_counter(), time.process_time()
            order = np.arange(len(labels)) if plan.optimizer == "gd" else rng.permutation(len(labels))
            history.losses.append(engine.epoch(order, plan.learning_rate(epoch)))
            if not np.isfinite(history.losses[-1]):
                raise ValueError(f"the loss became {history.losses[-1]} in epoch {epoch}; lower lr={plan.lr}")
            if guards.held_out is not None:
                outputs = engine.decision(guards.held_out[0])
                history.held_out_losses.append(logistic_loss(outputs, guards.held_out[1]))
                history.held_out_accuracies.append(float(np.mean(outputs * guards.held_out[1] > 0)))
            if guards.checkpoint and ((epoch + 1) % guards.checkpoint_every == 0 or epoch + 1 == plan.epochs):
                facts = {"identity": identity, "history": asdict(history), "rng": rng.bit_generator.state}
                save_checkpoint(guards.checkpoint, engine.state, facts)
            history.seconds += time.perf_counter() - wall
            history.cpu_seconds += time.process_time() - cpu
            update(completed=epoch + 1, text=history.text)
    return history


def _identity(engine: EpochEngine, plan: TrainingPlan, counts: csr_array, labels: NDArray[np.int8]) -> dict[str, Any]:
    """What must be equal for a run to go on; the number of epochs may grow."""
    checksum = 0
    for part in (counts.indptr, counts.indices, counts.data, labels):
        checksum = zlib.crc32(np.ascontiguousarray(part).data, checksum)
    settings: dict[str, Any] = json.loads(json.dumps(asdict(replace(plan, epochs=1))))
    E = engine.state["embeddings"]
    model = {"engine": type(engine).__name__, "embeddings": [*E.shape, str(E.dtype)]}
    return model | settings | {"documents": checksum}


def _resume(engine: EpochEngine, guards: Safeguards, identity: dict[str, Any], rng: np.random.Generator) -> History:
    if guards.checkpoint is None or not guards.checkpoint.exists():
        return History()
    stored, facts = load_checkpoint(guards.checkpoint)
    for name, value in identity.items():
        found = facts.get("identity", {}).get(name)
        if found != value:
            raise UsageError(
                f"{guards.checkpoint} was written with {name}={found}, this run has {value}; choose another file"
            )
    for name, array in engine.state.items():
        np.copyto(array, stored[name])
    rng.bit_generator.state = facts["rng"]
    return History(**facts["history"])
