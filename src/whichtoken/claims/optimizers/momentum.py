"""Momentum that forgets too slowly misses the margin for good.

Claim   With steps of constant size, momentum finds the largest margin of its norm only while it forgets faster than
        gradients fall: lr times the margin below log(1 / momentum). Above that, old gradients outweigh new ones for ever,
        and longer training does not help: not even with one sequence of three tokens in two dimensions.
Source  For homogeneous networks momentum does not change the margin that is maximized, under step sizes that decay:
        Gronich, Vardi (arXiv 2602.16340). The condition for constant steps, and the counter-example, are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import AtMost, Equals, values_with_failures
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims.mirror_descent._problems import draw_problem
from whichtoken.claims.optimizers._methods import METHODS, START, Method, margin_shares, printed_norm, train_with
from whichtoken.lab import Check, Exact, Experiment, Grid, Mean, Measured, Row, Rows

# which claim a setting gets is decided before the run, by the margins that are usual at the default size
USUAL_MARGINS = {"linf": 2.2, "spectral": 0.6, "l2": 0.32}
# lr * margin over log(1 / momentum) below which the margin is reached, above which it is missed
FORGETS, REMEMBERS = 0.7, 2.0
REACHES = Equals("momentum.reaches.{code}", 1.0, "{words}: share of the {norm} margin, extrapolated", tolerance=0.02)
MISSES = AtMost("momentum.misses.{code}", 0.8, "{words}: share of the {norm} margin, extrapolated")
THREE_TOKENS = AtMost(
    "momentum.three-tokens.k{steps}",
    0.92,
    "one sequence of three tokens, {label}, {steps} steps: share of the {norm} margin (duality gap {gap:.0e})",
)
BRUTE_FORCE = Equals(
    "momentum.brute-force.k{steps}",
    None,
    "one sequence of three tokens, {steps} steps: that share, with the largest margin found among a million angles",
    tolerance=1e-6,
)
CERTIFICATE = AtMost("momentum.certificate", 1e-6, "largest duality gap of the margins")


@dataclass(frozen=True)
class Point:
    problem: Literal["random", "three tokens"] = "random"
    sequences: int = 6
    length: int = 8
    dim: int = 10
    method: Literal["normalized-gd", "sign", "muon"] = "sign"
    momentum: float = 0.9
    lr: float = 0.02
    lr_power: float = 0.0
    steps: int = 8000


def study(seeds: int | tuple[int, int], steps: int) -> tuple[Grid, ...]:
    return (
        Grid(method="sign", momentum=[0.9, 0.99], steps=steps, seeds=seeds),
        Grid(method="muon", momentum=[0.9, 0.99], lr=0.1, steps=steps, seeds=seeds),
        Grid(method="normalized-gd", momentum=[0.9, 0.99], lr=0.1, steps=steps, seeds=seeds),
        Grid(problem="three tokens", method="normalized-gd", momentum=0.99, lr=0.5, steps=[8000, 64000], seeds=1),
    )


class Momentum(Experiment[Point]):
    id = "optimizers/momentum"
    version = 2
    presets = {
        "quick": study((6, 24), 8000),
        # steps a tenth as long: ten times as many go the same distance
        "full": (*study(30, 16000), Grid(method="sign", momentum=0.99, lr=0.002, steps=160000, seeds=30)),
    }
    method_fields = frozenset({"method", "momentum", "lr", "lr_power", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        problem, start = three_tokens() if point.problem == "three tokens" else draw_problem(point, rng, START)
        norm = METHODS[point.method].norm
        options: dict[str, Any] = {"lr": point.lr, "lr_power": point.lr_power, "momentum": point.momentum}
        if point.method == "muon":
            options["nesterov"] = False
        method = Method(point.method, METHODS[point.method].optimizer, options, norm)
        run = train_with(method, problem, start, point.steps, [point.steps // 2])
        scale, (half, final) = margin_shares(problem, run, [norm])
        certificate = scale.certificates[norm]
        measured = {} if point.problem == "random" else {"share_by_angles": _share_by_angles(problem, run)}
        return measured | {
            "share": final[norm],
            "half": half[norm],
            "ratio": point.lr * certificate.margin / math.log(1.0 / point.momentum),
            "margin": certificate.margin,
            "gap": scale.gap,
            "tokens": run.selected,
            "settled": run.settled,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        random = rows.where(problem="random")
        for method, momentum, lr in dict.fromkeys((r.point.method, r.point.momentum, r.point.lr) for r in random):
            runs = random.where(method=method, momentum=momentum, lr=lr)
            ratios = runs.values("ratio")
            code, norm = f"{method}.m{momentum:g}.lr{lr:g}", METHODS[method].norm
            limits = f"{ratios.min():.2g} to {ratios.max():.2g} of the limit"
            words: dict[str, Any] = {
                "words": f"{method}, momentum {momentum:g}, lr {lr:g} ({limits})",
                "norm": printed_norm(norm),
            }
            expected = lr * USUAL_MARGINS[norm] / math.log(1.0 / momentum)
            if expected < FORGETS:
                yield REACHES(Mean(values_with_failures(runs, _extrapolated_share)), code=code, **words)
            if expected > REMEMBERS:
                yield MISSES(Mean(values_with_failures(runs, _extrapolated_share, failed=1.0)), code=code, **words)
        for steps in rows.where(problem="three tokens").levels("steps"):
            (row,) = rows.where(problem="three tokens", steps=steps)[:1]
            used, share, gap = METHODS[row.point.method], row.measured["share"], row.measured["gap"]
            yield THREE_TOKENS(Exact(share), steps=steps, label=used.label, norm=printed_norm(used.norm), gap=gap)
            yield BRUTE_FORCE(Exact(row.measured["share_by_angles"]), value=share, steps=steps)
        if rows:
            yield CERTIFICATE(Exact(rows.values("gap").max()))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for method in rows.levels("method"):
            runs = rows.where(method=method, problem="random")
            axes.plot(runs.values("ratio"), runs.values("share"), "o", ms=4, label=METHODS[method].label)
        small = rows.where(problem="three tokens")
        axes.plot(small.values("ratio"), small.values("share"), "k*", ms=9, label="three tokens")
        axes.axvline(1.0, color="black", lw=0.8)
        x, y = "step size times margin, over log(1 / momentum)", "share of the own norm's margin"
        label_axes(axes, "Momentum with steps of constant size", x, y, log="x", legend=True)


def three_tokens() -> Any:
    """The smallest problem on which momentum misses the margin: one sequence, three tokens, one query, two dimensions."""
    from whichtoken.datasets import AttentionProblem

    tokens = np.array([[[1.0, 1.0], [-1.0, 2.0], [2.0, -1.0]]])
    problem = AttentionProblem(tokens, np.array([[1.0, 0.0]]), np.array([1]), np.array([0.5, 0.5]))
    return problem, np.array([[0.1, 0.0], [0.0, 0.0]])


def _share_by_angles(problem: Any, run: Any) -> float:
    """Share of the largest l_2 margin, without solver or shared code: with query (1, 0) only the first column of W counts."""
    angles = np.linspace(0.0, 2.0 * np.pi, 1_000_001)
    leads = problem.tokens[0, run.selected[0]] - np.delete(problem.tokens[0], run.selected[0], axis=0)  # (2, 2)
    best = (leads @ np.stack([np.cos(angles), np.sin(angles)])).min(axis=0).max()
    weights = run.final.direction
    return float((leads @ weights[:, 0]).min() / np.sqrt((weights**2).sum()) / best)


def _extrapolated_share(row: Row[Point]) -> float:
    return float(2.0 * row.measured["share"] - row.measured["half"])
