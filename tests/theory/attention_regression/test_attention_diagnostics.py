import math

import numpy as np
import pytest
import torch
from torch import nn

from whichtoken.theory.attention_regression import balanced_factors, finite_context_error, imbalance
from whichtoken.theory.attention_regression.diagnostics import attention_diagnostics
from whichtoken.theory.attention_regression.whitening import Whitening


def covariance(dim, rng):
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    return (basis * np.geomspace(1.0, 0.1, dim)) @ basis.T


def small_factors(rng, out=3, dim=4, rank=4):
    return [0.5 * rng.standard_normal(shape) for shape in ((out, rank), (rank, dim), (rank, dim), (rank, dim))]


def test_value_and_key_query_give_the_numbers_of_the_theory():
    rng = np.random.default_rng(0)
    S = covariance(4, rng)
    whitening = Whitening.from_covariance(S)
    P, Q = balanced_factors(rng.standard_normal((3, 4)), logit_norm=0.6)
    (head,) = attention_diagnostics(whitening.to_raw(P, Q), 500, S)
    error = finite_context_error(P, Q, 500)
    assert head.logit_norm == pytest.approx(0.6)
    assert head.logit_peak == pytest.approx(np.linalg.norm(Q, 2))
    assert head.imbalance == pytest.approx(0.0, abs=1e-12)
    assert head.context_error == pytest.approx(error)
    assert head.coverage == pytest.approx(error.coverage)
    assert head.relative_error == pytest.approx(error / np.sum((P @ Q.T) ** 2))
    (centered,) = attention_diagnostics(whitening.to_raw(P, Q), 500, S, centered=True)
    assert centered.context_error == pytest.approx(finite_context_error(P, Q, 500, centered=True))


def test_four_factors_are_their_two_products():
    rng = np.random.default_rng(1)
    W_O, W_V, W_K, W_Q = factors = small_factors(rng)
    (head,) = attention_diagnostics(factors, 100, logit_factor=0.1)
    np.testing.assert_allclose(head.P, W_O @ W_V, rtol=1e-12)
    np.testing.assert_allclose(head.Q, 0.1 * W_Q.T @ W_K, rtol=1e-12)
    assert head.imbalance == pytest.approx(imbalance(W_O @ W_V, W_Q.T @ W_K))
    (from_tensors,) = attention_diagnostics([torch.tensor(factor) for factor in factors], 100, logit_factor=0.1)
    assert from_tensors.context_error == head.context_error


def separated(layer):
    """The same weights as torch keeps them where keys and values have widths of their own."""
    for name, value in zip(("q", "k", "v"), layer.in_proj_weight.detach().chunk(3), strict=True):
        setattr(layer, f"{name}_proj_weight", nn.Parameter(value.clone()))
    layer.in_proj_weight, layer._qkv_same_embed_dim = None, False
    return layer


@pytest.mark.parametrize("prepare", [lambda layer: layer, separated], ids=["fused", "separate"])
def test_predicted_error_is_that_of_a_torch_module(prepare):
    """Forward passes of each head alone, on 400 Gaussian contexts of 300 tokens with 20 queries each."""
    rng, generator = np.random.default_rng(2), torch.Generator().manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for param in layer.parameters():
            param.copy_(0.5 * torch.randn(param.shape, generator=generator, dtype=torch.float64))
    layer, S = prepare(layer), covariance(4, rng)
    root = Whitening.from_covariance(S).root
    heads = attention_diagnostics(layer, 300, torch.tensor(S))
    queries, tokens = (torch.tensor(rng.standard_normal((400, count, 4)) @ root) for count in (20, 300))
    weights = layer.out_proj.weight.detach().clone()
    for index, head in enumerate(heads):
        mine = torch.arange(4) // 2 == index
        with torch.no_grad():
            layer.out_proj.weight.copy_(weights * mine)
            outputs = layer(queries, tokens, tokens)[0].numpy()
        limit = queries.numpy() @ (head.P @ head.Q.T @ np.linalg.inv(root)).T
        error = float(np.mean(np.sum((outputs - limit) ** 2, axis=2)))
        assert 0.05 < head.logit_peak < 0.4, "where the formula is accurate"
        assert error == pytest.approx(head.context_error, rel=0.15)


def test_saturated_head_has_no_finite_error():
    Q = np.diag([0.8, 0.1])
    (head,) = attention_diagnostics((np.eye(2), Q), 100)
    assert head.logit_peak == pytest.approx(0.8)
    assert head.context_error == head.relative_error == math.inf
    assert head.coverage == 0.0


def test_head_that_is_zero_has_no_balance():
    (head,) = attention_diagnostics((np.zeros((3, 2)), np.zeros((2, 2))), 100)
    assert head.context_error == 0.0
    assert math.isnan(head.imbalance)
    assert math.isnan(head.relative_error)


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        ((np.eye(2), np.eye(3)), {}, r"A and B of shapes \(2, 2\) and \(3, 3\) must have shapes"),
        ((np.eye(2),) * 3, {}, "attention of 3 matrices must be"),
        (nn.Linear(2, 2), {}, "attention of type Linear must be an nn.MultiheadAttention or matrices"),
        ((np.eye(2),) * 2, {"heads": 2}, "heads=2 and logit_factor=1.0 belong to four matrices"),
        ((np.eye(2), np.eye(3), np.eye(3), np.eye(3)), {}, "do not chain"),
        ((np.eye(4),) * 4, {"heads": 3}, "heads=3 must divide the 4 rows of W_V"),
        ((np.eye(2), np.full((2, 2), np.nan)), {}, "must be a finite real matrix"),
        ((np.eye(2), np.eye(2).astype(int)), {}, "torch.int64 must be a finite real matrix"),
        ((np.eye(2), 0.1 * np.eye(2)), {"covariance": np.ones((2, 2))}, "covariance is singular or indefinite"),
        ((np.eye(2), 0.1 * np.eye(2)), {"covariance": np.eye(3)}, "covariance of 3 coordinates must have 2"),
        ((np.eye(2), 0.1 * np.eye(2)), {"context": 1}, "context=1 must be a whole number of at least 2"),
    ],
    ids=str,
)
def test_bad_input_is_a_sentence(attention, options, message):
    with pytest.raises(ValueError, match=message):
        attention_diagnostics(attention, **{"context": 10, **options})


def test_cross_attention_is_refused():
    with pytest.raises(ValueError, match="kdim=3 and vdim=3 differ from embed_dim=4"):
        attention_diagnostics(nn.MultiheadAttention(4, 2, kdim=3, vdim=3), 10)
