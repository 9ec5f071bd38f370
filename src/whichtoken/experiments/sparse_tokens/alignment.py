"""Two gradient steps turn the query towards the signal, or away from it.

Claim   In high dimension cosine and norm of the query after two steps from zero are functions of samples per dimension
        alone; the cosine tends to 1 as 1 - C/alpha0, and it is negative where the signal is too rare and too weak.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), Theorem 3 and Corollary 1; the formulas, the constant C, the sign condition and the bias that
        repairs the sign are derived here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.experiments.sparse_tokens._comparison import apart, legend, task_of, versus_theory
from whichtoken.lab import (
    Claim,
    Experiment,
    Grid,
    Mean,
    Measured,
    Predicted,
    Rows,
    Share,
    agreement,
    at_least,
    log_slope,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whichtoken.theory.sparse_tokens import TwoSteps

Array = NDArray[np.float64]

LEARNING_RATE = 0.5  # of bias and query; the alignment does not depend on the latter
HIGH = 0.8  # alignments above it are predicted to 1 %, those below to 0.02
# Raw values keep what the labels' luck and finite size do to them: in independent runs at d = 600 cosines lay 1.4 to 4 % off
RAW_COSINE, RAW_NORM = 0.06, 0.08  # relative
MANY = 8.0  # samples per dimension from which the approach to 1 is judged


@dataclass(frozen=True)
class Point:
    length: int = 10
    signal_tokens: int = 3
    strength: float = 6.0
    prevalence: float = 0.2
    dim: int = 1000
    samples_per_dim: float = 2.0
    loss: Literal["logistic", "square", "hinge"] = "logistic"
    lr_readout: float = 0.5
    bias_correction: bool = False
    reuse: bool = True  # of the samples of the first step in the second


def strengths(values: list[float], dim: int, seeds: tuple[int, int]) -> Grid:
    """A rare signal, from too weak to strong enough for a positive alignment, with and without the better bias."""
    return Grid(dim=dim, strength=values, samples_per_dim=4.0, bias_correction=[False, True], seeds=seeds)


COMMON = {"signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
LARGE_STEP = {"length": 5, "signal_tokens": 1, "strength": 4.0, "prevalence": 0.5, "lr_readout": 10.0}


class _Counted:
    """Chunks of a sample, and how many labels were positive in the latest pass over them."""

    def __init__(self, chunks: Iterable[tuple[Array, Array]]) -> None:
        self.chunks = chunks
        self.positive = 0

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        self.positive = 0
        for tokens, labels in self.chunks:
            self.positive += int(np.count_nonzero(labels > 0))
            yield tokens, labels


def _name(point: Point) -> str:
    """Task, samples and whatever else is not the default; a stable part of codes."""
    task = f"L{point.length}-R{point.signal_tokens}-s{point.strength:g}-p{point.prevalence:g}"
    special = {
        point.loss: point.loss != "logistic",
        f"step{point.lr_readout:g}": point.lr_readout != 0.5,
        "corrected": point.bias_correction,
        "fresh": not point.reuse,
    }
    size = f"a{point.samples_per_dim:g}.d{point.dim}"
    return ".".join([task, size, *(word for word, applies in special.items() if applies)])


class Alignment(Experiment[Point]):
    id = "sparse-tokens/alignment"
    version = 2
    presets = {
        "quick": (Grid(dim=500, seeds=44), Grid(dim=250, strength=2.0, samples_per_dim=4.0, seeds=72)),
        "full": (
            Grid(samples_per_dim=[0.5, 1.0, 2.0, 4.0], seeds=(24, 96)),
            Grid(**COMMON, samples_per_dim=[0.5, 2.0], seeds=(24, 96)),
            Grid(**COMMON, dim=250, seeds=(64, 128)),
            Grid(**COMMON, dim=500, seeds=(24, 96)),
            Grid(**COMMON, loss="square", seeds=(24, 96)),
            strengths([2.0, 3.0, 5.0], dim=500, seeds=(32, 64)),
            Grid(**LARGE_STEP, dim=2000, samples_per_dim=0.5, reuse=[True, False], seeds=(48, 96)),
            Grid(dim=200, samples_per_dim=[8.0, 16.0, 32.0], seeds=(64, 128)),
        ),
        "paper": (Grid(samples_per_dim=[0.5, 1.0, 2.0, 4.0], seeds=(10, 40)),),
    }
    method_fields = frozenset({"loss", "lr_readout", "bias_correction", "reuse"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import SparseTokens
        from whichtoken.training.two_step import two_step_query

        data = SparseTokens(**task_of(point), dim=point.dim)
        samples = round(point.samples_per_dim * point.dim)
        first = _Counted(data.stream(samples, rng))
        steps = two_step_query(
            first,
            loss=point.loss,
            lr_readout=point.lr_readout,
            lr_bias=LEARNING_RATE,
            lr_query=LEARNING_RATE,
            bias_correction=point.bias_correction,
            fresh=None if point.reuse else data.stream(samples, rng),
        )
        norm = float(np.linalg.norm(steps.query))
        alignment = float(steps.query @ data.direction) / norm
        # most of the scatter, and a bias at finite size, come from the number of positive labels: theory at the sample's
        # own share of them takes both out
        limit, sample = theory(point), theory(replace(point, prevalence=first.positive / samples))
        return {
            "alignment": alignment,
            "query_norm": norm,
            "readout_alignment": float(steps.readout @ data.direction / np.linalg.norm(steps.readout)),
            "adjusted_alignment": alignment + limit.alignment - sample.alignment,
            "adjusted_norm": norm * limit.query_norm / sample.query_norm,
            "deficit": 1 - abs(alignment + limit.alignment - sample.alignment),
        }

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        steps = theory(point)
        return {
            "alignment": Predicted(steps.alignment),
            "query_norm": Predicted(steps.query_norm),
            "readout_alignment": Predicted(steps.readout_alignment),
            "approach_constant": Predicted(steps.approach_constant),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        few = Rows(row for row in rows if row.point.samples_per_dim < MANY)
        for point in dict.fromkeys(row.point for row in few):
            yield from _follows_theory(few.where(**vars(point)), point)
        yield at_least(
            "alignment.sign",
            "share of runs in which the query turns towards the signal exactly where theta^2 R (1 - R/L) > (L-1)(1-2 pi)/pi",
            bound=0.9,
            measured=Share([_sign_as_the_rule_says(row.point, row.measured["alignment"]) for row in _plain(few)]),
        )
        many = Rows(row for row in rows if row.point.samples_per_dim >= MANY)
        for ending, runs in apart(many, "samples_per_dim"):
            yield from _approach(runs, ending)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_samples(rows, left)
        _draw_strengths(rows, right)


def theory(point: Point) -> TwoSteps:
    from whichtoken.theory.sparse_tokens import two_steps

    return two_steps(
        **task_of(point),
        samples_per_dim=point.samples_per_dim,
        lr_readout=point.lr_readout,
        lr_bias=LEARNING_RATE,
        lr_query=LEARNING_RATE,
        loss=point.loss,
        reuse=point.reuse,
        bias_correction=point.bias_correction,
    )


def _follows_theory(runs: Rows[Point], point: Point) -> Iterator[Claim]:
    name, words = _name(point), _described(point)
    high = abs(theory(point).alignment) > HIGH
    yield versus_theory(
        f"alignment.cosine.{name}",
        f"cosine of query and signal, at each run's own share of positives ({words})",
        runs,
        "alignment",
        relative=0.01 if high else 0.0,
        absolute=0.0 if high else 0.02,
        values=runs.values("adjusted_alignment"),
    )
    yield versus_theory(
        f"alignment.norm.{name}",
        f"norm of the query, at each run's own share of positives ({words})",
        runs,
        "query_norm",
        relative=0.03,
        values=runs.values("adjusted_norm"),
    )
    raw = f"as trained, nothing adjusted ({words})"
    yield versus_theory(
        f"alignment.raw-cosine.{name}",
        f"cosine of query and signal, {raw}",
        runs,
        "alignment",
        relative=RAW_COSINE if high else 0.0,
        absolute=0.0 if high else 0.04,
    )
    yield versus_theory(
        f"alignment.raw-norm.{name}", f"norm of the query, {raw}", runs, "query_norm", relative=RAW_NORM
    )


def _described(point: Point) -> str:
    """Task and training in words."""
    special = {
        f"{point.loss} loss": point.loss != "logistic",
        f"first step {point.lr_readout:g}": point.lr_readout != LEARNING_RATE,
        "bias at the log-odds": point.bias_correction,
        "second step on fresh samples": not point.reuse,
    }
    parts = [
        f"{point.signal_tokens} of {point.length} tokens with a signal of {point.strength:g}",
        f"{100 * point.prevalence:g} % positive",
        f"{point.samples_per_dim:g} samples per dimension, d = {point.dim}",
        *(word for word, applies in special.items() if applies),
    ]
    return "; ".join(parts)


def _approach(many: Rows[Point], ending: str) -> Iterator[Claim]:
    slope = log_slope(many, "samples_per_dim", "deficit")
    claim = "exponent of 1 - cosine as a power of samples per dimension"
    yield agreement(f"alignment.rate{ending}", claim, theory=-1.0, measured=slope, tolerance=0.05)
    largest = max(many.levels("samples_per_dim"))
    runs = many.where(samples_per_dim=largest)
    constant = runs.predicted("approach_constant")
    yield agreement(
        f"alignment.constant{ending}",
        f"samples per dimension times (1 - cosine) at {largest:g} of them, over the constant C of theory",
        theory=None if constant is None else 1.0,
        measured=Mean(largest * runs.values("deficit") / (1.0 if constant is None else constant.value)),
        tolerance=0.05,
    )


def _plain(rows: Rows[Point]) -> Rows[Point]:
    """Runs with logistic loss, small steps and no other bias, of which the sign condition speaks."""
    return rows.where(loss="logistic", lr_readout=0.5, bias_correction=False)


def _sign_as_the_rule_says(point: Point, alignment: float) -> bool:
    length, signal, rare = point.length, point.signal_tokens, point.prevalence
    pull = point.strength**2 * signal * (1 - signal / length)
    return (alignment > 0) == (pull > (length - 1) * (1 - 2 * rare) / rare)


def _curve(axes: Axes, points: list[Point], field: str, colour: str) -> None:
    axes.plot([getattr(point, field) for point in points], [theory(p).alignment for p in points], lw=1.5, color=colour)


def _draw_samples(rows: Rows[Point], axes: Axes) -> None:
    from whichtoken.display.figures import points_with_errors

    standard = _plain(rows).where(prevalence=Point.prevalence, strength=Point.strength)
    common = _plain(rows).where(**COMMON)
    for runs, colour in ((standard, "C0"), (common, "C1")):
        if not runs:
            continue
        point = runs[0].point
        most = Rows(row for row in runs if row.point.dim == max(runs.levels("dim")))
        label = f"R = {point.signal_tokens}, strength {point.strength:g}, prevalence {point.prevalence:g}"
        points_with_errors(axes, most, "samples_per_dim", "alignment", label, color=colour, ms=4)
        curve = [replace(point, samples_per_dim=float(alpha)) for alpha in np.geomspace(0.2, 40, 60)]
        _curve(axes, curve, "samples_per_dim", colour)
    axes.set(title="Two steps find the signal", xlabel="samples per dimension", xscale="log")
    axes.set(ylabel="cosine of query and signal", ylim=(0, 1.02))
    legend(axes, loc="lower right")


def _draw_strengths(rows: Rows[Point], axes: Axes) -> None:
    from whichtoken.display.figures import points_with_errors

    rare = rows.where(prevalence=Point.prevalence, samples_per_dim=4.0)
    for corrected, label, colour in ((False, "plain steps", "C0"), (True, "bias at the log-odds", "C2")):
        runs = rare.where(bias_correction=corrected)
        if not runs:
            continue
        points_with_errors(axes, runs, "strength", "alignment", label, color=colour, ms=4)
        curve = [replace(runs[0].point, strength=float(strength)) for strength in np.linspace(0.5, 7, 80)]
        _curve(axes, curve, "strength", colour)
    axes.axhline(0, color="grey", lw=0.8)
    axes.set(title="A rare, weak signal turns the query away", xlabel="signal strength", ylim=(-1.02, 1.02))
    legend(axes, loc="lower right")
