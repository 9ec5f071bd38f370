"""With several layers, the first one selects the group as if it were alone; Adam spreads the selection over layers.

Claim   Trained by gradient descent from zero on mirrored batches, the first of two or three layers selects the relevant group in
        as many steps as a single layer, v_1 and W_22 align as there, and the later layers stay uniform: while all tokens that
        leave the first layer are alike, their gradient is zero. A map of 1 + 7 L numbers predicts it. Adam divides a gradient
        by its size, however small: its later layers take part, and select together what one layer of Adam misses.
Source  Open question 1 of Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification
        (arXiv 2504.08638, conclusion), which states nothing; the map is derived and the answer measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims._runs import Array, group_by, pairs, rows_where
from whichtoken.claims.group_sparse._training import GroupSizes, predicted_power, random_problem
from whichtoken.lab import Measured, Predicted, Row, Rows, log_slope

SHARE = 0.8  # of the stability bound along the path: learning rate of gradient descent
ADAM_RATE = 0.01
MAP_SAMPLES, MAP_STREAMS = 100, 10
EVERY = 5  # steps between two looks at the attention
EPSILONS = 1e-8, 1e-2  # of Adam: torch's, and one of the size of the noise in the gradients
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(GroupSizes):
    layers: int = 2
    optimizer: str = (
        "sgd"  # on mirrored batches; "adam" on plain ones, as mirrored ones leave it rounding errors to enlarge
    )
    rate: float = 1.0  # times SHARE of the stability bound, or times ADAM_RATE
    epsilon: float = EPSILONS[0]  # of Adam
    start: float = 0.0  # times Xavier's numbers
    sigma: float = 1.0
    steps: int = 150
    batch: int = 64

    @property
    def lr(self) -> float:
        from whichtoken.theory.group_sparse import stability_bounds

        bound = stability_bounds(groups=self.groups, sigma=self.sigma).path
        return self.rate * (ADAM_RATE if self.optimizer == "adam" else SHARE * bound)


class Depth(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.claims.group_sparse._layers import LayeredTransformer, through_layers
        from whichtoken.theory.group_sparse.descent import descend_on_batches, fresh_batches

        data = random_problem(point.groups, point.group_dim, rng, sigma=point.sigma)
        sample, starting = rng.spawn(2)
        X = torch.from_numpy(data.sample(200, sample)[0])
        model = LayeredTransformer(point.group_dim, point.groups, point.layers, start=point.start, rng=starting)
        adam = point.optimizer == "adam"
        parameters = model.parameters()
        optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(parameters, point.lr, eps=point.epsilon) if adam else torch.optim.SGD(parameters, point.lr)
        )

        @torch.no_grad()
        def attention(step: int) -> float:
            return float(through_layers(model.attend(X)[1])[:, int(data.relevant[0])].mean())

        batches = fresh_batches(data, point.batch, rng, antithetic=not adam)
        path = descend_on_batches(model, batches, optimizer, point.steps, attention, EVERY).observed
        return model.measure(data, 2000, sample) | _half_time(path, EVERY * point.lr)

    def predict(self, point: Point) -> Predictions:
        from scipy.stats import sem
        from scipy.stats import t as student_t

        from whichtoken.claims.group_sparse._layers import layered_map

        if point.layers == 1 or point.start or point.optimizer == "adam" or self.missing:
            return {}
        found = []
        shape = (MAP_SAMPLES, point.groups, point.group_dim)
        for stream in range(MAP_STREAMS):
            rng = np.random.default_rng(stream)
            batches = (point.sigma * rng.standard_normal(shape) for _ in range(point.steps + 1))
            path = layered_map(batches, layers=point.layers, lr=point.lr)
            late = slice(-max(point.steps // 20, 1), None)  # the attention of a single batch is noisy
            numbers = {"alpha": path.alpha[-1], "attention": path.attention[late].mean()}
            found.append(numbers | _half_time(path.attention, point.lr))
        names = set.intersection(*map(set, found))
        columns = {name: [numbers[name] for numbers in found] for name in sorted(names)}
        quantile = student_t.ppf(0.975, MAP_STREAMS - 1)
        return {name: Predicted(np.mean(values), quantile * sem(values)) for name, values in columns.items()}

    def judge(self, rows: Rows[Point]) -> Checks:
        descent = rows.where(optimizer="sgd")
        deep = rows_where(descent, lambda point: point.layers > 1)
        where = "layers groups", "L{}.D{}", "{} layers, {} groups"
        yield from TABLE.first.each(deep, *where, lambda runs: [_attention_over_first(row) for row in runs])
        yield from TABLE.later.each(deep, *where, lambda runs: [_farthest(row) for row in runs])
        for (layers, groups), runs in group_by(deep, "layers", "groups"):
            both = rows_where(descent.where(groups=groups), lambda point, layers=layers: point.layers in (1, layers))  # type: ignore[misc]
            ratio = np.divide(*_both(both, "half_time", layers))
            yield TABLE.speed.part(f"L{layers}.D{groups}", f"{layers} layers, {groups} groups", ratio, on=runs)
        for layers, runs in group_by(deep, "layers"):
            if len(runs.levels("groups")) > 1:
                slope, power = log_slope(_timed_rows(runs), "groups", "half_time"), predicted_power(runs, "half_time")
                yield TABLE.power.part(f"L{layers}", f"{layers} layers", slope, on=runs, value=power)
        for criterion, name, share in ((TABLE.map, "attention", 0.03), (TABLE.alpha, "alpha", 0.05)):
            yield from criterion.each(deep, *where, name, predicted=name, relative=share)
        for criterion, name in ((TABLE.value, "value_cosine"), (TABLE.position, "position_cosine")):
            yield from criterion.each(deep, *where, name)
        adam = rows.where(optimizer="adam", epsilon=EPSILONS[0])
        several = rows_where(adam, lambda point: point.layers > 1)
        yield from TABLE.adam_selects.each(several, *where, "attention")
        yield from TABLE.adam_first.each(several, *where, lambda runs: [row.measured["layers"][0] for row in runs])
        many = rows_where(adam, lambda point: point.groups >= 8)
        for (layers, groups), runs in group_by(rows_where(many, lambda point: point.layers > 1), "layers", "groups"):
            gain = np.subtract(*_both(many.where(groups=groups), "attention", layers))
            yield TABLE.adam_gain.part(f"L{layers}.D{groups}", f"{layers} layers, {groups} groups", gain, on=runs)
        yield from TABLE.adam_epsilon.each(rows.where(optimizer="adam", epsilon=EPSILONS[1]), *where, "attention")

    def judge_point(self, rows: Rows[Point]) -> Checks:
        """Whether the group is selected, and whether the first layer does it alone."""
        yield TABLE.selects(rows.values("attention"), on=rows)
        if all(row.point.layers > 1 for row in rows):
            yield TABLE.later([_farthest(row) for row in rows], on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        for axes, name, title in ((left, "sgd", "Gradient descent"), (middle, "adam", "Adam")):
            for layers, runs in group_by(rows.where(optimizer=name, epsilon=EPSILONS[0]), "layers"):
                plot_means(axes, runs, "groups", "attention", f"C{layers}o-", f"{layers} layers, input to output")
                for layer in range(layers if layers == 2 else 0):
                    groups = sorted(runs.levels("groups"))
                    means = [np.mean([row.measured["layers"][layer] for row in runs.where(groups=D)]) for D in groups]
                    axes.plot(groups, means, f"C{layers}{'x+'[layer]}--", label=f"layer {layer + 1} of 2")
            label_axes(
                axes,
                title,
                "groups D",
                "attention on the relevant group",
                log="x",
                ylim=(0, 1.05),
                legend=bool(axes.lines),
            )
        for layers, runs in group_by(_timed_rows(rows.where(optimizer="sgd")), "layers"):
            plot_means(right, runs, "groups", "half_time", f"C{layers}o-", f"{layers} layers")
        label_axes(
            right, "Steps x learning rate to one half", "groups D", log="x", ylim=(0, None), legend=bool(right.lines)
        )


def _half_time(attention: Any, unit: float) -> dict[str, float]:
    """When the attention first reaches one half, by a line between two looks; nothing if it does not."""
    path = np.asarray(attention)
    if not (path >= 0.5).any():
        return {}
    after = max(int(np.argmax(path >= 0.5)), 1)
    return {"half_time": unit * (after - (path[after] - 0.5) / (path[after] - path[after - 1]))}


def _timed_rows(rows: Rows[Point]) -> Rows[Point]:
    return Rows((row for row in rows if "half_time" in row.measured), rows.failed)


def _both(rows: Rows[Point], name: str, layers: int) -> tuple[Array, Array]:
    """A quantity of several layers and of one, in the repeats that have both."""
    known = Rows((row for row in rows if name in row.measured), rows.failed)
    return pairs(known, name, {"layers": layers}, {"layers": 1})


def _attention_over_first(row: Row[Point]) -> float:
    return float(row.measured["attention"] / row.measured["layers"][0])


def _farthest(row: Row[Point]) -> float:
    """Attention of a later layer over 1/D, of the layer in which it is farthest from one."""
    ratios = [layer * row.point.groups for layer in row.measured["layers"][1:]]
    return float(max(ratios, key=lambda ratio: abs(ratio - 1)))
