"""Layered group transformers: their reduced map to rounding, its identities, and claims that other data would refute."""

from itertools import product, repeat

import numpy as np
import pytest
import torch

from whichtoken.claims.group_sparse import depth, modules
from whichtoken.claims.group_sparse._layers import LayeredTransformer, layered_map
from whichtoken.datasets import GroupSparse
from whichtoken.lab import Row, Rows
from whichtoken.theory.group_sparse import population_map, symmetric_map
from whichtoken.theory.group_sparse.descent import descend_on_batches
from whichtoken.theory.group_sparse.transformer import GroupTransformer


def invariant_batch(rng):
    """A small batch with all its images under the symmetries of three groups of two variables."""
    X = rng.standard_normal((5, 3, 2))
    images = []
    for sign, across, order in product((1, -1), (1, -1), ([0, 1, 2], [0, 2, 1])):
        image = sign * X[:, order]
        image[:, :, 1] *= across
        images.append(image)
    return np.concatenate(images)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_reduced_map_is_training_with_all_blocks_free_to_rounding(layers):
    rng = np.random.default_rng(0)
    X = invariant_batch(rng)
    path = layered_map([X] * 31, layers=layers, lr=0.5)
    model = LayeredTransformer(2, 3, layers, rng=rng)
    descent = torch.optim.SGD(model.parameters(), lr=0.5)
    descend_on_batches(model, repeat((X, np.sign(X[:, 0, 0]))), descent, 30)
    v, W = model.v.detach().numpy()[0], model.W.detach().numpy()
    np.testing.assert_allclose(v, [path.alpha[-1], 0, 0, 0, 0], atol=1e-12)
    for layer in range(layers):
        np.testing.assert_allclose(W[layer, :2, :2], np.diag(path.content[-1, layer]), atol=1e-12)
        np.testing.assert_allclose(W[layer, :2, 2:], 0, atol=1e-12)
        np.testing.assert_allclose(W[layer, 2:, :2], 0, atol=1e-12)
        scores = model.encodings.numpy() @ W[layer, 2:, 2:] @ model.encodings.numpy().T
        first, query, key, same, other = path.position[-1, layer]
        expected = [[first, query, query], [key, same, other], [key, other, same]]
        np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_with_frozen_content_every_later_layer_stays_exactly_uniform():
    rng = np.random.default_rng(0)
    batches = rng.standard_normal((201, 400, 6, 2))
    path = layered_map(batches, layers=3, lr=0.2, content=False)
    assert np.abs(path.position[:, 1:]).max() < 1e-12
    exact = population_map(groups=6, lr=0.2, steps=200)
    assert path.layers[-1, 0] == pytest.approx(exact.attention[-1], abs=0.01)
    assert path.alpha[-1] == pytest.approx(exact.alpha[-1], rel=0.02)


def test_one_layer_is_the_symmetric_map_and_the_transformer_of_the_theory():
    rng = np.random.default_rng(1)
    path = layered_map(rng.standard_normal((101, 2000, 4, 3)), layers=1, lr=0.3)
    other = symmetric_map(groups=4, group_dim=3, lr=0.3, steps=100, samples=2000, rng=rng)
    assert path.alpha[-1] == pytest.approx(other.alpha[-1], rel=0.02)
    assert path.attention[-1] == pytest.approx(other.attention[-1], abs=0.01)
    layered = LayeredTransformer(3, 4, start=1.0, rng=rng)
    plain = GroupTransformer(3, 4)
    with torch.no_grad():
        plain.W.copy_(layered.W[0])
        plain.v.copy_(layered.v[0])
        X = torch.from_numpy(rng.standard_normal((7, 4, 3)))
        torch.testing.assert_close(layered(X), plain(X))


def test_blocks_that_are_not_trained_stay_zero():
    rng = np.random.default_rng(0)
    data = GroupSparse(4, 2, 1, [1.0, 0.0])
    model = LayeredTransformer(2, 4, parts=["residual", "rms-norm", "network"], trained=["v_1", "W_22"], rng=rng)
    batches = (data.sample(50, rng) for _ in range(20))
    descend_on_batches(model, batches, torch.optim.Adam(model.parameters(), lr=0.05), 20)
    W, v = model.W.detach()[0], model.v.detach()
    assert W[2:, 2:].abs().min() > 0
    assert W[:2].abs().max() == W[:, :2].abs().max() == v[:, 2:].abs().max() == 0


def rows_of(point, measured, seeds=8):
    rng = np.random.default_rng(0)
    noise = 1 + 1e-3 * rng.standard_normal(seeds)
    return Rows(
        Row(point, seed, "ok", "", {k: (np.array(v) * noise[seed]).tolist() for k, v in measured.items()}, 0.1, "0")
        for seed in range(seeds)
    )


@pytest.mark.parametrize(("second", "state"), [(1 / 8, "agrees"), (0.2, "disagrees")])
def test_a_second_layer_that_takes_part_refutes_the_claim_on_depth(second, state):
    found = {"attention": 0.9, "layers": [0.9, second], "alpha": 2.0, "value_cosine": 0.999, "position_cosine": 0.99}
    checks = {check.code: check for check in depth.Depth().judge(rows_of(depth.Point(), found))}
    assert checks["depth.later"].settle(0.99).state == state


@pytest.mark.parametrize(("attention", "state"), [(0.5, "agrees"), (0.95, "disagrees")])
def test_a_residual_connection_that_selects_refutes_the_claim_on_modules(attention, state):
    found = {"attention": attention, "value_cosine": 0.999, "position_share": 0.5, "accuracy": 0.9}
    checks = {check.code: check for check in modules.Modules().judge(rows_of(modules.Point(parts="residual"), found))}
    assert checks["modules.loses"].settle(0.99).state == state


def test_what_attention_leaves_possible_beside_a_residual_connection_is_a_ratio_of_normals():
    groups, attention = 8, 0.9
    row = Row(modules.Point(groups=groups), 0, "ok", "", {"attention": attention}, 0.1, "0")
    rng = np.random.default_rng(0)
    u = rng.standard_normal((200_000, groups))
    weights = np.full(groups, 1 + groups * (1 - attention) / (groups - 1))
    weights[0] = 1 + groups * attention
    assert modules._possible(row) == pytest.approx(np.mean((u @ weights) * u[:, 0] > 0), abs=0.003)
