"""Features in named groups to labels: attention finds the groups that matter, a linear readout uses them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from whichtoken.errors import UsageError
from whichtoken.estimators import model_values as stored
from whichtoken.estimators._labels import encode_labels
from whichtoken.estimators._scores import predicted, probabilities, signs_of
from whichtoken.estimators.groups.layout import Layout, parse_groups
from whichtoken.estimators.groups.selection import (
    ATTENTIONS,
    RIDGES,
    Comparison,
    GroupChoice,
    Standardisation,
    choose_groups,
    group_attention,
)
from whichtoken.estimators.model_folder import load_model, save_model
from whichtoken.threads import one_thread
from whichtoken.training.convex_head import fit_head

if TYPE_CHECKING:
    from whichtoken.estimators.groups.explanation import RowExplanation

Array = NDArray[np.float64]

KIND = "group-classifier"
TENSORS = ("coef", "intercept", "attention", "column_means")
FITTED = ("classes", "n_features_in", "feature_names_in", "group_names", "selected_groups", "choice", "comparison")
COUNTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)


class GroupClassifier(ClassifierMixin, SelectorMixin, BaseEstimator):
    """Group selection by attention over positions, after the one-layer transformer of Zhang, Meng, Cao (arXiv 2504.08638).

    Attention ranks the groups, a cross-validation says how many are kept (all of them, unless fewer predict as well), and a
    ridge-penalised logistic readout, with a direction for each kept group, decides. As a scikit-learn selector it keeps the
    columns of these groups.

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
    ridge : float, optional
        Ridge of the readout on standardised columns; chosen by validation by default.
    cv : int, default=5
        Folds of the validation; fewer are used where a class has fewer members. Few folds favour few groups, which can
        be learnt from fewer samples.
    random_state : int, default=0
        Seed for the cut into folds.

    Attributes
    ----------
    classes_ : (n_classes,)
    group_names_ : tuple
    attention_ : (n_groups,)
        Sums to one.
    selected_groups_ : list of group names, in descending order of attention
    choice_ : GroupChoice
        Kind of attention, number of groups, ridge.
    comparison_ : Comparison or None
        Why: held-out log-losses of fewer groups and of all. None where the number of groups was not chosen here.
    coef_ : (n_scores, n_features)
        Zero outside the selection; there is one score for two classes, and one per class for more.
    intercept_ : (n_scores,)
    column_means_ : (n_features,)
        The average row of the training, beside which `explain` speaks.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> X = np.random.default_rng(0).standard_normal((200, 6))
    >>> y = X[:, 2] + X[:, 3] > 0  # the second of three groups decides
    >>> model = GroupClassifier(groups=["a", "a", "b", "b", "c", "c"]).fit(X, y)
    >>> model.selected_groups_[0]
    'b'
    """

    def __init__(
        self,
        groups: Any = None,
        *,
        covariates: Any = None,
        attention: str = "auto",
        n_groups: int | None = None,
        keep: Any = None,
        ridge: float | None = None,
        cv: int = 5,
        random_state: int = 0,
    ) -> None:
        self.groups = groups
        self.covariates = covariates
        self.attention = attention
        self.n_groups = n_groups
        self.keep = keep
        self.ridge = ridge
        self.cv = cv
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Select groups and train the readout on X (n, features) and labels y (n,)."""
        table = validate_data(self, X, dtype=np.float64)
        self.classes_, codes = encode_labels(y, len(table))
        layout = self._layout()
        self._check_parameters(layout)
        targets = signs_of(codes, len(self.classes_))
        # the matrices are small: more threads than one wait for each other, for minutes where others use the cores too
        with one_thread():
            if self.keep is None:
                self._select(table, codes, targets, layout)
            else:
                self._keep(table, codes, targets, layout)
            self._columns = layout.columns([layout.names.index(name) for name in self.selected_groups_])
            self._read_out(table, targets)
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
        check_is_fitted(self)
        table = validate_data(self, X, dtype=np.float64, reset=False)
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
        """What each selected group, then the covariates, add to the score of two classes; with `intercept_` they sum to it.

        Shape (n, selected groups + 1). A column of several groups counts for the first of them.
        """
        check_is_fitted(self)
        if len(self.classes_) != 2:
            raise ValueError(f"contributions are those of two classes; this model has {len(self.classes_)}")
        terms = validate_data(self, X, dtype=np.float64, reset=False) * self.coef_[0]
        return np.stack([terms[:, columns].sum(axis=1) for columns in self._parts()], axis=1)

    def explain(self, X: ArrayLike) -> list[RowExplanation]:
        """Why each row gets its label: contributions beside the average row, and the fewest groups that would change it."""
        from whichtoken.estimators.groups.explanation import explain_rows

        check_is_fitted(self)
        return explain_rows(self, X)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        settings = stored.storable(self.get_params())
        for name in ("groups", "covariates", "keep"):
            settings[name] = _as_json(settings[name])
        fitted = {
            "classes": stored.classes_as_json(self.classes_),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "group_names": list(self.group_names_),
            "selected_groups": list(self.selected_groups_),
            "choice": vars(self.choice_),
            "comparison": None if self.comparison_ is None else vars(self.comparison_),
        }
        tensors = {name: getattr(self, f"{name}_") for name in TENSORS}
        save_model(folder, KIND, {"settings": settings, "fitted": fitted}, tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The classifier that `save` wrote; executes no code."""
        _, parameters, tensors = load_model(folder, KIND)
        with stored.stored_fields(folder):
            parts = stored.section("parameters", parameters, ["settings", "fitted"])
            settings = stored.section("settings", parts["settings"], list(cls().get_params()))
            if isinstance(settings["groups"], list) and isinstance(settings["groups"][0], list):
                settings["groups"] = dict(settings["groups"])
            model, fitted = cls(**settings), stored.section("fitted", parts["fitted"], FITTED)
            model.classes_ = stored.classes_from_json(fitted["classes"])
            model.n_features_in_ = stored.count("n_features_in", fitted["n_features_in"])
            if fitted["feature_names_in"]:
                columns = stored.texts("feature_names_in", fitted["feature_names_in"], model.n_features_in_)
                model.feature_names_in_ = np.array(columns, dtype=object)
            model.choice_ = _choice_from_json(fitted["choice"])
            model.comparison_ = _comparison_from_json(fitted["comparison"])
            model._take_selection(fitted["group_names"], fitted["selected_groups"], tensors)
        return model

    def _take_selection(self, names: list[Any], selected: list[Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        """The stored groups and arrays, if they fit together."""
        layout, scores = self._layout(), stored.scores(self.classes_)
        self._check_parameters(layout)
        stored.check_seed(self.random_state)
        self.group_names_, self.selected_groups_ = tuple(names), list(selected)
        if self.group_names_ != layout.names:
            raise UsageError("'group_names' are not those of 'groups'")
        places = [layout.names.index(name) for name in selected]
        shapes = {
            "coef": (scores, self.n_features_in_),
            "intercept": (scores,),
            "attention": (len(names),),
            "column_means": (self.n_features_in_,),
        }
        self.coef_, self.intercept_, self.attention_, self.column_means_ = stored.arrays(tensors, shapes)
        falling = self.attention_[places]
        if len(set(places)) != self.choice_.count or (np.diff(falling) > 0).any():
            raise UsageError("'selected_groups' are not as many as were chosen, in the order of their attention")
        self._columns = layout.columns(places)
        if (np.delete(self.coef_, self._columns, axis=1) != 0).any():
            raise UsageError("array 'coef' is not 0 outside the selected groups")

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
        if self.attention not in ("auto", *ATTENTIONS):
            raise ValueError(f"attention={self.attention!r} must be one of auto, {', '.join(ATTENTIONS)}")
        if self.attention == "shared" and not layout.equal:
            raise ValueError("attention='shared' needs groups of equal size; use 'separate', or 'auto'")
        if self.n_groups is not None and not 1 <= self.n_groups <= len(layout.names):
            raise ValueError(f"n_groups={self.n_groups} must lie in 1..{len(layout.names)}, the number of groups")
        if self.ridge is not None and not 0 < self.ridge < np.inf:
            raise ValueError(f"ridge={self.ridge} must be above 0, or None")
        if not isinstance(self.cv, int | np.integer) or self.cv < 2:
            raise ValueError(f"cv={self.cv!r} must be a whole number of at least 2")
        for name in self.keep or ():
            if name not in layout.names:
                raise ValueError(f"keep: there is no group {name!r}; groups: {', '.join(map(str, layout.names))}")

    def _select(self, X: Array, codes: NDArray[np.intp], targets: list[Array], layout: Layout) -> None:
        total = len(layout.names)
        counts = (self.n_groups,) if self.n_groups else (*(c for c in COUNTS if c < total), total)
        kinds = (self.attention,) if self.attention != "auto" else _kinds(layout)
        ridges = RIDGES if self.ridge is None else (self.ridge,)
        self.choice_, self.comparison_ = choose_groups(
            X, codes, targets, layout, kinds, counts, ridges, self.cv, self.random_state
        )
        Z = Standardisation.of(X)(X)
        self.attention_ = group_attention(Z, targets, layout, self.choice_.attention)
        best = np.argsort(-self.attention_, kind="stable")[: self.choice_.count]
        self.group_names_ = layout.names
        self.selected_groups_ = [layout.names[g] for g in best]

    def _keep(self, X: Array, codes: NDArray[np.intp], targets: list[Array], layout: Layout) -> None:
        """The readout alone: a layout in which the kept groups are one, so that only the ridge is left to choose."""
        kept = [layout.names.index(name) for name in self.keep]
        columns = np.setdiff1d(layout.columns(kept), layout.covariates)
        whole = Layout(("kept",), (columns,), layout.covariates)
        ridges = RIDGES if self.ridge is None else (self.ridge,)
        choice, self.comparison_ = choose_groups(
            X, codes, targets, whole, ("separate",), (1,), ridges, self.cv, self.random_state
        )
        self.choice_ = GroupChoice("kept", len(kept), choice.ridge)
        self.group_names_, self.selected_groups_ = layout.names, list(self.keep)
        self.attention_ = np.zeros(len(layout.names))
        self.attention_[kept] = 1 / len(kept)

    def _read_out(self, X: Array, targets: list[Array]) -> None:
        self.column_means_ = X.mean(axis=0)
        part = X[:, self._columns]
        standardise = Standardisation.of(part)
        Z = standardise(part)
        heads = [fit_head(Z, signs, self.choice_.ridge) for signs in targets]
        readouts = np.stack([head.readout for head in heads]) / standardise.scale
        self.coef_ = np.zeros((len(heads), X.shape[1]))
        self.coef_[:, self._columns] = readouts
        self.intercept_ = np.array([head.bias for head in heads]) - readouts @ standardise.mean


def _kinds(layout: Layout) -> tuple[str, ...]:
    # with one variable a shared value is a sign: groups of opposite effect could not both be attended to
    return ("shared", "separate") if layout.equal and len(layout.members[0]) > 1 else ("separate",)


def _as_json(value: Any) -> Any:
    """Groups, covariates or names as JSON keeps them: a mapping as pairs, whose names may be numbers."""
    if isinstance(value, Mapping):
        return [[_plain(name), _as_json([part] if isinstance(part, str) else part)] for name, part in value.items()]
    return value if value is None or isinstance(value, str) else [_plain(item) for item in value]


def _choice_from_json(described: Any) -> GroupChoice:
    part = stored.section("choice", described, ["attention", "count", "ridge"])
    if part["attention"] not in ("kept", *ATTENTIONS):
        raise UsageError(f"'attention' is none of kept, {', '.join(ATTENTIONS)}")
    return GroupChoice(
        part["attention"], stored.count("count", part["count"]), stored.number("ridge", part["ridge"], 0)
    )


def _comparison_from_json(described: Any) -> Comparison | None:
    if described is None:
        return None
    part = stored.section("comparison", described, ["count", "fewer", "whole", "error"])
    losses = (stored.number(name, part[name], 0, include_low=True) for name in ("fewer", "whole", "error"))
    return Comparison(stored.count("count", part["count"]), *losses)


def _plain(item: Any) -> Any:
    return item.item() if isinstance(item, np.generic) else item
