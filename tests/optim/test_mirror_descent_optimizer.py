import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from whichtoken.datasets import AttentionTokens
from whichtoken.errors import UsageError
from whichtoken.flows.descent import attention_descent
from whichtoken.optim import MirrorDescent
from whichtoken.theory.mirror_descent import inverse_mirror_map, mirror_map

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
EXPONENTS = [1.1, 1.3, 1.5, 3.0]


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors of a hundred entries gain nothing from more, and on a busy machine the threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gaussian(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def step(optimizer, *gradients):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient.clone()
    optimizer.step()


# p = 2


@DTYPES
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}],
    ids=str,
)
def test_p_2_is_stochastic_gradient_descent(options, dtype):
    ours, theirs = gaussian(20, 30, dtype=dtype).requires_grad_(), gaussian(20, 30, dtype=dtype).requires_grad_()
    mirror, sgd = MirrorDescent([ours], 0.01, p=2.0, **options), torch.optim.SGD([theirs], 0.01, **options)
    for seed in range(50):
        gradient = gaussian(20, 30, dtype=dtype, seed=seed)
        step(mirror, gradient)
        step(sgd, gradient)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert "dual" not in mirror.state[ours]


# other p


def reference(weights, gradients, p, lr, normalized=False, momentum=0.0, weight_decay=0.0):
    """The three lines of the docstring in numpy float64."""
    q, dual, buffer = p / (p - 1), mirror_map(weights, p), 0.0
    for gradient in gradients:
        direction = buffer = momentum * buffer + gradient + weight_decay * weights
        if normalized:
            direction = direction / np.sum(np.abs(direction) ** q) ** (1 / q)
        dual = dual - lr * direction
        weights = inverse_mirror_map(dual, p)
    return weights, dual


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"normalized": True}, {"normalized": True, "momentum": 0.9}],
    ids=str,
)
@pytest.mark.parametrize("p", EXPONENTS)
@DTYPES
def test_follows_the_formulas(p, options, dtype):
    start, gradients = gaussian(7, 11, dtype=dtype), [gaussian(7, 11, dtype=dtype, seed=1 + k) for k in range(20)]
    param = start.clone().requires_grad_()
    optimizer = MirrorDescent([param], 0.003, p=p, **options)
    for gradient in gradients:
        step(optimizer, gradient)
    double = [gradient.double().numpy() for gradient in gradients]
    weights, dual = reference(start.double().numpy(), double, p, 0.003, **options)
    # every step rounds the dual once; the power multiplies relative errors by 1/(p-1)
    atol = 20 * torch.finfo(dtype).eps * np.abs(dual).max()
    np.testing.assert_allclose(optimizer.state[param]["dual"].double().numpy(), dual, rtol=0, atol=atol)
    np.testing.assert_allclose(
        param.detach().double().numpy(), weights, rtol=0, atol=atol / (p - 1) * np.abs(weights / dual).max()
    )


@pytest.mark.parametrize("p", EXPONENTS)
@DTYPES
def test_compiled_and_torch_forms_agree(p, dtype):
    """A transposed parameter takes the form that also serves other devices."""
    start, gradient = gaussian(40, 30, dtype=dtype), gaussian(40, 30, dtype=dtype, seed=1)
    compiled, turned = start.clone().requires_grad_(), start.T.contiguous().T.requires_grad_()
    optimizers = [MirrorDescent([param], 0.01, p=p, normalized=True) for param in (compiled, turned)]
    for _ in range(5):
        for optimizer in optimizers:
            step(optimizer, gradient)
    assert not turned.is_contiguous()
    torch.testing.assert_close(turned, compiled, rtol=(4 + 20 / (p - 1)) * torch.finfo(dtype).eps, atol=1e-30)


def attention_loss(problem, weights):
    tokens, queries, gamma = (
        torch.as_tensor(x, dtype=weights.dtype) for x in (problem.tokens, problem.queries, problem.token_scores)
    )
    attention = torch.softmax(torch.einsum("ntd,de,ne->nt", tokens, weights, queries), dim=1)  # (n, T)
    return nn.functional.softplus(-(attention * gamma).sum(dim=1)).mean()


@pytest.mark.parametrize("rule", ["plain", "normalized"])
@pytest.mark.parametrize("p", [1.1, 1.75, 2.0, 3.0])
def test_follows_the_compiled_attention_descent(p, rule):
    rng = np.random.default_rng(1)
    problem, start = AttentionTokens().sample(rng), rng.standard_normal((10, 10))
    weights = torch.tensor(start, requires_grad=True)
    optimizer = MirrorDescent([weights], 0.01, p=p, normalized=rule == "normalized")
    for _ in range(30):
        optimizer.zero_grad()
        attention_loss(problem, weights).backward()
        optimizer.step()
    final = attention_descent(problem, start, p=p, lr=0.01, steps=30, rule=rule).final
    expected = np.exp(final.log_norm) * final.direction
    np.testing.assert_allclose(weights.detach().numpy(), expected, rtol=0, atol=1e-9 * np.abs(expected).max())


# the dual variable as state


def descend(problem, p, lr, steps, forget):
    """float32 weights from zero; with `forget` the dual is derived from the weights in every step."""
    weights = torch.zeros(10, 10, requires_grad=True)
    optimizer = MirrorDescent([weights], lr, p=p)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = attention_loss(problem, weights)
        loss.backward()
        if forget:
            optimizer.state.clear()
        optimizer.step()
    return weights, loss.item()


@pytest.mark.parametrize(("p", "lr", "stuck", "steps"), [(1.1, 1e-3, 100, 1500), (1.1, 1e-2, 71, 500)])
def test_float32_weights_leave_zero_because_the_dual_is_kept(p, lr, stuck, steps):
    problem = AttentionTokens().sample(np.random.default_rng(1))
    weights, _ = descend(problem, p, lr, 20, forget=True)
    assert (weights == 0).sum() == stuck  # no single step is large enough, and none is remembered
    weights, _ = descend(problem, p, lr, steps, forget=False)
    assert (weights == 0).sum() == 0


def test_float32_loss_falls_because_the_dual_is_kept():
    problem = AttentionTokens().sample(np.random.default_rng(1))
    _, loss = descend(problem, 1.05, 0.1, 100, forget=True)
    assert loss == pytest.approx(0.687, abs=5e-4)  # that of uniform attention
    _, loss = descend(problem, 1.05, 0.1, 3000, forget=False)
    assert loss == pytest.approx(0.528, abs=5e-4)


@pytest.mark.parametrize("p", [1.05, 1.1, 1.07])
def test_steps_too_small_to_show_are_not_lost(p):
    param = torch.zeros(4, requires_grad=True)
    optimizer = MirrorDescent([param], 1.0, p=p)
    gradient = torch.tensor([1.0, -1.0, 0.5, 0.0]) * 2.0**-16
    step(optimizer, gradient)
    assert (param == 0).all()
    for _ in range(2**11 - 1):
        optimizer.step()
    expected = inverse_mirror_map(-(2.0**11) * gradient.numpy().astype(float), p)
    np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-5)


CHANGES = {
    "clamp_": lambda param: param.clamp_(-0.5, 0.5),
    "data": lambda param: param.data.clamp_(-0.5, 0.5),
    "copy_": lambda param: param.copy_(param.clamp(-0.5, 0.5)),
    "set data": lambda param: setattr(param, "data", param.data.clamp(-0.5, 0.5)),
    "numpy": lambda param: np.clip(param.detach().numpy(), -0.5, 0.5, out=param.detach().numpy()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("p", EXPONENTS)
def test_change_from_outside_is_noticed_entry_by_entry(p, change):
    changed, untouched = gaussian(50, dtype=torch.float32), gaussian(50, dtype=torch.float32)
    optimizers = [MirrorDescent([param.requires_grad_()], 0.01, p=p) for param in (changed, untouched)]
    gradient = gaussian(50, dtype=torch.float32, seed=1)
    for optimizer in optimizers:
        step(optimizer, gradient)
    clamped = (changed.abs() > 0.5).detach()
    with torch.no_grad():
        CHANGES[change](changed)
    fresh = changed.detach().clone().requires_grad_()
    for optimizer in (*optimizers, MirrorDescent([fresh], 0.01, p=p)):
        step(optimizer, gradient)
    assert clamped.any()
    assert not clamped.all()
    torch.testing.assert_close(changed[clamped], fresh[clamped], rtol=0, atol=0)
    torch.testing.assert_close(changed[~clamped], untouched[~clamped], rtol=0, atol=0)


def test_loaded_model_weights_are_noticed():
    model, other = nn.Linear(5, 3), nn.Linear(5, 3)
    optimizer = MirrorDescent(model.parameters(), 0.0, p=1.5)
    step(optimizer, *[torch.ones_like(param) for param in model.parameters()])
    model.load_state_dict(other.state_dict())
    optimizer.step()
    torch.testing.assert_close(model.weight, other.weight, rtol=1e-6, atol=0)


def test_weights_put_aside_and_back_keep_their_dual():
    """An average of the weights is evaluated and the weights restored: nothing has changed, not even for zeros."""
    param = torch.zeros(3, requires_grad=True)
    optimizer = MirrorDescent([param], 1e-6, p=1.1)
    step(optimizer, torch.ones(3))
    aside = param.detach().clone()
    with torch.no_grad():
        param.fill_(7.0)
        param.copy_(aside)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[param]["dual"], torch.full((3,), -2e-6))


def test_new_p_of_a_group_derives_the_dual_anew():
    param, fresh = gaussian(30), gaussian(30)
    optimizer = MirrorDescent([param.requires_grad_()], 0.01, p=1.5)
    gradient = gaussian(30, seed=1)
    step(optimizer, gradient)
    fresh = param.detach().clone().requires_grad_()
    optimizer.param_groups[0]["p"] = 1.75
    optimizer.step()
    step(MirrorDescent([fresh], 0.01, p=1.75), gradient)
    torch.testing.assert_close(param, fresh, rtol=0, atol=0)
    optimizer.param_groups[0]["p"] = 2.0
    optimizer.step()
    assert "dual" not in optimizer.state[param]


def test_model_converted_to_double_goes_on():
    layer = nn.Linear(4, 2)
    optimizer = MirrorDescent(layer.parameters(), 0.01, p=1.3)
    step(optimizer, *[torch.ones_like(param) for param in layer.parameters()])
    layer.double()
    before = layer.weight.detach().numpy().copy()
    step(optimizer, *[torch.ones_like(param) for param in layer.parameters()])
    expected, _ = reference(before, [np.ones((2, 4))], 1.3, 0.01)
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("p", [1.1, 1.3])
def test_number_of_threads_changes_nothing(p):
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        param = gaussian(600_000, dtype=torch.float32).requires_grad_()
        optimizer = MirrorDescent([param], 0.01, p=p, normalized=True)
        step(optimizer, gaussian(600_000, dtype=torch.float32, seed=1))
        results.append(param)
    torch.testing.assert_close(*results, rtol=0, atol=0)


# normalized steps


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 1e30, 3e37])
@pytest.mark.parametrize("p", [1.1, 1.3, 2.0, 3.0])
@pytest.mark.parametrize("contiguous", [True, False])
def test_normalized_step_has_length_lr_for_gradients_of_any_size(p, size, contiguous):
    param = torch.zeros(30, 40) if contiguous else torch.zeros(40, 30).T
    optimizer = MirrorDescent([param.requires_grad_()], 0.25, p=p, normalized=True)
    step(optimizer, gaussian(30, 40, dtype=torch.float32) * size)
    dual = optimizer.state[param].get("dual", param).detach().double()
    norm = torch.linalg.vector_norm(dual / dual.abs().max(), p / (p - 1)) * dual.abs().max()
    assert norm.item() == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("p", [1.5, 1.3, 2.0])
def test_zero_gradient_is_no_step(p):
    param = gaussian(5).requires_grad_()
    before = param.detach().clone()
    step(MirrorDescent([param], 0.25, p=p, normalized=True), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(param.detach(), before, rtol=1e-14, atol=0)


def test_each_tensor_is_normalized_by_itself():
    first, second = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = MirrorDescent([first, second], 0.5, p=1.5, normalized=True)
    step(optimizer, torch.ones(3), 100 * torch.ones(3))
    torch.testing.assert_close(first, second)


# bad input


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_other_dtypes_are_refused_in_a_sentence(dtype):
    params = [
        ("embedding", torch.zeros(3, requires_grad=True)),
        ("head", torch.zeros(3, dtype=dtype, requires_grad=True)),
    ]
    message = f"supports float32 and float64 parameters, but parameter head is {dtype}"
    with pytest.raises(ValueError, match=message):
        MirrorDescent(params, 0.1)


def test_model_halved_later_is_refused():
    layer = nn.Linear(2, 2)
    optimizer = MirrorDescent(layer.named_parameters(), 0.1, p=1.5)
    layer.half()
    with pytest.raises(ValueError, match=r"parameter weight is torch\.float16"):
        step(optimizer, *[torch.ones_like(param) for param in layer.parameters()])


def test_sparse_gradients_are_refused_in_a_sentence():
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = MirrorDescent(embedding.named_parameters(), 0.1, p=1.5)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"does not support sparse gradients, .* parameter weight dense"):
        optimizer.step()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("named", [True, False])
def test_nonfinite_gradients_are_refused_by_name(bad, named):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    params = model.named_parameters() if named else model.parameters()
    optimizer = MirrorDescent(params, 0.1, p=1.5, error_if_nonfinite=True)
    before = [param.detach().clone() for param in model.parameters()]
    gradients = [torch.ones_like(param) for param in before]
    gradients[2][1, 0] = bad
    with pytest.raises(
        ValueError, match=f"gradient of parameter {'1.weight' if named else '2 of group 0'} is non-finite"
    ):
        step(optimizer, *gradients)
    for param, old in zip(model.parameters(), before, strict=True):
        assert (param == old).all()


@pytest.mark.parametrize("p", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("contiguous", [True, False])
def test_nonfinite_gradients_otherwise_pass_as_in_torch(p, contiguous):
    param = (torch.ones(3) if contiguous else torch.ones(6)[::2]).requires_grad_()
    optimizer, gradient = MirrorDescent([param], 0.1, p=p), torch.tensor([float("nan"), float("inf"), 0.0])
    with (
        nullcontext() if p == 2 else pytest.warns(RuntimeWarning, match="parameter 0 of group 0 is non-finite") as seen
    ):
        step(optimizer, gradient)
    assert p == 2 or [Path(warning.filename).name for warning in seen] == [Path(__file__).name]
    torch.testing.assert_close(param.detach(), torch.tensor([float("nan"), -float("inf"), 1.0]), equal_nan=True)
    step(optimizer, gradient)  # what is spoiled already is not worth another warning


# the range of the dtype


@pytest.mark.parametrize(
    ("p", "dtype", "accepted"),
    [
        (1000.0, torch.float32, False),
        (128.0, torch.float32, False),
        (127.0, torch.float32, True),
        (1000.0, torch.float64, True),
        (1024.0, torch.float64, False),
        (1.0000001, torch.float32, False),
        (1.00002, torch.float32, True),
        (1.0000001, torch.float64, True),
        (1 + 1e-14, torch.float64, False),
    ],
)
def test_exponents_whose_maps_the_dtype_cannot_hold_are_refused(p, dtype, accepted):
    param = torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0], dtype=dtype, requires_grad=True)
    before = param.detach().clone()
    if accepted:
        step(MirrorDescent([("w", param)], 0.0, p=p), torch.ones(5, dtype=dtype))
        torch.testing.assert_close(param.detach(), before, rtol=0.05, atol=0)
        return
    with pytest.raises(ValueError, match=f"Invalid p value: {p}, must lie between .* in {dtype}, .* w;"):
        MirrorDescent([("w", param)], 0.1, p=p)
    optimizer = MirrorDescent([("w", param)], 0.1)
    optimizer.param_groups[0]["p"] = p
    with pytest.raises(ValueError, match=f"Invalid p value: {p}"):
        step(optimizer, torch.ones(5, dtype=dtype))
    torch.testing.assert_close(param.detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(
    ("p", "start", "gradient", "dtype"),
    [
        (1.1, 0.0, -1e4, torch.float32),  # the image: 1e4^10
        (1.07, 0.0, 1e4, torch.float32),
        (1.01, 1.0, -1e4, torch.float64),
        (100.0, -3.0, 0.0, torch.float32),  # the preimage: 3^99
        (1.5, 1.0, -3e38, torch.float32),  # the dual variable itself
    ],
)
def test_entries_that_would_overflow_stay_and_the_step_says_so(p, start, gradient, dtype, contiguous):
    param, other = torch.full((3,), start, dtype=dtype), torch.ones(2, dtype=dtype)
    param[1] = 1.0
    param = param if contiguous else param.repeat_interleave(2)[::2]
    optimizer = MirrorDescent([("w", param.requires_grad_()), ("v", other.requires_grad_())], 2.0, p=p, momentum=0.25)
    small = torch.tensor([gradient, 1e-3, gradient], dtype=dtype)
    with pytest.raises(UsageError, match=rf"2 entries of parameter w .* {dtype} at p={p}, lr=2, momentum=0.25 and"):
        step(optimizer, small, torch.full((2,), 1e-3, dtype=dtype))
    found = param.detach()
    assert found[0] == found[2] == start
    assert optimizer.state[param]["dual"].isfinite().all()
    assert other[0].item() == pytest.approx((1 - 2e-3) ** (1 / (p - 1)), rel=1e-3), "all others have moved"
    torch.testing.assert_close(found[1], other[0].detach(), rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_one_cycle_with_its_defaults_trains_or_says_what_to_lower():
    """It switches on a momentum of 0.85 to 0.95, whose long steps at p = 1.1 soon leave the range of float32."""
    inputs = gaussian(64, 5, dtype=torch.float32)
    goal = inputs[:, :1] - inputs[:, 1:2]

    def train(max_lr, **options):
        torch.manual_seed(0)
        layer = nn.Linear(5, 1)
        optimizer = MirrorDescent(layer.parameters(), 0.01, p=1.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=60, **options)
        for _ in range(60):
            optimizer.zero_grad()
            loss = ((layer(inputs) - goal) ** 2).mean()
            loss.backward()
            optimizer.step()
            schedule.step()
        return loss.item()

    assert train(0.03, cycle_momentum=False) < 0.5
    assert train(0.01) < 0.5
    with pytest.raises(UsageError, match=r"lr=0.02.*, momentum=0.85.*OneCycleLR"):
        train(0.03)


def test_state_of_another_shape_is_refused():
    small, large = torch.ones(3, requires_grad=True), torch.ones(4, requires_grad=True)
    optimizer, other = MirrorDescent([small], 0.1, p=1.5), MirrorDescent([large], 0.1, p=1.5)
    step(optimizer, torch.ones(3))
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"dual of shape \(3,\) does not fit a parameter of shape \(4,\)"):
        step(other, torch.ones(4))


def test_compiled_descents_do_without_torch():
    code = "import sys, whichtoken.optim, whichtoken.flows.descent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("p", "dual"), [(1.07, 0.0012), (1.3, 1e-12)])
def test_dual_of_a_subnormal_weight_outlives_a_change_of_path(p, dual):
    weight = nn.Parameter(torch.full((2, 2), dual).double().pow(1 / (p - 1)).float())
    optimizer = MirrorDescent([weight], lr=1.0, p=p)
    optimizer.state[weight]["dual"] = torch.full((2, 2), dual)
    for gradient in (torch.zeros(4, 4)[::2, ::2], torch.zeros(2, 2)):  # in torch operations, then compiled
        weight.grad = gradient
        optimizer.step()
    assert torch.equal(optimizer.state[weight]["dual"], torch.full((2, 2), dual))


def test_refused_group_is_not_kept():
    optimizer = MirrorDescent([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "p": "1.1"})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("stored", ["dual", "momentum_buffer"])
def test_state_that_the_kernel_cannot_use_in_place_gives_the_same_steps(stored):
    """A loaded state may have strides of its own; momentum must be added once, whoever adds it."""
    start, gradients = gaussian(6, 4, dtype=torch.float64), [gaussian(6, 4, dtype=torch.float64) for _ in range(4)]
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [MirrorDescent([param], 0.01, p=1.3, momentum=0.9) for param in params]
    for count, gradient in enumerate(gradients):
        if count == 2:
            state = optimizers[1].state[params[1]]
            state[stored] = state[stored].t().contiguous().t()
        for optimizer in optimizers:
            step(optimizer, gradient)
    torch.testing.assert_close(params[0].detach(), params[1].detach(), rtol=1e-12, atol=0)
