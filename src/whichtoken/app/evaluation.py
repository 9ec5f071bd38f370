"""Evaluate a model beside its baselines on held-out rows, by one split or by cross-validation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from threadpoolctl import threadpool_limits

from whichtoken.app.readers import Target
from whichtoken.datasets.word_split import CHARACTER, SPACELESS
from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize, visible
from whichtoken.errors import UsageError, unknown
from whichtoken.estimators.common import answers_of, plain_label, stratified_clusters, stratified_folds
from whichtoken.estimators.metrics import Details, HeldOut, Metrics, details_of, metrics_of, scores_in
from whichtoken.kernel_cache import seconds_without_compiling
from whichtoken.reading import shown

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

LARGEST_SEED = 2**32 - 1  # what numpy's and scikit-learn's generators take
FEW_CLASSES = 8  # so many are accepted in the smallest table
MOST_FOLDS = 100
FOLDS = 3  # of a validation; each needs a row of every class


@dataclass(frozen=True)
class Scheme:
    """How a fit is evaluated: on a share of the rows, or by cross-validation, which may be repeated."""

    test_share: float = 0.25
    folds: int | None = None  # cross-validation instead of one test
    repeats: int = 1
    seed: int = 0
    baseline: str | None = "logistic"  # None for none
    min_class: int = 1  # rows of classes with fewer are left out

    def __post_init__(self) -> None:
        if self.min_class < 1:
            raise UsageError("{min_class} must be a whole number of at least 1", min_class=self.min_class)
        if not 0 < self.test_share < 1:
            raise UsageError("{test_share} must lie between 0 and 1, such as 0.25", test_share=self.test_share)
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"{{seed}} must be a whole number from 0 to {LARGEST_SEED}", seed=self.seed)
        if self.folds is not None and not 2 <= self.folds <= MOST_FOLDS:
            raise UsageError(f"{{folds}} must be a whole number from 2 to {MOST_FOLDS}", folds=self.folds)
        if not 1 <= self.repeats <= MOST_FOLDS:
            raise UsageError(f"{{repeats}} must be a whole number from 1 to {MOST_FOLDS}", repeats=self.repeats)
        if self.repeats > 1 and self.folds is None:
            raise UsageError(
                "{repeats} needs a cross-validation; give the number of folds too, such as 5", repeats=self.repeats
            )

    def __str__(self) -> str:
        if self.folds is None:
            return f"{self.test_share:.0%} held out at random"
        return f"{self.folds}-fold cross-validation" + (f", repeated {self.repeats} times" if self.repeats > 1 else "")

    def with_groups(self, column: str, share: float) -> str:
        """The same where whole groups of a column were held out, which are this share of the rows."""
        if self.folds is None:
            return f"whole groups of '{visible(column)}' held out at random, {share:.0%} of the rows"
        return f"{self} with whole groups of '{visible(column)}'"


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that was trained on some rows of a table, and the probabilities that it gives to others."""

    model: Any
    classes: NDArray[Any]
    probabilities: Callable[[Rows], Array]  # (rows, classes); of a number, that number, (rows, 1)
    weights: Array | None = None  # (classes,): the label is that of the largest product


class Workload:
    """One table as models see it."""

    target: Target = Target()  # what is learned
    labels: NDArray[Any]  # (n,); 0 and 1 for each of several, (n, k)
    clusters: NDArray[Any] | None  # what belongs together, (n,): it is never on both sides of a split
    copies: NDArray[np.intp] | None = None  # number of the group of rows that repeat each other, (n,): likewise
    least: int = FOLDS  # rows of each class that training needs: every fold of a validation has some

    def ours(self, rows: Rows) -> Trained:
        """Our model, trained on these rows."""
        raise NotImplementedError

    def baseline(self, kind: str, rows: Rows) -> Trained:
        """What a user would take instead, trained on these rows."""
        raise NotImplementedError

    def name_of(self, kind: str) -> str:
        """The baseline in words."""
        raise NotImplementedError


@dataclass(frozen=True)
class FitReport(Shown):
    """What `whichtoken fit` prints."""

    training: int  # rows that the saved model has seen
    test: int  # rows that were tested, by models that had not seen them
    judged_by: str
    ours: Metrics
    majority: Metrics  # always the most frequent class, with the frequencies as probabilities; of numbers their mean
    baseline: Metrics | None
    details: Details | None  # of ours, where each row has one class
    notes: tuple[str, ...] = field(default=())
    folds: int | None = None  # of a cross-validation; the saved model has then seen all rows
    labels: tuple[Metrics, ...] = ()  # of ours, each of several labels

    def _headline(self) -> str:
        beside = [m for m in (self.baseline, self.majority) if m is not None]
        kind, said = next(iter(scores_in(asdict(self.ours)).items()))
        others = ", ".join(f"{m.name} {getattr(m, kind):.3f}" for m in beside)
        found = f"{said} {getattr(self.ours, kind):.3f} on {pluralize(self.test, 'row')}"
        return f"{found} ({others}), judged by {self.judged_by}"


class TooFewRowsError(UsageError):
    """There are too few rows, groups or distinct texts to hold some out for a test."""


def evaluate_with_baselines(
    path: Path, work: Workload, scheme: Scheme, split_by: str | None = None
) -> tuple[FitReport, Trained, Rows]:
    """Our model beside its baselines; the model to keep; and the rows that were held out from it, if any were.

    `split_by` is the name of the column that the clusters come from.
    """
    one, target = scheme.folds is None, work.target
    if target.kind == "class":
        used, notes = _frequent_rows(path, work.labels, scheme.min_class)
        check_classes(path, work.labels[used], work.least)
        repeats = _splits(path, work, scheme, used)
        classes = np.unique(work.labels[used])
        codes = np.searchsorted(classes, work.labels).clip(max=len(classes) - 1)  # of rows left out, any
    else:
        target.check(path, work.labels)
        used, notes, classes, codes = np.arange(len(work.labels)), [], np.array(target.columns), work.labels
        repeats = _splits(path, _Strata(_strata(codes), work.clusters, work.copies), scheme, used)
    rows = np.sort(np.concatenate([outside for _, outside in repeats[0]]))
    if target.kind == "class":
        few = "has too few rows" if work.clusters is None else "is in too few groups"
        untested = np.setdiff1d(classes, work.labels[rows])
        notes += [f"class {_label_text(name)} {few} to be tested; it is learned all the same" for name in untested]
    clusters = None if work.clusters is None else work.clusters[rows]

    def hold_out(train: Callable[[Rows], Trained]) -> tuple[HeldOut, float, Trained]:
        """Probabilities of all tested rows in every repeat, seconds of a fit without compiling, and the last model."""
        found, folds, weights, seconds = [], [], [], []
        for parts in repeats:
            table, fold = np.full((len(codes), len(classes)), np.nan), np.zeros(len(codes), np.intp)
            factors = np.ones_like(table)
            for number, (inside, outside) in enumerate(parts):
                last, taken = seconds_without_compiling(partial(_train, path, train, np.sort(inside)))
                seconds.append(taken)
                table[np.sort(outside)] = last.probabilities(np.sort(outside))
                fold[outside] = number
                factors[outside] = 1.0 if last.weights is None else last.weights
            found.append(table[rows])
            folds.append(fold[rows])
            weights.append(factors[rows])
        return HeldOut(codes[rows], found, clusters, folds, weights), float(np.mean(seconds)), last

    def prior(inside: Rows) -> Trained:
        return Trained(None, classes, lambda others: np.tile(_mean_of(codes[inside], classes), (len(others), 1)))

    ours, seconds, model = hold_out(work.ours)
    peer = None
    if scheme.baseline is not None:
        kind = scheme.baseline
        # on several threads the short vectors of a linear model wait longer than they compute
        with nullcontext() if kind == "boosting" else threadpool_limits(1):
            theirs, their_seconds, _ = hold_out(lambda inside: work.baseline(kind, inside))
        peer = metrics_of(work.name_of(kind), theirs, their_seconds)
    report = FitReport(
        training=len(repeats[0][0][0]) if one else len(used),
        test=len(rows),
        judged_by=str(scheme) if split_by is None else scheme.with_groups(split_by, len(rows) / len(used)),
        ours=metrics_of("attention", ours, seconds),
        majority=metrics_of(CONSTANT[target.kind], hold_out(prior)[0], 0.0),
        baseline=peer,
        details=details_of(ours, classes) if target.kind == "class" else None,
        notes=tuple(notes),
        folds=scheme.folds,
        labels=_label_metrics(ours, target),
    )
    kept = model if one else _train(path, work.ours, used)
    report = _advised(report, "label more, or test on all rows with --folds 5" if one else "label more")
    return report, kept, rows if one else np.empty(0, np.intp)


CONSTANT = {"class": "most frequent class", "number": "mean", "labels": "share of each label"}


class _Strata(NamedTuple):
    """What `_splits` puts on both sides."""

    labels: NDArray[np.intp]
    clusters: NDArray[Any] | None
    copies: NDArray[np.intp] | None
    least: int = 1


def _strata(values: NDArray[Any]) -> NDArray[np.intp]:
    """Fifths of the numbers; of several labels, for each row the one that is rarest among those that few rows share."""
    if values.ndim == 1:
        return np.searchsorted(np.quantile(values, (0.2, 0.4, 0.6, 0.8)), values)
    unusual = values == (values.mean(axis=0) < 0.5)
    sizes = np.where(unusual, unusual.sum(axis=0), len(values) + 1)
    return np.where(unusual.any(axis=1), sizes.argmin(axis=1), -1)


def _mean_of(codes: NDArray[Any], classes: NDArray[Any]) -> Array:
    """The constant answer: shares of the classes or of the labels, or the mean of the numbers."""
    if codes.ndim == 2 or codes.dtype.kind == "f":
        return np.atleast_1d(codes.mean(axis=0))
    return np.bincount(codes, minlength=len(classes)) / len(codes)


def _label_metrics(held: HeldOut, target: Target) -> tuple[Metrics, ...]:
    if target.kind != "labels":
        return ()
    return tuple(metrics_of(name, held.of_label(k), 0.0) for k, name in enumerate(target.columns))


def evaluate_saved(
    path: Path, trained: Trained, labels: NDArray[Any], notes: Sequence[str] = (), target: Target | None = None
) -> FitReport:
    """A saved model on the labels of another table, beside the constant answer that is best there."""
    target = target or Target()
    strange = np.setdiff1d(labels, trained.classes) if target.kind == "class" else np.empty(0)
    if strange.size:
        known = ", ".join(map(_label_text, trained.classes[:8]))
        raise UsageError(
            f"{shown(path)} has the label {_label_text(strange[0])}, which the model does not know; it knows {known}"
        )
    codes = np.searchsorted(trained.classes, labels) if target.kind == "class" else labels
    found = trained.probabilities(np.arange(len(codes)))
    held = HeldOut(
        codes, [found], weights=None if trained.weights is None else [np.broadcast_to(trained.weights, found.shape)]
    )
    shares = _mean_of(codes, trained.classes)
    report = FitReport(
        training=0,
        test=len(codes),
        judged_by="all rows of the table",
        ours=metrics_of("attention", held, 0.0),
        majority=metrics_of(
            f"{CONSTANT[target.kind]} of this table", HeldOut(codes, [np.tile(shares, (len(codes), 1))]), 0.0
        ),
        baseline=None,
        details=details_of(held, trained.classes) if target.kind == "class" else None,
        notes=tuple(notes),
        labels=_label_metrics(held, target),
    )
    return _advised(report, "test on more, or train on more")


def _advised(report: FitReport, more: str) -> FitReport:
    """With what to do if the interval of the first score does not lie above that of the constant answer."""
    kind, said = next(iter(scores_in(asdict(report.ours)).items()))
    (low, high), least = report.ours.intervals[kind], getattr(report.majority, kind)
    if low > least:
        return report
    said = f"on {pluralize(report.test, 'row')} the {said} ({low:.3f} to {high:.3f}) is not clearly above"
    said += f" that of always saying the {report.majority.name.removesuffix(' of this table')} ({least:.3f}): {more}"
    return replace(report, notes=(said, *report.notes))


def _train(path: Path, train: Callable[[Rows], Trained], rows: Rows) -> Trained:
    try:
        return train(rows)
    except UsageError:
        raise
    except ValueError as error:  # a fault in the data or the options
        raise UsageError(f"{shown(path)}: {error}") from error


def _frequent_rows(path: Path, labels: NDArray[Any], least: int) -> tuple[Rows, list[str]]:
    """Rows of classes that have at least so many, and a sentence about the others."""
    classes, counts = np.unique(labels, return_counts=True)
    rare = classes[counts < least]
    used = np.flatnonzero(~np.isin(labels, rare))
    if len(rare) and len(np.unique(labels[used])) < 2:
        raise UsageError(
            f"{shown(path)}: fewer than two classes have {pluralize(least, 'row')}; choose a smaller --min-class"
        )
    named = ", ".join(map(_label_text, rare[:3])) + (" and others" if len(rare) > 3 else "")
    rows = len(labels) - len(used)
    said = f"{pluralize(rows, 'row')} of {pluralize(len(rare), 'class')} with fewer than {least} {'was' if rows == 1 else 'were'}"
    said += f" left out: {named}"
    return used, [said] if len(rare) else []


def _splits(path: Path, work: Workload | _Strata, scheme: Scheme, used: Rows) -> list[list[tuple[Rows, Rows]]]:
    """Rows for training and rows for the test: for each repeat one pair, or one for each fold.

    Where a model can learn a class from a single row, a class with too few rows (or clusters) to be on both sides is trained on,
    always, with all that belongs to it: it is learned but not tested.
    """
    if work.clusters is None and work.copies is not None:
        # one row stands for all its copies, that of the rarest class, so that no class is lost
        sizes = dict(zip(*np.unique(work.labels[used], return_counts=True), strict=True))
        order = np.argsort([sizes[label] for label in work.labels[used]], kind="stable")
        first = np.sort(used[order[np.unique(work.copies[used[order]], return_index=True)[1]]])
        if len(first) < len(used) and set(work.labels[first]) == set(sizes):

            def copies(rows: Rows) -> Rows:
                return np.asarray(used[np.isin(work.copies[used], work.copies[rows])])  # type: ignore[index]

            repeats = _splits(path, work, scheme, first)
            # each text is tested once: copies would pretend that there are more
            return [[(copies(inside), outside) for inside, outside in pairs] for pairs in repeats]
    labels = work.labels[used]
    clusters = None if work.clusters is None else np.unique(work.clusters[used], return_inverse=True)[1]
    classes = np.unique(labels)
    rare = classes[:0] if work.least > 1 else _rare_classes(labels, clusters, scheme)
    while True:
        always = np.isin(labels, rare)
        if clusters is not None:
            always = np.isin(clusters, clusters[always])
        common = np.flatnonzero(~always)
        if len(np.unique(labels[common])) < 2:
            once = "; copies of one text count once" if work.copies is not None else ""
            raise TooFewRowsError(f"{shown(path)}: {_too_few(clusters is not None, scheme)}{once}")
        inner = None if clusters is None else clusters[common]
        kept = np.flatnonzero(always)
        repeats = [
            [(used[np.append(common[inside], kept)], used[common[outside]]) for inside, outside in pairs]
            for pairs in _common_splits(path, labels[common], inner, scheme, work.least)
        ]
        insides = [inside for pairs in repeats for inside, _ in pairs]
        unseen = [name for name in classes if any(not (work.labels[inside] == name).any() for inside in insides)]
        if clusters is None or work.least > 1 or not unseen:
            break
        rare = np.append(rare, unseen)
    for inside in insides:
        _check_training(path, work.labels, inside, classes, work.least)
    return repeats


def _rare_classes(labels: NDArray[Any], clusters: NDArray[np.intp] | None, scheme: Scheme) -> NDArray[Any]:
    """Classes that cannot be on both sides of every split."""
    if clusters is None:
        classes, counts = np.unique(labels, return_counts=True)
        return np.asarray(classes[counts < (scheme.folds or 2)])
    classes, codes = np.unique(labels, return_inverse=True)
    if not clusters.any():
        return np.asarray(classes[:0])  # one cluster only, which is refused later
    pairs = np.unique(np.stack([codes, clusters]), axis=1)
    return np.asarray(classes[np.bincount(pairs[0]) < 2])


def _too_few(clustered: bool, scheme: Scheme) -> str:
    if clustered:
        return "the test needs two classes that are in several groups each; add groups, or choose another column to split by"
    advice = "add rows" if scheme.folds is None else "add rows or choose fewer folds"
    return f"{scheme.folds or 2} rows of at least two classes are needed; {advice}"


def _common_splits(
    path: Path, labels: NDArray[Any], clusters: NDArray[np.intp] | None, scheme: Scheme, least: int
) -> list[list[tuple[Rows, Rows]]]:
    if scheme.folds is None:
        return [[_one_split(path, labels, scheme, clusters, least)]]
    _, counts = np.unique(labels, return_counts=True)
    units = int(counts.min()) if clusters is None else min(len(np.unique(clusters)), int(counts.max()))
    if scheme.folds > units:
        what = "groups" if clusters is not None else "rows of the rarest class"
        raise UsageError(f"{shown(path)}: {scheme.folds} folds need as many {what}; there are {units}")
    seeds = [(scheme.seed + repeat) % LARGEST_SEED for repeat in range(scheme.repeats)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # it is said in the notes
        folds = [stratified_folds(labels, scheme.folds, clusters, seed) for seed in seeds]
        return [[pair for pair in pairs if len(pair[1])] for pairs in folds]


def _one_split(
    path: Path, labels: NDArray[Any], scheme: Scheme, clusters: NDArray[np.intp] | None, least: int
) -> tuple[Rows, Rows]:
    """With the same share of each class on both sides, as far as whole clusters allow."""
    share, seed = scheme.test_share, scheme.seed
    units, needed = (labels, len(np.unique(labels))) if clusters is None else (np.unique(clusters), 1)
    test = math.ceil(share * len(units))
    if min(test, len(units) - test) < needed:
        what = "row" if clusters is None else "group"
        raise TooFewRowsError(
            f"{shown(path)}: a test share of {share:g} puts {test} of {pluralize(len(units), what)} into the test and leaves"
            f" {len(units) - test} for training; each part needs at least {needed}"
        )
    if clusters is None:
        from sklearn.model_selection import train_test_split

        inside, outside = train_test_split(np.arange(len(labels)), test_size=share, random_state=seed, stratify=labels)
        return inside, outside
    held = stratified_clusters(labels, clusters, test, share, seed, least)
    return np.flatnonzero(~held), np.flatnonzero(held)


def check_classes(path: Path, labels: NDArray[Any], least: int) -> None:
    """Refuse labels that are not classes: one kind only, almost as many kinds as rows, or too few rows of one."""
    if not len(labels):
        raise UsageError(f"{shown(path)} has no rows")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise UsageError(
            f"{shown(path)} has one class only, {_label_text(classes[0])}; a classifier needs at least two"
        )
    if len(classes) > max(FEW_CLASSES, len(labels) / 2):
        raise UsageError(
            f"{shown(path)}: the labels have {len(classes)} distinct values in {len(labels)} rows, such as"
            f" {_label_text(classes[0])}; classification needs a few classes that occur often: name the right column, cut the"
            " numbers into ranges, or predict them (--number)"
        )
    if counts.min() < 2 <= least:
        rare = classes[counts.argmin()]
        raise UsageError(
            f"{shown(path)}: class {_label_text(rare)} has one row only; training and test need several, so add rows or"
            " leave it out (--min-class 4)"
        )


def _check_training(path: Path, labels: NDArray[Any], inside: Rows, classes: NDArray[Any], least: int) -> None:
    for name in classes:
        every, left = int((labels == name).sum()), int((labels[inside] == name).sum())
        if left < least:
            raise UsageError(
                f"{shown(path)}: class {_label_text(name)} has {pluralize(every, 'row')}, but the split leaves only {left} for"
                f" training; at least {least} {'is' if least == 1 else 'are'} needed, so add rows, leave the class out"
                f" (--min-class {every + 1}), or choose a smaller test share"
            )


def _label_text(label: Any) -> str:
    """A label with quotes where it is text."""
    return visible(repr(plain_label(label)))


def add_predictions(
    table: pd.DataFrame,
    classes: NDArray[Any],
    probabilities: Array,
    abstain_below: float | None = None,
    weights: Array | float = 1.0,
) -> pd.DataFrame:
    """The table with the predicted label and the probability of each class beside its own columns.

    A label whose probability is below `abstain_below` or unknown is left empty.
    """
    chosen = (probabilities * weights).argmax(axis=1)
    labels = np.asarray(classes)[chosen].astype(object)
    labels[np.isnan(probabilities).any(axis=1)] = None  # rows without a text
    if abstain_below is not None:
        labels[probabilities[np.arange(len(chosen)), chosen] < abstain_below] = None
    columns: dict[str, Any] = {"predicted": labels}
    columns |= {f"probability_{name}": probabilities[:, k] for k, name in enumerate(classes)}
    return _with_free_names(table, columns)


def add_answers(table: pd.DataFrame, target: Target, found: Array, abstain_below: float | None = None) -> pd.DataFrame:
    """As `add_predictions`: the predicted number, or for each label 0 or 1 and a probability."""
    if target.number:
        if abstain_below is not None:
            raise UsageError("--abstain-below is about probabilities of labels, and this model predicts a number")
        return _with_free_names(table, {"predicted": found[:, 0]})
    marks = (found > 0.5).astype(int).astype(object)
    marks[np.isnan(found) | (np.maximum(found, 1 - found) < (abstain_below or 0))] = None
    columns: dict[str, Any] = {f"predicted_{name}": marks[:, k] for k, name in enumerate(target.columns)}
    columns |= {f"probability_{name}": found[:, k] for k, name in enumerate(target.columns)}
    return _with_free_names(table, columns)


def _with_free_names(table: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """The table with more columns; a name that it has already gets a mark at its end."""
    taken = set(table.columns)
    for name in list(columns):
        free = name
        while free in taken:
            free += "_"
        columns[free] = columns.pop(name)
    return table.assign(**columns)


def logistic_baseline(**options: Any) -> LogisticRegressionCV:
    """The estimator with ten ridges, three folds and the log loss, unless `options` say otherwise."""
    # scikit-learn from 1.8 on asks for a choice between its old and its new form; before, there is only the old one
    if "use_legacy_attributes" in signature(LogisticRegressionCV).parameters:
        options = {"use_legacy_attributes": False, "l1_ratios": (0.0,), **options}
    return LogisticRegressionCV(**{"Cs": 10, "cv": FOLDS, "max_iter": 2000, "scoring": "neg_log_loss", **options})


# by what is learned
LABELS, NUMBERS = {"logistic": "logistic regression for each label"}, {"ridge": "ridge regression"}
TEXTS = {
    "class": {"logistic": "TF-IDF + logistic regression", "naive-bayes": "counts + naive Bayes"},
    "labels": {name: f"TF-IDF + {said}" for name, said in LABELS.items()},
    "number": {name: f"TF-IDF + {said}" for name, said in NUMBERS.items()},
}
TABLES = {
    "class": {"logistic": "logistic regression", "boosting": "gradient boosting"}, "labels": LABELS, "number": NUMBERS,
}  # fmt: skip
# as good on development data as ten from 1e-4 to 1e4, in half the time: TF-IDF rows have length 1, so C below 0.1 never wins
TEXT_CS = (0.1, 1.0, 10.0, 100.0, 1000.0)
TEXT_RIDGES, TABLE_RIDGES = np.logspace(-2, 2, 9), np.logspace(-2, 4, 13)
# as scikit-learn has it, but a character is a word where a script has no spaces: a whole sentence says nothing of others
WORDS = rf"{CHARACTER.pattern}|[^\W{SPACELESS}]{{2,}}"
ENOUGH_TO_CHOOSE = 100_000  # documents from which on a part of them chooses C, as in our own fit


def check_baseline(kind: str | None, known: Mapping[str, str]) -> None:
    """Refuse a name that is not in the list; call it before the table is read."""
    if kind is not None and kind not in known:
        raise unknown("baseline", kind, known)


def with_baseline(scheme: Scheme, known: Mapping[str, str]) -> Scheme:
    """A scheme with the usual baseline if none was chosen; another one must be in the list."""
    if scheme.baseline == Scheme.baseline:
        return replace(scheme, baseline=next(iter(known)))
    check_baseline(scheme.baseline, known)
    return scheme


def text_baseline(kind: str, ngram_range: tuple[int, int], class_weight: str | None = None) -> Any:
    """A classifier of texts, with `fit`, `classes_` and `predict_proba`."""
    if kind == "naive-bayes":
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer

        only_texts = FunctionTransformer(lambda X: getattr(X, "texts", X))
        return make_pipeline(only_texts, CountVectorizer(ngram_range=ngram_range, token_pattern=WORDS), MultinomialNB())
    return _TfIdf(ngram_range, class_weight)


def _beyond_classes(y: NDArray[Any], ridges: Array, **options: Any) -> Any:
    """A ridge regression on numbers, or a logistic regression for each label; its C is chosen where each fold has some."""
    if y.ndim == 1:
        from sklearn.linear_model import RidgeCV

        return RidgeCV(ridges, cv=FOLDS)
    from sklearn.multiclass import OneVsRestClassifier

    rare = min(y.sum(axis=0).min(), (1 - y).sum(axis=0).min()) < FOLDS
    return OneVsRestClassifier(LogisticRegression(max_iter=2000) if rare else logistic_baseline(**options))


def table_baseline(kind: str, class_weight: str | None = None, values: NDArray[Any] | None = None) -> Any:
    """A classifier of columns of numbers; `values` are numbers or marks of several labels to learn instead."""
    if kind == "boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(class_weight=class_weight, random_state=0)
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if values is not None:
        return make_pipeline(StandardScaler(), _beyond_classes(values, TABLE_RIDGES))
    return make_pipeline(StandardScaler(), logistic_baseline(class_weight=class_weight))


def _columns_beside(X: Any) -> Any:
    """The columns of a `TextTable`; None for texts alone, which do not load what columns need."""
    return getattr(X, "columns", None)


class _TfIdf:
    """TF-IDF and logistic regression; of many documents a part chooses C, as in our own fit."""

    def __init__(self, ngram_range: tuple[int, int], class_weight: str | None) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=ngram_range, token_pattern=WORDS)
        self.class_weight = class_weight

    def fit(self, X: Any, y: NDArray[Any]) -> _TfIdf:
        if _columns_beside(X) is not None:
            from whichtoken.estimators.text.columns import ColumnPart

            self.columns = ColumnPart.of(X.columns, X.text)
        features = self._features(X, self.vectorizer.fit_transform)
        self.regression = self._best_regression(features, y)
        self.classes_ = getattr(self.regression, "classes_", None)
        return self

    def _best_regression(self, features: Any, y: NDArray[Any]) -> Any:
        """With the C that is best on documents of classes that every fold has, and of many on a part of them."""
        if y.ndim == 2 or y.dtype.kind == "f":
            return _beyond_classes(y, TEXT_RIDGES, Cs=TEXT_CS, max_iter=500).fit(features, y)
        classes, counts = np.unique(y, return_counts=True)
        some = np.flatnonzero(np.isin(y, classes[counts >= FOLDS]))
        if len(some) > ENOUGH_TO_CHOOSE:
            some = np.sort(np.random.default_rng(0).choice(some, ENOUGH_TO_CHOOSE, replace=False))
        if len(np.unique(y[some])) < 2:
            return LogisticRegression(max_iter=2000, class_weight=self.class_weight).fit(features, y)
        search = logistic_baseline(class_weight=self.class_weight, Cs=TEXT_CS, max_iter=500).fit(
            features[some], y[some]
        )
        if len(some) == len(y):
            return search
        C = float(np.ravel(search.C_)[0])  # older versions repeat it for each class
        return LogisticRegression(C=C, max_iter=2000, class_weight=self.class_weight).fit(features, y)

    def _features(self, X: Any, count: Callable[[Iterable[str]], Any]) -> Any:
        """TF-IDF, with standardized columns beside it where there are some."""
        beside = _columns_beside(X)
        if beside is None:
            return count(X)
        return sparse.hstack([count(X.texts), self.columns.standardized(beside)], format="csr")

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the classes or labels, (n, k), or numbers, (n, 1)."""
        return answers_of(self.regression, self._features(X, self.vectorizer.transform))
