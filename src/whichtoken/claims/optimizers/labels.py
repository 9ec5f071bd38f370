"""Attention settles on one token only where no mixture of tokens is better.

Claim   Where single tokens are best, wrong labels and more classes leave the limit alone: the largest margin in the
        optimizer's norm. Otherwise attention stays split, however long the training: with a share e of wrong labels where a
        token's score exceeds log((1 - e) / e), and with three classes or more where a mixture of tokens has less cross-
        entropy than every single one.
Source  Ours. Max-margin limits of attention (arXiv 2308.16898, 2410.14581) are stated for two classes and labels that are
        never wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.claims._checks import Above, AtMost, Checks, Equals, pool_parts
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import group_by, mean_of_runs, resampled_runs, rows_where
from whichtoken.claims.mirror_descent._problems import ProblemSize, draw_problem
from whichtoken.claims.optimizers._methods import METHODS, START, Method, margin_shares, printed_norm, train_with
from whichtoken.lab import Experiment, Grid, Measured, Row, Rows
from whichtoken.lab.samples import FEWEST_SEEDS_TO_RESAMPLE

if TYPE_CHECKING:
    from whichtoken.datasets import AttentionProblem, MulticlassProblem

COPIES = 10  # of every sequence, of which a share has the wrong label
MANY = 0.25  # of wrong labels: from here on some token scores exceed log((1 - e) / e)
SETTLED = 0.99  # attention on one token
DECAYING = Method("normalized GD", "normalized-gd", {"lr": 1.0, "lr_power": 0.5})  # settles between tokens, too
MARGIN = AtMost(
    "labels.margin", 0.02,
    "many wrong labels: distance of a sequence's label margin from that of its best token or log((1 - e) / e), whichever "
    "is less",
)  # fmt: skip
# A median, for a run whose tokens change late is far from its course; a mean where problems are too few for its interval.
LIMIT = Equals(
    "labels.limit", 1.0, "where single tokens are best: share of the own margin, extrapolated, typical problem", tolerance=0.02,
)  # fmt: skip
SPLIT = Above(
    "labels.split", 0.8, "several classes: share of all sequences settled on one token exactly where one is best"
)


@dataclass(frozen=True)
class Point(ProblemSize):
    method: Literal["normalized-gd", "sign", "muon"] = "sign"
    classes: int = 2
    noise: float = 0.0  # share of wrong labels, a multiple of 1/10
    steps: int = 8000


class Labels(Experiment[Point]):
    id = "optimizers/labels"
    version = 2
    presets = {
        "quick": (
            Grid(classes=4, seeds=(8, 32)),
            Grid(noise=0.2, steps=4000, seeds=(6, 24)),
            Grid(method="normalized-gd", noise=0.4, steps=2000, seeds=(6, 24)),
        ),
        "full": (
            Grid(method=["sign", "muon"], classes=[3, 4, 8], steps=16000, seeds=30),
            Grid(method=["sign", "muon"], noise=0.2, steps=8000, seeds=30),
            Grid(method="normalized-gd", noise=[0.3, 0.4], steps=8000, seeds=30),
        ),
    }
    method_fields = frozenset({"method", "steps", "noise"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.datasets import MulticlassTokens

        clean: Any
        if point.classes > 2:
            clean = MulticlassTokens(point.sequences, point.length, point.dim, point.classes).sample(rng)
            start = START * rng.standard_normal((point.dim, point.dim))
            single = single_token_is_best(clean)
        else:
            clean, start = draw_problem(point, rng, START)
            single = np.full(point.sequences, True)
        method = DECAYING if point.noise > MANY else METHODS[point.method]
        problem = add_wrong_labels(clean, point.noise) if point.noise else clean
        run = train_with(method, problem, start, point.steps, [point.steps // 2])
        largest, attended = attention_weights(clean, run.final.weights)
        selected = run.selected[:: len(run.selected) // point.sequences]
        measured = {"largest": largest, "single": single, "settled": run.settled, "tokens": selected}
        if point.noise > MANY:
            least = math.log((1.0 - point.noise) / point.noise)
            margins = np.sum(attended * clean.token_scores, axis=1)
            best = clean.token_scores.max(axis=1)
            return {
                **measured,
                "scores": best,
                "margins": margins,
                "miss": np.abs(margins - np.minimum(best, least)).mean(),
            }
        if not single.all():
            return {**measured, "extrapolated": None, "share": None}
        norm = METHODS[point.method].norm
        scale, (half, final) = margin_shares(clean, run, [norm], selected)
        return {**measured, "share": final[norm], "extrapolated": 2.0 * final[norm] - half[norm], "gap": scale.gap}

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        many, few = (rows_where(rows, lambda point, many=many: (point.noise > MANY) == many) for many in (True, False))  # type: ignore[misc]
        yield from MARGIN.each(
            many, "noise", "n{:g}", "{:.0%} wrong labels", partial(mean_of_runs, quantity="miss", failed=1.0)
        )
        for (method, classes, noise), runs in group_by(few, "method", "classes", "noise"):
            several, norm = classes > 2, printed_norm(METHODS[method].norm)
            words = f"{METHODS[method].label}, " + (f"{classes} classes" if several else f"{noise:.0%} wrong labels")
            code = f"{method}.c{classes}" + (f".n{noise:g}" if noise else "")
            alone = Rows((row for row in runs if row.measured["share"] is not None), runs.failed)
            problems = f", {len(alone)} of {len(runs)} problems" if several else ""
            typical = resampled_runs if len(alone) + len(alone.failed) >= FEWEST_SEEDS_TO_RESAMPLE else mean_of_runs
            yield LIMIT.part(code, f"{words}, {norm} margin{problems}", typical(alone, "extrapolated"), on=runs)
            if several:
                yield SPLIT.part(code, words, mean_of_runs(runs, _share_as_predicted), on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for noise in [level for level in rows.levels("noise") if level > MANY]:
            runs = rows.where(noise=noise)
            left.plot(*(np.concatenate([r.measured[name] for r in runs]) for name in ("scores", "margins")), "o", ms=3)
            left.axhline(math.log((1 - noise) / noise), lw=0.8, color="black")
        label_axes(left, "Many wrong labels (line: least loss)", "score of the best token", "label margin")
        if several := Rows(row for row in rows if row.point.classes > 2):
            largest, single = (
                np.concatenate([row.measured[name] for row in several]) for name in ("largest", "single")
            )
            groups = [largest[single], largest[~single]]
            right.boxplot(groups, tick_labels=["a single token is best", "a mixture is best"])
        label_axes(right, "Several classes", y="largest attention weight")


def add_wrong_labels(problem: AttentionProblem, noise: float) -> AttentionProblem:
    """Every sequence ten times, a share of them with the wrong label."""
    signs = np.where(np.arange(COPIES) < round(noise * COPIES), -1, 1)
    return replace(
        problem,
        tokens=np.repeat(problem.tokens, COPIES, axis=0),
        queries=np.repeat(problem.queries, COPIES, axis=0),
        labels=np.repeat(problem.labels, COPIES) * np.tile(signs, len(problem.labels)),
    )


def single_token_is_best(problem: MulticlassProblem) -> NDArray[np.bool_]:
    """For each sequence, whether all attention on some token has less cross-entropy than any mixture.

    The loss is convex in the weights: token k is best of all if no other token t lowers it to first order,
    (v_y - sum_c p_c v_c).(x_t - x_k) <= 0 with the class probabilities p of token k.
    """
    outputs = problem.tokens @ problem.decoders.T  # (n, T, C)
    probabilities = np.exp(outputs - np.logaddexp.reduce(outputs, axis=2, keepdims=True))
    own = np.take_along_axis(outputs, problem.labels[:, None, None], axis=2)[:, :, 0]  # (n, T)
    pulls = own[:, None, :] - np.einsum("nkc,ntc->nkt", probabilities, outputs)  # of t, were k attended
    at_home = np.einsum("nkk->nk", pulls)
    single: NDArray[np.bool_] = (pulls <= at_home[:, :, None] + 1e-12).all(axis=2).any(axis=1)
    return single


def attention_weights(problem: Any, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest attention weight of each sequence, and all of them (n, T)."""
    from whichtoken.attention import softmax_pool

    sequences, length, _ = problem.tokens.shape
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
    pooled = softmax_pool(scores.ravel(), np.zeros(scores.size), np.arange(sequences + 1) * length)
    attended = np.exp(pooled.log_weights).reshape(sequences, length)
    return attended.max(axis=1), attended


def _share_as_predicted(row: Row[Point]) -> float:
    return float(np.mean((np.array(row.measured["largest"]) > SETTLED) == np.array(row.measured["single"])))
