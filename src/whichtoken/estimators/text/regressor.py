"""Predict a number from texts with the attention of `TextClassifier`, and say exactly what each word adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from whichtoken.display.decision import Decision
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.estimators._explanation import number_view
from whichtoken.estimators.common import SIDES, FittedSummary, check_change, is_partitioned, standardized
from whichtoken.estimators.model_folder import OpenedFolder
from whichtoken.estimators.text.classifier import TextClassifier
from whichtoken.estimators.text.columns import TextColumnReason
from whichtoken.estimators.text.counting import by_partition, listed_texts
from whichtoken.estimators.text.explanation import TextExplanation, TokenReason
from whichtoken.estimators.text.model import count_with_spelled
from whichtoken.reading import shown
from whichtoken.theory.trained_embeddings import minimal_deletions

Array = NDArray[np.float64]


class NumberScorer(TextClassifier):
    """The model inside a regressor: its output is the standardized number, and its two classes are the sides of the mean."""

    _learns_numbers, _kind = True, "text-regressor"

    def _learn_labels(self, y: Any, documents: int, classes: ArrayLike | None) -> NDArray[Any]:
        if len(y) != documents:
            raise ValueError(f"y has {len(y)} numbers for {documents} documents; there must be one for each")
        self.classes_, self.several_labels_ = np.array(SIDES), False
        return np.asarray(y)


@dataclass(frozen=True)
class NumberExplanation(Shown):
    """Why a text gets its number: `prediction` is `bias` plus the contributions of all reasons and columns."""

    text: str | None
    prediction: float
    bias: float
    reasons: list[TokenReason] = field(repr=False)  # the largest contribution first; positive raises the number
    columns: tuple[TextColumnReason, ...]
    change: float  # that was asked about
    counterfactual: list[str] | None  # fewest tokens whose deletion changes the number by that or more; None: none does
    document: TextExplanation = field(repr=False, compare=False)  # the same numbers, by the places of the tokens

    def view(self, number: int = 1) -> Decision:
        """As people read it, with its number among others."""
        start = "null token", self.bias
        return number_view(self.document.view(number), self.prediction, start, self.change, certified=True)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        more = {"columns": [asdict(one) for one in self.columns]} if self.columns else {}
        reasons = [asdict(reason) for reason in self.reasons]
        known = {"text": self.text, "prediction": self.prediction, "bias": self.bias, "reasons": reasons}
        return {**known, "change": self.change, "counterfactual": self.counterfactual, **more}

    def _headline(self) -> str:
        return self.view().summary()


@dataclass(kw_only=True, eq=False, repr=False)
class TextRegressor(FittedSummary, RegressorMixin, BaseEstimator):
    """Predict a number from texts, and see exactly what each word adds and which deletion would lower it by 1.

    Reach for it where you would take TF-IDF and ridge regression: stars of a review, days of a stay, a price. The model is
    that of `TextClassifier` with the squared loss: a number is the mean plus what words add, each its attention times its value.

    Parameters
    ----------
    text, columns, analyzer, ngram_range, min_df, stop_words, stemmer, sublinear_tf, use_idf : as in `TextClassifier`
        What is read and counted.
    C, null, attention_C, cv, n_jobs, verbose, random_state : as in `TextClassifier`
        How it is fitted; settings are chosen by the squared error on held-out documents.

    Attributes
    ----------
    scorer_ : TextClassifier
        The model of the standardized number, with `vocabulary_`, `values_` and `choice_`. As a classifier it says whether the
        number is above the mean of the training documents, with certificates and `save_explainer`.
    mean_, scale_ : float
        Of the training numbers.

    Examples
    --------
    >>> from whichtoken.estimators import TextRegressor
    >>> texts = [f"{word} {thing}" for thing in ("film", "plot", "cast", "song") for word in ("good", "bad", "great")]
    >>> model = TextRegressor(random_state=0, min_df=1).fit(texts, [4.0, 1.0, 5.0] * 4)
    >>> model.counterfactuals(["great film"])
    [['great']]
    """

    text: str | None = None
    columns: Sequence[str] | None = None
    analyzer: Callable[[str], Sequence[str]] | str | Path | None = None
    ngram_range: tuple[int, int] | Literal["auto"] = (1, 1)
    min_df: int = 2
    stop_words: Sequence[str] = ()
    stemmer: str | None = None
    sublinear_tf: bool = True
    use_idf: bool = True
    C: float | Literal["auto"] = "auto"
    null: float | Literal["auto"] = "auto"
    attention_C: float = 1.0  # noqa: N815  scikit-learn has C
    cv: Any = 5
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Learn from texts, or what else `TextClassifier.fit` takes, and their numbers y (n,)."""
        given: Any = y
        numbers, self.mean_, self.scale_ = standardized(given.compute() if is_partitioned(y) else y, "document")
        self.scorer_ = NumberScorer(**self.get_params()).fit(X, numbers, sample_weight, groups)
        self.choice_, self.scorer_._scaling = self.scorer_.choice_, (self.mean_, self.scale_)
        return self

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON."""
        check_is_fitted(self)
        self.scorer_.save(folder)

    @classmethod
    def load(cls, folder: str | Path | OpenedFolder, analyzer: Callable[[str], Sequence[str]] | None = None) -> Self:
        """Read a model folder; runs no code from it. A function as `analyzer` is needed again."""
        scorer = NumberScorer.load(folder, analyzer)
        if scorer._scaling is None:
            raise UsageError(f"{shown(str(folder))} is damaged: it has no 'scaling'; fit the model again")
        model = cls(**{name: getattr(scorer, name) for name in cls().get_params()})
        (model.mean_, model.scale_), model.scorer_, model.choice_ = scorer._scaling, scorer, scorer.choice_
        return model

    @by_partition
    def predict(self, X: Any) -> Array:
        """Numbers, (n,); of a Dask collection lazy, by partition."""
        check_is_fitted(self)
        return np.asarray(self.mean_ + self.scale_ * self.scorer_.decision_function(X))

    def counterfactuals(self, X: Any, change: float = -1.0) -> list[list[str]]:
        """For each text the fewest tokens whose deletion changes its number by `change` or more; empty if none does."""
        check_is_fitted(self)
        check_change(change)
        texts, beside = self.scorer_._split(X)
        model, counts = count_with_spelled(self.scorer_, texts)
        outputs = (model._outputs(counts) + beside)[:, 0]
        # with this bias the sign of the output says on which side of the wanted number a text is
        bias = np.broadcast_to(model.intercept_ + beside, (len(outputs), 1))[:, 0] - outputs - change / self.scale_
        flips = minimal_deletions(
            counts, model.selection_[:, 0], model.values_[:, 0, 0], bias, model._amounts(counts).data, model.log_null_
        )
        return [[model.token_names_[token] for token in flips.of(row)] for row in range(len(outputs))]

    @by_partition
    def explain(self, X: Any, change: float = -1.0) -> list[NumberExplanation]:
        """Why each text gets its number, and what would change it by `change`; exact, without sampling."""
        check_is_fitted(self)
        table = self.scorer_._table(X)
        if self.scorer_._columns is None:
            table = listed_texts(table)
        found = []
        for why, tokens in zip(self.scorer_.explain(table), self.counterfactuals(table, change), strict=True):
            turn = self.scale_ * (1 if why.label == SIDES[1] else -1)  # reasons of a class speak for it
            beside = tuple(replace(reason, contribution=turn * reason.contribution) for reason in why.column_reasons)
            deleted = [k for k in why.columns.tolist() if why.model.token_names_[k] in tokens]
            document = replace(
                why, contributions=turn * why.contributions, flips=np.array(deleted, np.int64), column_reasons=beside
            )
            number, bias = self.mean_ + turn * why.decision, self.mean_ + turn * why.bias
            reasons, fewest = list(document.reasons), tokens or None
            found.append(NumberExplanation(why.text, number, bias, reasons, beside, change, fewest, document))
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags
