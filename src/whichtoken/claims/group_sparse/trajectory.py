"""Gradient descent on the group transformer follows its population map.

Claim   From zero, v_1 grows along the true direction, v_2 stays zero, W_22 aligns with one predicted matrix of rank one, the
        other blocks of W matter less with more groups, and loss, value and attention follow the population dynamics: first the
        exact map, in the end power laws in the step.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 3.2, Lemmas 5.1 and 5.2; the maps and the power laws with their constants are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from whichtoken import datasets
from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions, as_predicted
from whichtoken.claims._figures import Axes, Figure, band, legend
from whichtoken.claims._runs import group_by, rows_where
from whichtoken.claims.group_sparse import _training as training
from whichtoken.claims.group_sparse._training import GroupSizes
from whichtoken.lab import Exact, Measured, Predicted, Rows, log_slope
from whichtoken.theory import group_sparse

TARGET_LOSS = 0.01
TRAINED_LOSS = 0.02  # that real training can reach
LAWS = ("alpha", "leakage", "loss")  # quantities that fall or grow as a power of the step
SELECTED = 0.9  # attention at which the blocks of W are compared

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(GroupSizes):
    sigma: float = 1.0
    lr: float = 0.02
    steps: int = 400
    # antithetic: pairs X, -X; population: the exact map on positions and values; late: as antithetic, into the late phase;
    # blocks: the symmetry-reduced map of all blocks until selection
    method: Literal["batches", "antithetic", "population", "late", "blocks"] = "batches"
    batch: int = 400


class Trajectory(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.method == "population":
            return _population(point)
        if point.method == "blocks":
            return _compare_blocks(point, rng)
        return _train_into_late_phase(point, rng) if point.method == "late" else _batches(point, rng)

    def predict(self, point: Point) -> Predictions:

        if point.method == "blocks":
            return {}
        if point.method == "population":
            steps = training.late_checkpoints(point.steps)
            law = group_sparse.late_phase(groups=point.groups, lr=point.lr, step=steps, sigma=point.sigma)
            return {**{name: Predicted(getattr(law, name)[-1]) for name in LAWS}, "loss_curve": Predicted(law.loss)}
        if point.method == "late":
            law = group_sparse.late_phase(groups=point.groups, lr=point.lr, step=[point.steps])
            exact = group_sparse.population_map(groups=point.groups, lr=point.lr, steps=point.steps)
            return {
                "alpha": Predicted(law.alpha[0]),
                "loss": Predicted(law.loss[0]),
                "leakage": Predicted(training.reduced_leakage(point)),
                "time_to_loss": Predicted(point.lr * _first_below(range(point.steps + 1), exact.loss, TRAINED_LOSS)),
            }
        theory = training.symmetric_path(point, sigma=point.sigma)
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

    def judge(self, rows: Rows[Point]) -> Checks:
        for (method, groups, sigma), runs in group_by(_batch_rows(rows), "method", "groups", "sigma"):
            label, words = f"{method}.{_task(groups, sigma)}", _words(runs)
            for name in ("alpha", "attention", "loss"):
                expected = as_predicted(runs, name, relative=0.03)
                yield TABLE[f"on_map_{name}"].part(label, words, runs.values(name), on=runs, **expected)
            for criterion, name in ((TABLE.value_cosine, "value_cosine"), (TABLE.position_cosine, "position_cosine")):
                yield criterion.part(label, words, runs.values(name), on=runs)
        for criterion, method in ((TABLE.no_stray, "antithetic"), (TABLE.small_stray, "batches")):
            for (groups, sigma), runs in group_by(rows.where(method=method), "groups", "sigma"):
                yield criterion.part(_task(groups, sigma), _words(runs), runs.values("position_value_norm"), on=runs)
        exact = rows.where(method="population")
        for (groups, sigma), runs in group_by(exact, "groups", "sigma"):
            words = f"{_words(runs)}, step {training.first_point(runs).steps}"
            for name in LAWS:
                expected, found = as_predicted(runs, name, relative=0.03), training.exact(runs, name)
                yield TABLE[f"late_{name}"].part(_task(groups, sigma), words, found, on=runs, **expected)
        for sigma, runs in group_by(rows.where(method="blocks"), "sigma"):
            words = f"sigma = {sigma:g}, D = {', '.join(map(str, runs.levels('groups')))}"
            yield TABLE.other_blocks.part(f"sigma{sigma:g}", words, log_slope(runs, "groups", "content_ratio"), on=runs)
        yield from _late_checks(rows.where(method="late"), exact.where(sigma=1.0))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_training(_batch_rows(rows), left)
        training.draw_late_phase(
            rows.where(method="population"), right, "loss_curve", lambda point: _task(point.groups, point.sigma)
        )
        right.set(title="Exact map and its power law (dashed)", ylabel="loss")


def _batch_rows(rows: Rows[Point]) -> Rows[Point]:
    return rows_where(rows, lambda point: point.method in ("batches", "antithetic"))


def _task(groups: int, sigma: float) -> str:
    return f"D{groups}" + ("" if sigma == 1 else f".sigma{sigma:g}")


def _population(point: Point) -> Measured:

    groups, lr, sigma = point.groups, point.lr, point.sigma
    trajectory = group_sparse.population_map(groups=groups, lr=lr, steps=point.steps, sigma=sigma)
    # the power law leaves out the time that selection takes
    horizon = int(group_sparse.steps_to_loss(groups=groups, lr=lr, loss=TARGET_LOSS, sigma=sigma) + 100 / lr)
    longer = group_sparse.population_map(groups=groups, lr=lr, steps=horizon, sigma=sigma)
    steps = training.late_checkpoints(point.steps)
    return {
        **{name: getattr(trajectory, name)[-1] for name in LAWS},
        "time_to_loss": lr * int(np.argmax(longer.loss <= TARGET_LOSS)),
        "steps": steps,
        "loss_curve": trajectory.loss[steps],
    }


def _compare_blocks(point: Point, rng: np.random.Generator) -> Measured:
    """Scores by content over scores by position at the step at which the relevant group is selected."""
    fields = {name: getattr(point, name) for name in ("groups", "group_dim", "lr", "steps", "sigma")}
    path = group_sparse.symmetric_map(**fields, rng=rng, samples=point.batch)
    if not np.any(path.attention > SELECTED):
        raise ValueError(f"steps={point.steps} must be enough to reach an attention of {SELECTED:g}")
    step = int(np.argmax(path.attention > SELECTED))
    _, relevant, _, _, other = path.position[step]
    content = np.hypot(path.along[step], np.sqrt(point.group_dim - 1) * path.across[step])  # Frobenius norm of W_11
    return {"content_ratio": point.sigma**2 * content / (relevant - other), "content": content, "gap": relevant - other}


def _train_into_late_phase(point: Point, rng: np.random.Generator) -> Measured:
    every = max(1, point.steps // 12)  # a look at 20 000 samples costs as much as 100 steps
    states = training.train_all_blocks(point, rng, every)
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

    from whichtoken.theory.group_sparse.descent import fresh_batches, gradient_descent
    from whichtoken.theory.group_sparse.transformer import GroupSelection, GroupTransformer, selection

    relevant, direction = int(rng.integers(point.groups)), rng.standard_normal(point.group_dim)
    data = datasets.GroupSparse(point.groups, point.group_dim, relevant, direction, sigma=point.sigma)
    X, y = map(torch.from_numpy, data.sample(2000, rng))
    model = GroupTransformer(point.group_dim, point.groups)

    def observe(step: int) -> GroupSelection:
        return selection(model, X, y, relevant, direction)

    batches = fresh_batches(data, point.batch, rng, antithetic=point.method == "antithetic")
    run = gradient_descent(model, batches, point.steps, point.lr, point.sigma, observe, every=_steps_between(point))
    end: GroupSelection = run.observed[-1]
    same = ("attention", "accuracy", "value_cosine", "position_cosine", "position_value_norm", "block_norms")
    return {
        "alpha": end.value_norm,
        "loss": run.losses[point.steps // 2 :].mean(),
        **{name: getattr(end, name) for name in same},
        "steps": _checkpoints(point),
        "attention_curve": [state.attention for state in run.observed],
        "loss_curve": [state.loss for state in run.observed],
    }


def _words(runs: Rows[Point]) -> str:
    """The task for people: 16 groups, fresh batches, scale 0.5."""
    point = training.first_point(runs)
    batches = {"batches": ", fresh batches", "antithetic": ", batches of mirrored pairs"}.get(point.method, "")
    return f"{point.groups} groups{batches}" + ("" if point.sigma == 1 else f", scale {point.sigma:g}")


def _late_checks(trained: Rows[Point], exact: Rows[Point]) -> Checks:
    """The late phase of the real model, and how the steps to a loss depend on the number of groups."""
    words = "{} groups, {} steps"
    for name in LAWS:
        # pilots on other seeds: value 1 % above the law so early, loss 5 %; attention strays by 1 to 3 %
        stated = TABLE[f"trained_{name}"]
        yield from stated.each(trained, "groups steps", "D{}", words, name, predicted=name, relative=0.1)
    if exact:
        power = log_slope(exact, "groups", "time_to_loss").values
        words = f"exact map, W_11 frozen, to a loss of {TARGET_LOSS:g}"
        exact_power = Exact(power[0]) if len(power) else power
        yield TABLE.groups_power.part("map", words, exact_power, on=exact, value=-2.0, tolerance=0.15)
    if len(trained.levels("groups")) > 1:
        words = f"all blocks trained, to a loss of {TRAINED_LOSS:g}, against that of the exact map"
        found = log_slope(trained, "groups", "time_to_loss")
        predicted = training.predicted_power(trained, "time_to_loss")
        yield TABLE.groups_power.part("all-blocks", words, found, on=trained, value=predicted, tolerance=0.15)


def _steps_between(point: Point) -> int:
    return max(1, point.steps // 10)


def _checkpoints(point: Point) -> list[int]:
    """Steps at which `gradient_descent` observes."""
    return [*range(0, point.steps, _steps_between(point)), point.steps]


def _draw_training(rows: Rows[Point], axes: Axes) -> None:
    for groups, runs in group_by(rows, "groups"):
        for name in ("attention", "loss"):
            curves = [row.measured[f"{name}_curve"] for row in runs]
            steps = runs[0].measured["steps"]
            band(axes, steps, curves, label=f"{name}, {groups} groups")
            if (theory := runs.predicted(f"{name}_curve")) is not None:
                axes.plot(steps, theory.value, ls=":", lw=2.5, color=axes.lines[-1].get_color())
    axes.set(title="Fresh batches (lines) on the population map (dots)", xlabel="step", ylim=(0, 1))
    legend(axes)
