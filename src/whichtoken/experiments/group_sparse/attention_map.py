"""Attention concentrates on the relevant group, whatever the query.

Claim   After training, every column of the attention matrix has its weight on the row of the relevant group. The weight
        that it lacks there is claimed to be exponentially small in the number of groups D after D^3/lr steps; at a constant
        learning rate it is found to fall as a power of the step, to grow with D at equal loss, and to fall as a power of D
        after D^3/lr steps.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 3.2: attention on the relevant group of at least 1 - exp(-Theta(D)); the power law is derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from whichtoken.experiments.group_sparse._training import (
    RATES,
    late_checkpoints,
    predicted_power,
    reduced_leakage,
    train_all_blocks,
)
from whichtoken.lab import (
    Claim,
    Exact,
    Experiment,
    Grid,
    Mean,
    Measured,
    Predicted,
    Rows,
    agreement,
    at_least,
    at_most,
    log_slope,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP_SIZES = (4, 8, 16, 24)  # of the exact map after as many steps as Theorem 3.2 takes
EQUAL_LOSS = 0.02  # at which models of different sizes are compared


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


def _late(groups: int) -> Grid:
    """The exact map, far into the late phase."""
    return Grid(method="population", groups=groups, lr=0.8 / groups, steps=8000, seeds=1)


def _map_at_theorem_scale(groups: int) -> Grid:
    """The exact map, for the number of steps of Theorem 3.2."""
    lr = 0.8 / groups
    return Grid(method="theorem-map", groups=groups, lr=lr, steps=round(groups**3 / lr), seeds=1)


def _at_theorem_scale(groups: int, seeds: int | tuple[int, int]) -> Grid:
    """All blocks trained, for the number of steps of Theorem 3.2."""
    lr = RATES[groups]
    return Grid(method="theorem", groups=groups, lr=lr, steps=2 * round(groups**3 / lr / 2), batch=200, seeds=seeds)


class AttentionMap(Experiment[Point]):
    id = "group-sparse/attention-map"
    version = 3
    needs = "torch"
    presets = {
        "quick": (
            Grid(lr=0.05, steps=600, seeds=4),
            _late(8), _late(16), _late(32),
            *map(_map_at_theorem_scale, MAP_SIZES[:3]),
            _at_theorem_scale(4, seeds=8), _at_theorem_scale(6, seeds=8),
        ),
        "full": (
            Grid(seeds=(5, 10)),
            Grid(groups=16, group_dim=8, relevant=5, lr=0.01, steps=3000, seeds=(4, 8)),
            _late(8), _late(16), _late(32), _late(64),
            *map(_map_at_theorem_scale, MAP_SIZES),
            *(_at_theorem_scale(groups, seeds=(5, 20)) for groups in RATES),
        ),
    }  # fmt: skip
    method_fields = frozenset({"method", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.method == "population":
            return _population(point)
        if point.method == "theorem-map":
            return _at_theorem_steps(point)
        return _after_theorem_steps(point, rng) if point.method == "theorem" else _trained(point, rng)

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        from whichtoken.theory import group_sparse

        if point.method == "population":
            law = group_sparse.late_phase(groups=point.groups, lr=point.lr, step=late_checkpoints(point.steps))
            return {"leakage_curve": Predicted(law.leakage)}
        if point.method == "theorem-map":
            return {}
        if point.method == "theorem":
            return {"leakage": Predicted(reduced_leakage(point.groups, point.group_dim, point.lr, point.steps))}
        theory = group_sparse.symmetric_map(
            groups=point.groups,
            group_dim=point.group_dim,
            lr=point.lr,
            steps=point.steps,
            rng=np.random.default_rng(0),
            samples=300,
        )
        # the end is slow: fifty steps lose less than noise
        return {"attention": Predicted(theory.attention[-50:].mean())}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for groups in rows.where(method="batches").levels("groups"):
            yield from _concentrates(rows.where(method="batches", groups=groups), f"D{groups}")
        exact = rows.where(method="population")
        for row in exact:
            yield agreement(
                f"attention-map.power.D{row.point.groups}",
                f"{row.point.groups} groups, W_11 frozen: power of the step in the attention on the other groups",
                theory=-2 / 3,
                measured=Exact(row.measured["power"]),
                tolerance=0.03,
            )
        growth = log_slope(exact, "groups", "leakage_at_loss").values
        yield at_most(
            "attention-map.exponential",
            f"W_11 frozen: power of D in the attention on the other groups at a loss of {EQUAL_LOSS:g}; exponentially"
            " small means below any negative power",
            bound=-1.0,
            measured=Exact(growth[0]) if len(growth) else Mean([]),
        )
        yield from _theorem_claims(rows.where(method="theorem"))
        yield from _theorem_map_claims(rows.where(method="theorem-map"))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_map(rows.where(method="batches"), left)
        _draw_leakage(rows.where(method="population"), right)


def _population(point: Point) -> Measured:
    from whichtoken.theory import group_sparse

    trajectory = group_sparse.population_map(groups=point.groups, lr=point.lr, steps=point.steps)
    reached = np.flatnonzero(trajectory.loss <= EQUAL_LOSS)
    if not reached.size:
        raise ValueError(f"steps={point.steps} must be enough to reach a loss of {EQUAL_LOSS:g}")
    leakage = trajectory.leakage
    return {
        "leakage": leakage[-1],
        "leakage_at_loss": leakage[reached[0]],
        "power": np.log2(leakage[point.steps] / leakage[point.steps // 2]),
        "steps": late_checkpoints(point.steps),
        "leakage_curve": leakage[late_checkpoints(point.steps)],
    }


def _trained(point: Point, rng: np.random.Generator) -> Measured:
    import torch

    from whichtoken.data import GroupSparse
    from whichtoken.models.group_selection import selection
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.training.group_descent import fresh_batches, gradient_descent

    direction = rng.standard_normal(point.group_dim)
    data = GroupSparse(point.groups, point.group_dim, point.relevant, direction)
    model = GroupTransformer(point.group_dim, point.groups)
    gradient_descent(model, fresh_batches(data, point.batch, rng), point.steps, point.lr)
    X, y = map(torch.from_numpy, data.sample(2000, rng))
    mean_map = model.attention(X).mean(dim=0).detach().numpy()  # (key, query)
    state = selection(model, X, y, point.relevant, direction)
    received = mean_map[point.relevant]
    return {
        "map": mean_map,
        "attention": state.attention,
        "weakest_query": received.min(),
        "query_spread": np.ptp(received),
        "min_attention": state.min_attention,
        "accuracy": state.accuracy,
        "position_value_norm": state.position_value_norm,
        "block_norms": state.block_norms,
    }


def _after_theorem_steps(point: Point, rng: np.random.Generator) -> Measured:
    _, half, end = train_all_blocks(
        point.groups, point.group_dim, point.lr, point.steps, point.batch, rng, every=point.steps // 2
    )
    return {
        "leakage": end.leakage,
        "power": np.log2(end.leakage / half.leakage),
        "alpha": end.alpha,
        "loss": end.loss,
    }


def _at_theorem_steps(point: Point) -> Measured:
    """The exact map after D^3/lr steps, where training would take hours."""
    from whichtoken.theory import group_sparse

    end = group_sparse.population_map(groups=point.groups, lr=point.lr, steps=point.steps)
    return {"leakage": end.leakage[-1], "loss": end.loss[-1]}


def _theorem_map_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """Attention on the other groups after D^3/lr steps of the exact map: a wider range of D than training reaches."""
    sizes = rows.levels("groups")
    if len(sizes) < 3:
        return
    listed = ", ".join(map(str, sizes))
    yield agreement(
        "attention-map.theorem-map-power",
        f"exact map, W_11 frozen, after D^3/lr steps: power of D ({listed}) in the attention on the other groups against the"
        " power law, which tends to -7/3",
        theory=_power_law(sizes),
        measured=Exact(log_slope(rows, "groups", "leakage").values[0]),
        tolerance=0.1,
    )
    yield agreement(
        "attention-map.theorem-map-exponential",
        f"exact map, W_11 frozen, after D^3/lr steps: fall of log(1 - S) per group between the largest two D over that between"
        f" the smallest two ({listed}), 1 if 1 - S = exp(-Theta(D))",
        theory=1.0,
        measured=Exact(rows.per_seed(_bend)[0]),
        tolerance=0.1,
    )


def _theorem_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """Attention on the other groups after D^3/lr steps of the real model, no block frozen."""
    sizes = rows.levels("groups")
    for groups in sizes:
        runs = rows.where(groups=groups)
        predicted = runs.predicted("leakage")
        theory = None if predicted is None else float(predicted.value)
        yield agreement(
            f"attention-map.theorem.D{groups}",
            f"{groups} groups, all blocks trained for D^3/lr steps: attention on the other groups against the"
            " symmetry-reduced map",
            theory=theory,
            measured=Mean(runs.values("leakage")),
            tolerance=0.1 * (theory or 0.0),  # runs stray by 1 to 3 %
        )
    if len(sizes) < 2:
        return
    yield agreement(
        "attention-map.theorem-step-power",
        "all blocks trained: power of the step in the attention on the other groups, over the second half of D^3/lr steps",
        theory=-2 / 3,
        measured=Mean(rows.seed_means("power")),
        tolerance=0.067,
    )
    yield agreement(
        "attention-map.theorem-power",
        "all blocks trained for D^3/lr steps: power of D in the attention on the other groups against the symmetry-reduced"
        f" map; the power law with W_11 frozen gives {_power_law(sizes):.2f} at these D and tends to -7/3",
        theory=predicted_power(rows, "leakage"),
        measured=log_slope(rows, "groups", "leakage"),
        tolerance=0.2,
    )
    if len(sizes) >= 3:
        yield agreement(
            "attention-map.theorem-exponential",
            f"all blocks trained for D^3/lr steps: fall of log(1 - S) per group between the largest two D over that between"
            f" the smallest two ({', '.join(map(str, sizes))}), 1 if 1 - S = exp(-Theta(D))",
            theory=1.0,
            measured=Mean(rows.per_seed(_bend)),
            tolerance=0.1,
        )


def _power_law(sizes: list[int]) -> float:
    from whichtoken.theory import group_sparse

    leakage = [group_sparse.late_phase(groups=D, lr=0.01, step=D**3 / 0.01).leakage for D in sizes]
    return float(np.polyfit(np.log(sizes), np.log(leakage), 1)[0])


def _bend(repeat: Rows[Point]) -> float | None:
    found = sorted((row.point.groups, np.log(row.measured["leakage"])) for row in repeat)
    if len(found) < 3:
        return None
    groups, logs = np.array(found).T
    falls = np.diff(logs) / np.diff(groups)
    return float(falls[-1] / falls[0])


def _concentrates(runs: Rows[Point], code: str) -> Iterator[Claim]:
    predicted, words = runs.predicted("attention"), f"{runs[0].point.groups} groups"
    yield agreement(
        f"attention-map.attention.{code}",
        f"{words}: mean attention on the relevant group against the symmetry-reduced map",
        theory=None if predicted is None else float(predicted.value),
        measured=Mean(runs.values("attention")),
        tolerance=0.03,
    )
    yield at_least(
        f"attention-map.every-query.{code}",
        f"{words}: mean attention on the relevant group of the query that attends to it least",
        bound=0.5,
        measured=Mean(runs.values("weakest_query")),
    )
    yield at_most(
        f"attention-map.alike.{code}",
        f"{words}: difference between the queries",
        bound=0.05,
        measured=Mean(runs.values("query_spread")),
    )


def _draw_map(rows: Rows[Point], axes: Axes) -> None:
    if not rows:
        return
    groups = rows.levels("groups")[0]
    weights = np.mean([row.measured["map"] for row in rows.where(groups=groups)], axis=0)
    image = axes.imshow(weights, vmin=0, vmax=1, cmap="viridis")
    axes.figure.colorbar(image, ax=axes)
    axes.set(title=f"Mean attention after training, {groups} groups", xlabel="query group", ylabel="key group")
    axes.grid(False)


def _draw_leakage(rows: Rows[Point], axes: Axes) -> None:
    for row in rows:
        steps = np.array(row.measured["steps"])
        (line,) = axes.plot(steps, row.measured["leakage_curve"], label=f"{row.point.groups} groups")
        if (law := row.predicted.get("leakage_curve")) is not None:
            late_steps = steps >= 100
            axes.plot(steps[late_steps], np.array(law.value)[late_steps], ls="--", color=line.get_color())
    axes.set(
        xscale="log",
        yscale="log",
        title="Attention on the other groups, power law dashed",
        xlabel="step",
        ylabel="share of the attention",
    )
    if rows:  # a legend of nothing is a warning
        axes.legend()
