"""How long and how fast to train on documents: optimiser, epochs, batches, learning rate and its drops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from whichtoken.checks import check_choice
from whichtoken.display.shown import Shown

Optimizer = Literal["adamw", "sgd", "gd"]


@dataclass(frozen=True)
class TrainingPlan(Shown):
    """A training procedure; the defaults are those of Wu, Shevchenko, Oymak, Mondelli for the reviews (appendix E).

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
    >>> from whichtoken.training import TrainingPlan
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
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas} must lie in [0, 1)")
        if list(self.drops) != sorted(set(self.drops)) or min(self.drops, default=1) < 1:
            raise ValueError(f"drops={self.drops} must be increasing epochs, at least 1")

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch; the first is 0."""
        return self.lr * self.drop_factor ** sum(drop <= epoch for drop in self.drops)
