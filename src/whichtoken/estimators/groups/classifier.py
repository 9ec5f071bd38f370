"""Classify rows whose columns come in groups: attention finds the groups that matter, a linear readout uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted, validate_data

from whichtoken.checks import check_choice, check_features, check_integer, check_range
from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators._common import (
    FittedSummary,
    checked_clusters,
    encode_labels,
    plain_label,
    predicted,
    probabilities,
    signs_of,
)
from whichtoken.estimators.groups.selection import (
    ATTENTIONS,
    RIDGES,
    Candidates,
    Comparison,
    GroupChoice,
    Layout,
    Samples,
    Standardization,
    choose_groups,
    group_attention,
    parse_groups,
    validation_folds,
)
from whichtoken.theory.sparse_tokens.convex_head import logistic_heads
from whichtoken.threads import one_thread

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.groups.explanation import RowExplanation
    from whichtoken.estimators.model_folder import OpenedFolder

Array = NDArray[np.float64]

Splits = list[tuple[NDArray[np.intp], NDArray[np.intp]]]

KIND = "group-classifier"
NAMED = ("groups", "covariates", "keep", "class_weight")  # settings that may be mappings, whose names may be numbers
COUNTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)


@dataclass(eq=False, repr=False)
class GroupClassifier(FittedSummary, ClassifierMixin, SelectorMixin, BaseEstimator):
    """Classify rows of a table with the few groups of columns that matter.

    Reach for it when columns belong together (the dummies of a category, the lags of a sensor, the genes of a pathway) and you
    want to know which groups are needed. Once found, they can be kept for a new task with far fewer samples (`transfer`).

    Attention over positions ranks the groups, after the one-layer transformer of Zhang, Meng, Cao (arXiv 2504.08638). A
    cross-validation says how many are kept (all of them, unless fewer predict as well), and a ridge-penalized logistic readout,
    with a direction for each kept group, decides. As a scikit-learn selector it keeps the columns of these groups.

    Parameters
    ----------
    groups : array or list of ids or names, one per column; mapping of group name to columns; or None, optional
        A mapping names columns of a DataFrame or their indices, and its groups may overlap. None: each column by
        itself.
    covariates : list of columns, optional
        Columns outside the groups, which are always kept.
    attention : {"auto", "shared", "separate", "full"}, default="auto"
        "shared": one value vector read through all groups, d + D numbers, for groups of equal size. "separate": a value
        vector for each group. "full": the transformer, whose attention also looks at the variables. "auto" validates
        "separate", and "shared" where sizes are equal and above one.
    n_groups : int, optional
        How many groups to keep; chosen by validation by default.
    keep : list of group names, optional
        Keep exactly these groups and learn only the readout; see `transfer`.
    C : float or "auto"
        Inverse strength of the ridge on the readout of standardized columns, as in scikit-learn: the ridge beside the mean
        loss is 1 / (C n). "auto" takes the best of a few by validation.
    cv : int
        Folds of the validation; fewer are used where a class has fewer members. Few folds favor few groups, which can be
        learned from fewer samples.
    class_weight : dict, "balanced" or None
        Weights of the classes in training and validation; `attention="full"` takes none.
    n_jobs : int, optional
        Threads of the validation.
    verbose : int
        1: a line for each number of groups that is tried, on standard error.
    random_state : int, RandomState or None
        Seed for the folds.

    Attributes
    ----------
    classes_ : (n_classes,)
    group_names_ : tuple
    attention_ : (n_groups,)
        Sums to one.
    selected_groups_ : list of group names, in descending order of attention
    choice_ : GroupChoice
        Kind of attention, number of groups, C.
    comparison_ : Comparison or None
        Why: held-out log losses of fewer groups and of all. None where the number of groups was not chosen here.
    coef_ : (n_scores, n_features)
        Zero outside the selection; there is one score for two classes, and one per class for more.
    intercept_ : (n_scores,)
    column_means_ : (n_features,)
        The average training row, to which `explain` compares.

    Notes
    -----
    Once fitted, a DataFrame needs only the columns of the selected groups and the covariates. Gaps and text are refused,
    as by scikit-learn; fill and encode them in a pipeline.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> X = np.random.default_rng(0).standard_normal((200, 6))
    >>> model = GroupClassifier(["a", "a", "b", "b", "c", "c"], random_state=0).fit(X, X[:, 2] + X[:, 3] > 0)
    >>> model.selected_groups_
    ['b']
    """

    groups: Any = None
    _: KW_ONLY
    covariates: Any = None
    attention: str = "auto"
    n_groups: int | None = None
    keep: Any = None
    C: float | Literal["auto"] = "auto"
    cv: int = 5
    class_weight: dict[Any, float] | str | None = None
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Select groups and train the readout.

        Parameters
        ----------
        X : (n, features)
        y : (n,)
        groups : (n,), optional
            Rows that stay together: those of one group (the visits of a patient) are never on both sides of a validation. The
            groups of the constructor are groups of columns.
        """
        table = self._numbers(X, reset=True)
        self.classes_, codes = encode_labels(y, len(table))
        layout = self._layout()
        self._check_parameters(layout)
        weights = compute_sample_weight(self.class_weight, self.classes_[codes])
        samples = Samples(table, codes, signs_of(codes, len(self.classes_)), weights / weights.mean())
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31))
        splits = validation_folds(codes, self.cv, checked_clusters(groups, len(table)), seed)
        # the matrices are small: more threads than one wait for each other, for minutes where others use the cores too
        with one_thread():
            if self.keep is None:
                self._select(samples, layout, splits)
            else:
                self._keep(samples, layout, splits)
            self._columns = layout.columns([layout.names.index(name) for name in self.selected_groups_])
            self._read_out(samples)
        return self

    def fit_downstream(self, X: ArrayLike, y: ArrayLike) -> Self:
        """A classifier for a new task with the selection of this one kept: needs far fewer samples. Leaves this one alone."""
        return self.transfer().fit(X, y)

    def transfer(self) -> Self:
        """An unfitted classifier that keeps the groups selected here and learns only its readout."""
        check_is_fitted(self)
        return type(self)(**{**self.get_params(), "keep": list(self.selected_groups_), "n_groups": None})

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores (n,) for two classes, (n, n_classes) for more."""
        table = self._rows(X)
        # only the selected columns: an infinite rounding error of the others must not enter through a zero
        scores = table[:, self._columns] @ self.coef_[:, self._columns].T + self.intercept_
        return np.asarray(scores[:, 0] if len(self.classes_) == 2 else scores)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n,)."""
        return predicted(self.decision_function(X), self.classes_)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities (n, n_classes)."""
        return probabilities(self.decision_function(X))

    def contributions(self, X: ArrayLike) -> Array:
        """What each selected group, then the covariates, add to the score of an average row, for two classes.

        Shape (n, selected groups + 1), positive for the second class. Columns count from their training means, as in
        `explain`, so that the origin of a feature does not matter; with the score of the average row they sum to
        `decision_function`. A column of several groups counts for the first of them.
        """
        check_is_fitted(self)
        if len(self.classes_) != 2:
            raise ValueError(f"contributions are those of two classes; this model has {len(self.classes_)}")
        terms = (self._rows(X) - self.column_means_) * self.coef_[0]
        return np.stack([terms[:, columns].sum(axis=1) for columns in self._parts()], axis=1)

    def explain(self, X: ArrayLike) -> list[RowExplanation]:
        """Why each row gets its label: contributions relative to the average row, and the fewest groups that would change it."""
        from whichtoken.estimators.groups.explanation import explain_rows

        check_is_fitted(self)
        return explain_rows(self, X)

    def counterfactuals(self, X: ArrayLike) -> list[list[Any]]:
        """For each row the fewest groups that change its label when they are set to their averages; empty if none do."""
        return [item.counterfactual or [] for item in self.explain(X)]

    def certificates(self, X: ArrayLike) -> pd.DataFrame:
        """For each row, how many groups must be set to their averages before its label changes; -1 if none changes it."""
        import pandas as pd

        return pd.DataFrame({"groups": [len(names) or -1 for names in self.counterfactuals(X)]})

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        settings = stored.storable(self.get_params())
        fitted = {
            "classes": stored.classes_as_json(self.classes_),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "group_names": list(self.group_names_),
            "selected_groups": list(self.selected_groups_),
            "choice": vars(self.choice_),
            "comparison": None if self.comparison_ is None else vars(self.comparison_),
        }
        tensors = {name: getattr(self, f"{name}_") for name in ("coef", "intercept", "attention", "column_means")}
        named = {name: _as_json(settings[name]) for name in NAMED}
        stored.save_model(folder, KIND, {"settings": settings | named, "fitted": fitted}, tensors)

    @classmethod
    def load(cls, folder: str | Path | OpenedFolder) -> Self:
        """The classifier that `save` wrote; executes no code."""
        _, parameters, tensors = stored.load_model(folder, KIND)
        from whichtoken.estimators.schemas import GroupFitted, model_of

        with stored.stored_fields(folder):
            model, fitted = model_of(cls, GroupFitted, parameters, class_weight=(Any, ...))
            for name in ("groups", "class_weight"):
                pairs = getattr(model, name)
                if isinstance(pairs, list) and isinstance(pairs[0], list):
                    setattr(model, name, dict(pairs))
            model.choice_ = GroupChoice(**dict(fitted.choice))
            model.comparison_ = None if fitted.comparison is None else Comparison(**dict(fitted.comparison))
            _take_selection(model, fitted.group_names, fitted.selected_groups, tensors)
        return model  # type: ignore[no-any-return]

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        mask = np.zeros(self.n_features_in_, dtype=bool)
        mask[self._columns] = True
        return mask

    def _parts(self) -> list[NDArray[np.intp]]:
        """Columns of the selected groups, each counted for the first group that has it, then the covariates."""
        layout, taken, parts = self._layout(), np.zeros(self.n_features_in_, dtype=bool), []
        for name in self.selected_groups_:
            columns = layout.members[layout.names.index(name)]
            parts.append(columns[~taken[columns]])
            taken[columns] = True
        return [*parts, layout.covariates]

    def _layout(self) -> Layout:
        return parse_groups(self.groups, self.covariates, self.n_features_in_, getattr(self, "feature_names_in_", None))

    def _check_parameters(self, layout: Layout) -> None:
        check_choice("attention", self.attention, ("auto", *ATTENTIONS))
        if self.attention == "shared" and not layout.equal:
            raise ValueError("attention='shared' needs groups of equal size; use 'separate', or 'auto'")
        if self.n_groups is not None:
            check_integer("n_groups", self.n_groups, 1)
            if self.n_groups > len(layout.names):
                raise ValueError(f"n_groups={self.n_groups} must be at most {len(layout.names)}, the number of groups")
        if isinstance(self.C, str):
            if self.C != "auto":
                raise ValueError(f"C={self.C!r} must be a positive number or 'auto'")
        else:
            check_range("C", self.C, 0.0, np.inf)
        if self.class_weight is not None and self.attention == "full":
            raise ValueError("attention='full' takes no class_weight; use 'separate', or 'auto'")
        check_integer("cv", self.cv, 2)
        kept = None if self.keep is None else self._kept()
        if kept == []:
            raise ValueError("keep is empty; name at least one group, or leave it None to have groups selected")
        for name in kept or ():
            if name not in layout.names:
                raise ValueError(f"keep: there is no group {name!r}; groups: {', '.join(map(str, layout.names))}")

    def _kept(self) -> list[Any]:
        """The groups of `keep`, each once; a single one may stand without a list."""
        names = [self.keep] if isinstance(self.keep, str | int | np.generic) else self.keep
        return list(dict.fromkeys(map(plain_label, names)))

    def _rows(self, X: Any) -> Array:
        """X (n, features) as numbers; a DataFrame may lack columns that do not count, which get their averages."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if names is not None and hasattr(X, "columns"):
            absent = np.setdiff1d(np.flatnonzero(~np.isin(names, X.columns)), self._columns)
            if absent.size:
                means = dict(zip(names[absent], self.column_means_[absent], strict=True))
                X = X.assign(**means)[[name for name in names if name in means or name in X.columns]]
        return self._numbers(X, reset=False)

    def _numbers(self, X: Any, reset: bool) -> Array:
        """X (n, features) with scikit-learn's own checks of its form, and a sentence for numbers that cannot be used."""
        if isinstance(X, list | tuple) and not X:
            raise ValueError("X is empty; there must be at least one row")
        table: Array = validate_data(self, X, dtype=np.float64, reset=reset, ensure_all_finite=False)
        check_features(table, "features")
        return table

    def _ridges(self, samples: int) -> tuple[float, ...]:
        return RIDGES if isinstance(self.C, str) else (1 / (self.C * samples),)

    def _select(self, samples: Samples, layout: Layout, splits: Splits) -> None:
        total = len(layout.names)
        counts = (self.n_groups,) if self.n_groups else (*(c for c in COUNTS if c < total), total)
        kinds: tuple[str, ...] = (self.attention,)
        if self.attention == "auto":
            # with one variable a shared value is a sign: groups of opposite effect could not both be attended to
            kinds = ("shared", "separate") if layout.equal and len(layout.members[0]) > 1 else ("separate",)
        among = Candidates(layout, kinds, counts, self._ridges(len(samples.X)))
        self.choice_, self.comparison_ = choose_groups(samples, among, splits, self.n_jobs, bool(self.verbose))
        Z = Standardization.of(samples.X)(samples.X)
        self.attention_ = group_attention(Z, samples, layout, self.choice_.attention)
        best = np.argsort(-self.attention_, kind="stable")[: self.choice_.count]
        self.group_names_ = layout.names
        self.selected_groups_ = [layout.names[g] for g in best]

    def _keep(self, samples: Samples, layout: Layout, splits: Splits) -> None:
        """The readout alone: a layout in which the kept groups are one, so that only the ridge is left to choose."""
        names = self._kept()
        kept = [layout.names.index(name) for name in names]
        columns = np.setdiff1d(layout.columns(kept), layout.covariates)
        whole = Layout(("kept",), (columns,), layout.covariates)
        among = Candidates(whole, ("separate",), (1,), self._ridges(len(samples.X)))
        choice, self.comparison_ = choose_groups(samples, among, splits, self.n_jobs, bool(self.verbose))
        self.choice_ = GroupChoice("kept", len(kept), choice.C)
        self.group_names_, self.selected_groups_ = layout.names, names
        self.attention_ = np.zeros(len(layout.names))
        self.attention_[kept] = 1 / len(kept)

    def _read_out(self, samples: Samples) -> None:
        self.column_means_ = samples.X.mean(axis=0)
        part = samples.X[:, self._columns]
        standardize = Standardization.of(part)
        Z, ridge = standardize(part), 1 / (self.choice_.C * len(part))
        heads = [logistic_heads(Z, signs, (ridge,), samples.weights)[0] for signs in samples.targets]
        readouts = np.stack([head.readout for head in heads]) / standardize.scale
        self.coef_ = np.zeros((len(heads), samples.X.shape[1]))
        self.coef_[:, self._columns] = readouts
        self.intercept_ = np.array([head.bias for head in heads]) - readouts @ standardize.mean


def _take_selection(
    model: GroupClassifier, names: list[Any], selected: list[Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """The stored groups and arrays, if they fit together."""
    layout, scores = model._layout(), stored.scores(model.classes_)
    model._check_parameters(layout)
    model.group_names_, model.selected_groups_ = tuple(names), list(selected)
    if model.group_names_ != layout.names:
        raise UsageError("'group_names' are not those of 'groups'")
    places = [layout.names.index(name) for name in selected]
    shapes = {
        "coef": (scores, model.n_features_in_),
        "intercept": (scores,),
        "attention": (len(names),),
        "column_means": (model.n_features_in_,),
    }
    model.coef_, model.intercept_, model.attention_, model.column_means_ = stored.arrays(tensors, shapes)
    falling = model.attention_[places]
    if len(set(places)) != model.choice_.count or (np.diff(falling) > 0).any():
        raise UsageError("'selected_groups' are not as many as were chosen, in the order of their attention")
    model._columns = layout.columns(places)
    if (np.delete(model.coef_, model._columns, axis=1) != 0).any():
        raise UsageError("array 'coef' is not 0 outside the selected groups")


def _as_json(value: Any) -> Any:
    """Groups, covariates, names or weights as JSON keeps them: a mapping as pairs, whose names may be numbers."""
    if isinstance(value, Mapping):
        return [[plain_label(name), _as_json(part)] for name, part in value.items()]
    if value is None or isinstance(value, str | int | float | np.generic):
        return plain_label(value)
    return [plain_label(item) for item in value]
