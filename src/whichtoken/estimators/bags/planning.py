"""A study planned from a pilot: what the pilot shows, whether the theory fits it, and what more bags would bring.

The theory of sparse tokens (`theory.sparse_tokens.plan`) is about its own model and says nothing about others. So the pilot
is cross-validated with `BagClassifier` first. Where the two agree, the theory makes the forecast sharp; where they do not,
the plan says so and extrapolates the measured learning curve instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from whichtoken.checks import check_count, check_range
from whichtoken.data.bags import Bags, as_bags
from whichtoken.data.sparse_task import Task
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.estimators._labels import encode_labels
from whichtoken.estimators.bags import forecast
from whichtoken.estimators.bags.classifier import BagClassifier
from whichtoken.estimators.bags.forecast import CrossValidated, CurvePoint
from whichtoken.estimators.bags.pilot_tokens import equal_lengths, usable_features
from whichtoken.theory.sparse_tokens import PilotEstimate, Plan, estimate_task, plan
from whichtoken.theory.sparse_tokens.learning_curve import curve_laws
from whichtoken.theory.sparse_tokens.planner import few_in_a_stage

Array = NDArray[np.float64]

MULTIPLES = (2, 5, 10)  # of the pilot, for the learning curve
SEARCHED = np.geomspace(0.5, 100, 60)  # multiples among which the size for a target is looked for
FEWEST = 10  # bags of a class, below which a pilot is too small to plan from
GIVEN = ("length", "signal_tokens", "strength", "prevalence", "dim")


@dataclass(frozen=True)
class PilotCheck(Shown):
    """What a cross-validation of the pilot says."""

    bags: int
    classes: tuple[str, str]  # the second is called positive
    prevalence: float
    fewest: int  # bags of the rarer class
    shortest: int  # instances of a bag
    longest: int
    dim: int
    error: float  # cross-validated, of `BagClassifier`
    error_interval: tuple[float, float]  # 90 %
    trained_on: int  # bags, in the cross-validation
    constant_error: float  # of the better one of the two constant answers

    @property
    def too_few(self) -> bool:
        """Whether one class has too few bags to plan from."""
        return self.fewest < FEWEST


@dataclass(frozen=True)
class StudyPlan(Shown):
    """A forecast of `BagClassifier` from a pilot, with the theory's plan beside it where the pilot allows one."""

    pilot: PilotCheck
    contradictions: tuple[str, ...]  # what the pilot shows that the theory does not have; empty: it fits
    theory: Plan | None  # None: the task could not be estimated, and `notes` says why
    estimate: PilotEstimate | None
    samples: int
    target_error: float | None
    forecast: CurvePoint  # with the planned samples
    learning_curve: tuple[CurvePoint, ...]  # at 2, 5 and 10 times the pilot
    samples_needed: int | None  # bags with which half of the curves reach the target; None: none are known to
    samples_sure: int | None  # bags with which 95 % of them do
    recommendation: str
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the theory's numbers may be relied on."""
        return self.theory is not None and not self.contradictions

    @property
    def beats_floor(self) -> str | None:
        """What does better than the best classifier of the estimated task, if anything: its limits are not limits then."""
        if self.theory is None:
            return None
        floor = self.theory.bayes_floor
        if self.pilot.error < floor:
            return "pilot"
        reached = self.samples_needed is not None and self.target_error is not None and self.target_error <= floor
        expected = [point.error for point in (self.forecast, *self.learning_curve)]
        return "forecast" if reached or min(expected) < floor else None

    def _headline(self) -> str:
        return self.recommendation


def plan_study(
    *,
    pilot: tuple[Any, ArrayLike],
    features: Sequence[str] | None = None,
    samples: int | None = None,
    target_error: float | None = None,
    length: int | None = None,
    signal_tokens: int | None = None,
    strength: float | None = None,
    prevalence: float | None = None,
    dim: int | None = None,
    random_state: int = 0,
) -> StudyPlan:
    """Plan a study from a labelled pilot.

    Parameters
    ----------
    pilot : (X, y)
        Bags in any form that `BagClassifier` takes, of any lengths, and labels of two classes; the larger one is positive.
    features : sequence of str, optional
        Names of the features, for the notes.
    samples : int, optional
        Bags of the study; by default those of the pilot.
    target_error : float, optional
        Wanted test error.
    length, signal_tokens, strength, prevalence, dim : optional
        What is known of the task; the rest is estimated for a task that has these values.
    random_state : int
        For the folds and the draws of curves.

    Returns
    -------
    StudyPlan
        Forecast, learning curve, what the theory says, and whether the pilot contradicts it.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import SparseTokens
    >>> from whichtoken.estimators import plan_study
    >>> task = SparseTokens(length=10, signal_tokens=1, strength=6.0, prevalence=0.5, dim=12)
    >>> study = plan_study(pilot=task.sample(120, np.random.default_rng(0)))
    >>> study.learning_curve[-1].samples
    1200
    """
    _check_wanted(samples, target_error)
    given = dict(zip(GIVEN, (length, signal_tokens, strength, prevalence, dim), strict=True))
    curve = StudyCurve.of(*pilot, given=given, features=features, seed=random_state)
    check, planned = curve.check, samples or curve.check.bags
    theory, doubts = _by_theory(curve, planned, target_error)
    now, *later = curve.points([planned, *(multiple * check.bags for multiple in MULTIPLES)])
    needed, sure = curve.sizes_for(target_error)
    study = StudyPlan(
        pilot=check,
        contradictions=curve.contradictions,
        theory=theory,
        estimate=curve.estimate,
        samples=planned,
        target_error=target_error,
        forecast=now,
        learning_curve=tuple(later),
        samples_needed=needed,
        samples_sure=sure,
        recommendation=_recommendation(curve, target_error, needed, sure, later),
        notes=(),
    )
    limits = [] if study.beats_floor else doubts
    return replace(study, notes=(*curve.notes, *limits, *_theory_notes(curve, theory), *_unused(given, curve.fits)))


def _by_theory(curve: StudyCurve, samples: int, target: float | None) -> tuple[Plan | None, list[str]]:
    """The theory's plan for the task that the pilot shows, and what it says against the target."""
    if curve.task is None or curve.estimate is None:
        return None, []
    task = {**asdict(curve.task), "dim": curve.estimate.dim, "samples": samples}
    try:
        return plan(**task, target_error=target if curve.fits else None), []
    except UsageError as error:  # it rules the target out, for a task that is only estimated: no reason to refuse
        return plan(**task), [f"by the theory, as far as the pilot shows, {error}"]


def _theory_notes(curve: StudyCurve, theory: Plan | None) -> list[str]:
    """What is to be said of the estimate and, where it is relied on, of the theory's plan."""
    if curve.task is None or curve.estimate is None or theory is None:
        return []
    notes = list(curve.estimate.warnings)
    if curve.fits:
        fewest = min(theory.samples, theory.attention.samples_needed or theory.samples)
        split = list(few_in_a_stage(curve.task, fewest, theory.design))  # BagClassifier splits nothing
        notes += [warning for warning in theory.warnings if warning not in split]
    return notes


def _unused(given: Mapping[str, Any], fits: bool) -> list[str]:
    """Values that were given for the theory, where the forecast does not follow it."""
    names = [
        f"{name}={given[name]:g}" for name in ("signal_tokens", "strength", "prevalence") if given[name] is not None
    ]
    if fits or not names:
        return []
    return [f"the forecast does not follow the theory, so it does not use {', '.join(names)}"]


@dataclass(frozen=True, eq=False)
class StudyCurve:
    """Errors that the pilot allows at other sizes: by the theory where it fits, otherwise by power laws."""

    measured: CrossValidated
    check: PilotCheck
    estimate: PilotEstimate | None
    task: Task | None
    known_prevalence: bool
    seed: int
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, X: Any, y: ArrayLike, *, given: Mapping[str, Any], features: Sequence[str] | None = None, seed: int = 0
    ) -> StudyCurve:
        """Cross-validate the pilot and estimate the task of the theory."""
        bags = as_bags(X)
        classes, codes = _two_classes(y, len(bags))
        measured = forecast.cross_validated(BagClassifier(random_state=seed), bags, codes, seed=seed)
        notes: list[str] = []
        estimate = _estimated(bags, codes, given, features, notes)
        task = _task(given, estimate) if estimate else None
        known = given["prevalence"] is not None
        return cls(measured, _pilot_check(bags, classes, codes, measured), estimate, task, known, seed, tuple(notes))

    @cached_property
    def contradictions(self) -> tuple[str, ...]:
        """What the pilot shows that the theory does not have, the error of the cross-validation first."""
        if self.task is None or self.estimate is None:
            return ()
        errors = self._by_theory(self.measured.sizes)[:, -1]
        if forecast.chance(errors, self.measured) >= forecast.RULED_OUT:
            return self.estimate.misfits
        low, high = np.quantile(errors, [0.05, 0.95])
        sentence = (
            f"in cross-validation the error is {self.check.error:.3g}, where the theory of sparse tokens expects {low:.3g} to"
            f" {high:.3g}"
        )
        return sentence, *self.estimate.misfits

    @property
    def fits(self) -> bool:
        """Whether the theory holds, as far as the pilot shows."""
        return self.task is not None and not self.contradictions

    def points(self, samples: Sequence[int]) -> list[CurvePoint]:
        """Forecasts with their intervals."""
        known, sizes = len(self.measured.sizes), np.concatenate([self.measured.sizes, samples])
        if self.fits:
            errors = self._by_theory(sizes)
            logs = self.measured.level(errors[:, known - 1]) + self.measured.decline(errors[:, :known])
        else:
            rng = np.random.default_rng(self.seed)
            errors = forecast.power_curves(self.measured, sizes, self.check.constant_error, rng)
            logs = self.measured.decline(errors[:, :known])
        rng = np.random.default_rng([self.seed, 1])
        points = forecast.curve_points(errors[:, known:], forecast.normalised(logs), samples, rng)
        if not self.check.too_few:
            return points
        low, high = self.check.error_interval  # so few bags do not show that more of them help
        return [replace(point, low=min(point.low, low), high=max(point.high, high)) for point in points]

    def sizes_for(self, target: float | None) -> tuple[int | None, int | None]:
        """Bags with which the median curve reaches a target, and those with which 95 % of the curves do."""
        if target is None:
            return None, None
        multiples = SEARCHED[::5] if self.fits else SEARCHED  # ten sizes of a theory curve take a second
        points = self.points([int(size) for size in np.unique(np.ceil(multiples * self.check.bags))])
        needed, sure = (
            next((point.samples for point in points if getattr(point, end) <= target), None)
            for end in ("error", "high")
        )
        return needed, sure

    def _by_theory(self, sizes: Array) -> Array:
        assert self.task is not None
        assert self.estimate is not None
        laws = curve_laws(self.task, self.estimate, tuple(sizes), self.known_prevalence)
        return forecast.theory_curves(list(laws), np.random.default_rng(self.seed))


def _two_classes(y: ArrayLike, bags: int) -> tuple[tuple[str, str], NDArray[np.intp]]:
    classes, codes = encode_labels(y, bags)
    if len(classes) != 2:
        some = ", ".join(map(str, classes[:5])) + (", ..." if len(classes) > 5 else "")
        raise UsageError(f"planning is for two classes; this pilot has {len(classes)}: {some}")
    return (str(classes[0]), str(classes[1])), codes


def _check_wanted(samples: int | None, target_error: float | None) -> None:
    if samples is not None:
        check_count("samples", samples, 4)
    if target_error is not None:
        check_range("target_error", target_error, 0.0, 0.5)


def _pilot_check(bags: Bags, classes: tuple[str, str], codes: NDArray[np.intp], measured: CrossValidated) -> PilotCheck:
    wrong, tail = float(measured.errors[-1]) * len(bags), (1 - forecast.LEVEL) / 2
    low, high = beta.ppf([tail, 1 - tail], wrong + 0.5, len(bags) - wrong + 0.5)  # Jeffreys
    error = float(measured.errors[-1])
    share = float(codes.mean())
    counts = np.bincount(codes)
    if counts.min() < FEWEST:  # either class may be the worse for what its few bags do not show
        mistakes = np.bincount(codes, measured.wrong[-1])
        high = max(high, counts @ beta.ppf(1 - tail, mistakes + 0.5, counts - mistakes + 0.5) / len(bags))
    return PilotCheck(
        bags=len(bags),
        classes=classes,
        prevalence=share,
        fewest=int(counts.min()),
        shortest=int(bags.lengths.min()),
        longest=int(bags.lengths.max()),
        dim=bags.dim,
        error=error,
        error_interval=(min(float(low), error), max(float(high), error)),  # without a mistake it begins at 0
        trained_on=round(float(measured.sizes[-1])),
        constant_error=min(share, 1 - share),
    )


def _estimated(
    bags: Bags, codes: NDArray[np.intp], given: Mapping[str, Any], features: Sequence[str] | None, notes: list[str]
) -> PilotEstimate | None:
    """The task of the theory as the pilot shows it; None, with a note, where it shows none."""
    tokens, rows = equal_lengths(bags, notes)
    kept = usable_features(tokens[codes[rows] == 0], features, notes)
    for name, found in (("length", tokens.shape[1]), ("dim", bags.dim)):
        if given[name] not in (None, found):
            raise UsageError(f"{name}={given[name]} must be that of the pilot, {found}")
    try:
        return estimate_task(
            tokens[:, :, kept], codes[rows], signal_tokens=given["signal_tokens"], strength=given["strength"]
        )
    except ValueError as error:
        notes.append(f"the theory of sparse tokens says nothing here: {error}")
        return None


def _task(given: Mapping[str, Any], estimate: PilotEstimate) -> Task:
    """The task, from what was given and what the pilot says."""
    found = {name: getattr(estimate, name) if given[name] is None else given[name] for name in GIVEN[:4]}
    return Task(**found)


def _recommendation(
    curve: StudyCurve, target: float | None, needed: int | None, sure: int | None, later: Sequence[CurvePoint]
) -> str:
    """What to do, in one or two sentences."""
    bags = curve.check.bags
    if curve.check.too_few:
        return f"Collect at least {FEWEST} bags of each class, better many more, and plan again."
    basis = (
        "the theory of sparse tokens, which the pilot does not contradict"
        if curve.fits
        else "the pilot's own learning curve"
    )
    if target is None:
        first = later[0]
        gain = (
            "more bags help"
            if math.isfinite(first.error) and later[-1].high < first.high
            else "more bags may help little"
        )
        return f"Train BagClassifier on all bags, split nothing; by {basis}, {gain}."
    if needed is None:
        return f"By {basis}, an error of {target:g} is not in sight with up to {int(SEARCHED[-1] * bags)} bags."
    firm = f"; {sure} to be nearly sure" if sure else ", and no number up to 100 times the pilot makes it nearly sure"
    return f"Plan for about {needed} bags to reach an error of {target:g} with BagClassifier, by {basis}{firm}."
