"""One container for bags, sequences and counts: what it holds, what it shares, what it refuses."""

import numpy as np
import pytest
from scipy import sparse

from whichtoken.attention import RaggedArray

RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((6, 2))
STARTS = np.array([0, 2, 2, 6])


def parts(items):
    return [items.values[a:b] for a, b in zip(items.starts[:-1], items.starts[1:], strict=True)]


def test_every_container_holds_the_same_sequences():
    cube = RNG.standard_normal((3, 4, 2))
    for items in (
        RaggedArray.of(cube),
        RaggedArray.of(list(cube)),
        RaggedArray.of(cube.reshape(12, 2), starts=[0, 4, 8, 12]),
    ):
        assert len(items) == 3
        np.testing.assert_array_equal(items.lengths, [4, 4, 4])
        np.testing.assert_array_equal(parts(items), cube)


def test_counts_are_tokens_and_amounts_without_a_copy():
    counts = sparse.csr_array(np.array([[0, 2, 1], [0, 0, 0], [3, 0, 0]]))
    items = RaggedArray.of(counts)
    assert np.shares_memory(items.tokens, counts.indices)
    assert np.shares_memory(items.amounts, counts.data)
    np.testing.assert_array_equal(items.lengths, [2, 0, 1])
    np.testing.assert_array_equal(items.tokens, [1, 2, 0])
    np.testing.assert_array_equal(items.amounts, [2, 1, 3])


def test_arrays_of_single_precision_are_kept_as_they_are():
    vectors = VECTORS.astype(np.float32)
    assert np.shares_memory(RaggedArray.of(vectors, starts=STARTS).values, vectors)


@pytest.mark.parametrize("rows", [slice(1, 3), [2, 0], np.array([True, False, True]), slice(None, None, 2), []])
def test_a_part_holds_the_chosen_sequences(rows):
    items = RaggedArray(STARTS, VECTORS, np.arange(6), np.arange(1, 7))
    chosen = np.arange(3)[rows]
    some = items[rows]
    assert len(some) == len(chosen)
    for found, i in zip(parts(some), chosen, strict=True):
        np.testing.assert_array_equal(found, VECTORS[STARTS[i] : STARTS[i + 1]])
    np.testing.assert_array_equal(some.amounts, some.tokens + 1)


def test_neighboring_sequences_are_a_view():
    assert np.shares_memory(RaggedArray(STARTS, VECTORS)[1:].values, VECTORS)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RaggedArray([0, 3, 2], VECTORS), "starts must begin with 0 and never descend"),
        (lambda: RaggedArray([1, 6], VECTORS), "starts must begin with 0"),
        (lambda: RaggedArray([0.0, 6.0], VECTORS), "starts of shape .* and type float64 must be whole numbers"),
        (lambda: RaggedArray(STARTS, VECTORS[:5]), r"values of shape \(5, 2\) must be \(items, width\) with 6 items"),
        (lambda: RaggedArray(STARTS, VECTORS * np.nan), "values contain NaN or infinity"),
        (lambda: RaggedArray(STARTS), "a ragged array needs values"),
        (lambda: RaggedArray(STARTS, tokens=[0, 1, -1, 0, 0, 0]), "tokens hold -1"),
        (lambda: RaggedArray(STARTS, VECTORS, amounts=[1, 1, 1, 1, 1, -2]), "amounts from -2 to 1 must be finite and at least 0"),
        (lambda: RaggedArray.of([VECTORS, VECTORS[:, :1]]), "sequence 1 of shape"),
        (lambda: RaggedArray.of([]), "a list of sequences must not be empty"),
        (lambda: RaggedArray.of(VECTORS), r"items of shape \(6, 2\) must be"),
        (lambda: RaggedArray.of(np.array([["a"]])), "items of type .* must be real numbers"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_iteration_gives_the_sequences_and_split_gives_what_belongs_to_them():
    array = RaggedArray(STARTS, VECTORS)
    for i, (found, numbers) in enumerate(zip(array, array.split(np.arange(6)), strict=True)):
        np.testing.assert_array_equal(found, array[i])
        np.testing.assert_array_equal(found, VECTORS[numbers])
    np.testing.assert_array_equal(RaggedArray(STARTS, tokens=np.arange(6))[-1], [2, 3, 4, 5])
