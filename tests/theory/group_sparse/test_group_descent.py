import itertools
import math

import numpy as np
import pytest
import torch

from whichtoken.claims.group_sparse._layers import LayeredTransformer
from whichtoken.datasets import GroupSparse
from whichtoken.theory.group_sparse import positional_block, stability_bounds, symmetric_map
from whichtoken.theory.group_sparse.descent import (
    StabilityWarning,
    check_learning_rate,
    descend_on_batches,
    fresh_batches,
    gradient_descent,
    online_transfer,
    xavier_start,
)
from whichtoken.theory.group_sparse.transformer import GroupTransformer, selection


def as_tensors(sample):
    return tuple(map(torch.from_numpy, sample))


def selecting_model(group_dim, groups, relevant, gap=6.0):
    model = GroupTransformer(group_dim, groups)
    with torch.no_grad():
        model.blocks()[3].copy_(torch.from_numpy(positional_block(model.encodings.numpy(), relevant, gap)))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("antithetic", [False, True])
def test_fresh_batches_follow_the_symmetric_map(antithetic):
    data = GroupSparse(8, 4, relevant=2, direction=[0.6, 0.0, 0.8, 0.0])
    model = GroupTransformer(4, 8)
    batches = fresh_batches(data, 1000, np.random.default_rng(0), antithetic)
    run = gradient_descent(model, batches, 400, lr=0.02)
    theory = symmetric_map(groups=8, group_dim=4, lr=0.02, steps=400, rng=np.random.default_rng(1))
    state = selection(model, *as_tensors(data.sample(20_000, np.random.default_rng(2))), 2, data.directions[0])
    assert state.value_norm == pytest.approx(theory.alpha[-1], rel=0.03)
    assert state.attention == pytest.approx(theory.attention[-1], rel=0.03)
    assert run.losses[-50:].mean() == pytest.approx(theory.loss[-51:-1].mean(), rel=0.03)
    assert state.value_cosine > 0.9999
    assert state.position_cosine == pytest.approx(0.9996, abs=2e-4)
    assert state.block_norms[3] == pytest.approx(1.64, rel=0.01)
    stray = max(state.position_value_norm, *state.block_norms[1:3])
    assert stray < (1e-15 if antithetic else 0.03)


def test_antithetic_batches_are_mirrored():
    data = GroupSparse(3, 2, relevant=1)
    X, y = next(fresh_batches(data, 10, np.random.default_rng(0), antithetic=True))
    np.testing.assert_array_equal(X[:5], -X[5:])
    np.testing.assert_array_equal(y[:5], -y[5:])
    assert (y * X[:, 1, 0] > 0).all()


def test_noise_in_v_2_grows_between_the_bound_on_the_path_and_the_uniform_bound():
    """A rate that is stable under uniform attention derails later, while attention concentrates."""
    bounds = stability_bounds(groups=16)
    assert 1.35 * bounds.path < bounds.uniform
    grown = []
    for share in (0.9, 1.35):
        model, lr = GroupTransformer(1, 16), share * bounds.path
        # small batches would hide the growth: their random factors have a smaller geometric mean
        batches = fresh_batches(GroupSparse(16, 1), 400, np.random.default_rng(0), antithetic=True)
        descend_on_batches(model, batches, torch.optim.SGD(model.parameters(), lr=lr), steps=int(10 / lr))
        grown.append(model.value_blocks()[1].norm().item())
    assert grown[0] < 1e-15
    assert grown[1] > 1e6 * grown[0]


def test_learning_rate_beyond_the_bound_is_warned_about_with_the_bound():
    batches = fresh_batches(GroupSparse(8, 4), 10, np.random.default_rng(0))
    with pytest.warns(StabilityWarning, match=r"lr=0\.5 exceeds the stability bound 0\.194 .* v_2 .* 0\.02 is safe"):
        gradient_descent(GroupTransformer(4, 8), batches, 1, lr=0.5)
    with pytest.warns(StabilityWarning, match="curvature in v_1"):
        check_learning_rate(0.2, groups=8, sigma=3.0)
    check_learning_rate(0.19, groups=8)  # a warning would be an error


@pytest.mark.parametrize("kind", ["sine", "one-hot", "sin-cos", "none"])
def test_default_learning_rate_raises_no_warning(kind):
    model = GroupTransformer(2, 8, kind)
    run = gradient_descent(model, fresh_batches(GroupSparse(8, 2), 500, np.random.default_rng(0)), 50)
    assert run.losses[-10:].mean() < math.log(2) - 0.01


def test_update_is_one_step_of_gradient_descent():
    data = GroupSparse(4, 2)
    model = GroupTransformer(2, 4)
    xavier_start(model, np.random.default_rng(0))
    X, y = data.sample(30, np.random.default_rng(1))
    W, v = model.W.detach().clone(), model.v.detach().clone()
    model.loss(*as_tensors((X, y))).backward()
    expected = W - 0.1 * model.W.grad, v - 0.1 * model.v.grad
    gradient_descent(model, itertools.repeat((X, y)), 1, lr=0.1)
    torch.testing.assert_close((model.W.detach(), model.v.detach()), expected, rtol=1e-14, atol=0)


def test_observations_are_taken_before_every_so_many_updates_and_at_the_end():
    batches = fresh_batches(GroupSparse(4, 2), 20, np.random.default_rng(0))
    model = GroupTransformer(2, 4)
    run = gradient_descent(model, batches, 7, lr=0.02, observe=lambda t: (t, model.v.norm().item()), every=3)
    steps, norms = zip(*run.observed, strict=True)
    assert steps == (0, 3, 6, 7)
    assert norms[0] == 0 < norms[1] < norms[2] < norms[3]
    assert run.losses[0] == pytest.approx(math.log(2))


def test_a_torch_module_is_trained_with_any_optimizer():
    data = GroupSparse(4, 2, relevant=1)
    model = LayeredTransformer(2, 4, rng=np.random.default_rng(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    descend_on_batches(model, fresh_batches(data, 100, np.random.default_rng(0)), optimizer, 300)
    X, y = as_tensors(data.sample(1000, np.random.default_rng(1)))
    assert (y * model(X) > 0).double().mean() > 0.9


@pytest.mark.parametrize("place", ["data", "weights"])
def test_what_is_not_finite_is_named(place):
    X, y = GroupSparse(4, 2).sample(5, np.random.default_rng(0))
    model = GroupTransformer(2, 4)
    if place == "data":
        X[2, 1, 0] = np.nan
    else:
        model.v.data[0] = np.nan
    with pytest.raises(ValueError, match=f"loss=nan at step 0: the {place} must be finite"):
        gradient_descent(model, itertools.repeat((X, y)), 3, lr=0.01)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
def test_bad_learning_rate_is_named(lr):
    with pytest.raises(ValueError, match=f"lr={lr} must be positive"):
        gradient_descent(GroupTransformer(2, 4), [], 1, lr=lr)


def test_odd_antithetic_batch_is_refused():
    with pytest.raises(ValueError, match="size=5 must be even"):
        next(fresh_batches(GroupSparse(4, 2), 5, np.random.default_rng(0), antithetic=True))


def test_transfer_with_frozen_attention_is_online_logistic_regression_on_its_features():
    data = GroupSparse(6, 3, relevant=4, direction=[0, 1, 1], margin=0.3)
    X, y = data.sample(80, np.random.default_rng(0))
    model = selecting_model(3, 6, relevant=4)
    before = model.W.detach().clone()
    run = online_transfer(model, X, y)
    features = model.features(torch.from_numpy(X)).detach().numpy() / 6
    weights, mistakes = np.zeros(features.shape[1]), []
    for feature, label in zip(features, y, strict=True):
        margin = label * (weights @ feature)
        mistakes.append(margin <= 0)
        weights += 0.5 * label * feature / (1 + np.exp(margin))
    np.testing.assert_allclose(6 * model.v.detach().numpy(), weights, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.running_error, np.cumsum(mistakes) / np.arange(1, 81))
    assert torch.equal(model.W, before)
    assert model.W.requires_grad


def test_transfer_learns_the_new_direction_from_few_samples():
    old_groups, new = 16, GroupSparse(16, 8, relevant=5, direction=np.arange(8.0), margin=0.3)
    test = as_tensors(new.sample(4000, np.random.default_rng(9)))
    errors = {}
    for train_attention in (False, True):
        model = selecting_model(8, old_groups, relevant=5, gap=5.0)
        X, y = new.sample(400, np.random.default_rng(3))
        run = online_transfer(
            model, X, y, train_attention=train_attention, every=100,
            observe=lambda _, model=model: (test[1] * model(test[0]) <= 0).double().mean().item(),
        )  # fmt: skip
        errors[train_attention] = run.observed
        assert run.observed[0] == 1.0  # no output yet
        assert run.running_error[-1] < 0.06
    assert errors[False][1] < 0.05
    assert errors[False][-1] < 1e-3
    # trained attention changes the error by no more than this
    np.testing.assert_allclose(errors[True], errors[False], atol=2e-3)


def test_transfer_starts_the_value_anew():
    X, y = GroupSparse(4, 2).sample(10, np.random.default_rng(0))
    results = []
    for old_value in (0.0, 5.0):
        model = selecting_model(2, 4, relevant=0)
        model.v.data.fill_(old_value)
        online_transfer(model, X, y)
        results.append(model.v.detach().clone())
    torch.testing.assert_close(*results)


def test_xavier_start_has_the_spread_of_its_name():
    model = GroupTransformer(20, 60)
    xavier_start(model, np.random.default_rng(0), scale=0.5)
    assert model.W.abs().max().item() <= 0.5 * math.sqrt(6 / 160)
    assert model.W.std().item() == pytest.approx(0.5 * math.sqrt(2 / 160), rel=0.03)
    assert model.v.abs().max().item() <= 0.5 * math.sqrt(6 / 81)
    assert model.v.std().item() == pytest.approx(0.5 * math.sqrt(2 / 81), rel=0.2)
