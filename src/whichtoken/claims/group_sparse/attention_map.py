"""Attention concentrates on the relevant group, whatever the query.

Claim   After training, every column of the attention matrix has its weight on the row of the relevant group. At a learning rate
        that falls as 1/D, the weight that it lacks there falls as a power of the step, and as a power of D after D^3/lr steps;
        what a large constant rate does is the subject of `learning-rate`.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 3.2: attention on the relevant group of at least 1 - exp(-Theta(D)), at a learning rate that was not read; the
        power laws are derived here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from whichtoken import datasets
from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions
from whichtoken.claims._figures import Figure
from whichtoken.claims._runs import group_by
from whichtoken.claims.group_sparse import _training as training
from whichtoken.lab import Exact, Measured, Predicted, Rows, log_slope
from whichtoken.theory import group_sparse

EQUAL_LOSS = 0.02  # at which models of different sizes are compared

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(training.GroupSizes):
    relevant: int = 2
    lr: float = 0.02
    steps: int = 1500
    # population: the exact map on positions and values; theorem: the whole model for D^3/lr steps, on mirrored batches;
    # theorem-map: the exact map for as many
    method: Literal["batches", "population", "theorem", "theorem-map"] = "batches"
    batch: int = 300


class AttentionMap(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.method in ("population", "theorem-map"):
            return _population(point)
        if point.method == "batches":
            return _train_on_batches(point, rng)
        _, half, end = training.train_all_blocks(point, rng, every=point.steps // 2)
        power = np.log2(end.leakage / half.leakage)
        return {"leakage": end.leakage, "power": power, "alpha": end.alpha, "loss": end.loss}

    def predict(self, point: Point) -> Predictions:

        if point.method == "population":
            law = group_sparse.late_phase(groups=point.groups, lr=point.lr, step=training.late_checkpoints(point.steps))
            return {"leakage_curve": Predicted(law.leakage)}
        if point.method == "theorem-map":
            return {}
        if point.method == "theorem":
            return {"leakage": Predicted(training.reduced_leakage(point))}
        theory = training.symmetric_path(point, samples=300)
        # the end is slow: fifty steps lose less than noise
        return {"attention": Predicted(theory.attention[-50:].mean())}

    def judge(self, rows: Rows[Point]) -> Checks:
        trained, by_groups = rows.where(method="batches"), ("groups", "D{}", "{} groups")
        yield from TABLE.attention.each(trained, *by_groups, "attention", predicted="attention", absolute=0.03)
        yield from TABLE.every_query.each(trained, *by_groups, "weakest_query")
        yield from TABLE.alike.each(trained, *by_groups, "query_spread")
        theorem, frozen = rows.where(method="theorem"), rows.where(method="theorem-map")
        # runs stray by 1 to 3 %
        yield from TABLE.theorem.each(theorem, *by_groups, "leakage", predicted="leakage", relative=0.1)
        population, power = rows.where(method="population"), partial(training.exact, name="power")
        yield from TABLE.power.each(population, "groups", "D{}", "{} groups, W_11 frozen", power)
        # runs stray by a few percent
        words = "all blocks trained, over the second half of D^3/lr steps"
        yield TABLE.power.part("theorem", words, theorem.seed_means("power"), on=theorem, tolerance=0.067)
        if len(frozen.levels("groups")) < 3:
            return
        slope, law = log_slope(frozen, "groups", "leakage").values[0], _power_law(frozen.levels("groups"))
        words = f"exact map, W_11 frozen, D = {_group_counts(frozen)}, against the power law, which tends to -7/3"
        yield TABLE.groups_power.part("map", words, Exact(slope), on=frozen, value=law, tolerance=0.1)
        if len(theorem.levels("groups")) >= 2:
            words = f"all blocks trained, D = {_group_counts(theorem)}, against the symmetry-reduced map"
            predicted, found = training.predicted_power(theorem, "leakage"), log_slope(theorem, "groups", "leakage")
            yield TABLE.groups_power.part("all-blocks", words, found, on=theorem, value=predicted, tolerance=0.2)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for groups, runs in list(group_by(rows.where(method="batches"), "groups"))[:1]:
            image = left.imshow(np.mean(list(runs.values("map")), axis=0), vmin=0, vmax=1, cmap="viridis")
            figure.colorbar(image, ax=left)
            left.set(title=f"Mean attention after training, {groups} groups", xlabel="query group", ylabel="key group")
            left.grid(False)
        training.draw_late_phase(
            rows.where(method="population"), right, "leakage_curve", lambda point: f"{point.groups} groups"
        )
        right.set(title="Attention on the other groups, power law dashed", ylabel="share of the attention")


def _population(point: Point) -> Measured:

    trajectory = group_sparse.population_map(groups=point.groups, lr=point.lr, steps=point.steps)
    leakage = trajectory.leakage
    if point.method == "theorem-map":
        return {"leakage": leakage[-1], "loss": trajectory.loss[-1]}
    reached = np.flatnonzero(trajectory.loss <= EQUAL_LOSS)
    if not reached.size:
        raise ValueError(f"steps={point.steps} must be enough to reach a loss of {EQUAL_LOSS:g}")
    return {
        "leakage": leakage[-1],
        "leakage_at_loss": leakage[reached[0]],
        "power": np.log2(leakage[point.steps] / leakage[point.steps // 2]),
        "steps": training.late_checkpoints(point.steps),
        "leakage_curve": leakage[training.late_checkpoints(point.steps)],
    }


def _train_on_batches(point: Point, rng: np.random.Generator) -> Measured:
    import torch

    from whichtoken.theory.group_sparse.transformer import selection

    direction = rng.standard_normal(point.group_dim)
    data = datasets.GroupSparse(point.groups, point.group_dim, point.relevant, direction)
    model = training.train_on_fresh_batches(point, data, rng)
    X, y = map(torch.from_numpy, data.sample(2000, rng))
    mean_map = model.attention(X).mean(dim=0).detach().numpy()  # (key, query)
    state = selection(model, X, y, point.relevant, direction)
    received = mean_map[point.relevant]
    same = ("attention", "min_attention", "accuracy", "position_value_norm", "block_norms")
    return {
        "map": mean_map,
        "weakest_query": received.min(),
        "query_spread": np.ptp(received),
        **{name: getattr(state, name) for name in same},
    }


def _group_counts(rows: Rows[Point]) -> str:
    return ", ".join(map(str, rows.levels("groups")))


def _power_law(sizes: list[int]) -> float:

    leakage = [group_sparse.late_phase(groups=D, lr=0.01, step=D**3 / 0.01).leakage for D in sizes]
    return float(np.polyfit(np.log(sizes), np.log(leakage), 1)[0])
