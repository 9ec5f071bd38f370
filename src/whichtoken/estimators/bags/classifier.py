"""Bags of vectors to labels by attention pooling: multiple-instance learning with two-step queries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from whichtoken.attention import RaggedArray
from whichtoken.checks import check_choice, check_integer
from whichtoken.errors import UsageError
from whichtoken.estimators import common
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators.bags import data as read
from whichtoken.estimators.bags import validation
from whichtoken.estimators.bags.data import MAPS, InstanceMap, LabeledBags, Scaling, as_bags, is_ragged, linear_map
from whichtoken.estimators.bags.explanation import confirmed_deletion, smallest_deletion
from whichtoken.estimators.bags.files import as_files, some_files_at_a_time
from whichtoken.estimators.bags.training import Pooling, Score, split_weights
from whichtoken.estimators.bags.validation import BagChoice, ScoreChoice, Search, Selected, choose_map, select_score
from whichtoken.estimators.common import FittedSummary, SavesExplainer
from whichtoken.threads import one_thread

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.bags.explanation import BagExplanation
    from whichtoken.estimators.explainer_page import SavedPage
    from whichtoken.estimators.model_folder import OpenedFolder

Array = NDArray[np.float64]

TRAININGS = ("joint", "two-step")
LONGEST = 5000  # instances of a bag above which networks are only tried by name
RUN_ONLY = ("n_jobs", "verbose")  # how it was run belongs to the run, not to the model


class FittedBags:
    """What a fit leaves beside what is public; apart from the parameters, as a dataclass would take these for some."""

    _kind = "bag-classifier"
    _scaling: tuple[float, float] | None = None  # of a regressor, the mean and the deviation of the numbers
    several_labels_: bool = False  # whether a bag may have none or several of the classes


@dataclass(kw_only=True, eq=False, repr=False)
class BagSettings:
    """The parameters that models of bags share, as `BagClassifier` describes them."""

    n_queries: int | Literal["auto"] = "auto"
    token_dim: int | None = None
    instance_map: Literal["auto", "linear", "fourier", "network"] = "auto"
    training: Literal["joint", "two-step"] = "joint"
    inverse_temperature: float | None = None
    C: float | Literal["auto"] = "auto"
    refine_steps: int = 40
    drop_missing: bool = False
    cv: Any = 3
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class BagClassifier(BagSettings, FittedBags, FittedSummary, SavesExplainer, ClassifierMixin, BaseEstimator):
    """Classify bags of vectors of which a few decide the label, and say which ones.

    Reach for it when a label belongs to a set of instances and you do not know which of them matter: patches of a slide,
    conformations of a molecule, readings of a sensor, tokens of a sequence (multiple-instance learning). The score of a bag X
    is sum_h <w_h, X^T softmax(X q_h)> + b. What each instance contributes adds up to it exactly, and with one query and two
    classes the smallest deletion that changes a label is proven to be the smallest.

    Queries start from two gradient steps (Barnfield, Cui, Lu, arXiv 2509.25153), the readout is convex, and both may be
    trained further together. A small cross-validation chooses inverse temperature, ridge and refinement; where attention does
    not lower the log loss, the bag is pooled by the mean, and `pooling_` says so. More than two classes are learned one against
    the rest, each with queries of its own.

    X is a 3-D array (n, L, d), a list or an object array of n arrays (L_i, d), a 2-D array (n, L * token_dim), a
    `RaggedArray`, or a table with one instance per row and the ids of their bags as `bag`. Nothing is padded. A gap (NaN)
    is filled with the median of its feature over the training instances; `drop_missing` leaves its instance out instead.

    Parameters
    ----------
    n_queries : int or "auto"
        Queries of a class. With one, decisions are certified (`counterfactuals`). "auto" is one or, above a network and where
        the validated log loss is clearly lower, two.
    token_dim : int, optional
        Width of an instance in 2-D input; by default all columns, so that a row is a bag of one.
    instance_map : {"auto", "linear", "fourier", "network"}
        What attention sees of an instance: the instance itself, 256 random Fourier features of it, or the last layer of three
        merged networks of 128 and 64 units that are trained with the rest. "auto" takes the linear one unless the validated
        log loss of another is lower by 0.02 and 1.5 standard errors at least; `choice_` has the evidence.
    training : {"joint", "two-step"}
        "two-step" leaves the queries where their two steps took them, which is what the theory of sparse tokens is about.
    inverse_temperature : float, optional
        Norm of the starting queries on standardized instances; 0 is mean pooling. Chosen by validation by default.
    C : float or "auto"
        Inverse strength of the ridge, as in scikit-learn: the penalty is |w|^2 / 2 beside C times the sum of the losses.
        "auto" chooses by validation.
    refine_steps : int
        Steps of the joint training.
    drop_missing : bool
        Leave out instances with a gap, in training and later.
    cv : int, splitter or list of splits
        Folds of the validation; of a number, fewer are used where a class has fewer members.
    random_state : int, RandomState or None
        Seed for the folds and the start of random maps.
    n_jobs : int, optional
        Threads for classes or folds; the numbers do not depend on it.
    verbose : int
        1: a line for what was chosen for each score, on standard error.
    gate : bool
        Whether the last layer of a network is multiplied by a gate, as in gated attention.
    query_share : float, optional
        With two-step training: share of the bags that give the queries, while the readout is trained on the others. By
        default all bags do both.
    class_weight : "balanced", dict or None
        Weights of the classes, which multiply those of the bags.

    Attributes
    ----------
    classes_ : (n_classes,)
    queries_, readouts_ : (n_scores, n_queries, m)
        For instances as they are, or as they are mapped; there is one score for two classes, and one per class for more.
    intercept_ : (n_scores,)
        The bias of each score.
    query_intercepts_ : (n_scores, n_queries)
        The same in parts that go with the queries.
    maps_ : list of InstanceMap
        One per score.
    pooling_ : str
        "attention", or "mean" where attention did not help.
    choice_ : BagChoice
        How each of its `scores` was trained, with the validated log losses of both kinds of pooling, and why with this map.
    bag_ids_ : (n,)
        After a fit with `bag`, the ids in the order of their first appearance.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import BagClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(80) % 2
    >>> X = rng.standard_normal((80, 6, 3))
    >>> X[y == 1, 2] += 4  # one instance of a positive bag
    >>> model = BagClassifier(random_state=0).fit(X, y)
    >>> model.counterfactuals(X[1:2])
    [[2]]
    """

    gate: bool = False
    query_share: float | None = None
    class_weight: Any = None

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        bag: ArrayLike | None = None,
    ) -> Self:
        """Train on bags X and their labels y (n,).

        Parameters
        ----------
        X : bags
        y : (n,) or (n, k)
            With `bag`, in the order in which the bags first appear, or one for each row. Or 0 and 1 for each of k labels, of
            which a bag may have none or several; the columns of a DataFrame name them. Each label has attention of its own, as
            other instances decide it, and all share the map of the instances; see `for_label`.
        sample_weight : (n,), optional
            Weights of the bags; a weight of 2 is the bag twice.
        groups : (n,), optional
            Bags of one group (the slides of a patient) are never on both sides of a validation.
        bag : (rows,), optional
            The bag of each row of X, where X is a table with one instance per row.
        """
        self._check_parameters()
        common.refuse_dask_table(self, X)
        bags = self._bags(X, bag, reset=True)
        self.__dict__.pop("bag_ids_", None)
        if bag is not None:
            self.bag_ids_, y = read.first_of_bags(bag, y)
        together = common.checked_clusters(groups, len(bags))
        seed = int(check_random_state(self.random_state).randint(2**31))
        weights = _check_sample_weight(sample_weight, np.empty(len(bags)), dtype=np.float64, ensure_non_negative=True)
        targets = self._targets(y, bags, weights, seed)
        splits = [validation.validation_splits(data, self.cv, together, seed) for data in targets]
        kinds = self._maps_to_try(bags, all(splits))
        outer, inner = (self.n_jobs, None) if len(targets) > 1 else (None, self.n_jobs)

        tried: dict[str, list[Selected]] = {}

        given = self.inverse_temperature
        temperatures = validation.TEMPERATURES if given is None else (given,)

        def selected(kind: str, data: LabeledBags, parts: list[Any]) -> Selected | None:
            search = Search(
                temperatures=temperatures,
                ridges=None if self.C == "auto" else (float(1 / (float(self.C) * data.weights.sum())),),
                queries=None if self.n_queries == "auto" else self.n_queries,
                steps=self.refine_steps if self.training == "joint" else 0,
                seed=seed,
                gate=self.gate,
                compared=len(kinds) > 1,
                # of one score alone; where classes share a map, each has to know how good it would be
                rival=tried["linear"][0].losses if tried and len(targets) == 1 else None,
                jobs=inner,
            )
            return select_score(kind, data, parts, search)

        # products with few columns gain nothing from more threads, and lose where others use the cores too
        with one_thread():
            run = Parallel(n_jobs=outer, prefer="threads")
            for kind in kinds:
                found = list(run(delayed(selected)(kind, *pair) for pair in zip(targets, splits, strict=True)))
                tried |= {} if None in found else {kind: found}
            kind, log_losses, gains = choose_map(tried) if len(kinds) > 1 else (kinds[0], {}, {})
            trained = run(delayed(part.train)() for part in tried[kind])
        constants = tuple(float(data.shares @ data.losses(np.full(len(bags), data.constant))) for data in targets)
        self.choice_ = BagChoice(tuple(part.choice for part in tried[kind]), constants, log_losses, gains)
        if self.verbose:
            for name, choice in zip(self.classes_[-len(trained) :], self.choice_.scores, strict=True):
                print(f"class {name}: {choice}", file=sys.stderr)
            if self.choice_.reason:
                print(self.choice_.reason, file=sys.stderr)
        self.maps_ = [score.map for score in trained]
        most = max(len(score.pooling.queries) for score in trained)
        shape = (len(trained), most, trained[0].pooling.queries.shape[1])
        # a score that pools by the mean has one query of zero; more of them, read by nothing, change nothing
        self.queries_, self.readouts_, self.query_intercepts_ = np.zeros(shape), np.zeros(shape), np.zeros(shape[:2])
        for k, score in enumerate(trained):
            own = slice(len(score.pooling.queries))
            self.queries_[k, own], self.readouts_[k, own] = score.pooling.queries, score.pooling.readouts
            self.query_intercepts_[k, own] = score.pooling.biases
        return self

    def _targets(self, y: Any, bags: RaggedArray, weights: Array, seed: int) -> list[LabeledBags]:
        """What each score is to learn; sets the classes."""
        several = common.several_labels(y, len(bags), "bag")
        self.several_labels_ = several is not None
        if several is not None:
            if self.class_weight is not None or self.query_share is not None:
                raise UsageError("class_weight and query_share are for one class per bag; leave them out")
            self.classes_, marks = several
            for name, column in zip(self.classes_.tolist(), marks.T, strict=True):
                if len(np.unique(column[weights > 0])) < 2:
                    raise ValueError(f"sample_weight is 0 for all bags with or for all without label {name!r}")
            return [LabeledBags(bags, 2.0 * column - 1, weights) for column in marks.T]
        self.classes_, codes = common.encode_labels(y, len(bags))
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, self.classes_[codes])
        empty = np.flatnonzero(np.bincount(codes, weights) == 0)
        if empty.size:
            what = "sample_weight" if self.class_weight is None else "sample_weight times class_weight"
            raise ValueError(f"{what} is 0 for all bags of class {self.classes_[empty].tolist()[0]!r}")
        parts = (weights, None) if self.query_share is None else split_weights(weights, codes, self.query_share, seed)
        return [LabeledBags(bags, signs, *parts) for signs in common.signs_of(codes, len(self.classes_))]

    def for_label(self, label: Any) -> BagClassifier:
        """The two-class model of one of several labels, with its reasons, deletions and certificates; classes False and True."""
        check_is_fitted(self)
        k, one = common.place_of_label(self, label), copy(self)
        one.classes_, one.several_labels_, one.maps_ = np.array([False, True]), False, self.maps_[k : k + 1]
        for name in ("queries_", "readouts_", "query_intercepts_"):
            setattr(one, name, getattr(self, name)[k : k + 1])
        one.choice_ = BagChoice(self.choice_.scores[k : k + 1], self.choice_.constant_losses[k : k + 1])
        return one

    def _maps_to_try(self, bags: RaggedArray, validated: bool) -> tuple[str, ...]:
        """The maps among which the validation chooses; the linear one alone where it cannot, or where all depends on it."""
        if self.instance_map != "auto":
            return (self.instance_map,)
        fixed = self.training == "two-step" or self.inverse_temperature is not None
        large = bags.vectors.size > validation.COMPARED_FLOATS or bags.lengths.max() > LONGEST
        return ("linear",) if fixed or large or not validated else MAPS

    @some_files_at_a_time
    def decision_function(self, X: Any, bag: ArrayLike | None = None) -> Array:
        """Scores (n,) for two classes, (n, n_classes) for more or for several labels."""
        bags = self._bags(X, bag)
        scores = np.stack([score(bags) for score in self._scores()], axis=1)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any, bag: ArrayLike | None = None) -> NDArray[Any]:
        """Labels (n,), or 0 and 1 for each of several (n, k); with `bag`, of the bags in the order of their first appearance."""
        scores = self.decision_function(X, bag)
        return (scores > 0).astype(int) if self.several_labels_ else common.predicted(scores, self.classes_)

    def predict_proba(self, X: Any, bag: ArrayLike | None = None) -> Array:
        """Probabilities (n, n_classes)."""
        scores = self.decision_function(X, bag)
        return np.asarray(expit(scores)) if self.several_labels_ else common.probabilities(scores)

    def score(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, bag: ArrayLike | None = None
    ) -> float:
        """Share of the bags with the right label."""
        labels = y if bag is None else read.first_of_bags(bag, y)[1]
        return float(accuracy_score(labels, self.predict(X, bag), sample_weight=sample_weight))

    @property
    def pooling_(self) -> str:
        """What pools: "attention", or "mean" where attention did not help any of the scores."""
        check_is_fitted(self)
        return self.choice_.pooling

    @property
    def intercept_(self) -> Array:
        """Bias of each score, (n_scores,)."""
        check_is_fitted(self)
        return np.asarray(self.query_intercepts_.sum(axis=1))

    @some_files_at_a_time
    def attention(self, X: Any) -> list[Array]:
        """Weights of the instances of each bag, (L_i,) for one query, (L_i, n_scores * n_queries) for several."""
        bags = self._bags(X)
        return bags.split(_squeezed(np.hstack([score.attention(bags) for score in self._scores()])))

    def instance_scores(self, X: Any) -> list[Array]:
        """Attention relative to the mean over the bag: L_i times the weights, so that 1 is nothing special."""
        return [len(weights) * weights for weights in self.attention(X)]

    @some_files_at_a_time
    def contributions(self, X: Any) -> list[Array]:
        """What each instance adds to `decision_function`, (L_i,) or (L_i, n_scores); for two classes, positive for the second.

        An instance contributes attention x (value + bias): weights sum to one, so the bias is shared out with them. Neither
        the origin nor the units of the features change it.
        """
        bags = self._bags(X)
        return bags.split(_squeezed(np.stack([score.contributions(bags) for score in self._scores()], axis=1)))

    @some_files_at_a_time
    def counterfactuals(self, X: Any) -> list[list[int]]:
        """For each bag the smallest set of instances, counted from 0, whose deletion changes its label; empty if none does.

        For two classes. Exact for one query; with several, the deletion is confirmed to change the label, but fewer instances
        may be enough unless it has one or two.
        """
        bags = self._bags(X)
        common.refuse_several(self, "a counterfactual or a certificate")
        if len(self.classes_) > 2:
            raise ValueError(f"counterfactuals need two classes; this model has {len(self.classes_)}")
        scores, values = (bags.split(part) for part in self._scores()[0].columns(bags))
        if self.queries_.shape[1] > 1:
            return [confirmed_deletion(s, v) for s, v in zip(scores, values, strict=True)]
        return [smallest_deletion(s[:, 0], v[:, 0]) for s, v in zip(scores, values, strict=True)]

    def certificates(self, X: Any) -> pd.DataFrame:
        """For each bag, how many instances must be deleted before its label changes; -1 if no deletion changes it."""
        import pandas as pd

        if self.queries_.shape[1] > 1:
            queries = self.queries_.shape[1]
            raise ValueError(f"certificates need one query; this model has {queries}: fit with n_queries=1")
        return pd.DataFrame({"instances": [len(deleted) or -1 for deleted in self.counterfactuals(X)]})

    def explain(self, X: Any, names: Sequence[Any] | None = None, bag: ArrayLike | None = None) -> list[BagExplanation]:
        """Why each bag gets its label: attention and contributions of its instances, and the deletion that changes it."""
        from whichtoken.estimators.bags.explanation import bag_explanations

        check_is_fitted(self)
        common.refuse_several(self, "explain")
        if bag is not None and names is None:
            names = list(read.first_of_bags(bag)[0])
        if (files := as_files(X)) is not None:
            parts, known = [], iter(names or [Path(path).stem for path in files.paths])
            for part in files.parts():
                parts += bag_explanations(self, self._bags(part), list(islice(known, len(part))))
            return parts
        return bag_explanations(self, self._bags(X, bag), names)

    def _save_page(self, path: str | Path, examples: Any, **about: Any) -> SavedPage:
        from whichtoken.estimators.bags.explainer import save_explainer

        check_is_fitted(self)
        common.refuse_several(self, "a page")
        return save_explainer(self, path, examples, **about)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        fitted = {
            "classes": stored.classes_as_json(self.classes_, several=self.several_labels_),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            # nan, which JSON does not have, says that nothing was validated
            "choices": [
                {name: None if value != value else value for name, value in asdict(choice).items()}
                for choice in self.choice_.scores
            ],
            "constant_losses": self.choice_.constant_losses,
            "scaling": self._scaling,
            "log_losses": self.choice_.log_losses,
            "gains": {kind: list(pair) for kind, pair in self.choice_.gains.items()},
        }
        tensors = {"queries": self.queries_, "readouts": self.readouts_, "intercepts": self.query_intercepts_}
        tensors["fills"] = self.fills_
        if self.maps_[0].layers:
            tensors["instance_mean"] = self.maps_[0].scaling.mean
            tensors["instance_scale"] = np.stack([seen.scaling.scale for seen in self.maps_])
            for place, layers in enumerate(zip(*(seen.layers for seen in self.maps_), strict=True), 1):
                for name, arrays in zip(("weights", "offsets"), zip(*layers, strict=True), strict=True):
                    tensors[f"layer_{place}_{name}"] = np.stack(arrays)
        # splits belong to the training bags, not to the model
        left_out = RUN_ONLY if isinstance(self.cv, int | np.integer) else (*RUN_ONLY, "cv")
        settings = {name: value for name, value in stored.storable(self.get_params()).items() if name not in left_out}
        stored.save_model(folder, self._kind, {"settings": settings, "fitted": fitted}, tensors)

    @classmethod
    def load(cls, folder: str | Path | OpenedFolder) -> Self:
        """The classifier that `save` wrote; executes no code."""
        _, parameters, tensors = stored.load_model(folder, cls._kind)
        from whichtoken.estimators.schemas import BagFitted, model_of

        with stored.stored_fields(folder):
            model, fitted = model_of(cls, BagFitted, parameters, without=RUN_ONLY, cv=(int, cls().cv))
            model._check_parameters()
            nan = float("nan")
            choices = []
            for part in fitted.choices:
                if part.instance_map not in (MAPS if model.instance_map == "auto" else (model.instance_map,)):
                    raise UsageError(f"'choices' is for another instance_map than '{model.instance_map}'")
                unknown = {name: nan for name in ("mean_loss", "attention_loss") if getattr(part, name) is None}
                choices.append(ScoreChoice(**{**dict(part), **unknown}))
            model.several_labels_, model._scaling = fitted.classes.several, fitted.scaling
            if {len(choices), len(fitted.constant_losses)} != {stored.scores(model.classes_, model.several_labels_)}:
                raise UsageError(f"'choices' has {len(choices)} entries for {len(model.classes_)} classes")
            if len({choice.instance_map for choice in choices}) > 1:
                raise UsageError("'choices' has several instance maps; all scores share one")
            model.choice_ = BagChoice(tuple(choices), fitted.constant_losses, fitted.log_losses, dict(fitted.gains))
            _set_tensors(model, tensors)
        return model  # type: ignore[no-any-return]

    def _check_parameters(self) -> None:
        least_values = [("refine_steps", 0)]
        if self.n_queries != "auto":
            least_values.append(("n_queries", 1))
        if not (hasattr(self.cv, "split") or isinstance(self.cv, Iterable)):
            least_values.append(("cv", 2))
        if self.token_dim is not None:
            least_values.append(("token_dim", 1))
        for name, least in least_values:
            check_integer(name, getattr(self, name), least)
        check_choice("instance_map", self.instance_map, ("auto", *MAPS))
        check_choice("training", self.training, TRAININGS)
        if self.inverse_temperature is not None and not 0 <= self.inverse_temperature < np.inf:
            raise ValueError(f"inverse_temperature={self.inverse_temperature} must be 0 or more, or None")
        strength: Any = self.C
        if strength != "auto" and not (isinstance(strength, int | float | np.number) and 0 < strength < np.inf):
            raise ValueError(f"C={self.C!r} must be 'auto' or a number above 0")
        if self.query_share is not None and not (self.training == "two-step" and 0 < self.query_share < 1):
            raise ValueError(
                f"query_share={self.query_share!r} must be between 0 and 1, with training='two-step', or None"
            )
        weights: Any = self.class_weight
        if not (weights is None or weights == "balanced" or isinstance(weights, dict)):
            raise ValueError(f"class_weight={weights!r} must be 'balanced', a dict of weights by class, or None")
        if self.instance_map == "network" and (self.training == "two-step" or self.inverse_temperature is not None):
            raise ValueError(
                "instance_map='network' trains its queries with the rest; leave training and inverse_temperature out"
            )

    def _bags(self, X: Any, bag: ArrayLike | None = None, reset: bool = False) -> RaggedArray:
        """X as bags without gaps, with scikit-learn's own checks for 2-D input."""
        if not reset:
            check_is_fitted(self)
        if bag is not None:
            table = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset, ensure_all_finite=False)
            bags = read.bags_of_rows(table, bag)
        elif (
            isinstance(X, RaggedArray)
            or is_ragged(X)
            or getattr(X, "ndim", 2) == 3
            or (isinstance(X, list | tuple) and not X)
        ):
            bags = as_bags(X, self.token_dim, gaps=True)
            if reset:
                self.n_features_in_ = bags.dim
                self.__dict__.pop("feature_names_in_", None)
        else:
            table = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset, ensure_all_finite=False)
            bags = as_bags(table, self.token_dim, gaps=True)
        if not reset and bags.dim != self.maps_[0].dim:
            raise ValueError(f"X has instances of width {bags.dim}; the model was trained on width {self.maps_[0].dim}")
        if reset:
            self.fills_ = read.medians(bags)
        return read.fill_gaps(bags, self.fills_, self.drop_missing)

    def _scores(self) -> list[Score]:
        parts = zip(self.maps_, self.queries_, self.readouts_, self.query_intercepts_, strict=True)
        return [Score(seen, Pooling(*pooling)) for seen, *pooling in parts]


def _squeezed(columns: Array) -> Array:
    return columns[:, 0] if columns.shape[1] == 1 else columns


def _set_tensors(model: BagClassifier, tensors: dict[str, Any]) -> None:
    scores, kind = len(model.choice_.scores), model.choice_.instance_map
    dim = model.n_features_in_ if model.token_dim is None else model.token_dim
    layers = [
        tensors[name].shape for name in sorted(tensors) if name.startswith("layer_") and name.endswith("_offsets")
    ]
    if (kind == "linear") != (not layers) or any(len(shape) != 3 for shape in layers):
        raise UsageError(f"arrays of layers do not fit the instance map '{kind}'")
    gate = model.gate and kind == "network"
    copies = layers[0][1] if layers else 1
    widths = [dim, *(shape[2] for shape in layers)]
    width = copies * widths[-1] // (2 if gate else 1) if layers else dim
    queries = tensors["queries"].shape[1] if tensors["queries"].ndim == 3 else 1
    both = (scores, queries, width)
    shapes: dict[str, tuple[int, ...]] = {"queries": both, "readouts": both, "intercepts": both[:2], "fills": (dim,)}
    if layers:
        shapes |= {"instance_mean": (dim,), "instance_scale": (scores, dim)}
    for place, (wide, narrow) in enumerate(pairwise(widths), 1):
        shapes[f"layer_{place}_weights"] = (scores, copies, wide, narrow)
        shapes[f"layer_{place}_offsets"] = (scores, copies, narrow)
    model.queries_, model.readouts_, model.query_intercepts_, model.fills_, *rest = stored.arrays(tensors, shapes)
    model.maps_ = [linear_map(dim)] * scores
    if layers:
        mean, scales, *parts = rest
        if not (scales > 0).all():
            raise UsageError("array 'instance_scale' holds numbers that are not above 0")
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        model.maps_ = [
            InstanceMap(
                kind, Scaling(mean, scales[k]), tuple((weights[k], offsets[k]) for weights, offsets in pairs), gate
            )
            for k in range(scores)
        ]
    for choice, part in zip(model.choice_.scores, model.queries_, strict=True):
        if choice.pooling == "mean" and part.any():
            raise UsageError("'choices' says that the mean pools, but 'queries' are not 0")
