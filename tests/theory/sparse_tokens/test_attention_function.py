"""The torch functions on the compiled kernels: slopes by finite differences, single precision, and the weights."""

import pytest
import torch

from whichtoken.theory.sparse_tokens.models import pool, weights

STARTS = torch.tensor([0, 3, 3, 4, 9])
AMOUNTS = torch.tensor([1, 2, 1, 3, 0, 1, 1, 2, 1])


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed), requires_grad=True)


@pytest.mark.parametrize(
    ("scores", "values", "null"),
    [((9,), (9,), None), ((9,), (9, 2), ()), ((9, 2), (9, 3), (4, 2)), ((9, 2), (9,), (2,))],
)
def test_slopes_are_those_of_finite_differences(scores, values, null):
    given = (draw(*scores), draw(*values, seed=1), *(() if null is None else (draw(*null, seed=2),)))

    def outputs(scores, values, log_null=None):
        return pool(scores, values, STARTS, AMOUNTS, log_null)

    assert torch.autograd.gradcheck(outputs, given)


def test_slopes_of_the_weights_are_those_of_finite_differences():
    assert torch.autograd.gradcheck(lambda scores: weights(scores, STARTS, AMOUNTS), (draw(9),))


def test_single_precision_stays_single_and_agrees_with_double():
    scores, values = draw(9, dtype=torch.float32), draw(9, 2, dtype=torch.float32, seed=1)
    outputs = pool(scores, values, STARTS)
    outputs.square().sum().backward()
    wide = [part.detach().double().requires_grad_() for part in (scores, values)]
    pool(*wide, STARTS).square().sum().backward()
    assert outputs.dtype == scores.grad.dtype == torch.float32
    torch.testing.assert_close(scores.grad.double(), wide[0].grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(values.grad.double(), wide[1].grad, rtol=1e-5, atol=1e-7)
