"""What was selected once need not be learned again.

Claim   A new task on the same group is learned from few samples when the attention is kept: the error falls as (d + D)/n,
        where logistic regression on all variables needs dD/n; a task on another group is not learned at all.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 4.2; the task on another group is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.experiments.group_sparse._training import TEST_SAMPLES, random_problem
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, agreement, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from whichtoken.data import GroupSparse
    from whichtoken.models.group_transformer import GroupTransformer

METHODS = {
    "transferred": "kept attention, online gradient descent on v",
    "transferred-batch": "kept attention, logistic regression",
    "all-variables": "logistic regression on all variables",
    "oracle": "logistic regression on the relevant group",
}
SIZES = (25, 50, 100, 200, 400, 800)


@dataclass(frozen=True)
class Point:
    groups: int = 16
    group_dim: int = 8
    margin: float = 0.3  # of the new task
    same_group: bool = True
    pretraining: float = 7.5  # time, steps times learning rate: selection takes about as much of it for any D
    pretraining_lr: float = 0.025
    batch: int = 200


class Transfer(Experiment[Point]):
    id = "group-sparse/transfer"
    presets = {
        "quick": (Grid(seeds=8), Grid(same_group=False, seeds=4)),
        "full": (
            Grid(pretraining=15.0, seeds=20),
            Grid(margin=0.0, pretraining=15.0, seeds=10),
            Grid(same_group=False, pretraining=15.0, seeds=5),
            Grid(groups=[8, 32], pretraining=15.0, seeds=10),
            Grid(group_dim=[4, 16], pretraining=15.0, seeds=10),
        ),
    }
    method_fields = frozenset({"pretraining", "pretraining_lr", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import GroupSparse

        first = random_problem(point.groups, point.group_dim, rng)
        relevant = int(first.relevant[0]) if point.same_group else (int(first.relevant[0]) + 1) % point.groups
        new = rng.standard_normal(point.group_dim)
        task = GroupSparse(point.groups, point.group_dim, relevant, new, margin=point.margin)
        model = _pretrained(point, first, rng)
        X, y = task.sample(SIZES[-1], rng)
        test = task.sample(TEST_SAMPLES, rng)
        errors, running = _transferred(model, X, y, test)
        return {
            "pretrained_attention": _attention(model, test[0], int(first.relevant[0])),
            "running_error": running,
            "errors": {"transferred": errors, **_regressions(model, X, y, test, relevant)},
            "trained_attention_difference": _effect_of_training_attention(model, X, y, test, errors),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        standard = rows.where(groups=16, group_dim=8, same_group=True, margin=0.3)
        yield at_most(
            "transfer.advantage",
            "error after 100 samples over that of logistic regression on all variables",
            bound=0.2,
            measured=Mean([_ratio_at(row.measured["errors"], 100) for row in standard]),
        )
        yield agreement(
            "transfer.rate",
            "power of n in the running error of online descent, n from 100 to 800",
            theory=-1.0,
            measured=Mean([_slope(row.measured["running_error"]) for row in standard]),
            tolerance=0.15,
        )
        yield at_most(
            "transfer.attention-kept",
            "largest change of the error when the attention is trained along, n up to 400",
            bound=0.01,
            measured=Mean(standard.values("trained_attention_difference")),
        )
        yield at_least(
            "transfer.negative",
            "error after 400 samples of a task on another group",
            bound=0.3,
            measured=Mean([_at(row.measured["errors"]["transferred"], 400) for row in rows.where(same_group=False)]),
        )
        yield from _dimension_claims(rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        standard = rows.where(groups=16, group_dim=8, margin=0.3)
        _draw_errors(standard.where(same_group=True), left, "A new task on the selected group")
        _draw_errors(standard.where(same_group=False), right, "A new task on another group")
        left.legend(fontsize=8)


def _pretrained(point: Point, data: GroupSparse, rng: np.random.Generator) -> GroupTransformer:
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.training.group_descent import fresh_batches, gradient_descent

    model = GroupTransformer(point.group_dim, point.groups)
    # the sine encodings' norm grows with D, and the stable step falls with it
    lr = point.pretraining_lr * min(1.0, (16 / point.groups) ** 2)
    steps = round(point.pretraining / lr)
    gradient_descent(model, fresh_batches(data, point.batch, rng, antithetic=True), steps, lr)
    return model


def _transferred(model: Any, X: Any, y: Any, test: Any) -> tuple[list[float], list[float]]:
    """Test error after each of SIZES samples, and the share of mistakes made until then."""
    from whichtoken.training.group_descent import online_transfer

    run = online_transfer(model, X, y, observe=lambda n: _error(model, test) if n in SIZES else None)
    running = run.running_error
    return [run.observed[n] for n in SIZES], [float(running[n - 1]) for n in SIZES]


def _effect_of_training_attention(model: Any, X: Any, y: Any, test: Any, kept: list[float]) -> float:
    from copy import deepcopy

    from whichtoken.training.group_descent import online_transfer

    trained = deepcopy(model)
    run = online_transfer(
        trained, X[:400], y[:400], train_attention=True, observe=lambda n: _error(trained, test) if n in SIZES else None
    )
    return float(max(abs(run.observed[n] - error) for n, error in zip(SIZES, kept, strict=True) if n <= 400))


def _regressions(model: Any, X: Any, y: Any, test: Any, relevant: int) -> dict[str, list[float]]:
    import torch

    with torch.no_grad():
        features = {
            "transferred-batch": [
                model.features(torch.from_numpy(part)).numpy() / model.groups for part in (X, test[0])
            ],
            "all-variables": [part.reshape(len(part), -1) for part in (X, test[0])],
            "oracle": [part[:, relevant] for part in (X, test[0])],
        }
    return {
        name: [_regression_error(train[:n], y[:n], held_out, test[1]) for n in SIZES]
        for name, (train, held_out) in features.items()
    }


def _regression_error(X: NDArray[np.float64], y: NDArray[np.int64], X_test: Any, y_test: Any) -> float:
    from sklearn.linear_model import LogisticRegression

    if len(set(y.tolist())) < 2:
        return 0.5
    fitted = LogisticRegression(C=10.0, fit_intercept=False, max_iter=2000).fit(X, y)
    return float(np.mean(fitted.predict(X_test) != y_test))


def _error(model: Any, test: tuple[Any, Any]) -> float:
    import torch

    with torch.no_grad():
        return float(np.mean(model(torch.from_numpy(test[0])).numpy() * test[1] <= 0))


def _attention(model: Any, X: Any, relevant: int) -> float:
    import torch

    with torch.no_grad():
        return float(model.attention(torch.from_numpy(X))[:, relevant].mean())


def _at(errors: list[float], n: int) -> float:
    return errors[SIZES.index(n)]


def _ratio_at(errors: dict[str, list[float]], n: int) -> float:
    return _at(errors["transferred"], n) / _at(errors["all-variables"], n)


def _slope(running: list[float]) -> float:
    late = [i for i, n in enumerate(SIZES) if n >= 100]
    # one mistake in n samples is the resolution: a run without mistakes so far is not at minus infinity
    values = [max(running[i], 1 / SIZES[i]) for i in late]
    return float(np.polyfit(np.log([SIZES[i] for i in late]), np.log(values), 1)[0])


def _dimension_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """Growth of the running error with D and with d: less than that of dD, the number of variables."""
    for name, low, high in (("groups", 8, 32), ("group_dim", 4, 16)):
        other = {"groups": {"group_dim": 8}, "group_dim": {"groups": 16}}[name]
        pair = [rows.where(same_group=True, margin=0.3, **{name: value}, **other) for value in (low, high)]
        if not all(pair):
            continue
        few, many = (np.array([_at(row.measured["running_error"], 400) for row in part]) for part in pair)
        yield at_most(
            f"transfer.growth.{name}",
            f"running error at {name} = {high} over that at {low} (n = 400); the number of variables grows by {high // low}",
            bound=high / low,
            measured=Mean(many / few.mean()),
        )


def _draw_errors(rows: Rows[Point], axes: Axes, title: str) -> None:
    from whichtoken.display.figures import band

    for name, what in METHODS.items() if rows else ():
        band(axes, SIZES, [row.measured["errors"][name] for row in rows], label=what, marker="o", ms=3)
    axes.set(xscale="log", title=title, xlabel="samples of the new task", ylabel="test error", ylim=(0, 0.55))
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.minorticks_off()
