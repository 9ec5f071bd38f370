"""`TextClassifier`: what it does with short texts, rare classes, more documents; laws of its reasons."""

import warnings
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from whichtoken import TextClassifier
from whichtoken.datasets.review_sentences import synthetic_reviews
from whichtoken.estimators.text.counting import count_documents
from whichtoken.estimators.text.learning import held_out_splits

TEXTS, LABELS = synthetic_reviews(1200, np.random.default_rng(3))
TRAIN, TEST = TEXTS[:800], TEXTS[800:]
Y, Z = LABELS[:800], LABELS[800:]


def log_loss(model, texts, labels):
    p = model.predict_proba(texts)
    return -np.log(p[np.arange(len(labels)), np.searchsorted(model.classes_, labels)]).mean()


@pytest.fixture(scope="module")
def model():
    return TextClassifier(random_state=0).fit(TRAIN, Y)


# --- short texts


def test_a_word_alone_does_not_decide(model):
    """Without a null token one weak word gets all attention, and the probability of a document full of such words."""
    sure = clone(model).set_params(null=0.0).fit(TRAIN, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the first two words are unknown
        short = [" ".join(text.split()[:2]) for text in TEST]
        ours, without = log_loss(model, short, Z), log_loss(sure, short, Z)
    assert ours < 0.7 < without
    assert log_loss(model, TEST, Z) <= log_loss(sure, TEST, Z) + 0.01


def test_an_empty_document_is_at_the_bias(model):
    with pytest.warns(UserWarning, match="no known word"):
        assert model.decision_function(["qqq"])[0] == model.intercept_[0]


def brute_force(model, counts):
    """Size of the smallest set of distinct tokens whose deletion changes the label; None: no set does."""
    before = model.predict(counts)[0]
    columns = np.flatnonzero(counts[0])
    for size in range(1, len(columns) + 1):
        for chosen in combinations(columns, size):
            changed = counts.copy()
            changed[0, list(chosen)] = 0
            if model.predict(changed)[0] != before:
                return size
    return None


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("null", [0.0, 0.3, 3.0])
def test_counterfactuals_are_those_of_brute_force(null, classes):
    rng = np.random.default_rng(7)
    X = rng.poisson(0.5, (240, 9))
    y = (X @ rng.standard_normal((9, classes)) + rng.gumbel(size=(240, classes))).argmax(axis=1)
    model = TextClassifier(C=10.0, null=null, random_state=0).fit(X, y)
    documents = rng.poisson(0.7, (60, 9))
    sizes = [len(tokens) or None for tokens in model.counterfactuals(documents)]
    found = [brute_force(model, documents[[i]]) for i in range(60)]
    assert sizes == found
    assert sum(size is not None for size in found) > 20


@pytest.mark.parametrize("sublinear_tf", [True, False])
def test_no_attack_beats_a_certificate(sublinear_tf):
    rng = np.random.default_rng(8)
    X = rng.poisson(0.6, (200, 8))
    y = (X @ rng.standard_normal(8) + 0.3 * rng.standard_normal(200) > 0).astype(int)
    model = TextClassifier(C=10.0, null=1.0, sublinear_tf=sublinear_tf, random_state=0).fit(X, y)
    documents = rng.poisson(0.8, (25, 8))
    table = model.certificates(documents)
    before = model.predict(documents)
    flipped = 0
    for kind in ("deletions", "insertions", "substitutions", "edits"):
        owners, budgets = np.repeat(np.arange(25), 80), rng.integers(1, 7, 25 * 80)
        changed = np.array([attacked(documents[i], kind, k, rng) for i, k in zip(owners, budgets, strict=True)])
        beaten = model.predict(changed) != before[owners]
        flipped += beaten.sum()
        needed = table[kind].to_numpy()[owners]
        assert ((needed > 0) & (needed <= budgets))[beaten].all(), kind
    assert flipped > 500


def attacked(document, kind, budget, rng):
    changed = document.copy()
    for _ in range(budget):
        move = rng.choice(["deletions", "insertions", "substitutions"]) if kind == "edits" else kind
        if move != "insertions" and changed.sum():
            changed[rng.choice(np.flatnonzero(changed))] -= 1
        elif move != "insertions":
            continue
        if move != "deletions":
            changed[rng.integers(len(changed))] += 1
    return changed


# --- classes


def three_classes(size, seed):
    rng = np.random.default_rng(seed)
    words = np.array(["red", "green", "blue", *(f"w{i}" for i in range(30))])
    labels = rng.choice(3, size, p=[0.7, 0.25, 0.05])
    texts = [" ".join([words[k if rng.random() < 0.8 else rng.integers(3)], *rng.choice(words[3:], 8)]) for k in labels]
    return texts, words[labels]


def test_a_class_with_one_document_switches_nothing_off():
    texts, labels = three_classes(300, 1)
    with pytest.warns(UserWarning, match=r"1 class has fewer than 5 documents: learned.* min_class=5, or lower cv"):
        # its own word stands in one document only
        model = TextClassifier(min_df=1, random_state=0).fit([*texts, "violet w1 w2 violet"], [*labels, "violet"])
    assert len(model.choice_.losses) > 5
    assert model.choice_.temperature != 1.0
    assert model.predict(["violet violet violet w1"])[0] == "violet"
    fresh, names = three_classes(300, 2)
    assert log_loss(model, fresh, names) < 0.75
    with pytest.warns(UserWarning, match="min_class=2 leaves out 1 of 4 classes with 1 document: violet"):
        model.set_params(min_class=2).fit([*texts, "violet w1 w2 violet"], [*labels, "violet"])
    assert "violet" not in model.classes_
    with pytest.raises(ValueError, match="min_class=500 leaves 0 of 3 classes"):
        TextClassifier(min_class=500).fit(texts, labels)


@pytest.mark.parametrize("groups", [None, np.arange(60) // 4], ids=["stratified", "groups"])
def test_every_judged_class_is_known_to_the_fit(groups):
    labels = np.sort(np.random.default_rng(0).choice(6, 60, p=[0.5, 0.3, 0.1, 0.05, 0.03, 0.02])).astype(np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        splits = held_out_splits(labels, groups, 5, 0)
    assert splits
    for fit, held in splits:
        assert not set(fit) & set(held)
        assert set(labels[held]) <= set(labels[fit])


def test_the_loss_is_chosen_by_validation():
    texts, labels = three_classes(400, 3)
    model = TextClassifier(random_state=0).fit(texts, labels)
    assert {name.split(",")[0] for name in model.choice_.losses} == {"logistic", "squared_hinge"}
    for loss in ("logistic", "squared_hinge"):
        fixed = TextClassifier(loss=loss, random_state=0).fit(texts, labels)
        assert fixed.choice_.loss == loss
        fresh, names = three_classes(400, 4)
        assert log_loss(fixed, fresh, names) < 0.65  # calibrated, whatever the values were trained for


def test_threads_change_nothing():
    texts, labels = three_classes(200, 5)
    one, two = (TextClassifier(random_state=0, n_jobs=jobs).fit(texts, labels) for jobs in (1, 2))
    np.testing.assert_array_equal(one.values_, two.values_)
    assert one.choice_ == two.choice_


def test_a_verbose_fit_says_what_it_tries(capsys):
    TextClassifier(random_state=0, verbose=1).fit(TRAIN[:200], Y[:200])
    assert "logistic, C=3, null=0.3: held-out log loss" in capsys.readouterr().err


# --- more documents


def test_one_batch_is_a_fit(model):
    np.testing.assert_array_equal(clone(model).partial_fit(TRAIN, Y).values_, model.values_)


@pytest.mark.parametrize("size", [20, 200])
def test_many_batches_come_to_a_fit_on_all(size):
    """Few tokens and many documents: the hardest case for a memory that knows no correlations."""
    rng = np.random.default_rng(6)
    X = rng.poisson(0.4, (9000, 40))
    y = X @ rng.standard_normal(40) + rng.logistic(size=9000) > 0
    # what the first batch would choose, and a first batch whose mean mass, the unit of the null token, is near that of all
    fixed = {"C": 3.0, "null": 1.0, "attention_C": 0.0, "use_idf": False, "random_state": 0}
    online, fresh, answers = TextClassifier(**fixed).partial_fit(X[:400], y[:400]), X[8000:], y[8000:]
    for k in range(400, 8000, size):
        online.partial_fit(X[k : k + size], y[k : k + size])
    whole = TextClassifier(**fixed).fit(X[:8000], y[:8000])
    assert np.abs(online.predict_proba(fresh) - whole.predict_proba(fresh)).mean() < 0.02
    assert online.score(fresh, answers) > whole.score(fresh, answers) - 0.005
    assert log_loss(online, fresh, answers) < log_loss(whole, fresh, answers) + 0.005


def test_more_documents_do_no_harm(model, tmp_path):
    first = TextClassifier(random_state=0).fit(TRAIN[:600], Y[:600])
    before = first.score(TEST, Z), log_loss(first, TEST, Z)
    first.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model")
    for more in (first, loaded):
        for k in range(600, 800, 10):
            more.partial_fit(TRAIN[k : k + 10], Y[k : k + 10])
        assert more.score(TEST, Z) > before[0] - 0.01
        assert log_loss(more, TEST, Z) < before[1] + 0.005
    np.testing.assert_array_equal(first.values_, loaded.values_)
    again = first.values_.copy()
    first.partial_fit(TRAIN[:1], Y[:1])
    assert np.abs(first.values_ - again).max() < 0.1 * np.abs(again).max()


# --- reasons


def test_reasons_do_not_depend_on_how_the_model_is_written(model):
    """Attention has no unit: e^a and the mass of the null token times a factor are the same model."""
    louder = clone(model).fit(TRAIN, Y)
    louder.selection_, louder.log_null_ = model.selection_ + 5.0, model.log_null_ + 5.0
    for ours, theirs in zip(model.explain(TEST[:40]), louder.explain(TEST[:40]), strict=True):
        np.testing.assert_allclose(ours.contributions, theirs.contributions, rtol=1e-9)
        assert ours.bias == pytest.approx(theirs.bias)
    assert model.counterfactuals(TEST) == louder.counterfactuals(TEST)
    # without a null token a constant may stand in the values or in the bias
    bare, shifted = (TextClassifier(null=0.0, random_state=0).fit(TRAIN, Y) for _ in range(2))
    shifted.values_, shifted.intercept_ = bare.values_ + 7.0, bare.intercept_ - 7.0
    for ours, theirs in zip(bare.explain(TEST[:40]), shifted.explain(TEST[:40]), strict=True):
        np.testing.assert_allclose(ours.contributions, theirs.contributions, atol=1e-12)
        assert ours.counterfactual == theirs.counterfactual


def test_a_token_under_two_names_is_one_token(model):
    """Half of the occurrences each: their attention and contributions add up to those of the one."""
    linear = TextClassifier(sublinear_tf=False, C=3.0, random_state=0).fit(TRAIN, Y)
    counts = count_documents(linear, TEST[:30]).toarray().astype(float)
    column = int(counts.sum(axis=0).argmax())
    doubled = np.hstack([counts, counts[:, [column]] / 2])
    doubled[:, column] /= 2
    twin = TextClassifier(sublinear_tf=False, C=3.0, random_state=0).fit(
        np.hstack([counts, counts[:, [column]]]), Z[:30]
    )
    for name in ("selection_", "values_"):
        array = getattr(linear, name)
        setattr(twin, name, np.concatenate([array, array[[column]]]))
    twin.intercept_, twin.log_null_ = linear.intercept_, linear.log_null_
    for one, two in zip(linear.explain(TEST[:30]), twin.explain(doubled), strict=True):
        assert two.decision == pytest.approx(one.decision)
        for part in ("attention", "contributions"):
            single = dict(zip(one.columns.tolist(), getattr(one, part), strict=True))
            both = dict(zip(two.columns.tolist(), getattr(two, part), strict=True))
            if column in single:
                both[column] += both.pop(len(counts[0]))
            assert both == pytest.approx(single)


def test_order_of_tokens_and_documents_does_not_matter(model):
    rng = np.random.default_rng(0)
    counts = count_documents(model, TRAIN + TEST).toarray()
    turned = rng.permutation(counts.shape[1])
    fixed = {"C": 1.0, "null": 1.0, "random_state": 0}
    ours = TextClassifier(**fixed).fit(counts[:800], Y)
    theirs = TextClassifier(**fixed).fit(sparse.csr_array(counts[:800][:, turned]), Y)
    np.testing.assert_allclose(theirs.values_, ours.values_[turned], atol=1e-3)
    backwards = theirs.explain(counts[800:][::-1][:, turned])[::-1]
    for one, two in zip(ours.explain(counts[800:]), backwards, strict=True):
        single = dict(zip(one.columns.tolist(), one.contributions, strict=True))
        other = dict(zip(turned[two.columns].tolist(), two.contributions, strict=True))
        assert other == pytest.approx(single, abs=1e-3)
