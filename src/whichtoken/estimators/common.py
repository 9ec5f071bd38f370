"""What the estimators share: labels as codes, splits that keep clusters whole, and the table that a notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from scipy.special import expit

from whichtoken.display.shown import facts_html
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError

if TYPE_CHECKING:
    from whichtoken.estimators.explainer_page import SavedPage


Array = NDArray[np.float64]


def check_labels(y: ArrayLike, samples: int | None = None) -> NDArray[Any]:
    """Labels of one type, (n,); `samples` of them, if that is known."""
    from sklearn.utils import assert_all_finite, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets

    if y is None:
        raise ValueError("y=None: this estimator requires y to be passed, but the target y is None")
    # numpy would silently turn numbers beside texts into texts
    kinds = {isinstance(label, str) for label in np.ravel(np.asarray(y, dtype=object)).tolist()}
    if len(kinds) > 1:
        raise ValueError("y mixes text with other types; labels must all be text or all be numbers")
    labels = column_or_1d(np.asarray(y), warn=True)
    if samples is not None and len(labels) != samples:
        raise ValueError(f"y has {len(labels)} labels for {samples} samples; there must be one for each")
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return np.asarray(labels)


def encode_labels(y: ArrayLike, samples: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Sorted classes (k,) and the place of each label among them (n,); at least two classes."""
    classes, codes = np.unique(check_labels(y, samples), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()[0]!r}; a classifier needs at least two")
    return classes, codes


def several_labels(y: Any, samples: int, sample: str) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Names (k,) of several labels and 0 or 1 for each sample and label (n, k); None if y has one class for each sample."""
    given = y.toarray() if issparse(y) else y
    if any(isinstance(labels, list | tuple | set) for labels in (given if isinstance(given, list | tuple) else ())):
        sizes = {np.shape(labels) for labels in given}
        if len(sizes) > 1 or sizes == {()}:
            raise ValueError(f"y lists the labels of each {sample}; give 0 and 1 for each label (MultiLabelBinarizer)")
    marks = np.asarray(given)
    if marks.ndim != 2 or marks.shape[1] < 2:
        return None
    if len(marks) != samples or not np.isin(marks, (0, 1)).all():
        raise ValueError(
            f"y of shape {marks.shape} must have one row for each of {samples} {sample}s, of 0 and 1 for each label"
        )
    names = np.array(getattr(given, "columns", np.arange(marks.shape[1])))
    if len(set(names.tolist())) < len(names):
        raise ValueError(f"y has two columns of one name: {', '.join(map(str, names[:8]))}")
    same = np.flatnonzero(marks.min(axis=0) == marks.max(axis=0))
    if same.size:
        raise ValueError(f"label {names.tolist()[same[0]]!r} is the same for every {sample}; leave it out")
    return names, marks.astype(np.int64)


SIDES = ("lower", "upper")  # the two classes of the model inside a regressor: sides of the mean of the training numbers


LARGEST = 1e100  # size of numbers, whose squares must be finite


def standardized(y: Any, sample: str) -> tuple[Array, float, float]:
    """Numbers (n,) of mean 0 and variance 1, and the mean and the deviation that they had."""
    from sklearn.utils import column_or_1d

    numbers = column_or_1d(np.asarray(y, dtype=np.float64))
    if not np.isfinite(numbers).all():
        raise ValueError(f"y holds NaN or infinity; every {sample} needs a finite number")
    if (largest := float(np.abs(numbers).max(initial=0.0))) >= LARGEST:
        raise ValueError(f"y holds a number of size {largest:g}; numbers of {LARGEST:g} and more are not supported")
    mean, scale = float(numbers.mean()), float(numbers.std())
    if not scale > 0:
        raise ValueError(f"y is {mean:g} for every {sample}; there is nothing to learn")
    return (numbers - mean) / scale, mean, scale


def answers_of(model: Any, data: Any) -> Array:
    """Probabilities of the classes or labels, (n, k), or the number, (n, 1)."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(data))
    return np.asarray(model.predict(data))[:, None]


def check_change(change: float) -> None:
    """Refuse a change of a number that is none."""
    if not (np.isfinite(change) and change):
        raise UsageError("{change} must be a number other than 0, such as -1", change=change)


def place_of_label(model: Any, label: Any) -> int:
    """Which of the several labels of a model this is."""
    names = model.classes_.tolist() if model.several_labels_ else []
    if label not in names:
        known = ", ".join(map(str, names[:8])) or "none, as it has classes"
        raise ValueError(f"label={label!r} is not a label of this model; labels: {known}")
    return int(names.index(label))


def refuse_several(model: Any, what: str) -> None:
    """Refuse what is about one label in a model of several."""
    if model.several_labels_:
        names = model.classes_.tolist()
        raise UsageError(f"{what} is for one label; this model has {len(names)}: ask for_label({names[0]!r})")


def is_partitioned(X: Any) -> bool:
    """Whether X is a Dask collection, found without loading Dask."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "to_delayed")


def refuse_dask_table(model: Any, X: Any) -> None:
    """Refuse a Dask frame where no fit takes one."""
    if is_partitioned(X) and hasattr(X, "columns"):
        raise UsageError(
            f"{type(model).__name__} learns from tables in memory; X is a Dask collection, give X.compute()"
        )


def checked_clusters(groups: ArrayLike | None, samples: int) -> NDArray[Any] | None:
    """Names of what belongs together, one for each sample."""
    if groups is None:
        return None
    names = np.asarray(groups)
    if names.shape != (samples,):
        raise ValueError(f"groups of shape {names.shape} must have one entry for each of the {samples} samples")
    return names


def signs_of(codes: NDArray[np.intp], classes: int) -> list[Array]:
    """Targets -1 and +1 of each score, (n,) each."""
    positives = range(1, 2) if classes == 2 else range(classes)
    return [np.where(codes == code, 1.0, -1.0) for code in positives]


def predicted(scores: Array, classes: NDArray[Any]) -> NDArray[Any]:
    """Labels (n,) of scores (n,) or (n, n_classes)."""
    codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
    return np.asarray(classes[codes])


def probabilities(scores: Array) -> Array:
    """Probabilities (n, n_classes) of scores (n,) or (n, n_classes)."""
    if scores.ndim == 1:
        return np.stack([expit(-scores), expit(scores)], axis=1)
    # normalized in logarithms: a sample that every class rejects firmly must not become 0 / 0
    logs = -np.logaddexp(0, -scores)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


TRIES = 50  # of which the most even one is taken


def stratified_folds(
    labels: NDArray[Any], folds: int, clusters: NDArray[Any] | None, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows to train on and rows to test on, for each fold."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    kind = StratifiedKFold if clusters is None else StratifiedGroupKFold
    yield from kind(folds, shuffle=True, random_state=seed).split(labels, labels, clusters)


def stratified_clusters(
    labels: NDArray[Any], clusters: NDArray[np.intp], test: int, share: float, seed: int, least: int
) -> NDArray[np.bool_]:
    """Rows of `test` whole clusters that hold all classes, if some do, and of each class about this share; as booleans, (n,).

    At least `least` rows of each class are left, where that can be.
    """
    codes, kinds = (np.unique(values, return_inverse=True)[1] for values in (clusters, labels))
    count, total = int(codes.max()) + 1, np.bincount(kinds)
    table = csr_array((np.ones(len(codes)), (codes, kinds)), shape=(count, len(total)))
    rarest = np.full(count, len(total))
    np.minimum.at(rarest, codes, np.argsort(np.argsort(total, kind="stable"))[kinds])
    rng = np.random.default_rng(seed)
    best, best_cost = np.empty(0, np.bool_), (np.inf, np.inf)
    for _ in range(TRIES):
        order = np.lexsort((rng.random(count), rarest))  # clusters of one kind are neighbors; each n-th is taken
        taken = np.diff(np.floor(np.arange(count + 1) * (test / count) + rng.random())) > 0
        chosen = np.zeros(count, np.bool_)
        chosen[order[taken]] = True
        held = chosen.astype(np.float64) @ table
        lost = int(((held == 0) | (total - held < least)).sum())
        cost = (lost, float(np.abs(held / total - share).sum()))
        if 0 < chosen.sum() < count and cost < best_cost:
            best, best_cost = chosen, cost
    return np.asarray(best[codes])


# fitted attributes, in the order in which they are shown
SHOWN = {
    "classes_": "classes",
    "n_features_in_": "features",
    "pooling_": "pooling",
    "selected_groups_": "selected groups",
    "path_": "why these groups",
    "tests_": "tests of groups",
    "n_iter_": "steps",
    "choice_": "choice",
}


class SavesExplainer:
    """A model that a page can hold: `_save_page` writes it, with settings of its kind."""

    _save_page: Callable[..., SavedPage]

    def save_explainer(
        self,
        path: str | Path,
        examples: Any = (),
        *,
        title: str | None = None,
        card: Mapping[str, Any] | None = None,
        **about: Any,
    ) -> SavedPage:
        """Write one HTML file that holds the model and explains any text, bag or row, without a server or a network.

        Reach for it to show a model to somebody who installs nothing: the page decides at every key stroke, shows what each
        part adds, and the smallest change of the label, with the arithmetic of this library. A model that a page could only
        approximate is refused, as is one with several queries, whose smallest deletions are not known.

        Parameters
        ----------
        path : path
            The file.
        examples : texts, bags or rows, optional
            What the page offers to try; it stands in the page as it is.
        title : str, optional
            Heading of the page.
        card : mapping, optional
            The card of the model, as `model-card.json` has it.
        **about
            Of texts: `min_df` (5 by default; tokens in fewer training documents are left out, since every reader of the page
            can see its vocabulary), `redact` (words or lines of words that must not be in the page; nor are pairs and triples
            with them), `most_words` (keep so many tokens at most, those that say most in the training documents) and
            `compare_on` (texts on which the page is compared with the whole model; the examples unless given).
            Of bags and rows: `table` (how columns of a table become the features, as `whichtoken fit` stores it: `columns`,
            `fills` and `levels`); of bags also `bag` (column of a pasted table that says which rows belong together).

        Returns
        -------
        SavedPage
            Path and size; of texts also what was left out, and how many decisions that changes.
        """
        return self._save_page(path, examples, title=title, card=card, **about)


class FittedSummary:
    """Adds a table of what was fitted to the HTML of an estimator; before the fit nothing is added."""

    if TYPE_CHECKING:  # of scikit-learn's BaseEstimator

        def _repr_html_inner(self) -> str: ...

        def _repr_mimebundle_(self, **options: Any) -> dict[str, str]: ...

    else:

        def _repr_html_inner(self):
            return super()._repr_html_inner() + self._fitted_html()

        def _repr_mimebundle_(self, **options):
            bundle = super()._repr_mimebundle_(**options)
            return bundle | {kind: part + self._fitted_html() for kind, part in bundle.items() if kind == "text/html"}

    def _fitted_html(self) -> str:
        if not hasattr(self, "choice_"):
            return ""
        return facts_html(f"Fitted {type(self).__name__}", self._fitted_facts())

    def _fitted_facts(self) -> dict[str, object]:
        """Names and values of the table."""
        found = {words: getattr(self, name) for name, words in SHOWN.items() if getattr(self, name, None) is not None}
        if "classes" in found:
            names = [str(label) for label in np.asarray(found["classes"]).tolist()]
            found["classes"] = ", ".join(names) if len(names) <= 8 else pluralize(len(names), "class")
        return found


def plain_label(value: Any) -> Any:
    """A label as JSON knows it."""
    return value.item() if isinstance(value, np.generic) else value
