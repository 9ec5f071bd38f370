"""Key-query matrix and decoder, trained together, end in one of a family of max-margin problems.

Claim   In joint l_p mirror descent the decoder tends to its max-margin direction, and the key-query matrix to the member
        that |v|_p / |W|_p picks from a one-parameter family: the strict problem at ratio 0, the relaxed one at infinity.
        Normalized steps tend to a ratio that follows from the two step sizes and the selected tokens. Plain gradient
        flow has |v| ~ log t and |W| ~ log log t, so that it moves toward the relaxed end.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581): algorithm, two-sample
        problem, limit of the decoder; the family of limits of W, the ratio, the constants of the flow, and that attention
        stays split where the ratio leaves a sequence no demand, are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken import datasets, flows
from whichtoken.claims._checks import Checks, Claim, ClaimTable, as_predicted
from whichtoken.claims._figures import Axes, Figure, label_axes
from whichtoken.claims._problems import cosine, decoder_limit, share_of_repeats
from whichtoken.claims._runs import group_by, resampled_runs
from whichtoken.lab import Exact, Mean, Measured, Predicted, Resampled, Row, Rows
from whichtoken.theory import mirror_descent

if TYPE_CHECKING:
    from whichtoken.flows.descent import DescentResult

RATIO_BINS = 10.0 ** np.arange(-4.0, 2.0)
RATIO = "length of the decoder over that of W, |v| / |W|"
NEAR = 0.999  # smallest cosine at which a limit counts as reached
SATURATED = 0.99  # smallest attention at which a token counts as selected
# the two-sample problem of the source, tokens (2, 3, 2); the first token of each sequence is its query
PLANE = (((-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)), ((0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)))
PLANE_LABELS = (1, -1)
PLANE_TOKENS = {1.75: [1, 0], 2.0: [1, 0], 3.0: [0, 0]}  # selected tokens that the authors print
# Settings (lr, lr_decoder) at which the ratio is judged: for p < 2 steps so long that constraints take turns, else short ones.
# In between neither law is exact: with p = 1.75 and steps of one, pilots were 30 % below to 3 % above that of long steps.
LAW = {1.1: (0.1, 0.02), 1.4: (1.0, 0.3), 1.6: (10.0, 3.0), 1.75: (100.0, 40.0), 2.0: (1.0, 1.0), 3.0: (100.0, 100.0)}
EARLY = 6  # the laws of the flow are fitted after a sixth of the steps

TABLE = ClaimTable(__name__)


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


class Joint(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:

        problem = _problem(point, rng)
        record = np.unique(np.geomspace(point.steps / EARLY, point.steps, 30).astype(int))
        descent = flows.joint_descent(
            problem, np.zeros((point.dim, point.dim)), p=point.p, lr=point.lr, lr_decoder=point.lr_decoder,
            steps=point.steps, rule=point.rule, record=record,
        )  # fmt: skip
        limits = _limits(problem, descent, point.p)
        weights, decoder = descent.final.weights.direction, descent.final.decoder.direction
        attention = _least_attention(problem, descent)
        measured = {
            "tokens": descent.selected,
            "settled": descent.settled and attention >= SATURATED,
            "ratio": descent.final.ratio,
            "ratio_start": limits["start"],
            "ratio_end": limits["end"],
            "gap": limits["gap"],
            "cosine_decoder": cosine(limits["decoder"], decoder),
            **{f"cosine_{name}": cosine(limits[name], weights) for name in ("family", "strict", "relaxed")},
        }
        if point.rule == "flow":
            return measured | _laws(descent, limits, point)
        if LAW.get(point.p) == (point.lr, point.lr_decoder):
            expected = flows.joint_ratio(problem, descent.selected, p=point.p, lr=point.lr, lr_decoder=point.lr_decoder)
            measured["ratio_over_law"] = descent.final.ratio / expected
            measured["ratio_over_steps"] = descent.final.ratio * (point.lr / point.lr_decoder) ** (1 / (point.p - 1))
        return measured

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        """Growth in plain flow, as `joint_flow_growth` explains: of |v|_p with log t, of |W|_p with log log t."""
        return {"decoder_slope": Predicted(1.0), "weight_slope": Predicted(point.p)} if point.rule == "flow" else {}

    def judge(self, rows: Rows[Point]) -> Checks:
        if plane := rows.where(problem="plane"):
            same = [row.measured["tokens"] == PLANE_TOKENS[row.point.p] for row in plane if row.point.p in PLANE_TOKENS]
            yield TABLE.plane_selects(Exact(float(np.mean(same))) if same else Mean([]), on=plane)
            yield TABLE.plane_limit(Exact(float(min(map(_least_cosine, plane)))), on=plane)
        random = rows.where(problem="random", rule="normalized")
        if random or random.failed:
            yield from _judge_normalized(random)
        for p, runs in group_by(rows.where(rule="flow"), "p"):
            kept = Rows(row for row in runs if row.measured["kept_tokens"])
            code, words = f"p{p:g}", f"p = {p:g}, {len(kept)} of {len(runs)} runs, those that keep their tokens"
            share = resampled_runs(runs, "kept_tokens", statistic=np.mean)
            yield TABLE.flow_kept.part(code, f"p = {p:g}", share, on=runs)
            for criterion, name, tolerance in (
                (TABLE.flow_decoder, "decoder_slope", 0.02),
                (TABLE.flow_weights, "weight_slope", 0.06 * p),
            ):
                expected = as_predicted(kept, name, absolute=tolerance)
                yield criterion.part(code, words, kept.values(name), on=runs, **expected)
            nearer = kept.values("move_relaxed") - kept.values("move_strict")
            yield TABLE.flow_limit.part(code, words, nearer, on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.1, 1, 1])
        trained, flow = rows.where(rule="normalized"), rows.where(rule="flow")
        if trained:
            _draw_portrait(trained, left)
            _draw_cosines(Rows(row for row in trained if row.measured["settled"]), middle)
        if flow:
            _draw_flow(flow, right)


def _problem(point: Point, rng: np.random.Generator) -> datasets.AttentionProblem:
    """The problem with a decoder that starts at zero."""
    if point.problem == "plane":
        tokens = np.array(PLANE)
        return datasets.AttentionProblem(tokens, tokens[:, 0], np.array(PLANE_LABELS), np.zeros(2))
    drawn = datasets.AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
    return datasets.AttentionProblem(drawn.tokens, drawn.queries, drawn.labels, np.zeros(point.dim))


def _limits(problem: datasets.AttentionProblem, descent: DescentResult[Any], p: float) -> dict[str, Any]:
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
        "family": family.require_direction(),
        "strict": strict.require_direction(),
        "relaxed": relaxed.require_direction(),
        "relaxed_margin": relaxed.margin,
        "gap": max(family.gap, strict.gap, relaxed.gap),
        # from this ratio on the family is at its relaxed end; 0 if all sequences support the decoder
        "end": float(relaxed.margin / positive.min()) if positive.size else 0.0,
        # up to a small part of this ratio it is at its strict end
        "start": float(relaxed.margin / positive.max()) if positive.size else 0.0,
    }


def _least_attention(problem: datasets.AttentionProblem, descent: DescentResult[Any]) -> float:
    """The smallest share of attention that a selected token gets."""
    from whichtoken.attention import pool_weights

    final = descent.final.weights
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, final.direction, problem.queries)
    scores = math.exp(min(final.log_norm, 600.0)) * (scores - scores.max(axis=1, keepdims=True))
    attention = pool_weights(scores.ravel(), np.arange(0, scores.size + 1, scores.shape[1]))
    return float(attention.reshape(scores.shape).max(axis=1).min())


def _laws(descent: DescentResult[Any], limits: dict[str, Any], point: Point) -> dict[str, Any]:
    """Slopes of mu |v|_p in log t and of `joint_flow_growth` in log log t, and where W moves from first to last record."""
    from whichtoken.norms import power_norm

    log_times = np.array([state.weights.log_time for state in descent.snapshots])
    decoder, weights = (
        np.exp([getattr(state, name).log_norm for state in descent.snapshots]) for name in ("decoder", "weights")
    )
    first, last = (
        math.exp(state.weights.log_norm) * state.weights.direction for state in (descent.snapshots[0], descent.final)
    )
    move = (last - first) / power_norm(last - first, point.p)
    growth = mirror_descent.joint_flow_growth(weights, limits["relaxed_margin"], point.p)
    return {
        "log_times": log_times,
        "kept_tokens": EARLY * descent.last_change <= point.steps,
        "decoder_slope": np.polyfit(log_times, limits["label_margin"] * decoder, 1)[0],
        "weight_slope": np.polyfit(np.log(log_times), growth, 1)[0],
        "move_relaxed": cosine(limits["relaxed"], move),
        "move_strict": cosine(limits["strict"], move),
    }


def _judge_normalized(random: Rows[Point]) -> Checks:
    settled = Rows((row for row in random if row.measured["settled"]), random.failed)
    for p, runs in group_by(settled, "p"):
        words = f"p = {p:g}, {len(runs)} of {len(random.where(p=p))} runs settled"
        near = share_of_repeats(runs.seed_means(lambda row: _least_cosine(row) >= NEAR))
        yield TABLE.near_member.part(f"p{p:g}", words, near, on=runs)
    for p, judged in group_by(Rows(row for row in settled if "ratio_over_law" in row.measured), "p"):
        lr, lr_decoder = LAW[p]
        words = f"p = {p:g}, steps of {lr:g} and {lr_decoder:g}, {len(judged)} runs"
        yield TABLE.ratio_law.part(f"p{p:g}", words, judged.seed_means("ratio_over_law"), on=judged)
        if p < 2.0:
            median = Resampled(judged.seed_means("ratio_over_steps"), np.median)
            yield TABLE.ratio_of_steps.part(f"p{p:g}", words, median, on=judged)
    yield from _judge_ends(settled)
    demanding, idle = (
        Rows(row for row in random if (0.0 < row.measured["ratio_start"] <= row.measured["ratio"]) == beyond)
        for beyond in (False, True)
    )
    # a run that ends with tokens that no decoder classifies has failed: it counts as one that does not settle
    settles = resampled_runs(Rows(demanding, random.failed), "settled", statistic=np.mean)
    yield TABLE.settled(settles, on=random, runs=len(demanding))
    yield TABLE.split(Resampled(idle.seed_means("settled"), np.mean), on=idle, runs=len(idle))


def _judge_ends(settled: Rows[Point]) -> Checks:
    differ = Rows(row for row in settled if row.measured["ratio_end"] > 0.0)
    position = differ.values("ratio") / differ.values("ratio_start")
    end = differ.values("ratio") / differ.values("ratio_end")
    small, between, large = (
        Rows(row for row, chosen in zip(differ, inside, strict=True) if chosen)
        for inside in (position <= 0.02, (position >= 0.2) & (end <= 0.8), end >= 1.0)
    )
    near = share_of_repeats(small.seed_means(lambda row: row.measured["cosine_strict"] >= NEAR))
    yield TABLE.strict(near, on=small, runs=len(small))
    yield TABLE.relaxed(1 - large.seed_means("cosine_relaxed"), on=large, runs=len(large))
    yield TABLE.between(between.seed_means(_lead_over_ends), on=between, runs=len(between))


def _least_cosine(row: Row[Point]) -> float:
    return float(min(row.measured["cosine_family"], row.measured["cosine_decoder"]))


def _lead_over_ends(row: Row[Point]) -> float:
    ends = float(max(row.measured["cosine_strict"], row.measured["cosine_relaxed"]))
    return float(row.measured["cosine_family"] - ends)


def _draw_portrait(rows: Rows[Point], axes: Axes) -> None:
    """Over ratio and p: cosine to the strict limit, and how many runs end with attention on single tokens."""
    ps = sorted(rows.levels("p"))
    table = np.full((len(ps), len(RATIO_BINS) - 1), np.nan)
    label_axes(axes, "Cosine to the strict limit, and share of runs settled", RATIO, log="x", yticks=[])
    for i, p in enumerate(ps):
        runs = rows.where(p=p)
        bins = np.digitize(runs.values("ratio"), RATIO_BINS) - 1
        for j in set(bins.tolist()) & set(range(table.shape[1])):
            inside = Rows(row for row, found in zip(runs, bins, strict=True) if found == j)
            settled = inside.values("settled")
            if settled.any():
                table[i, j] = inside.values("cosine_strict")[settled].mean()
            text = f"{table[i, j]:.3f}\n{settled.mean():.0%}" if settled.any() else f"{settled.mean():.0%}"
            axes.text(np.sqrt(RATIO_BINS[j] * RATIO_BINS[j + 1]), i + 0.5, text, ha="center", va="center", fontsize=8)
    axes.pcolormesh(RATIO_BINS, np.arange(len(ps) + 1), table, cmap="Blues_r", vmin=0.7, vmax=1.1, alpha=0.6)
    axes.set_yticks(np.arange(len(ps)) + 0.5, [f"p = {p:g}" for p in ps])
    axes.grid(False)


def _draw_cosines(rows: Rows[Point], axes: Axes) -> None:
    for name, words, marker in (
        ("strict", "strict problem", "v"),
        ("relaxed", "relaxed problem", "^"),
        ("family", "member of the family at that ratio", "."),
    ):
        distance = np.maximum(1 - rows.values(f"cosine_{name}"), 1e-12)
        axes.plot(rows.values("ratio"), distance, marker, ms=4, alpha=0.6, label=words)
    label_axes(axes, "Distance from three limits, 1 - cosine", RATIO, log="xy", xlim=(1e-4, 1e2), legend=True)


def _draw_flow(rows: Rows[Point], axes: Axes) -> None:
    for number, row in enumerate(rows):
        if row.seed < 4 and row.point.p == rows[0].point.p:
            for name, color, words in (("decoder", "C0", "decoder, |v|"), ("weight", "C1", "key-query matrix, |W|")):
                label = words if number == 0 else None
                axes.plot(row.measured["log_times"], row.measured[f"{name}_norms"], color, lw=1, label=label)
    axes.set(xscale="log", yscale="log", title="Plain flow: how lengths grow", xlabel="logarithm of the time")
    axes.minorticks_off()
    axes.set_xticks([100, 200, 400, 800], ["100", "200", "400", "800"])
    axes.legend()
