"""What is special in the core: the null token, absent tokens, logarithms far below, and what it refuses."""

import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

from whichtoken.attention import kernels, losses, pool_gradient, pool_outputs, pooling, softmax_pool

RNG = np.random.default_rng(0)
SCORES, VALUES, STARTS = RNG.uniform(-5, 5, 6), RNG.standard_normal(6), np.array([0, 3, 3, 6])


def with_null_written_out(log_null):
    """Scores and values with a last token of value 0 in every sequence."""
    ends = STARTS[1:]
    return np.insert(SCORES, ends, log_null), np.insert(VALUES, ends, 0.0), STARTS + np.arange(4)


@pytest.mark.parametrize("log_null", [-3.0, 4.0, 60.0, 900.0, np.array([-2.0, 3.0, 700.0])])
def test_null_token_is_a_token_of_value_zero(log_null):
    scores, values, starts = with_null_written_out(log_null)
    upstream = np.array([0.3, -2.0, 1.0])
    found, whole = softmax_pool(SCORES, VALUES, STARTS, log_null=log_null), softmax_pool(scores, values, starts)
    slopes, all_slopes = (
        pool_gradient(upstream, SCORES, VALUES, STARTS, log_null=log_null),
        pool_gradient(upstream, scores, values, starts),
    )
    nulls = starts[1:] - 1
    np.testing.assert_allclose(found.outputs, whole.outputs, rtol=1e-14)
    np.testing.assert_allclose(found.log_weights, np.delete(whole.log_weights, nulls), rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(slopes.scores, np.delete(all_slopes.scores, nulls), rtol=1e-13)
    np.testing.assert_allclose(slopes.values, np.delete(all_slopes.values, nulls), rtol=1e-13)
    per_sequence = all_slopes.scores[nulls]
    np.testing.assert_allclose(slopes.log_null, per_sequence if np.ndim(log_null) else per_sequence.sum(), rtol=1e-12)


def test_absent_tokens_are_as_if_they_were_not_there():
    """Amount 0, or score -inf; whatever their score or value otherwise."""
    kept = np.array([0, 2, 3, 4])
    alone = softmax_pool(SCORES[kept], VALUES[kept], [0, 2, 2, 4])
    high = SCORES.copy()
    high[[1, 5]] = 1e4
    hidden = np.where(np.isin(np.arange(6), kept), SCORES, -np.inf)
    tokens = np.arange(6)
    for options in ({"amounts": [1, 0, 1, 1, 1, 0]}, {"amounts": [1, 0, 1, 1, 1, 0], "tokens": tokens}):
        found = softmax_pool(high, VALUES, STARTS, **options)
        np.testing.assert_allclose(found.outputs, alone.outputs, rtol=1e-14)
        assert (found.log_weights[[1, 5]] == -np.inf).all()
        assert (pool_gradient(np.ones(3), high, VALUES, STARTS, **options).scores[[1, 5]] == 0).all()
    np.testing.assert_allclose(softmax_pool(hidden, VALUES, STARTS).outputs, alone.outputs, rtol=1e-14)
    assert (pool_outputs(np.full(6, -np.inf), VALUES, STARTS) == 0).all()


def test_log_weights_are_right_ten_thousand_below_the_winner():
    found = softmax_pool([0.0, -1e4, -40.0], np.zeros(3), [0, 3]).log_weights
    np.testing.assert_allclose(found, [-np.exp(-40.0), -1e4, -40.0], rtol=1e-15)


def test_one_entry_of_a_vocabulary_gathers_the_slopes_of_all_its_places():
    tokens, amounts = np.array([1, 0, 1, 2, 2, 0], dtype=np.int32), np.array([1, 2, 1, 3, 1, 1], dtype=np.int32)
    scores, values = SCORES[:3], VALUES[:3]
    found = pool_gradient([1.0, 1.0, -2.0], scores, values, STARTS, amounts, tokens=tokens)
    places = pool_gradient([1.0, 1.0, -2.0], scores[tokens], values[tokens], STARTS, amounts)
    np.testing.assert_allclose(found.scores, np.bincount(tokens, places.scores), rtol=1e-13)
    np.testing.assert_allclose(found.values, np.bincount(tokens, places.values), rtol=1e-13)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": SCORES[:5]}, r"scores of shape \(5,\) must have one or two axes and 6 rows"),
        ({"values": VALUES[None, None]}, "values of shape .* must have one or two axes"),
        ({"scores": SCORES * np.nan}, "scores contain NaN or \\+inf"),
        ({"amounts": [1, 2]}, r"amounts of shape \(2,\) .* must be numbers, \(6,\)"),
        ({"log_null": [1.0, 2.0]}, r"log_null of shape \(2,\) must be one number or fit the shape \(3,\)"),
        ({"log_null": np.inf}, "log_null contains NaN or \\+inf"),
        ({"tokens": [0, 1, 2, 3, 4, 6]}, "tokens hold 6, the vocabulary has only 6 entries"),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    arguments = {"scores": SCORES, "values": VALUES, "starts": STARTS} | change
    with pytest.raises(ValueError, match=message):
        softmax_pool(**arguments)


def test_slopes_must_have_the_shape_of_the_outputs():
    with pytest.raises(ValueError, match=r"upstream of shape \(2,\) must have the shape of the outputs, \(3,\)"):
        pool_gradient([1.0, 2.0], SCORES, VALUES, STARTS)


@pytest.mark.parametrize("module", [losses, kernels], ids=lambda module: module.__name__)
def test_no_caller_can_relax_the_arithmetic(module):
    """Unless it says so itself, a compiled function takes the float rules of whichever caller compiles it first."""
    compiled = [part for part in vars(module).values() if isinstance(part, CPUDispatcher)]
    assert compiled
    for function in compiled:
        assert function.targetoptions["fastmath"] is False, function
        assert function.targetoptions["error_model"] == "numpy", function


def problem(seed):
    """Ragged sequences, some empty, with everything that may be there or not."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 9, rng.integers(0, 12)))])
    size, kind = int(starts[-1]), rng.choice([np.float32, np.float64])
    tokens = rng.integers(0, 7, size) if seed % 2 else None
    rows = size if tokens is None else 7
    queries, values = ([(), (1,), (3,)][rng.integers(3)] for _ in range(2))
    scores = (rng.standard_normal((rows, *queries)) * rng.choice([0.0, 1.0, 50.0, 800.0])).astype(kind)
    if scores.size and seed % 3 == 0:
        scores.flat[rng.integers(scores.size)] = -np.inf
    amounts = None if seed % 5 == 0 else rng.integers(0, 3, size) * rng.choice([1.0, 0.37])
    log_null = rng.choice([None, -np.inf, rng.standard_normal(), 100 * rng.standard_normal(), 700.0])
    return (scores, rng.standard_normal((rows, *values)).astype(kind), starts, amounts, log_null), tokens


@pytest.mark.slow
def test_arrays_give_every_digit_of_the_compiled_loops(monkeypatch):
    for seed in range(200):
        arguments, tokens = problem(seed)
        found = []
        for worth in (np.inf, -1):
            monkeypatch.setattr(pooling, "TOKENS_WORTH_LOADING", worth)
            found.append(softmax_pool(*arguments, tokens=tokens))
        np.testing.assert_array_equal(found[0].outputs, found[1].outputs, err_msg=f"seed {seed}")
        np.testing.assert_array_equal(found[0].log_weights, found[1].log_weights, err_msg=f"seed {seed}")


def test_compiled_loops_take_over_once_they_are_worth_loading(monkeypatch):
    used = []
    for module, name in ((pooling, "_pool_arrays"), (kernels, "pool_all")):
        fill = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, fill=fill, name=name: (used.append(name), fill(*a)))
    monkeypatch.setattr(pooling, "_pooled_tokens", 0)
    monkeypatch.setattr(pooling, "TOKENS_WORTH_LOADING", 2 * (pooling.TOKENS_PER_CALL + len(SCORES)))
    for _ in range(4):
        pool_outputs(SCORES, VALUES, STARTS)
    assert used == ["_pool_arrays", "_pool_arrays", "pool_all", "pool_all"]
