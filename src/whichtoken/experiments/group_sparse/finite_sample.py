"""A fixed training set is memorised before it is understood.

Claim   On a fixed training set the transformer selects the relevant group only when there are several samples per variable;
        with fewer it fits the irrelevant groups instead, and training accuracy says nothing.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) train on
        the population; the fixed training set is ours.
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

        from whichtoken.models.group_transformer import GroupTransformer

        data = random_problem(point.groups, point.group_dim, rng)
        n = round(point.samples_per_variable * point.groups * point.group_dim)
        X, y = data.sample(n, rng)
        model = GroupTransformer(point.group_dim, point.groups)
        measured = trained_selection(model, data, repeat((X, y)), point.steps, point.lr, rng)
        with torch.no_grad():
            correct = model(torch.from_numpy(X)).numpy() * y > 0
        return {**measured, "train_accuracy": float(correct.mean()), "samples": n}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        small = rows.where(groups=8)
        few, many = small.where(samples_per_variable=0.5), small.where(samples_per_variable=16.0)
        yield at_least(
            "finite-sample.memorises",
            "half a sample per variable: training accuracy minus test accuracy",
            bound=0.1,
            measured=Mean(few.values("train_accuracy") - few.values("accuracy") if few else []),
        )
        yield at_most(
            "finite-sample.unselected",
            "half a sample per variable: attention on the relevant group",
            bound=0.5,
            measured=Mean(few.values("attention")),
        )
        yield at_least(
            "finite-sample.selects",
            "sixteen samples per variable: attention on the relevant group",
            bound=0.7,
            measured=Mean(many.values("attention")),
        )
        yield at_least(
            "finite-sample.generalises",
            "sixteen samples per variable: test accuracy",
            bound=0.95,
            measured=Mean(many.values("accuracy")),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        from whichtoken.display.figures import points_with_errors

        panels = figure.subplots(1, len(rows.levels("groups")), squeeze=False)[0]
        for axes, groups in zip(panels, rows.levels("groups"), strict=True):
            runs = rows.where(groups=groups)
            for quantity, label in (
                ("train_accuracy", "training accuracy"),
                ("accuracy", "test accuracy"),
                ("attention", "attention on the relevant group"),
            ):
                points_with_errors(axes, runs, "samples_per_variable", quantity, label, linestyle="-")
            axes.set(xscale="log", xlabel="samples per variable, n / (dD)", ylim=(0, 1.05))
            axes.set_title(f"D = {groups}, d = {runs[0].point.group_dim}")
        panels[0].legend()
