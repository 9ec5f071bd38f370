"""Classify rows whose columns come in groups: attention finds the groups that matter, an additive readout uses them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from whichtoken.checks import check_choice, check_features, check_integer, check_range
from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators.common import (
    FittedSummary,
    SavesExplainer,
    checked_clusters,
    encode_labels,
    plain_label,
    predicted,
    probabilities,
    refuse_dask_table,
    signs_of,
)
from whichtoken.estimators.groups.selection import (
    ATTENTIONS,
    MAPS,
    RIDGES,
    Candidates,
    GroupChoice,
    GroupMap,
    GroupPath,
    Layout,
    Samples,
    Standardization,
    choose_groups,
    group_attention,
    parse_groups,
    validation_folds,
)
from whichtoken.estimators.groups.significance import CONTROLS, GroupTests, TransferTest, adjust, p_values, tested
from whichtoken.theory.sparse_tokens.convex_head import logistic_heads
from whichtoken.threads import one_thread

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.explainer_page import SavedPage
    from whichtoken.estimators.groups.explanation import RowExplanation
    from whichtoken.estimators.model_folder import OpenedFolder

Array = NDArray[np.float64]

Splits = list[list[tuple[NDArray[np.intp], NDArray[np.intp]]]]  # of each repeat

KIND = "group-classifier"
STORED = ("coef", "intercept", "attention", "column_means", "column_ranges", "fills")
NAMED = ("groups", "covariates", "keep", "class_weight")  # settings that may be mappings, whose names may be numbers
SMALL, REPEATS = 500, 4  # a table of at most so many rows may be cut into folds so often
COUNTS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)


@dataclass(eq=False, repr=False)
class GroupClassifier(FittedSummary, SavesExplainer, ClassifierMixin, SelectorMixin, BaseEstimator):
    """Classify rows of a table with the few groups of columns that matter.

    Reach for it when columns belong together (the dummies of a category, the lags of a sensor, the genes of a pathway) and you
    want to know which groups are needed. Once found, they can be kept for a new task with far fewer samples (`transfer`).

    Attention over positions ranks the groups, after the one-layer transformer of Zhang, Meng, Cao (arXiv 2504.08638). A
    cross-validation says how many are kept (`path_`), and a ridge-penalized logistic readout, with a direction for each kept
    group, decides. Where groups act nonlinearly, their columns are bent first, and scores stay sums over groups.
    `selection="controlled"` keeps the groups that pass a test with a bounded error rate, which may be none.
    As a scikit-learn selector it keeps the columns of the selected groups.

    Parameters
    ----------
    groups : array or list of ids or names, one per column; mapping of group name to columns; or None, optional
        A mapping names columns of a DataFrame or their indices, and its groups may overlap. None: each column by
        itself.
    covariates : list of columns, optional
        Columns outside the groups, which are always kept.
    selection : {"validated", "controlled"}, default="validated"
        "validated" keeps the fewest groups that predict as well as any number does, up to one standard error and a hundredth of
        what can be predicted. "controlled"
        keeps the groups whose p-values (`group_tests`) pass at the level `alpha`, in whatever number, and near copies that
        pass only together; if there is none, predictions are the base rate.
    alpha : float, default=0.05
        Error level of the controlled selection.
    control : {"fwer", "fdr"}, default="fwer"
        What `alpha` bounds: the chance of any wrong group, or the expected share of wrong groups among those selected.
    group_map : {"auto", "linear", "splines", "fourier"}, default="auto"
        How a group acts. "splines": each column by a line with bends. "fourier": the columns of a group together, by random
        cosines; not for groups that overlap. "auto" takes one of them only if it predicts better than "linear" by more than
        a standard error. The controlled selection tests linear effects unless a map is named.
    attention : {"separate", "full"}, default="separate"
        "separate": a value vector for each group. "full": the transformer, whose attention also looks at the variables.
    n_groups : int, optional
        How many groups to keep; chosen by validation by default.
    keep : list of group names, optional
        Keep exactly these groups and learn only the readout; see `transfer`.
    C : float or "auto"
        Inverse strength of the ridge on the readout of standardized columns, as in scikit-learn: the ridge beside the mean
        loss is 1 / (C n). "auto" takes the best of a few by validation.
    cv : int, splitter or list of splits
        Folds of the validation. If it is a number, fewer are used where a class has fewer members, and a table of at most 500
        rows is split four times where one split leaves the number of groups in doubt. Few folds favor
        few groups, which can be learned from fewer samples.
    class_weight : dict, "balanced" or None
        Weights of the classes in training, validation and tests, times those of the samples; `attention="full"` takes none.
    n_jobs : int, optional
        Threads of the validation.
    verbose : int
        1: a line for each number of groups that is tried, on standard error.
    random_state : int, RandomState or None
        Seed for the folds, cosines and permutations.

    Attributes
    ----------
    classes_ : (n_classes,)
    group_names_ : tuple
    attention_ : (n_groups,)
        Sums to one.
    selected_groups_ : list of group names, in descending order of attention
    choice_ : GroupChoice
        Kind of attention, map, number of groups, C.
    path_ : GroupPath or None
        Why: held-out log losses for numbers of groups and for maps. None where nothing was compared.
    tests_ : GroupTests or None
        p-values of all groups, where the selection is controlled.
    coef_ : (n_scores, n_features + bends)
        Of the columns, then of the bends of `map_`. Zero outside the selection; there is one score for two classes, and one
        per class for more.
    intercept_ : (n_scores,)
    map_ : GroupMap
        From columns to the features that the readout weights.
    fills_ : (n_features,)
        Training medians, which replace gaps.
    column_means_ : (n_features,)
        The average training row, to which `explain` compares.
    column_ranges_ : (2, n_features)
        Between which the middle nine tenths of the training rows lie.

    Notes
    -----
    Gaps (nan) are filled with the median of the training rows, as on the command line. Once fitted, a DataFrame needs only the
    columns of the selected groups and the covariates. Text is refused; encode it in a pipeline.

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
    selection: str = "validated"
    alpha: float = 0.05
    control: str = "fwer"
    group_map: str = "auto"
    attention: str = "separate"
    n_groups: int | None = None
    keep: Any = None
    C: float | Literal["auto"] = "auto"
    cv: Any = 5
    class_weight: dict[Any, float] | str | None = None
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Select groups and train the readout.

        Parameters
        ----------
        X : (n, features)
        y : (n,)
        sample_weight : (n,), optional
            Weights of the rows: a weight of 2 is the row twice, and one of 0 leaves it out.
        groups : (n,), optional
            Rows that stay together: those of one group (the visits of a patient) are never on both sides of a validation. The
            groups of the constructor are groups of columns.
        """
        refuse_dask_table(self, X)
        table = self._numbers(X, reset=True)
        self.classes_, codes = encode_labels(y, len(table))
        layout = self._layout()
        self._check_parameters(layout)
        clusters = checked_clusters(groups, len(table))
        if clusters is not None and self.selection == "controlled" and self.keep is None:
            raise ValueError(
                "groups: selection='controlled' permutes rows, which must be independent; take one row of each group, or"
                " selection='validated'"
            )
        samples, used = self._samples(table, codes, sample_weight)
        seed = self._seed = _seed_of(self.random_state)
        repeats = REPEATS if isinstance(self.cv, int | np.integer) and used.sum() <= SMALL else 1
        splits = [validation_folds(codes, self.cv, clusters, seed + k, used) for k in range(repeats)]
        # the matrices are small: more threads than one wait for each other, for minutes where others use the cores too
        with one_thread():
            self.group_names_ = layout.names
            self.path_: GroupPath | None = None
            self.tests_: GroupTests | None = None
            if self.keep is not None:
                self._keep(samples, layout, splits, self._kept())
            elif self.selection == "controlled":
                self._test(samples, layout, splits)
            else:
                self._select(samples, layout, splits)
            self._read_out(samples, layout)
        return self

    def _samples(self, table: Array, codes: NDArray[np.intp], sample_weight: Any) -> tuple[Samples, NDArray[np.bool_]]:
        """The rows of positive weight with their gaps filled, and which ones they are."""
        weights: Array = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
        used = weights > 0
        lost = np.setdiff1d(np.arange(len(self.classes_)), codes[used])
        if lost.size:
            raise ValueError(f"sample_weight is 0 for all rows of class {self.classes_[lost].tolist()[0]!r}")
        weights = (weights * compute_sample_weight(self.class_weight, self.classes_[codes]))[used]
        table, codes = table[used], codes[used]
        self.fills_ = _medians(table, getattr(self, "feature_names_in_", None))
        filled = np.where(np.isnan(table), self.fills_, table)
        return Samples(filled, codes, signs_of(codes, len(self.classes_)), weights), used

    def fit_downstream(self, X: ArrayLike, y: ArrayLike) -> Self:
        """A classifier for a new task with the selection of this one kept: needs far fewer samples. Leaves this one alone."""
        return self.transfer().fit(X, y)

    def transfer(self) -> Self:
        """An unfitted classifier that keeps the groups selected here and learns only its readout."""
        check_is_fitted(self)
        if not self.selected_groups_:
            raise ValueError("no group was selected here, so there is none to keep for a new task")
        return type(self)(**{**self.get_params(), "keep": list(self.selected_groups_), "n_groups": None})

    def transfer_test(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> TransferTest:
        """Test on new data whether the selected groups still carry the signal, and whether others add to them.

        Parameters
        ----------
        X : (n, features)
            Rows that were not used to select.
        y : (n,)
            Their labels, which may be those of another task.
        sample_weight : (n,), optional

        Returns
        -------
        TransferTest
            `signal`: a small p-value says that the labels depend on the selected groups, given the covariates. `others`: a small
            one says that some other group adds to them, so that the selection is too small for these data.
        """
        check_is_fitted(self)
        if not self.selected_groups_:
            raise ValueError("no group was selected, so there is no selection to test")
        table, fresh = self._rows(X), clone(self)
        fresh.classes_, codes = encode_labels(y, len(table))
        samples, _ = fresh._samples(table, codes, sample_weight)
        layout, seed = self._layout(), _seed_of(self.random_state)
        maps, rng = GroupMap.of(self.choice_.group_map, samples, layout, seed), np.random.default_rng(seed)
        samples, layout = replace(samples, X=maps(samples.X)), maps.layout(layout)
        mine = [layout.names.index(name) for name in self.selected_groups_]
        kept = layout.columns(mine)
        whole = Layout(("selected",), (np.setdiff1d(kept, layout.covariates),), layout.covariates)
        # a column that is also selected tells nothing new
        free = {name: np.setdiff1d(part, kept) for name, part in zip(layout.names, layout.members, strict=True)}
        others = {name: part for name, part in free.items() if part.size}
        with one_thread():
            signal = float(p_values(samples, whole, self.alpha, rng)[0])
            rest = Layout(tuple(others), tuple(others.values()), kept)
            found = adjust(p_values(samples, rest, self.alpha, rng), "fwer") if others else np.empty(0)
        adding = [name for name, p in zip(others, found, strict=True) if p <= self.alpha]
        return TransferTest(signal, float(found.min(initial=1.0)), adding, self.alpha)

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores (n,) for two classes, (n, n_classes) for more."""
        scores = self._scores(self._rows(X))
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
        terms = self._terms(self._rows(X))[:, 0]
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

    def _save_page(self, path: str | Path, examples: Any, **about: Any) -> SavedPage:
        from whichtoken.estimators.groups.explainer import save_explainer

        check_is_fitted(self)
        return save_explainer(self, path, examples, **about)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        # splits belong to the training rows, not to the model
        left_out = () if isinstance(self.cv, int | np.integer) else ("cv",)
        settings = {name: part for name, part in stored.storable(self.get_params()).items() if name not in left_out}
        fitted = {
            "classes": stored.classes_as_json(self.classes_),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "group_names": list(self.group_names_),
            "selected_groups": list(self.selected_groups_),
            "choice": vars(self.choice_),
            "path": None if self.path_ is None else vars(self.path_),
            "tests": None if self.tests_ is None else self.tests_.as_json(),
        }
        tensors = {name: getattr(self, f"{name}_") for name in STORED}
        tensors |= {"directions": self.map_.directions.toarray(), "shifts": self.map_.offsets}
        named = {name: _as_json(settings[name]) for name in NAMED}
        stored.save_model(folder, KIND, {"settings": settings | named, "fitted": fitted}, tensors)

    @classmethod
    def load(cls, folder: str | Path | OpenedFolder) -> Self:
        """The classifier that `save` wrote; executes no code."""
        _, parameters, tensors = stored.load_model(folder, KIND)
        from whichtoken.estimators.schemas import GroupFitted, model_of

        with stored.stored_fields(folder):
            model, fitted = model_of(cls, GroupFitted, parameters, class_weight=(Any, ...), cv=(int, cls().cv))
            for name in ("groups", "class_weight"):
                pairs = getattr(model, name)
                if isinstance(pairs, list) and isinstance(pairs[0], list):
                    setattr(model, name, dict(pairs))
            model.choice_ = GroupChoice(**dict(fitted.choice))
            model.path_ = None if fitted.path is None else GroupPath(**dict(fitted.path))
            model.tests_ = (
                None if fitted.tests is None else GroupTests.from_json(fitted.group_names, dict(fitted.tests))
            )
            _take_selection(model, fitted.group_names, fitted.selected_groups, tensors)
        return model  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _transform(self, X: Any) -> Any:
        # no group is an answer, not a reason to warn
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No features were selected")
            return super()._transform(X)

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

    def _scores(self, table: Array) -> Array:
        """Scores (n, n_scores) of rows without gaps."""
        # only the selected columns: an infinite rounding error of the others must not enter through a zero
        features = self.map_(table)[:, self._features]
        return np.asarray(features @ self.coef_[:, self._features].T + self.intercept_)

    def _terms(self, table: Array) -> Array:
        """What each column adds to the scores of the average row, (n, n_scores, n_features)."""
        slopes = self.map_.slopes(self.coef_, table, self.column_means_)
        return np.asarray((table - self.column_means_)[:, None] * slopes)

    def _layout(self) -> Layout:
        return parse_groups(self.groups, self.covariates, self.n_features_in_, getattr(self, "feature_names_in_", None))

    def _check_parameters(self, layout: Layout) -> None:
        check_choice("attention", self.attention, ATTENTIONS)
        check_choice("selection", self.selection, ("validated", "controlled"))
        check_choice("control", self.control, CONTROLS)
        check_choice("group_map", self.group_map, ("auto", *MAPS))
        check_range("alpha", self.alpha, 0.0, 1.0)
        if self.group_map == "fourier" and layout.overlaps:
            raise ValueError("group_map='fourier' needs groups that do not overlap; use 'splines', or 'auto'")
        if self.selection == "controlled" and self.n_groups is not None:
            raise ValueError(
                f"n_groups={self.n_groups} cannot be set with selection='controlled', which finds the number"
            )
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
            raise ValueError("attention='full' takes no class_weight; use 'separate'")
        if not (hasattr(self.cv, "split") or isinstance(self.cv, Iterable)):
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
        check_features(np.where(np.isnan(table), 0.0, table), "features")
        return table if reset else np.where(np.isnan(table), self.fills_, table)

    def _ridges(self, samples: float) -> tuple[float, ...]:
        return RIDGES if isinstance(self.C, str) else (1 / (self.C * samples),)

    def _maps(self, layout: Layout) -> tuple[str, ...]:
        if self.group_map != "auto":
            return (self.group_map,)
        return MAPS[:2] if layout.overlaps else MAPS

    def _ranked(self, samples: Samples, layout: Layout, kind: str) -> tuple[Array, NDArray[np.intp]]:
        """Attention over the groups, with this map, and their order by it."""
        maps = GroupMap.of(kind, samples, layout, self._seed)
        features = maps(samples.X)
        Z = Standardization.of(features, samples.weights)(features) * maps.boosts
        attention = group_attention(Z, samples, maps.layout(layout), self.attention)
        return attention, np.argsort(-attention, kind="stable")

    def _select(self, samples: Samples, layout: Layout, splits: Splits) -> None:
        total = len(layout.names)
        counts = (self.n_groups,) if self.n_groups else (*(c for c in COUNTS if c < total), total)
        ridges = self._ridges(samples.count)
        among = Candidates(layout, self.attention, self._maps(layout), counts, ridges, self._seed)
        self.choice_, self.path_ = choose_groups(samples, among, splits, self.n_jobs, bool(self.verbose))
        self.attention_, order = self._ranked(samples, layout, self.choice_.group_map)
        self.selected_groups_ = [layout.names[g] for g in order[: self.choice_.count]]

    def _test(self, samples: Samples, layout: Layout, splits: Splits) -> None:
        kind, rng = "linear" if self.group_map == "auto" else self.group_map, np.random.default_rng(self._seed)
        maps = GroupMap.of(kind, samples, layout, self._seed)
        mapped = replace(samples, X=maps(samples.X))
        tests = self.tests_ = tested(mapped, maps.layout(layout), self.alpha, self.control, rng)
        attention, order = self._ranked(samples, layout, kind)
        # near copies come whole, as none of them is known to be the one that matters
        passed = {*tests.selected, *(name for union in tests.undecided for name in union.groups)}
        self._keep(samples, layout, splits, [layout.names[g] for g in order if plain_label(layout.names[g]) in passed])
        self.attention_, self.choice_ = attention, replace(self.choice_, attention="tested")

    def _keep(self, samples: Samples, layout: Layout, splits: Splits, names: list[Any]) -> None:
        """The readout alone: a layout in which the kept groups are one, so that only map and ridge are left to choose."""
        kept = [layout.names.index(name) for name in names]
        part, ridges = layout.part(kept), self._ridges(samples.count)
        maps = self._maps(layout) if kept else ("linear",)
        among = Candidates(part, self.attention, maps, (len(kept),), ridges, self._seed)
        choice, self.path_ = choose_groups(samples, among, splits, self.n_jobs, bool(self.verbose))
        self.choice_ = replace(choice, attention="kept")
        self.selected_groups_, self.attention_ = names, np.zeros(len(layout.names))
        self.attention_[kept] = 1 / max(1, len(kept))

    def _read_out(self, samples: Samples, layout: Layout) -> None:
        part = layout.part([layout.names.index(name) for name in self.selected_groups_])
        self.column_means_ = np.average(samples.X, axis=0, weights=samples.weights)
        self.column_ranges_ = np.quantile(samples.X, (0.05, 0.95), axis=0)
        self.map_ = GroupMap.of(self.choice_.group_map, samples, part, self._seed)
        self._use(part)
        features = self.map_(samples.X)[:, self._features]
        standardize, boosts = Standardization.of(features, samples.weights), self.map_.boosts[self._features]
        Z, ridge = standardize(features) * boosts, 1 / (self.choice_.C * samples.count)
        heads = [head for signs in samples.targets for head in logistic_heads(Z, signs, (ridge,), samples.weights)]
        readouts = np.stack([head.readout for head in heads]) * boosts / standardize.scale
        self.coef_ = np.zeros((len(heads), len(self.map_.boosts)))
        self.coef_[:, self._features] = readouts
        self.intercept_ = np.array([head.bias for head in heads]) - readouts @ standardize.mean

    def _use(self, part: Layout) -> None:
        """Which columns and features count, given the layout of the selected groups."""
        groups = range(len(part.names))
        self._columns, self._features = part.columns(groups), self.map_.layout(part).columns(groups)


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
    bends = tensors["shifts"].shape if "shifts" in tensors else ()
    if len(bends) != 1:
        raise UsageError("array 'shifts' is not there, or not a list of numbers")
    shapes = {
        "coef": (scores, model.n_features_in_ + bends[0]),
        "intercept": (scores,),
        "attention": (len(names),),
        "column_means": (model.n_features_in_,),
        "column_ranges": (2, model.n_features_in_),
        "fills": (model.n_features_in_,),
        "directions": (model.n_features_in_, *bends),
        "shifts": bends,
    }
    *fitted, directions, offsets = stored.arrays(tensors, shapes)
    for name, array in zip(STORED, fitted, strict=True):
        setattr(model, f"{name}_", array)
    model.map_ = GroupMap(model.choice_.group_map, csc_array(directions), offsets)
    falling = model.attention_[places]
    if len(set(places)) != model.choice_.count or (np.diff(falling) > 0).any():
        raise UsageError("'selected_groups' are not as many as were chosen, in the order of their attention")
    model._use(layout.part(places))
    if (np.delete(model.coef_, model._features, axis=1) != 0).any():
        raise UsageError("array 'coef' is not 0 outside the selected groups")


def _seed_of(random_state: Any) -> int:
    return int(
        random_state if isinstance(random_state, int | np.integer) else check_random_state(random_state).randint(2**31)
    )


def _medians(table: Array, names: Sequence[str] | None) -> Array:
    """Medians of the columns without their gaps; a column of gaps alone is refused."""
    empty = np.isnan(table).all(axis=0)
    if empty.any():
        place = int(empty.argmax())
        raise ValueError(f"X: column {place if names is None else names[place]!r} is NaN in every row; leave it out")
    return np.asarray(np.nanmedian(table, axis=0))


def _as_json(value: Any) -> Any:
    """Groups, covariates, names or weights as JSON keeps them: a mapping as pairs, whose names may be numbers."""
    if isinstance(value, Mapping):
        return [[plain_label(name), _as_json(part)] for name, part in value.items()]
    if value is None or isinstance(value, str | int | float | np.generic):
        return plain_label(value)
    return [plain_label(item) for item in value]
