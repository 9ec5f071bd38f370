"""What the training experiments share: train a group transformer, then say what it selects and not only how often it is right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from whichtoken.data import GroupSparse
    from whichtoken.lab import Rows
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.training.group_descent import Batch

TEST_SAMPLES = 4000
LATE_SAMPLES = 20_000
RATES = {4: 0.4, 6: 0.18, 8: 0.1}  # by the number of groups: half the stability bound along the path


@dataclass(frozen=True)
class LateState:
    """What the late-phase laws are about, on a sample of `LATE_SAMPLES`."""

    step: int
    loss: float
    alpha: float  # length of v_1
    leakage: float  # mean attention on the other groups


def trained_selection(
    model: GroupTransformer,
    data: GroupSparse,
    batches: Iterable[Batch],
    steps: int,
    lr: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Train on `steps` batches and measure what is selected on fresh samples of `data`.

    Without the warning of `gradient_descent`: these experiments leave the assumptions of its stability bound on purpose.
    """
    import torch

    from whichtoken.training.group_descent import descend_on_batches

    descend_on_batches(model, batches, torch.optim.SGD(model.parameters(), lr=lr), steps)
    return measured_selection(model, data, rng)


def measured_selection(model: GroupTransformer, data: GroupSparse, rng: np.random.Generator) -> dict[str, Any]:
    """Accuracy beside its certificate: attention on the first relevant group, |v_2| and the blocks of W."""
    import torch

    from whichtoken.models.group_selection import selection

    X, y = map(torch.from_numpy, data.sample(TEST_SAMPLES, rng))
    state = asdict(selection(model, X, y, int(data.relevant[0]), data.directions[0]))
    content, routing_12, routing_21, position = state.pop("block_norms")
    blocks = {"W_11": content, "W_12": routing_12, "W_21": routing_21, "W_22": position}
    return {name: value for name, value in (state | blocks).items() if np.isfinite(value)}


def train_all_blocks(
    groups: int, group_dim: int, lr: float, steps: int, batch: int, rng: np.random.Generator, every: int
) -> list[LateState]:
    """Train the whole model, no block frozen, on mirrored fresh batches; its state after 0, every, ... and all steps."""
    import torch

    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.training.group_descent import fresh_batches, gradient_descent

    data = random_problem(groups, group_dim, rng)
    relevant = int(data.relevant[0])
    X, y = map(torch.from_numpy, _spread_sample(data, LATE_SAMPLES, rng))
    model = GroupTransformer(group_dim, groups)

    def observe(step: int) -> LateState:
        with torch.no_grad():
            return LateState(
                step=step,
                loss=float(model.loss(X, y)),
                alpha=float(model.v[:group_dim].norm()),
                leakage=1 - float(model.attention(X)[:, relevant].mean()),
            )

    batches = fresh_batches(data, batch, rng, antithetic=True)
    states: list[LateState] = gradient_descent(model, batches, steps, lr, observe=observe, every=every).observed
    return states


def reduced_leakage(groups: int, group_dim: int, lr: float, steps: int) -> float:
    """Attention on the other groups in the symmetry-reduced map of all blocks, after the same time, `lr` times `steps`.

    Without v_2 the map may take longer steps of its own.
    """
    from whichtoken.theory import group_sparse

    own = min(0.5, 4 / groups)
    path = group_sparse.symmetric_map(
        groups=groups, group_dim=group_dim, lr=own, steps=round(lr * steps / own),
        rng=np.random.default_rng(0), samples=500,
    )  # fmt: skip
    return float(1 - path.attention[-max(1, len(path.attention) // 50) :].mean())


def late_checkpoints(steps: int) -> list[int]:
    """Steps at which the late phase of a map is drawn, evenly spread in their logarithm."""
    return [int(step) for step in np.unique(np.geomspace(1, steps, 60).astype(int))]


def predicted_power(rows: Rows[Any], name: str) -> float | None:
    """Power of the number of groups in a prediction; None unless every number has it."""
    sizes = rows.levels("groups")
    predicted = [rows.where(groups=groups).predicted(name) for groups in sizes]
    values = [float(found.value) for found in predicted if found is not None]
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0]) if len(values) == len(sizes) else None


def _spread_sample(data: GroupSparse, n: int, rng: np.random.Generator) -> Batch:
    """A sample whose deciding variable takes one value in each of n equally likely intervals.

    Late in training the few samples near the boundary make up the whole loss: a plain sample of this size errs by 3 to 5 %.
    """
    from scipy.special import ndtri

    X, _ = data.sample(n, rng)
    group, direction = int(data.relevant[0]), data.directions[0]
    spread = data.sigma * ndtri((np.arange(n) + rng.random(n)) / n)
    X[:, group] += np.outer(spread - X[:, group] @ direction, direction)
    return X, np.where(spread >= 0, 1, -1)


def random_problem(groups: int, group_dim: int, rng: np.random.Generator, **options: Any) -> GroupSparse:
    """One relevant group with a random direction, at a random place."""
    from whichtoken.data import GroupSparse

    return GroupSparse(groups, group_dim, int(rng.integers(groups)), rng.standard_normal(group_dim), **options)
