"""Training loss and test error of attention and of two linear models, predicted without a simulation.

Claim   Attention trained in four stages, and linear models on the mean token or on all tokens, have the training loss and
        the test error that a low-dimensional fixed point gives; attention is far better, errors approach their limits as
        one over the samples, and a readout trained on the query's own samples fits them better by what theory says.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), Theorems 4 and 5 and the figure of errors against samples; the equations, and those of reuse, are
        derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken.experiments.sparse_tokens._comparison import apart, legend, task_of, versus_theory
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Predicted, Rows, agreement, at_most

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

MODELS = ("attention", "pooled", "vectorized")
NAMES = ("attention", "mean pooling", "linear on all tokens")  # of the models, for readers
LEARNING_RATE = 0.5
UNLIMITED = 1e7  # samples per dimension that stand for all data in the world
FAR = 1e3  # and those at which an error falls as one over the samples, to the last percent
# Relative differences that do not matter, fixed on pilot runs outside of the presets' seeds: at d = 500 means of eight lay
# within 4 % (test error) and 7 % (training loss, most of it scatter) of the limit, so what is left of finite size has room
TOLERANCE = {"test_error": 0.06, "train_loss": 0.08}
EXCESS_TOLERANCE = 0.08  # of the excess error, a difference of two close numbers
REUSE_TOLERANCE = 0.03  # of the ratio of test errors, in which the scatter that both share cancels
QUANTITIES = {"train_loss": "training loss", "test_error": "test error"}


@dataclass(frozen=True)
class Point:
    length: int = 10
    signal_tokens: int = 1
    strength: float = 5.0
    prevalence: float = 0.5
    dim: int = 500
    samples_per_dim: float = 2.0  # of the readout
    model: Literal["attention", "pooled", "vectorized"] = "attention"
    # trained by two logistic steps on tokens, or given, with features drawn from their exact law
    query: Literal["trained", "given"] = "trained"
    query_samples: float = 2.0  # per dimension, of a trained query
    alignment: float = 0.9  # of a given query
    inverse_temperature: float = 1.0  # times the norm of the query
    ridge: float = 1e-2
    loss: Literal["logistic", "square", "hinge"] = "logistic"
    split: bool = True  # fresh samples for the readout, not those of the query


SMALL_RIDGE: dict[str, Any] = {"ridge": 1e-5}
OTHER_TASK: dict[str, Any] = {"length": 5, "signal_tokens": 2, "strength": 3.0, "prevalence": 0.3}
GIVEN: dict[str, Any] = {"query": "given", "alignment": 0.7, "inverse_temperature": 1.5, **OTHER_TASK}


def approach(samples: list[float], seeds: int | tuple[int, int]) -> Grid:
    """Ridgeless least squares, where the approach to the limit is purest."""
    field = {"model": ["attention", "pooled"], "query": "given", "loss": "square", "ridge": 0.0, "dim": 200}
    return Grid(**field, samples_per_dim=samples, seeds=seeds)


def few_reused(dim: int, seeds: tuple[int, int]) -> Grid:
    """Few samples in short sequences, where each owns most of the query: reuse shows most."""
    task = {**OTHER_TASK, "query_samples": 1.0, "samples_per_dim": 1.0, "inverse_temperature": 2.0}
    return Grid(**task, dim=dim, split=False, seeds=seeds)


def _name(point: Point) -> str:
    """What tells this point from the others of a preset; a stable part of codes."""
    special = {
        point.loss: point.loss != "logistic",
        f"L{point.length}": point.length != 10,
        "given": point.query == "given",
        "reuse": not point.split,
    }
    name = f"{point.model}.a{point.samples_per_dim:g}.ridge{point.ridge:g}"
    return ".".join([name, *(word for word, applies in special.items() if applies)])


class Errors(Experiment[Point]):
    id = "sparse-tokens/errors"
    version = 2  # reuse has a theory of its own
    presets = {
        "quick": (
            Grid(dim=200, samples_per_dim=[1.0, 2.0], seeds=(96, 192)),
            Grid(dim=200, samples_per_dim=[1.0, 2.0], model="pooled", seeds=48),
            Grid(dim=100, samples_per_dim=[1.0, 2.0], model="vectorized", seeds=32),
            approach([8.0], seeds=360),
        ),
        "full": (
            Grid(**SMALL_RIDGE, samples_per_dim=[0.5, 1.0, 2.0, 4.0], model=["attention", "pooled"], seeds=(24, 96)),
            Grid(**SMALL_RIDGE, samples_per_dim=[0.5, 1.0, 2.0, 4.0], model="vectorized", dim=100, seeds=(24, 96)),
            Grid(loss=["logistic", "square"], split=[True, False], seeds=(32, 128)),
            few_reused(500, seeds=(24, 96)),
            Grid(**GIVEN, ridge=0.1, loss=["logistic", "square", "hinge"], samples_per_dim=3.0, seeds=(24, 96)),
            Grid(**OTHER_TASK, query_samples=4.0, samples_per_dim=3.0, inverse_temperature=1.5, seeds=(24, 96)),
            approach([8.0, 32.0], seeds=(240, 480)),
        ),
        "paper": (Grid(**SMALL_RIDGE, dim=1000, samples_per_dim=[0.5, 1.0, 2.0], model=list(MODELS), seeds=(8, 32)),),
    }  # fmt: skip
    method_fields = frozenset({"model", "inverse_temperature", "ridge", "loss", "split"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.model == "vectorized":  # it has no query
            return _vectorized(point, rng)
        return _given_query(point, rng) if point.query == "given" else _trained_query(point, rng)

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        from whichtoken.theory.sparse_tokens import erm

        if not point.split and point.model == "attention":
            return _reused(point)
        problem = {**_problem(point), "ridge": point.ridge, "loss": point.loss}
        found = erm(**problem, samples_per_dim=point.samples_per_dim)
        predicted = {
            "train_loss": Predicted(found.train_loss, found.train_loss_error),
            "test_error": Predicted(found.test_error, found.error_estimate),
        }
        if point.ridge == 0:
            limit = erm(**problem, samples_per_dim=UNLIMITED, accuracy=1e-5)
            near = erm(**problem, samples_per_dim=FAR, accuracy=1e-5)
            constant = FAR * (near.test_error - limit.test_error)
            predicted |= {
                "limit": Predicted(limit.test_error, limit.error_estimate),
                "excess": Predicted(point.samples_per_dim * (found.test_error - limit.test_error)),
                "approach_constant": Predicted(constant),
            }
        return predicted

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        curves = Rows(row for row in rows if row.point.ridge > 0)
        for name in dict.fromkeys(_name(row.point) for row in curves):
            for ending, runs in apart(Rows(row for row in curves if _name(row.point) == name)):
                yield from _follow_theory(runs, name + ending)
        for baseline in ("pooled", "vectorized"):
            yield at_most(
                f"errors.attention-over-{baseline}",
                f"largest ratio of test errors at equal samples for the readout, attention over {baseline}",
                bound=0.5,
                measured=Mean(curves.per_seed(partial(_worst_ratio, baseline))),
            )
        yield from _reuse(curves)
        approaching = rows.where(ridge=0.0)
        for model in approaching.levels("model"):
            for ending, runs in apart(approaching.where(model=model), "samples_per_dim"):
                yield from _approach(runs, model, ending)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        sweep = Rows(row for row in rows if row.point.query == "trained" and row.point.split and row.point.length == 10)
        ridge = min(sweep.levels("ridge"), default=0.0)
        groups = apart(sweep.where(ridge=ridge, loss="logistic"), "model", "samples_per_dim", "dim")
        ending, curves = next(groups, ("", Rows()))  # one task to a picture
        _draw_curves(curves, "test_error", left)
        _draw_curves(curves, "train_loss", right)
        left.set(title=f"Test error: theory (lines), training (dots){ending}", ylim=(0, 0.52))
        right.set(title="Training loss", yscale="log")
        legend(left)


def _problem(point: Point) -> dict[str, Any]:
    """Model, task and query as theory takes them; a trained query is itself predicted."""
    from whichtoken.theory.sparse_tokens import two_steps

    problem = {"model": point.model, **task_of(point)}
    if point.model != "attention":
        return problem
    alignment = point.alignment
    if point.query == "trained":
        alignment = two_steps(
            **task_of(point),
            samples_per_dim=point.query_samples,
            lr_readout=LEARNING_RATE,
            lr_bias=LEARNING_RATE,
            lr_query=LEARNING_RATE,
        ).alignment
    return {**problem, "alignment": alignment, "inverse_temperature": point.inverse_temperature}


def _reused(point: Point) -> dict[str, Predicted]:
    from whichtoken.theory.sparse_tokens import reused_erm

    found = reused_erm(
        **task_of(point),
        samples_per_dim=point.query_samples,
        inverse_temperature=point.inverse_temperature,
        ridge=point.ridge,
        loss=point.loss,
        lr_readout=LEARNING_RATE,
        lr_bias=LEARNING_RATE,
        bias_correction=False,
    )
    return {
        "train_loss": Predicted(found.train_loss, found.train_loss_error),
        "test_error": Predicted(found.test_error, found.error_estimate),
    }


def _trained_query(point: Point, rng: np.random.Generator) -> Measured:
    """The whole protocol on tokens, drawn in chunks; mean pooling sees the second sample only."""
    from whichtoken.data import SparseTokens
    from whichtoken.theory.sparse_tokens import exact_error
    from whichtoken.training.convex_head import fit_head
    from whichtoken.training.two_step import attention_features, fit_attention

    data = SparseTokens(**task_of(point), dim=point.dim)
    first = data.stream(round(point.query_samples * point.dim), rng)
    second = data.stream(round(point.samples_per_dim * point.dim), rng)
    if point.model == "pooled":
        head = fit_head(*attention_features(second), point.ridge, point.loss)
        error = exact_error(head.readout, head.bias, data.direction, **task_of(point))
        return {"train_loss": head.train_loss, "test_error": error}
    fit = fit_attention(
        first,
        second if point.split else None,
        ridge=point.ridge,
        head_loss=point.loss,
        target_temperature=point.inverse_temperature,
        lr_readout=LEARNING_RATE,
        lr_bias=LEARNING_RATE,
        bias_correction=False,  # the protocol of the source
    )
    error = exact_error(fit.readout, fit.bias, data.direction, query=fit.query, **task_of(point))
    alignment = float(fit.query @ data.direction / np.linalg.norm(fit.query))
    return {"train_loss": fit.head.train_loss, "test_error": error, "alignment": alignment}


def _given_query(point: Point, rng: np.random.Generator) -> Measured:
    """A readout on features of a query with known alignment; without temperature they are mean tokens."""
    from whichtoken.data import SparseTokens
    from whichtoken.models.attended_features import attended_features
    from whichtoken.theory.sparse_tokens import exact_error
    from whichtoken.training.convex_head import fit_head

    data = SparseTokens(**task_of(point), dim=point.dim)
    temperature = point.inverse_temperature if point.model == "attention" else 0.0
    samples = round(point.samples_per_dim * point.dim)
    head = fit_head(*attended_features(data, samples, point.alignment, temperature, rng), point.ridge, point.loss)
    query, signal = np.zeros((2, point.dim))
    query[0] = temperature
    signal[:2] = point.alignment, np.sqrt(1 - point.alignment**2)
    error = exact_error(head.readout, head.bias, signal, query=query, **task_of(point))
    return {"train_loss": head.train_loss, "test_error": error}


def _vectorized(point: Point, rng: np.random.Generator) -> Measured:
    from whichtoken.data import SparseTokens
    from whichtoken.theory.sparse_tokens import exact_error_vectorized
    from whichtoken.training.convex_head import fit_head

    data = SparseTokens(**task_of(point), dim=point.dim)
    tokens, labels = data.sample(round(point.samples_per_dim * point.dim), rng)
    head = fit_head(tokens.reshape(len(labels), -1), labels, point.ridge, point.loss)
    error = exact_error_vectorized(
        head.readout.reshape(point.length, point.dim),
        head.bias,
        data.direction,
        signal_tokens=point.signal_tokens,
        strength=point.strength,
        prevalence=point.prevalence,
    )
    return {"train_loss": head.train_loss, "test_error": error}


def _follow_theory(runs: Rows[Point], name: str) -> Iterator[Claim]:
    for part, quantity in (("train", "train_loss"), ("test", "test_error")):
        yield versus_theory(
            f"errors.{part}.{name}",
            f"{QUANTITIES[quantity]} of {_described(runs[0].point)}",
            runs,
            quantity,
            relative=TOLERANCE[quantity],
        )


def _described(point: Point) -> str:
    """The training of a point in words."""
    linear = "a linear model on"
    model = {"attention": "attention", "pooled": f"{linear} the mean token", "vectorized": f"{linear} all tokens"}
    query = {"given": f", query of cosine {point.alignment:g} given"}.get(point.query, "")
    samples = f"{point.samples_per_dim:g} samples per dimension"
    if not point.split:
        query, samples = (
            ", query and readout trained on the same samples",
            f"{point.query_samples:g} of them per dimension",
        )
    task = f"{point.signal_tokens} of {point.length} tokens with a signal of {point.strength:g}"
    query = query if point.model == "attention" else ""
    return f"{model[point.model]}{query} ({samples}, {task}, {point.loss} loss, ridge {point.ridge:g}, d = {point.dim})"


def _worst_ratio(baseline: str, repeat: Rows[Point]) -> float | None:
    """Of one repeat, over the numbers of samples at which both models were trained the same way."""
    ratios = [
        row.measured["test_error"] / other.measured["test_error"]
        for row in repeat.where(model="attention", query="trained", split=True, loss="logistic")
        for other in repeat.where(
            model=baseline, samples_per_dim=row.point.samples_per_dim, ridge=row.point.ridge, **task_of(row.point)
        )
    ]
    return max(ratios, default=None)


def _reuse(curves: Rows[Point]) -> Iterator[Claim]:
    for loss in curves.where(split=False).levels("loss"):
        fields = {"model": "attention", "loss": loss, "query": "trained", "ridge": Point.ridge}
        for ending, runs in apart(curves.where(**fields, samples_per_dim=2.0, length=10), "split"):
            split, reuse = (runs.where(split=value) for value in (True, False))
            repeats = min(len(split), len(reuse))
            if not repeats:
                continue
            fresh, again = (some.values("test_error")[:repeats] for some in (split, reuse))
            expected, base = (some.predicted("test_error") for some in (reuse, split))
            ratio = None if expected is None or base is None else float(expected.value / base.value)
            yield agreement(
                f"errors.reuse.{loss}{ending}",
                f"{loss} loss{ending}: test error of a readout trained on the query's own samples, over that with fresh ones",
                theory=ratio,
                measured=Mean(ratio_of_means(again, fresh)),
                tolerance=REUSE_TOLERANCE,
            )


def ratio_of_means(above: Array, below: Array) -> Array:
    """A value per pair whose mean is the ratio of means and whose scatter is that of the ratio, to first order."""
    ratio = above.mean() / below.mean()
    values: Array = ratio + (above - ratio * below) / below.mean()
    return values


def _approach(runs: Rows[Point], model: str, ending: str) -> Iterator[Claim]:
    limit = runs.predicted("limit")
    base = 0.0 if limit is None else float(limit.value)
    for samples in runs.levels("samples_per_dim"):
        some = runs.where(samples_per_dim=samples)
        scaled = samples * (some.values("test_error") - base)
        yield versus_theory(
            f"errors.excess.{model}.a{samples:g}{ending}",
            f"least squares, {model}{ending}: samples per dimension times excess error over unlimited data, at {samples:g}",
            some,
            "excess",
            relative=EXCESS_TOLERANCE,
            values=scaled,
        )
    if samples >= 32:
        claim = f"least squares, {model}{ending}: samples per dimension times excess error, against its limit for many samples"
        code = f"errors.approach.{model}{ending}"
        yield versus_theory(code, claim, some, "approach_constant", relative=0.1, values=scaled)


def _draw_curves(rows: Rows[Point], quantity: str, axes: Axes) -> None:
    from whichtoken.display.figures import points_with_errors

    for colour, model, name in zip(("C0", "C1", "C2"), MODELS, NAMES, strict=True):
        runs = rows.where(model=model)
        if not runs:
            continue
        points_with_errors(axes, runs, "samples_per_dim", quantity, name, color=colour, ms=4)
        levels = sorted(runs.levels("samples_per_dim"))
        predicted = [runs.where(samples_per_dim=level).predicted(quantity) for level in levels]
        known = [(level, item.value) for level, item in zip(levels, predicted, strict=True) if item is not None]
        axes.plot(*zip(*known, strict=True), color=colour, lw=1.5)
    axes.set(xlabel="samples per dimension", xscale="log")
    levels = sorted(rows.levels("samples_per_dim"))
    axes.set_xticks(levels, [f"{level:g}" for level in levels])
    axes.set_xticks([], minor=True)
