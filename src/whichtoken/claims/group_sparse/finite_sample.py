"""A fixed training set is memorized before the relevant group is found.

Claim   On a fixed training set the transformer selects the relevant group only when there are several samples per variable;
        with fewer it fits the irrelevant groups instead, and training accuracy says nothing.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) train on
        the population; the fixed training set is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._shared import Checks, Figure, above, below, checks, group_by
from whichtoken.claims.group_sparse._training import random_problem, train_and_measure
from whichtoken.display.figures import points_with_errors
from whichtoken.lab import Experiment, Grid, Measured, Rows


@dataclass(frozen=True)
class Point:
    groups: int = 8
    group_dim: int = 4
    samples_per_variable: float = 4.0  # n / (d D)
    lr: float = 0.05
    steps: int = 500


class FiniteSample(Experiment[Point]):
    id = "group-sparse/finite-sample"
    version = 2
    needs = "torch"
    spot = Point(groups=4, samples_per_variable=2.0, steps=50)
    presets = {
        "quick": (Grid(samples_per_variable=[0.5, 16.0], seeds=5),),
        "full": (
            Grid(samples_per_variable=[0.5, 16.0], steps=600, seeds=(5, 20)),
            Grid(samples_per_variable=[1.0, 2.0, 4.0, 8.0], steps=600, seeds=5),  # the picture
        ),
    }
    method_fields = frozenset({"lr", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from itertools import repeat

        import torch

        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        n = round(point.samples_per_variable * point.groups * point.group_dim)
        X, y = data.sample(n, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        measured = train_and_measure(model, data, repeat((X, y)), point.steps, point.lr, rng)
        with torch.no_grad():
            correct = model(torch.from_numpy(X)).numpy() * y > 0
        return {**measured, "train_accuracy": float(correct.mean()), "samples": n}

    def judge(self, rows: Rows[Point]) -> Checks:
        few, many = (rows.where(groups=8, samples_per_variable=samples) for samples in (0.5, 16.0))
        yield from checks(
            "finite-sample",
            ("memorizes", "training accuracy minus test accuracy",
             above(0.1), few.values("train_accuracy") - few.values("accuracy")),
            ("unselected", "attention on the relevant group", below(0.5), few.values("attention")),
            where="half a sample per variable",
        )  # fmt: skip
        yield from checks(
            "finite-sample",
            ("selects", "attention on the relevant group", above(0.7), many.values("attention")),
            ("generalizes", "test accuracy", above(0.95), many.values("accuracy")),
            where="sixteen samples per variable",
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantities = {
            "train_accuracy": "training accuracy",
            "accuracy": "test accuracy",
            "attention": "attention on the relevant group",
        }
        panels = figure.subplots(1, len(rows.levels("groups")), squeeze=False)[0]
        for axes, (groups, runs) in zip(panels, group_by(rows, "groups"), strict=True):
            for quantity, label in quantities.items():
                points_with_errors(axes, runs, "samples_per_variable", quantity, label, linestyle="-")
            axes.set(xscale="log", xlabel="samples per variable, n / (dD)", ylim=(0, 1.05))
            axes.set_title(f"D = {groups}, d = {runs[0].point.group_dim}")
        panels[0].legend()
