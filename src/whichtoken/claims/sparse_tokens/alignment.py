"""Two gradient steps turn the query toward the signal, or away from it.

Claim   In high dimension cosine and norm of the query after two steps from zero are functions of samples per dimension
        alone; the cosine tends to 1 as 1 - C/alpha0, and it is negative where the signal is too rare and too weak.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153): that two updates give a nontrivial alignment is in the abstract; Theorem 3, Corollary 1 and the figure
        are known from secondary sources without their formulas. The formulas, the constant C, the sign condition and the
        bias that repairs the sign are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions, as_predicted
from whichtoken.claims._figures import Axes, Figure, legend, points_with_errors
from whichtoken.claims._runs import each_point, rows_where, share_of_runs
from whichtoken.claims.sparse_tokens import _tasks as tasks
from whichtoken.lab import Measured, Predicted, Rows, log_slope
from whichtoken.theory import sparse_tokens

HIGH = 0.8  # alignments above it are predicted to 1 %, those below to 0.02
# Raw values keep what the random labels and finite size do to them: in independent runs at d = 600 cosines lay 1.4 to 4 % off
RAW_COSINE = 0.06  # relative
MANY = 8.0  # samples per dimension from which the approach to 1 is judged

TABLE = ClaimTable(__name__)


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


COMMON = {"signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}


class _Counted:
    """Chunks of a sample, and how many labels were positive in the latest pass over them."""

    def __init__(self, chunks: Iterable[tuple[Any, Any]]) -> None:
        self.chunks = chunks
        self.positive = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        self.positive = 0
        for tokens, labels in self.chunks:
            self.positive += int(np.count_nonzero(labels > 0))
            yield tokens, labels


def _special(point: Point) -> list[tuple[str, str]]:
    """What is not the default: its part of a code, and its words."""
    parts = (
        (point.loss != "logistic", point.loss, f"{point.loss} loss"),
        (point.lr_readout != tasks.LEARNING_RATE, f"step{point.lr_readout:g}", f"first step {point.lr_readout:g}"),
        (point.bias_correction, "corrected", "bias at the log-odds"),
        (not point.reuse, "fresh", "second step on fresh samples"),
    )
    return [(code, words) for applies, code, words in parts if applies]


def _name(point: Point) -> str:
    """A stable part of codes."""
    size = f"a{point.samples_per_dim:g}.d{point.dim}"
    return ".".join([tasks.task_code(point), size, *(code for code, _ in _special(point))])


def _words(point: Point) -> str:
    samples = f"{point.samples_per_dim:g} samples per dimension, d = {point.dim}"
    parts = [tasks.task_words(point), f"{100 * point.prevalence:g} % positive", samples]
    return "; ".join([*parts, *(words for _, words in _special(point))])


class Alignment(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:

        data = tasks.sequences_of(point)
        samples = round(point.samples_per_dim * point.dim)
        first = _Counted(data.stream(samples, rng))
        steps = sparse_tokens.two_step_query(
            first,
            loss=point.loss,
            lr_readout=point.lr_readout,
            lr_bias=tasks.LEARNING_RATE,
            lr_query=tasks.LEARNING_RATE,
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

    def predict(self, point: Point) -> Predictions:
        steps = theory(point)
        names = ("alignment", "query_norm", "readout_alignment", "approach_constant")
        return {name: Predicted(getattr(steps, name)) for name in names}

    def judge(self, rows: Rows[Point]) -> Checks:
        few = rows_where(rows, lambda point: point.samples_per_dim < MANY)
        points = list(each_point(few))
        source = [(point, runs) for point, runs in points if _is_of_the_source(point)]
        for point, runs in source:
            if _turns_to_signal(point):
                chance = 2 / math.sqrt(point.dim)
                yield TABLE.nontrivial.part(
                    _name(point), _words(point), runs.values("alignment"), on=runs, value=chance
                )
        for what, quantity in (("query", "alignment"), ("readout", "readout_alignment")):
            for point, runs in source:
                if point == replace(Point(), samples_per_dim=point.samples_per_dim):
                    label, expected = f"{what}.{_name(point)}", as_predicted(runs, quantity, relative=RAW_COSINE)
                    yield TABLE.figure.part(
                        label, f"{what}: {_words(point)}", runs.values(quantity), on=runs, **expected
                    )
        adjusted = "adjusted_alignment", "alignment"  # what is measured, and its prediction
        for criterion, (measured, quantity), applies in (
            (TABLE.cosine, adjusted, _is_of_the_source),
            (TABLE.corrected, adjusted, lambda point: point.bias_correction),
            (TABLE.large_first_step, adjusted, lambda point: point.lr_readout != tasks.LEARNING_RATE),
            (TABLE.raw, ("alignment", "alignment"), lambda point: True),
            (TABLE.norm, ("adjusted_norm", "query_norm"), lambda point: True),
        ):
            for point, runs in points:
                if applies(point):
                    room = {"relative": 0.03} if criterion is TABLE.norm else _room(point, raw=criterion is TABLE.raw)
                    expected = as_predicted(runs, quantity, **room)
                    yield criterion.part(_name(point), _words(point), runs.values(measured), on=runs, **expected)
        plain = _plain(few)
        turns = share_of_runs(plain, lambda row: (row.measured["alignment"] > 0) == _turns_to_signal(row.point))
        yield TABLE.sign(turns, on=plain)
        many = rows_where(rows, lambda point: point.samples_per_dim >= MANY)
        for ending, runs in tasks.split_tasks(many, "samples_per_dim"):
            label = ending.lstrip(".") or tasks.task_code(next(iter((*runs, *runs.failed))).point)
            yield TABLE.rate.part(label, TABLE.rate.words, log_slope(runs, "samples_per_dim", "deficit"), on=runs)
            largest = max(runs.levels("samples_per_dim"), default=MANY)
            last = runs.where(samples_per_dim=largest)
            constant = last.predicted("approach_constant")
            scaled = largest * last.values("deficit") / (1.0 if constant is None else constant.value)
            words, value = f"at {largest:g} samples per dimension", None if constant is None else 1.0
            yield TABLE.constant.part(label, words, scaled, on=last, value=value)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        standard = _plain(rows).where(prevalence=Point.prevalence, strength=Point.strength)
        for color, runs in (("C0", standard), ("C1", _plain(rows).where(**COMMON))):
            if runs:
                point = runs[0].point
                label = f"R = {point.signal_tokens}, strength {point.strength:g}, prevalence {point.prevalence:g}"
                largest = runs.where(dim=max(runs.levels("dim")))
                _draw_curve(left, largest, "samples_per_dim", np.geomspace(0.2, 40, 60), label, color)
        left.set(title="Two steps find the signal", xlabel="samples per dimension", xscale="log")
        left.set(ylabel="cosine of query and signal", ylim=(0, 1.02))
        rare = rows.where(prevalence=Point.prevalence, samples_per_dim=4.0)
        for corrected, label, color in ((False, "plain steps", "C0"), (True, "bias at the log-odds", "C2")):
            if runs := rare.where(bias_correction=corrected):
                _draw_curve(right, runs, "strength", np.linspace(0.5, 7, 80), label, color)
        right.axhline(0, color="grey", lw=0.8)
        right.set(title="A rare, weak signal turns the query away", xlabel="signal strength", ylim=(-1.02, 1.02))
        for axes in (left, right):
            legend(axes, loc="lower right")


def theory(point: Point) -> sparse_tokens.TwoSteps:
    return tasks.query_theory(
        point,
        point.samples_per_dim,
        lr_readout=point.lr_readout,
        loss=point.loss,
        reuse=point.reuse,
        bias_correction=point.bias_correction,
    )


def _room(point: Point, raw: bool = False) -> dict[str, float]:
    """Difference from theory that does not matter: relative for cosines near 1, absolute for others."""
    if abs(theory(point).alignment) > HIGH:
        return {"relative": RAW_COSINE if raw else 0.01}
    return {"absolute": 0.04 if raw else 0.02}


def _is_of_the_source(point: Point) -> bool:
    """Whether the two steps are those of the source: small, from zero, the second on the samples of the first."""
    return not point.bias_correction and point.lr_readout == tasks.LEARNING_RATE and point.reuse


def _plain(rows: Rows[Point]) -> Rows[Point]:
    """Runs with logistic loss, small steps and no other bias, to which the sign condition applies."""
    return rows.where(loss="logistic", lr_readout=0.5, bias_correction=False)


def _turns_to_signal(point: Point) -> bool:
    """Whether the sign condition lets the query turn toward the signal."""
    length, signal, rare = point.length, point.signal_tokens, point.prevalence
    pull = point.strength**2 * signal * (1 - signal / length)
    return pull > (length - 1) * (1 - 2 * rare) / rare


def _draw_curve(axes: Axes, runs: Rows[Point], field: str, values: Any, label: str, color: str) -> None:
    """Runs as points, and theory as a line over these values of the field."""
    points_with_errors(axes, runs, field, "alignment", label, color=color, ms=4)
    point: Any = runs[0].point
    expected = [theory(replace(point, **{field: float(value)})).alignment for value in values]
    axes.plot(values, expected, lw=1.5, color=color)
