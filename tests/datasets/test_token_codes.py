import numpy as np
import pytest

from whichtoken.claims.mirror_descent.reviews import PIVOT_SENTENCES
from whichtoken.datasets.review_sentences import synthetic_reviews, word_strengths
from whichtoken.datasets.text_pipeline import TokenCodes

TEXTS = ["The plot is flat.", "A flat, flat plot!", "the ending"]


@pytest.fixture
def word_pieces(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "un", "##watch", "##able", "cafe", "!"]) + "\n"
    )
    return path


def test_words_are_numbered_by_frequency_behind_the_marks():
    codes = TokenCodes(8, texts=TEXTS)
    # flat: 3 times; ".", "," and the others once or twice
    flat = codes.pivot("flat", "flat")
    assert flat.codes.tolist() == [2, 4, 3]
    assert flat.place == 1
    assert len(codes) == 4 + len({"the", "plot", "is", "flat", ".", "a", ",", "!", "ending"})


def test_rows_are_marked_cut_and_padded():
    rows = TokenCodes(5, texts=TEXTS).encode(["flat", "the plot is flat .", "nowhere"])
    assert rows[0].tolist() == [2, 4, 3, 0, 0]
    assert rows[1, 0] == 2
    assert rows[1, -1] == 3
    assert rows[2].tolist() == [2, 1, 3, 0, 0]


def test_frequent_words_alone_are_kept():
    codes = TokenCodes(8, texts=TEXTS, words=5)
    assert len(codes) == 5
    assert codes.encode(["ending flat"])[0].tolist() == [2, 1, 4, 3, 0, 0, 0, 0]


def test_word_pieces_follow_the_vocabulary(word_pieces):
    codes = TokenCodes(8, vocabulary=word_pieces)
    assert codes.encode(["Unwatchable<br />FILM !", "Café?"]).tolist() == [
        [2, 5, 6, 7, 4, 9, 3, 0],
        [2, 8, 1, 3, 0, 0, 0, 0],
    ]
    assert codes.pivot("an unwatchable film", "unwatchable") is None  # three pieces
    assert codes.pivot("an unwatchable film", "film").place == 5


def test_word_pieces_agree_with_the_reference_tokenizer(word_pieces):
    from tokenizers import BertWordPieceTokenizer

    texts = ["Film! film\tUNWATCHABLE café", "un watch", "filmed"]
    reference = [encoding.ids for encoding in BertWordPieceTokenizer.from_file(str(word_pieces)).encode_batch(texts)]
    ours = TokenCodes(12, vocabulary=word_pieces).encode(texts)
    assert [row[row > 0].tolist() for row in ours] == reference


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"^length=2 must be at least 3"):
        TokenCodes(2, texts=TEXTS)
    path = tmp_path / "words.txt"
    path.write_text("film\n")
    with pytest.raises(ValueError, match=r"words.txt must be a WordPiece vocabulary that begins with \[PAD\]"):
        TokenCodes(8, vocabulary=path)


def test_pivot_words_stand_in_their_sentences_once():
    assert len(PIVOT_SENTENCES) >= 40
    assert sum(sentence.label for sentence in PIVOT_SENTENCES) == 0
    assert len({sentence.text for sentence in PIVOT_SENTENCES}) == len(PIVOT_SENTENCES)
    codes = TokenCodes(40, texts=[sentence.text for sentence in PIVOT_SENTENCES])
    for text, pivot, _ in PIVOT_SENTENCES:
        found = codes.pivot(text, pivot)
        assert np.count_nonzero(found.codes == found.codes[found.place]) == 1


def test_pivot_words_of_synthetic_reviews_have_their_label():
    strengths = word_strengths()
    known = [(sentence.label, strengths[sentence.pivot]) for sentence in PIVOT_SENTENCES if sentence.pivot in strengths]
    assert len(known) >= 10
    assert all(label * strength > 0 for label, strength in known)
    codes = TokenCodes(20, texts=synthetic_reviews(300, np.random.default_rng(0))[0])
    assert sum(codes.pivot(text, pivot) is not None for text, pivot, _ in PIVOT_SENTENCES) >= 10
