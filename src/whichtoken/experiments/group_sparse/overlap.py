"""Two relevant groups, correlated ones, or groups that share variables: what remains of the selection.

Claim   With two relevant groups of one direction attention splits evenly between them; with two directions the value moves
        to the positions and routing by content beats what selection alone could reach; correlated groups change little.
        Where groups share up to half of their variables with a neighbour, the relevant one is selected if the first steps
        favour it, which a formula tells; with more shared it is not.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) treat
        one group and independent variables; what lies beyond is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.group_sparse._training import TEST_SAMPLES, measured_selection
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, Share, agreement, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whichtoken.data import GroupSparse

CASES = ["one group", "two groups, one direction", "two groups, two directions"]


@dataclass(frozen=True)
class Point:
    groups: int = 8
    group_dim: int = 4
    case: str = "one group"
    correlation: float = 0.0  # of the same variable in two groups
    shared: int = 0  # variables that a group has in common with the next
    lr: float = 0.05
    steps: int = 500
    batch: int = 200


class Overlap(Experiment[Point]):
    id = "group-sparse/overlap"
    version = 2
    needs = "torch"
    spot = Point(groups=4, shared=1, steps=50, batch=50)
    presets = {
        "quick": (
            Grid(case=CASES, steps=400, seeds=4),
            Grid(correlation=0.7, steps=400, seeds=4),
            Grid(shared=2, steps=300, seeds=24),
        ),
        "full": (
            Grid(shared=[1, 2, 3], seeds=(16, 32)),
            Grid(case=CASES, lr=0.02, steps=1500, batch=200, seeds=(6, 12)),
            Grid(correlation=[0.3, 0.7], lr=0.02, steps=1500, batch=200, seeds=(6, 12)),
        ),
    }
    method_fields = frozenset({"lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.models.group_transformer import GroupTransformer
        from whichtoken.training.group_descent import fresh_batches, gradient_descent

        data = _problem(point, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        gradient_descent(model, fresh_batches(data, point.batch, rng), point.steps, point.lr)
        X, _ = data.sample(TEST_SAMPLES, rng)
        with torch.no_grad():
            weights = model.attention(torch.from_numpy(X)).mean(dim=(0, 2)).numpy()  # (groups,)
        return {
            **measured_selection(model, data, rng),
            "relevant_attention": weights[data.relevant].sum(),
            "favoured": _first_steps_favour(data) == data.relevant[0],
            "larger_share": weights[data.relevant].max() / weights[data.relevant].sum(),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        one = rows.where(case="one group")
        for correlation in one.where(shared=0).levels("correlation"):
            yield at_least(
                f"overlap.correlated.{correlation:g}",
                f"one group, correlation {correlation:g}: attention on the relevant group",
                bound=0.7,
                measured=Mean(one.where(shared=0, correlation=correlation).values("attention")),
            )
        for shared in filter(None, one.levels("shared")):
            yield from _sharing_claims(one.where(shared=shared), shared)
        same, different = rows.where(case=CASES[1]), rows.where(case=CASES[2])
        yield agreement(
            "overlap.even-split",
            "two groups, one direction: share of the group with more attention",
            theory=0.5,
            measured=Mean(same.values("larger_share")),
            tolerance=0.05,
        )
        yield at_least(
            "overlap.both-selected",
            "two groups, one direction: attention on the two relevant groups",
            bound=0.7,
            measured=Mean(same.values("relevant_attention")),
        )
        yield at_least(
            "overlap.routing",
            "two groups, two directions: accuracy, at most 0.75 by selection alone",
            bound=0.75,
            measured=Mean(different.values("accuracy")),
        )
        yield at_least(
            "overlap.value-moves",
            "two groups, two directions: |v_2| over |v_1|",
            bound=0.5,
            measured=Mean(
                different.values("position_value_norm") / different.values("value_norm") if different else []
            ),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        from whichtoken.display.figures import grouped_bars

        cases = [
            rows.where(case=case, correlation=rho, shared=shared)
            for case, rho, shared in dict.fromkeys(
                (row.point.case, row.point.correlation, row.point.shared) for row in rows
            )
        ]
        quantities = {
            "accuracy": "accuracy",
            "attention on the relevant groups": "relevant_attention",
            "|v_2|, value on the positions": "position_value_norm",
        }
        samples = {label: [runs.values(quantity) for runs in cases] for label, quantity in quantities.items()}
        grouped_bars(figure.subplots(), [_name(runs[0].point) for runs in cases], samples)


def _first_steps_favour(data: GroupSparse) -> int:
    """The group whose score the first steps raise most.

    v_1 starts along the sum of c_j = Cov(x_j, y) over all groups, and the score of group j then grows as <c_j, v_1>.
    """
    weights = np.zeros(data.variables.max() + 1)
    for group, direction in zip(data.relevant, data.directions, strict=True):
        np.add.at(weights, data.variables[group], direction)
    covariances = weights[data.variables]  # (groups, group_dim), up to a factor
    return int(np.argmax(covariances @ covariances.sum(axis=0)))


def _sharing_claims(runs: Rows[Point], shared: int) -> Iterator[Claim]:
    what = f"one group, {shared} of {runs[0].point.group_dim} variables shared with each neighbour"
    yield at_least(
        f"overlap.shared-accuracy.{shared}", f"{what}: accuracy", bound=0.85, measured=Mean(runs.values("accuracy"))
    )
    attention, code = runs.values("attention"), f"overlap.shared.{shared}"
    if shared > runs[0].point.group_dim // 2:
        yield at_most(
            code, f"{what}: attention on the relevant group, no longer selected", bound=0.5, measured=Mean(attention)
        )
        return
    favoured = runs.values("favoured").astype(bool)
    yield at_least(
        code,
        f"{what}: attention on the relevant group in the runs whose first steps favour it",
        bound=0.5,
        measured=Mean(attention[favoured]),
    )
    yield at_least(
        f"overlap.shared-favoured.{shared}",
        f"{what}: share of the runs whose first steps favour the relevant group",
        bound=0.2,  # so that the claim before is not about a few lucky runs
        measured=Share(favoured),
    )


def _name(point: Point) -> str:
    if point.correlation:
        return f"{point.case}\ncorrelation {point.correlation:g}"
    return f"{point.case}\n{point.shared} shared" if point.shared else point.case.replace(", ", "\n")


def _problem(point: Point, rng: np.random.Generator) -> GroupSparse:
    from whichtoken.data import GroupSparse

    if point.case not in CASES:
        raise ValueError(f"case={point.case!r} must be one of {', '.join(CASES)}")
    first, second = rng.choice(point.groups, size=2, replace=False)
    directions = np.linalg.qr(rng.standard_normal((point.group_dim, 2)))[0].T  # orthonormal rows
    if point.case == CASES[0]:
        return GroupSparse(
            point.groups, point.group_dim, int(first), directions[0], correlation=point.correlation, shared=point.shared
        )
    directions = directions[:1] if point.case == CASES[1] else directions
    return GroupSparse(
        point.groups, point.group_dim, [int(first), int(second)], directions, correlation=point.correlation
    )
