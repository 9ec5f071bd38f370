"""Gradient descent on the group transformer follows its population map.

Claim   From zero, v_1 grows along the true direction, v_2 stays zero, W_22 aligns with one predicted matrix of rank one, and
        loss, value and attention follow the population dynamics: first the exact map, in the end power laws in the step.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 3.2, Lemmas 5.1 and 5.2; the maps and the power laws with their constants are derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from whichtoken.experiments.group_sparse._training import (
    RATES,
    late_checkpoints,
    predicted_power,
    reduced_leakage,
    train_all_blocks,
)
from whichtoken.lab import (
    Claim,
    Exact,
    Experiment,
    Grid,
    Mean,
    Measured,
    Predicted,
    Rows,
    agreement,
    at_least,
    at_most,
    log_slope,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

PAPER_POWER = -3.0  # T* = Theta(D^3 or 1/(D^3 eps^3)), as summaries of Theorem 3.2 print it
TARGET_LOSS = 0.01
TRAINED_LOSS = 0.02  # that real training can reach
QUANTITIES = {"alpha": "length of v_1", "attention": "attention on the relevant group", "loss": "loss"}
LAWS = {"alpha": "length of v_1", "leakage": "attention on the other groups", "loss": "loss"}


@dataclass(frozen=True)
class Point:
    groups: int = 8
    group_dim: int = 4
    sigma: float = 1.0
    lr: float = 0.02
    steps: int = 400
    # antithetic: pairs X, -X; population: the exact map on positions and values; late: as antithetic, into the late phase
    method: Literal["batches", "antithetic", "population", "late"] = "batches"
    batch: int = 400


def _late(groups: int, sigma: float = 1.0) -> Grid:
    """The exact map, far into the late phase."""
    return Grid(method="population", groups=groups, sigma=sigma, lr=0.8 / groups, steps=8000, seeds=1)


def _trained_late(groups: int, seeds: int | tuple[int, int]) -> Grid:
    """All blocks trained; at these rates the exact map needs 3000 steps to the loss at which sizes are compared."""
    return Grid(method="late", groups=groups, lr=RATES[groups], steps=4200, batch=100, seeds=seeds)


class Trajectory(Experiment[Point]):
    id = "group-sparse/trajectory"
    version = 3
    needs = "torch"
    presets = {
        "quick": (Grid(method=["batches", "antithetic"], seeds=12), _late(8), _late(16), _late(32)),
        "full": (
            Grid(method=["batches", "antithetic"], batch=1000, seeds=(8, 16)),
            Grid(groups=16, group_dim=8, lr=0.01, steps=1200, batch=1000, seeds=4),
            _late(8), _late(16), _late(32), _late(64), _late(16, sigma=0.5),
            *(_trained_late(groups, seeds=6) for groups in RATES),
        ),
    }  # fmt: skip
    method_fields = frozenset({"method", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.method == "population":
            return _population(point)
        return _trained_into_late_phase(point, rng) if point.method == "late" else _batches(point, rng)

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        from whichtoken.theory import group_sparse

        if point.method == "population":
            steps = late_checkpoints(point.steps)
            law = group_sparse.late_phase(groups=point.groups, lr=point.lr, step=steps, sigma=point.sigma)
            return {**{name: Predicted(getattr(law, name)[-1]) for name in LAWS}, "loss_curve": Predicted(law.loss)}
        if point.method == "late":
            law = group_sparse.late_phase(groups=point.groups, lr=point.lr, step=[point.steps])
            exact = group_sparse.population_map(groups=point.groups, lr=point.lr, steps=point.steps)
            return {
                "alpha": Predicted(law.alpha[0]),
                "loss": Predicted(law.loss[0]),
                "leakage": Predicted(reduced_leakage(point.groups, point.group_dim, point.lr, point.steps)),
                "time_to_loss": Predicted(point.lr * _first_below(range(point.steps + 1), exact.loss, TRAINED_LOSS)),
            }
        theory = group_sparse.symmetric_map(
            groups=point.groups,
            group_dim=point.group_dim,
            sigma=point.sigma,
            lr=point.lr,
            steps=point.steps,
            rng=np.random.default_rng(0),
        )
        second_half = slice(point.steps // 2, point.steps)
        return {
            "alpha": Predicted(theory.alpha[-1]),
            "attention": Predicted(theory.attention[-1]),
            "loss": Predicted(
                theory.loss[second_half].mean(),
                float(np.linalg.norm(theory.loss_error[second_half]) / len(theory.loss_error[second_half])),
            ),
            "attention_curve": Predicted(theory.attention[_checkpoints(point)]),
            "loss_curve": Predicted(theory.loss[_checkpoints(point)]),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        trained = (row.point for row in rows if row.point.method in ("batches", "antithetic"))
        for method, groups, sigma in dict.fromkeys((point.method, point.groups, point.sigma) for point in trained):
            runs = rows.where(method=method, groups=groups, sigma=sigma)
            yield from _follows_the_map(runs, f"{method}.{_task(groups, sigma)}")
        for row in rows.where(method="population"):
            yield from _late_laws(Rows([row]), _task(row.point.groups, row.point.sigma))
        power = log_slope(rows.where(method="population", sigma=1.0), "groups", "time_to_loss").values
        yield from _trained_laws(rows.where(method="late"))
        yield agreement(
            "trajectory.groups-power",
            f"exact map, W_11 frozen: power of D in the steps to a loss of {TARGET_LOSS:g}, in units of 1/lr; the power"
            " law gives -2",
            theory=PAPER_POWER,
            measured=Exact(power[0]) if len(power) else Mean([]),
            tolerance=0.1,
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_training(Rows(row for row in rows if row.point.method in ("batches", "antithetic")), left)
        _draw_late_phase(rows.where(method="population"), right)


def _task(groups: int, sigma: float) -> str:
    return f"D{groups}" + ("" if sigma == 1 else f".sigma{sigma:g}")


def _population(point: Point) -> Measured:
    from whichtoken.theory import group_sparse

    groups, lr, sigma = point.groups, point.lr, point.sigma
    trajectory = group_sparse.population_map(groups=groups, lr=lr, steps=point.steps, sigma=sigma)
    # the power law leaves out the time that selection takes
    horizon = int(group_sparse.steps_to_loss(groups=groups, lr=lr, loss=TARGET_LOSS, sigma=sigma) + 100 / lr)
    longer = group_sparse.population_map(groups=groups, lr=lr, steps=horizon, sigma=sigma)
    time_to_loss = lr * int(np.argmax(longer.loss <= TARGET_LOSS))
    return {
        "alpha": trajectory.alpha[-1],
        "leakage": trajectory.leakage[-1],
        "loss": trajectory.loss[-1],
        "time_to_loss": time_to_loss,
        "steps": late_checkpoints(point.steps),
        "loss_curve": trajectory.loss[late_checkpoints(point.steps)],
    }


def _trained_into_late_phase(point: Point, rng: np.random.Generator) -> Measured:
    every = max(1, point.steps // 12)  # a look at 20 000 samples costs as much as 100 steps
    states = train_all_blocks(point.groups, point.group_dim, point.lr, point.steps, point.batch, rng, every)
    steps, losses = [state.step for state in states], [state.loss for state in states]
    return {
        "alpha": states[-1].alpha,
        "leakage": states[-1].leakage,
        "loss": losses[-1],
        "time_to_loss": point.lr * _first_below(steps, losses, TRAINED_LOSS),
        "steps": steps,
        "loss_curve": losses,
    }


def _first_below(steps: Sequence[int], losses: ArrayLike, loss: float) -> float:
    """The step at which the losses fall to `loss`, interpolated between the steps at which they were taken."""
    values = np.asarray(losses)
    if not np.any(values <= loss):
        raise ValueError(f"steps={steps[-1]} must be enough to reach a loss of {loss:g}")
    after = int(np.argmax(values <= loss))
    share = (values[after - 1] - loss) / (values[after - 1] - values[after])
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def _batches(point: Point, rng: np.random.Generator) -> Measured:
    import torch

    from whichtoken.data import GroupSparse
    from whichtoken.models.group_selection import GroupSelection, selection
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.training.group_descent import fresh_batches, gradient_descent

    relevant, direction = int(rng.integers(point.groups)), rng.standard_normal(point.group_dim)
    data = GroupSparse(point.groups, point.group_dim, relevant, direction, sigma=point.sigma)
    X, y = map(torch.from_numpy, data.sample(2000, rng))
    model = GroupTransformer(point.group_dim, point.groups)

    def observe(step: int) -> GroupSelection:
        return selection(model, X, y, relevant, direction)

    batches = fresh_batches(data, point.batch, rng, antithetic=point.method == "antithetic")
    run = gradient_descent(model, batches, point.steps, point.lr, point.sigma, observe, every=_every(point))
    end: GroupSelection = run.observed[-1]
    return {
        "alpha": end.value_norm,
        "attention": end.attention,
        "loss": run.losses[point.steps // 2 :].mean(),
        "accuracy": end.accuracy,
        "value_cosine": end.value_cosine,
        "position_cosine": end.position_cosine,
        "position_value_norm": end.position_value_norm,
        "block_norms": end.block_norms,
        "steps": _checkpoints(point),
        "attention_curve": [state.attention for state in run.observed],
        "loss_curve": [state.loss for state in run.observed],
    }


def _words(point: Point) -> str:
    """The task for people: 16 groups, fresh batches, scale 0.5."""
    batches = {"batches": ", fresh batches", "antithetic": ", batches of mirrored pairs"}.get(point.method, "")
    return f"{point.groups} groups{batches}" + ("" if point.sigma == 1 else f", scale {point.sigma:g}")


def _follows_the_map(runs: Rows[Point], code: str) -> Iterator[Claim]:
    words = _words(runs[0].point)
    for name, what in QUANTITIES.items():
        predicted = runs.predicted(name)
        theory = None if predicted is None else float(predicted.value)
        yield agreement(
            f"trajectory.{name}.{code}",
            f"{words}: {what} against the symmetry-reduced map",
            theory=theory,
            theory_error=predicted.error if predicted else 0.0,
            measured=Mean(runs.values(name)),
            tolerance=0.03 * (theory or 0.0),
        )
    # a plain batch leaves noise in v_2, mirrored pairs cancel it exactly
    largest = 1e-12 if code.startswith("antithetic") else 0.05
    stray = Mean(runs.values("position_value_norm"))
    yield at_most(f"trajectory.stray.{code}", f"{words}: |v_2|, zero in theory", bound=largest, measured=stray)
    for name, what in (("value", "v_1 with the true direction"), ("position", "W_22 with its predicted direction")):
        cosine = Mean(runs.values(f"{name}_cosine"))
        yield at_least(f"trajectory.{name}-cosine.{code}", f"{words}: cosine of {what}", bound=0.999, measured=cosine)


def _late_laws(runs: Rows[Point], code: str) -> Iterator[Claim]:
    for name, what in LAWS.items():
        predicted = runs.predicted(name)
        theory = None if predicted is None else float(predicted.value)
        yield agreement(
            f"trajectory.late-{name}.{code}",
            f"{_words(runs[0].point)}: {what} of the exact map at step {runs[0].point.steps} against the power law",
            theory=theory,
            measured=Exact(runs.values(name)[0]),
            tolerance=0.03 * (theory or 0.0),
        )


def _trained_laws(rows: Rows[Point]) -> Iterator[Claim]:
    """The late phase of the real model: what the power laws of the map are worth when no block is frozen."""
    for groups in rows.levels("groups"):
        runs = rows.where(groups=groups)
        for name, what in LAWS.items():
            # W_11 takes part in the attention: the law with that block frozen is no theory for it
            against = "the symmetry-reduced map" if name == "leakage" else "the power law"
            predicted = runs.predicted(name)
            theory = None if predicted is None else float(predicted.value)
            yield agreement(
                f"trajectory.trained-{name}.D{groups}",
                f"{groups} groups, all blocks trained: {what} after {runs[0].point.steps} steps against {against}",
                theory=theory,
                measured=Mean(runs.values(name)),
                # pilots on other seeds: value 1 % above the law so early, loss 5 %; attention strays by 1 to 3 %
                tolerance=0.1 * (theory or 0.0),
            )
    if len(rows.levels("groups")) < 2:
        return
    power = log_slope(rows, "groups", "time_to_loss")
    what = f"all blocks trained: power of D in the steps to a loss of {TRAINED_LOSS:g}, in units of 1/lr"
    yield agreement(
        "trajectory.trained-groups-power",
        f"{what}, against that of the exact map",
        theory=predicted_power(rows, "time_to_loss"),
        measured=power,
        tolerance=0.15,
    )
    yield agreement(
        "trajectory.trained-groups-power.paper",
        f"{what}, as summaries of the theorem print it",
        theory=PAPER_POWER,
        measured=power,
        tolerance=0.15,
    )


def _every(point: Point) -> int:
    return max(1, point.steps // 10)


def _checkpoints(point: Point) -> list[int]:
    """Steps at which `gradient_descent` observes."""
    return [*range(0, point.steps, _every(point)), point.steps]


def _draw_training(rows: Rows[Point], axes: Axes) -> None:
    from whichtoken.display.figures import band

    for groups in rows.levels("groups"):
        runs = rows.where(groups=groups)
        for name in ("attention", "loss"):
            curves = [row.measured[f"{name}_curve"] for row in runs]
            steps = runs[0].measured["steps"]
            band(axes, steps, curves, label=f"{name}, {groups} groups")
            if (theory := runs.predicted(f"{name}_curve")) is not None:
                axes.plot(steps, theory.value, ls=":", lw=2.5, color=axes.lines[-1].get_color())
    axes.set(title="Fresh batches (lines) on the population map (dots)", xlabel="step", ylim=(0, 1))
    if rows:  # a legend of nothing is a warning
        axes.legend()


def _draw_late_phase(rows: Rows[Point], axes: Axes) -> None:
    for row in rows:
        steps = row.measured["steps"]
        (line,) = axes.plot(steps, row.measured["loss_curve"], label=_words(row.point))
        if (law := row.predicted.get("loss_curve")) is not None:
            late = np.array(steps) >= 100
            axes.plot(np.array(steps)[late], np.array(law.value)[late], ls="--", color=line.get_color())
    axes.set(xscale="log", yscale="log", title="Exact map and its power law (dashed)", xlabel="step", ylabel="loss")
    if rows:  # a legend of nothing is a warning
        axes.legend()
