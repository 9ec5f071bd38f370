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

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure
from whichtoken.claims._runs import Array, each_point, pairs, rows_where
from whichtoken.claims.group_sparse._training import GroupSizes, random_problem, train_and_measure
from whichtoken.lab import Measured, Rows

SMALL, XAVIER = 0.1, 1.0  # scales of a small and of a standard start; in between it depends on the run
FEW, MANY = 8, 16  # groups up to which a small start is small enough, and for which it is not

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(GroupSizes):
    scale: float = 0.0  # of the Xavier numbers; 0 is the start of the theory
    lr: float = 0.05
    steps: int = 500
    batch: int = 200


class GroupInitialization(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.group_sparse.descent import fresh_batches, xavier_start
        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        xavier_start(model, rng, point.scale)
        return train_and_measure(model, data, fresh_batches(data, point.batch, rng), point.steps, point.lr, rng)

    def judge(self, rows: Rows[Point]) -> Checks:
        small = rows_where(rows, lambda point: point.scale <= (SMALL if point.groups <= FEW else 0.0))
        standard = rows_where(rows, lambda point: point.scale >= XAVIER and point.groups >= FEW)
        for criterion, some, measure in (
            (TABLE.selects, small, lambda runs: runs.values("attention")),
            (TABLE.unselected, standard, lambda runs: runs.values("attention")),
            (TABLE.accuracy, rows, lambda runs: runs.values("accuracy")),
            (TABLE.position_value, small, _position_share),
            (TABLE.value_moves, standard, _position_share),
        ):
            for point, runs in each_point(some):
                yield criterion.part(_label(point), _words(point), measure(runs), on=runs)
        started = rows_where(rows, lambda point: point.scale in (0.0, SMALL))
        few, many = rows_where(started, lambda point: point.groups <= FEW), started.where(groups=MANY)
        yield from TABLE.law.each(few, "groups", "D{}", "{} groups", lambda runs: np.divide(*_other_attention(runs)))
        yield TABLE.many_groups(-np.subtract(*_other_attention(many)), on=many)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield TABLE.mostly(rows.values("attention"), on=rows)

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
