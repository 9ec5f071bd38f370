"""Selection survives a small random start and is lost from a large one.

Claim   Started from zero, training selects the relevant group and v_2, the value on the positions, stays small. A tenth of
        Xavier's numbers does the same with up to 8 groups and no longer with 16. Started from Xavier's numbers as they are, with
        8 groups or more, it classifies well by another mechanism, which carries the value on the positions, and does not select.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) prove
        selection from zero; what a random start does is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Above, AtMost, Below, Checks, Equals, pool_parts
from whichtoken.claims._figures import Figure
from whichtoken.claims._runs import Array, each_point, pairs, rows_where
from whichtoken.claims.group_sparse import _training as training
from whichtoken.claims.group_sparse._training import GroupSizes, random_problem, train_and_measure
from whichtoken.lab import Experiment, Grid, Measured, Rows

HALF = 0.5  # |v_2| over |v| up to which the value counts as read from the variables
SELECTED = 0.7  # mean attention from which on a group counts as selected
SMALL, XAVIER = 0.1, 1.0  # scales of a small and of a standard start; in between it depends on the run
FEW, MANY = 8, 16  # groups up to which a small start is small enough, and for which it is not

SELECTS = Above("initialization.selects", SELECTED, "small start: mean attention on the relevant group")
UNSELECTED = Below("initialization.unselected", SELECTED, "Xavier start: mean attention on the relevant group")
ACCURACY = Above("initialization.accuracy", 0.9, "accuracy, whatever the mechanism")
POSITION_VALUE = Below("initialization.position-value", HALF, "small start: |v_2| over |v|")
VALUE_MOVES = Above(
    "initialization.value-moves", HALF, "Xavier start: |v_2| over |v|, as the positions carry the value"
)
LAW = Equals(
    "initialization.law",
    1.0,
    f"a tenth of Xavier, up to {FEW} groups: attention on the other groups over that from zero, on the same data",
    tolerance=0.25,
)
MANY_GROUPS = AtMost(
    "initialization.many-groups",
    0.0,
    f"a tenth of Xavier, {MANY} groups: attention on the relevant group minus that from zero, on the same data",
)
MOSTLY = Above("initialization.mostly", training.HALF, "attention on the relevant group")


@dataclass(frozen=True)
class Point(GroupSizes):
    scale: float = 0.0  # of the Xavier numbers; 0 is the start of the theory
    lr: float = 0.05
    steps: int = 500
    batch: int = 200


class GroupInitialization(Experiment[Point]):
    id = "group-sparse/initialization"
    version = 2
    needs = "torch"
    spot = Point(groups=4, scale=1.0, steps=50, batch=50)
    presets = {
        "quick": (
            Grid(scale=[0.0, 0.1], seeds=6),
            Grid(scale=1.0, seeds=6),
        ),
        "full": (
            Grid(scale=[0.0, 0.03, 0.1, 0.3, 1.0], lr=0.02, steps=1500, batch=200, seeds=(6, 24)),
            # the law in the number of groups
            Grid(groups=4, scale=[0.0, 0.1, 1.0], lr=0.08, steps=400, batch=200, seeds=6),
            Grid(groups=16, scale=[0.0, 0.1], lr=0.01, steps=1200, batch=100, seeds=(6, 12)),
            Grid(groups=16, scale=1.0, lr=0.01, steps=1200, batch=100, seeds=6),
        ),
        "map": (Grid(batch=60, **training.MAP),),
    }
    ranges = {"scale": (0.0, 1.0), "groups": training.MAP_GROUPS}
    method_fields = frozenset({"scale", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.group_sparse.descent import fresh_batches, xavier_start
        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        xavier_start(model, rng, point.scale)
        return train_and_measure(model, data, fresh_batches(data, point.batch, rng), point.steps, point.lr, rng)

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        small = rows_where(rows, lambda point: point.scale <= (SMALL if point.groups <= FEW else 0.0))
        standard = rows_where(rows, lambda point: point.scale >= XAVIER and point.groups >= FEW)
        for criterion, some, measure in (
            (SELECTS, small, lambda runs: runs.values("attention")),
            (UNSELECTED, standard, lambda runs: runs.values("attention")),
            (ACCURACY, rows, lambda runs: runs.values("accuracy")),
            (POSITION_VALUE, small, _position_share),
            (VALUE_MOVES, standard, _position_share),
        ):
            for point, runs in each_point(some):
                yield criterion.part(_label(point), _words(point), measure(runs), on=runs)
        started = rows_where(rows, lambda point: point.scale in (0.0, SMALL))
        few, many = rows_where(started, lambda point: point.groups <= FEW), started.where(groups=MANY)
        yield from LAW.each(few, "groups", "D{}", "{} groups", lambda runs: np.divide(*_other_attention(runs)))
        yield MANY_GROUPS(-np.subtract(*_other_attention(many)), on=many)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield MOSTLY(rows.values("attention"), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        rows = rows.where(groups=8)
        scales = rows.levels("scale")
        places = [scales.index(row.point.scale) + 0.08 * (row.seed % 5 - 2) for row in rows]
        left, right = figure.subplots(1, 2)
        for axes, quantity, mark, label in (
            (left, "accuracy", "C0o", "accuracy"),
            (left, "attention", "C1s", "attention"),
            (right, "value_norm", "C2o", "|v_1| on the variables"),
            (right, "position_value_norm", "C3s", "|v_2| on the positions"),
        ):
            axes.plot(places, rows.values(quantity), mark, label=label)
        left.set_title("Right answers with and without selection")
        right.set_title("Where the value is carried")
        for axes in (left, right):
            axes.set(xlabel="scale of the start", ylim=(0, None))
            axes.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
            axes.legend()


def _label(point: Point) -> str:
    return f"{point.scale:g}" + ("" if point.groups == 8 else f".D{point.groups}")


def _words(point: Point) -> str:
    return f"{point.groups} groups, " + ("zero" if point.scale == 0 else f"Xavier x {point.scale:g}")


def _position_share(runs: Rows[Point]) -> Array:
    """|v_2| over |v|."""
    positions = runs.values("position_value_norm")
    return np.asarray(positions / np.hypot(runs.values("value_norm"), positions))


def _other_attention(runs: Rows[Point]) -> tuple[Array, Array]:
    """Attention on the other groups from a small start and from zero, in the repeats that have both."""
    return pairs(runs, lambda row: 1 - row.measured["attention"], {"scale": SMALL}, {"scale": 0.0})
