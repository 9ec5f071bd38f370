"""Gradient descent for group transformers: fresh batches, antithetic pairs, online transfer to a new task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whichtoken.theory.group_sparse import default_learning_rate, stability_bounds
from whichtoken.theory.group_sparse.population import check_positive
from whichtoken.theory.group_sparse.transformer import GroupTransformer

Batch = tuple[NDArray[np.float64], NDArray[np.int64]]
Observer = Callable[[int], Any]


class StabilityWarning(UserWarning):
    """The learning rate is beyond the bound up to which the theory's fixed point v_2 = 0 is stable."""


class Trainable(Protocol):
    """A model with a loss on a batch."""

    def loss(self, X: Tensor, y: Tensor) -> Tensor: ...


class Sampler(Protocol):
    """A distribution of samples (n, groups, group_dim) and labels (n,)."""

    def sample(self, n: int, rng: np.random.Generator) -> Batch: ...


@dataclass(frozen=True)
class Descent:
    """Record of a run: the loss of each batch before its update, and what was observed on the way."""

    losses: NDArray[np.float64]  # (steps,)
    observed: list[Any]

    @property
    def running_error(self) -> NDArray[np.float64]:
        """Share of wrong predictions so far, each before its sample was learned; for batches of one sample."""
        mistakes = self.losses >= math.log(2)  # the logistic loss of a margin of zero
        return np.cumsum(mistakes) / np.arange(1, len(mistakes) + 1)


def fresh_batches(data: Sampler, size: int, rng: np.random.Generator, antithetic: bool = False) -> Iterator[Batch]:
    """Endless fresh batches, the Monte Carlo form of population gradient descent.

    Antithetic batches hold (-X, -y) beside (X, y): the gradients in v_2, W_12 and W_21 then vanish identically while these
    blocks are zero.
    """
    if size < 1 or (antithetic and size % 2):
        raise ValueError(f"size={size} must be {'even and ' if antithetic else ''}at least 1")
    while True:
        X, y = data.sample(size // 2 if antithetic else size, rng)
        yield (np.concatenate([X, -X]), np.concatenate([y, -y])) if antithetic else (X, y)


def descend_on_batches(
    model: Trainable, batches: Iterable[Batch], optimizer: torch.optim.Optimizer, steps: int,
    observe: Observer | None = None, every: int = 1,
) -> Descent:  # fmt: skip
    """Update `model` on `steps` batches; `observe(t)` is called after t updates, for t = 0, every, ... and at the end.

    A fixed training set is `itertools.repeat((X, y))`.
    """
    losses: list[float] = []
    observed: list[Any] = []
    for step, (X, y) in enumerate(islice(batches, steps)):
        if observe and step % every == 0:
            observed.append(observe(step))
        loss = model.loss(torch.from_numpy(X), torch.from_numpy(y))
        if not torch.isfinite(loss):
            culprit = "weights" if np.isfinite(X).all() else "data"
            raise ValueError(f"loss={loss.item()} at step {step}: the {culprit} must be finite")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    if observe:
        observed.append(observe(len(losses)))
    return Descent(np.array(losses), observed)


def gradient_descent(
    model: GroupTransformer,
    batches: Iterable[Batch],
    steps: int,
    lr: float | None = None,
    sigma: float = 1.0,
    observe: Observer | None = None,
    every: int = 1,
) -> Descent:
    """Plain gradient descent with one learning rate for W and v; `observe` and `every` as in `descend_on_batches`.

    The default learning rate is the theory's for variables of standard deviation `sigma`; one beyond the stability bound
    gives a `StabilityWarning`.
    """
    # |sum_j p_j|^2/D is c for orthogonal encodings, and for any other the one that gives their curvature at the start; without
    # encodings the bound for sine encodings is used
    norm2 = float(model.encodings.sum(dim=0).square().sum()) / model.groups or None
    if lr is None:
        lr = default_learning_rate(groups=model.groups, sigma=sigma, encoding_norm2=norm2)
    check_learning_rate(lr, groups=model.groups, sigma=sigma, encoding_norm2=norm2)
    return descend_on_batches(model, batches, torch.optim.SGD(model.parameters(), lr=lr), steps, observe, every)


def check_learning_rate(lr: float, *, groups: int, sigma: float = 1.0, encoding_norm2: float | None = None) -> None:
    """Warn, with the bound, when gradient descent with `lr` cannot stay on the path that the theory describes."""
    check_positive("lr", lr)
    bounds = stability_bounds(groups=groups, sigma=sigma, encoding_norm2=encoding_norm2)
    if lr > bounds.learning_rate:
        block = "v_1" if bounds.learning_rate == bounds.value else "v_2"
        suggestion = default_learning_rate(groups=groups, sigma=sigma, encoding_norm2=encoding_norm2)
        warnings.warn(
            f"lr={lr:.3g} exceeds the stability bound {bounds.learning_rate:.3g} (2 over the largest curvature in {block}"
            f" at groups={groups}, sigma={sigma:g}): rounding noise in {block} grows; {suggestion:.2g} is safe",
            StabilityWarning,
            stacklevel=3,
        )


def online_transfer(
    model: GroupTransformer,
    X: NDArray[np.float64],
    y: NDArray[np.int64],
    lr: float | None = None,
    train_attention: bool = False,
    observe: Observer | None = None,
    every: int = 1,
) -> Descent:
    """Learn a new task that shares the relevant group: v restarts at zero, one sample per step, W kept or trained on.

    The default learning rate is 0.5/groups^2, a step of 0.5 on features divided by `groups`, as the model sums over
    columns. The running error of the result is the quantity of Theorem 4.2 of Zhang, Meng, Cao, arXiv 2504.08638.
    """
    if not np.isfinite(X).all():
        raise ValueError("X must be finite")
    with torch.no_grad():
        model.v.zero_()
    rate = 0.5 / model.groups**2 if lr is None else lr
    if not train_attention:
        return _online_readout(model, X, y, rate, observe, every)
    optimizer = torch.optim.SGD([model.W, model.v], lr=rate)
    return descend_on_batches(
        model, ((X[i : i + 1], y[i : i + 1]) for i in range(len(X))), optimizer, len(X), observe, every
    )


@torch.no_grad()
def _online_readout(
    model: GroupTransformer, X: NDArray[np.float64], y: NDArray[np.int64], lr: float, observe: Observer | None, every: int
) -> Descent:  # fmt: skip
    """Online descent on v alone: with the attention kept, what v reads from each sample is known beforehand."""
    signed = y[:, None] * model.features(torch.from_numpy(X)).numpy()  # (n, width)
    v = model.v.numpy()  # shares its memory with the model, so that `observe` sees every update
    losses, observed = np.empty(len(X)), []
    for step, feature in enumerate(signed):
        if observe and step % every == 0:
            observed.append(observe(step))
        margin = float(feature @ v)
        losses[step] = np.logaddexp(0.0, -margin)
        v += lr * math.exp(-np.logaddexp(0.0, margin)) * feature
    if observe:
        observed.append(observe(len(X)))
    return Descent(losses, observed)


def xavier_start(model: GroupTransformer, rng: np.random.Generator, scale: float = 1.0) -> None:
    """Start W and v from uniform Xavier numbers times `scale` instead of zero."""
    width = len(model.v)
    with torch.no_grad():
        for parameter, fans in ((model.W, 2 * width), (model.v, width + 1)):
            values = rng.uniform(-1, 1, size=tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(scale * math.sqrt(6 / fans) * values))
