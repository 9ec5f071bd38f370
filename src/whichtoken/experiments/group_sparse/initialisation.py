"""Selection survives a small random start and is lost from a large one.

Claim   Started from zero, or from Xavier numbers scaled down, training selects the relevant group and v_2, the value on the
        positions, stays small; started from Xavier numbers as they are, it classifies well by another mechanism, which
        carries the value on the positions, and does not select.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) prove
        selection from zero; what a random start does is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.group_sparse._training import random_problem, trained_selection
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


class GroupInitialisation(Experiment[Point]):
    id = "group-sparse/initialisation"
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
        from whichtoken.models.group_transformer import GroupTransformer
        from whichtoken.training.group_descent import fresh_batches, xavier_start

        data = random_problem(point.groups, point.group_dim, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        xavier_start(model, rng, point.scale)
        return trained_selection(model, data, fresh_batches(data, point.batch, rng), point.steps, point.lr, rng)

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for scale in rows.levels("scale"):
            runs, start = rows.where(scale=scale), "zero" if scale == 0 else f"Xavier x {scale:g}"
            yield at_least(
                f"initialisation.selects.{scale:g}",
                f"{start}: mean attention on the relevant group",
                bound=SELECTED,
                measured=Mean(runs.values("attention")),
            )
            yield at_least(
                f"initialisation.accuracy.{scale:g}",
                f"{start}: accuracy, whatever the mechanism",
                bound=0.9,
                measured=Mean(runs.values("accuracy")),
            )
            variables, positions = runs.values("value_norm"), runs.values("position_value_norm")
            share, code = Mean(positions / np.hypot(variables, positions)), f"initialisation.position-value.{scale:g}"
            if scale < 1:
                yield at_most(code, f"{start}: |v_2| over |v|, zero in theory from zero", bound=HALF, measured=share)
            else:
                yield at_least(
                    code, f"{start}: |v_2| over |v|, as the positions carry the value", bound=HALF, measured=share
                )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for row in rows:
            place = rows.levels("scale").index(row.point.scale) + 0.08 * (row.seed % 5 - 2)
            left.plot(place, row.measured["accuracy"], "o", color="C0")
            left.plot(place, row.measured["attention"], "s", color="C1")
            right.plot(place, row.measured["value_norm"], "o", color="C2")
            right.plot(place, row.measured["position_value_norm"], "s", color="C3")
        for axes, names, title in (
            (left, ("accuracy", "attention"), "Right answers with and without selection"),
            (right, ("|v_1| on the variables", "|v_2| on the positions"), "Where the value is carried"),
        ):
            for line, name in zip(axes.lines[:2], names, strict=True):
                line.set_label(name)
            axes.set(title=title, xlabel="scale of the start", ylim=(0, None))
            axes.set_xticks(range(len(rows.levels("scale"))), [f"{scale:g}" for scale in rows.levels("scale")])
            axes.legend()
