"""What is special about mirror descent on singular values; the rest is in the conformance suite."""

import numpy as np
import pytest
import torch

from whichtoken.optim import MirrorDescent


def raised(matrix, exponent):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * values**exponent) @ right


def matrix(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parameter(*shape, seed=0, dtype=torch.float64):
    return torch.nn.Parameter(matrix(*shape, seed=seed, dtype=dtype))


def step(optimizer, *gradients):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient.clone()
    optimizer.step()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-11)])
@pytest.mark.parametrize("p", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_follows_the_formulas(shape, p, dtype, tolerance):
    param = parameter(*shape, dtype=dtype)
    optimizer = MirrorDescent([param], lr=0.02, p=p, norm="schatten", momentum=0.5, normalized=True)
    weights, buffer = param.detach().double().numpy(), np.zeros(shape)
    dual = raised(weights, p - 1)
    for number in range(4):
        gradient = matrix(*shape, seed=number + 1, dtype=dtype)
        step(optimizer, gradient)
        buffer = 0.5 * buffer + gradient.double().numpy()
        dual = dual - 0.02 * buffer / np.linalg.norm(np.linalg.svd(buffer)[1], p / (p - 1))
    np.testing.assert_allclose(param.detach(), raised(dual, 1 / (p - 1)), rtol=tolerance, atol=tolerance)


def test_exponent_two_is_stochastic_gradient_descent():
    param, other = parameter(4, 3), parameter(4, 3)
    optimizer, sgd = MirrorDescent([param], lr=0.1, norm="schatten"), torch.optim.SGD([other], lr=0.1)
    for number in range(3):
        step(optimizer, matrix(4, 3, seed=number))
        step(sgd, matrix(4, 3, seed=number))
    assert torch.equal(param, other)
    assert not optimizer.state[param]


@pytest.mark.parametrize("normalized", [False, True])
def test_heads_are_matrices_of_their_own(normalized):
    whole = parameter(6, 4)
    parts = [torch.nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    options = {"lr": 0.1, "p": 1.3, "norm": "schatten", "normalized": normalized}
    together, apart = MirrorDescent([whole], heads=3, **options), MirrorDescent(parts, **options)
    for number in range(3):
        step(together, matrix(6, 4, seed=number))
        step(apart, *matrix(6, 4, seed=number).chunk(3))
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-12, atol=1e-12)


def test_turning_weights_and_gradients_turns_the_steps():
    turn, other = (torch.linalg.qr(matrix(4, 4, seed=seed))[0] for seed in (8, 9))
    here, there = parameter(4, 4), torch.nn.Parameter(turn @ matrix(4, 4) @ other)
    optimizers = [MirrorDescent([param], lr=0.1, p=1.2, norm="schatten") for param in (here, there)]
    for number in range(3):
        gradient = matrix(4, 4, seed=number)
        step(optimizers[0], gradient)
        step(optimizers[1], turn @ gradient @ other)
    torch.testing.assert_close(there, turn @ here @ other, rtol=1e-10, atol=1e-10)


def test_singular_values_too_small_for_the_weights_outlive_in_the_dual():
    """At p = 1.1, 1e-2 in U is 1e-20 in W, beside 1 far below the resolution of float32."""
    param = torch.nn.Parameter(torch.diag(torch.tensor([1.0, 0.0])))
    optimizer = MirrorDescent([param], lr=0.01, p=1.1, norm="schatten")
    for _ in range(100):
        step(optimizer, torch.diag(torch.tensor([0.0, -1.0])))
    torch.testing.assert_close(param.detach(), torch.eye(2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["weights", "p", "heads"])
def test_the_dual_is_derived_anew_after_a_change_from_outside(change):
    param = parameter(4, 4)
    optimizer = MirrorDescent([param], lr=0.1, p=1.5, norm="schatten")
    step(optimizer, matrix(4, 4, seed=1))
    group = optimizer.param_groups[0]
    if change == "weights":
        with torch.no_grad():
            param[0, 0] = 0.0
    else:
        group.update({"p": 1.25} if change == "p" else {"heads": 2})
    fresh = torch.nn.Parameter(param.detach().clone())
    step(optimizer, matrix(4, 4, seed=2))
    step(MirrorDescent([fresh], lr=0.1, p=group["p"], norm="schatten", heads=group["heads"]), matrix(4, 4, seed=2))
    assert torch.equal(param, fresh)


def test_matrices_that_would_overflow_stay_and_the_step_says_so():
    param = parameter(4, 2)
    optimizer = MirrorDescent([param], lr=1e30, p=1.05, norm="schatten", heads=2)
    before, gradient = param.detach().clone(), torch.zeros(4, 2, dtype=torch.float64)
    gradient[2:] = 1.0
    with pytest.raises(ValueError, match=r"4 entries of parameter 0 of group 0 would leave the range of torch.float64"):
        step(optimizer, gradient)
    torch.testing.assert_close(param.detach(), before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_gradients_are_refused(bad):
    param = parameter(3, 3)
    optimizer, before = MirrorDescent([param], lr=0.1, p=1.5, norm="schatten"), param.detach().clone()
    with pytest.raises(ValueError, match="parameter 0 of group 0 is non-finite, so nothing was moved; singular values"):
        step(optimizer, torch.full((3, 3), bad, dtype=torch.float64))
    assert torch.equal(param, before)


def test_nonfinite_weights_are_refused():
    param = torch.nn.Parameter(torch.full((2, 2), float("nan")))
    with pytest.raises(ValueError, match="Parameter 0 of group 0 holds NaN or infinity"):
        step(MirrorDescent([param], lr=0.1, p=1.5, norm="schatten"), torch.ones(2, 2))


@pytest.mark.parametrize("p", [1.1, 4.0])
def test_the_direction_goes_to_the_largest_margin_in_its_own_norm(p):
    from whichtoken.margin import key_query_svm

    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((4, 4, 5)), rng.standard_normal((4, 5))
    selected = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((5, 5)), queries).argmax(axis=1)
    rows = np.array(
        [
            np.outer(x[s] - x[t], z)
            for x, z, s in zip(tokens, queries, selected, strict=True)
            for t in range(4)
            if t != s
        ]
    )
    best = {q: key_query_svm(tokens, queries, selected, q, norm="schatten").margin for q in (1.1, 2.0, 4.0)}
    data, param = torch.tensor(rows), torch.nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))
    optimizer = MirrorDescent([param], lr=0.3, p=p, norm="schatten", normalized=True)
    for _ in range(400):
        optimizer.zero_grad()
        torch.logsumexp(-torch.einsum("kij,ij->k", data, param), 0).backward()
        optimizer.step()
    found = param.detach().numpy()
    shares = {
        q: np.min(np.einsum("kij,ij->k", rows, found)) / np.linalg.norm(np.linalg.svd(found)[1], q) / best[q]
        for q in best
    }
    assert shares[p] > 0.95  # what is missing goes like one over the norm of the weights
    assert max(shares, key=shares.get) == p
