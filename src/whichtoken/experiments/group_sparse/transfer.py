"""What was selected once need not be learned again.

Claim   A new task on the same group is learned from few samples when the attention is kept: the running error falls as
        (d + D)/n, so that online descent makes fewer than d + D mistakes and then hardly any, where online logistic
        regression on all dD variables makes more and goes on; a task on another group is not learned at all.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 4.2; the task on another group is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.experiments.group_sparse._training import TEST_SAMPLES, random_problem
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least, at_most

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
EARLY = 100  # samples after which mistakes count as late
# step sizes of online logistic regression on all variables, of which every run gets its best
RATES = (0.01, 0.03, 0.1, 0.3)


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
    version = 2
    needs = "torch"
    spot = Point(groups=4, group_dim=4, pretraining=1.0, batch=50)
    presets = {
        "quick": (Grid(seeds=10), Grid(same_group=False, seeds=3)),
        "full": (
            Grid(pretraining=15.0, seeds=(8, 16)),
            Grid(same_group=False, pretraining=15.0, seeds=4),
            Grid(groups=[8, 32], seeds=6),  # with 32 groups half a minute a run
            Grid(group_dim=[4, 16], pretraining=15.0, seeds=4),
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
        errors, mistakes = _transferred(model, X, y, test)
        return {
            "pretrained_attention": _attention(model, test[0], int(first.relevant[0])),
            "mistakes": {"transferred": mistakes, "all-variables": _fewest_mistakes(X.reshape(len(X), -1), y)},
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
        yield from _rate_claims(standard)
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
        yield from _size_claims(rows.where(same_group=True, margin=0.3))

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


def _transferred(model: Any, X: Any, y: Any, test: Any) -> tuple[list[float], list[int]]:
    """Test error after each of SIZES samples, and the mistakes made until then."""
    from whichtoken.training.group_descent import online_transfer

    run = online_transfer(model, X, y, observe=lambda n: _error(model, test) if n in SIZES else None)
    return [run.observed[n] for n in SIZES], [round(n * float(run.running_error[n - 1])) for n in SIZES]


def _fewest_mistakes(features: NDArray[np.float64], y: NDArray[np.int64]) -> list[int]:
    """Mistakes of online logistic regression until each of SIZES, at the step size with the fewest in the end."""
    return min((_online_mistakes(y[:, None] * features, rate) for rate in RATES), key=lambda mistakes: mistakes[-1])


def _online_mistakes(signed: NDArray[np.float64], rate: float) -> list[int]:
    weights, mistakes = np.zeros(signed.shape[1]), np.zeros(len(signed), dtype=bool)
    for step, feature in enumerate(signed):
        margin = float(feature @ weights)
        mistakes[step] = margin <= 0
        weights += rate * np.exp(-np.logaddexp(0.0, margin)) * feature
    return [int(mistakes[:n].sum()) for n in SIZES]


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


def _mistakes(rows: Rows[Point], method: str, n: int) -> NDArray[np.float64]:
    return np.array([row.measured["mistakes"][method][SIZES.index(n)] for row in rows], dtype=np.float64)


def _ratio_of_means(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    """A value per repeat whose mean is the ratio of means and whose scatter is that of the ratio, to first order.

    Both means are measured, and the scatter of either counts. Fewer than one mistake below are taken for one.
    """
    base = max(float(below.mean()), 1.0)
    ratio = above.mean() / base
    return np.asarray(ratio + (above - above.mean() - ratio * (below - below.mean())) / base)


def _rate_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """A running error of order log^2(n)/n lets the mistakes grow as log^2(n) and no faster.

    Those of all runs count together, also where one has none: no run's share is clipped.
    """
    bound = float((np.log(SIZES[-1]) / np.log(EARLY)) ** 2 - 1)
    new = {}
    for method in ("transferred", "all-variables") if rows else ():
        early = _mistakes(rows, method, EARLY)
        new[method] = Mean(_ratio_of_means(_mistakes(rows, method, SIZES[-1]) - early, early))
    what = f"mistakes from sample {EARLY} to {SIZES[-1]} over those before"
    yield at_most(
        "transfer.rate",
        f"kept attention, online descent: {what}; at most this if the running error falls as log^2(n)/n",
        bound=bound,
        measured=new.get("transferred", Mean([])),
    )
    yield at_least(
        "transfer.rate.all-variables",
        f"online logistic regression on all variables, best of {len(RATES)} step sizes: {what}",
        bound=bound,
        measured=new.get("all-variables", Mean([])),
    )


def _size_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """Mistakes against d + D, their order in the theorem without its logarithms and margin, at every size."""
    for groups, dim in dict.fromkeys((row.point.groups, row.point.group_dim) for row in rows):
        runs = rows.where(groups=groups, group_dim=dim)
        kept, every = (
            Mean(_mistakes(runs, name, SIZES[-1]) / (groups + dim)) for name in ("transferred", "all-variables")
        )
        what = f"D = {groups}, d = {dim}: mistakes in {SIZES[-1]} samples over d + D"
        code = f"D{groups}.d{dim}"
        yield at_most(f"transfer.level.{code}", f"kept attention, {what}", bound=1.0, measured=kept)
        yield at_least(
            f"transfer.level.all-variables.{code}", f"regression on all variables, {what}", bound=1.0, measured=every
        )
    yield from _growth_claims(rows.where(group_dim=8))


def _growth_claims(rows: Rows[Point]) -> Iterator[Claim]:
    few, many = rows.where(groups=8), rows.where(groups=32)
    if not few or not many:
        return
    repeats = min(len(many), len(few))
    growth = {
        method: Mean(_ratio_of_means(*(_mistakes(some, method, SIZES[-1])[:repeats] for some in (many, few))))
        for method in ("transferred", "all-variables")
    }
    what = "mistakes at D = 32 over those at D = 8, d = 8; d + D grows 2.5 times, the number of variables 4 times"
    bound = (8 + 32) / (8 + 8)
    yield at_most("transfer.growth.groups", f"kept attention: {what}", bound=bound, measured=growth["transferred"])
    yield at_least(
        "transfer.growth.all-variables",
        f"regression on all variables: {what}",
        bound=bound,
        measured=growth["all-variables"],
    )


def _draw_errors(rows: Rows[Point], axes: Axes, title: str) -> None:
    from whichtoken.display.figures import band

    for name, what in METHODS.items() if rows else ():
        band(axes, SIZES, [row.measured["errors"][name] for row in rows], label=what, marker="o", ms=3)
    axes.set(xscale="log", title=title, xlabel="samples of the new task", ylabel="test error", ylim=(0, 0.55))
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.minorticks_off()
