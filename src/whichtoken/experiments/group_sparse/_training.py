"""What the training experiments share: train a group transformer, then say what it selects and not only how often it is right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from whichtoken.data import GroupSparse
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.training.group_descent import Batch

TEST_SAMPLES = 4000


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


def random_problem(groups: int, group_dim: int, rng: np.random.Generator, **options: Any) -> GroupSparse:
    """One relevant group with a random direction, at a random place."""
    from whichtoken.data import GroupSparse

    return GroupSparse(groups, group_dim, int(rng.integers(groups)), rng.standard_normal(group_dim), **options)
