"""Texts as people hold them: the one column of a table of any library is as good as a list; and the scorer as SQL."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline

import datasets
from whichtoken import TextClassifier

TEXTS = [f"a {word} {thing}" for thing in ("film", "story", "plot", "cast", "song") for word in ("good", "bad")]
LABELS = ["+", "-"] * 5
TABLE = {"text": TEXTS}
BESIDE = {"n": range(10), "text": TEXTS}
COLUMNS = {
    "array of objects": np.array(TEXTS, object)[:, None],
    "array of texts": np.array(TEXTS)[:, None],
    "1-D array": np.array(TEXTS, object),
    "pandas": pd.DataFrame(TABLE),
    "pandas objects": pd.DataFrame(TABLE, dtype=object),
    "pandas series": pd.Series(TEXTS, index=range(10, 20)),
    "polars": pl.DataFrame(TABLE),
    "polars series": pl.Series(TEXTS),
    "polars lazy frame": pl.LazyFrame(TABLE),
    "polars categories": pl.DataFrame(TABLE).cast(pl.Categorical),
    "arrow table": pa.table(TABLE),
    "arrow batch": pa.record_batch(TABLE),
    "arrow column": pa.chunked_array([TEXTS[:4], TEXTS[4:]]),
    "arrow array": pa.array(TEXTS),
    "arrow dictionary": pa.table({"text": pa.array(TEXTS).dictionary_encode()}),
    "datasets": datasets.Dataset.from_dict(TABLE),
    "datasets column": datasets.Dataset.from_dict(BESIDE)["text"],
}


@pytest.fixture(scope="module")
def listed():
    return TextClassifier(random_state=0).fit(TEXTS, LABELS)


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_of_texts_is_a_list_of_texts(kind, listed):
    X = COLUMNS[kind]
    model = TextClassifier(random_state=0).fit(X, LABELS)
    np.testing.assert_array_equal(model.predict_proba(X), listed.predict_proba(TEXTS))
    assert [why.as_json() for why in model.explain(X)] == [why.as_json() for why in listed.explain(TEXTS)]
    assert model.counterfactuals(X) == listed.counterfactuals(TEXTS)
    assert model.top_words(2, X).equals(listed.top_words(2, TEXTS))


@pytest.mark.parametrize(
    "labels", [pl.Series(LABELS), pa.chunked_array([LABELS]), pd.Series(LABELS, index=range(5, 15))]
)
def test_labels_come_from_any_column(labels, listed):
    model = TextClassifier(random_state=0).fit(pl.DataFrame(TABLE), labels)
    np.testing.assert_array_equal(model.values_, listed.values_)


@pytest.mark.parametrize("frame", [pd.DataFrame(BESIDE), pl.DataFrame(BESIDE)])
def test_a_column_transformer_hands_over_one_column(frame, listed):
    chosen = ColumnTransformer([("words", "passthrough", ["text"])])
    model = make_pipeline(chosen, TextClassifier(random_state=0)).fit(frame, LABELS)
    np.testing.assert_array_equal(model.predict_proba(frame), listed.predict_proba(TEXTS))


@pytest.mark.parametrize("table", [pd.DataFrame(BESIDE), pl.DataFrame(BESIDE), pa.table(BESIDE)])
def test_several_columns_are_not_guessed(table):
    with pytest.raises(
        ValueError, match=r"X has 2 columns \(n, text\); choose the one with the texts, such as X\[\['text'"
    ):
        TextClassifier().fit(table, LABELS)


def test_a_renamed_column_is_named(listed, tmp_path):
    model = TextClassifier(random_state=0).fit(pd.DataFrame(TABLE), LABELS)
    model.save(tmp_path / "m")
    for one in (model, TextClassifier.load(tmp_path / "m")):
        with pytest.raises(ValueError, match="X has the column 'review'; the model was fitted on 'text'"):
            one.predict(pl.DataFrame({"review": TEXTS}))
        np.testing.assert_array_equal(one.predict(TEXTS), listed.predict(TEXTS))


def test_a_gap_in_a_column_is_named():
    with pytest.raises(ValueError, match="text 3 is of type NoneType; texts must be strings"):
        TextClassifier().fit(pl.DataFrame({"text": [*TEXTS[:3], None, *TEXTS[4:]]}), LABELS)


def in_duckdb(model, texts):
    """Labels by the exported query; a document without known tokens is not in its result and has the bias alone."""
    counts = model._vocabulary.count(texts).tocoo()
    names = np.array(model.token_names_, dtype=object)
    table = pa.table(
        {
            "document": counts.row.astype(np.int64),
            "token": names[counts.col].tolist(),
            "count": counts.data.astype(np.int64),
        }
    )
    with duckdb.connect() as database:
        database.register("token_counts", table)
        rows, decisions = zip(*database.sql(model.export("sql")).fetchall(), strict=True)
    found = np.full(len(texts), float(model._decision_bias[0]))
    found[list(rows)] = decisions
    return found


def sentences(count, seed):
    """Texts of words with a distribution like that of a language."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 30, count)
    words = np.minimum(rng.zipf(1.3, lengths.sum()), 5000)
    return [" ".join(f"w{k}" for k in part) for part in np.split(words, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_the_exported_sql_decides_in_duckdb_as_python_does(count, threshold):
    training = sentences(400, 0)
    labels = [int("w3" in text.split()) for text in training]
    model = TextClassifier(random_state=0, threshold=threshold).fit(training, labels)
    texts = sentences(count, 1)
    found, expected = in_duckdb(model, texts), model.decision_function(texts)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found > 0, model.predict(texts) == 1)
    assert 0 < (found > 0).mean() < 1
