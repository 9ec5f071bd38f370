"""The chance that a pick survives, whole words, and tables."""

import families
import numpy as np
import pytest
import torch

from whichtoken.inspection import AttentionProbe, PickSurvival, pick_survival
from whichtoken.inspection.loading import transformers_package
from whichtoken.inspection.survival import confidence_word
from whichtoken.inspection.words import token_name, whole_words, word_offsets

TEXTS = ["the very good film", "a bad plot very good", "good film the plot", "very bad the good film a plot"]


@pytest.mark.transformers
def test_cases_are_picks_of_other_words_before_and_after_one_change():
    survival = pick_survival(families.tiny_classifier(), TEXTS, families.tiny_tokenizer(), changes=12)
    assert len(survival.gap) == len(survival.survived) == len(survival.layer) == len(survival.text)
    assert 0 < len(survival.gap) <= 12 * 8
    assert set(survival.layer) == {0, 1}
    assert np.isfinite(survival.gap).all()


def test_probabilities_are_those_of_the_layer_and_grow_with_the_gap():
    rng = np.random.default_rng(0)
    gap, layer, text = rng.exponential(size=4000), rng.integers(2, size=4000), rng.integers(20, size=4000)
    chance = np.where(layer == 0, 0.99, np.clip(0.4 + 0.2 * gap, 0, 1))
    survival = PickSurvival(gap, rng.random(4000) < chance, layer, text)
    found = survival.probability([0.0, 1.0, 3.0], layer=1)
    assert np.all(np.diff(found) >= 0)
    assert found == pytest.approx([0.4, 0.6, 1.0], abs=0.1)
    assert survival.probability(0.5, layer=0) > 0.95
    assert survival.auroc > 0.8
    table = survival.reliability()
    assert table["cases"].sum() == 4000
    assert (table["predicted"] - table["measured"]).abs().max() < 0.06


def test_without_cases_nothing_is_claimed():
    empty = PickSurvival(np.empty(0), np.empty(0, dtype=bool), np.empty(0, dtype=int), np.empty(0, dtype=int))
    assert np.isnan(empty.probability(1.0))
    assert np.isnan(empty.auroc)
    assert not len(empty.reliability())


@pytest.mark.parametrize(("chance", "word"), [(0.97, "decided"), (0.9, "torn"), (0.5, "tie"), (np.nan, "unknown")])
def test_a_chance_in_a_word(chance, word):
    assert confidence_word(chance) == word


class Pieces:
    """A tokenizer with names and offsets of its own."""

    all_special_ids = (0,)

    def __init__(self, names, offsets):
        self.names, self.offsets = names, offsets

    def convert_ids_to_tokens(self, ids):
        return [self.names[i] for i in ids]

    def __call__(self, text, **options):
        return {"offset_mapping": self.offsets}


@pytest.mark.parametrize(
    "names",
    [
        ["[CLS]", "sun", "##flower", "##s", "grow"],
        ["<s>", "Ġsun", "flower", "s", "Ġgrow"],
        ["<s>", "▁sun", "flower", "s", "▁grow"],
    ],
)  # fmt: skip
def test_pieces_are_joined_to_whole_words_with_their_place_in_the_text(names):
    tokenizer = Pieces(names, [(0, 0), (0, 3), (3, 9), (9, 10), (11, 15)])
    words, numbers = whole_words(tokenizer, range(5))
    assert words == [names[0], "sunflowers", "sunflowers", "sunflowers", "grow"]
    assert numbers == [0, 1, 1, 1, 2]
    assert word_offsets(tokenizer, "sunflowers grow", numbers) == [(0, 0), (0, 10), (0, 10), (0, 10), (11, 15)]


@pytest.mark.transformers
@torch.no_grad()
def byte_level_tokenizer(**options):
    tokenizers, transformers = pytest.importorskip("tokenizers"), transformers_package()
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<pad>"], initial_alphabet=letters, show_progress=False
    )
    inner.train_from_iterator(["the café of the naïve cook"] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", **options)


@pytest.mark.parametrize("side", ["left", "right"])
def test_words_in_bytes_are_decoded_and_found_in_a_padded_text(side):
    """GPT-2 and its heirs spell é in two bytes, count the space before a word, and are often padded on the left."""
    tokenizer, texts = byte_level_tokenizer(padding_side=side), ["the naïve 🙂 isn’t 你好", "café"]
    for text, ids in zip(texts, tokenizer(texts, padding=True)["input_ids"], strict=True):
        words, numbers = whole_words(tokenizer, ids)
        spans = word_offsets(tokenizer, text, numbers)
        real = [(word, text[slice(*span)]) for word, span in zip(words, spans, strict=True) if word != "<pad>"]
        assert all(word == cut for word, cut in real)
        assert list(dict.fromkeys(word for word, _ in real)) == text.split()
        assert all(span == (0, 0) for word, span in zip(words, spans, strict=True) if word == "<pad>")
    assert "".join(token_name(tokenizer, token) for token in tokenizer("the café")["input_ids"]) == "the café"


def test_picks_are_a_table_of_words():
    model, tokenizer = families.tiny_classifier(), families.tiny_tokenizer()
    inputs = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with AttentionProbe(model, special_tokens=tokenizer) as probe:
        model(**inputs)
    picks = probe.picks(1, queries=[0, 2], special=False)
    table = picks.words(tokenizer, TEXTS[:2])
    assert len(table) == 2 * 4 * 2
    row = table[(table["text"] == 1) & (table["head"] == 3) & (table["query"] == 2)].iloc[0]
    assert row["word"] == TEXTS[1].split()[int(picks.token[1, 3, 1]) - 1]
    assert TEXTS[1][row["start"] : row["end"]] == row["word"]
    assert row["gap"] == pytest.approx(float(picks.gap[1, 3, 1]))
    assert "word" not in picks.to_frame()
