"""The power map, and the compiled and batched forms of it that optimizers and flows use for speed."""

import numpy as np
import pytest
import torch

from whichtoken.flows.mirror_steps import primal
from whichtoken.norms import signed_power
from whichtoken.optim.mirror_descent import foreach_signed_power, mirror_step

VALUES = np.concatenate([np.random.default_rng(0).standard_normal(200), [0.0, 1.0, -1.0, 1e-6, -1e6]])
EXPONENTS = [0.1, 0.5, 1.0, 1.7, 2.0, 10.0]


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_inverse_and_sign(exponent):
    np.testing.assert_allclose(signed_power(signed_power(VALUES, exponent), 1 / exponent), VALUES, rtol=1e-11)
    np.testing.assert_array_equal(np.sign(signed_power(VALUES, exponent)), np.sign(VALUES))


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_and_batched_forms_agree(exponent, dtype):
    values, p = VALUES.astype(dtype), 1 + 1 / exponent
    wanted = signed_power(values, exponent)
    tolerance = (4 + 4 * exponent) * np.finfo(dtype).eps  # 1 / (p - 1) is the exponent up to rounding
    compiled, digests = np.zeros_like(values), np.zeros(1, np.uint64)
    mirror_step(compiled, -values, -values, np.zeros_like(values), digests, p, 1.0, 0.0)
    batched = foreach_signed_power([torch.from_numpy(values)], exponent)[0].numpy()
    finite = np.abs(wanted) < np.finfo(dtype).max
    for found in (compiled, batched):
        np.testing.assert_allclose(found[finite], wanted[finite], rtol=2 * tolerance, atol=np.finfo(dtype).tiny)


@pytest.mark.parametrize("q", [1.1, 1.5, 2.0, 3.0])
def test_the_form_of_the_flows_agrees(q):
    weights = np.empty_like(VALUES)
    log_peak = primal(VALUES, 0.0, q, weights)
    np.testing.assert_allclose(weights * np.exp(log_peak), signed_power(VALUES, q - 1), rtol=1e-11)
