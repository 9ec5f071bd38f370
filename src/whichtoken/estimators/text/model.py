"""A text model as it answers: scores, probabilities and reasons of documents; and as a folder, as JSON or as SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, logit, softmax

from whichtoken.checks import check_choice, check_count, check_range
from whichtoken.datasets.text_pipeline import TextPipeline
from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators.common import SavesExplainer, refuse_several
from whichtoken.estimators.model_folder import OpenedFolder
from whichtoken.estimators.text.blocks import BLOCK
from whichtoken.estimators.text.counting import (
    CallableTokenizer,
    FileTokenizer,
    Tokenizer,
    Vocabulary,
    amounts_of,
    by_partition,
    check_fitted,
    count_documents,
    listed_texts,
    texts_of,
    token_vectors,
    vectors_of_tokens,
    with_words,
)
from whichtoken.estimators.text.learning import Choice, Memory, SpelledScores, decide
from whichtoken.reading import shown
from whichtoken.theory.trained_embeddings.decisions import OUT_OF_REACH, Certificate, certify, minimal_deletions
from whichtoken.theory.trained_embeddings.score_descent import Scores

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.datasets.word_vectors import WordVectors
    from whichtoken.estimators.text.columns import ColumnPart
    from whichtoken.estimators.text.encoder import Embeddings, EncoderPart
    from whichtoken.estimators.text.explainer import SavedExplainer
    from whichtoken.estimators.text.explanation import TextExplanation

Array = NDArray[np.float64]

KIND = "text-classifier"
# parameters that a saved model does not keep: they are part of its tokenizer, or belong to the fit
NOT_STORED = (
    "text", "columns", "analyzer", "vectors", "encoder", "stop_words", "word_pieces", "cv", "class_weight", "n_jobs", "verbose",
    "random_state",
)  # fmt: skip
STATISTICS = ("counts", "shares", "sizes", "documents")  # the last one is not in folders of version 0.2
# names of settings in folders of version 0.2, of which the bundled model is one
RENAMED = {"ngrams": "ngram_range", "least_count": "min_df", "sublinear": "sublinear_tf", "idf": "use_idf"}


@dataclass(frozen=True, eq=False)
class FittedVectors:
    """The vectors of the tokens, and the direction v that makes values out of them."""

    name: str
    sha256: str
    own: NDArray[np.float32]  # of the tokens that the source does not name, in their order, (others, dim)
    named: NDArray[np.float32]  # of those that it names, which a folder need not keep, (named, dim)
    listed: NDArray[np.bool_]  # whether the source names a token, (|S|,)
    direction: Array  # v, (dim, outputs)
    spells: bool = False  # whether the source gives any other word a vector, too

    @property
    def embedding(self) -> NDArray[np.float32]:
        """E, (|S|, dim)."""
        found = np.empty((len(self.listed), self.own.shape[1]), np.float32)
        found[self.listed], found[~self.listed] = self.named, self.own
        return found


class FittedText:
    """What a fit on texts leaves; apart from the parameters, as a dataclass would take these for some."""

    classes_: NDArray[Any]
    _kind = KIND
    _scaling: tuple[float, float] | None = None  # of a regressor, the mean and the deviation of the numbers
    several_labels_: bool = False  # whether a document may have none or several of the classes
    selection_: Array  # (|S|, n_queries)
    values_: Array  # (|S|, n_queries, outputs)
    intercept_: Array  # (outputs,)
    log_null_: float
    choice_: Choice
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    _vocabulary: Vocabulary  # this and `vocabulary_` only after a fit on texts
    vocabulary_: tuple[str, ...]
    _text_column: str | None = None  # name of the column of texts, where a table was fitted
    _token_names: list[str]  # of the columns of a count matrix, where they were given
    _statistics: tuple[Array, ...]  # by token and class: counts, shares of documents; by class, by token: documents
    _memory: Memory | None  # for partial_fit; None with several queries or embeddings
    _encoder: EncoderPart | None = None  # None also where the validation preferred words alone
    _columns: ColumnPart | None = None  # what columns beside the texts add
    _vectors: FittedVectors | None = None  # None also where the validation preferred words alone


@dataclass(kw_only=True, eq=False, repr=False)
class TextModel(FittedText, SavesExplainer):
    """The half of `TextClassifier` that needs no scikit-learn, which takes longer to load than a sentence to explain."""

    text: str | None = None
    columns: Sequence[str] | None = None
    analyzer: Callable[[str], Sequence[str]] | str | Path | None = None
    ngram_range: tuple[int, int] | Literal["auto"] = (1, 1)
    min_df: int = 2
    vectors: str | Path | tuple[Any, Sequence[str]] | None = None
    encoder: Callable[[Sequence[str]], Any] | str | Path | None = None
    stop_words: Sequence[str] = ()
    stemmer: str | None = None
    word_pieces: str | Path | Sequence[str] | None = None
    sublinear_tf: bool = True
    use_idf: bool = True
    C: float | Literal["auto"] = "auto"
    null: float | Literal["auto"] = "auto"
    loss: Literal["auto", "logistic", "squared_hinge"] = "auto"
    attention_C: float = 1.0  # noqa: N815  scikit-learn has C
    n_queries: int = 1
    dim: int | None = None
    max_epochs: int = 8
    batch_size: int = 256
    cv: Any = 5
    min_class: int = 1
    class_weight: dict[Any, float] | str | None = None
    threshold: float | Literal["f1"] | tuple[float, float] | None = None
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None

    @by_partition
    def decision_function(self, X: Any) -> Array:
        """f + b less the threshold: (n,) for two classes, positive for the second; otherwise (n, n_classes)."""
        outputs = self._decisions(X) - self._offset
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    @by_partition
    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, (n,); of several, 0 or 1 for each, (n, n_classes)."""
        if self.several_labels_:
            return (self._decisions(X) > 0).astype(np.int64)
        chosen = decide(self._decisions(X) - self._offset)
        return np.asarray(self.classes_[chosen])

    @by_partition
    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, (n, n_classes), calibrated on the held-out documents of the fit."""
        return self._probabilities(self._decisions(X))

    @by_partition
    def explain(self, X: Any) -> list[TextExplanation]:
        """Why each document gets its label, and what would change it; exact, without sampling.

        With an encoder, what its parts add is exact, what a word does there was found by encoding again without it, and the
        deletion is one that was confirmed so, not proven to be the smallest.
        """
        from whichtoken.estimators.text.explanation import explain

        check_fitted(self)
        refuse_several(self, "explain")
        return explain(self, X)

    def counterfactuals(self, X: Any) -> list[list[str]]:
        """For each document the smallest set of tokens whose deletion changes its label; empty if none does.

        With an encoder, a set that was confirmed by encoding again; a smaller one is not excluded.
        """
        if self._encoder is not None:
            return [why.counterfactual or [] for why in self.explain(X)]
        X, added = self._split(X)
        model, counts = count_with_spelled(self, X)
        found, names = flipping_sets(model, counts, added), model.token_names_
        return [[names[token] for token in tokens] for tokens in found]

    def certificates(self, X: Any) -> pd.DataFrame:
        """For each document, how many tokens must be deleted, inserted or substituted before the label can change.

        -1 says that no number can. Lower bounds for `sublinear_tf=True`, exact numbers otherwise; in both cases fewer changes
        cannot change the label.
        """
        import pandas as pd

        self._refuse_encoder("certificates")
        X, added = self._split(X)
        model, counts = count_with_spelled(self, X)
        if (counts.data != np.floor(counts.data)).any():
            raise ValueError(
                "X holds fractions; a certificate speaks of whole occurrences, so counts must be whole numbers"
            )
        model = _with_worst_words(model)
        counts.resize(counts.shape[0], len(model.values_))
        amounts, most = model._amounts(counts), np.iinfo(np.int64).max
        kinds = [name for name in Certificate.__dataclass_fields__ if name != "decisions"]
        fewest = np.full((counts.shape[0], len(kinds)), most)
        for values, bias, rows in _duels(model, counts, added):
            duel = certify(counts[rows], model.selection_[:, 0], values, bias, amounts[rows].data, model.log_null_)
            numbers = np.stack([getattr(duel, kind) for kind in kinds], axis=1)
            fewest[rows] = np.minimum(fewest[rows], np.where(numbers == OUT_OF_REACH, most, numbers))
        return pd.DataFrame(np.where(fewest == most, OUT_OF_REACH, fewest), columns=kinds)

    def top_words(self, n: int = 10, X: Any = None, language: str | None = "english") -> pd.DataFrame:
        """The words that speak most for each class, with their inflections, counts and, of documents X, an example.

        A summary to read; the exact list is `token_importance`. A row is one stem: `forms` has its tokens, the strongest first,
        `count` how often they occurred in training, `effect` their value times selection weight, in the unit of the strongest
        token. Words of a language are merged by its Snowball stemmer, and English stop words are left out; None merges
        and leaves out none.
        """
        from whichtoken.estimators.text.explanation import top_words

        check_fitted(self)
        refuse_several(self, "top_words")
        check_count("n", n, 1)
        return top_words(self, n, X, language)

    def mistakes(self, X: Any, y: Any, n: int = 5) -> pd.DataFrame:
        """Why documents get wrong labels: of each pair of true and predicted label the tokens that speak most for the latter.

        `documents` is how many got this label, `holding` the share of them that hold the token, `contribution` what it adds to
        the wrong decision on average over all of them, `holding_right` the share of documents of the true label that hold it
        and are labeled rightly: a token that these hold as often explains no mistake and is left out.
        """
        from whichtoken.estimators.text.explanation import mistakes

        check_fitted(self)
        refuse_several(self, "mistakes")
        check_count("n", n, 1)
        return mistakes(self, X, y, n)

    def name_tokens(self, names: Any) -> Self:
        """Name the columns of a count matrix: by a list, or by the fitted vectorizer (`CountVectorizer`) that made it."""
        check_fitted(self)
        found = names.get_feature_names_out() if hasattr(names, "get_feature_names_out") else names
        if hasattr(self, "vocabulary_") or len(found) != len(self.selection_):
            raise ValueError(
                f"{len(found)} names are given; a model of a count matrix takes one for each of its columns"
            )
        self._token_names = [str(name) for name in found]
        return self

    def export(self, kind: Literal["json", "sql"] = "json") -> str:
        """The scorer as JSON, or as a SQL query on a table `token_counts(document, token, count)`."""
        check_fitted(self)
        check_choice("kind", kind, ("json", "sql"))
        refuse_several(self, "export")
        self._refuse_encoder("export")
        self._refuse_columns("export")
        return _as_json(self) if kind == "json" else _as_sql(self)

    def _save_page(self, path: str | Path, examples: Any, **about: Any) -> SavedExplainer:
        from whichtoken.estimators.text.explainer import save_explainer

        check_fitted(self)
        return save_explainer(self, path, examples, **about)

    def save(self, folder: str | Path) -> None:
        """Write a model folder: arrays as safetensors, the rest as JSON; word pieces and tokenizers files travel with it."""
        check_fitted(self)
        parameters: dict[str, Any] = {
            "settings": {
                name: getattr(self, name) for name in signature(TextModel).parameters if name not in NOT_STORED
            },
            "classes": stored.classes_as_json(self.classes_, several=self.several_labels_),
            "choice": {**asdict(self.choice_), "C": str(self.choice_.C)},
            # may be -inf, which JSON cannot say
            "log_null": str(self.log_null_),
            "tokenizer": _describe(self._vocabulary.tokenizer) if hasattr(self, "_vocabulary") else None,
        }
        arrays = {"selection": self.selection_, "values": self.values_, "bias": self.intercept_}
        arrays |= zip(STATISTICS, self._statistics, strict=False)
        if self._memory is not None:
            arrays |= {"precision": self._memory.precision, "mean_attention": self._memory.mean}
        names = self.token_names_
        if self._vectors is not None:
            # words that were never counted are alike but for their vectors, so one row stands for all of them
            kept, counted = self._vectors, self._statistics[0].any(axis=1)
            seen = np.atleast_1d(counted | ~kept.listed)
            names = [name for name, stays in zip(names, seen, strict=True) if stays]
            rows = np.append(np.flatnonzero(seen), np.argmin(seen))
            arrays = {name: array[_rows_of(name, array, rows, len(seen))] for name, array in arrays.items()}
            arrays["direction"] = kept.direction
            parameters["vectors"] = {"name": kept.name, "sha256": kept.sha256}
        if self._columns is not None:
            beside = self._columns
            arrays |= {"column_means": beside.means, "column_scales": beside.scales, "column_weights": beside.weights}
            parameters["columns"] = {"text": beside.text, **beside.encoding.as_json()}
        if self._encoder is not None:
            part = self._encoder
            arrays |= {"encoder_weights": part.weights, "encoder_bias": part.bias}
            described = {"name": part.embeddings.name, "sha256": part.embeddings.sha256, "share": part.share}
            parameters["encoder"] = {**described, "dim": len(part.weights)}
        if self._text_column is not None:
            parameters["text_column"] = self._text_column
        if self._scaling is not None:
            parameters["scaling"] = list(self._scaling)
        stored.save_model(folder, self._kind, {**parameters, "tokens": list(names)}, arrays)

    @classmethod
    def load(
        cls, folder: str | Path | OpenedFolder, analyzer: Callable[[str], Sequence[str]] | None = None, vectors: Any = None,
        encoder: Any = None,
    ) -> Self:  # fmt: skip
        """Read a model folder; runs no code from it. Functions (`analyzer`, `encoder`) and arrays of vectors are needed again.

        Vectors and encoders are not part of the folder: they are read where they were, or from these, and must be the same.
        """
        _, parameters, tensors = stored.load_model(folder, cls._kind)
        embeddings = _same_source(source_encoder, "encoder", folder, parameters.get("encoder"), encoder)
        source = _same_source(source_vectors, "vectors", folder, parameters.get("vectors"), vectors)
        if analyzer is None and parameters.get("tokenizer") == {"kind": "callable"}:
            raise UsageError(
                f"{shown(str(folder))} was fitted with an analyzer function, which cannot be saved; load it with analyzer="
            )
        from whichtoken.estimators.schemas import TextParameters, check_names, stored_settings

        with stored.stored_fields(folder):
            parts = TextParameters.of(parameters)
            settings = stored_settings(TextModel, NOT_STORED).of(_renamed_settings(parts.settings), "settings")
            model = cls(**dict(settings))
            model._check_parameters()
            model.classes_ = stored.classes_from_json(dict(parts.classes))
            model._scaling, model.several_labels_ = parts.scaling, parts.classes.several
            model._text_column = parts.text_column
            model.choice_, model.log_null_ = Choice(**dict(parts.choice)), parts.log_null
            if np.isnan(model.log_null_) or model.log_null_ == np.inf:
                raise UsageError(f"'log_null' is {model.log_null_}, not a finite number or -inf")
            names = tuple(parts.tokens)
            dim = 0 if source is None else source.dim
            if parts.encoder is not None and embeddings is not None:
                model._encoder = _stored_encoder(model, parts.encoder, embeddings, tensors)
            if parts.columns is not None:
                model._columns = _stored_columns(model, parts.columns, tensors)
                model.text = model._columns.text
                model.columns = list(model._columns.encoding.columns)
            _set_arrays(model, len(names) + (source is not None), tensors, dim)
            if parts.tokenizer is None:
                model.n_features_in_ = len(names)
                if names != tuple(map(str, range(len(names)))):
                    model.feature_names_in_ = np.array(names, dtype=object)
                return model
            check_names("tokens", parts.tokens, len(names))
            tokenizer = _rebuild(parts.tokenizer, analyzer, model)
            if not isinstance(tokenizer, FileTokenizer) and names != _sorted_names(names):
                raise UsageError("'tokens' are not in their order")
            if source is not None:
                names = add_words(model, tokenizer, names, source)
            model._vocabulary, model.vocabulary_ = Vocabulary(tokenizer, names), names
            return model

    @property
    def token_names_(self) -> Sequence[str]:
        """Names of the columns: the vocabulary, the names of a DataFrame, or numbers."""
        if hasattr(self, "vocabulary_"):
            return self.vocabulary_
        if hasattr(self, "_token_names"):
            return self._token_names
        return list(getattr(self, "feature_names_in_", map(str, range(len(self.selection_)))))

    @property
    def scores_(self) -> Scores:
        """The trained model."""
        parts = self.selection_, self.values_, self.intercept_, self.log_null_
        if self._columns is not None:
            return SpelledScores(*parts, self._columns.weights)
        return Scores(*parts) if self._vectors is None else SpelledScores(*parts, self._vectors.direction)

    @property
    def decision_weights_(self) -> Array:
        """Factors of the probabilities, (n_classes,): the label is that of the largest product, 1 for all by default."""
        if self.choice_.threshold is not None:
            return np.array([self.choice_.threshold, 1 - self.choice_.threshold])
        return np.exp(self.choice_.log_weights) if self.choice_.log_weights else np.ones(len(self.classes_))

    @property
    def _shifts(self) -> Array:
        """What the weights of the classes add to the outputs, (n_classes,)."""
        return np.array(self.choice_.log_weights or [0.0] * len(self.classes_))

    @property
    def _offset(self) -> float:
        """The output of two classes above which the second is chosen."""
        if self.choice_.threshold is None:
            return 0.0
        return float((logit(self.choice_.threshold) + self._shifts[1] - self._shifts[0]) / self.choice_.temperature)

    @property
    def _decision_bias(self) -> Array:
        return self.intercept_ - self._offset

    def _log_weights(self, documents: Any) -> tuple[float, ...]:
        """Logarithms of the weights of the classes, for which the probabilities are corrected."""
        if self.class_weight is None:
            return ()
        sizes = np.maximum(np.bincount(documents.labels, minlength=len(self.classes_)), 1)
        given = self.class_weight if isinstance(self.class_weight, dict) else {}
        weights = np.array([given.get(name, 1.0) for name in self.classes_.tolist()])
        return tuple(np.log(np.maximum(weights if given else 1 / sizes, 1e-300)).tolist())

    def _check_threshold(self) -> None:
        given = self.threshold
        costs = (
            isinstance(given, list | tuple)
            and len(given) == 2
            and all(isinstance(c, float | int) and 0 < c < np.inf for c in given)
        )
        share = isinstance(given, float | int) and not isinstance(given, bool) and 0 < given < 1
        if not (given is None or given == "f1" or costs or share):
            wanted = "a probability between 0 and 1, 'f1', or two costs of errors, such as 1 and 5"
            raise UsageError(f"{{threshold}} must be {wanted}", threshold=given)

    def _check_parameters(self) -> None:
        self._check_threshold()
        optional = () if self.dim is None else ("dim",)
        for name in ("min_df", "n_queries", "max_epochs", "batch_size", "min_class", *optional):
            check_count(name, getattr(self, name), 1)
        if self.ngram_range not in ((1, 1), (1, 2), (1, 3), "auto"):
            raise UsageError("{ngram_range} must be (1, 1), (1, 2), (1, 3) or 'auto'", ngram_range=self.ngram_range)
        if isinstance(self.cv, float | int):
            check_count("cv", self.cv, 2)
        if self.vectors is not None and (self.n_queries > 1 or self.dim is not None):
            raise UsageError(f"vectors are for one query and dim=None, not n_queries={self.n_queries}, dim={self.dim}")
        if self.columns is not None:
            if isinstance(self.columns, str) or not self.columns or len(set(self.columns)) < len(self.columns):
                raise UsageError("{columns} must be a list of different names of columns", columns=self.columns)
            if self.text in self.columns:
                raise UsageError(f"{{text}} is also one of columns={list(self.columns)}", text=self.text)
            if self.vectors is not None or self.encoder is not None or self.n_queries > 1 or self.dim is not None:
                raise UsageError("columns are for words alone and one query; leave vectors, encoder, n_queries and dim")
        check_choice("loss", self.loss, ("auto", "logistic", "squared_hinge"))
        check_range("attention_C", self.attention_C, 0.0, np.inf, include_low=True)
        for name in ("C", "null"):
            value = getattr(self, name)
            if not isinstance(value, str):
                check_range(name, value, 0.0, np.inf, include_low=name == "null")
            elif value != "auto":
                raise ValueError(f"{name}={value!r} must be 'auto' or a number above 0")

    @property
    def _log_counts(self) -> bool:
        return self.sublinear_tf and self.dim is None

    def _amounts(self, counts: sparse.csr_array) -> sparse.csr_array:
        """What enters the softmax in place of the counts."""
        return amounts_of(counts, self._log_counts)

    def _refuse_encoder(self, what: str) -> None:
        if self._encoder is not None:
            raise UsageError(
                f"{what} is for words alone, and this model has an encoder (share {self._encoder.share:g})"
            )

    def _refuse_columns(self, what: str) -> None:
        if self._columns is not None:
            raise UsageError(f"{what} is for words alone, and this model has columns: {', '.join(self.columns or ())}")

    def _table(self, X: Any) -> Any:
        """X; of a model with columns as a `TextTable`."""
        check_fitted(self)
        if self._columns is None:
            return X
        from whichtoken.estimators.text.columns import TextTable

        return TextTable.of(X, self._columns.encoding.columns, self._columns.text)

    def _split(self, X: Any) -> tuple[Any, Any]:
        """The texts of X and what its columns add to the outputs, (n, outputs) or 0."""
        table = self._table(X)
        if self._columns is None:
            return X, 0.0
        return table.texts, self._columns.outputs(table.columns)

    def _decisions(self, X: Any) -> Array:
        """Outputs of documents, the part of an encoder or of columns included, (n, outputs)."""
        X, added = self._split(X)
        if self._encoder is not None:
            X = listed_texts(X)
            added = self._encoder.outputs(X)
        model, counts = count_with_spelled(self, X)
        return np.asarray(model._outputs(counts) + added)

    def _outputs(self, counts: sparse.csr_array) -> Array:
        return self.scores_.outputs(self._amounts(counts))

    def _probabilities(self, outputs: Array) -> Array:
        scaled, shifts = self.choice_.temperature * outputs, self._shifts
        if self.several_labels_:
            return np.asarray(expit(scaled))
        if len(self.classes_) == 2:
            scaled = scaled - (shifts[1] - shifts[0])
            return np.hstack([expit(-scaled), expit(scaled)])
        return np.asarray(softmax(scaled - shifts, axis=1))


def _renamed_settings(settings: Any) -> Any:
    """Settings under their names of today, of a folder that version 0.2 may have written."""
    if not isinstance(settings, dict):
        return settings
    found = {"threshold": None} | {RENAMED.get(name, name): value for name, value in settings.items()}
    return found | ({"ngram_range": (1, settings["ngrams"])} if "ngrams" in settings else {})


def source_vectors(source: Any) -> WordVectors:
    """Read the vectors that a parameter names; what reads them is only loaded where there are some."""
    from whichtoken.datasets.word_vectors import read_vectors

    return read_vectors(source)


def source_encoder(source: Any) -> Embeddings:
    """The encoder that a parameter names, likewise."""
    from whichtoken.estimators.text.encoder import Embeddings

    return Embeddings.of(source)


def _same_source(read: Callable[[Any], Any], what: str, folder: Any, described: Any, given: Any) -> Any:
    """The vectors or the encoder that a model was fitted with, if it was; refuses others."""
    if described is None:
        return None
    name, wanted = (str(described.get(key)) for key in ("name", "sha256")) if isinstance(described, dict) else ("", "")
    place, known = shown(str(folder)), shown(name) or ("an array" if what == "vectors" else "a function")
    if given is None and not name:
        raise UsageError(f"{place} was fitted with {what} of {known}, which cannot be saved; load it with {what}=")
    try:
        found = read(name if given is None else given)
    except UsageError as error:
        raise UsageError(
            f"{place} was fitted with {what} of {known}, not found now ({error}); load it with {what}="
        ) from error
    if found.sha256 != wanted:
        raise UsageError(
            f"{place} was fitted with {what} of {known} that have since changed, or with others: sha256"
            f" {shown(wanted[:12]) or 'of no file'}, now {found.sha256[:12] or 'of no file'}"
        )
    return found


def _stored_encoder(model: TextModel, described: Any, embeddings: Embeddings, tensors: dict[str, Any]) -> EncoderPart:
    from whichtoken.estimators.text.encoder import EncoderPart

    outputs = stored.scores(model.classes_)
    shapes = {"encoder_weights": (described.dim, outputs), "encoder_bias": (outputs,)}
    weights, bias = stored.arrays({name: tensors.pop(name) for name in shapes}, shapes)
    return EncoderPart(embeddings, weights, bias, described.share)


def _outputs_of(model: TextModel) -> int:
    return stored.scores(model.classes_, model.several_labels_)


def _stored_columns(model: TextModel, described: dict[str, Any], tensors: dict[str, Any]) -> ColumnPart:
    from whichtoken.estimators.columns import ColumnEncoding
    from whichtoken.estimators.text.columns import ColumnPart

    encoding = ColumnEncoding.from_json({name: part for name, part in described.items() if name != "text"})
    many = len(encoding.names)
    shapes = {"means": (many,), "scales": (many,), "weights": (many, _outputs_of(model))}
    found = {f"column_{name}": shape for name, shape in shapes.items()}
    means, scales, weights = stored.arrays({name: tensors.pop(name) for name in found}, found)
    if not (scales > 0).all():
        raise UsageError("array 'column_scales' holds numbers that are not above 0")
    return ColumnPart(encoding, means, scales, weights, described.get("text"))


def _rows_of(name: str, array: Array, rows: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    """Rows of an array that belong to some tokens, and those after the tokens."""
    if name in ("bias", "sizes"):
        return np.arange(len(array))
    return np.concatenate([rows, np.arange(tokens, len(array))])


def add_words(model: TextModel, tokenizer: Tokenizer, names: tuple[str, ...], source: WordVectors) -> tuple[str, ...]:
    """Give the words that have vectors but were never counted what the last row has, and the values of their vectors."""
    assert model._vectors is not None
    known, means = token_vectors(tokenizer, source)
    others = [name for name in names if name not in known]
    every = with_words(others, known)
    places = {name: place for place, name in enumerate(every)}
    rows, listed = np.full(len(every), len(names)), np.ones(len(every), bool)
    rows[[places[name] for name in names]] = np.arange(len(names))
    listed[[places[name] for name in others]] = False
    direction = model._vectors.direction
    own = vectors_of_tokens(tokenizer, others, source)
    spells = source.spell is not None
    model._vectors = FittedVectors(source.name, source.sha256, own, means, listed, direction, spells)
    model.selection_, model.values_ = model.selection_[rows], model.values_[rows]
    unseen = rows == len(names)
    model.values_[unseen, 0] = (means @ direction.astype(np.float32))[unseen[listed]]
    counts, shares, sizes, *documents = model._statistics
    kept = [table[rows] * ~unseen[:, None] for table in (counts, shares)]
    model._statistics = (*kept, sizes, *(number[rows] * ~unseen for number in documents))
    if model._memory is not None:
        precision, mean = model._memory.precision, model._memory.mean
        tail = slice(len(names) + 1, None)
        precision = np.concatenate([precision[rows], precision[tail]])
        model._memory = Memory(precision, np.concatenate([mean[rows] * ~unseen, mean[tail]]))
    return every


def count_with_spelled(model: TextModel, X: Any) -> tuple[TextModel, sparse.csr_array]:
    """Counts of documents, and the model with a value for each of their words that its vectors spell."""
    if model._vectors is None or not model._vectors.spells:
        return model, count_documents(model, X)
    X = X if hasattr(X, "__len__") else list(X)  # a stream is read once
    model = with_words_of(model, texts_of(X) or ())
    return model, count_documents(model, X)


def with_words_of(model: TextModel, texts: Iterable[str]) -> TextModel:
    """The model with a value for each word of the texts that it does not know and that its vectors spell.

    The values are kept within those of the unseen words that the vectors name, so that no made-up word says more than these.
    """
    kept = model._vectors
    if kept is None or not kept.spells:
        return model
    tokenizer, known = model._vocabulary.tokenizer, model._vocabulary.table.tokens
    names = [name for name in tokenizer.tokens(texts).names if name not in known]
    described = {"name": kept.name, "sha256": kept.sha256}
    source = _same_source(source_vectors, "vectors", "the model", described, None) if names else None
    unseen = _unseen_words(model)
    if source is None or not unseen.size:
        return model
    embedding, of_unseen = vectors_of_tokens(tokenizer, names, source), model.values_[unseen, 0]
    some = np.flatnonzero(embedding.any(axis=1))
    values = embedding[some].astype(np.float64) @ kept.direction
    more = _with_values(model, np.clip(values, of_unseen.min(axis=0), of_unseen.max(axis=0)))
    more.vocabulary_ = (*model.vocabulary_, *(names[k] for k in some.tolist()))
    more._vocabulary = Vocabulary(tokenizer, more.vocabulary_)
    return more


def _unseen_words(model: TextModel) -> NDArray[np.int64]:
    """Rows of the words that vectors name and that were never counted; they have the same selection score."""
    assert model._vectors is not None
    return np.flatnonzero(model._vectors.listed & ~model._statistics[0].any(axis=1))


def _with_values(model: TextModel, values: Array) -> TextModel:
    """The model with more unseen words, of these values (words, outputs)."""
    more, rows = copy(model), np.full(len(values), _unseen_words(model)[0])
    more.values_ = np.concatenate([model.values_, values[:, None]])
    more.selection_ = np.concatenate([model.selection_, model.selection_[rows]])
    return more


def _with_worst_words(model: TextModel) -> TextModel:
    """The model with a word for each class that speaks as much for it, and as little for others, as one made of pieces can."""
    if model._vectors is None or not model._vectors.spells or not (unseen := _unseen_words(model)).size:
        return model
    values = model.values_[unseen, 0]
    # two classes have one output, whose worst words have names
    most = np.eye(values.shape[1], dtype=bool)
    return _with_values(model, np.where(most, values.max(axis=0), values.min(axis=0)))


def _set_arrays(model: TextModel, tokens: int, tensors: dict[str, NDArray[Any]], dim: int = 0) -> None:
    classes, queries = len(model.classes_) + model.several_labels_, model.n_queries
    outputs = _outputs_of(model)
    shapes = {
        "selection": (tokens, queries),
        "values": (tokens, queries, outputs),
        "bias": (outputs,),
        "counts": (tokens, classes),
        "shares": (tokens, classes),
        "sizes": (classes,),
    }
    if "documents" in tensors:
        shapes["documents"] = (tokens,)
    known = len(shapes) - 3
    if queries == 1 and model.dim is None:
        width = tokens + dim + (0 if model._columns is None else len(model._columns.means))
        shapes |= {"precision": (width + 1, outputs), "mean_attention": (width,)}
    if dim:
        direction = tensors.pop("direction", np.empty(0))
        (direction,) = stored.arrays({"direction": direction}, {"direction": (dim, outputs)})
        none = np.empty((0, dim), np.float32)
        model._vectors = FittedVectors("", "", none, none, np.empty(0, bool), direction)
    model.selection_, model.values_, model.intercept_, *statistics = stored.arrays(tensors, shapes)
    if any((array[:tokens] < 0).any() for array in statistics):
        raise UsageError(
            "arrays 'counts', 'shares', 'sizes', 'documents', 'precision' and 'mean_attention' hold numbers below 0"
        )
    model._statistics = tuple(statistics[:known])
    model._memory = Memory(*statistics[known:]) if len(statistics) > known else None
    if model._memory is not None and not model._memory.precision.all():
        raise UsageError("array 'precision' holds 0")


def _sorted_names(names: Sequence[str]) -> tuple[str, ...]:
    """As a fit leaves them: shorter n-grams first, of at most three tokens, then by the alphabet."""
    return tuple(sorted((name for name in names if name.count(" ") < 3), key=lambda name: (name.count(" "), name)))


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    match tokenizer:
        case TextPipeline(stop_words=stop_words, stemmer=stemmer, spelling=pieces, words=words):
            return {
                "kind": "words", "version": words, "stop_words": list(stop_words), "stemmer": stemmer,
                "word_pieces": list(pieces),
            }  # fmt: skip
        case FileTokenizer(json):
            return {"kind": "file", "json": json}
        case _:
            return {"kind": "callable"}


def _rebuild(described: Any, analyzer: Callable[[str], Sequence[str]] | None, model: TextModel) -> Tokenizer:
    match described.kind:
        case "words":
            model.stop_words, model.word_pieces = described.stop_words, described.word_pieces or None
            if described.stemmer != model.stemmer:
                raise UsageError("'stemmer' is not the same in 'settings' and 'tokenizer'")
            return TextPipeline(
                model.word_pieces, model.stop_words, stemmer=model.stemmer, least_count=1, words=described.version
            )
        case "file":
            return FileTokenizer.parse(described.json_)
    assert analyzer is not None
    model.analyzer = analyzer
    return CallableTokenizer(analyzer)


def _as_json(model: TextModel) -> str:
    """Everything that is needed to compute a decision from counts, with the formula in words."""
    highest = model.selection_.max(axis=0)
    weights = np.exp(model.selection_ - highest)
    record = {
        "classes": model.classes_.tolist(),
        "amount": "log2(1 + count)" if model._log_counts else "count",
        "decision": (
            "for each query: sum(amount * weight * value) / (null + sum(amount * weight)) over the tokens of a document, or 0 "
            "without any; add the queries and the bias; two classes: the second if positive, otherwise the class of the "
            "largest output"
            + (
                f"; positive here means above {model._offset!r}, where the probability is the threshold"
                if model._offset
                else ""
            )
        ),
        "temperature": model.choice_.temperature,
        "class_shifts": model._shifts.tolist(),
        "offset": model._offset,
        "null": np.exp(model.log_null_ - highest).tolist(),
        "bias": model.intercept_.tolist(),
        "tokens": {
            name: {"weight": weights[s].tolist(), "value": model.values_[s].tolist()}
            for s, name in enumerate(model.token_names_)
        },
    }
    return json.dumps(record, ensure_ascii=False)


def _as_sql(model: TextModel) -> str:
    """A query on `token_counts(document, token, count)` that gives `document, decision`; two classes and one query only.

    Standard SQL (tested with SQLite). A document without known tokens is not in the result: its decision is the bias.
    """
    if len(model.classes_) > 2 or model.selection_.shape[1] > 1:
        raise ValueError(
            f"SQL is written for two classes and one query; this model has {len(model.classes_)} classes and "
            f"{model.selection_.shape[1]} queries, use kind='json'"
        )
    weights = np.exp(model.selection_[:, 0] - model.selection_.max())
    null = float(np.exp(model.log_null_ - model.selection_.max()))
    rows = ",\n".join(
        f"('{name.replace(chr(39), chr(39) * 2)}', {weight!r}, {value!r})"
        for name, weight, value in zip(
            model.token_names_, weights.tolist(), model.values_[:, 0, 0].tolist(), strict=True
        )
    )
    amount = "LN(1 + count) / LN(2)" if model._log_counts else "count"
    return (
        f"WITH scores(token, weight, value) AS (VALUES\n{rows}\n),\n"
        f"shares AS (SELECT document, {amount} * weight AS share, value FROM token_counts JOIN scores USING (token))\n"
        f"SELECT document, SUM(share * value) / ({null!r} + SUM(share)) + ({float(model._decision_bias[0])!r}) AS decision\n"
        "FROM shares GROUP BY document"
    )


def flipping_sets(model: TextModel, counts: sparse.csr_array, added: Any = 0.0) -> list[NDArray[np.int64]]:
    """Columns of the smallest set of tokens of each document whose deletion changes its label; empty if none does.

    `added` are outputs (n, outputs) that no deletion changes.
    """
    amounts = model._amounts(counts)
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * counts.shape[0]
    for values, bias, rows in _duels(model, counts, added):
        flips = minimal_deletions(
            counts[rows], model.selection_[:, 0], values, bias, amounts[rows].data, model.log_null_
        )
        for place, row in enumerate(rows):
            size = flips.sizes[place]
            if size != OUT_OF_REACH and (not len(found[row]) or size < len(found[row])):
                found[row] = flips.of(place)
    return found


def _duels(
    model: TextModel, counts: sparse.csr_array, added: Any = 0.0
) -> list[tuple[Array, Array, NDArray[np.int64]]]:
    """Values and biases (n,) of the winner against each rival, and the documents of the duel, some at a time."""
    refuse_several(model, "a counterfactual or a certificate")
    if model.selection_.shape[1] > 1:
        raise ValueError(f"n_queries={model.n_queries}: counterfactuals are exact for one query only")
    values = model.values_[:, 0]
    biases = np.broadcast_to(model._decision_bias + added, (counts.shape[0], values.shape[1]))
    duels = []
    if values.shape[1] == 1:
        duels.append((values[:, 0], biases[:, 0], np.arange(counts.shape[0])))
    else:
        winner = decide(model._outputs(counts) + added)
        for k in np.unique(winner):
            for rival in range(values.shape[1]):
                if rival != k:
                    duels.append(
                        (values[:, k] - values[:, rival], biases[:, k] - biases[:, rival], np.flatnonzero(winner == k))
                    )
    return [(v, b[part], part) for v, b, rows in duels for part in np.array_split(rows, range(BLOCK, len(rows), BLOCK))]
