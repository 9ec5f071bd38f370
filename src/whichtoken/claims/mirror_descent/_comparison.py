"""Training of real transformers by several optimizers: data splits, measurements, choice of the step size, figure."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count
from whichtoken.claims._figures import Figure, grouped_bars, label_axes, points_with_errors
from whichtoken.errors import UsageError, unknown
from whichtoken.lab import Check, Measured, Rows
from whichtoken.theory import mirror_descent

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


TransformerT = TypeVar("TransformerT", "mirror_descent.SentimentTransformer", "mirror_descent.VisionTransformer")
Method = Literal["l1.1", "l2", "l3", "adam", "adamw"]
METHODS = {"l1.1": "l_1.1", "l2": "l_2", "l3": "l_3", "adam": "Adam", "adamw": "AdamW"}
PROJECTIONS = ("queries", "keys", "values")
BINS = np.linspace(0.0, 3.0, 61)  # histogram of |w| over the largest initial entry
WIDEST = 128  # width of a transformer that a processor trains in minutes
FITTED = 0.995  # training accuracy at which training ends, as in the source


@dataclass(frozen=True)
class Examples:
    """Examples of one split, as tensors on the device of the model."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TrainingTask:
    """What is learned: three splits, a loss of (outputs, labels), and which outputs are right."""

    train: Examples
    validation: Examples
    test: Examples
    loss: Callable[[Tensor, Tensor], Tensor]
    right: Callable[[Tensor, Tensor], Tensor]
    augment: Callable[[Tensor], Tensor] = lambda inputs: inputs


def split_indices(
    available: int, wanted: tuple[int, ...], kind: str, source: str, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Disjoint sets of examples of the wanted sizes, drawn at random."""
    if sum(wanted) > available:
        raise ValueError(f"{sum(wanted)} {kind} are more than the {available} of {source}")
    return np.split(rng.permutation(available)[: sum(wanted)], np.cumsum(wanted)[:-1])


def too_large(width: int) -> str:
    """Why a transformer of this width is not trained here; empty when it is.

    On a processor those of the authors do not end within a day; WHICHTOKEN_LARGE=1 asks for them all the same.
    """
    if width <= WIDEST or os.environ.get("WHICHTOKEN_LARGE") or device().type != "cpu":
        return ""
    return f"a transformer of width {width} needs a GPU, or days of a processor; WHICHTOKEN_LARGE=1 runs it anyway"


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    import torch

    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def optimizer(method: str, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """Plain mirror descent on every parameter, as in the source; or torch's Adam or AdamW."""
    import torch

    from whichtoken.optim import MirrorDescent

    if method == "adam":
        return torch.optim.Adam(parameters, lr)
    if method == "adamw":
        return torch.optim.AdamW(parameters, lr)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return MirrorDescent(parameters, lr, p=float(method.removeprefix("l")))


def train_transformer(
    build: Callable[..., TransformerT], point: Any, task: TrainingTask, rng: np.random.Generator
) -> tuple[TransformerT, dict[str, Any]]:
    """A transformer of the sizes and training that the point says, with its accuracies and the sparsity of its weights."""
    import torch

    sizes = {name: getattr(point, name) for name in ("width", "heads", "layers", "hidden", "dropout")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        model = build(**sizes).to(device())
        initial = {name: weights.clone() for name, weights in model.encoder.projections().items()}
        steps = optimizer(point.method, model.parameters(), point.lr)
        measured = train_classifier(model, steps, task, epochs=point.epochs, batch=point.batch, rng=rng)
    return model, measured | sparsity(model.encoder, initial)


def train_classifier(
    model: nn.Module,
    steps: torch.optim.Optimizer,
    task: TrainingTask,
    *,
    epochs: int,
    batch: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Train, go back to the epoch of best validation accuracy, and measure.

    Training ends early at a training accuracy of `FITTED` or with a loss that is not a number.
    """
    check_count("epochs", epochs, 1)
    check_count("batch", batch, 1)
    best, fitted, kept = -1.0, None, copy.deepcopy(model.state_dict())
    curves: dict[str, list[float]] = {"train_curve": [], "validation_curve": []}
    for _ in range(epochs):
        if (fitted := _epoch(model, steps, task, batch, rng)) is None:
            break
        curves["train_curve"].append(fitted)
        curves["validation_curve"].append(accuracy(model, task.validation, task.right))
        if curves["validation_curve"][-1] > best:
            best, kept = curves["validation_curve"][-1], copy.deepcopy(model.state_dict())
        if fitted >= FITTED:
            break
    model.load_state_dict(kept)
    return {
        "validation": accuracy(model, task.validation, task.right),
        "test": accuracy(model, task.test, task.right),
        "trained": max(curves["train_curve"], default=0.0),
        "epochs": len(curves["train_curve"]),
        "diverged": fitted is None,
        **curves,
    }


def _epoch(
    model: nn.Module, steps: torch.optim.Optimizer, task: TrainingTask, batch: int, rng: np.random.Generator
) -> float | None:
    """One pass over the training examples and the accuracy during it; None if the loss or the weights overflow."""
    import torch

    model.train()
    hits = 0.0
    for chosen in np.array_split(rng.permutation(len(task.train)), math.ceil(len(task.train) / batch)):
        index = torch.from_numpy(chosen).to(task.train.labels.device)
        labels = task.train.labels[index]
        outputs = model(task.augment(task.train.inputs[index]))
        loss = task.loss(outputs, labels)
        if not loss.isfinite():
            return None
        steps.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        try:
            steps.step()
        except UsageError:  # the weights overflowed
            return None
        hits += float(task.right(outputs, labels).sum())
    return hits / len(task.train)


def accuracy(model: nn.Module, part: Examples, right: Callable[[Tensor, Tensor], Tensor], batch: int = 200) -> float:
    """Share of right answers, without dropout."""
    import torch

    model.eval()
    with torch.no_grad():
        pieces = zip(torch.split(part.inputs, batch), torch.split(part.labels, batch), strict=True)
        hits = [float(right(model(inputs), labels).sum()) for inputs, labels in pieces]
    return sum(hits) / len(part)


def sparsity(encoder: mirror_descent.TokenEncoder, initial: dict[str, Tensor]) -> dict[str, Any]:
    """Effective share of nonzero queries, keys and values, the largest, and histograms relative to the largest initial one."""
    measured: dict[str, Any] = {}
    for name, weights in encoder.projections().items():
        magnitudes = weights.abs().cpu().double().numpy()
        scaled = magnitudes / float(initial[name].abs().max())
        measured |= {
            f"{name}_share": mirror_descent.effective_nonzeros(magnitudes) / magnitudes.size,
            f"{name}_largest": float(magnitudes.max()),
            f"{name}_grown": float(np.mean(scaled > 1.0)),
            f"{name}_histogram": np.histogram(np.minimum(scaled, BINS[-1]), BINS)[0] / scaled.size,
        }
    return measured


def best_rate(runs: Rows[Any]) -> float:
    """The step size of highest mean validation accuracy, of one method."""
    best: float = max(runs.levels("lr"), key=lambda lr: float(runs.where(lr=lr).values("validation").mean()))
    return best


def best_rate_runs(runs: Rows[Any]) -> Rows[Any]:
    """The runs of one method at the step size that validation chose."""
    return runs.where(lr=best_rate(runs)) if runs else runs


def pair_by_seed(
    ours: Rows[Any],
    theirs: Rows[Any],
    quantity: str | Callable[[Measured], Any],
    combine: Callable[[Any, Any], Any] = np.subtract,
) -> list[float]:
    """A quantity of one method against that of another, for every seed of both, each at its chosen step size."""
    of = (lambda measured: measured[quantity]) if isinstance(quantity, str) else quantity
    known = {row.seed: of(row.measured) for row in best_rate_runs(theirs)}
    return [float(combine(of(row.measured), known[row.seed])) for row in best_rate_runs(ours) if row.seed in known]


def unless_at_the_edge(check: Check, tuned: Iterable[Rows[Any]]) -> Check:
    """The check, undecided if the chosen step size of a method is the first or last of its grid: a wider one might do better."""
    edges = [
        f"{METHODS[runs[0].point.method]} is best at {best_rate(runs):g}"
        for runs in tuned
        if len(runs.levels("lr")) > 2 and best_rate(runs) in (min(runs.levels("lr")), max(runs.levels("lr")))
    ]
    return (
        replace(check, theory=None, note=f"a step size at the edge of its grid: {', '.join(edges)}") if edges else check
    )


def share_above_initial(measured: Measured) -> float:
    """Share of entries larger than every initial one, mean of queries, keys and values."""
    return float(np.mean([measured[f"{name}_grown"] for name in PROJECTIONS]))


def largest_entries(ours: Measured, theirs: Measured) -> float:
    """Largest entry of one model over that of the other, geometric mean of queries, keys and values."""
    return float(
        np.exp(np.mean([math.log(ours[f"{name}_largest"] / theirs[f"{name}_largest"]) for name in PROJECTIONS]))
    )


def effective_share(measured: Measured) -> float:
    """Effective share of non-zero entries, mean of queries, keys and values."""
    return float(np.mean([measured[f"{name}_share"] for name in PROJECTIONS]))


def draw(runs: dict[str, Rows[Any]], quantities: dict[str, Callable[[Measured], float]], figure: Figure) -> None:
    """Choice of the step size, quantities at the chosen one, and how many entries of each projection are large."""
    panels = figure.subplot_mosaic([["rates", "bars", "bars"], list(PROJECTIONS)])
    for method, tried in runs.items():
        points_with_errors(panels["rates"], tried, "lr", "validation", METHODS[method], ls="-", lw=1, ms=4)
    label_axes(panels["rates"], "Validation accuracy", "step size", log="x")
    panels["rates"].legend(fontsize=8)
    chosen = {method: best_rate_runs(tried) for method, tried in runs.items()}
    quantities = quantities | {"effective share": effective_share}
    samples = {
        label: [[quantity(row.measured) for row in rows] for rows in chosen.values()]
        for label, quantity in quantities.items()
    }
    grouped_bars(panels["bars"], [METHODS[method] for method in chosen], samples)
    for name in PROJECTIONS:
        for method, rows in chosen.items():
            above = 1.0 - np.cumsum(np.mean(list(rows.values(f"{name}_histogram")), axis=0))
            panels[name].plot(BINS[1:-1], above[:-1], label=METHODS[method])
        label_axes(panels[name], name.capitalize(), "entry over the largest initial one", log="y", ylim=(1e-4, 1))
    panels[PROJECTIONS[0]].set_ylabel("share of larger entries")
