"""Attention concentrates on the relevant group, whatever the query.

Claim   After training, every column of the attention matrix has its weight on the row of the relevant group. The weight
        that it lacks there is claimed to be exponentially small in the number of groups D after D^3/lr steps; at a constant
        learning rate it is found to fall as a power of the step, to grow with D at equal loss, and to fall as a power of D
        after D^3/lr steps.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 3.2: attention on the relevant group of at least 1 - exp(-Theta(D)); the power law is derived here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from whichtoken.claims._shared import Checks, Figure, Predictions, above, as_predicted, below, checks, group_by, near
from whichtoken.claims.group_sparse import _training as training
from whichtoken.lab import Exact, Experiment, Grid, Mean, Measured, Predicted, Rows, log_slope

MAP_SIZES = (4, 8, 16, 24)  # of the exact map after as many steps as Theorem 3.2 takes
EQUAL_LOSS = 0.02  # at which models of different sizes are compared
BEND = "fall of log(1 - S) per group, of the largest two D over the smallest two ({}); 1 if 1 - S = exp(-Theta(D))"


@dataclass(frozen=True)
class Point:
    groups: int = 8
    group_dim: int = 4
    relevant: int = 2
    lr: float = 0.02
    steps: int = 1500
    # population: the exact map on positions and values; theorem: the whole model for D^3/lr steps, on mirrored batches;
    # theorem-map: the exact map for as many
    method: Literal["batches", "population", "theorem", "theorem-map"] = "batches"
    batch: int = 300


def _late_grid(groups: int) -> Grid:
    """The exact map, far into the late phase."""
    return Grid(method="population", groups=groups, lr=0.8 / groups, steps=8000, seeds=1)


def _theorem_map_grid(groups: int) -> Grid:
    """The exact map, for the number of steps of Theorem 3.2."""
    lr = 0.8 / groups
    return Grid(method="theorem-map", groups=groups, lr=lr, steps=round(groups**3 / lr), seeds=1)


def _theorem_grid(groups: int, seeds: int | tuple[int, int]) -> Grid:
    """All blocks trained, for the number of steps of Theorem 3.2."""
    lr = training.RATES[groups]
    return Grid(method="theorem", groups=groups, lr=lr, steps=2 * round(groups**3 / lr / 2), batch=200, seeds=seeds)


class AttentionMap(Experiment[Point]):
    id = "group-sparse/attention-map"
    version = 3
    needs = "torch"
    presets = {
        "quick": (
            Grid(lr=0.05, steps=600, seeds=4),
            _late_grid(8), _late_grid(16), _late_grid(32),
            *map(_theorem_map_grid, MAP_SIZES[:3]),
            _theorem_grid(4, seeds=8), _theorem_grid(6, seeds=8),
        ),
        "full": (
            Grid(seeds=(5, 10)),
            Grid(groups=16, group_dim=8, relevant=5, lr=0.01, steps=3000, seeds=(4, 8)),
            _late_grid(8), _late_grid(16), _late_grid(32), _late_grid(64),
            *map(_theorem_map_grid, MAP_SIZES),
            *(_theorem_grid(groups, seeds=(5, 20)) for groups in training.RATES),
        ),
    }  # fmt: skip
    method_fields = frozenset({"method", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.method in ("population", "theorem-map"):
            return _population(point)
        if point.method == "batches":
            return _train_on_batches(point, rng)
        _, half, end = training.train_all_blocks(point, rng, every=point.steps // 2)
        power = np.log2(end.leakage / half.leakage)
        return {"leakage": end.leakage, "power": power, "alpha": end.alpha, "loss": end.loss}

    def predict(self, point: Point) -> Predictions:
        from whichtoken.theory import group_sparse

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
        for groups, runs in group_by(rows.where(method="batches"), "groups"):
            yield from checks(
                "attention-map",
                ("attention", "mean attention on the relevant group against the symmetry-reduced map",
                 as_predicted(runs, "attention", absolute=0.03), runs.values("attention")),
                ("every-query", "mean attention on the relevant group of the query that attends to it least",
                 above(0.5), runs.values("weakest_query")),
                ("alike", "difference between the queries", below(0.05), runs.values("query_spread")),
                where=f"{groups} groups", ending=f".D{groups}",
            )  # fmt: skip
        exact = rows.where(method="population")
        growth = log_slope(exact, "groups", "leakage_at_loss").values
        yield from checks(
            "attention-map",
            *((f"power.D{row.point.groups}",
               f"{row.point.groups} groups, W_11 frozen: power of the step in the attention on the other groups",
               near(-2 / 3, within=0.03), Exact(row.measured["power"])) for row in exact),
            ("exponential",
             f"W_11 frozen: power of D in the attention on the other groups at a loss of {EQUAL_LOSS:g}; exponentially small"
             " means below any negative power",
             below(-1.0), Exact(growth[0]) if len(growth) else Mean([])),
        )  # fmt: skip
        yield from _theorem_checks(rows.where(method="theorem"))
        frozen = rows.where(method="theorem-map")
        sizes = frozen.levels("groups")
        if len(sizes) >= 3:
            listed = ", ".join(map(str, sizes))
            yield from checks(
                "attention-map",
                ("theorem-map-power",
                 f"power of D ({listed}) in the attention on the other groups against the power law, which tends to -7/3",
                 near(_power_law(sizes), within=0.1), Exact(log_slope(frozen, "groups", "leakage").values[0])),
                ("theorem-map-exponential", BEND.format(listed),
                 near(1.0, within=0.1), Exact(frozen.per_seed(_bend)[0])),
                where="exact map, W_11 frozen, after D^3/lr steps",
            )  # fmt: skip

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
    from whichtoken.theory import group_sparse

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

    from whichtoken.datasets import GroupSparse
    from whichtoken.theory.group_sparse.transformer import selection

    direction = rng.standard_normal(point.group_dim)
    data = GroupSparse(point.groups, point.group_dim, point.relevant, direction)
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


def _theorem_checks(rows: Rows[Point]) -> Checks:
    """Attention on the other groups after D^3/lr steps of the real model, no block frozen."""
    trained, sizes = "all blocks trained for D^3/lr steps", rows.levels("groups")
    yield from checks(
        "attention-map.theorem",
        *((f"D{groups}", f"{groups} groups, {trained}: attention on the other groups against the symmetry-reduced map",
           # runs stray by 1 to 3 %
           as_predicted(runs, "leakage", relative=0.1), runs.values("leakage"))
          for groups, runs in group_by(rows, "groups")),
    )  # fmt: skip
    if len(sizes) < 2:
        return
    yield from checks(
        "attention-map",
        ("theorem-step-power",
         "all blocks trained: power of the step in the attention on the other groups, over the second half of D^3/lr steps",
         near(-2 / 3, within=0.067), rows.seed_means("power")),
        ("theorem-power",
         f"{trained}: power of D in the attention on the other groups against the symmetry-reduced map; the power law with W_11"
         f" frozen gives {_power_law(sizes):.2f} at these D and tends to -7/3",
         near(training.predicted_power(rows, "leakage"), within=0.2), log_slope(rows, "groups", "leakage")),
    )  # fmt: skip
    if len(sizes) >= 3:
        sentence = f"{trained}: {BEND.format(', '.join(map(str, sizes)))}"
        bend = ("theorem-exponential", sentence, near(1.0, within=0.1), rows.per_seed(_bend))
        yield from checks("attention-map", bend)


def _power_law(sizes: list[int]) -> float:
    from whichtoken.theory import group_sparse

    leakage = [group_sparse.late_phase(groups=D, lr=0.01, step=D**3 / 0.01).leakage for D in sizes]
    return float(np.polyfit(np.log(sizes), np.log(leakage), 1)[0])


def _bend(repeat: Rows[Point]) -> float | None:
    """Slope of log(1 - S) at the largest D over that at the smallest: 1 for an exponential, less for a power."""
    found = sorted((row.point.groups, np.log(row.measured["leakage"])) for row in repeat)
    if len(found) < 3:
        return None
    groups, logs = np.array(found).T
    falls = np.diff(logs) / np.diff(groups)
    return float(falls[-1] / falls[0])
