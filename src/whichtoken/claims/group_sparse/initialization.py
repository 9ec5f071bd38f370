"""Selection survives a small random start and is lost from a large one.

Claim   Started from zero, or from Xavier numbers scaled down, training selects the relevant group and v_2, the value on the
        positions, stays small; started from Xavier numbers as they are, it classifies well by another mechanism, which
        carries the value on the positions, and does not select.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) prove
        selection from zero; what a random start does is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._shared import Checks, Figure, above, below, checks, group_by
from whichtoken.claims.group_sparse._training import random_problem, train_and_measure
from whichtoken.lab import Experiment, Grid, Measured, Rows

HALF = 0.5  # |v_2| over |v| up to which the value counts as read from the variables
SELECTED = 0.7  # mean attention from which on a group counts as selected


@dataclass(frozen=True)
class Point:
    groups: int = 8
    group_dim: int = 4
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
            Grid(scale=[0.0, 0.1], seeds=(4, 16)),
            Grid(scale=1.0, seeds=10),  # large starts end in one of two ways
        ),
        "full": (Grid(scale=[0.0, 0.03, 0.1, 0.3, 1.0], lr=0.02, steps=1500, batch=200, seeds=(6, 24)),),
    }
    method_fields = frozenset({"scale", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.group_sparse.descent import fresh_batches, xavier_start
        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        xavier_start(model, rng, point.scale)
        return train_and_measure(model, data, fresh_batches(data, point.batch, rng), point.steps, point.lr, rng)

    def judge(self, rows: Rows[Point]) -> Checks:
        for scale, runs in group_by(rows, "scale"):
            variables, positions = runs.values("value_norm"), runs.values("position_value_norm")
            value = ("|v_2| over |v|, zero in theory from zero", below(HALF))
            if scale >= 1:
                value = ("|v_2| over |v|, as the positions carry the value", above(HALF))
            yield from checks(
                "initialization",
                ("selects", "mean attention on the relevant group", above(SELECTED), runs.values("attention")),
                ("accuracy", "accuracy, whatever the mechanism", above(0.9), runs.values("accuracy")),
                ("position-value", *value, positions / np.hypot(variables, positions)),
                where="zero" if scale == 0 else f"Xavier x {scale:g}",
                ending=f".{scale:g}",
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
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
