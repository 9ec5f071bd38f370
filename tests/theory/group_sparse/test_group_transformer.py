import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numba import njit
from torch.nn.functional import logsigmoid

from whichtoken.claims.group_sparse._layers import LayeredTransformer
from whichtoken.datasets import GroupSparse
from whichtoken.theory.group_sparse import positional_block
from whichtoken.theory.group_sparse.encodings import positional_encodings
from whichtoken.theory.group_sparse.gradient import PART, exponential, logistic_loss_and_gradient
from whichtoken.theory.group_sparse.transformer import GroupTransformer, selection


def random_problem(batch=7, groups=5, group_dim=3, encoding_dim=4, scale=0.3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((batch, groups, group_dim))
    y = np.where(rng.standard_normal(batch) > 0, 1.0, -1.0)
    width = group_dim + encoding_dim
    P = rng.standard_normal((groups, encoding_dim))
    return X, y, P, scale * rng.standard_normal((width, width)), scale * rng.standard_normal(width)


def textbook_output(X, P, W, v):
    """v^T Z S 1 with Z written out, one matrix per sample."""
    Z = torch.cat([X, P.expand(len(X), -1, -1)], dim=2).mT  # (batch, width, groups)
    S = torch.softmax(Z.mT @ W @ Z, dim=1)
    return ((v @ Z)[:, None] @ S).sum(dim=(1, 2))


def model_with(P, W, v, group_dim):
    model = GroupTransformer(group_dim, len(P), P)
    with torch.no_grad():
        model.W.copy_(torch.as_tensor(W))
        model.v.copy_(torch.as_tensor(v))
    return model


@settings(max_examples=40)
@given(
    batch=st.integers(1, 9),
    groups=st.integers(2, 9),
    group_dim=st.integers(1, 9),
    extra=st.integers(0, 3),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    seed=st.integers(0, 99),
)
def test_exact_gradient_is_that_of_autograd(batch, groups, group_dim, extra, scale, seed):
    X, y, P, W, v = random_problem(batch, groups, group_dim, groups + extra, scale, seed)
    loss, W_gradient, v_gradient = logistic_loss_and_gradient(X, y, P, W, v)
    W_leaf, v_leaf = torch.tensor(W, requires_grad=True), torch.tensor(v, requires_grad=True)
    output = textbook_output(torch.tensor(X), torch.tensor(P), W_leaf, v_leaf)
    reference = -logsigmoid(torch.tensor(y) * output).mean()
    reference.backward()
    assert loss == pytest.approx(reference.item(), rel=1e-12)
    size = max(W_leaf.grad.abs().max().item(), v_leaf.grad.abs().max().item(), 1e-3)
    np.testing.assert_allclose(W_gradient, W_leaf.grad.numpy(), rtol=0, atol=1e-12 * size)
    np.testing.assert_allclose(v_gradient, v_leaf.grad.numpy(), rtol=0, atol=1e-12 * size)


def test_gradient_is_the_same_on_any_number_of_threads():
    X, y, P, W, v = random_problem(batch=2 * PART + 7)
    one, three = (logistic_loss_and_gradient(X, y, P, W, v, threads=threads) for threads in (1, 3))
    for ours, theirs in zip(one, three, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    mean = sum(logistic_loss_and_gradient(X[[i]], y[[i]], P, W, v)[1] for i in range(len(y))) / len(y)
    np.testing.assert_allclose(one[1], mean, rtol=1e-10, atol=1e-13)


def test_exact_gradient_is_that_of_finite_differences():
    X, y, P, W, v = random_problem()
    _, W_gradient, v_gradient = logistic_loss_and_gradient(X, y, P, W, v)
    step = 1e-5

    def slope(direction_W, direction_v):
        ahead = logistic_loss_and_gradient(X, y, P, W + step * direction_W, v + step * direction_v)[0]
        behind = logistic_loss_and_gradient(X, y, P, W - step * direction_W, v - step * direction_v)[0]
        return (ahead - behind) / (2 * step)

    for index in np.ndindex(W.shape):
        unit = np.zeros_like(W)
        unit[index] = 1
        assert slope(unit, 0 * v) == pytest.approx(W_gradient[index], abs=1e-9)
    for index in range(len(v)):
        unit = np.zeros_like(v)
        unit[index] = 1
        assert slope(0 * W, unit) == pytest.approx(v_gradient[index], abs=1e-9)


def test_gradient_keeps_its_digits_when_one_group_has_won():
    """At a leakage of 1e-13 the textbook h_i - mean_j of the winner is rounding noise; fifty digits are the judge."""
    X, y, _, _, v = random_problem(batch=1, groups=3, group_dim=2, encoding_dim=3)
    P, gap = positional_encodings("one-hot", 3), 30.0
    W = np.zeros((5, 5))
    W[2:, 2:] = positional_block(P, relevant=1, gap=gap)
    _, gradient, _ = logistic_loss_and_gradient(X, y, P, W, v)
    mp.dps = 50
    Z = [[mpf(float(x)) for x in row] for row in np.concatenate([X[0], P], axis=1)]
    score = [mp.exp(mpf(gap) * (2 if i == 1 else -1) / 3) for i in range(3)]
    S = [s / sum(score) for s in score]  # the same for every query
    h = [sum(mpf(float(a)) * b for a, b in zip(v, z, strict=True)) for z in Z]
    mean = sum(s * a for s, a in zip(S, h, strict=True))
    slope = -mpf(float(y[0])) / (1 + mp.exp(mpf(float(y[0])) * 3 * mean))
    total = [sum(z[m] for z in Z) for m in range(5)]
    for k in range(5):
        for m in range(5):
            exact = slope * sum(S[i] * (h[i] - mean) * Z[i][k] for i in range(3)) * total[m]
            assert gradient[k, m] == pytest.approx(float(exact), rel=1e-11)


def test_model_output_and_features_are_those_of_the_textbook():
    X, _, P, W, v = (torch.tensor(a) for a in random_problem(encoding_dim=6))
    model = model_with(P, W, v, group_dim=3)
    expected = textbook_output(X, P, W, v)
    torch.testing.assert_close(model(X), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.features(X) @ model.v, expected, rtol=1e-12, atol=1e-12)


def test_loss_is_differentiable_like_any_other():
    X, y, P, W, v = random_problem(encoding_dim=5)
    model = model_with(P, W, v, group_dim=3)
    tensors = torch.tensor(X), torch.tensor(y)
    (3 * model.loss(*tensors)).backward()
    by_kernel = model.W.grad.clone(), model.v.grad.clone()
    model.zero_grad()
    (-3 * logsigmoid(tensors[1] * model(tensors[0])).mean()).backward()
    torch.testing.assert_close(by_kernel, (model.W.grad, model.v.grad), rtol=1e-11, atol=1e-13)


def test_attention_is_a_softmax_over_keys():
    X, _, P, W, v = random_problem(encoding_dim=5)
    model = model_with(P, W, v, group_dim=3)
    S = model.attention(torch.tensor(X)).detach().numpy()
    Z = np.concatenate([X[2], P], axis=1)
    scores = Z @ W @ Z.T
    np.testing.assert_allclose(S[2], np.exp(scores) / np.exp(scores).sum(axis=0), rtol=1e-12)


def test_model_starts_with_uniform_attention_and_no_output():
    model = GroupTransformer(3, 8)
    X = torch.randn(4, 8, 3, dtype=torch.float64)
    assert (model(X) == 0).all()
    torch.testing.assert_close(model.attention(X), torch.full((4, 8, 8), 1 / 8, dtype=torch.float64))
    assert model.loss(X, torch.ones(4)).item() == pytest.approx(math.log(2))


def test_trajectory_depends_on_orthogonal_encodings_through_their_norm_alone():
    X, y = (torch.tensor(a) for a in GroupSparse(6, 3, relevant=1).sample(200, np.random.default_rng(0)))
    results = []
    for kind in ("sine", "one-hot"):
        model = GroupTransformer(3, 6, positional_encodings(kind, 6, norm2=3.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            model.loss(X, y).backward()
            optimizer.step()
        results.append((model.value_blocks()[0].detach(), model.attention(X).detach()))
    assert results[0][1].amax() > 0.5  # something was learned
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-11)


def test_selection_reads_the_state_of_the_model():
    model = GroupTransformer(2, 4)
    data = GroupSparse(4, 2, relevant=3)
    X, y = (torch.tensor(a) for a in data.sample(500, np.random.default_rng(0)))
    with torch.no_grad():
        model.blocks()[3].copy_(torch.tensor(positional_block(model.encodings.numpy(), relevant=3, gap=20.0)))
        model.blocks()[1][0, 0] = 1e-3
        model.v[:2] = torch.tensor([3.0, 0.0])
        model.v[2] = 1e-4
    state = selection(model, X, y, relevant=3, direction=[1.0, 0.0])
    assert state.accuracy == 1.0
    assert 0.999999 < state.min_attention <= state.attention <= 1.0
    assert (state.value_norm, state.value_cosine, state.position_value_norm) == (3.0, 1.0, 1e-4)
    assert state.position_cosine == pytest.approx(1.0)
    assert state.block_norms[:3] == (0.0, 1e-3, 0.0)
    assert state.loss == pytest.approx((-logsigmoid(12 * X[:, 3, 0].abs())).mean().item(), rel=1e-2)


def test_selection_of_an_untrained_model_has_no_directions():
    X, y = (torch.tensor(a) for a in GroupSparse(4, 2).sample(20, np.random.default_rng(0)))
    state = selection(GroupTransformer(2, 4), X, y, relevant=0, direction=[1.0, 0.0])
    assert math.isnan(state.value_cosine)
    assert math.isnan(state.position_cosine)
    assert state.attention == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "group_dim=0 must be a whole number of at least 1"),
        ((2, 1), "groups=1 must be a whole number of at least 2"),
        ((2, 1, np.eye(1)), "groups=1 must be a whole number of at least 2"),
        ((2, 4, np.eye(3)), r"encoding of shape \(3, 3\) must be \(4, encoding_dim\)"),
        ((2, 4, np.ones(4)), r"encoding of shape \(4,\)"),
        ((2, 4, np.full((4, 4), np.nan)), "encoding must be finite"),
        ((2, 4, "sinus"), "unknown encoding 'sinus'"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        GroupTransformer(*arguments)


def test_encodings_of_low_rank_are_warned_about():
    with pytest.warns(UserWarning, match=r"rank 1 for 3 groups: Theorem 3\.2"):
        GroupTransformer(2, 3, np.ones((3, 3)))
    GroupTransformer(2, 3, "none")  # asked for by name: no warning


@pytest.mark.parametrize(
    ("rows", "labels", "sentence"),
    [(4, 3, "must be (n, 3, 2) and (n,)"), (0, 0, "with n >= 1"), (4, None, "y must be -1 or +1")],
)
def test_loss_refuses_labels_that_do_not_fit(rows, labels, sentence):
    model = GroupTransformer(2, 3)
    y = torch.zeros(rows) if labels is None else torch.ones(labels)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        model.loss(torch.randn(rows, 3, 2), y)


def test_learned_encodings_start_as_the_group_transformer_and_are_trained():
    X, y, P, W, v = random_problem(encoding_dim=5)
    model, learned = model_with(P, W, v, group_dim=3), LayeredTransformer(3, 5, rng=np.random.default_rng(0))
    learned.encodings = torch.nn.Parameter(torch.tensor(P))
    with torch.no_grad():
        learned.W[0].copy_(model.W)
        learned.v[0].copy_(model.v)
    X, y = torch.tensor(X), torch.tensor(y)
    torch.testing.assert_close(learned(X), model(X), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(learned.attend(X)[1][0], model.attention(X), rtol=1e-12, atol=1e-12)
    model.loss(X, y).backward()
    learned.loss(X, y).backward()
    torch.testing.assert_close(learned.W.grad[0], model.W.grad, rtol=1e-10, atol=1e-13)
    assert learned.encodings.grad.abs().max() > 0
    np.testing.assert_array_equal(P, random_problem(encoding_dim=5)[2])


def test_exponential_is_within_three_units_of_fifty_digits():
    @njit
    def fill(values, out):
        for j in range(values.size):
            out[j] = exponential(values[j])

    rng = np.random.default_rng(0)
    values = np.concatenate([-700 * rng.random(2000), -np.logspace(-320, 2.8, 500), [0.0, -0.0, -1e308, -np.inf]])
    found = np.empty_like(values)
    fill(values, found)
    with mp.workdps(50):
        for value, close in zip(values.tolist(), found.tolist(), strict=True):
            exact = mp.exp(value)
            assert abs(close - exact) <= 3 * math.ulp(float(exact)) or (close == 0 and exact < 1e-307), value
