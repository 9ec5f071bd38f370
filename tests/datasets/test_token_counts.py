"""Counts of tokens: one form for every input, and one sentence for each that has none."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from whichtoken.datasets import TokenCounts, token_counts
from whichtoken.datasets.token_counts import count_ids


@given(st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=5))
def test_ids_are_counted_like_bincount(sequences):
    lengths = [len(row) for row in sequences]
    ids = np.array([token for row in sequences for token in row], dtype=int)
    data = TokenCounts(
        count_ids(np.repeat(np.arange(len(lengths)), lengths), ids, (len(lengths), 7)), [1] * len(lengths)
    )
    expected = [np.bincount(np.array(row, int), minlength=7) for row in sequences]
    np.testing.assert_array_equal(data.counts.toarray(), expected)
    np.testing.assert_array_equal(data.lengths, lengths)
    assert data.counts.has_sorted_indices
    assert data.counts.dtype == np.int32


def test_dense_coo_and_unsorted_forms_are_the_same():
    dense = np.array([[0, 2, 1], [3, 0, 0]])
    unsorted = sparse.csr_array((np.array([1.0, 1, 1, 3]), np.array([2, 1, 1, 0]), np.array([0, 3, 4])), shape=(2, 3))
    for form in (dense, dense.tolist(), sparse.coo_array(dense), unsorted, dense.astype(float)):
        data = TokenCounts(form, np.array([1.0, -1.0]))
        np.testing.assert_array_equal(data.counts.toarray(), dense)
        assert data.counts.has_canonical_format
        assert data.labels.dtype == np.int8
    assert data.counts.nnz == 3


def test_subset_by_index_mask_and_slice():
    data = TokenCounts(np.arange(12).reshape(4, 3), [1, -1, 1, -1], ("a", "b", "c"))
    by_index = data.subset([0, 2])
    for rows in (np.array([True, False, True, False]), slice(0, 4, 2)):
        other = data.subset(rows)
        np.testing.assert_array_equal(other.counts.toarray(), by_index.counts.toarray())
        np.testing.assert_array_equal(other.labels, by_index.labels)
    assert by_index.vocabulary == ("a", "b", "c")
    assert len(by_index) == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TokenCounts(np.eye(3), [0, 1, 2]), r"labels hold 0, 2; only -1 and \+1 are accepted"),
        (lambda: TokenCounts(np.eye(2), ["good", "bad"]), "labels hold 'bad', 'good'"),
        (lambda: TokenCounts(np.eye(2), [np.nan, 1]), "labels hold nan"),
        (lambda: TokenCounts(np.eye(2), [1, 1, -1]), r"labels of shape \(3,\)"),
        (lambda: TokenCounts(-np.eye(2), [1, -1]), "counts hold -1"),
        (lambda: TokenCounts(np.eye(2) / 2, [1, -1]), "must be whole numbers"),
        (lambda: TokenCounts(np.full((2, 2), np.nan), [1, -1]), "must be whole numbers"),
        (lambda: TokenCounts(np.eye(2), [1, -1], ("a",)), "vocabulary of 1 words must name all 2"),
        (
            lambda: TokenCounts([[2**32 + 1, 1]], [1]),
            "counts hold 4294967297, the largest that is accepted is 2147483647",
        ),
    ],
)
def test_wrong_input_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("chunk", [1 << 21, 50])
@pytest.mark.parametrize("ngrams", [1, 2, 3])
def test_texts_that_hold_an_n_gram_are_counted_as_in_scikit_learn(ngrams, chunk, monkeypatch):
    monkeypatch.setattr(token_counts, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    rows = [[f"w{word}" for word in rng.zipf(1.6, rng.integers(0, 30)) if word < 200] for _ in range(300)]

    def grams(row):
        return [" ".join(row[i : i + n]) for n in range(1, ngrams + 1) for i in range(len(row) - n + 1)]

    sequences, occurrences = (
        token_counts.TokenSequences.from_names([rows]),
        Counter(chain.from_iterable(map(grams, rows))),
    )
    for least in (1, 2, 5):
        peer = CountVectorizer(analyzer=grams, min_df=least).fit(rows)
        assert set(sequences.frequent(ngrams, least, by_text=True)) == set(peer.get_feature_names_out())
        assert set(sequences.frequent(ngrams, least)) == {gram for gram, n in occurrences.items() if n >= least}
