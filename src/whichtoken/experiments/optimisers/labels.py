"""Wrong labels and more classes leave the limit alone, until labels are wrong too often.

Claim   With several classes the tokens change and the limit problem does not. Labels that are wrong with probability e leave a sequence's
        attention on one token exactly if that token's score is at most log((1 - e) / e); otherwise attention stays split.
Source  Ours: the loss of a sequence with wrong labels is least at the label margin log((1 - e) / e).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.experiments.optimisers._methods import METHODS, START, draw_problem, train
from whichtoken.experiments.optimisers.margins import MethodName
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, agreement, at_least

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whichtoken.data import AttentionProblem

COPIES = 20  # of every sequence, of which a share has the wrong label
SPLIT = 0.99  # attention on one token from which on it counts as settled there


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    method: MethodName = "sign"
    classes: int = 2
    noise: float = 0.0  # share of wrong labels, a multiple of 1/20
    steps: int = 8000


class Labels(Experiment[Point]):
    id = "optimisers/labels"
    presets = {
        "quick": (
            Grid(method=["sign", "muon"], classes=4, seeds=6),
            Grid(method="sign", noise=0.2, seeds=6),
            Grid(method="gd", noise=0.4, steps=2000, seeds=6),
        ),
        "full": (
            Grid(method=["normalized-gd", "sign", "muon", "adam"], classes=[3, 4, 8], steps=32000, seeds=30),
            Grid(method=["sign", "muon"], noise=[0.1, 0.2], steps=32000, seeds=30),
            Grid(method="gd", noise=[0.3, 0.35, 0.4, 0.45], steps=4000, seeds=30),
        ),
    }
    method_fields = frozenset({"method", "steps", "noise"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import MulticlassTokens

        problem: Any
        if point.classes == 2:
            clean, start = draw_problem(point, rng)
            problem = with_wrong_labels(clean, point.noise)
        else:
            clean = problem = MulticlassTokens(point.sequences, point.length, point.dim, point.classes).sample(rng)
            start = START * rng.standard_normal((point.dim, point.dim))
        method = METHODS["normalized-gd"] if point.noise > 0.25 else METHODS[point.method]
        if point.noise > 0.25:  # attention that stays split has no direction to normalise: plain steps
            method = replace(method, optimizer="gd", options={"lr": 50.0})
        run = train(method, problem, start, point.steps, [point.steps // 2])
        if point.noise > 0.25:
            return _splits(clean, run.final.weights, point.noise)
        return _shares(clean, run, METHODS[point.method].norm)

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for method, classes, noise in dict.fromkeys((r.point.method, r.point.classes, r.point.noise) for r in rows):
            runs = rows.where(method=method, classes=classes, noise=noise)
            code = f"{method}.c{classes}" + (f".n{noise:g}" if noise else "")
            if noise > 0.25:
                yield at_least(
                    f"labels.split.n{noise:g}",
                    f"{noise:.0%} wrong labels: share of sequences whose attention is split, or is not, as predicted",
                    bound=0.8,
                    measured=Mean(runs.seed_means("as_predicted")),
                )
                continue
            words = f"{classes} classes" if classes > 2 else f"{noise:.0%} wrong labels"
            yield agreement(
                f"labels.limit.{code}",
                f"{METHODS[method].label}, {words}: share of the {METHODS[method].norm} margin, extrapolated",
                theory=1.0,
                measured=Mean(runs.seed_means("extrapolated")),
                tolerance=0.02,
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for noise in [level for level in rows.levels("noise") if level > 0.25]:
            runs = rows.where(noise=noise)
            scores = np.concatenate([row.measured["scores"] for row in runs])
            weights = np.concatenate([row.measured["largest"] for row in runs])
            left.plot(scores - math.log((1 - noise) / noise), weights, "o", ms=3, label=f"{noise:.0%} wrong")
        left.axvline(0.0, color="black", lw=0.8)
        left.set(xlabel="score of the best token less log((1 - e) / e)", ylabel="largest attention weight")
        left.set(title="Where attention stays split")
        names, values = [], []
        for method, classes, noise in dict.fromkeys((r.point.method, r.point.classes, r.point.noise) for r in rows):
            if noise <= 0.25:
                names.append(f"{method}, {classes} classes, {noise:.0%}")
                values.append(rows.where(method=method, classes=classes, noise=noise).values("share").mean())
        right.barh(names, values)
        right.set(xlim=(0.8, 1.0), title="Share of the own norm's margin")


def with_wrong_labels(problem: AttentionProblem, noise: float) -> AttentionProblem:
    """Every sequence twenty times, a share of them with the wrong label."""
    if noise == 0.0:
        return problem
    signs = np.where(np.arange(COPIES) < round(noise * COPIES), -1, 1)
    return replace(
        problem,
        tokens=np.repeat(problem.tokens, COPIES, axis=0),
        queries=np.repeat(problem.queries, COPIES, axis=0),
        labels=np.repeat(problem.labels, COPIES) * np.tile(signs, len(problem.labels)),
    )


def _shares(problem: Any, run: Any, norm: str) -> Measured:
    from whichtoken.flows.margin_scale import NORMS, margin_scale

    selected = run.selected[:: len(run.selected) // len(problem.tokens)]
    scale = margin_scale(problem.tokens, problem.queries, selected, {norm: NORMS[norm]})
    half, final = (scale.shares(state.direction)[norm] for state in (*run.snapshots, run.final))
    return {"share": final, "extrapolated": 2.0 * final - half, "gap": scale.gap, "settled": run.settled}


def _splits(problem: AttentionProblem, weights: Any, noise: float) -> Measured:
    """Whether attention is split where the best token's score is above the least-loss margin, and nowhere else."""
    from whichtoken.attention import softmax_pool

    sequences, length, _ = problem.tokens.shape
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
    starts = np.arange(sequences + 1) * length
    pooled = softmax_pool(scores.ravel(), np.zeros(scores.size), starts)
    largest = np.exp(pooled.log_weights).reshape(sequences, length).max(axis=1)
    chosen = np.take_along_axis(problem.token_scores, scores.argmax(axis=1)[:, None], axis=1)[:, 0]
    best = problem.token_scores.max(axis=1)
    predicted = best <= math.log((1 - noise) / noise)
    return {
        "as_predicted": float(np.mean((largest > SPLIT) == predicted)),
        "largest": largest,
        "scores": best,
        "chosen": chosen,
    }
