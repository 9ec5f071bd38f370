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

from whichtoken.claims._checks import Above, Below, Checks, pool_parts
from whichtoken.claims._figures import Figure, points_with_errors
from whichtoken.claims._runs import group_by
from whichtoken.claims.group_sparse import _training as training
from whichtoken.claims.group_sparse._training import GroupSizes, random_problem, train_and_measure
from whichtoken.lab import Experiment, Grid, Measured, Rows

MEMORIZES = Above("finite-sample.memorizes", 0.1, "training accuracy minus test accuracy")
UNSELECTED = Below("finite-sample.unselected", 0.5, "attention on the relevant group")
SELECTS = Above("finite-sample.selects", 0.7, "attention on the relevant group")
GENERALIZES = Above("finite-sample.generalizes", 0.95, "test accuracy")


FEW_SAMPLES = Above(
    "finite-sample.few",
    None,
    "half a sample per variable: the training set is memorized and the relevant group is not selected",
)
MANY_SAMPLES = Above(
    "finite-sample.many", None, "sixteen samples per variable: the relevant group is selected and the model generalizes"
)
MOSTLY = Above("finite-sample.mostly", training.HALF, "attention on the relevant group")
XAVIER = Below(
    "finite-sample.xavier",
    0.5,
    "sixteen samples per variable, standard (Xavier) start: attention on the relevant group",
)


@dataclass(frozen=True)
class Point(GroupSizes):
    samples_per_variable: float = 4.0  # n / (d D)
    lr: float = 0.05
    steps: int = 500
    scale: float = 0.0  # of Xavier numbers to start from; 0 is the start of the theory


class FiniteSample(Experiment[Point]):
    id = "group-sparse/finite-sample"
    version = 2
    needs = "torch"
    spot = Point(groups=4, samples_per_variable=2.0, steps=50)
    presets = {
        "quick": (Grid(samples_per_variable=[0.5, 16.0], seeds=4),),
        "full": (
            Grid(samples_per_variable=[0.5, 16.0], steps=600, seeds=(6, 20)),
            Grid(samples_per_variable=16.0, scale=1.0, steps=600, seeds=(6, 24)),
            Grid(samples_per_variable=[1.0, 2.0, 4.0, 8.0], steps=600, seeds=5),  # the picture
        ),
        "map": (Grid(samples_per_variable=16.0, **training.MAP),),
    }
    ranges = {"samples_per_variable": (0.25, 32.0), "scale": (0.0, 1.0)}
    method_fields = frozenset({"lr", "steps", "scale"})

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

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        few, many = (rows.where(groups=8, samples_per_variable=samples, scale=0.0) for samples in (0.5, 16.0))
        excess = few.values("train_accuracy") - few.values("accuracy")
        yield FEW_SAMPLES.pool([MEMORIZES(excess, on=few), UNSELECTED(few.values("attention"), on=few)])
        yield MANY_SAMPLES.pool(
            [SELECTS(many.values("attention"), on=many), GENERALIZES(many.values("accuracy"), on=many)]
        )
        xavier = rows.where(scale=1.0)
        yield XAVIER(xavier.values("attention"), on=xavier)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield MOSTLY(rows.values("attention"), on=rows)

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
