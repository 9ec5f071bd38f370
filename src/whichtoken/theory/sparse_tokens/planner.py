"""A power analysis for attention: is the signal detectable, with how much data, and how best to train?

`plan` makes a `Plan`: a forecast per model, the best designs for attention, the limits that no amount of data can beat, and
warnings where the theory of large dimension should not be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from scipy.optimize import brentq
from scipy.special import expit, logit

from whichtoken.checks import check_count, check_range
from whichtoken.datasets.sparse_tokens import Task
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.theory.sparse_tokens.design import (
    LEAST,
    LOSS,
    RIDGE,
    Design,
    SharedDesign,
    best_design,
    best_shared_design,
    least_ridge,
    query_steps,
)
from whichtoken.theory.sparse_tokens.feature_law import MODELS
from whichtoken.theory.sparse_tokens.limits import attention_oracle, bayes_oracle, linear_oracle
from whichtoken.theory.sparse_tokens.readout import capacity, erm
from whichtoken.theory.sparse_tokens.token_noise import kept_points
from whichtoken.threads import one_thread

ACCURACY = 1e-2
LEAST_SAMPLES = 4
UNLIMITED = 1e5  # samples per weight that stand for all the data in the world
POINTS = 1 << 13
ROOT_POINTS, SEARCH_POINTS = 1 << 12, 1 << 10
NEARBY = 4  # times the samples, within which a design stays good
ORACLE_POINTS = 1 << 11
CAPACITY_POINTS = 1 << 15  # that of a strong signal is known to a tenth only, and would take seconds otherwise
SMALL_DIM = 50
FEW = 50  # sequences of the rarer class per stage, below which training does visibly worse than the theory says
SHARED = "shared"  # attention with all samples for query and readout, where a model is asked for
DESIGNERS: dict[str, Callable[..., Design | SharedDesign]] = {"attention": best_design, SHARED: best_shared_design}
REDESIGNS, CLOSE = 6, 0.02  # designs tried in turn, and the relative gain in samples below which no other is
# BagClassifier descends on query and readout together and chooses its own settings. That is as good as the two steps where
# few tokens carry the signal, and loses where many do: log-odds of its error over theirs, fitted on 50 simulated tasks of 5 to
# 20 tokens in 20 to 120 dimensions
BAG_EXCESS = 2.1  # times (R/L)^2
ALIKE = 0.02  # relative difference of errors that is none
HARDLY = 0.98  # times the error of a constant answer, above which a model is not noticeably better


@dataclass(frozen=True)
class Forecast(Shown):
    """What to expect of one model."""

    error: float  # predicted test error with the planned samples
    unlimited_error: float  # with all the data in the world
    samples_needed: int | None  # for the target; None without a target, or where no amount of data reaches it
    capacity: float  # samples, those of the query included, up to which the readout's training set is separable, about
    ridge: float = RIDGE  # with the planned samples; larger than usual where that would do worse than a constant answer
    moved: str | None = None  # where the error was moved to, if its numerical error took it past that


@dataclass(frozen=True)
class Way(Shown):
    """What to expect of one way to train attention."""

    error: float  # predicted test error with the planned samples
    samples_needed: int | None  # for the target; None without a target, or where no amount of data reaches it


@dataclass(frozen=True)
class Plan(Shown):
    """The task as planned for, a forecast per model, the design for attention, limits and warnings: the result of `plan`.

    Attributes
    ----------
    length, signal_tokens, strength, prevalence, dim : numbers
        The task.
    samples : int
        Sequences that were planned for.
    target_error : float or None
        Wanted test error, if there is one.
    design : Design
        Temperature, ridge and split of the samples to use for attention whose query and readout have samples of their own.
    shared_design : SharedDesign
        Temperature and ridge to use for attention whose query and readout are both trained on all samples.
    attention, pooled, vectorized : Forecast
        Predicted error, samples needed and capacity of each model; attention with the samples split.
    reuse, bag_classifier : Way
        Predicted error and samples needed of attention with all samples for query and readout, and of `BagClassifier`.
    recommended : str
        How to train attention: "split", "reuse" or "BagClassifier"; "none" where no way does noticeably better than a
        constant answer.
    bayes_floor : float
        No classifier does better.
    bayes_floor_error : float
        Standard error of that number, which is sampled.
    linear_oracle : float
        No linear one does better.
    attention_oracle : float
        Attention that knows the signal.
    warnings : tuple of str
        Where the theory should not be trusted.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import plan
    >>> study = plan(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=500, samples=2000)
    >>> study.bayes_floor < study.attention.error < study.pooled.error
    True
    """

    length: int
    signal_tokens: int
    strength: float
    prevalence: float
    dim: int
    samples: int
    target_error: float | None
    design: Design
    shared_design: SharedDesign
    attention: Forecast
    pooled: Forecast
    vectorized: Forecast
    reuse: Way
    bag_classifier: Way
    recommended: str
    bayes_floor: float
    bayes_floor_error: float
    linear_oracle: float
    attention_oracle: float
    warnings: tuple[str, ...]

    def _headline(self) -> str:
        names = {"attention": self.attention, "mean pooling": self.pooled, "all tokens": self.vectorized}
        errors = ", ".join(f"{name} {forecast.error:.3g}" for name, forecast in names.items())
        return (
            f"predicted test errors with {self.samples} sequences: {errors}; no classifier below {self.bayes_floor:.3g}"
        )


@one_thread()
def plan(
    *,
    length: int,
    signal_tokens: int,
    strength: float,
    prevalence: float,
    dim: int,
    samples: int | None = None,
    target_error: float | None = None,
) -> Plan:
    """Predict errors, samples needed and the best training design, before anything is trained.

    Parameters
    ----------
    length, signal_tokens, strength, prevalence, dim : numbers
        The task, in units of the noise. `whichtoken.estimators.plan_study` estimates it from a pilot sample.
    samples : int, optional
        Sequences in total; by default what the recommended way to train attention needs for the target.
    target_error : float, optional
        Wanted test error.

    Returns
    -------
    Plan
        Forecasts for attention, trained in three ways, mean pooling and a linear model, designs, limits and warnings.

    Raises
    ------
    ValueError
        If the numbers do not describe a task, or no classifier can reach the target.

    Notes
    -----
    Logistic loss, ridge 0.01 (more where that would do worse than a constant answer), gradient steps of 0.5 (a smaller
    first one where a strong signal would make it overshoot), token noise of unit variance. The theory is that of large
    dimension (Barnfield, Cui, Lu, arXiv 2509.25153).

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import plan
    >>> study = plan(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=500, samples=2000)
    >>> study.attention.error < study.pooled.error  # attention is worth it here
    True
    >>> 0 < study.design.query_share < 1
    True
    """
    if samples is None and target_error is None:
        raise UsageError(
            "the size of the study is open: give samples (the labeled sequences you have), or target_error (the "
            "test error that is wanted)"
        )
    if samples is not None:
        check_count("samples", samples, LEAST_SAMPLES)
    check_count("dim", dim, 2)
    task = Task(length, signal_tokens, strength, prevalence)
    floor = bayes_oracle(**asdict(task))
    _check_target(task, target_error, floor.error)
    needed: dict[str, int | None] = {}
    for model in (SHARED, *MODELS):  # the second needs a little more than the first
        needed[model] = _samples_needed(task, dim, model, target_error, needed.get(SHARED))
    if samples is None:
        samples = _samples_to_plan(needed, task, target_error)
    design, shared = best_design(task, samples / dim), best_shared_design(task, samples / dim)
    forecasts: dict[str, Any] = {
        model: _forecast(task, dim, model, samples, design, needed[model], floor.error) for model in MODELS
    }
    together, _ = _clip_to_limits(shared.error(task, samples / dim, POINTS), task, floor.error)
    reuse = Way(together, needed[SHARED])
    bags_needed = _bags_needed(task, dim, needed[SHARED], shared_target(task, target_error))
    bag_classifier = Way(min(bag_error(task, together), task.trivial_error), bags_needed)
    return Plan(
        **asdict(task),
        **forecasts,
        dim=dim,
        samples=samples,
        target_error=target_error,
        design=design,
        shared_design=shared,
        reuse=reuse,
        bag_classifier=bag_classifier,
        recommended=recommend(forecasts["attention"].error, reuse.error, bag_classifier.error, task.trivial_error),
        bayes_floor=floor.error,
        bayes_floor_error=floor.standard_error,
        linear_oracle=linear_oracle(**asdict(task)),
        attention_oracle=attention_oracle(**asdict(task), points=kept_points(ORACLE_POINTS, task.length)).error,
        warnings=tuple(_warnings(task, dim, samples, target_error, design, forecasts)),
    )


def _check_target(task: Task, target_error: float | None, floor: float) -> None:
    if target_error is None:
        return
    check_range("target_error", target_error, 0.0, 0.5)
    if target_error <= floor:
        raise UsageError(
            f"{{target_error}} must be above {floor:.4g}, the error of the best possible classifier: no amount of "
            "data reaches it",
            target_error=target_error,
        )
    if target_error >= task.trivial_error:
        raise UsageError(
            f"{{target_error}} must be below {task.trivial_error:.4g}, the error of a constant answer: that needs no data",
            target_error=target_error,
        )


def _error(task: Task, model: str, samples_per_dim: float, design: Design | None, ridge: float = RIDGE) -> float:
    """Predicted test error; attention, which comes with a design, spends part of the samples on its query."""
    share, query = 1.0, {}
    if design:
        share, ridge = 1 - design.query_share, design.ridge
        query = {"alignment": design.alignment, "inverse_temperature": design.inverse_temperature}
    settings: dict[str, Any] = {**asdict(task), **query, "ridge": ridge, "loss": LOSS, "accuracy": ACCURACY}
    return erm(model=model, samples_per_dim=samples_per_dim * share, **settings).test_error


def _samples_needed(task: Task, dim: int, model: str, target: float | None, near: int | None = None) -> int | None:
    """Least number of samples that reaches the target: doublings until it does, then a root below the last.

    The doublings begin at `near`, or halve it until it does not. The best design changes with the samples, so the root is
    found again with the design that is best there.
    """
    if target is None:
        return None

    @cache  # the ends of a bracket are asked for again
    def excess(log_alpha: float, design: Design | SharedDesign | None, points: int = ROOT_POINTS) -> float:
        alpha = math.exp(log_alpha)
        error = design.error(task, alpha, points) if design else _error(task, model, alpha, None)
        return math.inf if math.isnan(error) else math.log(max(error, LEAST) / target)

    def design(log_alpha: float, refine: bool) -> Design | SharedDesign | None:
        designer = DESIGNERS.get(model)
        return designer(task, math.exp(log_alpha), refine) if designer else None

    def reaches_target(log_alpha: float) -> bool:
        rough = design(log_alpha, refine=False)
        return (rough is None or excess(log_alpha, rough, SEARCH_POINTS) <= 0) and excess(log_alpha, rough) <= 0

    most = math.log(_unlimited_samples(task, model))
    # a refined design takes seconds, and only counts where the grid's does not reach the target
    if all(excess(most, design(most, refine)) > 0 for refine in (False, True)):
        return None
    least, high = math.log(LEAST_SAMPLES / dim), math.log((near or LEAST_SAMPLES) / dim)
    while high < most and not reaches_target(high):
        high += math.log(2)
    while high > least and reaches_target(high - math.log(2)):
        high -= math.log(2)
    for _ in range(REDESIGNS if model in DESIGNERS else 1):
        chosen, low = design(high, refine=True), high - math.log(2)
        if excess(high, chosen) > 0:  # the design behind `high` is better still
            break
        last, high = high, brentq(excess, low, high, args=(chosen,), xtol=5e-3) if excess(low, chosen) > 0 else low
        if last - high < CLOSE:
            break
    return math.ceil(dim * math.exp(max(high, least)) - 1e-6)


def _bags_needed(task: Task, dim: int, shared: int | None, target: float | None) -> int | None:
    """Bags for the error that the two steps must have, a little less than what `shared` samples give them."""
    if shared is None or target is None:
        return None
    design, low = best_shared_design(task, shared / dim), math.log(shared / dim)

    @cache
    def excess(log_alpha: float) -> float:
        return math.log(max(design.error(task, math.exp(log_alpha), points=ROOT_POINTS), LEAST) / target)

    high = low + math.log(NEARBY)
    if not excess(high) < 0:  # far away, where another design is better
        return _samples_needed(task, dim, SHARED, target)
    return math.ceil(dim * math.exp(brentq(excess, low, high, xtol=5e-3) if excess(low) > 0 else low) - 1e-6)


def _samples_to_plan(needed: dict[str, int | None], task: Task, target_error: float | None) -> int:
    """The samples to plan with: attention's, shared or split, or a linear model's where only that reaches the target."""
    for count in needed.values():
        if count is not None:
            return count
    designs = {"attention": best_design(task, UNLIMITED)}
    least = min(_error(task, model, _unlimited_samples(task, model), designs.get(model)) for model in MODELS)
    raise UsageError(
        f"{{target_error}} must be above {least:.4g}, the least that these models reach with any amount of data",
        target_error=target_error,
    )


def _forecast(
    task: Task, dim: int, model: str, samples: int, design: Design, needed: int | None, floor: float
) -> Forecast:
    attention = model == "attention"
    query: dict[str, Any] = {"alignment": design.alignment, "inverse_temperature": design.inverse_temperature}
    separable = capacity(model=model, **asdict(task), **query, accuracy=ACCURACY, points=CAPACITY_POINTS)
    share = 1 - design.query_share if attention else 1.0  # of the samples that the readout is trained on

    def predict(samples_per_dim: float) -> tuple[float, float]:
        """Test error and ridge."""
        if attention:
            chosen = design if samples_per_dim == samples / dim else best_design(task, samples_per_dim)
            return _error(task, model, samples_per_dim, chosen), chosen.ridge
        ridge = least_ridge(lambda value: _error(task, model, samples_per_dim, None, value), task)
        return _error(task, model, samples_per_dim, None, ridge), ridge

    now, ridge = predict(samples / dim)
    later, _ = predict(_unlimited_samples(task, model))
    (error, moved), (unlimited, _) = (_clip_to_limits(value, task, floor) for value in (now, later))
    return Forecast(error, unlimited, needed, separable * dim / share, ridge, moved)


def _unlimited_samples(task: Task, model: str) -> float:
    """Samples per dimension that stand for all the data in the world; the readout of all tokens has length * dim weights."""
    return UNLIMITED * task.length if model == "vectorized" else UNLIMITED


def _clip_to_limits(error: float, task: Task, floor: float) -> tuple[float, str | None]:
    """An error without the digits that only its numerical error allows, and where it was moved to if it had any."""
    if floor > error >= (1 - 5 * ACCURACY) * floor:
        return floor, "that of the best classifier of all"
    if (1 + ACCURACY) * task.trivial_error >= error > task.trivial_error:
        return task.trivial_error, "that of a constant answer"
    return error, None


def bag_error(task: Task, shared_error: float) -> float:
    """Expected error of `BagClassifier` where the two steps on all samples have this one."""
    return float(expit(logit(shared_error) + _excess(task)))


def shared_target(task: Task, target: float | None) -> float | None:
    """Error that the two steps on all samples must have for `BagClassifier` to reach the target."""
    return None if target is None else float(expit(logit(target) - _excess(task)))


def _excess(task: Task) -> float:
    return BAG_EXCESS * (task.signal_tokens / task.length) ** 2


def recommend(split: float, reuse: float, bag_classifier: float, constant: float = math.inf) -> str:
    """The way of the least predicted error; of equal ones `BagClassifier`, which chooses its own settings.

    None of them where the least error is hardly below that of a constant answer.
    """
    errors = {"BagClassifier": bag_classifier, "reuse": reuse, "split": split}
    known = {name: error for name, error in errors.items() if not math.isnan(error)}
    least = min(known.values(), default=math.nan)
    if least > HARDLY * constant:
        return "none"
    return next((name for name, error in known.items() if error <= (1 + ALIKE) * least), "BagClassifier")


IN_WORDS = {"attention": "attention", "pooled": "mean pooling", "vectorized": "a linear model on all tokens"}


def _warnings(
    task: Task, dim: int, samples: int, target: float | None, design: Design, forecasts: dict[str, Forecast]
) -> Iterator[str]:
    plain = query_steps(task, design.query_share * samples / dim, False, design.learning_rate).alignment
    if plain < 0 and design.bias_correction:
        yield (
            f"without bias correction the query would turn away from the signal (alignment {plain:.2f}): the plan sets "
            f"the bias to the log-odds of the prevalence before the step on the query"
        )
    if design.alignment < 0:
        effort = ", even with bias correction" if design.bias_correction else ""
        yield f"the query turns away from the signal (alignment {design.alignment:.2f}){effort}"
    for model, forecast in forecasts.items():
        if math.isnan(forecast.error) or math.isnan(forecast.unlimited_error):
            yield f"the equations for {IN_WORDS[model]} could not be solved here, so its error is not known"
        if forecast.moved:
            yield (
                f"the error computed for {IN_WORDS[model]} lies beyond {forecast.moved} by less than its numerical error, so"
                f" that value is shown instead, {forecast.error:.3g}"
            )
    trivial = task.trivial_error
    attention, linear = forecasts["attention"].error, min(forecasts["pooled"].error, forecasts["vectorized"].error)
    if min(linear, attention) > HARDLY * trivial:
        yield (
            f"with {samples} samples no model does noticeably better than a constant answer, which has an error of "
            f"{trivial:.3g}"
        )
    elif f"{attention:.3g}" == f"{linear:.3g}":
        yield f"attention and a linear model are equally good here (error {attention:.3g})"
    elif attention > linear:
        yield f"attention loses to a linear model here ({attention:.3g} against {linear:.3g})"
    for model, forecast in forecasts.items():
        if target is not None and forecast.samples_needed is None:
            least = forecast.unlimited_error
            yield (
                f"{IN_WORDS[model]} does not reach an error of {target:g} with any amount of data; the least error that it"
                f" reaches is {least:.3g}"
            )
    fewest = min(samples, forecasts["attention"].samples_needed or samples)
    yield from small_stage_warnings(task, fewest, design)
    if dim < SMALL_DIM:
        yield f"{dim} dimensions are few: the theory assumes a large dimension, so expect larger deviations"


def small_stage_warnings(task: Task, samples: int, design: Design) -> Iterator[str]:
    """A warning where the split of the samples leaves one of its stages too few; it says nothing of training on all of them."""
    rarer = task.trivial_error * samples * min(design.query_share, 1 - design.query_share)
    if rarer < FEW:
        yield (
            f"of {samples} sequences only about {rarer:.0f} are of the rarer class in one of the two stages: the theory "
            f"assumes many samples, so expect a larger error than predicted"
        )
