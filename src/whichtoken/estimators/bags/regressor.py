"""Predict a number from bags with the attention of `BagClassifier`, and say exactly what each instance adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self  # noqa: F401  the parameters of `BagSettings` have the type Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from whichtoken.attention import RaggedArray
from whichtoken.display.decision import Decision
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.estimators._explanation import number_view
from whichtoken.estimators.bags.classifier import BagClassifier, BagSettings
from whichtoken.estimators.bags.data import LabeledBags, first_of_bags
from whichtoken.estimators.bags.explanation import (
    BagExplanation,
    InstanceReason,
    confirmed_deletion,
    smallest_deletion,
)
from whichtoken.estimators.bags.files import some_files_at_a_time
from whichtoken.estimators.common import SIDES, FittedSummary, check_change, plain_label, standardized
from whichtoken.estimators.model_folder import OpenedFolder

Array = NDArray[np.float64]


class NumberPooler(BagClassifier):
    """The model inside a regressor: its score is the standardized number, and its two classes are the sides of the mean."""

    _kind = "bag-regressor"

    def _targets(self, y: Any, bags: RaggedArray, weights: Array, seed: int) -> list[LabeledBags]:
        if len(y) != len(bags):
            raise ValueError(f"y has {len(y)} numbers for {len(bags)} bags; there must be one for each")
        self.classes_ = np.array(SIDES)
        return [LabeledBags(bags, y, weights, squared=True)]


@dataclass(frozen=True)
class BagNumberExplanation(Shown):
    """Why a bag gets its number: `prediction` is `bias` plus the contributions of all instances."""

    bag: Any
    prediction: float
    bias: float  # the mean of the training numbers
    reasons: list[InstanceReason] = field(repr=False)  # the largest contribution first; positive raises the number
    change: float  # that was asked about
    # fewest instances whose deletion changes the number by that or more; None: none does
    counterfactual: list[int] | None
    certified: bool  # whether that is proven: with one query
    scored: BagExplanation = field(repr=False, compare=False)  # the same reasons

    def view(self, number: int = 1) -> Decision:
        """The instances, the reasons and the smallest deletion, as people read them."""
        start = "mean of training", self.bias
        return number_view(self.scored.view(number), self.prediction, start, self.change, self.certified)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("scored", "reasons")}
        return found | {"bag": plain_label(self.bag), "reasons": [asdict(reason) for reason in self.reasons]}

    def _headline(self) -> str:
        return self.view().summary()


@dataclass(kw_only=True, eq=False, repr=False)
class BagRegressor(BagSettings, FittedSummary, RegressorMixin, BaseEstimator):
    """Predict a number from a bag of vectors, and see what each instance adds and which deletion would lower it by 1.

    Reach for it where you would average the instances and take ridge regression: the grade of a slide, the affinity of a
    molecule. The model is that of `BagClassifier` with the squared loss. Where attention does not lower the validated loss,
    the bag is pooled by the mean: that is ridge regression on the mean, and `choice_` has the losses of both.

    Parameters
    ----------
    n_queries, token_dim : as in `BagClassifier`
        Number of queries, and the width of an instance in 2-D input.
    instance_map : {"auto", "linear", "fourier", "network"}
        What attention sees of an instance, as in `BagClassifier`; "auto" takes the linear one unless another is clearly better.
    training, inverse_temperature, C, refine_steps, drop_missing, cv, random_state, n_jobs, verbose : as in `BagClassifier`
        How it is fitted; every fold has bags of both halves of the numbers.

    Attributes
    ----------
    scorer_ : BagClassifier
        The model of the standardized number, with `queries_`, `readouts_` and `attention`. As a classifier it says whether the
        number is above the mean of the training bags.
    choice_ : BagChoice
        How it was trained, with the validated losses, half the mean squared error of the standardized number.
    mean_, scale_ : float
        Of the training numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.estimators import BagRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6, 3))
    >>> X[:, 2, 0] += 5 * (np.arange(80) % 2)  # one instance brings the number
    >>> model = BagRegressor(random_state=0).fit(X, 10.0 * (np.arange(80) % 2))
    >>> model.counterfactuals(X[1:2], change=-5.0)
    [[2]]
    """

    n_queries: int = 1

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None,
        bag: ArrayLike | None = None,
    ) -> Self:  # fmt: skip
        """Train on bags X, all that `BagClassifier.fit` takes, and their numbers y (n,)."""
        numbers, self.mean_, self.scale_ = standardized(y if bag is None else first_of_bags(bag, y)[1], "bag")
        self.scorer_ = NumberPooler(**self.get_params()).fit(X, numbers, sample_weight, groups, bag)
        self.choice_, self.scorer_._scaling = self.scorer_.choice_, (self.mean_, self.scale_)
        return self

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        self.scorer_.save(folder)

    @classmethod
    def load(cls, folder: str | Path | OpenedFolder) -> Self:
        """Read a model folder; runs no code from it."""
        scorer = NumberPooler.load(folder)
        if scorer._scaling is None:
            raise UsageError(f"{folder} is damaged: it has no 'scaling'; fit the model again")
        model = cls(**{name: getattr(scorer, name) for name in cls().get_params()})
        (model.mean_, model.scale_), model.scorer_, model.choice_ = scorer._scaling, scorer, scorer.choice_
        return model

    def predict(self, X: Any, bag: ArrayLike | None = None) -> Array:
        """Numbers, (n,)."""
        check_is_fitted(self)
        return np.asarray(self.mean_ + self.scale_ * self.scorer_.decision_function(X, bag))

    @some_files_at_a_time
    def counterfactuals(self, X: Any, change: float = -1.0, bag: ArrayLike | None = None) -> list[list[int]]:
        """For each bag the fewest instances, counted from 0, whose deletion changes its number by `change` or more.

        Empty if none does. Exact for one query; with several, the deletion is confirmed, but fewer may be enough.
        """
        check_is_fitted(self)
        check_change(change)
        model = self.scorer_
        bags = model._bags(X, bag)
        scores, values = (bags.split(part) for part in model._scores()[0].columns(bags))
        found = []
        for number, s, v in zip(model.decision_function(bags), scores, values, strict=True):
            # relative to the wanted number, and so that a deletion is to make the sum negative; attention sums to one
            v = -np.sign(change) * (v - (number + change / self.scale_) * (np.arange(v.shape[1]) == 0))
            found.append(smallest_deletion(s[:, 0], v[:, 0]) if v.shape[1] == 1 else confirmed_deletion(s, v))
        return found

    def explain(
        self, X: Any, names: Sequence[Any] | None = None, change: float = -1.0, bag: ArrayLike | None = None
    ) -> list[BagNumberExplanation]:
        """Why each bag gets its number, and what would change it by `change`."""
        check_is_fitted(self)
        found = []
        for why, deleted in zip(self.scorer_.explain(X, names, bag), self.counterfactuals(X, change, bag), strict=True):
            turn = self.scale_ * (1 if why.label == SIDES[1] else -1)  # reasons of a class speak for it
            reasons = [replace(reason, contribution=turn * reason.contribution) for reason in why.reasons]
            prediction, fewest = self.mean_ + turn * why.decision, [k + 1 for k in deleted] or None
            scored = replace(why, reasons=reasons, counterfactual=fewest)
            known = prediction, self.mean_, reasons, change, fewest, self.n_queries == 1
            found.append(BagNumberExplanation(why.bag, *known, scored))
        return found
