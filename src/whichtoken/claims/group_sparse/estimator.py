"""The attention and the selection of the estimator follow the population law.

Claim   With many samples, the attention that `GroupClassifier(attention="full")` gives to the relevant group is that of
        the population law after as many steps; with its default settings it keeps the relevant group alone.
Source  The law: Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv
        2504.08638); the estimator and the finite samples are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Above, AtMost, Checks, Equals, Predictions
from whichtoken.claims._figures import Figure, points_with_errors
from whichtoken.claims._runs import group_by, rows_where, share_of_runs
from whichtoken.claims.group_sparse._training import random_problem
from whichtoken.lab import Experiment, Grid, Measured, Predicted, Rows

MANY = 128  # samples per variable at which the law of infinitely many is compared

ATTENTION = Equals(
    "estimator.attention",
    1.0,
    f"attention on the relevant group over the population law, {MANY} samples per variable",
    tolerance=0.03,
)
FEW = AtMost(
    "estimator.few-samples",
    1.0,
    "attention on the relevant group over the population law, fewer samples: groups that noise favors take some of it",
)
SELECTS = Above(
    "estimator.selects",
    0.5,
    f"share of runs in which the default settings keep the relevant group alone, {MANY} samples per variable",
)


@dataclass(frozen=True)
class Point:
    groups: int = 4
    group_dim: int = 4
    samples_per_variable: float = 16.0  # n / (d D)


class GroupClassifierLaw(Experiment[Point]):
    id = "group-sparse/estimator"
    version = 3
    spot = Point(samples_per_variable=2.0)
    presets = {
        "quick": (Grid(samples_per_variable=float(MANY), seeds=6), Grid(samples_per_variable=4.0, seeds=5)),
        "full": (Grid(groups=[4, 6], samples_per_variable=[4.0, float(MANY)], seeds=8),),
    }

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken import GroupClassifier

        data = random_problem(point.groups, point.group_dim, rng)
        X, y = data.sample(round(point.samples_per_variable * point.groups * point.group_dim), rng)
        flat, ids = X.reshape(len(X), -1), np.repeat(np.arange(point.groups), point.group_dim)
        full = GroupClassifier(ids, attention="full", group_map="linear", n_groups=1, C=1.0, random_state=0).fit(
            flat, y
        )
        default = GroupClassifier(ids, random_state=0).fit(flat, y)
        relevant = int(data.relevant[0])
        return {
            "attention": float(full.attention_[relevant]),
            "default_attention": float(default.attention_[relevant]),
            "kept_it_alone": float(default.selected_groups_ == [relevant]),
        }

    def predict(self, point: Point) -> Predictions:
        from whichtoken.estimators.groups.selection import STEPS
        from whichtoken.theory.group_sparse import default_learning_rate, population_map

        law = population_map(groups=point.groups, lr=default_learning_rate(groups=point.groups), steps=STEPS)
        return {"attention": Predicted(float(law.attention[-1]))}

    def judge(self, rows: Rows[Point]) -> Checks:
        many = rows.where(samples_per_variable=float(MANY))
        few = rows_where(rows, lambda point: point.samples_per_variable < MANY)
        yield ATTENTION(_over_law(many), on=many)
        yield FEW(_over_law(few), on=few)
        yield SELECTS(share_of_runs(many, "kept_it_alone"), on=many)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for groups, runs in group_by(rows, "groups"):
            points_with_errors(axes, runs, "samples_per_variable", "attention", f"{groups} groups", linestyle="-")
            law = runs.predicted("attention")
            if law is not None:
                axes.axhline(law.value, ls="--", color="grey")
        axes.set(xscale="log", xlabel="samples per variable, n / (dD)", title="Attention on the relevant group")
        axes.legend()


def _over_law(rows: Rows[Point]) -> list[float]:
    return [row.measured["attention"] / row.predicted["attention"].value for row in rows if row.predicted]
