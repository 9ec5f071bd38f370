"""Training of group transformers for several claims, and measurements of what they select."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken import datasets
from whichtoken.claims._figures import Axes, legend
from whichtoken.lab import Exact, Rows
from whichtoken.lab.samples import Sample
from whichtoken.theory import group_sparse

if TYPE_CHECKING:
    from whichtoken.theory.group_sparse.descent import Batch

TEST_SAMPLES = 4000
LATE_SAMPLES = 20_000
RATES = {4: 0.4, 6: 0.18, 8: 0.1}  # by the number of groups: half the stability bound along the path


@dataclass(frozen=True)
class GroupSizes:
    """Groups of variables: fields that several points begin with."""

    groups: int = 8
    group_dim: int = 4


@dataclass(frozen=True)
class LateState:
    """The quantities of the late-phase laws, on a sample of `LATE_SAMPLES`."""

    step: int
    loss: float
    alpha: float  # length of v_1
    leakage: float  # mean attention on the other groups


def exact(runs: Rows[Any], name: str) -> Sample | list[float]:
    """A quantity of the one run of a deterministic point; nothing if it failed."""
    return Exact(runs[0].measured[name]) if runs else []


def first_point(runs: Rows[Any]) -> Any:
    """The point of these runs, which may all have failed."""
    return (*runs, *runs.failed)[0].point


def train_and_measure(
    model: group_sparse.GroupTransformer,
    data: datasets.GroupSparse,
    batches: Iterable[Batch],
    steps: int,
    lr: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Train on `steps` batches and measure what is selected on fresh samples of `data`.

    Without the warning of `gradient_descent`: these claims leave the assumptions of its stability bound on purpose.
    """
    import torch

    from whichtoken.theory.group_sparse.descent import descend_on_batches

    descend_on_batches(model, batches, torch.optim.SGD(model.parameters(), lr=lr), steps)
    return measure_selection(model, data, rng)


def measure_selection(
    model: group_sparse.GroupTransformer, data: datasets.GroupSparse, rng: np.random.Generator
) -> dict[str, Any]:
    """Accuracy, attention on the first relevant group, |v_2| and the norms of the blocks of W."""
    import torch

    from whichtoken.theory.group_sparse.transformer import selection

    X, y = map(torch.from_numpy, data.sample(TEST_SAMPLES, rng))
    state = asdict(selection(model, X, y, int(data.relevant[0]), data.directions[0]))
    content, routing_12, routing_21, position = state.pop("block_norms")
    blocks = {"W_11": content, "W_12": routing_12, "W_21": routing_21, "W_22": position}
    return {name: value for name, value in (state | blocks).items() if np.isfinite(value)}


def train_on_fresh_batches(
    point: Any, data: datasets.GroupSparse, rng: np.random.Generator
) -> group_sparse.GroupTransformer:
    """A transformer trained on fresh batches, with the steps, batches and learning rate of the point."""
    from whichtoken.theory.group_sparse.descent import fresh_batches, gradient_descent

    model = group_sparse.GroupTransformer(point.group_dim, point.groups)
    gradient_descent(model, fresh_batches(data, point.batch, rng), point.steps, point.lr)
    return model


def train_all_blocks(point: Any, rng: np.random.Generator, every: int) -> list[LateState]:
    """Train the whole model, no block frozen, on mirrored fresh batches; its state after 0, every, ... and all steps."""
    import torch

    from whichtoken.theory.group_sparse.descent import fresh_batches, gradient_descent

    data = random_problem(point.groups, point.group_dim, rng)
    relevant = int(data.relevant[0])
    X, y = map(torch.from_numpy, stratified_sample(data, LATE_SAMPLES, rng))
    model = group_sparse.GroupTransformer(point.group_dim, point.groups)

    def observe(step: int) -> LateState:
        with torch.no_grad():
            return LateState(
                step=step,
                loss=float(model.loss(X, y)),
                alpha=float(model.v[: point.group_dim].norm()),
                leakage=1 - float(model.attention(X)[:, relevant].mean()),
            )

    batches = fresh_batches(data, point.batch, rng, antithetic=True)
    states: list[LateState] = gradient_descent(
        model, batches, point.steps, point.lr, observe=observe, every=every
    ).observed
    return states


def symmetric_path(point: Any, **options: Any) -> Any:
    """The symmetry-reduced map of all blocks, at the size and the steps of the point."""
    fields = {name: getattr(point, name) for name in ("groups", "group_dim", "lr", "steps")}
    return group_sparse.symmetric_map(**fields | options, rng=np.random.default_rng(0))


def reduced_leakage(point: Any) -> float:
    """Attention on the other groups in the symmetry-reduced map after the same time, learning rate times steps.

    Without v_2 the map may take longer steps of its own.
    """
    own = min(0.5, 4 / point.groups)
    path = symmetric_path(point, lr=own, steps=round(point.lr * point.steps / own), samples=500)
    return float(1 - path.attention[-max(1, len(path.attention) // 50) :].mean())


def late_checkpoints(steps: int) -> list[int]:
    """Steps at which the late phase of a map is drawn, evenly spread in their logarithm."""
    return [int(step) for step in np.unique(np.geomspace(1, steps, 60).astype(int))]


def draw_late_phase(rows: Rows[Any], axes: Axes, curve: str, label: Callable[[Any], str]) -> None:
    """A curve of the exact map for each of the rows, and its power law dashed."""
    for row in rows:
        steps = np.array(row.measured["steps"])
        (line,) = axes.plot(steps, row.measured[curve], label=label(row.point))
        if (law := row.predicted.get(curve)) is not None:
            axes.plot(steps[steps >= 100], np.array(law.value)[steps >= 100], ls="--", color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="step")
    legend(axes)


def predicted_power(rows: Rows[Any], name: str) -> float | None:
    """Power of the number of groups in a prediction; None unless every number has it."""
    sizes = rows.levels("groups")
    predicted = [rows.where(groups=groups).predicted(name) for groups in sizes]
    values = [float(found.value) for found in predicted if found is not None]
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0]) if len(values) == len(sizes) else None


def stratified_sample(data: datasets.GroupSparse, n: int, rng: np.random.Generator) -> Batch:
    """A sample whose deciding variable takes one value in each of n equally likely intervals.

    Late in training the few samples near the boundary make up the whole loss: a plain sample of this size errs by 3 to 5 %.
    """
    from scipy.special import ndtri

    X, _ = data.sample(n, rng)
    group, direction = int(data.relevant[0]), data.directions[0]
    spread = data.sigma * ndtri((np.arange(n) + rng.random(n)) / n)
    X[:, group] += np.outer(spread - X[:, group] @ direction, direction)
    return X, np.where(spread >= 0, 1, -1)


def random_problem(groups: int, group_dim: int, rng: np.random.Generator, **options: Any) -> datasets.GroupSparse:
    """One relevant group with a random direction, at a random place."""
    return datasets.GroupSparse(groups, group_dim, int(rng.integers(groups)), rng.standard_normal(group_dim), **options)
