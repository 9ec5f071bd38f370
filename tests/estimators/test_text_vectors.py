"""Text models with vectors of words and with an encoder: values, reasons, folders, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import sparse
from sklearn.base import clone

from whichtoken import TextClassifier
from whichtoken.datasets.word_vectors import WordVectors, read_vectors
from whichtoken.errors import UsageError
from whichtoken.estimators.text import learning
from whichtoken.estimators.text.counting import Documents, vectors_of_tokens
from whichtoken.estimators.text.learning import RidgeProblem, beside, solve_values

LETTERS = "abcdefghijklmnopqrstuvwxyz"
GOOD, BAD, REST = ([f"{stem}{a}{b}" for a in "abcd" for b in LETTERS[:10]] for stem in ("good", "bad", "rest"))
RNG = np.random.default_rng(0)
WORDS = [*GOOD, *BAD, *REST]
# the first axis tells good from bad words, the others are noise
ARRAY = np.column_stack([np.repeat([1.0, -1.0, 0.0], 40), 0.4 * RNG.standard_normal((120, 5))])


def texts(good, bad, size=60, seed=1):
    """Texts of three words of one kind and four others, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(size) % 2
    kinds = [good if label else bad for label in labels]
    return [" ".join([*rng.choice(kind, 3), *rng.choice(REST, 4)]) for kind in kinds], labels


TRAIN, Y = texts(GOOD[:20], BAD[:20])
UNSEEN, Z = texts(GOOD[20:], BAD[20:], 200, 2)


@pytest.fixture(scope="module")
def model():
    return TextClassifier(vectors=(ARRAY, WORDS), random_state=0).fit(TRAIN, Y)


def test_words_that_were_never_seen_get_a_value_from_their_neighbors(model):
    words = TextClassifier(random_state=0).fit(TRAIN, Y)
    with pytest.warns(UserWarning, match="no known word"):
        assert words.score([" ".join(text.split()[:3]) for text in UNSEEN], Z) == 0.5
    assert model.choice_.vectors > 0
    assert model.score(UNSEEN, Z) > 0.95
    places = [model.vocabulary_.index(word) for word in GOOD[20:]]
    assert not model._statistics[0][places].any()
    assert (model.values_[places, 0, 0] > 0).mean() > 0.95


def test_values_are_the_direction_times_the_vectors_where_no_text_speaks(model):
    fitted, unseen = model._vectors, ~model._statistics[0].any(axis=1)
    np.testing.assert_allclose(
        model.values_[unseen, 0], fitted.embedding[unseen] @ fitted.direction, rtol=1e-6, atol=1e-6
    )
    seen = np.abs(model.values_[~unseen, 0] - fitted.embedding[~unseen] @ fitted.direction)
    assert seen.max() > 1e-3


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_dense_features_are_solved_as_the_same_in_one_matrix(loss):
    rng = np.random.default_rng(3)
    shares, dense = sparse.random_array((80, 12), density=0.3, rng=rng, format="csr"), rng.standard_normal((80, 4))
    signs, rows, dense = np.where(rng.random(80) < 0.5, 1.0, -1.0), np.arange(80), dense - dense.mean(axis=0)
    spread = np.concatenate([rng.uniform(0.5, 2, 12), np.full(4, 0.7), [1.3]])
    given = {"signs": signs, "bounds": np.ones(80), "loss": loss, "spread": spread}
    apart = solve_values(RidgeProblem(shares, rows, dense=dense, **given), 1e-10)
    joined = solve_values(RidgeProblem(beside(shares, dense), rows, **given), 1e-10)
    np.testing.assert_allclose(apart.values, joined.values, atol=1e-4)
    assert apart.bias == pytest.approx(joined.bias, abs=1e-4)


def test_the_weight_of_vectors_moves_as_far_as_held_out_documents_say():
    places, usual = np.log([1.0, 3.0, 10.0]), np.log(3.0)

    def mean(losses):
        trials = [learning.Trial(1.0, np.full(50, loss), np.zeros(50)) for loss in losses]
        return learning._posterior_mean(places, usual, 1.5, trials)

    assert mean([0.5, 0.5, 0.5]) == pytest.approx(usual, abs=0.03)  # nothing is said
    assert usual < mean([0.51, 0.5, 0.49]) < mean([0.54, 0.5, 0.46]) < places[2]
    assert mean([5.0, 3.0, 0.1]) == pytest.approx(places[2])  # everything is


def test_vectors_speak_where_too_few_texts_are_there_to_hold_some_out():
    model = TextClassifier(vectors=(ARRAY, WORDS), min_df=1, random_state=0).fit([GOOD[0], BAD[0]], [1, 0])
    assert model.choice_.vectors == learning.VECTOR_SHARE
    assert not model.choice_.losses
    assert model.predict([GOOD[30], BAD[30]]).tolist() == [1, 0]


def test_settings_that_are_given_are_tried_with_words_and_with_vectors():
    # the words alone were solved last, on documents without the words that are too rare
    model = TextClassifier(vectors=(ARRAY, WORDS), C=3.0, null=0.3, random_state=0).fit(TRAIN, Y)
    assert (model.choice_.C, model.choice_.null) == (pytest.approx(3.0), 0.3)
    assert model.score(UNSEEN, Z) > 0.95


def test_vectors_that_say_nothing_get_less_weight_than_those_that_speak(model):
    noise = np.random.default_rng(5).standard_normal(ARRAY.shape)
    other = TextClassifier(vectors=(noise, WORDS), random_state=0).fit(TRAIN, Y)
    assert other.choice_.blend < model.choice_.blend or not other.choice_.vectors


def test_a_blend_is_the_sum_of_both_models_in_its_outputs():
    rng = np.random.default_rng(4)
    amounts = sparse.random_array((60, 9), density=0.5, rng=rng, format="csr")
    documents = Documents(
        amounts, rng.integers(0, 2, 60), np.ones(60), 2, rng.standard_normal((9, 3)).astype(np.float32)
    )
    attended = learning.AttendedDocuments.of(documents, np.zeros((9, 1)), 0.0)
    recipe = learning.TextRecipe(3.0, "logistic", 0.3, attention_step=False, vectors=0.4)
    both, words = (learning.fit_values(attended, np.arange(60), one) for one in (recipe, replace(recipe, vectors=0.0)))
    blended = [learning.add_values(words[0], both[0], 0.6, 0.7)]
    expected = 0.6 * attended.outputs(words) + 0.7 * attended.outputs(both)
    np.testing.assert_allclose(attended.outputs(blended), expected, atol=1e-5)
    np.testing.assert_allclose(attended.scores(blended).outputs(amounts), expected, atol=1e-5)


def test_all_weight_on_words_is_the_model_without_vectors(monkeypatch):
    monkeypatch.setattr(learning, "LEAST_BLEND", 1.1)  # held-out texts object to vectors
    plain, words = (
        TextClassifier(random_state=0).fit(TRAIN, Y),
        clone(TextClassifier(vectors=(ARRAY, WORDS), random_state=0)),
    )
    words.fit(TRAIN, Y)
    assert words.choice_.vectors == 0
    assert words.vocabulary_ == plain.vocabulary_
    np.testing.assert_array_equal(words.decision_function(TRAIN), plain.decision_function(TRAIN))


@pytest.mark.filterwarnings("ignore:the document has no known word")
def test_reasons_counterfactuals_and_export_stay_exact(model):
    exported = json.loads(model.export())
    assert any(model.counterfactuals(UNSEEN[:10]))
    for why, decision in zip(model.explain(UNSEEN[:10]), model.decision_function(UNSEEN[:10]), strict=True):
        assert why.bias + sum(reason.contribution for reason in why.reasons) == pytest.approx(why.decision, abs=1e-12)
        if why.counterfactual:
            rest = [word for word in why.text.split() if word not in why.counterfactual]
            assert model.predict([" ".join(rest)])[0] == why.flips_to
        parts = [
            (np.log2(1 + r.count) * exported["tokens"][r.token]["weight"][0], exported["tokens"][r.token])
            for r in why.reasons
        ]
        total = sum(weight * token["value"][0][0] for weight, token in parts)
        value = total / (exported["null"][0] + sum(weight for weight, _ in parts)) + exported["bias"][0]
        assert value == pytest.approx(decision, abs=1e-9)


def test_no_attack_beats_a_certificate_over_words_that_were_never_seen(model):
    rng, edits = np.random.default_rng(5), model.certificates(UNSEEN[:40])["edits"].to_numpy()
    strength = np.exp(model.selection_[:, 0]) * (model.values_[:, 0, 0] + model.intercept_[0])
    worst = [model.vocabulary_[token] for token in np.argsort(strength)[[0, 1, 2, -3, -2, -1]]]
    before, tried, flipped = model.predict(UNSEEN[:40]), 0, 0
    for text, label, fewest in zip(UNSEEN[:40], before, edits, strict=True):
        for budget in (fewest - 1, fewest + 3):
            attacked = []
            for _ in range(50):
                words = text.split()
                for _ in range(budget):
                    words[rng.integers(len(words))] = str(rng.choice(worst))
                attacked.append(" ".join(words))
            changed = int((model.predict(attacked) != label).sum())
            assert budget >= fewest or not changed
            tried, flipped = tried + 50, flipped + changed
    assert flipped > tried / 10


def test_a_folder_gives_the_same_model_back_and_learns_on_alike(model, tmp_path):
    model = TextClassifier(vectors=(ARRAY, WORDS), random_state=0).fit(TRAIN, Y)
    model.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model", vectors=(ARRAY, WORDS))
    assert again.vocabulary_ == model.vocabulary_
    np.testing.assert_array_equal(again.decision_function(UNSEEN), model.decision_function(UNSEEN))
    more, labels = texts(GOOD, BAD, 40, 7)
    np.testing.assert_allclose(
        again.partial_fit(more, labels).decision_function(UNSEEN),
        model.partial_fit(more, labels).decision_function(UNSEEN),
    )
    assert model.score(UNSEEN, Z) > 0.95
    stored = json.loads((tmp_path / "model" / "model.json").read_text())
    assert GOOD[30] not in json.dumps(stored)  # values of words that were never seen come from the vectors


def test_a_folder_keeps_words_of_classes_that_were_left_out(tmp_path):
    given = {"vectors": pieces_of_words(tmp_path), "min_class": 5, "random_state": 0}
    with pytest.warns(UserWarning, match="leaves out 1 of 3 classes"):
        model = TextClassifier(**given).fit([*TRAIN, f"{GOOD[0]}{GOOD[1]} {GOOD[0]} {REST[1]}"], [*map(str, Y), "rare"])
    assert model.choice_.vectors > 0
    assert not model._statistics[0][model.vocabulary_.index(GOOD[0] + GOOD[1])].any()
    model.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert again.vocabulary_ == model.vocabulary_
    np.testing.assert_array_equal(
        again.decision_function([GOOD[0] + GOOD[1]]), model.decision_function([GOOD[0] + GOOD[1]])
    )


def pieces_of_words(folder):
    """A file in which every word is a piece, and two words together are their mean."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordPiece

    names = ["[UNK]", *WORDS, *(f"##{word}" for word in WORDS)]
    tokenizer = Tokenizer(WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(
        {"table": np.concatenate([np.zeros((1, 6)), ARRAY, ARRAY]).astype(np.float32)}, folder / "model.safetensors"
    )
    return folder / "model.safetensors"


def test_any_word_of_known_pieces_has_a_value(tmp_path):
    model = TextClassifier(vectors=pieces_of_words(tmp_path), random_state=0).fit(TRAIN, Y)
    known = model.vocabulary_
    good, bad = ([a + b for a in kind[20:30] for b in kind[30:]] for kind in (GOOD, BAD))
    assert not {*good, *bad} & {*known}
    assert (model.predict(good) == 1).mean() > 0.95
    assert (model.predict(bad) == 0).mean() > 0.95
    text = f"{good[0]} {REST[0]} {good[7]}"
    (why,), (decision,) = model.explain([text]), model.decision_function([text])
    assert {reason.token for reason in why.reasons} == {*text.split()}
    assert why.decision == pytest.approx(decision, abs=1e-12)
    assert why.bias + sum(reason.contribution for reason in why.reasons) == pytest.approx(decision, abs=1e-12)
    assert model.counterfactuals([text]) == [why.counterfactual]
    assert set(model.mistakes([text], [0])["token"]) <= {*text.split()}
    model.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.decision_function([*good, text]), model.decision_function([*good, text]))
    assert again.decision_function(iter([text])) == decision
    assert again.vocabulary_ == model.vocabulary_ == known


@pytest.mark.parametrize("classes", [2, 3])
def test_no_word_of_known_pieces_beats_a_certificate(tmp_path, classes):
    third = [" ".join(np.random.default_rng(i).choice(REST, 7)) for i in range(30)] if classes == 3 else []
    given = {"vectors": pieces_of_words(tmp_path), "loss": "logistic", "random_state": 0}
    model = TextClassifier(**given).fit([*TRAIN, *third], [*Y, *(2 for _ in third)])
    some = [*UNSEEN[:20], *third[:5]]
    labels, edits, rng = model.predict(some), model.certificates(some)["edits"].to_numpy(), np.random.default_rng(6)
    tried, flipped = 0, 0
    for text, label, fewest in zip(some, labels, edits, strict=True):
        for budget in (fewest - 1, fewest + 3):
            attacked = []
            for _ in range(40):
                words, kind = text.split(), (GOOD, BAD, REST)[rng.integers(3)]
                for _ in range(budget):
                    words[rng.integers(len(words))] = "".join(rng.choice(kind, 2))
                attacked.append(" ".join(words))
            changed = int((model.predict(attacked) != label).sum())
            assert budget >= fewest or not changed
            tried, flipped = tried + 40, flipped + changed
    assert flipped > tried / 10


def test_a_folder_refuses_vectors_that_are_missing_or_changed(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("\n".join(f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, ARRAY, strict=True)))
    model = TextClassifier(vectors=file, random_state=0).fit(TRAIN, Y)
    model.save(tmp_path / "model")
    assert TextClassifier.load(tmp_path / "model").score(UNSEEN, Z) == model.score(UNSEEN, Z)
    file.write_text(file.read_text().replace("goodaa 1.0", "goodaa 0.9"))
    with pytest.raises(UsageError, match=r"vectors of .*vectors.txt that have since changed"):
        TextClassifier.load(tmp_path / "model")
    file.unlink()
    with pytest.raises(UsageError, match=r"vectors of .*vectors.txt, not found now .*does not exist"):
        TextClassifier.load(tmp_path / "model")


def test_a_folder_with_an_array_of_vectors_asks_for_it(model, tmp_path):
    model.save(tmp_path / "model")
    with pytest.raises(UsageError, match="vectors of an array, which cannot be saved; load it with vectors="):
        TextClassifier.load(tmp_path / "model")
    with pytest.raises(UsageError, match="or with others"):
        TextClassifier.load(tmp_path / "model", vectors=(2 * ARRAY, WORDS))


def test_the_vector_of_a_stem_is_the_mean_over_its_words():
    words = ("film", "films", "good")
    vectors = WordVectors("test", "", words, np.array([[2.0, 0], [0, 2], [-2, -2]], np.float32))
    pipeline = TextClassifier(stemmer="english")
    from whichtoken.estimators.text.counting import tokenizer_of

    found = vectors_of_tokens(tokenizer_of(pipeline), ["film", "good", "film good"], vectors)
    np.testing.assert_allclose(found[0], vectors.of(words)[:2].mean(axis=0), atol=1e-6)
    assert not found[2].any()


def test_files_of_vectors_are_read(tmp_path):
    glove, header, table = tmp_path / "glove.txt", tmp_path / "word2vec.vec", tmp_path / "table.safetensors"
    lines = ["Good 1 0 0.5", "bad -1 0 0.5", "good 9 9 9", ". . . 1 1 1", "at me@home.org 2 2 2"]  # GloVe has such
    glove.write_text("\n".join(lines))
    header.write_text("\n".join(["5 3", *lines[3:], *lines[:3]]))  # the first word may have spaces, too
    save_file({"embeddings": np.array([[1, 0, 0.5], [-1, 0, 0.5], [9, 9, 9]], np.float32)}, table)
    (tmp_path / "vocab.txt").write_text("Good\nbad\ngood\n")
    found = [read_vectors(path) for path in (glove, str(header), table)]
    for vectors in found:
        assert vectors.words == ("good", "bad")  # the first of those that are the same in lower case
        np.testing.assert_allclose(vectors.raw, [[1, 0, 0.5], [-1, 0, 0.5]])
    assert len({vectors.sha256 for vectors in found}) == 3


def test_words_are_the_mean_of_their_pieces(tmp_path):
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordPiece

    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "good": 1, "bad": 2, "##ness": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    table = np.array([[0, 0], [4, 0], [0, 2], [2, 2]], np.float32)
    save_file({"embedding": table}, tmp_path / "model.safetensors")
    vectors = read_vectors(tmp_path / "model.safetensors")
    assert vectors.words == ("good", "bad")
    expected = (table[1] + table[3]) / 2 - table[1:3].mean(axis=0)
    np.testing.assert_allclose(vectors.of(["goodness"])[0], expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((ARRAY, WORDS[:5]), r"shape \(120, 6\) with 5 words"),
        ((ARRAY[:, 0], WORDS), r"shape \(120,\) with 120 words"),
        ((np.empty((0, 3)), []), r"shape \(0, 3\) with 0 words"),
        ((ARRAY, [f"x{i}" for i in range(120)]), "vectors of the array have none of the"),
        ((np.full((120, 2), np.nan), WORDS), "not finite"),
        ((np.full((120, 2), 0.1), WORDS), "the same for all 120 words"),
        ((1e30 * ARRAY, WORDS), r"numbers up to \d.\d+e\+30; scale them"),
        ((np.ones((1, 2)), [""]), "vectors of the array contain no word"),
        (3.5, "vectors of type float are not known"),
        ("no-such-vectors", "no-such-vectors"),
        ("missing.txt", "does not exist"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_bad_vectors_are_one_sentence(given, sentence):
    with pytest.raises(UsageError, match=sentence) as raised:
        TextClassifier(vectors=given).fit(TRAIN, Y)
    assert "\n" not in str(raised.value)


def test_bad_uses_of_vectors_are_one_sentence(tmp_path, model):
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("good 1 2 3\nbad 1 2\n")
    with pytest.raises(UsageError, match="line 2: 2 numbers instead of 3"):
        read_vectors(wrong)
    for numbers in ("1 2 3 4", "1 2 3 -4.5e-2"):
        wrong.write_text(f"good 1 2 3\nbad {numbers}\n")
        with pytest.raises(UsageError, match="line 2: 4 numbers instead of 3"):
            read_vectors(wrong)
    with pytest.raises(UsageError, match="holds counts"):
        TextClassifier(vectors=(ARRAY, WORDS)).fit(np.ones((4, 2)), [0, 1, 0, 1])
    with pytest.raises(UsageError, match="n_queries=2"):
        TextClassifier(vectors=(ARRAY, WORDS), n_queries=2).fit(TRAIN, Y)
    with pytest.raises(UsageError, match="repeats=3 is for words alone"):
        model.token_importance(TRAIN, Y, repeats=3)


# --- an encoder


class Letters:
    """An encoder that knows which words are good and bad, and counts what it is asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, some):
        self.asked += some
        return np.array([[text.count("good"), text.count("bad"), 1.0] for text in some])


@pytest.fixture(scope="module")
def blended():
    return TextClassifier(encoder=Letters(), random_state=0).fit(TRAIN, Y)


@pytest.mark.filterwarnings("ignore:.*no known word")
def test_an_encoder_is_weighed_by_validation_and_asked_once(blended):
    letters = blended.encoder
    assert blended._encoder.share > 0.5
    assert len(letters.asked) == len(set(TRAIN))
    assert blended.score(UNSEEN, Z) == 1.0
    before = len(letters.asked)
    blended.predict_proba(UNSEEN)
    assert len(letters.asked) == before
    silent = TextClassifier(encoder=lambda some: np.ones((len(some), 2)), random_state=0).fit(TRAIN, Y)
    plain = TextClassifier(random_state=0).fit(TRAIN, Y)
    np.testing.assert_allclose(silent.decision_function(TRAIN) > 0, plain.decision_function(TRAIN) > 0)


def test_a_note_on_unknown_words_claims_no_label_that_an_encoder_may_move(blended):
    with pytest.warns(
        UserWarning, match="^2 of 2 documents have no known word; the prediction does not come from words$"
    ):
        assert blended.predict([" ".join(GOOD[20:25]), " ".join(BAD[20:25])]).tolist() == [1, 0]


@pytest.mark.filterwarnings("ignore:.*no known word")
def test_parts_of_an_encoder_add_up_and_deletions_are_confirmed(blended):
    long = " ".join(f"{text}." for text in UNSEEN[1:40:2])
    for why in blended.explain([*UNSEEN[:4], long]):
        total = why.bias + sum(r.contribution for r in why.reasons) + sum(part.contribution for part in why.parts)
        assert total == pytest.approx(why.decision, abs=1e-9)
        assert "".join(why.text[part.start : part.stop] for part in why.parts) == why.text
        if why.counterfactual:
            left = why.text
            for reason in why.reasons:
                for start, stop in reason.places if reason.token in why.counterfactual else ():
                    left = left[:start] + " " * (stop - start) + left[stop:]
            assert "not proven smallest" in repr(why)
            assert blended.predict([left])[0] == why.flips_to
    assert len(why.parts) > 1


@pytest.mark.filterwarnings("ignore:.*no known word")
def test_an_encoder_refuses_what_is_proven_for_words_alone(blended, tmp_path):
    for call in (blended.certificates, lambda some: blended.export(), lambda some: blended.partial_fit(some, Y[:2])):
        with pytest.raises(UsageError, match="is for words alone, and this model has an encoder"):
            call(TRAIN[:2])
    blended.save(tmp_path / "model")
    with pytest.raises(UsageError, match="encoder of a function, which cannot be saved; load it with encoder="):
        TextClassifier.load(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model", encoder=Letters())
    np.testing.assert_allclose(again.decision_function(UNSEEN), blended.decision_function(UNSEEN))


@pytest.mark.filterwarnings("ignore:.*no known word")
@pytest.mark.parametrize("given", [{"threshold": "f1"}, {"threshold": 0.9}, {"class_weight": "balanced"}], ids=str)
def test_thresholds_and_class_weights_hold_for_the_blend(given):
    few = np.r_[np.arange(0, 60, 2), np.arange(1, 20, 2)]
    model = TextClassifier(encoder=Letters(), random_state=0, **given).fit([TRAIN[i] for i in few], Y[few])
    assert model._encoder is not None
    mixed = [f"{good} {bad}" for good, bad in zip(UNSEEN[1::2], UNSEEN[::2], strict=True)] + UNSEEN
    chosen = (model.predict_proba(mixed) * model.decision_weights_).argmax(axis=1)
    np.testing.assert_array_equal(model.predict(mixed), chosen)
    if "threshold" in given:
        assert 0 < model.choice_.threshold < 1
    for why in model.explain(mixed[:6]):
        total = why.bias + sum(r.contribution for r in why.reasons) + sum(part.contribution for part in why.parts)
        assert total == pytest.approx(why.decision, abs=1e-9)
        assert why.flips_to is None or why.flips_to != why.label


@pytest.mark.filterwarnings("ignore:.*no known word")
def test_a_folder_with_vectors_and_an_encoder_gives_the_same_model_back(tmp_path):
    given = {"vectors": (ARRAY, WORDS), "encoder": Letters()}
    model = TextClassifier(**given, random_state=0).fit(TRAIN, Y)
    assert model._vectors is not None
    assert model._encoder is not None
    model.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model", **given)
    np.testing.assert_array_equal(again.decision_function(UNSEEN), model.decision_function(UNSEEN))
    limits = json.loads((tmp_path / "model" / "model-card.json").read_text())["limits"]
    assert "Words that neither the training texts nor the vectors contain are ignored by all but the encoder." in limits


@pytest.mark.parametrize(
    ("encoder", "sentence"),
    [
        (lambda some: np.full((len(some), 2), np.nan), "numbers that are not finite for the text"),
        (lambda some: np.ones((3, 2)), r"shape \(3, 2\) for 60 texts"),
        (lambda some: np.ones(len(some)), r"shape \(60,\) for 60 texts"),
        (3, "encoder of type int is not known"),
        ("no-such-encoder", "no-such-encoder"),
        ("no/such/encoder", "no/such/encoder is not a folder"),
    ],
    ids=["nan", "length", "axes", "type", "name", "folder"],
)
def test_bad_encoders_are_one_sentence(encoder, sentence):
    with pytest.raises(UsageError, match=sentence):
        TextClassifier(encoder=encoder).fit(TRAIN, Y)


def test_an_encoder_of_another_length_later_is_one_sentence(blended, tmp_path):
    blended.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model", encoder=lambda some: np.ones((len(some), 7)))
    with pytest.raises(UsageError, match="returned 7 numbers for a text, and 3 in the fit"):
        again.predict(TRAIN)
