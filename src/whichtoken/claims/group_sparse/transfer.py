"""A selection that was learned once transfers to a new task.

Claim   A new task on the same group is learned from few samples when the attention is kept: the running error falls as
        (d + D)/n, so that online descent makes fewer than d + D mistakes and then hardly any, where online logistic
        regression on all dD variables makes more and goes on; a task on another group is not learned at all.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 4.2; the task on another group is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken import datasets
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Axes, Figure, band, level_ticks
from whichtoken.claims._runs import Array, group_by, rows_where
from whichtoken.claims.group_sparse._training import TEST_SAMPLES, random_problem
from whichtoken.lab import Measured, Rows
from whichtoken.theory import group_sparse

METHODS = {
    "transferred": "kept attention, online gradient descent on v",
    "transferred-batch": "kept attention, logistic regression",
    "all-variables": "logistic regression on all variables",
    "oracle": "logistic regression on the relevant group",
}
ONLINE = ("transferred", "all-variables")  # methods whose mistakes are counted
SIZES = (25, 50, 100, 200, 400, 800)
EARLY = 100  # samples after which mistakes count as late
# step sizes of online logistic regression on all variables, of which every run gets its best
RATES = (0.01, 0.03, 0.1, 0.3)

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    groups: int = 16
    group_dim: int = 8
    margin: float = 0.3  # of the new task
    same_group: bool = True
    pretraining: float = 7.5  # time, steps times learning rate: selection takes about as much of it for any D
    pretraining_lr: float = 0.025
    batch: int = 200


class Transfer(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from copy import deepcopy

        import torch

        first = random_problem(point.groups, point.group_dim, rng)
        selected = int(first.relevant[0])
        relevant = selected if point.same_group else (selected + 1) % point.groups
        new = rng.standard_normal(point.group_dim)
        task = datasets.GroupSparse(point.groups, point.group_dim, relevant, new, margin=point.margin)
        model = _pretrain(point, first, rng)
        X, y = task.sample(SIZES[-1], rng)
        test = task.sample(TEST_SAMPLES, rng)
        errors, mistakes = _learn_online(model, X, y, test)
        trained, _ = _learn_online(deepcopy(model), X[:400], y[:400], test, train_attention=True)
        with torch.no_grad():
            attention = float(model.attention(torch.from_numpy(test[0]))[:, selected].mean())
        return {
            "pretrained_attention": attention,
            "mistakes": {"transferred": mistakes, "all-variables": _fewest_mistakes(X.reshape(len(X), -1), y)},
            "errors": {"transferred": errors, **_regressions(model, X, y, test, relevant)},
            "trained_attention_difference": max(abs(a - b) for a, b in zip(trained, errors, strict=False)),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        standard = rows.where(groups=16, group_dim=8, same_group=True, margin=0.3)
        ratio = _errors(standard, "transferred", 100) / _errors(standard, "all-variables", 100)
        yield TABLE.advantage(ratio, on=standard)
        yield TABLE.kept(standard.values("trained_attention_difference"), on=standard)
        other = rows.where(same_group=False)
        yield TABLE.negative(_errors(other, "transferred", 400), on=other)
        yield from _mistake_checks(rows.where(same_group=True, margin=0.3), standard)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        standard = rows.where(groups=16, group_dim=8, margin=0.3)
        _draw_errors(standard.where(same_group=True), left, "A new task on the selected group")
        _draw_errors(standard.where(same_group=False), right, "A new task on another group")
        left.legend(fontsize=8)


def _pretrain(point: Point, data: datasets.GroupSparse, rng: np.random.Generator) -> group_sparse.GroupTransformer:
    from whichtoken.theory.group_sparse.descent import fresh_batches, gradient_descent

    model = group_sparse.GroupTransformer(point.group_dim, point.groups)
    # the sine encodings' norm grows with D, and the stable step falls with it
    lr = point.pretraining_lr * min(1.0, (16 / point.groups) ** 2)
    steps = round(point.pretraining / lr)
    gradient_descent(model, fresh_batches(data, point.batch, rng, antithetic=True), steps, lr)
    return model


def _learn_online(model: Any, X: Any, y: Any, test: Any, **options: Any) -> tuple[list[float], list[int]]:
    """Test error after each of SIZES samples, as far as there are so many, and the mistakes made until then."""
    import torch

    from whichtoken.theory.group_sparse.descent import online_transfer

    def observe(n: int) -> float | None:
        if n not in SIZES:
            return None
        with torch.no_grad():
            return float(np.mean(model(torch.from_numpy(test[0])).numpy() * test[1] <= 0))

    run = online_transfer(model, X, y, observe=observe, **options)
    sizes = [n for n in SIZES if n <= len(y)]
    return [run.observed[n] for n in sizes], [round(n * float(run.running_error[n - 1])) for n in sizes]


def _fewest_mistakes(features: Array, y: Any) -> list[int]:
    """Mistakes of online logistic regression until each of SIZES, at the step size with the fewest in the end."""
    return min((_online_mistakes(y[:, None] * features, rate) for rate in RATES), key=lambda mistakes: mistakes[-1])


def _online_mistakes(signed: Array, rate: float) -> list[int]:
    weights, mistakes = np.zeros(signed.shape[1]), np.zeros(len(signed), dtype=bool)
    for step, feature in enumerate(signed):
        margin = float(feature @ weights)
        mistakes[step] = margin <= 0
        weights += rate * np.exp(-np.logaddexp(0.0, margin)) * feature
    return [int(mistakes[:n].sum()) for n in SIZES]


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


def _regression_error(X: Array, y: Any, X_test: Array, y_test: Any) -> float:
    from sklearn.linear_model import LogisticRegression

    if len(set(y.tolist())) < 2:
        return 0.5
    fitted = LogisticRegression(C=10.0, fit_intercept=False, max_iter=2000).fit(X, y)
    return float(np.mean(fitted.predict(X_test) != y_test))


def _errors(rows: Rows[Point], method: str, n: int) -> Array:
    return np.array([row.measured["errors"][method][SIZES.index(n)] for row in rows], dtype=np.float64)


def _mistakes(rows: Rows[Point], method: str, n: int) -> Array:
    return np.array([row.measured["mistakes"][method][SIZES.index(n)] for row in rows], dtype=np.float64)


def _ratio_of_means(above: Array, below: Array) -> Array:
    """A value per repeat whose mean is the ratio of means and whose scatter is that of the ratio, to first order.

    Both means are measured, and the scatter of either counts. Fewer than one mistake below are taken for one.
    """
    if not len(below):
        return below
    base = max(float(below.mean()), 1.0)
    ratio = above.mean() / base
    return np.asarray(ratio + (above - above.mean() - ratio * (below - below.mean())) / base)


def _mistake_checks(rows: Rows[Point], standard: Rows[Point]) -> Checks:
    """Mistakes against their order in the theorem: (d + D) log^2(n), at every size.

    Those of all runs count together, also where one has none: no run's share is clipped.
    """
    late = {method: _late_mistakes(standard, method) for method in ONLINE}
    yield TABLE.rate(late["transferred"], on=standard)
    sizes = rows_where(rows, lambda point: point.group_dim == 8 and point.groups in (8, 32))
    growth = {method: _growth(sizes, method) for method in ONLINE}
    if len(growth["transferred"]):
        yield TABLE.groups(growth["transferred"], on=sizes)
    yield TABLE.worse.part("rate", "late mistakes over early ones", _difference(late), on=standard)
    if len(growth["transferred"]):
        yield TABLE.worse.part("growth", "growth of the mistakes from 8 to 32 groups", _difference(growth), on=sizes)
    for criterion, method in ((TABLE.level, "transferred"), (TABLE.regression_level, "all-variables")):
        for (groups, dim), runs in group_by(rows, "groups", "group_dim"):
            share = _mistakes(runs, method, SIZES[-1]) / (groups + dim)
            yield criterion.part(f"D{groups}.d{dim}", f"D = {groups}, d = {dim}", share, on=runs)


def _difference(found: Mapping[str, Array]) -> Array:
    return found["all-variables"] - found["transferred"]


def _late_mistakes(rows: Rows[Point], method: str) -> Array:
    early = _mistakes(rows, method, EARLY)
    return _ratio_of_means(_mistakes(rows, method, SIZES[-1]) - early, early)


def _growth(rows: Rows[Point], method: str) -> Array:
    few, many = (_mistakes(rows.where(groups=groups), method, SIZES[-1]) for groups in (8, 32))
    repeats = min(len(few), len(many))
    return _ratio_of_means(many[:repeats], few[:repeats])


def _draw_errors(rows: Rows[Point], axes: Axes, title: str) -> None:
    for name, what in METHODS.items() if rows else ():
        band(axes, SIZES, [row.measured["errors"][name] for row in rows], label=what, marker="o", ms=3)
    axes.set(xscale="log", title=title, xlabel="samples of the new task", ylabel="test error", ylim=(0, 0.55))
    level_ticks(axes, SIZES)
