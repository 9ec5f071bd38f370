"""Bags of vectors to labels by attention pooling: multiple-instance learning with two-step queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from whichtoken.data.bags import Bags, LabelledBags, as_bags, is_ragged
from whichtoken.errors import UsageError
from whichtoken.estimators import model_values as stored
from whichtoken.estimators._labels import encode_labels
from whichtoken.estimators._scores import predicted, probabilities, signs_of
from whichtoken.estimators.bags.attention import Pooling, attention_weights, bag_scores
from whichtoken.estimators.bags.certificate import Counterfactual, smallest_deletion
from whichtoken.estimators.bags.training import Recipe, train
from whichtoken.estimators.bags.validation import RIDGES, TEMPERATURES, Selection, select, validation_splits
from whichtoken.estimators.model_folder import load_model, save_model
from whichtoken.threads import one_thread

if TYPE_CHECKING:
    from whichtoken.estimators.bags.diagnosis import Diagnosis, Localisation
    from whichtoken.estimators.bags.explanation import BagExplanation

Array = NDArray[np.float64]

KIND = "bag-classifier"
FITTED = ("classes", "n_features_in", "feature_names_in", "selections")


class BagClassifier(ClassifierMixin, BaseEstimator):
    """Attention pooling: score = sum_h <w_h, X^T softmax(X q_h)> + b for a bag X of instances.

    Queries start from two gradient steps (Barnfield, Cui, Lu, arXiv 2509.25153), the readout is convex, and both may be
    trained further together. A cross-validation of a few fits chooses inverse temperature, ridge and refinement; where
    attention does not lower its log-loss, the bag is pooled by the mean, and `pooling_` says so. More than two classes are
    learned one against the rest, each with queries of its own.

    X is a 3-D array (n, L, d), a list of n arrays (L_i, d), or a 2-D array (n, L * token_dim). Nothing is padded.

    Parameters
    ----------
    n_queries : int, default=1
        Queries of a class. With one, decisions are certified (`counterfactual`).
    token_dim : int, optional
        Width of an instance in 2-D input; by default all columns, so that a row is a bag of one.
    inverse_temperature : float, optional
        Norm of the starting queries on standardised instances; 0 is mean pooling. Chosen by validation by default.
    ridge : float, optional
        Ridge of the readout; chosen by validation by default.
    refine_steps : int, default=40
        Steps of the refinement; 0 leaves the two-step queries as they are.
    cv : int, splitter or list of splits, default=3
        Folds of the validation; of a number, fewer are used where a class has fewer members.
    random_state : int, default=0
        Seed for the cut into folds.

    Attributes
    ----------
    classes_ : (n_classes,)
    queries_, readouts_ : (n_scores, n_queries, d)
        For instances as they are; there is one score for two classes, and one per class for more.
    intercept_ : (n_scores,)
    pooling_ : str
        "attention", or "mean" where attention did not help.
    selections_ : list of Selection
        The recipe of each score with the validated log-losses of both kinds of pooling.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import BagClassifier
    >>> X = np.random.default_rng(0).standard_normal((80, 5, 2)) * [3.0, 1.0]
    >>> y = X[:, :, 0].max(axis=1) > 3.6  # a bag is positive if one instance is large
    >>> model = BagClassifier().fit(X, y)
    >>> model.score(X, y) > 0.8, model.attention(X)[0].shape
    (True, (5,))
    """

    def __init__(
        self,
        *,
        n_queries: int = 1,
        token_dim: int | None = None,
        inverse_temperature: float | None = None,
        ridge: float | None = None,
        refine_steps: int = 40,
        cv: Any = 3,
        random_state: int = 0,
    ) -> None:
        self.n_queries = n_queries
        self.token_dim = token_dim
        self.inverse_temperature = inverse_temperature
        self.ridge = ridge
        self.refine_steps = refine_steps
        self.cv = cv
        self.random_state = random_state

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Train on bags X and their labels y (n,).

        Parameters
        ----------
        X : bags
        y : (n,)
        sample_weight : (n,), optional
            Of the bags; a weight of 2 is the bag twice.
        groups : (n,), optional
            Bags of one group (the slides of a patient) are never on both sides of a validation.
        """
        self._check_parameters()
        bags = self._bags(X, reset=True)
        self.classes_, codes = encode_labels(y, len(bags))
        weights = self._weights(sample_weight, codes)
        together = None if groups is None else _checked_groups(groups, len(bags))
        self.selections_: list[Selection] = []
        scores: list[Pooling] = []
        # products with few columns gain nothing from more threads, and lose where others use the cores too
        with one_thread():
            for signs in signs_of(codes, len(self.classes_)):
                data = LabelledBags(bags, signs, weights)
                selection = self._select(data, together)
                self.selections_.append(selection)
                scores.append(train(data, selection.recipe, self.n_queries, self.refine_steps))
        most = max(len(score.queries) for score in scores)
        # a score that pools by the mean has one query of zero; more of them, read by nothing, change nothing
        self.queries_ = np.stack([_filled(score.queries, most) for score in scores])
        self.readouts_ = np.stack([_filled(score.readouts, most) for score in scores])
        self.intercept_ = np.array([score.bias for score in scores])
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores (n,) for two classes, (n, n_classes) for more."""
        bags = self._bags(X)
        scores = np.stack([bag_scores(bags, pooling) for pooling in self._poolings()], axis=1)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels (n,)."""
        return predicted(self.decision_function(X), self.classes_)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, n_classes)."""
        return probabilities(self.decision_function(X))

    @property
    def pooling_(self) -> str:
        """What pools: "attention", or "mean" where attention did not help any of the scores."""
        check_is_fitted(self)
        return "attention" if any(selection.pooling == "attention" for selection in self.selections_) else "mean"

    def attention(self, X: Any) -> list[Array]:
        """Weights of the instances of each bag, (L_i,) for one query, (L_i, n_scores * n_queries) for several."""
        bags = self._bags(X)
        return bags.split(_squeezed(attention_weights(bags, self.queries_.reshape(-1, bags.dim))))

    def instance_scores(self, X: Any) -> list[Array]:
        """Attention over its uniform value: L_i times the weights, so that 1 is what an instance gets by default."""
        return [len(weights) * weights for weights in self.attention(X)]

    def contributions(self, X: Any) -> list[Array]:
        """What each instance adds to the scores, (L_i,) or (L_i, n_scores); with `intercept_` they sum to the decision."""
        bags = self._bags(X)
        columns = [
            (attention_weights(bags, pooling.queries) * (bags.tokens @ pooling.readouts.T)).sum(axis=1)
            for pooling in self._poolings()
        ]
        return bags.split(_squeezed(np.stack(columns, axis=1)))

    def counterfactual(self, X: Any) -> list[Counterfactual]:
        """For each bag the smallest set of instances whose deletion flips the decision: exact, for one query and two classes."""
        bags = self._bags(X)
        if self.queries_.shape[:2] != (1, 1):
            raise ValueError(
                f"counterfactual needs one query and two classes; this model has {self.queries_.shape[1]} queries and"
                f" {len(self.classes_)} classes"
            )
        scores = (bags.tokens @ self.queries_[0, 0]).astype(float)
        values = bags.tokens @ self.readouts_[0, 0] + self.intercept_[0]
        return [smallest_deletion(s, v) for s, v in zip(bags.split(scores), bags.split(values), strict=True)]

    def explain(self, X: Any, names: Sequence[Any] | None = None) -> list[BagExplanation]:
        """Why each bag gets its label: attention and contributions of its instances, and the deletion that flips it."""
        from whichtoken.estimators.bags.explanation import explain

        return explain(self, self._bags(X), names)

    def diagnose(self, X: Any, y: ArrayLike) -> Diagnosis:
        """Signal strength, share of informative instances, alignment, and predicted beside cross-validated errors."""
        from whichtoken.estimators.bags.diagnosis import diagnose

        bags = clone(self)._bags(X, reset=True)  # the fitted model, if any, is left alone
        return diagnose(self, bags, y)

    def localisation(self, X: Any, instance_labels: list[ArrayLike]) -> Localisation:
        """How well attention and contributions find the instances that are labelled True."""
        from whichtoken.estimators.bags.diagnosis import localisation

        return localisation(self.instance_scores(X), self.contributions(X), instance_labels)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        fitted = {
            "classes": stored.classes_as_json(self.classes_),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "selections": [_selection_as_json(selection) for selection in self.selections_],
        }
        tensors = {"queries": self.queries_, "readouts": self.readouts_, "intercept": self.intercept_}
        settings = stored.storable(self.get_params())
        if not isinstance(self.cv, int | np.integer):
            del settings["cv"]  # splits belong to the training bags, not to the model
        save_model(folder, KIND, {"settings": settings, "fitted": fitted}, tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The classifier that `save` wrote; executes no code."""
        _, parameters, tensors = load_model(folder, KIND)
        with stored.stored_fields(folder):
            parts = stored.section("parameters", parameters, ["settings", "fitted"])
            names = [name for name in cls().get_params() if name != "cv"]
            model = cls(**stored.section("settings", parts["settings"], names, ["cv"]))
            model._check_parameters()
            stored.check_seed(model.random_state)
            fitted = stored.section("fitted", parts["fitted"], FITTED)
            model.classes_ = stored.classes_from_json(fitted["classes"])
            model.n_features_in_ = stored.count("n_features_in", fitted["n_features_in"])
            if fitted["feature_names_in"]:
                columns = stored.texts("feature_names_in", fitted["feature_names_in"], model.n_features_in_)
                model.feature_names_in_ = np.array(columns, dtype=object)
            model.selections_ = [_selection_from_json(part) for part in fitted["selections"]]
            scores = len(model.selections_)
            width = model.n_features_in_ if model.token_dim is None else stored.count("token_dim", model.token_dim)
            if scores != stored.scores(model.classes_):
                raise UsageError(f"'selections' has {scores} entries for {len(model.classes_)} classes")
            shape = (scores, min(model.n_queries, tensors["queries"].shape[1]), width)
            shapes = {"queries": shape, "readouts": shape, "intercept": (scores,)}
            model.queries_, model.readouts_, model.intercept_ = stored.arrays(tensors, shapes)
            for selection, queries in zip(model.selections_, model.queries_, strict=True):
                if selection.pooling == "mean" and queries.any():
                    raise UsageError("'selections' says that the mean pools, but 'queries' are not 0")
        return model

    def _check_parameters(self) -> None:
        least_values = [("n_queries", 1), ("refine_steps", 0)]
        if not (hasattr(self.cv, "split") or isinstance(self.cv, Iterable)):
            least_values.append(("cv", 2))
        for name, least in least_values:
            if not isinstance(getattr(self, name), int | np.integer) or getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a whole number of at least {least}")
        if self.inverse_temperature is not None and not 0 <= self.inverse_temperature < np.inf:
            raise ValueError(f"inverse_temperature={self.inverse_temperature} must be 0 or more, or None")
        if self.ridge is not None and not 0 < self.ridge < np.inf:
            raise ValueError(f"ridge={self.ridge} must be above 0, or None")

    def _weights(self, sample_weight: ArrayLike | None, codes: NDArray[np.intp]) -> Array:
        weights: Array = _check_sample_weight(sample_weight, codes, dtype=np.float64, ensure_non_negative=True)
        empty = np.flatnonzero(np.bincount(codes, weights) == 0)
        if empty.size:
            raise ValueError(f"sample_weight is 0 for all bags of class {self.classes_[empty].tolist()[0]!r}")
        return weights

    def _select(self, data: LabelledBags, groups: NDArray[Any] | None) -> Selection:
        ridges = RIDGES if self.ridge is None else (self.ridge,)
        temperatures = TEMPERATURES if self.inverse_temperature is None else (self.inverse_temperature,)
        splits = validation_splits(data, self.cv, groups, self.random_state)
        return select(data, splits, temperatures, ridges, self.n_queries, self.refine_steps)

    def _bags(self, X: Any, reset: bool = False) -> Bags:
        """X as bags, with scikit-learn's own checks for 2-D input."""
        if not reset:
            check_is_fitted(self)
        if isinstance(X, Bags) or is_ragged(X) or getattr(X, "ndim", 2) == 3:
            bags = as_bags(X, self.token_dim)
            if reset:
                self.n_features_in_ = bags.dim
                self.__dict__.pop("feature_names_in_", None)
        else:
            bags = as_bags(validate_data(self, X, dtype=[np.float64, np.float32], reset=reset), self.token_dim)
        if not reset and bags.dim != self.queries_.shape[2]:
            raise ValueError(
                f"X has instances of width {bags.dim}; the model was trained on width {self.queries_.shape[2]}"
            )
        return bags

    def _poolings(self) -> list[Pooling]:
        return [Pooling(q, w, float(b)) for q, w, b in zip(self.queries_, self.readouts_, self.intercept_, strict=True)]


def _checked_groups(groups: ArrayLike, bags: int) -> NDArray[Any]:
    names = np.asarray(groups)
    if names.shape != (bags,):
        raise ValueError(f"groups of shape {names.shape} must have one entry for each of the {bags} bags")
    return names


def _filled(rows: Array, count: int) -> Array:
    return np.vstack([rows, np.zeros((count - len(rows), rows.shape[1]))])


def _squeezed(columns: Array) -> Array:
    return columns[:, 0] if columns.shape[1] == 1 else columns


def _selection_as_json(selection: Selection) -> dict[str, Any]:
    losses = {"mean_loss": selection.mean_loss, "attention_loss": selection.attention_loss}
    # JSON has no nan, which says that nothing was validated
    return asdict(selection.recipe) | {name: None if np.isnan(loss) else loss for name, loss in losses.items()}


def _selection_from_json(described: Any) -> Selection:
    part = stored.section("selections", described, ["temperature", "ridge", "anchor", "mean_loss", "attention_loss"])
    temperature = stored.number("temperature", part["temperature"], 0, include_low=True)
    ridge = stored.number("ridge", part["ridge"], 0)
    anchor, mean, attention = (
        None if part[name] is None else stored.number(name, part[name], 0, include_low=True)
        for name in ("anchor", "mean_loss", "attention_loss")
    )
    losses = (np.nan if loss is None else loss for loss in (mean, attention))
    return Selection(Recipe(temperature, ridge, anchor), *losses)
