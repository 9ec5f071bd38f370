"""Training loss and test error of attention and of two linear models, predicted without a simulation.

Claim   Attention trained in four stages, and linear models on the mean token or on all tokens, have the training loss and
        the test error that a low-dimensional fixed point gives; attention is far better, errors approach their limits as
        one over the samples, and a readout trained on the query's own samples fits them better by what theory says.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), abstract, Theorems 4 and 5 and the figure of errors against samples, whose formulas and curves were not
        read: the equations, and those of reuse, are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Criterion, Predictions, as_predicted
from whichtoken.claims._figures import Figure, legend, level_ticks, points_on_theory
from whichtoken.claims._runs import Array, group_by, pairs, rows_where
from whichtoken.claims.sparse_tokens import _tasks as tasks
from whichtoken.claims.sparse_tokens._tasks import OneSignalToken
from whichtoken.lab import Check, Measured, Predicted, Rows
from whichtoken.theory import sparse_tokens

MODELS = {"attention": "attention", "pooled": "mean pooling", "vectorized": "linear on all tokens"}
LEAST = 1e-12  # ratio of excess errors that stands for none
UNLIMITED = 1e7  # samples per dimension that stand for unlimited data
FAR = 1e3  # and those at which an error falls as one over the samples, to the last percent
# Relative differences that do not matter, fixed on pilot runs outside of the presets' seeds: at d = 500 means of eight lay
# within 4 % (test error) and 7 % (training loss, most of it scatter) of the limit, so what is left of finite size has room
TEST_ERROR, TRAIN_LOSS = 0.06, 0.08
EXCESS_TOLERANCE = 0.08  # of the excess error, a difference of two close numbers
REUSE_TOLERANCE = 0.03  # of the ratio of test errors, in which the scatter that both share cancels
TOLERANCES = {"train": ("train_loss", TRAIN_LOSS, "training loss"), "test": ("test_error", TEST_ERROR, "test error")}

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(OneSignalToken):
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


class Errors(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        data, samples = tasks.sequences_of(point), round(point.samples_per_dim * point.dim)
        training: dict[str, Any] = {"ridge": point.ridge, "loss": point.loss}
        if point.model == "vectorized":  # it has no query
            return tasks.train_on_all_tokens(data, samples, rng, **training)
        if point.query == "trained":  # the whole protocol on tokens, drawn in chunks
            first = data.stream(round(point.query_samples * point.dim), rng)
            second = data.stream(samples, rng)
            again = point.model == "attention" and not point.split
            training["inverse_temperature"] = point.inverse_temperature
            return tasks.train_readout(point.model, data, first, None if again else second, **training)
        temperature = point.inverse_temperature if point.model == "attention" else 0.0
        loss, error = tasks.fit_given_query(point, temperature, rng, point.loss)
        return {"train_loss": loss, "test_error": error}

    def predict(self, point: Point) -> Predictions:

        learning: dict[str, Any] = {**tasks.task_of(point), "ridge": point.ridge, "loss": point.loss}
        reuse = not point.split and point.model == "attention"
        if reuse:
            found: Any = sparse_tokens.reused_erm(
                **learning,
                samples_per_dim=point.query_samples,
                inverse_temperature=point.inverse_temperature,
                lr_readout=tasks.LEARNING_RATE,
                lr_bias=tasks.LEARNING_RATE,
                bias_correction=False,
            )
        else:
            problem = {**learning, "model": point.model}
            if point.model == "attention":  # a trained query is itself predicted
                trained = point.query == "trained"
                alignment = tasks.query_theory(point, point.query_samples).alignment if trained else point.alignment
                problem |= {"alignment": alignment, "inverse_temperature": point.inverse_temperature}
            found = sparse_tokens.erm(**problem, samples_per_dim=point.samples_per_dim)
        predicted = {
            "train_loss": Predicted(found.train_loss, found.train_loss_error),
            "test_error": Predicted(found.test_error, found.error_estimate),
        }
        if point.ridge == 0 and not reuse:
            limit = sparse_tokens.erm(**problem, samples_per_dim=UNLIMITED, accuracy=1e-5)
            distant = sparse_tokens.erm(**problem, samples_per_dim=FAR, accuracy=1e-5)
            predicted |= {
                "limit": Predicted(limit.test_error, limit.error_estimate),
                "excess": Predicted(point.samples_per_dim * (found.test_error - limit.test_error)),
                "approach_constant": Predicted(FAR * (distant.test_error - limit.test_error)),
            }
        return predicted

    def judge(self, rows: Rows[Point]) -> Checks:
        curves = rows_where(rows, lambda point: point.ridge > 0)
        named = list(tasks.split_by_name(curves, _name))
        for quantity, model in product(TOLERANCES, MODELS):
            for name, point, runs in named:
                if point.model == model and point.split:
                    yield _point_check(
                        TABLE[f"{quantity}_{model}"], quantity, name.removeprefix(f"{model}."), point, runs
                    )
        for baseline in ("pooled", "vectorized"):
            if runs := _comparable_runs(curves, baseline):
                ratios = runs.per_seed(partial(_worst_ratio, baseline))
                yield TABLE.better.part(baseline, f"attention over {MODELS[baseline]}", ratios, on=runs)
        for label, words, values, runs, theory in _reuse_ratios(curves):
            yield TABLE.alike.part(label, words, values, on=runs)
            yield TABLE.reuse.part(label, words, values, on=runs, value=theory, tolerance=REUSE_TOLERANCE)
        for quantity in TOLERANCES:
            for name, point, runs in named:
                if not point.split:
                    yield _point_check(TABLE.reuse, quantity, f"{quantity}.{name}", point, runs)
        groups = [
            (model + ending, runs)
            for model in MODELS
            for ending, runs in tasks.split_tasks(rows.where(ridge=0.0, model=model), "samples_per_dim")
        ]
        for name, runs in groups:
            for samples, some in group_by(runs, "samples_per_dim"):
                label, words = f"{name}.a{samples:g}", f"{name}, {samples:g} samples per dimension"
                expected = as_predicted(some, "excess", relative=EXCESS_TOLERANCE)
                yield TABLE.excess.part(label, words, _scaled_excess(some)[1], on=some, **expected)
        for name, runs in groups:
            yield from _rate_check(name, runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        sweep = Rows(row for row in rows if row.point.query == "trained" and row.point.split and row.point.length == 10)
        ridge = min(sweep.levels("ridge"), default=0.0)
        groups = tasks.split_tasks(sweep.where(ridge=ridge, loss="logistic"), "model", "samples_per_dim", "dim")
        ending, curves = next(groups, ("", Rows()))  # one task to a picture
        for axes, quantity in ((left, "test_error"), (right, "train_loss")):
            for color, (model, name) in zip(("C0", "C1", "C2"), MODELS.items(), strict=True):
                if runs := curves.where(model=model):
                    points_on_theory(axes, runs, "samples_per_dim", quantity, name, color)
            axes.set(xlabel="samples per dimension", xscale="log")
            level_ticks(axes, sorted(curves.levels("samples_per_dim")))
        left.set(title=f"Test error: theory (lines), training (dots){ending}", ylim=(0, 0.52))
        right.set(title="Training loss", yscale="log")
        legend(left)


def _words(point: Point) -> str:
    """The training of a point in words."""
    linear = "a linear model on"
    model = {"attention": "attention", "pooled": f"{linear} the mean token", "vectorized": f"{linear} all tokens"}
    query = f", query of cosine {point.alignment:g} given" if point.query == "given" else ""
    samples = f"{point.samples_per_dim:g} samples per dimension"
    if not point.split:
        query = ", query and readout trained on the same samples"
        samples = f"{point.query_samples:g} of them per dimension"
    query = query if point.model == "attention" else ""
    training = f"{samples}, {tasks.task_words(point)}, {point.loss} loss, ridge {point.ridge:g}, d = {point.dim}"
    return f"{model[point.model]}{query} ({training})"


def _worst_ratio(baseline: str, repeat: Rows[Point]) -> float | None:
    """Largest ratio of test errors in one repeat, over the sample sizes at which both models were trained the same way."""
    ratios = [
        row.measured["test_error"] / other.measured["test_error"]
        for row in repeat.where(model="attention", query="trained", split=True, loss="logistic")
        for other in repeat.where(
            model=baseline, samples_per_dim=row.point.samples_per_dim, ridge=row.point.ridge, **tasks.task_of(row.point)
        )
    ]
    return max(ratios, default=None)


def _comparable_runs(curves: Rows[Point], baseline: str) -> Rows[Point]:
    """The runs of attention and of a linear model that share samples, ridge and task with one of the other kind."""
    kinds = [
        curves.where(model="attention", query="trained", split=True, loss="logistic"), curves.where(model=baseline)
    ]  # fmt: skip
    keys = [{_shared_problem(row.point) for row in (*kind, *kind.failed)} for kind in kinds]
    both = keys[0] & keys[1]
    chosen = {row.point for kind in kinds for row in (*kind, *kind.failed) if _shared_problem(row.point) in both}
    return rows_where(curves, lambda point: point in chosen)


def _shared_problem(point: Point) -> tuple[Any, ...]:
    return (point.samples_per_dim, point.ridge, *tasks.task_of(point).values())


def _point_check(criterion: Criterion, quantity: str, label: str, point: Point, runs: Rows[Point]) -> Check:
    """Training loss or test error of one point against theory."""
    measured, relative, what = TOLERANCES[quantity]
    words, expected = f"{what} of {_words(point)}", as_predicted(runs, measured, relative=relative)
    return criterion.part(label, words, runs.values(measured), on=runs, **expected)


def _reuse_ratios(curves: Rows[Point]) -> Iterator[tuple[str, str, Array, Rows[Point], float | None]]:
    """Ratios of test errors with the query's own samples and with fresh ones: label, words, values, runs and theory."""
    for loss in curves.where(split=False).levels("loss"):
        fields = {"model": "attention", "loss": loss, "query": "trained", "ridge": Point.ridge}
        for ending, runs in tasks.split_tasks(curves.where(**fields, samples_per_dim=2.0, length=10), "split"):
            again, fresh = pairs(runs, "test_error", {"split": False}, {"split": True})
            if len(fresh):
                expected, base = (runs.where(split=split).predicted("test_error") for split in (False, True))
                theory = None if expected is None or base is None else float(expected.value / base.value)
                yield f"{loss}{ending}", f"{loss} loss{ending}", tasks.ratio_of_means(again, fresh), runs, theory


def _scaled_excess(runs: Rows[Point]) -> tuple[float, Array]:
    """Samples per dimension, and this number times the excess error over that of unlimited data."""
    samples, limit = next(iter((*runs, *runs.failed))).point.samples_per_dim, runs.predicted("limit")
    return samples, np.asarray(samples * (runs.values("test_error") - (0.0 if limit is None else float(limit.value))))


def _rate_check(name: str, runs: Rows[Point]) -> Checks:
    """The exponent between the fewest and the most samples, from the means of pairs of runs."""
    ends = sorted((_scaled_excess(some) for _, some in group_by(runs, "samples_per_dim")), key=lambda end: end[0])
    if len(ends) < 2:
        return
    (few, first), (many, last) = ends[0], ends[-1]
    count = min(len(first), len(last))
    if count:
        ratios = tasks.ratio_of_means(last[:count], first[:count])
        ratio, span = ratios.mean(), math.log(many / few)
        # to first order, as the ratio itself
        exponents = -1 + math.log(max(ratio, LEAST)) / span + (ratios - ratio) / (max(ratio, LEAST) * span)
        yield TABLE.rate.part(name, f"{name}, from {few:g} to {many:g} samples per dimension", exponents, on=runs)
