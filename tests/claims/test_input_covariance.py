import pytest
import torch
from torch import nn

from whichtoken.claims.attention_regression._character_model import InputCovariance


@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 2), nn.MultiheadAttention(3, 1)], ids=lambda layer: type(layer).__name__
)
def test_running_covariance_finds_that_of_the_inputs(layer):
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([2.0, 1.0, 0.5])
    observed = InputCovariance(layer, decay=0.9)
    matrix = observed.matrix
    for _ in range(100):
        tokens = scales * torch.randn(20, 8, 3, generator=generator)
        layer(tokens) if isinstance(layer, nn.Linear) else layer(tokens, tokens, tokens)
    assert observed.matrix is matrix
    torch.testing.assert_close(matrix, torch.diag(scales**2), rtol=0.15, atol=0.15)
    layer.eval()
    before = matrix.clone()
    layer(tokens) if isinstance(layer, nn.Linear) else layer(tokens, tokens, tokens)
    torch.testing.assert_close(matrix, before, rtol=0, atol=0)
    layer.train()
    observed.remove()
    layer(tokens) if isinstance(layer, nn.Linear) else layer(tokens, tokens, tokens)
    torch.testing.assert_close(matrix, before, rtol=0, atol=0)


def test_running_covariance_of_tokens_in_a_plane_stays_positive_definite():
    layer = nn.Linear(3, 2)
    observed = InputCovariance(layer, decay=0.5, ridge=0.01)
    tokens = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1.0, 0.0])
    for _ in range(60):
        layer(tokens)
    level = float(tokens.square().mean())
    assert float(torch.linalg.eigvalsh(observed.matrix)[0]) == pytest.approx(0.01 * level, rel=1e-3)


def test_a_query_by_name_counts_as_one_by_place():
    """The order of the names is free; keys and values are not what is followed."""
    layer = nn.MultiheadAttention(3, 1)
    tokens, others = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(0))
    matrices = []
    for call in (lambda: layer(tokens, others, others), lambda: layer(value=others, key=others, query=tokens)):
        observed = InputCovariance(layer)
        call()
        observed.remove()
        matrices.append(observed.matrix)
    torch.testing.assert_close(matrices[1], matrices[0], rtol=0, atol=0)


@pytest.mark.parametrize("entering", [torch.float32, torch.bfloat16])
def test_mixed_precision_leaves_the_covariance_in_that_of_the_layer(entering):
    layer = nn.Linear(3, 2)
    tokens = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).to(entering)
    mixed = InputCovariance(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(tokens)
    first = mixed.matrix.clone()
    plain = InputCovariance(layer)
    layer(tokens.float())
    torch.testing.assert_close(first, plain.matrix, rtol=0, atol=0)


def test_an_empty_batch_changes_nothing_and_one_token_counts():
    layer = nn.Linear(3, 2)
    observed = InputCovariance(layer, decay=0.5, ridge=0.1)
    layer(torch.zeros(0, 8, 3))
    torch.testing.assert_close(observed.matrix, torch.eye(3), rtol=0, atol=0)
    layer(torch.tensor([3.0, 0.0, 0.0]))
    torch.testing.assert_close(observed.matrix, torch.diag(torch.tensor([5.0, 0.5, 0.5])) + 0.5 * 0.3 * torch.eye(3))


@pytest.mark.parametrize("option", ["decay", "ridge"])
def test_bad_options_of_the_running_covariance_are_refused(option):
    with pytest.raises(ValueError, match=f"{option}=1 must lie strictly between 0 and 1"):
        InputCovariance(nn.Linear(2, 2), **{option: 1})
