"""Which map of the instances suits given bags: the same cross-validation for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from whichtoken.data.bags import Bags
from whichtoken.display.shown import Shown
from whichtoken.estimators._labels import encode_labels
from whichtoken.estimators.bags.maps import MAPS
from whichtoken.estimators.cluster_split import stratified_folds

if TYPE_CHECKING:
    from whichtoken.estimators.bags.classifier import BagClassifier

Array = NDArray[np.float64]

FOLDS = 3
COMPARED_FLOATS = 1_000_000  # of larger data a part of the bags is compared
SURE = 2.0  # standard errors by which another map must lower the log loss to be called better


@dataclass(frozen=True)
class MapComparison(Shown):
    """Cross-validated errors and log losses with each map of the instances."""

    chosen: str
    bags: int  # that were compared
    errors: dict[str, float]
    log_losses: dict[str, float]
    better: str | None  # a map with a clearly lower log loss than the chosen one, and fewer errors

    def __str__(self) -> str:
        """One sentence, which says so where another map is better."""
        if self.better is None:
            return f"in cross-validation no other map of the instances is clearly better than '{self.chosen}'"
        return (
            f"in cross-validation instance_map='{self.better}' does better: error {self.errors[self.better]:.3f} instead of"
            f" {self.errors[self.chosen]:.3f}, log loss {self.log_losses[self.better]:.3f} instead of"
            f" {self.log_losses[self.chosen]:.3f}"
        )


def compare_maps(model: BagClassifier, bags: Bags, y: ArrayLike, groups: NDArray[Any] | None = None) -> MapComparison:
    """Errors of the same classifier with each map, on the same folds."""
    classes, codes = encode_labels(y, len(bags))
    bags, codes, groups = _part(bags, codes, groups)
    folds = min(FOLDS, int(np.bincount(codes, minlength=len(classes)).min()))
    if folds < 2:
        raise ValueError("compare_maps needs at least two bags of each class")
    splits = list(stratified_folds(codes, folds, groups, seed=0))
    wrong: dict[str, Array] = {}
    losses: dict[str, Array] = {}
    for kind in MAPS:
        wrong[kind], losses[kind] = np.empty((2, len(codes)))
        for inside, outside in splits:
            fitted = _candidate(model, kind).fit(bags.subset(inside), codes[inside])
            shares = fitted.predict_proba(bags.subset(outside))
            wrong[kind][outside] = fitted.predict(bags.subset(outside)) != codes[outside]
            truth = np.searchsorted(fitted.classes_, codes[outside])
            losses[kind][outside] = -np.log(np.maximum(shares[np.arange(len(outside)), truth], 1e-15))
    errors = {kind: float(part.mean()) for kind, part in wrong.items()}
    chosen = model.instance_map
    sure = [
        kind
        for kind in MAPS
        if kind != chosen and errors[kind] < errors[chosen] and _clearly_below(losses[kind] - losses[chosen])
    ]
    means = {kind: float(part.mean()) for kind, part in losses.items()}
    return MapComparison(chosen, len(codes), errors, means, min(sure, key=means.__getitem__, default=None))


def _candidate(model: BagClassifier, kind: str) -> Any:
    """The same classifier with another map; a network trains its queries with the rest, whatever the others do."""
    own = {"training": "joint", "query_share": None, "inverse_temperature": None} if kind == "network" else {}
    return clone(model).set_params(instance_map=kind, cv=FOLDS, **own)


def _part(
    bags: Bags, codes: NDArray[np.intp], groups: NDArray[Any] | None
) -> tuple[Bags, NDArray[np.intp], NDArray[Any] | None]:
    share = COMPARED_FLOATS / bags.tokens.size
    if share >= 1:
        return bags, codes, groups
    rng = np.random.default_rng(0)
    members = [rng.permutation(np.flatnonzero(codes == code)) for code in np.unique(codes)]
    rows = np.concatenate([some[: max(FOLDS, round(share * len(some)))] for some in members])
    return bags.subset(rows), codes[rows], None if groups is None else groups[rows]


def _clearly_below(differences: Array) -> bool:
    return bool(differences.mean() < -SURE * differences.std() / math.sqrt(len(differences)))
