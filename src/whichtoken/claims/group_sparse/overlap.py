"""Two relevant groups, correlated ones, or groups that share variables: what remains of the selection.

Claim   With two relevant groups of one direction attention splits evenly between them; with two directions the value moves
        to the positions and routing by content beats what selection alone could reach; correlated groups change little.
        Where groups share up to half of their variables with a neighbor, the relevant one is selected if the first steps
        favor it, which a formula tells; with more shared it is not.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) treat
        one group and independent variables; what lies beyond is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken import datasets
from whichtoken.checks import check_choice
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, quantity_bars
from whichtoken.claims._runs import group_by, rows_where
from whichtoken.claims.group_sparse._training import TEST_SAMPLES, GroupSizes, measure_selection, train_on_fresh_batches
from whichtoken.lab import Measured, Rows, Share

CASES = ["one group", "two groups, one direction", "two groups, two directions"]
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(GroupSizes):
    case: str = "one group"
    correlation: float = 0.0  # of the same variable in two groups
    shared: int = 0  # variables that a group has in common with the next
    lr: float = 0.05
    steps: int = 500
    batch: int = 200


class Overlap(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        data = _problem(point, rng)
        model = train_on_fresh_batches(point, data, rng)
        X, _ = data.sample(TEST_SAMPLES, rng)
        with torch.no_grad():
            weights = model.attention(torch.from_numpy(X)).mean(dim=(0, 2)).numpy()  # (groups,)
        return {
            **measure_selection(model, data, rng),
            "relevant_attention": weights[data.relevant].sum(),
            "favored": _favored_group(data) == data.relevant[0],
            "larger_share": weights[data.relevant].max() / weights[data.relevant].sum(),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        one, same, different = (rows.where(case=case) for case in CASES)
        alone = one.where(shared=0)
        yield from TABLE.correlated.each(alone, "correlation", "{:g}", "correlation {:g}", "attention")
        sharing = rows_where(one, lambda point: point.shared > 0)
        few, many = (
            rows_where(sharing, lambda point, few=few: (2 * point.shared <= point.group_dim) == few)  # type: ignore[misc]
            for few in (True, False)
        )
        for criterion, some, measure in (
            (TABLE.shared_accuracy, sharing, lambda runs: runs.values("accuracy")),
            (TABLE.few_shared, few, lambda runs: runs.values("attention")[runs.values("favored").astype(bool)]),
            (TABLE.favored, few, lambda runs: Share(runs.values("favored"))),
            (TABLE.misled, many, lambda runs: runs.values("attention")),
        ):
            words = "{} of {} variables shared with each neighbor"
            yield from criterion.each(some, "shared group_dim", "{}", words, measure)
        if same:
            yield TABLE.even_split(same.values("larger_share"), on=same)
            yield TABLE.both_selected(same.values("relevant_attention"), on=same)
        if different:
            yield TABLE.routing(different.values("accuracy"), on=different)
            moved = different.values("position_value_norm") / different.values("value_norm")
            yield TABLE.value_moves(moved, on=different)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield TABLE.mostly(rows.values("relevant_attention"), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantity_bars(
            figure.subplots(),
            {_name(runs[0].point): runs for _, runs in group_by(rows, "case", "correlation", "shared")},
            {
                "accuracy": "accuracy",
                "attention on the relevant groups": "relevant_attention",
                "|v_2|, value on the positions": "position_value_norm",
            },
        )


def _favored_group(data: datasets.GroupSparse) -> int:
    """The group whose score the first steps raise most.

    v_1 starts along the sum of c_j = Cov(x_j, y) over all groups, and the score of group j then grows as <c_j, v_1>.
    """
    weights = np.zeros(data.variables.max() + 1)
    for group, direction in zip(data.relevant, data.directions, strict=True):
        np.add.at(weights, data.variables[group], direction)
    covariances = weights[data.variables]  # (groups, group_dim), up to a factor
    return int(np.argmax(covariances @ covariances.sum(axis=0)))


def _name(point: Point) -> str:
    if point.correlation:
        return f"{point.case}\ncorrelation {point.correlation:g}"
    return f"{point.case}\n{point.shared} shared" if point.shared else point.case.replace(", ", "\n")


def _problem(point: Point, rng: np.random.Generator) -> datasets.GroupSparse:

    check_choice("case", point.case, CASES)
    relevant = [int(group) for group in rng.choice(point.groups, size=2, replace=False)]
    directions = np.linalg.qr(rng.standard_normal((point.group_dim, 2)))[0].T  # orthonormal rows
    groups, vectors = {CASES[0]: (1, 1), CASES[1]: (2, 1), CASES[2]: (2, 2)}[point.case]
    return datasets.GroupSparse(
        point.groups,
        point.group_dim,
        relevant[:groups],
        directions[:vectors],
        correlation=point.correlation,
        shared=point.shared if groups == 1 else 0,
    )
