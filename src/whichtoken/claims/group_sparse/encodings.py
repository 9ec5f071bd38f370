"""Any orthogonal encoding of the positions works; without an encoding nothing is selected.

Claim   For orthogonal positional encodings training depends on their norm alone; encodings that are not orthogonal degrade the
        selection without breaking it, learning them repairs it, and without any the attention stays uniform. The accuracy
        is what the attention on the relevant group accounts for.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) assume
        orthogonal sines; the invariance is derived here, the other families are measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, quantity_bars
from whichtoken.claims._runs import Array, group_by, rows_where
from whichtoken.claims.group_sparse._training import (
    TEST_SAMPLES,
    GroupSizes,
    first_point,
    random_problem,
    train_and_measure,
)
from whichtoken.lab import Measured, Rows

AT_RIGHT_ANGLES = ("sine", "one-hot", "one-hot-scaled")

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(GroupSizes):
    encoding: str = "sine"  # a family; one-hot-scaled has the norm of the sines; learned-F trains F along
    lr: float = 0.05
    steps: int = 500
    batch: int = 200


class Encodings(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.claims.group_sparse._layers import LayeredTransformer
        from whichtoken.theory.group_sparse.descent import descend_on_batches, fresh_batches
        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        encodings = _encodings(point, rng)
        batches = fresh_batches(data, point.batch, rng)
        if not point.encoding.startswith("learned"):
            plain = GroupTransformer(point.group_dim, point.groups, encodings)
            return train_and_measure(plain, data, batches, point.steps, point.lr, rng)
        # all other parameters start at zero, whatever the numbers are that they would be a multiple of
        model = LayeredTransformer(point.group_dim, point.groups, rng=np.random.default_rng(0))
        model.encodings = torch.nn.Parameter(torch.from_numpy(encodings))
        descend_on_batches(model, batches, torch.optim.SGD(model.parameters(), lr=point.lr), point.steps)
        X, y = map(torch.from_numpy, data.sample(TEST_SAMPLES, rng))
        with torch.no_grad():
            (weights,) = model.attend(X)[1]
            received = weights[:, int(data.relevant[0])]
            return {"accuracy": float((y * model(X) > 0).double().mean()), "attention": float(received.mean())}

    def judge(self, rows: Rows[Point]) -> Checks:
        encoded = rows_where(rows, lambda point: point.encoding != "none")
        for criterion, orthogonal in ((TABLE.orthogonal, True), (TABLE.selects, False)):
            some = rows_where(encoded, lambda point, right=orthogonal: (point.encoding in AT_RIGHT_ANGLES) is right)  # type: ignore[misc]
            yield from criterion.each(some, "encoding", "{}", "{}", "attention")
        yield from TABLE.accuracy.each(encoded, "encoding", "{}", "{}", _unexplained_accuracy)
        if without := rows.where(encoding="none"):
            groups = first_point(without).groups
            yield TABLE.uniform(without.values("attention"), on=without, value=1 / groups)
            uniform = float(_accuracy_of(1 / groups, groups))
            yield TABLE.uniform_accuracy(without.values("accuracy"), on=without, value=uniform)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield TABLE.selects(rows.values("attention"), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantities = {"accuracy": "accuracy", "attention on the relevant group": "attention"}
        quantity_bars(figure.subplots(), dict(group_by(rows, "encoding")), quantities)


def _unexplained_accuracy(runs: Rows[Point]) -> Array:
    return np.array(
        [row.measured["accuracy"] - _accuracy_of(row.measured["attention"], row.point.groups) for row in runs]
    )


def _accuracy_of(attention: Any, groups: int) -> Any:
    """Accuracy of v_1 along v* and attention that is the same for every sample: an angle between two normal variables."""
    return 0.5 + np.arctan(attention * np.sqrt(groups - 1) / (1 - attention)) / np.pi


def _encodings(point: Point, rng: np.random.Generator) -> Array:
    from whichtoken.theory.group_sparse.encodings import positional_encodings

    family = point.encoding.removeprefix("learned-")
    if family == "one-hot-scaled":
        return positional_encodings("one-hot", point.groups, norm2=(point.groups + 1) / 2)
    # a stream of its own: the families with random numbers must not shift the data of the others
    return positional_encodings(family, point.groups, rng=rng.spawn(1)[0])
