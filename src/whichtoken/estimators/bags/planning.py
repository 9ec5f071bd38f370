"""Plan a study from a pilot: what the pilot shows, whether the theory fits it, and what more bags would bring.

The theory of sparse tokens (`theory.sparse_tokens.plan`) is about its own model and says nothing about others. So the pilot
is cross-validated with `BagClassifier` first. Where the two agree, the theory makes the forecast sharp; where they do not,
the plan says so and extrapolates the measured learning curve instead.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr
from scipy.special import expit, logit, xlog1py, xlogy
from scipy.stats import beta, binom
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from whichtoken.attention import RaggedArray
from whichtoken.checks import check_count, check_range
from whichtoken.datasets.sparse_tokens import Task
from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError
from whichtoken.estimators.bags.classifier import BagClassifier
from whichtoken.estimators.bags.data import MAPS, as_bags
from whichtoken.estimators.common import encode_labels
from whichtoken.theory.sparse_tokens import PilotEstimate, Plan, estimate_task, plan
from whichtoken.theory.sparse_tokens.design import LEAST, best_shared_design
from whichtoken.theory.sparse_tokens.pilot import FOLDS as STRENGTH_FOLDS
from whichtoken.theory.sparse_tokens.planner import bag_error, small_stage_warnings

Array = NDArray[np.float64]

DEPENDENT = 1e-10  # share of a feature's variance below which it follows from the others


def equal_lengths(bags: RaggedArray, notes: list[str]) -> tuple[Array, NDArray[np.intp]]:
    """Tokens (k, L, d) that the theory can read, and the bags they come from.

    Ragged bags give a random part of their instances, as many as three quarters of them have; that keeps the informative
    share, not the number.
    """
    length = max(2, int(np.quantile(bags.lengths, 0.25)))
    rows = np.flatnonzero(bags.lengths >= length)
    if bags.lengths.min() == bags.lengths.max() == length:
        return bags.vectors.reshape(len(bags), length, -1).astype(float, copy=False), rows
    notes.append(
        f"bags have {bags.lengths.min()} to {bags.lengths.max()} instances, and the theory is for one length: it sees"
        f" {length} instances drawn from each of {len(rows)} bags"
    )
    rng = np.random.default_rng(0)
    drawn = [bags[i][rng.permutation(bags.lengths[i])[:length]] for i in rows]
    return np.array(drawn, dtype=float).reshape(len(rows), length, bags.dim), rows


def usable_features(negative: Array, names: Sequence[str] | None, notes: list[str]) -> NDArray[np.intp]:
    """Features that vary within negative sequences and do not follow from others; notes name the rest."""
    dim = negative.shape[2]
    if not negative.size:
        return np.arange(dim)

    def leave_out(places: NDArray[np.intp], why: str) -> None:
        if places.size:
            shown = [str(names[place]) if names is not None else f"feature {place + 1}" for place in places[:5]]
            more = f" and {places.size - 5} more" if places.size > 5 else ""
            notes.append(f"the theory leaves out {', '.join(shown)}{more}: {why}")

    spread = (negative - negative.mean(axis=1, keepdims=True)).reshape(-1, dim)
    scale = np.sqrt((spread**2).mean(axis=0))
    size = np.abs(negative).reshape(-1, dim).max(axis=0)
    varies = np.flatnonzero(scale > 1e-12 * np.maximum(size, 1e-300))
    leave_out(np.setdiff1d(np.arange(dim), varies), "the same within every negative bag")
    if len(varies) > len(spread):
        return varies  # more features than rows: the estimate does not decorrelate them anyway
    _, triangle, order = qr(spread[:, varies] / scale[varies], mode="economic", pivoting=True)
    free = np.abs(np.diag(triangle)) ** 2 > DEPENDENT * len(spread)
    kept = np.sort(varies[order[: len(free)][free]])
    leave_out(np.setdiff1d(varies, kept), "linear in the others")
    return kept


SHARES = (0.25, 0.45, 0.8)  # of the pilot that are trained on
FOLDS, REPEATS = 5, 2
DRAWS = 20_000
LEVEL = 0.9
DISCREPANCY = 0.2  # of the theory's log-odds, as simulated, with the tails of Student's t with 4 degrees of freedom
RUN_TO_RUN = 0.1  # deviation of the log-odds of the error between training runs, as simulated
EXPONENT = (math.log(0.6), 0.5)  # of power laws: mean and deviation of its logarithm
# a chance below which the cross-validation contradicts the theory: to doubt it wrongly only costs width
RULED_OUT = 0.05


@dataclass(frozen=True)
class CurvePoint(Shown):
    """Predicted error of `BagClassifier` with so many bags, and its 90 % interval."""

    samples: int
    error: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class CrossValidated:
    """Errors of the pilot's bags with training sets of several sizes, the largest last."""

    sizes: Array  # (k,)
    wrong: Array  # (k, n): in which share of the repeats each bag got the wrong label

    @property
    def errors(self) -> Array:
        """Mean error at each size, (k,)."""
        return np.asarray(self.wrong.mean(axis=1))

    @property
    def bags(self) -> int:
        """Bags of the pilot."""
        return int(self.wrong.shape[1])

    def level(self, errors: Array) -> Array:
        """Log-likelihood of true errors (draws,) at the largest size: binomial."""
        safe, wrong = np.clip(errors, 1e-6, 1 - 1e-6), float(self.errors[-1]) * self.bags
        return np.asarray(xlogy(wrong, safe) + xlog1py(self.bags - wrong, -safe))

    def decline(self, errors: Array) -> Array:
        """Log-likelihood of true errors (draws, k) by how much worse the smaller sizes are: Gaussian."""
        total = np.zeros(len(errors))
        for k in range(len(self.sizes) - 1):
            difference = self.wrong[k] - self.wrong[-1]
            variance = (difference.var() + 1 / self.bags) / self.bags
            misfit = difference.mean() - (errors[:, k] - errors[:, -1])
            total -= misfit**2 / (2 * variance) / (len(self.sizes) - 1)  # they share bags: together one observation
        return total


def listed_if_texts(X: Any) -> list[str] | None:
    """The texts of a pilot; None if it holds bags."""
    from whichtoken.estimators.text.counting import texts_of

    if isinstance(X, RaggedArray) or getattr(X, "ndim", 1) == 3:
        return None
    found = texts_of(X)
    return None if found is None else list(found)


def cross_validated(model: Any, bags: Any, codes: NDArray[np.intp], seed: int) -> CrossValidated:
    """Train on parts of the pilot and try on bags that were left out; each bag is tried as often at every size."""
    fewest = int(np.bincount(codes).min())
    folds = min(FOLDS, fewest)
    if folds < 2:
        raise ValueError(f"a pilot needs at least two samples of each class; one class has {fewest}")
    wrong = np.zeros((len(SHARES), len(codes)))
    sizes = np.zeros(len(SHARES))
    for repeat in range(REPEATS):
        rng = np.random.default_rng([seed, repeat])
        for inside, outside in StratifiedKFold(folds, shuffle=True, random_state=repeat).split(codes, codes):
            order, test = _nested(inside, codes, rng), bags[outside]
            for k, share in enumerate(SHARES):
                rows = order[: max(4, min(len(order), round(share * len(codes))))]
                fitted = clone(model).fit(bags[rows], codes[rows])
                wrong[k, outside] += (fitted.predict(test) != codes[outside]) / REPEATS
                sizes[k] += len(rows) / (REPEATS * folds)
    return CrossValidated(sizes, wrong)


def theory_curves(
    task: Task, estimate: PilotEstimate, samples: Array, known_prevalence: bool, rng: np.random.Generator
) -> Array:
    """Errors (DRAWS, k) of curves that the theory allows at these sizes (k,).

    The number of signal tokens is drawn among those that the pilot allows; strength and prevalence move the log-odds of the
    error along a line. Each size has the design that is best for the task.
    """
    designs = [best_shared_design(task, size / estimate.dim, False) for size in samples]

    def log_odds(variant: Task) -> Array:
        errors = [design.error(variant, size / estimate.dim) for design, size in zip(designs, samples, strict=True)]
        known = np.clip(np.nan_to_num(errors, nan=variant.trivial_error), LEAST, variant.trivial_error)
        return np.asarray(logit([bag_error(variant, error) for error in known]))

    prevalence_step = np.zeros(len(designs))
    if not known_prevalence:
        step = math.sqrt(task.prevalence * (1 - task.prevalence) / estimate.samples)
        varied = replace(task, prevalence=min(task.prevalence + step, 1 - step / 2))
        prevalence_step = log_odds(varied) - log_odds(task)
    centers, strength_steps = [], []  # of each number of signal tokens, (k,) each
    for candidate in estimate.candidates:
        variant = replace(task, signal_tokens=candidate.signal_tokens)
        likely, weaker = (
            log_odds(replace(variant, strength=math.exp(candidate.log_strength - shift)))
            for shift in (0.0, candidate.deviation)
        )
        centers.append(likely)
        strength_steps.append(weaker - likely)
    weights = np.array([candidate.weight for candidate in estimate.candidates])
    chosen = rng.choice(len(weights), DRAWS, p=weights / weights.sum())
    strengths = rng.standard_t(STRENGTH_FOLDS - 1, (DRAWS, 1))
    drawn = np.stack(centers)[chosen] + strengths * np.stack(strength_steps)[chosen]
    drawn += rng.standard_normal((DRAWS, 1)) * prevalence_step + DISCREPANCY * rng.standard_t(4, (DRAWS, 1))
    return np.asarray(expit(drawn))


def power_curves(measured: CrossValidated, samples: Array, trivial: float, rng: np.random.Generator) -> Array:
    """Errors (DRAWS, k) of power laws at these sizes, with any error at the pilot's largest size and any limit below it."""
    # the error at the largest size is drawn as the binomial law allows it, so only the decline is left to weigh
    wrong = measured.errors[-1] * measured.bags
    now = np.minimum(rng.beta(wrong + 0.5, measured.bags - wrong + 0.5, (DRAWS, 1)), max(trivial, 0.5))
    exponents = np.exp(EXPONENT[0] + EXPONENT[1] * rng.standard_normal((DRAWS, 1)))
    limits = now * rng.uniform(0, 1, (DRAWS, 1))
    errors: Array = limits + (now - limits) * (samples / measured.sizes[-1]) ** -exponents
    return np.minimum(errors, max(trivial, 0.5))


def curve_points(errors: Array, weights: Array, samples: Sequence[int], rng: np.random.Generator) -> list[CurvePoint]:
    """Median and interval of the error of one training run at each size, of curves (draws, k) with these weights (draws,)."""
    safe = np.clip(errors, 1e-9, 1 - 1e-9)
    once = expit(np.log(safe) - np.log1p(-safe) + RUN_TO_RUN * rng.standard_normal(errors.shape))
    levels = ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)
    points = []
    for column, size in zip(once.T, samples, strict=True):
        order = np.argsort(column)
        reached = np.cumsum(weights[order])
        places = [min(np.searchsorted(reached, level * reached[-1]), len(order) - 1) for level in levels]
        low, middle, high = (float(column[order][place]) for place in places)
        points.append(CurvePoint(int(size), middle, low, high))
    return points


def normalized(logs: Array) -> Array:
    """Weights (draws,) that sum to one."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _nested(inside: NDArray[np.intp], codes: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
    """Rows in an order of which every beginning has about the same share of each class."""
    place = np.empty(len(inside))
    for code in np.unique(codes[inside]):
        members = np.flatnonzero(codes[inside] == code)
        place[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return inside[np.argsort(place, kind="stable")]


MULTIPLES = (2, 5, 10)  # of the pilot, for the learning curve
SEARCHED = np.geomspace(0.5, 100, 60)  # multiples among which the size for a target is looked for
FEWEST = 10  # bags of a class, below which a pilot is too small to plan from
GIVEN = ("length", "signal_tokens", "strength", "prevalence", "dim")


@dataclass(frozen=True)
class PilotCheck(Shown):
    """What a cross-validation of the pilot says."""

    bags: int
    classes: tuple[str, ...]  # of two the second is called positive
    prevalence: float
    fewest: int  # bags of the rarer class
    shortest: int  # instances of a bag
    longest: int
    dim: int
    error: float  # cross-validated, of `BagClassifier`
    error_interval: tuple[float, float]  # 90 %
    trained_on: int  # bags, in the cross-validation
    constant_error: float  # of the better one of the two constant answers

    @classmethod
    def of(
        cls,
        measured: CrossValidated,
        codes: NDArray[np.intp],
        classes: tuple[str, ...],
        lengths: NDArray[Any],
        dim: int,
    ) -> PilotCheck:
        """From errors of a cross-validation, the class of each bag and its length."""
        counts, tail = np.bincount(codes), (1 - LEVEL) / 2
        error = float(measured.errors[-1])
        low, high = beta.ppf([tail, 1 - tail], error * len(codes) + 0.5, (1 - error) * len(codes) + 0.5)  # Jeffreys
        if counts.min() < FEWEST:  # any class may be the worse for what its few bags do not show
            mistakes = np.bincount(codes, measured.wrong[-1])
            high = max(high, counts @ beta.ppf(1 - tail, mistakes + 0.5, counts - mistakes + 0.5) / len(codes))
        return cls(
            bags=len(codes),
            classes=classes,
            prevalence=float(np.mean(codes == 1)),
            fewest=int(counts.min()),
            shortest=int(lengths.min()),
            longest=int(lengths.max()),
            dim=dim,
            error=error,
            error_interval=(min(float(low), error), max(float(high), error)),  # without a mistake it begins at 0
            trained_on=round(float(measured.sizes[-1])),
            constant_error=1 - float(counts.max()) / len(codes),
        )

    @property
    def too_few(self) -> bool:
        """Whether one class has too few bags to plan from."""
        return self.fewest < FEWEST


@dataclass(frozen=True)
class MapForecast(Shown):
    """What `BagClassifier` with one map of the instances has and may reach."""

    instance_map: str
    pilot_error: float  # cross-validated
    forecast: CurvePoint  # with the planned samples
    limit: CurvePoint  # with ten times the pilot
    samples_needed: int | None  # for the target; None: none are known to suffice


@dataclass(frozen=True)
class StudyPlan(Shown):
    """A forecast of `BagClassifier` from a pilot, with the theory's plan beside it where the pilot allows one."""

    pilot: PilotCheck
    instance_map: str  # the recommended one, which `pilot`, forecast and learning curve are about
    maps: tuple[MapForecast, ...]  # where the theory holds, the linear one alone, as that is its model
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
    unit: str = "bags"  # or "texts", about which the theory says nothing; their instances are words
    model: str = "BagClassifier"  # that the numbers are about

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
    model: Any = None,
    random_state: int = 0,
) -> StudyPlan:
    """Say from a labeled pilot how many bags or texts a study needs, and which error to expect.

    Reach for it before you collect data: it cross-validates `BagClassifier` on the pilot, draws the learning curve with an
    interval, and says whether the theory of sparse tokens fits the pilot or is contradicted by it. A pilot of texts is
    cross-validated with `TextClassifier`; its curve is extrapolated without a theory.

    Parameters
    ----------
    pilot : (X, y)
        Bags in any form that `BagClassifier` takes, of any lengths, and labels of two classes; the larger one is positive.
        Or texts in any form that `TextClassifier` takes, and labels of two or more classes.
    features : sequence of str, optional
        Names of the features, for the notes.
    samples : int, optional
        Bags of the study; by default those of the pilot.
    target_error : float, optional
        Wanted test error.
    length, signal_tokens, strength, prevalence, dim : optional
        What is known of the task; the rest is estimated for a task that has these values.
    model : estimator, optional
        Of a pilot of texts: what is trained instead of `TextClassifier()`.
    random_state : int
        Seed for the folds and the draws of curves.

    Returns
    -------
    StudyPlan
        Forecast, learning curve, what the theory says, and whether the pilot contradicts it.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import SparseTokens
    >>> from whichtoken.estimators import plan_study
    >>> task = SparseTokens(length=10, signal_tokens=1, strength=6.0, prevalence=0.5, dim=12)
    >>> study = plan_study(pilot=task.sample(120, np.random.default_rng(0)))
    >>> study.learning_curve[-1].samples
    1200
    """
    if samples is not None:
        check_count("samples", samples, 4)
    if target_error is not None:
        check_range("target_error", target_error, 0.0, 0.5)
    given = dict(zip(GIVEN, (length, signal_tokens, strength, prevalence, dim), strict=True))
    if (texts := listed_if_texts(pilot[0])) is not None:
        if known := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{known[0]} is of the theory of bags, and the pilot holds texts; leave it out")
        curve = StudyCurve.of_texts(texts, pilot[1], model, random_state)
    elif model is not None:
        raise UsageError("model is for pilots of texts, and this one holds bags; leave it out")
    else:
        curve = StudyCurve.of(*pilot, given=given, features=features, seed=random_state)
    planned = samples or curve.check.bags
    theory, doubts = curve.theory_plan(planned, target_error)
    sizes = [planned, *(multiple * curve.check.bags for multiple in MULTIPLES)]
    curves = {"linear" if curve.unit == "bags" else "": curve}
    # the theory's own model is the linear one; too small a pilot cannot tell maps apart
    if not curve.fits and not curve.check.too_few and curve.unit == "bags":
        curves |= {kind: curve.with_map(kind) for kind in MAPS if kind != "linear"}
    points = {kind: part.points(sizes) for kind, part in curves.items()}
    reached = {kind: part.sizes_for(target_error) for kind, part in curves.items()}
    # the fewest bags for the target, then the least error in the end; the linear map wins ties
    best = min(curves, key=lambda kind: (reached[kind][0] or math.inf, points[kind][-1].error))
    chosen, (now, *later), (needed, sure) = curves[best], points[best], reached[best]
    study = StudyPlan(
        pilot=chosen.check,
        instance_map=best,
        maps=tuple(
            MapForecast(kind, part.check.error, points[kind][0], points[kind][-1], reached[kind][0])
            for kind, part in curves.items()
        ),
        contradictions=curve.contradictions,
        theory=theory,
        estimate=curve.estimate,
        samples=planned,
        target_error=target_error,
        forecast=now,
        learning_curve=tuple(later),
        samples_needed=needed,
        samples_sure=sure,
        recommendation=_recommendation(chosen, best, target_error, (needed, sure), later),
        notes=(),
        unit=curve.unit,
        model=curve.name or "BagClassifier",
    )
    notes = [*curve.notes, *([] if study.beats_floor else doubts)]
    if curve.task is not None and curve.estimate is not None and theory is not None:
        notes += curve.estimate.warnings
        if curve.fits:
            fewest = min(theory.samples, theory.attention.samples_needed or theory.samples)
            split = list(small_stage_warnings(curve.task, fewest, theory.design))  # BagClassifier splits nothing
            notes += [warning for warning in theory.warnings if warning not in split]
    names = {"signal_tokens": "number of signal tokens", "strength": "strength", "prevalence": "prevalence"}
    unused = [f"{words} of {given[name]:g}" for name, words in names.items() if given[name] is not None]
    if unused and not curve.fits:
        notes.append(f"the forecast does not follow the theory, so it does not use the given {' and '.join(unused)}")
    return replace(study, notes=tuple(notes))


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
    bags: Any  # a RaggedArray, or an array of texts
    codes: NDArray[np.intp]
    unit: str = "bags"
    name: str = ""  # of the model of texts

    @classmethod
    def of_texts(cls, texts: Sequence[str], y: ArrayLike, model: Any = None, seed: int = 0) -> StudyCurve:
        """Cross-validate a pilot of texts; of copies, which would flatter it, one is kept."""
        from whichtoken.datasets.duplicates import duplicate_texts
        from whichtoken.datasets.word_split import split_words
        from whichtoken.estimators.text.classifier import TextClassifier

        split = split_words(texts)
        kept = np.unique(duplicate_texts(split)[1], return_index=True)[1]
        few = len(texts) - len(kept)
        repeat = "repeats" if few == 1 else "repeat"
        notes = (f"{pluralize(few, 'text')} of the pilot nearly {repeat} others: left out",)
        rows, lengths = np.sort(kept), split.lengths[kept]
        classes, codes = encode_labels(y, len(texts))
        some, codes = np.array(texts, dtype=object)[rows], np.asarray(codes[rows])
        model = TextClassifier(random_state=seed) if model is None else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a small part may have rare classes, and texts without a known word
            measured = cross_validated(model, some, codes, seed=seed)
        found = PilotCheck.of(measured, codes, tuple(map(str, classes)), lengths, len(split.names))
        name = type(model).__name__
        return cls(measured, found, None, None, False, seed, notes if few else (), some, codes, "texts", name)

    @classmethod
    def of(
        cls, X: Any, y: ArrayLike, *, given: Mapping[str, Any], features: Sequence[str] | None = None, seed: int = 0
    ) -> StudyCurve:
        """Cross-validate the pilot and estimate the task of the theory."""
        bags = as_bags(X)
        classes, codes = encode_labels(y, len(bags))
        if len(classes) != 2:
            some = ", ".join(map(str, classes[:5])) + (", ..." if len(classes) > 5 else "")
            raise UsageError(f"planning is for two classes; this pilot has {len(classes)}: {some}")
        measured = cross_validated(_model("linear", seed), bags, codes, seed=seed)
        notes: list[str] = []
        estimate = _estimated(bags, codes, given, features, notes)
        task = None
        if estimate:
            known = {name: getattr(estimate, name) if given[name] is None else given[name] for name in GIVEN[:4]}
            task = Task(**known)
        check = PilotCheck.of(measured, codes, tuple(map(str, classes)), bags.lengths, bags.dim)
        return cls(measured, check, estimate, task, given["prevalence"] is not None, seed, tuple(notes), bags, codes)

    def with_map(self, kind: str) -> StudyCurve:
        """The same for another map of the instances, about which the theory says nothing."""
        measured = cross_validated(_model(kind, self.seed), self.bags, self.codes, seed=self.seed)
        check = PilotCheck.of(measured, self.codes, self.check.classes, self.bags.lengths, self.bags.dim)
        return replace(self, measured=measured, check=check, estimate=None, task=None)

    @cached_property
    def contradictions(self) -> tuple[str, ...]:
        """What the pilot shows that the theory does not have, the error of the cross-validation first."""
        if self.task is None or self.estimate is None:
            return ()
        errors = self._by_theory(self.measured.sizes)[:, -1]
        # how likely so extreme a cross-validated error is, two-sided, if one of these errors is the true one
        bags = self.measured.bags
        wrong = round(float(self.measured.errors[-1]) * bags)
        below, above = binom.cdf(wrong, bags, errors).mean(), binom.sf(wrong - 1, bags, errors).mean()
        if min(1.0, 2 * min(float(below), float(above))) >= RULED_OUT:
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
            errors = power_curves(self.measured, sizes, self.check.constant_error, rng)
            logs = self.measured.decline(errors[:, :known])
        rng = np.random.default_rng([self.seed, 1])
        points = curve_points(errors[:, known:], normalized(logs), samples, rng)
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
        needed = next((point.samples for point in points if point.error <= target), None)
        sure = next((point.samples for point in points if point.high <= target), None)
        return needed, sure

    def theory_plan(self, samples: int, target: float | None) -> tuple[Plan | None, list[str]]:
        """The theory's plan for the task that the pilot shows, and what it says against the target."""
        if self.task is None or self.estimate is None:
            return None, []
        task = {**asdict(self.task), "dim": self.estimate.dim, "samples": samples}
        try:
            return plan(**task, target_error=target if self.fits else None), []
        except UsageError as error:  # it rules the target out, for a task that is only estimated: no reason to refuse
            said = error.describe(lambda name, value: f"the {name.replace('_', ' ')} of {value}")
            return plan(**task), [f"by the theory, as far as the pilot shows, {said}"]

    def _by_theory(self, sizes: Array) -> Array:
        assert self.task is not None
        assert self.estimate is not None
        rng = np.random.default_rng(self.seed)
        return theory_curves(self.task, self.estimate, sizes, self.known_prevalence, rng)


def _model(kind: str, seed: int) -> BagClassifier:
    """The classifier that is tried; a network is trained thirty times, so nothing of it is validated each time."""
    options: dict[str, Any] = {"cv": []} if kind == "network" else {}
    return BagClassifier(instance_map=kind, n_queries=1, random_state=seed, **options)  # type: ignore[arg-type]


def _estimated(
    bags: RaggedArray,
    codes: NDArray[np.intp],
    given: Mapping[str, Any],
    features: Sequence[str] | None,
    notes: list[str],
) -> PilotEstimate | None:
    """The task of the theory as the pilot shows it; None, with a note, where it shows none."""
    tokens, rows = equal_lengths(bags, notes)
    kept = usable_features(tokens[codes[rows] == 0], features, notes)
    for name, found in (("length", tokens.shape[1]), ("dim", bags.dim)):
        if given[name] not in (None, found):
            raise UsageError(f"{{{name}}} must be that of the pilot, {found}", **{name: given[name]})
    try:
        known = {name: given[name] for name in ("signal_tokens", "strength")}
        return estimate_task(tokens[:, :, kept], codes[rows], **known)
    except ValueError as error:
        notes.append(f"the theory of sparse tokens says nothing here: {error}")
        return None


def _recommendation(
    curve: StudyCurve,
    kind: str,
    target: float | None,
    sizes: tuple[int | None, int | None],
    later: Sequence[CurvePoint],
) -> str:
    """What to do, in one or two sentences."""
    (needed, sure), bags, unit = sizes, curve.check.bags, curve.unit
    name = curve.name or f"BagClassifier(instance_map='{kind}')"
    if curve.check.too_few:
        return f"Collect at least {FEWEST} {unit} of each class, preferably many more, and plan again."
    basis = "the pilot's own learning curve"
    if curve.fits:
        basis = "the theory of sparse tokens, which the pilot does not contradict"
    if target is None:
        first = later[0]
        gain = "help" if math.isfinite(first.error) and later[-1].high < first.high else "may help little"
        return f"Train {name} on all {unit}, without a split; by {basis}, more {unit} {gain}."
    if needed is None:
        which = "" if curve.fits or curve.name else " with any map of the instances"
        return (
            f"By {basis}, an error of {target:g} is not in sight{which} with up to {int(SEARCHED[-1] * bags)} {unit}."
        )
    firm = ", and no number up to 100 times the pilot gives 95 % confidence"
    if sure:
        firm = f"; {sure} for 95 % confidence"
    return f"Plan for about {needed} {unit} to reach an error of {target:g} with {name}, by {basis}{firm}."
