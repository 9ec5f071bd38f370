"""One step size, any geometry."""

import pytest
import torch

from whichtoken.optim import MirrorDescent, matched_lr


@pytest.mark.parametrize("p", [1.1, 1.5, 1.9, 2.5, 3.0])
@pytest.mark.parametrize("size", [0.01, 0.3])
def test_a_matched_step_moves_a_typical_weight_as_far_as_gradient_descent(p, size):
    start = size * torch.sign(torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    gradient = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    moved = []
    for exponent in (2.0, p):
        weights = torch.nn.Parameter(start.clone())
        optimizer = MirrorDescent([weights], lr=matched_lr(weights, 1e-6 * size, exponent), p=exponent)
        weights.grad = gradient.clone()
        optimizer.step()
        moved.append(weights.detach() - start)
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-4, atol=0)


def test_several_tensors_have_one_typical_size():
    halves = [torch.full((3,), 0.1), torch.full((5,), 0.1)]
    assert matched_lr(iter(halves), 0.1, 1.2) == matched_lr(torch.full((8,), 0.1), 0.1, 1.2)


@pytest.mark.parametrize(
    ("weights", "lr", "p", "message"),
    [
        (torch.ones(2), 0.1, 1.0, "p=1.0 must be a finite number above 1"),
        (torch.ones(2), 0.1, float("nan"), "p=nan must be a finite number above 1"),
        (torch.ones(2), 0.0, 1.5, "lr=0.0 must be a positive number"),
        (torch.zeros(2), 0.1, 1.5, "weights must be finite and not all zero"),
        (torch.tensor([1.0, float("inf")]), 0.1, 1.5, "weights must be finite and not all zero"),
        ([], 0.1, 1.5, "weights must hold at least one number"),
    ],
)
def test_bad_input_is_a_sentence(weights, lr, p, message):
    with pytest.raises(ValueError, match=message):
        matched_lr(weights, lr, p)
