"""A fixed training set is memorized before the relevant group is found.

Claim   On a fixed training set the transformer selects the relevant group only when there are several samples per variable;
        with fewer it fits the irrelevant groups instead, and training accuracy says nothing. From a standard (Xavier) start it
        does not select it with many samples either.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) train on
        the population; the fixed training set is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, points_with_errors
from whichtoken.claims._runs import group_by
from whichtoken.claims.group_sparse._training import GroupSizes, random_problem, train_and_measure
from whichtoken.lab import Measured, Rows

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(GroupSizes):
    samples_per_variable: float = 4.0  # n / (d D)
    lr: float = 0.05
    steps: int = 500
    scale: float = 0.0  # of Xavier numbers to start from; 0 is the start of the theory


class FiniteSample(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from itertools import repeat

        import torch

        from whichtoken.theory.group_sparse.descent import xavier_start
        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        n = round(point.samples_per_variable * point.groups * point.group_dim)
        X, y = data.sample(n, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        if point.scale:
            xavier_start(model, rng, point.scale)
        measured = train_and_measure(model, data, repeat((X, y)), point.steps, point.lr, rng)
        with torch.no_grad():
            correct = model(torch.from_numpy(X)).numpy() * y > 0
        return {**measured, "train_accuracy": float(correct.mean()), "samples": n}

    def judge(self, rows: Rows[Point]) -> Checks:
        few, many = (rows.where(groups=8, samples_per_variable=samples, scale=0.0) for samples in (0.5, 16.0))
        excess = few.values("train_accuracy") - few.values("accuracy")
        yield TABLE.memorizes(excess, on=few)
        yield TABLE.unselected(few.values("attention"), on=few)
        yield TABLE.selects(many.values("attention"), on=many)
        yield TABLE.generalizes(many.values("accuracy"), on=many)
        xavier = rows.where(scale=1.0)
        yield TABLE.xavier(xavier.values("attention"), on=xavier)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield TABLE.mostly(rows.values("attention"), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantities = {
            "train_accuracy": "training accuracy",
            "accuracy": "test accuracy",
            "attention": "attention on the relevant group",
        }
        rows = rows.where(scale=0.0)
        panels = figure.subplots(1, len(rows.levels("groups")), squeeze=False)[0]
        for axes, (groups, runs) in zip(panels, group_by(rows, "groups"), strict=True):
            for quantity, label in quantities.items():
                points_with_errors(axes, runs, "samples_per_variable", quantity, label, linestyle="-")
            axes.set(xscale="log", xlabel="samples per variable, n / (dD)", ylim=(0, 1.05))
            axes.set_title(f"D = {groups}, d = {runs[0].point.group_dim}")
        panels[0].legend()
