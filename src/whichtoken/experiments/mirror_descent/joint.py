"""Key-query matrix and decoder, trained together, end in one of a family of max-margin problems.

Claim   In joint l_p mirror descent the decoder tends to its max-margin direction, and the key-query matrix to the member
        that |v|_p / |W|_p picks from a one-parameter family: the strict problem at ratio 0, the relaxed one at infinity.
        Normalised steps tend to a ratio that follows from the two step sizes and the selected tokens. Plain gradient
        flow has |v| ~ log t and |W| ~ log log t, so that it moves towards the relaxed end.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581): algorithm, two-sample
        problem, limit of the decoder; the family of limits of W, the ratio, the constants of the flow, and that attention
        stays split where the ratio leaves a sequence no demand, are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.experiments.mirror_descent import _joint_figure
from whichtoken.experiments.mirror_descent._decoder_limit import decoder_limit
from whichtoken.lab import (
    Claim,
    Exact,
    Experiment,
    Grid,
    Mean,
    Measured,
    Predicted,
    Resampled,
    Rows,
    Share,
    Worst,
    agreement,
    at_least,
    at_most,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whichtoken.data import AttentionProblem
    from whichtoken.flows.joint import JointResult

NEAR = 0.999  # cosine from which on a limit counts as reached
DISTANCE = 1e-3  # one less this cosine
SATURATED = 0.99  # attention on the selected token from which on it counts as selected
# the two-sample problem of the source, tokens (2, 3, 2); the first token of each sequence is its query
PLANE = (((-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)), ((0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)))
PLANE_LABELS = (1, -1)
PLANE_TOKENS = {1.75: [1, 0], 2.0: [1, 0], 3.0: [0, 0]}  # selected tokens that the authors print
# Settings (lr, lr_decoder) at which the ratio is judged: for p < 2 steps so long that constraints take turns, else short ones.
# In between neither law is exact: with p = 1.75 and steps of one, pilots were 30 % below to 3 % above that of long steps.
LAW = {1.1: (0.1, 0.02), 1.4: (1.0, 0.3), 1.6: (10.0, 3.0), 1.75: (100.0, 40.0), 2.0: (1.0, 1.0), 3.0: (100.0, 100.0)}
EARLY = 6  # the laws of the flow are fitted from a sixth of the steps on


@dataclass(frozen=True)
class Point:
    problem: Literal["random", "plane"] = "random"
    sequences: int = 6
    length: int = 5
    dim: int = 8
    p: float = 2.0
    rule: Literal["normalized", "flow"] = "normalized"
    lr: float = 1.0
    lr_decoder: float = 1.0
    steps: int = 20000


PLANE_STUDY = tuple(
    Grid(problem="plane", sequences=2, length=3, dim=2, p=p, lr=0.1, lr_decoder=0.1, steps=steps, seeds=1)
    for p, steps in ((1.75, 1500), (2.0, 2000), (3.0, 20000))
)
# Step sizes of the decoder for ratios from 1e-5 to 1 (p = 1.1) or 0.1 to 10. For p = 3, |W|_p grows only as the root of
# the steps: long ones are needed, and do no harm.
RANDOM_STUDY = (
    Grid(p=1.1, lr=0.1, lr_decoder=[0.015, 0.025], steps=40000, seeds=(25, 100)),
    Grid(p=1.1, lr=0.1, lr_decoder=0.02, steps=100000, seeds=25),
    Grid(p=1.4, lr=1.0, lr_decoder=0.3, seeds=(25, 100)),
    Grid(p=1.6, lr=10.0, lr_decoder=3.0, seeds=(25, 100)),
    Grid(p=1.75, lr=100.0, lr_decoder=40.0, seeds=25),
    Grid(p=3.0, lr=100.0, lr_decoder=100.0, seeds=25),
    Grid(p=1.75, lr_decoder=[0.2, 0.4, 1.0, 2.3], steps=10000, seeds=25),
    Grid(p=2.0, lr_decoder=[0.1, 0.3, 1.0, 3.0, 10.0], seeds=(25, 100)),
    Grid(p=3.0, lr=1e4, lr_decoder=[1e2, 1e3, 1e4, 1e5, 1e6], seeds=25),
    Grid(p=[2.0, 3.0], rule="flow", lr=0.05, lr_decoder=0.05, seeds=50),
)
# An exact share of at least 0.9 takes eighty problems: the exponents with such a claim are for `full`.
SMALL_STUDY = (
    Grid(p=1.75, lr=100.0, lr_decoder=40.0, seeds=6),
    Grid(p=2.0, lr=100.0, seeds=10),  # a ratio of 0.01: the strict end
    Grid(p=2.0, seeds=(10, 20)),
    Grid(p=2.0, lr_decoder=10.0, seeds=(20, 80)),
    Grid(p=2.0, rule="flow", lr=0.05, lr_decoder=0.05, seeds=(20, 80)),
)


class Joint(Experiment[Point]):
    id = "mirror-descent/joint"
    version = 2
    presets = {"quick": PLANE_STUDY + SMALL_STUDY, "full": PLANE_STUDY + RANDOM_STUDY, "paper": PLANE_STUDY}
    method_fields = frozenset({"p", "rule", "lr", "lr_decoder", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.joint import joint_descent, joint_ratio

        problem = _problem(point, rng)
        record = np.unique(np.geomspace(point.steps / EARLY, point.steps, 30).astype(int))
        descent = joint_descent(
            problem, np.zeros((point.dim, point.dim)), p=point.p, lr=point.lr, lr_decoder=point.lr_decoder,
            steps=point.steps, rule=point.rule, record=record,
        )  # fmt: skip
        limits = _limits(problem, descent, point.p)
        weights, decoder = descent.final.weights.direction, descent.final.decoder.direction
        attention = _least_attention(problem, descent)
        measured = {
            "tokens": descent.selected,
            "attention": attention,
            "settled": descent.settled and attention >= SATURATED,
            "ratio": descent.final.ratio,
            "ratio_start": limits["start"],
            "ratio_end": limits["end"],
            "gap": limits["gap"],
            "cosine_decoder": _cosine(limits["decoder"], decoder),
            **{f"cosine_{name}": _cosine(limits[name], weights) for name in ("family", "strict", "relaxed")},
        }
        if point.rule == "flow":
            return measured | _laws(descent, limits, point)
        if LAW.get(point.p) == (point.lr, point.lr_decoder):
            expected = joint_ratio(problem, descent.selected, p=point.p, lr=point.lr, lr_decoder=point.lr_decoder)
            measured["ratio_over_law"] = descent.final.ratio / expected
            measured["ratio_over_steps"] = descent.final.ratio * (point.lr / point.lr_decoder) ** (1 / (point.p - 1))
        return measured

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        """Growth in plain flow, as `joint_flow_growth` explains: of |v|_p with log t, of |W|_p with log log t."""
        return {"decoder_slope": Predicted(1.0), "weight_slope": Predicted(point.p)} if point.rule == "flow" else {}

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        yield from _judge_plane(rows.where(problem="plane"))
        random = rows.where(problem="random", rule="normalized")
        settled = Rows(row for row in random if row.measured["settled"])
        for p in random.levels("p"):
            yield from _judge_family(p, settled.where(p=p), len(random.where(p=p)))
        yield from _judge_ratio(settled)
        yield from _judge_ends(settled)
        yield from _judge_selection(random)
        for p in rows.where(rule="flow").levels("p"):
            yield from _judge_flow(p, rows.where(rule="flow", p=p))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.1, 1, 1])
        trained, flow = rows.where(rule="normalized"), rows.where(rule="flow")
        if trained:
            _joint_figure.draw_portrait(trained, left)
            _joint_figure.draw_cosines(Rows(row for row in trained if row.measured["settled"]), middle)
        if flow:
            _joint_figure.draw_flow(flow, right)


def _problem(point: Point, rng: np.random.Generator) -> AttentionProblem:
    """The problem with a decoder that starts at zero."""
    from whichtoken.data import AttentionProblem, AttentionTokens

    if point.problem == "plane":
        tokens = np.array(PLANE)
        return AttentionProblem(tokens, tokens[:, 0], np.array(PLANE_LABELS), np.zeros(2))
    drawn = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
    return AttentionProblem(drawn.tokens, drawn.queries, drawn.labels, np.zeros(point.dim))


def _limits(problem: AttentionProblem, descent: JointResult, p: float) -> dict[str, Any]:
    """Limit of the decoder, member of the family at the measured ratio and its two ends, for the selected tokens."""
    from whichtoken.margin import joint_limit

    decoder, label_margin, margins = decoder_limit(problem, descent.selected, p)
    family, strict, relaxed = (
        joint_limit(problem.tokens, problem.queries, descent.selected, margins, ratio, p)
        for ratio in (descent.final.ratio, 0.0, math.inf)
    )
    excess = margins - margins.min()
    positive = excess[excess > 1e-6 * margins.max()]
    return {
        "decoder": decoder,
        "label_margin": label_margin,
        "family": family.direction,
        "strict": strict.direction,
        "relaxed": relaxed.direction,
        "relaxed_margin": relaxed.margin,
        "gap": max(family.gap, strict.gap, relaxed.gap),
        # from this ratio on the family is at its relaxed end; 0 if all sequences support the decoder
        "end": float(relaxed.margin / positive.min()) if positive.size else 0.0,
        # up to a small part of this ratio it is at its strict end
        "start": float(relaxed.margin / positive.max()) if positive.size else 0.0,
    }


def _least_attention(problem: AttentionProblem, descent: JointResult) -> float:
    """The smallest share of attention that a selected token gets."""
    from whichtoken.attention import pool_weights

    final = descent.final.weights
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, final.direction, problem.queries)
    scores = math.exp(min(final.log_norm, 600.0)) * (scores - scores.max(axis=1, keepdims=True))
    attention = pool_weights(scores.ravel(), np.arange(0, scores.size + 1, scores.shape[1]))
    return float(attention.reshape(scores.shape).max(axis=1).min())


def _laws(descent: JointResult, limits: dict[str, Any], point: Point) -> dict[str, Any]:
    """Slopes of mu |v|_p in log t and of `joint_flow_growth` in log log t, and where W moves from first to last record."""
    from whichtoken.norms import power_norm
    from whichtoken.theory.mirror_descent import joint_flow_growth

    log_times = np.array([state.weights.log_time for state in descent.snapshots])
    decoder, weights = (
        np.exp([getattr(state, name).log_norm for state in descent.snapshots]) for name in ("decoder", "weights")
    )
    first, last = (
        math.exp(state.weights.log_norm) * state.weights.direction for state in (descent.snapshots[0], descent.final)
    )
    move = (last - first) / power_norm(last - first, point.p)
    growth = joint_flow_growth(weights, limits["relaxed_margin"], point.p)
    return {
        "log_times": log_times,
        "decoder_norms": decoder,
        "weight_norms": weights,
        "kept_tokens": EARLY * descent.last_change <= point.steps,
        "decoder_slope": np.polyfit(log_times, limits["label_margin"] * decoder, 1)[0],
        "weight_slope": np.polyfit(np.log(log_times), growth, 1)[0],
        "move_relaxed": _cosine(limits["relaxed"], move),
        "move_strict": _cosine(limits["strict"], move),
    }


def _judge_plane(rows: Rows[Point]) -> Iterator[Claim]:
    if not rows:
        return
    same = [row.measured["tokens"] == PLANE_TOKENS[row.point.p] for row in rows if row.point.p in PLANE_TOKENS]
    yield at_least(
        "joint.plane.tokens",
        "two-sample problem: share of geometries that select the tokens the authors print",
        bound=1.0,
        measured=Exact(float(np.mean(same))) if same else Mean([]),
    )
    yield at_least(
        "joint.plane.limit",
        "two-sample problem: smallest cosine of W or v to its limit",
        bound=NEAR,
        measured=Exact(float(min(map(_least_cosine, rows)))),
    )


def _judge_family(p: float, settled: Rows[Point], runs: int) -> Iterator[Claim]:
    yield at_most(
        f"joint.family.p{p:g}",
        f"p = {p:g}: mean of 1 - cosine to the member at the measured ratio, W or v ({len(settled)} of {runs} runs settled)",
        bound=DISTANCE,
        measured=Mean(settled.seed_means(lambda row: 1 - _least_cosine(row))),
    )
    if p in (1.75, 2.0) and len(settled):
        yield at_least(
            f"joint.worst.p{p:g}",
            f"p = {p:g}: smallest cosine of a settled run, W or v, to the member at the measured ratio",
            bound=NEAR,
            measured=Worst(min(map(_least_cosine, settled))),
        )
    elif p not in (1.75, 2.0):
        yield at_least(
            f"joint.share.p{p:g}",
            f"p = {p:g}: share of settled runs whose cosine to the member at the measured ratio is above {NEAR}",
            bound=0.9,
            measured=_share(settled.seed_means(lambda row: _least_cosine(row) >= NEAR)),
        )


def _share(values: NDArray[np.float64]) -> Share | Resampled:
    """Of runs, by problem: exact where every problem has all of them or none, for a bootstrap of ones has no width."""
    return Share(values > 0.0) if np.isin(values, (0.0, 1.0)).all() else Resampled(values, np.mean)


def _judge_ratio(settled: Rows[Point]) -> Iterator[Claim]:
    judged = Rows(row for row in settled if "ratio_over_law" in row.measured)
    for p in judged.levels("p"):
        runs = judged.where(p=p)
        lr, lr_decoder = LAW[p]
        yield agreement(
            f"joint.ratio.p{p:g}",
            f"p = {p:g}, steps of {lr:g} and {lr_decoder:g}: |v| / |W| at the end over what was predicted from the selected "
            f"tokens ({len(runs)} runs that settled)",
            theory=1.0,
            measured=Mean(runs.seed_means("ratio_over_law")),
            tolerance=0.05,  # the largest deviation of single pilot runs with p >= 1.4 was 2 %, with p = 1.1 it was 5 %
        )
        if p < 2.0:
            yield at_least(
                f"joint.ratio-of-steps.p{p:g}",
                f"p = {p:g}: by which factor |v| / |W| exceeds (decoder step / step)^(1/(p-1)), least of all settled runs",
                bound=1.2,
                measured=Worst(runs.values("ratio_over_steps").min()),
            )


def _judge_ends(settled: Rows[Point]) -> Iterator[Claim]:
    differ = Rows(row for row in settled if row.measured["ratio_end"] > 0.0)
    position = differ.values("ratio") / differ.values("ratio_start")
    end = differ.values("ratio") / differ.values("ratio_end")
    small, between, large = (
        Rows(row for row, chosen in zip(differ, inside, strict=True) if chosen)
        for inside in (position <= 0.02, (position >= 0.2) & (end <= 0.8), end >= 1.0)
    )
    for name, rows, text in (
        ("strict", small, "small ratio, demands of the sequences equal up to 2 %"),
        ("relaxed", large, "large ratio, beyond where the family ends"),
    ):
        yield at_most(
            f"joint.{name}",
            f"{text}: mean of 1 - cosine to the {name} limit ({len(rows)} runs)",
            bound=DISTANCE,
            measured=Mean(1 - rows.seed_means(f"cosine_{name}")),
        )
    yield at_least(
        "joint.between",
        f"ratios in between: how much nearer the family's member is than the nearer end, in cosine ({len(between)} runs)",
        bound=0.0,
        measured=Mean(between.seed_means(lambda row: row.measured["cosine_family"] - _nearer_end(row))),
    )


def _judge_selection(rows: Rows[Point]) -> Iterator[Claim]:
    demanding, idle = (
        Rows(row for row in rows if (0.0 < row.measured["ratio_start"] <= row.measured["ratio"]) == beyond)
        for beyond in (False, True)
    )
    yield at_least(
        "joint.settled",
        f"every sequence asks for a lead: share of runs that settle on single tokens ({len(demanding)} runs)",
        bound=0.9,
        # a run that ends with tokens that no decoder classifies has failed: it counts as one that does not settle
        measured=Resampled([*demanding.seed_means("settled"), *[0.0] * len(rows.failed)], np.mean),
    )
    yield at_most(
        "joint.split",
        f"the ratio leaves a sequence no demand: share of runs that still settle (ours; {len(idle)} runs)",
        bound=0.4,
        measured=Resampled(idle.seed_means("settled"), np.mean),
    )


def _judge_flow(p: float, rows: Rows[Point]) -> Iterator[Claim]:
    kept = Rows(row for row in rows if row.measured["kept_tokens"])
    yield at_least(
        f"joint.flow.kept.p{p:g}",
        f"p = {p:g}, plain flow: share of runs that keep their tokens from a sixth of the time on",
        bound=0.75,
        measured=Resampled([*rows.seed_means("kept_tokens"), *[0.0] * len(rows.failed)], np.mean),
    )
    those = f"{len(kept)} of {len(rows)} runs, those that keep their tokens"
    decoder, weights = (kept.predicted(name) for name in ("decoder_slope", "weight_slope"))
    yield agreement(
        f"joint.flow.decoder.p{p:g}",
        f"p = {p:g}, plain flow: growth of label margin times |v| per log t ({those})",
        theory=decoder.value if decoder else None,
        measured=Mean(kept.values("decoder_slope")),
        tolerance=0.02,
    )
    yield agreement(
        f"joint.flow.weights.p{p:g}",
        f"p = {p:g}, plain flow: growth of relaxed margin times |W| per log log t, corrected for (p - 2) log |W| ({those})",
        theory=weights.value if weights else None,
        measured=Mean(kept.values("weight_slope")),
        # the law is of leading order in log t: pilots were 4 % (p = 2) and 2 % (p = 3) below, still rising
        tolerance=0.06 * p,
    )
    yield at_least(
        f"joint.flow.limit.p{p:g}",
        f"p = {p:g}, plain flow: how much nearer W moves to the relaxed limit than to the strict one, in cosine ({those})",
        bound=0.0,
        measured=Mean(kept.values("move_relaxed") - kept.values("move_strict")),
    )


def _cosine(one: NDArray[np.float64] | None, other: NDArray[np.float64]) -> float:
    if one is None:
        raise ValueError("the selected tokens cannot be separated: no limit exists")
    return float(np.vdot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))


def _least_cosine(row: Any) -> float:
    return float(min(row.measured["cosine_family"], row.measured["cosine_decoder"]))


def _nearer_end(row: Any) -> float:
    return float(max(row.measured["cosine_strict"], row.measured["cosine_relaxed"]))
