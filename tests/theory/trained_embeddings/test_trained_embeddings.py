"""Predictions for trained embeddings: against autograd, brute force, limiting identities and reference values."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from whichtoken.datasets import LevelTokens, RelevantTokens
from whichtoken.margin import selection_svm
from whichtoken.theory.trained_embeddings.attention import (
    attend,
    dominant_share,
    local_optimality,
    posterior_difference,
    secondary_sets,
    selection_margin,
    selection_sets,
    signed_frequency,
    token_classes,
)
from whichtoken.theory.trained_embeddings.lemmas import (
    log_loss_bound,
    loss_bound,
    loss_limit,
    lost_label,
    one_relevant_token,
    one_step_bounds,
    relevant_selection,
    rival_selections,
    smallest_rival,
)
from whichtoken.theory.trained_embeddings.one_step import first_step, ideal_first_step, one_step_error


def problem(dim=32, seed=0, samples=40):
    """Sequences of unequal length with repeated tokens."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.7, (samples, 12))
    counts[:, 0] += 1
    labels = np.where(rng.random(samples) < 0.5, 1, -1)
    E, p, v = (rng.standard_normal(shape) / np.sqrt(dim) for shape in ((12, dim), dim, dim))
    return E, p, v / np.linalg.norm(v), counts, labels


def loss_by_tokens(E, p, v, counts, labels):
    """The mean logistic loss, token by token as in the paper."""
    total = 0.0
    for row, sign in zip(counts, labels, strict=True):
        X = E[np.repeat(np.arange(len(row)), row)]
        total = total + torch.nn.functional.softplus(-int(sign) * (torch.softmax(X @ p, 0) @ X @ v))
    return total / len(labels)


def test_first_step_is_that_of_autograd():
    E, p, v, counts, labels = problem()
    weights = [torch.tensor(x, requires_grad=True) for x in (E, p)]
    loss_by_tokens(*weights, torch.tensor(v), counts, labels).backward()
    E1, p1 = first_step(E, p, v, counts, labels, 3.0)
    np.testing.assert_allclose(E1, E - 3.0 * weights[0].grad.numpy(), atol=1e-13)
    np.testing.assert_allclose(p1, p - 3.0 * weights[1].grad.numpy(), atol=1e-13)


def test_error_is_what_the_step_leaves_of_its_law():
    E, p, v, counts, labels = problem()
    error = one_step_error(E, p, v, counts, labels)
    lr = 7.0
    E1, p1 = first_step(E, p, v, counts, labels, lr)
    ideal, unchanged = ideal_first_step(E, p, v, counts, labels, lr)
    np.testing.assert_allclose(np.linalg.norm(E1 - ideal, axis=1), lr * error.per_token, rtol=1e-10)
    assert np.linalg.norm(p1 - unchanged) == pytest.approx(lr * error.cls, rel=1e-12)
    assert error.relative == pytest.approx(np.linalg.norm(E1 - ideal) / np.linalg.norm(ideal - E), rel=1e-10)


def test_no_error_without_scores_and_values():
    _, _, _, counts, labels = problem()
    E, p, v = np.eye(12, 20), np.eye(20)[15], np.eye(20)[16]  # E.p = E.v = 0: uniform attention, f = 0
    error = one_step_error(E, p, v, counts, labels)
    assert error.relative < 1e-14
    assert error.cls < 1e-15


# Frobenius error relative to (alpha/2), K-level data with n = 1000 and T = 64: .171 at dim 64, .044 at 1024.
@pytest.mark.parametrize(("dim", "reference"), [(64, 0.171), (256, 0.086), (1024, 0.044)])
def test_error_matches_reference_value(dim, reference):
    relative = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        data = LevelTokens(length=64).sample(1000, rng)
        E, p, v = (rng.standard_normal(shape) / np.sqrt(dim) for shape in ((2048, dim), dim, dim))
        relative.append(one_step_error(E, p, v / np.linalg.norm(v), data.counts, data.labels).relative)
    assert np.mean(relative) == pytest.approx(reference, rel=0.1)


def test_signed_frequency_divides_by_each_length():
    counts = np.array([[2, 0, 0], [1, 1, 2]])
    np.testing.assert_allclose(signed_frequency(counts, [1, -1]), [(1 - 0.25) / 2, -0.125, -0.25])
    np.testing.assert_allclose(posterior_difference(counts, [1, -1]), [1 / 3, -1, -1])


def test_posterior_difference_of_an_absent_token_is_unknown():
    assert np.isnan(posterior_difference([[1, 0]], [1])[1])


@pytest.mark.parametrize("equal", [True, False])
def test_irrelevant_tokens_have_no_signed_frequency(equal):
    data = RelevantTokens(equal=equal).sample(32, np.random.default_rng(0))
    alpha = signed_frequency(data.counts, data.labels)
    classes = token_classes(data.counts, data.labels)
    assert np.abs(alpha[8:]).max() < 1e-17
    np.testing.assert_array_equal(classes.signs, [1] * 4 + [-1] * 4 + [0] * 24)
    assert classes.relevant.sum() == 8
    assert np.ptp(np.abs(alpha[:8])) < 1e-15 or not equal


def test_token_classes_of_a_small_data_set():
    summary = token_classes([[2, 0, 1, 1, 0], [1, 1, 1, 1, 0]], [1, -1]).summary
    assert summary == {
        "positive": 1, "negative": 1, "irrelevant": 2, "completely positive": 0, "completely negative": 1, "absent": 1,
    }  # fmt: skip


def test_sequences_that_break_the_assumption_are_named():
    rng = np.random.default_rng(0)
    assert one_relevant_token(*_arrays(RelevantTokens().sample(8, rng))).holds
    two = RelevantTokens(relevant_per_sequence=2).sample(8, rng)
    report = one_relevant_token(two.counts, two.labels)
    assert report.broken.size == 16
    assert report.sentence == (
        "16 of 16 sequences break the assumption of one relevant token: "
        "sequence 0 (label +1) has 2 relevant tokens instead of one (token 0, token 1)"
    )
    chance = RelevantTokens(paired=False).sample(8, rng)
    assert "tokens of both labels with unequal frequencies" in one_relevant_token(*_arrays(chance)).sentence or (
        "relevant tokens instead of one" in one_relevant_token(*_arrays(chance)).sentence
    )


def _arrays(data):
    return data.counts, data.labels


def test_bounds_at_the_sizes_of_an_example():
    bounds = one_step_bounds(2000.0, 1024)
    assert bounds.error / 2000 == pytest.approx(1.944, abs=1e-3)
    assert bounds.embedding_norm == 8002


def test_loss_bound_is_the_loss_of_uniform_attention_on_the_law():
    data = RelevantTokens().sample(32, np.random.default_rng(0))
    alpha = signed_frequency(data.counts, data.labels)
    uniform = attend(np.zeros(32), 500 * alpha, data.counts, data.labels)
    assert loss_bound(data.counts, data.labels, 1000.0) == pytest.approx(uniform.losses.mean(), rel=1e-3)


def test_loss_limit_is_the_cost_of_the_loudest_irrelevant_token():
    rng = np.random.default_rng(0)
    data = RelevantTokens().sample(32, rng)
    E = rng.standard_normal((32, 256)) / 16
    v = np.eye(256)[0]
    E, _ = ideal_first_step(E, np.zeros(256), v, data.counts, data.labels, 10.0)
    loudest = np.abs(E[8:] @ v).max()  # of the irrelevant tokens, each of which occurs in sequences of both labels
    assert loss_limit(E @ v, data.counts, data.labels) == pytest.approx(np.log1p(np.exp(-loudest)) / 64)


def test_scores_equal_inside_sequences_do_not_change_the_loss():
    E, p, v, counts, labels = problem()
    _, along_cls = attend(E @ p, E @ v, counts, labels).gradients()
    assert abs(along_cls.sum()) < 1e-15 * np.abs(along_cls).sum() * len(along_cls)


def test_an_empty_sequence_has_output_zero_and_no_warning():
    attended = attend([0.5, -0.5], [1.0, 2.0], [[0, 0], [1, 1], [0, 0]], [1, -1, -1])
    share = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(attended.outputs, [0.0, share + 2 * (1 - share), 0.0], rtol=1e-15)
    assert attend([0.5], [1.0], [[0]], [1]).outputs.tolist() == [0.0]


@given(st.integers(0, 1000), st.floats(0.0, 2.0))
def test_selection_sets_are_those_of_the_definition(seed, tie):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 3, (5, 6))
    counts[:, 0] += counts.sum(axis=1) == 0
    scores = rng.standard_normal(6)
    first = selection_sets(scores, counts, tie).toarray()
    second = secondary_sets(scores, counts, tie).toarray()
    for x, row in enumerate(counts):
        tokens = np.flatnonzero(row)
        chosen = {t for t in tokens if scores[t] >= scores[tokens].max() - tie}
        rest = [t for t in tokens if t not in chosen]
        next_ones = {t for t in rest if scores[t] >= scores[rest].max() - tie}
        assert set(np.flatnonzero(first[x])) == chosen
        assert set(np.flatnonzero(second[x])) == next_ones


def test_selecting_leaves_the_counts_alone():
    counts = sparse.csr_array(np.array([[1, 2, 0], [0, 1, 1]], dtype=np.int32))
    before = counts.toarray().copy()
    selection_sets([3.0, 1.0, 0.0], counts, 0.1)
    relevant_selection(counts, [1, -1])
    np.testing.assert_array_equal(counts.toarray(), before)


def test_local_optimality_by_hand():
    counts, labels, values = np.array([[1, 1, 1]]), [-1], [-3.0, -1.0, 2.0]
    first, second = (sparse.csr_array(np.array([x], dtype=bool)) for x in ([1, 1, 0], [0, 0, 1]))
    assert local_optimality(values, counts, labels, first, second) == (3 + 2) + (1 + 2)
    assert selection_margin([5.0, 4.0, 1.0], counts, first) == 3.0


def test_dominant_share_is_the_share_of_the_pair_sum():
    rng = np.random.default_rng(3)
    counts, labels = np.array([[1, 2, 1, 0], [1, 0, 1, 1]]), np.array([1, -1])
    scores, values, hat = rng.standard_normal((3, 4))
    scores *= 4
    total = dominant = 0.0
    for x, sign in enumerate(labels):
        positions = np.repeat(np.arange(4), counts[x])
        q = np.exp(scores[positions]) / np.exp(scores[positions]).sum()
        residual = 1 / (1 + np.exp(sign * q @ values[positions]))
        order = sorted(set(positions), key=lambda t: -scores[t])
        for i, j in itertools.combinations(range(len(positions)), 2):
            s, t = positions[i], positions[j]
            term = (hat[s] - hat[t]) * q[i] * q[j] * sign * (values[s] - values[t]) * residual
            total += term
            dominant += term * ({s, t} == set(order[:2]))
    share = dominant_share(scores, values, counts, labels, hat, tie=1e-9)
    assert share == pytest.approx(dominant / total, rel=1e-10)


def test_dominant_share_tends_to_one():
    rng = np.random.default_rng(4)
    counts, labels = np.ones((1, 4), dtype=int), [1]
    scores, values, hat = rng.standard_normal((3, 4))
    shares = [dominant_share(size * scores, values, counts, labels, hat, tie=1e-9) for size in (1, 10, 1000)]
    distances = np.abs(1 - np.array(shares))
    assert distances[2] < 1e-12
    assert distances[1] < distances[0]


def test_rivals_are_the_two_families():
    data = RelevantTokens(irrelevant=5).sample(16, np.random.default_rng(0))
    rivals = list(rival_selections(data.counts, data.labels))
    assert [len(tied) for _, tied, _ in rivals] == [1, 4] * 5
    base = relevant_selection(data.counts, data.labels)
    for _, tied, selection in rivals:
        assert (base > selection).nnz == 0
        assert set(np.unique(selection.indices)) == set(range(8)) | set(tied)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: signed_frequency([[1]], [0]), "only -1 and [+]1"),
        (lambda: attend([1.0], [1.0, 2.0], [[1, 1]], [1]), r"scores of shape \(1,\)"),
        (lambda: attend([1.0], [1.0], [[1]], [1, 1]), "one per sequence"),
        (lambda: one_step_error(np.ones((2, 3)), np.ones(2), np.ones(3), [[1, 1]], [1]), "cls of shape"),
        (lambda: one_step_error(np.ones((2, 3)), np.ones(3), np.full(3, np.nan), [[1, 1]], [1]), "value must hold"),
        (lambda: first_step(*problem(), lr=np.nan), r"lr=nan must lie in \[0, inf\)"),
        (lambda: ideal_first_step(*problem(), lr=np.nan), r"lr=nan must lie in \[0, inf\)"),
        (lambda: one_step_bounds(np.nan, 10), "lr=nan"),
    ],
)  # fmt: skip
def test_refuses_what_makes_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def limit_start(data, lr):
    axes = np.eye(data.counts.shape[1] + 2)
    return *ideal_first_step(axes[:-2], axes[-2], axes[-1], data.counts, data.labels, lr), axes[-1]


def test_the_smallest_rival_is_the_smallest_of_all_selections():
    # brute force: every set of (relevant, irrelevant) pairs as the tied ones, each with the solver for vocabularies
    data = RelevantTokens(3, 1, 2).sample(6, np.random.default_rng(0))
    for lr in (0.0, 3.0, 500.0):
        E, _, _ = limit_start(data, lr)
        norms = []
        for tied in itertools.product([False, True], repeat=4):
            if any(tied) and not all(tied):
                free = dict(zip(itertools.product([0, 1], [2, 3]), tied, strict=True))
                chosen = sparse.lil_array(data.counts.shape, dtype=bool)
                for x, row in enumerate(data.counts.toarray() > 0):
                    own = int(np.flatnonzero(row[:2])[0])
                    for token in np.flatnonzero(row):
                        chosen[x, token] = token == own or free.get((own, token), False)
                margin = selection_svm(E, data.counts, sparse.csr_array(chosen)).margin
                norms += [1 / margin] if margin > 0 else []
        assert smallest_rival(E, data.counts, data.labels).norm == pytest.approx(min(norms), rel=1e-6)


def test_one_label_tied_is_half_as_long_as_relevant_only_after_a_large_step():
    # p = v / (2 gamma) lifts one label by a half and lowers the other by a half, almost for free
    data = RelevantTokens(8, 3, 8).sample(30, np.random.default_rng(1))
    E, _, _ = limit_start(data, 1e6)
    relevant = relevant_selection(data.counts, data.labels)
    shortest = 1 / selection_svm(E, data.counts, relevant).margin
    rival = smallest_rival(E, data.counts, data.labels)
    assert rival.exact
    assert rival.norm < 0.51 * shortest


def test_the_sound_loss_limit_is_what_a_lost_token_costs():
    data = RelevantTokens(4, 2, 5).sample(6, np.random.default_rng(2))
    values = 2 * np.random.default_rng(3).standard_normal(9)
    limit, least = loss_limit(values, data.counts, data.labels), np.inf
    for x in range(len(data)):  # brute force: all other sequences at no loss, this one at its best irrelevant token
        tokens = data.counts.indices[data.counts.indptr[x] : data.counts.indptr[x + 1]]
        least = min(least, *(np.log1p(np.exp(-data.labels[x] * values[t])) for t in tokens if t >= 4))
    assert limit == pytest.approx(least / len(data))


def test_the_log_of_the_loss_bound_does_not_underflow():
    data = RelevantTokens(8, 4, 24).sample(32, np.random.default_rng(0))
    assert log_loss_bound(data.counts, data.labels, 4.0 * 64**2 * 8**2) == pytest.approx(-1024, rel=1e-6)
    assert np.exp(log_loss_bound(data.counts, data.labels, 2000.0)) == pytest.approx(
        loss_bound(data.counts, data.labels, 2000.0)
    )


def test_the_lost_label_is_the_one_against_which_p_moves():
    data = RelevantTokens(4, 2, 5).sample(6, np.random.default_rng(2))
    rng = np.random.default_rng(4)
    E, p, v = rng.standard_normal((9, 20)), rng.standard_normal(20), rng.standard_normal(20)
    _, moved = first_step(E, p, v, data.counts, data.labels, 1e-6)
    lost = lost_label(E @ p, E @ v, data.counts, data.labels)
    assert lost == -np.sign((moved - p) @ v)
