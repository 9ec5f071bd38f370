"""Columns beside the texts: they add to the decision, and what is said of the words is exact given the columns."""

import itertools
import warnings
from copy import deepcopy

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from whichtoken import TextClassifier
from whichtoken.errors import UsageError

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


def cases(count=200, seed=0):
    """Words, a number and a category that all speak for the label."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(count)]
    age, city = rng.normal(50, 10, count), rng.choice(["bonn", "oslo", "rome"], count)
    score = [text.split().count("alpha") - text.split().count("beta") for text in texts]
    score = np.array(score) + 0.1 * (age - 50) + 1.5 * (city == "rome") - 0.5 + rng.logistic(size=count) / 2
    frame = pd.DataFrame({"note": texts, "age": age, "city": city})
    frame.loc[3, "age"], frame.loc[4, "city"] = np.nan, None
    return frame, np.where(score > 0, "yes", "no"), np.where(score > 1, "high", np.where(score < -1, "low", "middle"))


@pytest.fixture(scope="module")
def frame():
    return cases()


@pytest.fixture(scope="module")
def model(frame):
    return TextClassifier(columns=["age", "city"], sublinear_tf=False, random_state=0).fit(frame[0], frame[1])


def test_columns_help_where_they_matter(frame, model):
    fresh, labels, _ = cases(seed=1)
    words = TextClassifier(random_state=0).fit(frame[0]["note"], frame[1])
    assert model.score(fresh, labels) > words.score(fresh["note"], labels) + 0.05


@pytest.mark.parametrize("labels", [1, 2], ids=["two classes", "three classes"])
def test_the_parts_add_up_to_the_decision(frame, labels):
    y = frame[labels]
    model = TextClassifier(columns=["city", "age"], random_state=0).fit(frame[0], y)
    decisions = model.decision_function(frame[0][:9])
    for why, row in zip(model.explain(frame[0][:9]), decisions, strict=True):
        columns = sum(reason.contribution for reason in why.column_reasons)
        assert why.decision == pytest.approx(why.bias + why.contributions.sum() + columns, abs=1e-12)
        assert why.decision == pytest.approx(np.abs(row) if row.ndim == 0 else row.max(), abs=1e-12)
        assert [column["column"] for column in why.as_json()["columns"]] == [r.column for r in why.column_reasons]


def edits(texts, deleted):
    return " ".join(word for word in texts.split() if word not in deleted)


def labels_of(model, frame, texts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a text may lose all its words
        return model.predict(pd.concat([frame] * len(texts)).assign(note=texts))


def test_smallest_deletions_are_those_of_a_search_through_all(frame, model):
    for place in range(12):
        row = frame[0].iloc[[place]]
        text, label = row["note"].item(), model.predict(row).item()
        distinct = sorted(set(text.split()))
        sets = [some for size in range(1, len(distinct) + 1) for some in itertools.combinations(distinct, size)]
        flips = labels_of(model, row, [edits(text, some) for some in sets]) != label
        least = min((len(some) for some, flip in zip(sets, flips, strict=True) if flip), default=0)
        (found,) = model.counterfactuals(row)
        assert len(found) == least
        assert not found or labels_of(model, row, [edits(text, found)]).item() != label


def test_certified_insertions_and_deletions_are_those_of_a_search(frame, model):
    certified = model.certificates(frame[0][:12])
    for place in range(12):
        row = frame[0].iloc[[place]]
        text, label = row["note"].item(), model.predict(row).item()
        for kind, change in (
            ("insertions", lambda text, word, n: [text + f" {word}" * n]),
            ("deletions", lambda text, word, n: [
                " ".join(kept) for kept in itertools.combinations(text.split(), len(text.split()) - n)
            ]),
        ):  # fmt: skip
            fewest = -1
            for n in range(1, 6):
                tried = [new for word in WORDS for new in change(text, word, n)]
                if (labels_of(model, row, tried) != label).any():
                    fewest = n
                    break
            assert certified[kind][place] == fewest or (fewest == -1 and certified[kind][place] > 5), (place, kind)


def test_a_saved_folder_reads_tables(frame, model, tmp_path):
    model.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(frame[0]), model.predict_proba(frame[0]))
    again = deepcopy(model).partial_fit(*frame[:2])
    np.testing.assert_array_equal(loaded.partial_fit(*frame[:2]).predict_proba(frame[0]), again.predict_proba(frame[0]))


def test_tables_of_polars_give_the_same(frame, model):
    table = pl.from_pandas(frame[0])
    np.testing.assert_array_equal(model.predict_proba(table), model.predict_proba(frame[0]))
    assert model.predict(table[3:4]).tolist() == model.predict(frame[0][3:4]).tolist()  # a row with a gap alone


def test_a_dask_frame_is_answered_by_partition(frame, model):
    dask = pytest.importorskip("dask.dataframe")
    parts = dask.from_pandas(frame[0], npartitions=3)
    labels = model.predict(parts[parts["age"] > 60])  # a partition may become empty
    wanted = frame[0][frame[0]["age"] > 60]
    assert labels.compute(scheduler="sync").tolist() == model.predict(wanted).tolist()
    learned = clone(model).fit(parts, frame[1])
    assert np.array_equal(learned.decision_function(frame[0]), model.decision_function(frame[0]))


def test_a_column_of_noise_hardly_matters(frame):
    table = frame[0].assign(noise=np.random.default_rng(5).standard_normal(len(frame[0])))
    model = TextClassifier(columns=["age", "city", "noise"], random_state=0).fit(table, frame[1])
    size = {reason.column: 0.0 for reason in model.explain(table[:1])[0].column_reasons}
    for why in model.explain(table):
        size |= {reason.column: size[reason.column] + abs(reason.contribution) for reason in why.column_reasons}
    assert size["noise"] < size["age"] / 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop(columns="age"), "X has no column 'age'"),
        (lambda table: table["note"].tolist(), "columns of a table"),
        (lambda table: table.assign(age="old"), "holds texts, such as 'old'; the model was trained on numbers"),
    ],
    ids=["missing", "a list", "texts for numbers"],
)
def test_other_tables_are_refused_in_a_sentence(frame, model, change, said):
    with pytest.raises(ValueError, match=said):
        model.predict(change(frame[0]))


def test_several_columns_of_texts_need_a_name(frame):
    table = frame[0].assign(title="b")
    model = TextClassifier(columns=["age", "city"], text="note", random_state=0).fit(table, frame[1])
    assert model.score(table, frame[1]) > 0.75


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "age"}, "must be a list"),
        ({"columns": ["age", "age"]}, "different names"),
        ({"columns": ["age"], "n_queries": 2}, "one query"),
        ({"columns": ["age"], "text": "age"}, "is also one of"),
    ],
)
def test_wrong_columns_are_refused(frame, options, said):
    with pytest.raises(UsageError, match=said):
        TextClassifier(**options).fit(frame[0], frame[1])


@pytest.mark.parametrize("use", [lambda m, p: m.export(), lambda m, p: m.save_explainer(p / "page.html")])
def test_what_knows_words_alone_says_so(model, tmp_path, use):
    with pytest.raises(UsageError, match="is for words alone, and this model has columns: age, city"):
        use(model, tmp_path)


def test_a_table_of_another_form_is_named(frame, model, tmp_path):
    table = frame[0][:5]
    model.save(tmp_path / "m")
    for one in (model, TextClassifier.load(tmp_path / "m")):
        # the column of the texts is that of the fit, whatever else the table has
        assert (one.predict(table.assign(other="x")) == model.predict(table)).all()
        with pytest.raises(ValueError, match="X has no column 'age'; columns: note, years, city"):
            one.predict(table.rename(columns={"age": "years"}))
        with pytest.raises(ValueError, match="X has no column 'note'; columns: remark, age, city"):
            one.predict(table.rename(columns={"note": "remark"}))
    with pytest.raises(
        ValueError, match=r"X has 2 columns besides \['age', 'city'\]; name the column of the texts with text="
    ):
        TextClassifier(columns=["age", "city"]).fit(frame[0].assign(title="b"), frame[1])
    with pytest.raises(ValueError, match="X has no column 'ward'"):
        TextClassifier(columns=["ward"]).fit(frame[0], frame[1])
    with pytest.raises(ValueError, match=r"X of type ndarray is none \(a ColumnTransformer gives one after set_output"):
        TextClassifier(columns=["age"]).fit(frame[0].to_numpy(), frame[1])
