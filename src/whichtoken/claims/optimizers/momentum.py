"""Momentum leaves the margin alone if steps decay; with steps of constant size it can miss it for good.

Claim   With step sizes that decay, momentum ends in the largest margin of its norm, on a linear classifier and on attention.
        With steps of constant size it does only while it forgets faster than gradients fall: lr times the margin below
        log(1 / momentum). Above that, old gradients outweigh new ones for ever, and longer training does not help: not even
        with one sequence of three tokens in two dimensions.
Source  For smooth homogeneous networks momentum does not change the margin that is maximized, under step sizes that decay:
        Gronich, Vardi (arXiv 2602.16340, abstract). A linear classifier is such a network, attention is not. The condition for
        constant steps, and the counter-example, are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken import datasets
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._problems import ProblemSize, draw_problem
from whichtoken.claims._runs import group_by, mean_of_runs, resampled_runs, values_with_failures
from whichtoken.claims.optimizers._methods import METHODS, START, Method, margin_shares, norm_name, train_with
from whichtoken.lab import Exact, Measured, Row, Rows

# which claim a setting gets is decided before the run, by the margins that are usual at the default size
USUAL_MARGINS = {"linf": 2.2, "spectral": 0.6, "l2": 0.32}
# lr * margin over log(1 / momentum) below which the margin is reached, above which it is missed
FORGETS, REMEMBERS = 0.7, 2.0
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(ProblemSize):
    problem: Literal["random", "three tokens", "linear"] = "random"
    method: Literal["normalized-gd", "sign", "muon"] = "sign"
    momentum: float = 0.9
    lr: float = 0.02
    lr_power: float = 0.0
    steps: int = 8000


class Momentum(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        draw = {"random": draw_problem, "three tokens": three_tokens, "linear": linear_problem}[point.problem]
        problem, start = draw(point, rng, START)
        norm = METHODS[point.method].norm
        options: dict[str, Any] = {"lr": point.lr, "lr_power": point.lr_power, "momentum": point.momentum}
        if point.method == "muon":
            options["nesterov"] = False
        if point.problem == "linear":
            options["loss"] = lambda probability: -math.log(probability)  # log |l'| of l = -log
        method = Method(point.method, METHODS[point.method].optimizer, options, norm)
        run = train_with(method, problem, start, point.steps, [point.steps // 2])
        scale, (half, final) = margin_shares(problem, run, [norm])
        certificate = scale.certificates[norm]
        return {
            "share": final[norm],
            "half": half[norm],
            "ratio": point.lr * certificate.margin / math.log(1.0 / point.momentum),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        for criterion, problem, sample in (
            (TABLE.linear, "linear", mean_of_runs), (TABLE.decaying, "random", resampled_runs)
        ):  # fmt: skip
            for (method, momentum), runs in group_by(rows.where(problem=problem, lr_power=0.5), "method", "momentum"):
                words = f"{method}, momentum {momentum:g}, {norm_name(METHODS[method].norm)} margin"
                yield criterion.part(f"{method}.m{momentum:g}", words, sample(runs, _end_of_decay), on=runs)
        for (method, momentum, lr), runs in group_by(
            rows.where(problem="random", lr_power=0.0), "method", "momentum", "lr"
        ):
            expected = lr * USUAL_MARGINS[METHODS[method].norm] / math.log(1.0 / momentum)
            if FORGETS <= expected <= REMEMBERS:
                continue  # near the border nothing was decided before the run
            criterion, worst = (TABLE.reaches, 0.0) if expected < FORGETS else (TABLE.misses, 1.0)
            ratios = runs.values("ratio")
            limits = f", {ratios.min():.2g} to {ratios.max():.2g} of the limit" if runs else ""
            words = f"{method}, momentum {momentum:g}, lr {lr:g}, {norm_name(METHODS[method].norm)} margin{limits}"
            ends = mean_of_runs(runs, _extrapolated_share, failed=worst)
            yield criterion.part(f"{method}.m{momentum:g}.lr{lr:g}", words, ends, on=runs)
        yield from TABLE.three_tokens.each(
            rows.where(problem="three tokens"), "steps", "k{}", "{} steps of normalized descent, momentum .99",
            lambda runs: Exact(values_with_failures(runs, "share", failed=1.0)[0]),
        )  # fmt: skip

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for method in rows.levels("method"):
            runs = rows.where(method=method, problem="random", lr_power=0.0)
            axes.plot(runs.values("ratio"), runs.values("share"), "o", ms=4, label=METHODS[method].label)
        small = rows.where(problem="three tokens")
        axes.plot(small.values("ratio"), small.values("share"), "k*", ms=9, label="three tokens")
        axes.axvline(1.0, color="black", lw=0.8)
        x, y = "step size times margin, over log(1 / momentum)", "share of the own norm's margin"
        label_axes(axes, "Momentum with steps of constant size", x, y, log="x", legend=True)


def _end_of_decay(row: Row[Point]) -> float:
    """Exact if what is missing falls as one over the distance, the root of the steps."""
    return float((math.sqrt(2.0) * row.measured["share"] - row.measured["half"]) / (math.sqrt(2.0) - 1.0))


def three_tokens(*_: Any) -> Any:
    """The smallest problem on which momentum misses the margin: one sequence, three tokens, one query, two dimensions."""
    tokens = np.array([[[1.0, 1.0], [-1.0, 2.0], [2.0, -1.0]]])
    problem = datasets.AttentionProblem(tokens, np.array([[1.0, 0.0]]), np.array([1]), np.array([0.5, 0.5]))
    return problem, np.array([[0.1, 0.0], [0.0, 0.0]])


def linear_problem(point: Point, rng: np.random.Generator, start: float) -> Any:
    """A linear classifier in the form of attention, with as many constraints as the point's random problem.

    Attention chooses between a token of value 1 and a zero token of value 0: its output is the logistic function of
    x.W z, and the loss -log(output) makes that logistic regression, without any approximation.
    """
    samples = point.sequences * (point.length - 1)
    drawn = datasets.AttentionTokens(samples, 2, point.dim).sample(rng)
    tokens = np.stack([drawn.tokens[:, 0], np.zeros((samples, point.dim))], axis=1)
    tokens[:, 0, -1] = 1.0
    decoder = np.eye(point.dim)[-1]
    problem = datasets.AttentionProblem(tokens, drawn.queries, np.ones(samples, dtype=np.int64), decoder)
    return problem, start * rng.standard_normal((point.dim, point.dim))


def _extrapolated_share(row: Row[Point]) -> float:
    """Exact if what is missing falls as 1 / steps."""
    return float(2.0 * row.measured["share"] - row.measured["half"])
