"""`TextClassifier`: the laws of the model, exact reasons, counterfactuals, storage, exports, and input that is wrong."""

import json
import pickle
import sqlite3
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from whichtoken import TextClassifier
from whichtoken.datasets.review_sentences import synthetic_reviews, word_strengths
from whichtoken.errors import UsageError
from whichtoken.estimators.text.counting import count_documents

TEXTS, LABELS = synthetic_reviews(500, np.random.default_rng(0))
TRAIN, TEST = TEXTS[:400], TEXTS[400:]
NAMES = np.array(["bad", "good"])[(LABELS > 0).astype(int)]
KINDS = {
    "binary": {},
    "linear counts": {"sublinear_tf": False},
    "pairs": {"ngram_range": (1, 2)},
    "two queries": {"n_queries": 2},
    "uniform start": {"use_idf": False},
    "embeddings": {"dim": 16, "max_epochs": 6},
}


COMPILE_LONG = {"embeddings", "two queries"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, id=kind, marks=pytest.mark.slow if kind in COMPILE_LONG else ()) for kind in KINDS],
)
def model(request):
    return TextClassifier(C=3.0, random_state=0, **KINDS[request.param]).fit(TRAIN, NAMES[:400])


@pytest.fixture(scope="module")
def three():
    """Three classes: two of the three colors in a text decide."""
    rng = np.random.default_rng(1)
    words = np.array(["red", "green", "blue", "one", "two", "three", "four", "five"])
    labels = rng.integers(3, size=300)
    texts = [" ".join([words[k], *rng.choice(words[3:], 6), words[rng.integers(3)], words[k]]) for k in labels]
    return TextClassifier(C=3.0, random_state=0, min_df=1).fit(texts, words[labels]), texts, words[labels]


def test_it_learns_the_words_that_were_planted():
    model = TextClassifier(random_state=0).fit(TRAIN, NAMES[:400])
    assert model.score(TEST, NAMES[400:]) >= 0.75
    table = model.token_importance().set_index("token")
    planted = {word: strength for word, strength in word_strengths().items() if word in table.index}
    known = table.loc[list(planted)]
    assert np.corrcoef(known["value"], list(planted.values()))[0, 1] > 0.75
    clear = [word for word, strength in planted.items() if abs(strength) > 0.9]
    assert (np.sign(table.loc[clear, "value"]) == np.sign([planted[word] for word in clear])).all()


def test_order_of_words_changes_nothing_without_pairs(model):
    if model.ngram_range[1] > 1:
        pytest.skip("pairs see the order")
    turned = [" ".join(reversed(text.split())) for text in TEST]
    np.testing.assert_allclose(model.decision_function(turned), model.decision_function(TEST), rtol=1e-12, atol=1e-12)


def test_documents_do_not_influence_each_other(model):
    whole = model.decision_function(TEST)
    np.testing.assert_allclose(model.decision_function(TEST[7:9]), whole[7:9], rtol=1e-12)
    np.testing.assert_allclose(model.decision_function(TEST[::-1]), whole[::-1], rtol=1e-12)


def test_unknown_words_change_nothing(model):
    if model.ngram_range[1] > 1:
        pytest.skip("pairs see the neighbors")
    longer = [f"qqq {text} zzz" for text in TEST]
    np.testing.assert_array_equal(model.decision_function(longer), model.decision_function(TEST))


def test_a_document_of_one_token_is_its_value(model):
    if model.n_queries > 1:
        pytest.skip("the sum over queries")
    column = model.vocabulary_.index("superb")
    mass = model._amounts(sparse.csr_array([[3]])).data[0] * np.exp(model.selection_[column, 0])
    share = mass / (mass + np.exp(model.log_null_))
    expected = share * model.values_[column, 0, 0] + model.intercept_[0]
    assert model.decision_function(["superb superb superb"])[0] == pytest.approx(expected) or model.ngram_range[1] > 1


def test_contributions_add_up_to_the_decision(model):
    for explanation, decision in zip(model.explain(TEST), model.decision_function(TEST), strict=True):
        side = 1 if explanation.label == model.classes_[1] else -1
        total = explanation.bias + sum(reason.contribution for reason in explanation.reasons)
        assert total == pytest.approx(side * decision, abs=1e-10)
        assert explanation.decision == pytest.approx(abs(decision), abs=1e-10)
        unspent = 1 - sum(reason.attention for reason in explanation.reasons)
        assert explanation.bias == pytest.approx(side * unspent * model.intercept_[0], abs=1e-10)
        assert unspent == pytest.approx(0, abs=1e-12) if model.dim else 0 < unspent < 1


@pytest.mark.parametrize("labels", [["-", "+"], ["-", "+", "?"]], ids=len)
def test_a_contribution_is_positive_for_the_label_beside_it(labels):
    texts = [f"{word} film" for word in ("sad", "glad", "odd")[: len(labels)]] * 8
    model = TextClassifier(C=10.0, random_state=0).fit(texts, labels * 8)
    for label, explanation in zip(labels, model.explain(texts[: len(labels)]), strict=True):
        assert explanation.label == label
        assert explanation.decision > 0
        assert {reason.token: reason.contribution for reason in explanation.reasons}[explanation.text.split()[0]] > 0


def test_places_show_the_words(model):
    for explanation in model.explain(TEST[:20]):
        for reason in explanation.reasons:
            assert len(reason.places) == reason.count
            for start, stop in reason.places:
                shown = explanation.text[start:stop].lower()
                assert all(part in shown for part in reason.token.split())


def test_places_are_those_of_the_own_text():
    model = TextClassifier(C=1.0, random_state=0, ngram_range=(1, 2), min_df=1).fit(
        ["good film", "bad film"] * 20, [1, 0] * 20
    )
    first, second = model.explain(["İ film. Good FILM's? good film", "<br />good good"])
    assert {reason.token: reason.places for reason in first.reasons} == {
        "film": [(2, 6), (26, 30)],
        "good": [(8, 12), (21, 25)],
        "good film": [(21, 30)],
    }
    assert {reason.token: reason.places for reason in second.reasons} == {"good": [(6, 10), (11, 15)]}
    with pytest.raises(ValueError, match="text 1 is of type NoneType"):
        model.explain(["good film", None])


def test_counterfactuals_change_the_label_and_no_smaller_set_does(model):
    if model.n_queries > 1:
        with pytest.raises(ValueError, match="n_queries=2: counterfactuals are exact for one query only"):
            model.counterfactuals(TEST)
        return
    counts = count_documents(model, TEST)
    before = model.predict(TEST)
    names = {name: column for column, name in enumerate(model.vocabulary_)}
    reached = 0
    for i, tokens in enumerate(model.counterfactuals(TEST)):
        if tokens:
            changed = counts[[i]].toarray()
            changed[0, [names[token] for token in tokens]] = 0
            assert model.classes_[int(model._outputs(sparse.csr_array(changed))[0, 0] > 0)] != before[i]
            for kept in tokens:  # put any one back: not enough
                changed[0, names[kept]] = counts[i, names[kept]]
                assert model.classes_[int(model._outputs(sparse.csr_array(changed))[0, 0] > 0)] == before[i]
                changed[0, names[kept]] = 0
            reached += 1
    assert reached > 50


def test_several_classes(three):
    model, texts, labels = three
    assert model.score(texts, labels) > 0.95
    np.testing.assert_allclose(model.predict_proba(texts).sum(axis=1), 1)
    np.testing.assert_array_equal(model.classes_[model.predict_proba(texts).argmax(axis=1)], model.predict(texts))
    counts, names = count_documents(model, texts), list(model.vocabulary_)
    for i, tokens in enumerate(model.counterfactuals(texts[:40])):
        changed = counts[[i]].toarray()
        changed[0, [names.index(token) for token in tokens]] = 0
        if tokens:
            assert model._outputs(sparse.csr_array(changed)).argmax() != model._outputs(counts[[i]]).argmax()
    explanation = model.explain(texts[:1])[0]
    total = explanation.bias + sum(reason.contribution for reason in explanation.reasons)
    assert total == pytest.approx(model.decision_function(texts[:1]).max())
    assert set(model.token_importance()["class"]) == {"blue", "green", "red"}
    assert (model.certificates(texts)["edits"] >= 1).all()


def test_counts_and_texts_are_the_same_model():
    model = TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400])
    counts = count_documents(model, TRAIN)
    for form in (counts, counts.toarray(), sparse.csc_array(counts)):
        again = clone(model).fit(form, LABELS[:400])
        np.testing.assert_allclose(again.decision_function(form[:5]), model.decision_function(TRAIN[:5]), rtol=1e-10)


def test_stored_zeros_are_no_occurrences():
    counts = np.random.default_rng(0).poisson(0.5, (60, 12)).astype(float)
    labels = counts[:, 0] > counts[:, 1]
    stored = sparse.csr_array((counts.ravel(), np.tile(np.arange(12), 60), np.arange(0, 721, 12)), shape=(60, 12))
    assert stored.nnz == 720 > np.count_nonzero(counts)
    with_zeros, without = (TextClassifier(C=1.0, random_state=0).fit(X, labels) for X in (stored, counts))
    np.testing.assert_array_equal(with_zeros.decision_function(stored), without.decision_function(counts))
    assert len(with_zeros.explain(stored[:1])[0].reasons) == np.count_nonzero(counts[0])


def test_a_stream_of_texts_is_as_good_as_a_list():
    listed = TextClassifier(C=1.0, random_state=0).fit(TRAIN, NAMES[:400])
    seen = []

    def stream():
        for text, label in zip(TRAIN, NAMES[:400], strict=True):
            seen.append(label)
            yield text

    streamed = clone(listed).fit(stream(), seen)  # labels are looked at after the texts
    np.testing.assert_array_equal(streamed.values_, listed.values_)
    np.testing.assert_array_equal(streamed.predict_proba(iter(TEST)), listed.predict_proba(TEST))
    assert [item.as_json() for item in streamed.explain(iter(TEST))] == [
        item.as_json() for item in listed.explain(TEST)
    ]
    for wrong, sentence in ((iter([]), "gives None first"), (iter([1.5]), "gives 1.5 first; a stream must hold texts")):
        with pytest.raises(ValueError, match=sentence):
            streamed.fit(wrong, seen)


@pytest.mark.parametrize("options", [{}, {"ngram_range": (1, 2)}, {"analyzer": str.split}], ids=str)
def test_working_on_few_documents_at_a_time_changes_nothing(options, monkeypatch):
    from whichtoken.datasets import token_counts, word_split
    from whichtoken.estimators.text import counting
    from whichtoken.estimators.text import model as answers

    labels = np.array(["red", "green", "blue"])[np.arange(400) % 3]
    model = TextClassifier(C=1.0, null=1.0, loss="logistic", random_state=0, **options)
    results = []
    # the blocks of `sum_blocks` stay as they are: the order of a sum moves its last digits
    for size in (1 << 20, 7):
        for module, name in (
            (token_counts, "CHUNK"), (word_split, "CHUNK"), (counting, "CELLS"), (counting, "BLOCK"),
            (answers, "BLOCK"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, size)
        fitted = clone(model).fit(TRAIN, labels)
        results.append((fitted.values_, *fitted._statistics, fitted.certificates(TEST), fitted.counterfactuals(TEST)))
    for whole, parts in zip(*results, strict=True):
        if isinstance(whole, list):
            assert whole == parts
        else:
            np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


def test_fit_is_deterministic_and_forgets():
    first = TextClassifier(C=1.0, random_state=0).fit(TRAIN, NAMES[:400])
    values = first.values_.copy()
    np.testing.assert_array_equal(first.fit(TRAIN, NAMES[:400]).values_, values)
    first.fit(TRAIN[:50], NAMES[:50])
    assert len(first.values_) != len(values)


def test_weights_of_documents_and_classes():
    doubled = TextClassifier(C=1.0, random_state=0).fit(
        TRAIN, LABELS[:400], sample_weight=np.where(LABELS[:400] > 0, 4, 1)
    )
    balanced = TextClassifier(C=1.0, random_state=0, class_weight={-1: 1, 1: 4}).fit(TRAIN, LABELS[:400])
    plain = TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400])
    np.testing.assert_array_equal(doubled.values_, balanced.values_)
    assert (doubled.predict(TEST) == 1).sum() > (plain.predict(TEST) == 1).sum()
    with pytest.raises(ValueError, match="at least one non-zero"):
        plain.fit(TRAIN, LABELS[:400], sample_weight=np.zeros(400))


def test_groups_stay_together(monkeypatch):
    import whichtoken.estimators.text.learning as module

    seen = []
    original = module.held_out_splits
    monkeypatch.setattr(module, "held_out_splits", lambda *a: seen.append(original(*a)) or seen[-1])
    groups = np.repeat(np.arange(40), 10)
    TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400], groups=groups)
    for fit, held in seen[0]:
        assert not set(groups[fit]) & set(groups[held])
    with pytest.raises(ValueError, match=r"groups of shape \(2,\) must have one entry for each of the 400 samples"):
        TextClassifier(min_class=2).fit(TRAIN, LABELS[:400], groups=[1, 2])


def test_probabilities_are_calibrated_on_held_out_documents():
    texts, labels = synthetic_reviews(1500, np.random.default_rng(5))
    model = TextClassifier(random_state=0, C=30.0).fit(texts[:700], labels[:700])
    p = model.predict_proba(texts[700:])[:, 1]

    def loss(q):
        return -np.log(np.where(labels[700:] > 0, q, 1 - q)).mean()

    raw = 1 / (1 + np.exp(-model.decision_function(texts[700:])))
    assert loss(p) <= loss(raw) + 1e-3
    assert abs(p.mean() - (labels[700:] > 0).mean()) < 0.05


def test_partial_fit_goes_on():
    model = TextClassifier(random_state=0, min_df=1)
    for _ in range(15):
        for start in range(0, 400, 200):
            model.partial_fit(TRAIN[start : start + 200], NAMES[start : start + 200], classes=["bad", "good"])
    assert model.score(TEST, NAMES[400:]) > 0.7
    assert model._statistics[2].sum() == 15 * 400
    with pytest.raises(ValueError, match="y holds 'ugly'; classes: bad, good"):
        model.partial_fit(["a film"], ["ugly"])


def test_bootstrap_intervals_hold_the_estimates():
    model = TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400])
    table = model.token_importance(TRAIN, LABELS[:400], repeats=8)
    assert list(table["token"]) == list(model.token_importance()["token"])
    frequent = table[table["count"] > 30]
    inside = (frequent["value_low"] <= frequent["value"]) & (frequent["value"] <= frequent["value_high"])
    assert inside.mean() > 0.6
    assert (table["value_low"] <= table["value_high"]).all()
    with pytest.raises(ValueError, match="needs the documents X"):
        model.token_importance(repeats=3)


def test_importance_holds_the_statistics_of_the_theory():
    from whichtoken.theory.trained_embeddings import signed_frequency
    from whichtoken.theory.trained_embeddings.attention import posterior_difference

    model = TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400])
    counts = count_documents(model, TRAIN)
    table = model.token_importance().set_index("token").loc[list(model.vocabulary_)]
    np.testing.assert_allclose(table["signed_frequency"], signed_frequency(counts, LABELS[:400]), atol=1e-12)
    np.testing.assert_allclose(table["posterior_difference"], posterior_difference(counts, LABELS[:400]), atol=1e-12)


def test_storage_keeps_every_number(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(TEST), model.predict_proba(TEST))
    for ours, theirs in zip(model.explain(TEST[:2]), loaded.explain(TEST[:2]), strict=True):
        assert ours.as_json() == theirs.as_json()
    assert loaded.token_importance().equals(model.token_importance())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(TEST), model.predict(TEST))


def test_storage_of_pieces_files_and_functions(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "film", "great", "dull", "##s"]))
    texts, labels = ["great films", "dull film", "great", "dull dull"] * 5, [1, 0, 1, 0] * 5
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "great": 1, "dull": 2, "film": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for options in (
        {"word_pieces": tmp_path / "vocab.txt"},
        {"analyzer": tmp_path / "tokenizer.json"},
        {"analyzer": str.split},
    ):
        model = TextClassifier(C=1.0, random_state=0, min_df=1, **options).fit(texts, labels)
        assert model.score(texts, labels) == 1
        assert model.explain(["great film"])[0].reasons[0].places == [(0, 5)]
        model.save(tmp_path / "model")
        if options.get("analyzer") is str.split:
            with pytest.raises(UsageError, match="load it with analyzer="):
                TextClassifier.load(tmp_path / "model")
        loaded = TextClassifier.load(tmp_path / "model", analyzer=str.split)
        np.testing.assert_array_equal(loaded.decision_function(texts), model.decision_function(texts))
    with pytest.raises(UsageError, match="cannot be read as a tokenizers file"):
        TextClassifier(analyzer=tmp_path / "vocab.txt").fit(texts, labels)


def test_exports_give_the_same_decisions():
    for sublinear_tf in (True, False):
        model = TextClassifier(C=1.0, random_state=0, sublinear_tf=sublinear_tf).fit(TRAIN, LABELS[:400])
        counts = count_documents(model, TEST)
        names = model.vocabulary_
        rows = sparse.coo_array(counts)
        base = sqlite3.connect(":memory:")
        base.create_function("LN", 1, np.log)
        base.execute("CREATE TABLE token_counts (document INTEGER, token TEXT, count REAL)")
        cells = zip(rows.row.tolist(), (names[j] for j in rows.col), map(float, rows.data), strict=True)
        base.executemany("INSERT INTO token_counts VALUES (?, ?, ?)", cells)
        found = dict(base.execute(model.export("sql")).fetchall())
        base.close()
        np.testing.assert_allclose([found[i] for i in range(len(TEST))], model.decision_function(TEST), rtol=1e-9)
        scorer = json.loads(model.export("json"))
        document = {names[j]: c for j, c in zip(counts[[0]].indices, counts[[0]].data, strict=True)}
        amounts = {token: np.log2(1 + c) if sublinear_tf else c for token, c in document.items()}
        weight = scorer["null"][0] + sum(amounts[t] * scorer["tokens"][t]["weight"][0] for t in amounts)
        value = sum(amounts[t] * scorer["tokens"][t]["weight"][0] * scorer["tokens"][t]["value"][0][0] for t in amounts)
        assert value / weight + scorer["bias"][0] == pytest.approx(model.decision_function(TEST[:1])[0])
    with pytest.raises(ValueError, match="kind='xml'"):
        model.export("xml")


def test_inside_pipelines_and_searches():
    lower = make_pipeline(FunctionTransformer(lambda texts: [text.lower() for text in texts]), TextClassifier(C=1.0))
    assert cross_val_score(lower, TRAIN, LABELS[:400], cv=3).mean() > 0.7
    search = GridSearchCV(TextClassifier(random_state=0), {"C": [0.01, 1.0]}, cv=2)
    assert search.fit(TRAIN[:200], LABELS[:200]).best_params_ == {"C": 1.0}


def test_documents_without_known_tokens_get_the_default():
    model = TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400])
    with pytest.warns(
        UserWarning, match="2 of 3 documents have no known word; the prediction does not come from words"
    ):
        decisions = model.decision_function(["qqq", "", TEST[0]])
    np.testing.assert_array_equal(decisions[:2], model.intercept_[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model.explain(["qqq"])[0].reasons == []


def test_reasons_one_by_one_are_those_of_the_whole(model):
    reasons = model.explain(TEST[:1])[0].reasons
    whole = list(reasons)
    assert [reasons[i] for i in range(len(reasons))] == reasons[:] == whole
    assert (reasons[-1], reasons[1:3]) == (whole[-1], whole[1:3])
    assert reasons == whole
    assert reasons != whole[:-1]
    with pytest.raises(IndexError):
        reasons[len(whole)]


@pytest.mark.parametrize(
    ("texts", "labels", "options", "sentence"),
    [
        (["a", "b"], [1, 1], {}, "min_df=2 leaves no token of 2 documents"),
        (["...", "", "?!"], [0, 1, 1], {}, "none of 3 documents contains a token"),
        (["a a", "a b"], [1, 1], {}, r"y has one class \(1\); two or more classes"),
        (["a a", "a b"], [1, "x"], {}, "y mixes text with other types"),
        (["a a", None], [1, 0], {}, "text 1 is of type NoneType"),
        ([np.nan, "a a"], [1, 0], {}, "text 0 is of type float"),
        ([], [], {}, "X is empty; there must be at least one document"),
        (["a a", "a b"], [1, 0, 1], {}, "y has 3 labels for 2 samples"),
        (["a a", "a b"], [1.5, 0.2], {}, "continuous"),
        (["a a", "a b"], [np.nan, 0], {}, "NaN"),
        ("a a", [1], {}, "is one text; a list of texts is expected"),
        (["a a", "a b"], [1, 0], {"C": -1}, "C=-1"),
        (["a a", "a b"], [1, 0], {"C": "best"}, "C='best'"),
        (["a a", "a b"], [1, 0], {"C": float("nan")}, "C=nan"),
        (["a a", "a b"], [1, 0], {"ngram_range": (1, 0)}, r"ngram_range=\(1, 0\) must be"),
        (["a a", "a b"], [1, 0], {"n_queries": 0}, "n_queries=0"),
        (["a a", "a b"], [1, 0], {"stemmer": "klingon"}, "stemmer='klingon'"),
    ],
)
def test_wrong_input_is_one_sentence(texts, labels, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        TextClassifier(**options).fit(texts, labels)


@pytest.mark.slow
def test_embeddings_have_their_limits():
    for options, sentence in (({"n_queries": 2}, "one query"), ({"class_weight": "balanced"}, "equal weights")):
        with pytest.raises(ValueError, match=sentence):
            TextClassifier(dim=4, **options).fit(TRAIN, LABELS[:400])
    with pytest.raises(ValueError, match="only a model with one query and dim=None learns from more documents"):
        TextClassifier(dim=4, max_epochs=1).partial_fit(TRAIN, LABELS[:400]).partial_fit(TRAIN, LABELS[:400])


def test_texts_and_counts_are_not_mixed():
    model = TextClassifier(C=1.0, random_state=0).fit(TRAIN, LABELS[:400])
    with pytest.raises(ValueError, match="must be a list of str"):
        model.predict(np.ones((1, 3)))
    counted = clone(model).fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="fitted on a count matrix"):
        counted.predict(["a film"])
    with pytest.raises(ValueError, match="fractions"):
        counted.certificates(np.eye(4) / 2)
