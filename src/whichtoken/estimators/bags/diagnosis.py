"""What bags say about the task before and after training: signal, alignment, predicted and measured errors, localisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from whichtoken.data.bags import Bags, LabelledBags
from whichtoken.display.shown import Shown
from whichtoken.estimators._labels import encode_labels
from whichtoken.estimators._scores import signs_of
from whichtoken.estimators.bags.maps import instance_scaling
from whichtoken.estimators.bags.pilot_tokens import equal_lengths
from whichtoken.estimators.bags.training import Queries
from whichtoken.theory.sparse_tokens import estimate_task, plan

if TYPE_CHECKING:
    from whichtoken.estimators.bags.classifier import BagClassifier

Array = NDArray[np.float64]

FOLDS = 5


@dataclass(frozen=True)
class Diagnosis(Shown):
    """The task as the data show it, with the planner's errors beside cross-validated ones; None where nothing can be said."""

    samples: int
    strength: float | None  # of the signal, in noise standard deviations
    strength_interval: tuple[float, float] | None  # 95 %
    informative_share: float | None  # instances of a positive bag that carry the signal
    informative_interval: tuple[float, float] | None  # 95 %
    alignment: float  # cosine of a query with the signal, from queries of the two halves of the data
    planned_alignment: float | None  # the theory's, for the planner's split
    planned_error: float | None
    planned_mean_error: float | None
    bayes_floor: float | None
    cross_validated_error: float
    cross_validated_mean_error: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Localisation(Shown):
    """How well instances with a label are found in bags that have some of both kinds."""

    attention_auc: float  # over all instances of these bags
    contribution_auc: float
    attention_precision: float  # average precision
    contribution_precision: float
    top_hit: float  # share of bags whose most attended instance is a labelled one
    bags: int


def diagnose(model: BagClassifier, bags: Bags, y: ArrayLike) -> Diagnosis:
    """Estimate the task of Barnfield, Cui, Lu (arXiv 2509.25153) from bags of two classes, and check it against training."""
    classes, codes = encode_labels(y, len(bags))
    if len(classes) != 2:
        raise ValueError(f"diagnose needs two classes; y has {len(classes)}")
    (signs,) = signs_of(codes, 2)
    fewest = int(np.bincount(codes).min())
    if fewest < 4:
        raise ValueError(f"diagnose needs at least 4 bags of each class; one has {fewest}")
    notes: list[str] = []
    pilot, rows = equal_lengths(bags, notes)
    planned = estimate = None
    try:
        estimate = estimate_task(pilot, signs[rows])
        task = {name: getattr(estimate, name) for name in ("length", "signal_tokens", "strength", "prevalence", "dim")}
        planned = plan(**task, samples=len(bags))
        notes += [*estimate.misfits, *estimate.warnings, *planned.warnings]
    except ValueError as error:
        notes.append(str(error))
    measured, pooled = _cross_validated(model, bags, codes)
    length = pilot.shape[1]
    return Diagnosis(
        samples=len(bags),
        strength=estimate.strength if estimate else None,
        strength_interval=estimate.strength_interval if estimate else None,
        informative_share=estimate.signal_tokens / length if estimate else None,
        informative_interval=_shares(estimate.signal_tokens_interval, length) if estimate else None,
        alignment=_alignment(bags, signs, codes),
        planned_alignment=planned.design.alignment if planned else None,
        planned_error=planned.attention.error if planned else None,
        planned_mean_error=planned.pooled.error if planned else None,
        bayes_floor=planned.bayes_floor if planned else None,
        cross_validated_error=measured,
        cross_validated_mean_error=pooled,
        notes=tuple(notes),
    )


def localisation(attention: list[Array], contributions: list[Array], instance_labels: list[ArrayLike]) -> Localisation:
    """Compare scores of instances, (L_i,) per bag, with labels that are True where an instance matters, (L_i,) per bag."""
    if attention[0].ndim != 1:
        raise ValueError("localisation needs one query and two classes")
    truths = [np.asarray(labels, dtype=bool) for labels in instance_labels]
    if len(truths) != len(attention):
        raise ValueError(f"instance_labels has {len(truths)} entries for {len(attention)} bags")
    for i, (scores, truth) in enumerate(zip(attention, truths, strict=True)):
        if truth.shape != scores.shape:
            raise ValueError(
                f"instance_labels of bag {i} have shape {truth.shape}; the bag has {len(scores)} instances"
            )
    mixed = [i for i, truth in enumerate(truths) if truth.any() and not truth.all()]
    if not mixed:
        raise ValueError("instance_labels: no bag has both labelled and other instances")
    truth = np.concatenate([truths[i] for i in mixed])
    attended, added = (np.concatenate([scores[i] for i in mixed]) for scores in (attention, contributions))
    return Localisation(
        attention_auc=float(roc_auc_score(truth, attended)),
        contribution_auc=float(roc_auc_score(truth, added)),
        attention_precision=float(average_precision_score(truth, attended)),
        contribution_precision=float(average_precision_score(truth, added)),
        top_hit=float(np.mean([truths[i][attention[i].argmax()] for i in mixed])),
        bags=len(mixed),
    )


def _alignment(bags: Bags, signs: Array, codes: NDArray[np.intp]) -> float:
    """Square root of the cosine of the queries of two halves: both miss the signal by as much, independently."""
    halves = [rows for _, rows in StratifiedKFold(2, shuffle=True, random_state=0).split(codes, codes)]
    scaling = instance_scaling(bags)
    data = LabelledBags(bags, signs, np.ones(len(bags)))
    first, second = (Queries(data.subset(rows), scaling, 1).first for rows in halves)
    return math.sqrt(max(0.0, float(first @ second)))


def _cross_validated(model: BagClassifier, bags: Bags, codes: NDArray[np.intp]) -> tuple[float, float]:
    """Errors of the classifier and of its mean-pooling form in a stratified cross-validation."""
    # a network trains its queries and cannot pool by the mean, so the mean is then that of the instances themselves
    own = {"instance_map": "linear"} if model.instance_map == "network" else {}
    pooled = clone(model).set_params(inverse_temperature=0.0, **own)
    wrong = np.zeros(2)
    folds = min(FOLDS, int(np.bincount(codes).min()))
    for inside, outside in StratifiedKFold(folds, shuffle=True, random_state=0).split(codes, codes):
        training, test = bags.subset(inside), bags.subset(outside)
        for place, candidate in enumerate((model, pooled)):
            fitted: Any = clone(candidate).fit(training, codes[inside])
            wrong[place] += np.count_nonzero(fitted.predict(test) != codes[outside])
    return float(wrong[0] / len(codes)), float(wrong[1] / len(codes))


def _shares(interval: tuple[int, int], length: int) -> tuple[float, float]:
    return interval[0] / length, interval[1] / length
