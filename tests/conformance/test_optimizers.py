"""What every optimizer passes; a new one adds one row to `OPTIMIZERS`."""

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from whichtoken.optim import MirrorDescent, StructureAware


@dataclass(frozen=True)
class Row:
    """One optimizer and the ways to use it."""

    make: Callable[..., torch.optim.Optimizer]
    variants: tuple[Mapping[str, Any], ...]  # options, each with a step size that suits the two problems below
    first_options: frozenset[str]  # what the state dicts of its first version hold
    refused: tuple[tuple[Mapping[str, Any], str], ...] = ()  # options and what the error says
    shapes: tuple[tuple[int, ...], ...] = ((3, 4), (6,))
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)


OPTIMIZERS = (
    # the measure of all others: what torch's own optimizer does not pass is not asked here
    Row(
        make=torch.optim.SGD,
        variants=({"lr": 1e-2}, {"lr": 3e-3, "momentum": 0.9, "weight_decay": 1e-3}),
        first_options=frozenset({"lr", "momentum", "dampening", "weight_decay"}),
        refused=(({"lr": -1.0}, "Invalid learning rate: -1.0"), ({"momentum": -1.0}, "Invalid momentum value: -1.0")),
    ),
    Row(
        make=MirrorDescent,
        variants=(
            {"lr": 1e-2},
            {"lr": 1e-2, "p": 1.5},
            {"lr": 3e-3, "p": 1.1},
            {"lr": 6e-3, "p": 1.75},
            {"lr": 6e-3, "p": 3.0},
            {"lr": 3e-3, "p": 1.3, "momentum": 0.9},
            {"lr": 1e-2, "p": 1.5, "weight_decay": 1e-3, "momentum": 0.5},
            {"lr": 5e-2, "p": 2.0, "normalized": True},
            {"lr": 5e-2, "p": 1.75, "normalized": True},
        ),
        first_options=frozenset({"lr", "p"}),
        refused=(
            ({"lr": -1.0}, "Invalid learning rate: -1.0"),
            ({"lr": float("nan")}, "Invalid learning rate: nan"),
            ({"lr": float("inf")}, "Invalid learning rate: inf"),
            ({"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
            ({"p": 1.0}, "Invalid p value: 1.0"),
            ({"p": 0.5}, "Invalid p value: 0.5"),
            ({"p": float("nan")}, "Invalid p value: nan"),
            ({"p": float("inf")}, "Invalid p value: inf"),
            ({"momentum": -0.5}, "Invalid momentum value: -0.5"),
            ({"weight_decay": -0.5}, "Invalid weight_decay value: -0.5"),
            ({"norm": "shatten"}, "Invalid norm value: 'shatten', must be one of entrywise, schatten"),
            ({"norm": "schatten"}, r"norm='schatten' is for matrices, but parameter 1 of group \d has shape \(6,\)"),
            ({"heads": 2}, "Invalid heads value: 2, must be 1 unless norm='schatten'"),
        ),
    ),
    Row(
        make=partial(MirrorDescent, norm="schatten"),
        shapes=((4, 3), (2, 4, 3)),
        variants=(
            {"lr": 2e-3, "p": 1.1, "heads": 2},
            {"lr": 1e-2, "p": 1.5, "weight_decay": 1e-3, "momentum": 0.5},
            {"lr": 5e-2, "p": 1.75, "heads": 2, "normalized": True},
        ),
        first_options=frozenset({"lr", "p", "norm", "heads", "momentum", "weight_decay", "normalized"}),
        refused=(
            ({"lr": float("inf")}, "Invalid learning rate: inf"),
            ({"p": 1.0}, "Invalid p value: 1.0"),
            ({"p": 0.5}, "Invalid p value: 0.5"),
            ({"heads": 0}, "Invalid heads value: 0"),
            ({"heads": 2.0}, "Invalid heads value: 2.0"),
            ({"heads": 3}, r"of shape \(4, 3\) cannot be split into heads=3"),
            ({"momentum": -0.5}, "Invalid momentum value: -0.5"),
        ),
    ),
    Row(
        make=StructureAware,
        shapes=((4, 4),) * 4,  # one attention chain or two pairs
        variants=(
            {"lr": 1e-2, "structure": "pair", "damping": 0.1},
            {"lr": 1e-2, "structure": "attention", "damping": 0.1, "keep_norm": True},
            {"lr": 1e-2, "structure": "pair", "damping": 0.1, "trust": 0.05},
            {"lr": 3e-3, "structure": "pair", "damping": 0.1, "keep_norm": True, "momentum": 0.9},
            {
                "lr": 1e-2,
                "structure": "attention",
                "heads": 2,
                "damping": 0.1,
                "covariance": torch.diag(torch.tensor([0.5, 1.0, 1.0, 2.0])),
                "logit_factor": 0.5,
                "keep_norm": True,
            },
        ),
        first_options=frozenset(
            {"lr", "structure", "heads", "damping", "covariance", "logit_factor", "keep_norm", "momentum", "maximize"}
        ),
        refused=(
            ({"lr": -1.0}, "Invalid learning rate: -1.0"),
            ({"lr": float("nan")}, "Invalid learning rate: nan"),
            ({"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
            ({"structure": "trio"}, "Invalid structure value: 'trio'"),
            ({"heads": 0}, "Invalid heads value: 0"),
            ({"heads": 3}, "cannot be split into heads=3"),
            ({"damping": 0.0}, "Invalid damping value: 0.0"),
            ({"logit_factor": 1.0}, "'pair' has no logits"),
            ({"logit_factor": -1.0}, "Invalid logit_factor value: -1.0"),
            ({"covariance": torch.ones(4, 4)}, "covariance is singular or indefinite"),
            ({"trust": 0.0}, "Invalid trust value: 0.0"),
            ({"covariance": torch.eye(3)}, r"covariance of shape \(3, 3\) must have shape \(4, 4\)"),
            ({"momentum": -0.5}, "Invalid momentum value: -0.5"),
        ),
    ),
)


def label(value):
    if isinstance(value, Row) and isinstance(value.make, partial):
        return f"{value.make.func.__name__}({label(value.make.keywords)})"
    if isinstance(value, Row):
        return value.make.__name__
    if isinstance(value, Mapping):
        return ",".join(
            f"{key}={'tensor' if isinstance(option, torch.Tensor) else option}" for key, option in value.items()
        )
    return str(value)


each_row = pytest.mark.parametrize("row", OPTIMIZERS, ids=label)
each_variant = pytest.mark.parametrize(
    ("row", "options"), [(row, options) for row in OPTIMIZERS for options in row.variants], ids=label
)
each_variant_and_dtype = pytest.mark.parametrize(
    ("row", "options", "dtype"),
    [(row, options, dtype) for row in OPTIMIZERS for options in row.variants for dtype in row.dtypes],
    ids=label,
)


def parameters(row, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    start = [0.5 + torch.rand(shape, generator=generator, dtype=torch.float64) for shape in row.shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in start]


def quadratic(params):
    """Convex, of condition number 10, least at -0.5 everywhere."""
    flat = torch.cat([param.reshape(-1) for param in params])
    return (torch.linspace(1, 10, flat.numel(), dtype=flat.dtype) * (flat + 0.5) ** 2).sum() / 2


def rosenbrock(params):
    flat = torch.cat([param.reshape(-1) for param in params])
    here, there = flat[::2], flat[1::2]
    return ((1 - here) ** 2 + 10 * (there - here**2) ** 2).sum()


def run(optimizer, params, steps, problem=quadratic):
    for _ in range(steps):
        optimizer.zero_grad()
        problem(params).backward()
        optimizer.step()


def assert_same(params, others):
    for param, other in zip(params, others, strict=True):
        torch.testing.assert_close(param, other, rtol=0, atol=0)


@each_variant_and_dtype
def test_quadratic_goes_to_its_minimum(row, options, dtype):
    params = parameters(row, dtype)
    before = quadratic(params).item()
    run(row.make(params, **options), params, 200)
    assert quadratic(params).item() < 0.05 * before


@pytest.mark.slow
@each_variant_and_dtype
def test_rosenbrock_valley_is_followed(row, options, dtype):
    params = parameters(row, dtype)
    before = rosenbrock(params).item()
    run(row.make(params, **options), params, 200, rosenbrock)
    assert rosenbrock(params).item() < 0.1 * before


@each_variant_and_dtype
def test_saving_and_loading_changes_nothing(row, options, dtype):
    straight = parameters(row, dtype)
    run(row.make(straight, **options), straight, 40)

    halfway = parameters(row, dtype)
    optimizer = row.make(halfway, **options)
    run(optimizer, halfway, 20)
    file = io.BytesIO()
    torch.save({"params": halfway, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    stored = torch.load(file, weights_only=True)
    resumed = parameters(row, dtype, seed=1)
    optimizer = row.make(resumed, **{**options, "lr": 1.0})  # the stored step size replaces this one
    with torch.no_grad():
        for param, value in zip(resumed, stored["params"], strict=True):
            param.copy_(value)
    optimizer.load_state_dict(stored["optimizer"])
    run(optimizer, resumed, 20)
    assert_same(resumed, straight)


@each_variant
def test_state_of_another_dtype_is_converted(row, options):
    params = parameters(row, torch.float64)
    optimizer = row.make(params, **options)
    run(optimizer, params, 20)
    small = [param.detach().float().requires_grad_() for param in params]
    converted = row.make(small, **options)
    converted.load_state_dict(optimizer.state_dict())
    run(optimizer, params, 5)
    run(converted, small, 5)
    for param, other in zip(params, small, strict=True):
        torch.testing.assert_close(other.double(), param, rtol=1e-5, atol=1e-6)


@each_variant
def test_deep_copy_goes_the_same_way_on_its_own(row, options):
    params = parameters(row)
    optimizer = row.make(params, **options)
    run(optimizer, params, 10)
    frozen = [param.detach().clone() for param in params]
    other_params, other = copy.deepcopy((params, optimizer))
    run(other, other_params, 10)
    assert_same(params, frozen)
    run(optimizer, params, 10)
    assert_same(params, other_params)


@each_variant
def test_pickled_optimizer_goes_the_same_way(row, options):
    params = parameters(row)
    optimizer = row.make(params, **options)
    run(optimizer, params, 10)
    other_params, other = pickle.loads(pickle.dumps((params, optimizer)))
    run(optimizer, params, 10)
    run(other, other_params, 10)
    assert_same(params, other_params)


@each_variant
def test_layout_in_memory_does_not_matter(row, options):
    params = parameters(row)
    spread = [torch.zeros([2 * size for size in param.shape], dtype=param.dtype) for param in params]
    strided = [tensor[tuple(slice(None, None, 2) for _ in tensor.shape)] for tensor in spread]
    turned = [param.detach().T.clone(memory_format=torch.contiguous_format).T for param in params if param.dim() == 2]
    turned += [param.detach().clone() for param in params if param.dim() != 2]
    for view, param in zip(strided, params, strict=True):
        view.copy_(param.detach())
    for view in strided + turned:
        view.requires_grad_()
    for tensors in (params, strided, turned):
        run(row.make(tensors, **options), tensors, 30)
    assert not strided[0].is_contiguous()
    assert not turned[0].is_contiguous()
    for others in (strided, turned):
        for param, other in zip(params, others, strict=True):
            torch.testing.assert_close(other, param, rtol=1e-12, atol=1e-14)
    for tensor in spread:
        assert (tensor[..., 1::2] == 0).all(), "a step wrote between the entries of a view"


SCHEDULERS = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.95),
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 7], gamma=0.5),
    "ConstantLR": lambda optimizer: lr_scheduler.ConstantLR(optimizer),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 20),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 12),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
    # these two move the momentum as well, whatever it was
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 1e-4, 3e-3, step_size_up=6),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=14),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ConstantLR(optimizer)], [4]
    ),
}


def test_every_scheduler_of_torch_has_its_row():
    kinds = {name for name in lr_scheduler.__all__ if name[0].isupper()}
    assert kinds - {"LRScheduler"} == {*SCHEDULERS, "ReduceLROnPlateau"}  # which has a test of its own below


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")  # by torch's own SequentialLR
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@each_row
def test_schedulers_set_the_step_size(row, scheduler):
    params, others = parameters(row), parameters(row)
    optimizer = row.make(params, **row.variants[-1])
    schedule = SCHEDULERS[scheduler](optimizer)
    by_hand = row.make(others, **row.variants[-1])
    sizes, before = [], quadratic(params).item()
    for _ in range(12):
        settings = {option: optimizer.param_groups[0][option] for option in ("lr", "momentum")}
        sizes.append(settings["lr"])
        by_hand.param_groups[0].update(settings)
        run(optimizer, params, 1)
        run(by_hand, others, 1)
        schedule.step()
    assert len(set(sizes)) > 1
    assert_same(params, others)
    assert quadratic(params).item() < before


@each_row
def test_plateau_scheduler_reads_the_loss(row):
    params = parameters(row)
    optimizer = row.make(params, **row.variants[0])
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.1)
    for _ in range(4):
        schedule.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * row.variants[0]["lr"])


@each_variant
def test_step_size_may_be_a_tensor(row, options):
    params, others = parameters(row), parameters(row)
    size = torch.tensor(options["lr"], dtype=torch.float64)
    optimizer = row.make(params, **{**options, "lr": size})
    run(optimizer, params, 5)
    size.mul_(0.5)
    run(optimizer, params, 5)
    by_number = row.make(others, **options)
    run(by_number, others, 5)
    by_number.param_groups[0]["lr"] *= 0.5
    run(by_number, others, 5)
    assert_same(params, others)


@each_variant
def test_closure_is_evaluated_once_with_gradients(row, options):
    params, others = parameters(row), parameters(row)
    optimizer = row.make(params, **options)
    losses = []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = quadratic(params)
        loss.backward()
        losses.append(loss.item())
        return loss

    expected = [quadratic(params).item()]
    returned = [optimizer.step(closure).item() for _ in range(3)]
    run(row.make(others, **options), others, 3)
    assert losses == returned
    assert returned[:1] == expected
    assert_same(params, others)


@each_variant
def test_maximize_is_descent_on_the_negative(row, options):
    params, others = parameters(row), parameters(row)
    run(row.make(params, **options, maximize=True), params, 20, lambda tensors: -quadratic(tensors))
    run(row.make(others, **options), others, 20)
    assert_same(params, others)


@each_row
def test_groups_keep_their_own_options(row):
    first, second = parameters(row), parameters(row, seed=1)
    optimizer = row.make([{"params": first, **row.variants[-1]}, {"params": second, **row.variants[0]}], lr=1e-3)
    run(optimizer, first + second, 10, lambda params: quadratic(params[: len(first)]) + quadratic(params[len(first) :]))
    for params, seed, options in ((first, 0, row.variants[-1]), (second, 1, row.variants[0])):
        alone = parameters(row, seed=seed)
        run(row.make(alone, **options), alone, 10)
        assert_same(params, alone)


@each_row
def test_group_added_later_starts_then(row):
    first, second = parameters(row), parameters(row, seed=1)
    optimizer = row.make(first, **row.variants[-1])
    run(optimizer, first, 5)
    optimizer.add_param_group({"params": iter(second), "lr": 1e-4})
    run(optimizer, second, 5)
    alone = parameters(row, seed=1)
    run(row.make(alone, **{**row.variants[-1], "lr": 1e-4}), alone, 5)
    assert_same(second, alone)
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        optimizer.add_param_group({"params": first})


@each_row
def test_refused_group_leaves_the_others_as_they_were(row):
    optimizer = row.make(parameters(row), **row.variants[0])
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        optimizer.add_param_group({"params": [2 * parameters(row)[0]]})
    assert len(optimizer.param_groups) == 1


@each_variant
def test_old_state_dicts_load(row, options):
    options = {key: value for key, value in options.items() if key in row.first_options}
    params, others = parameters(row), parameters(row)
    old, straight = row.make(params, **options), row.make(others, **options)
    run(old, params, 5)
    run(straight, others, 10)
    stored = copy.deepcopy(old.state_dict())
    for group in stored["param_groups"]:
        for key in set(group) - row.first_options - {"params"}:
            del group[key]
    resumed = row.make(params, lr=1.0)
    resumed.load_state_dict(stored)
    run(resumed, params, 5)
    assert_same(params, others)


@each_variant
def test_parameters_without_gradient_stay(row, options):
    params, frozen = parameters(row), parameters(row, seed=1)
    before = [param.detach().clone() for param in frozen]
    optimizer = row.make(params + frozen, **options)
    run(optimizer, params, 5)
    assert_same(frozen, before)
    assert not any(optimizer.state[param] for param in frozen)


@each_row
def test_zero_grad_clears(row):
    params = parameters(row)
    optimizer = row.make(params, **row.variants[0])
    quadratic(params).backward()
    optimizer.zero_grad(set_to_none=False)
    assert all((param.grad == 0).all() for param in params)
    optimizer.zero_grad()
    assert all(param.grad is None for param in params)


@each_variant
def test_empty_parameter_is_no_obstacle(row, options):
    params, others = parameters(row), parameters(row)
    nothing = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    nothing.grad = torch.zeros_like(nothing)
    optimizer = row.make([*params, nothing], **options)
    quadratic(params).backward()
    optimizer.step()
    run(row.make(others, **options), others, 1)
    assert_same(params, others)


@each_variant
def test_autograd_notices_the_step(row, options):
    params = parameters(row)
    optimizer = row.make(params, **options)
    loss = sum((param**2).sum() for param in params)
    run(optimizer, params, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_row
def test_names_travel_with_the_state(row):
    params = parameters(row)
    named = [(f"layer.{index}", param) for index, param in enumerate(params)]
    optimizer = row.make(named, **row.variants[-1])
    run(optimizer, params, 1)
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in named]


@each_row
def test_hooks_see_every_step(row):
    params = parameters(row)
    optimizer = row.make(params, **row.variants[0])
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    run(optimizer, params, 2)
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [(row, options, message) for row in OPTIMIZERS for options, message in row.refused],
    ids=label,
)
def test_bad_options_are_refused(row, options, message):
    with pytest.raises(ValueError, match=message):
        row.make(parameters(row), **{**row.variants[0], **options})
    optimizer = row.make(parameters(row), **row.variants[0])
    if row.make is torch.optim.SGD:
        return  # torch does not look at the options of a group
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": parameters(row, seed=1), **options})
    assert len(optimizer.param_groups) == 1


@each_row
def test_bad_parameters_are_refused(row):
    options = row.variants[0]
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        row.make([], **options)
    with pytest.raises(TypeError, match="params argument given to the optimizer should be an iterable"):
        row.make(parameters(row)[0], **options)
    with pytest.raises(TypeError, match="optimizer can only optimize Tensors"):
        row.make([1.0], **options)
