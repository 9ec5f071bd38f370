"""Attention pooling and its linear baselines: gradients by formula, and what they have in common."""

from __future__ import annotations

import pytest
import torch

from whichtoken.theory.sparse_tokens.models import AttentionPooling, PooledLinear, VectorizedLinear

TOKENS = torch.randn(5, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def trained(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return model


def test_query_zero_is_mean_pooling():
    attention = trained(AttentionPooling(4, 1.7, dtype=torch.float64))
    pooled = PooledLinear(4, dtype=torch.float64)
    with torch.no_grad():
        attention.query.zero_()
    pooled.load_state_dict({"readout": attention.readout, "bias": attention.bias})
    torch.testing.assert_close(attention(TOKENS), pooled(TOKENS))


def test_equal_weights_at_all_positions_are_mean_pooling():
    pooled, flat = trained(PooledLinear(4, dtype=torch.float64)), VectorizedLinear(7, 4, dtype=torch.float64)
    flat.load_state_dict({"readout": pooled.readout.expand(7, 4) / 7, "bias": pooled.bias})
    torch.testing.assert_close(flat(TOKENS), pooled(TOKENS))


def test_gradients_are_those_of_the_formula():
    """d score / d query = beta X^T (diag(s) - s s^T) X w, d score / d readout = X^T s."""
    model = trained(AttentionPooling(4, 1.7, dtype=torch.float64))
    X = TOKENS[0]
    model(X).backward()
    s = torch.softmax(1.7 * X @ model.query, dim=0).detach()
    spread = torch.diag(s) - torch.outer(s, s)
    torch.testing.assert_close(model.query.grad, 1.7 * X.T @ spread @ X @ model.readout.detach())
    torch.testing.assert_close(model.readout.grad, X.T @ s)
    assert model.bias.grad == 1


def test_masked_tokens_do_not_exist():
    model = trained(AttentionPooling(4, dtype=torch.float64))
    mask = torch.arange(7) < 5
    torch.testing.assert_close(model(TOKENS, mask.expand(5, 7)), model(TOKENS[:, :5]))
    assert torch.all(model.attention(TOKENS, mask)[:, 5:] == 0)


def test_a_sequence_without_tokens_has_the_bias():
    model = trained(AttentionPooling(4, dtype=torch.float64))
    nothing = torch.zeros(5, 7, dtype=torch.bool)
    assert torch.all(model(TOKENS, nothing) == model.bias)
    assert torch.all(model.attention(TOKENS, nothing) == 0)


def test_order_of_the_tokens_does_not_matter():
    model = trained(AttentionPooling(4, dtype=torch.float64))
    torch.testing.assert_close(model(TOKENS.flip(1)), model(TOKENS))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AttentionPooling(0), "dim=0 must be at least 1"),
        (lambda: AttentionPooling(3, 0.0), "inverse_temperature=0.0 must be above 0"),
        (lambda: PooledLinear(0), "dim=0 must be at least 1"),
        (lambda: VectorizedLinear(0, 3), "length=0 must be at least 1"),
    ],
)
def test_bad_input_is_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()
