"""Every optimizer beside plain float64 torch, for as long as torch has resolution, and beyond it."""

from functools import partial

import numpy as np
import pytest
import torch

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.descent import attention_descent, balanced_chain
from whichtoken.flows.steps import OPTIMIZERS

STEPS = 40


def problem_and_start(seed=1, std=0.3, sequences=6):
    rng = np.random.default_rng(seed)
    problem = AttentionTokens(sequences).sample(rng)
    return problem, std * rng.standard_normal((10, 10))


def mean_loss(problem, weights):
    """The textbook model in torch."""
    tokens, queries = torch.from_numpy(problem.tokens), torch.from_numpy(problem.queries)
    attention = torch.softmax(torch.einsum("ntd,de,ne->nt", tokens, weights, queries), dim=-1)
    pooled = torch.einsum("nt,ntd->nd", attention, tokens)
    margins = torch.from_numpy(problem.labels * 1.0) * (pooled @ torch.from_numpy(problem.decoder))
    return torch.nn.functional.softplus(-margins).mean()


def torch_run(problem, start, optimizer, lr_power=0.0, steps=STEPS):
    """Train with `optimizer`, a function of the parameters that gives an object with `step`; return the weights."""
    parts = start if isinstance(start, tuple) else (start,)
    parameters = [torch.tensor(part, requires_grad=True) for part in parts]
    stepper = optimizer(parameters)
    sizes = [group["lr"] for group in stepper.param_groups]
    for k in range(1, steps + 1):
        for parameter in parameters:
            parameter.grad = None
        weights = parameters[0]
        for factor in parameters[1:]:
            weights = weights @ factor
        mean_loss(problem, weights).backward()
        for group, size in zip(stepper.param_groups, sizes, strict=True):
            group["lr"] = size * k**-lr_power
        with torch.no_grad():
            stepper.step()
    return [parameter.detach().numpy() for parameter in parameters]


class Plain:
    """An update rule of one gradient, with an exponential average of gradients before it as Muon and signum take it."""

    def __init__(self, parameters, update, lr, momentum=0.0, nesterov=False):
        self.parameters, self.update, self.momentum, self.nesterov = parameters, update, momentum, nesterov
        self.param_groups = [{"lr": lr}]
        self.buffers = [torch.zeros_like(parameter) for parameter in parameters]

    def step(self):
        lr = self.param_groups[0]["lr"]
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            direction = parameter.grad.lerp(buffer, self.momentum) if self.nesterov else buffer
            parameter.sub_(lr * self.update(direction))


def largest_entry(gradient):
    return torch.where(gradient.abs() == gradient.abs().max(), gradient.sign(), 0.0)


def polar(gradient):
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    factor = left @ torch.diag((values > 1e-13 * values.max()).double()) @ right
    return max(1.0, gradient.shape[0] / gradient.shape[1]) ** 0.5 * factor


def quintic(gradient, eps=1e-7):
    x = gradient / gradient.norm().clamp(min=eps)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


class TorchLion(Plain):
    def step(self):
        lr = self.param_groups[0]["lr"]
        (parameter,), (buffer,) = self.parameters, self.buffers
        parameter.sub_(lr * parameter.grad.lerp(buffer, 0.8).sign())
        buffer.lerp_(parameter.grad, 1 - 0.95)


class TorchShampoo(Plain):
    def __init__(self, parameters, lr, beta, eps=0.0):
        super().__init__(parameters, None, lr)
        self.beta, self.eps, self.k, self.left, self.right = beta, eps, 0, 0.0, 0.0

    def step(self):
        (parameter,) = self.parameters
        gradient, share = parameter.grad, 1.0 if self.beta == 1.0 else 1 - self.beta
        self.k += 1
        self.left = self.beta * self.left + share * gradient @ gradient.T
        self.right = self.beta * self.right + share * gradient.T @ gradient
        sums = 1.0 if self.beta == 1.0 else 1 - self.beta**self.k
        roots = [self.root(side / sums) for side in (self.left, self.right)]
        parameter.sub_(self.param_groups[0]["lr"] * roots[0] @ gradient @ roots[1])

    def root(self, gram):
        values, vectors = torch.linalg.eigh(gram)
        values = values.clamp(min=0)
        roots = torch.where(values > 1e-12 * values.max(), values.clamp(min=1e-300) ** -0.25, 0.0)
        return vectors @ torch.diag(roots) @ vectors.T


class TorchSoap(TorchShampoo):
    def step(self):
        (parameter,), (buffer,) = self.parameters, self.buffers
        gradient = parameter.grad
        self.k += 1
        self.left = self.beta * self.left + (1 - self.beta) * gradient @ gradient.T
        self.right = self.beta * self.right + (1 - self.beta) * gradient.T @ gradient
        left, right = (torch.linalg.eigh(side)[1] for side in (self.left, self.right))
        buffer.lerp_(gradient, 1 - 0.9)
        self.squares = 0.95 * getattr(self, "squares", 0.0) + 0.05 * (left.T @ gradient @ right) ** 2
        first, second = 1 - 0.9**self.k, 1 - 0.95**self.k
        update = (left.T @ buffer @ right / first) / ((self.squares / second).sqrt() + self.eps)
        parameter.sub_(self.param_groups[0]["lr"] * left @ update @ right.T)


class TorchSchattenMirror(Plain):
    def __init__(self, parameters, lr, p):
        super().__init__(parameters, None, lr)
        self.p = p
        self.dual = powered(parameters[0].detach(), p - 1)

    def step(self):
        q = self.p / (self.p - 1)
        size = torch.linalg.svdvals(self.parameters[0].grad).pow(q).sum() ** (1 / q)
        self.dual = self.dual - self.param_groups[0]["lr"] * self.parameters[0].grad / size
        self.parameters[0].copy_(powered(self.dual, q - 1))


def powered(matrix, exponent):
    left, values, right = torch.linalg.svd(matrix)
    return left @ torch.diag(values**exponent) @ right


SGD, ADAM = torch.optim.SGD, torch.optim.Adam
CASES = {
    "gd": ("gd", {"lr": 1.0}, partial(SGD, lr=1.0)),
    "heavy ball": (
        "gd",
        {"lr": 1.0, "momentum": 0.9, "lr_power": 0.5},
        partial(SGD, lr=1.0, momentum=0.9),
    ),
    "normalized": (
        "normalized-gd",
        {"lr": 0.1, "momentum": 0.5},
        partial(Plain, update=lambda g: g / g.norm(), lr=0.1, momentum=0.5),
    ),
    "sign": ("sign", {"lr": 0.01}, partial(Plain, update=torch.sign, lr=0.01)),
    "signum": (
        "sign",
        {"lr": 0.01, "momentum": 0.9},
        partial(Plain, update=torch.sign, lr=0.01, momentum=0.9),
    ),
    "coordinate": ("coordinate", {"lr": 0.1}, partial(Plain, update=largest_entry, lr=0.1)),
    "adam": ("adam", {"lr": 0.02}, partial(ADAM, lr=0.02)),
    "adam, eps 0": (
        "adam",
        {"lr": 0.02, "betas": (0.5, 0.9), "eps": 0.0, "lr_power": 0.5},
        partial(ADAM, lr=0.02, betas=(0.5, 0.9), eps=0.0),
    ),
    "adam, eps of the gradient's size": ("adam", {"lr": 0.2, "eps": 1e-2}, partial(ADAM, lr=0.2, eps=1e-2)),
    "lion": (
        "lion",
        {"lr": 0.01, "betas": (0.8, 0.95)},
        partial(TorchLion, update=None, lr=0.01),
    ),
    "muon": (
        "muon",
        {"lr": 0.1, "momentum": 0.9},
        partial(Plain, update=polar, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "muon, newton-schulz": (
        "muon",
        {"lr": 0.1, "method": "newton-schulz", "nesterov": False},
        partial(Plain, update=quintic, lr=0.1, momentum=0.95),
    ),
    "muon, eps of the gradient's size": (
        "muon",
        {"lr": 0.1, "method": "newton-schulz", "momentum": 0.0, "eps": 0.1},
        partial(Plain, update=partial(quintic, eps=0.1), lr=0.1),
    ),
    "shampoo": ("shampoo", {"lr": 0.1, "beta": 0.9}, partial(TorchShampoo, lr=0.1, beta=0.9)),
    "shampoo, sums": ("shampoo", {"lr": 0.1, "beta": 1.0}, partial(TorchShampoo, lr=0.1, beta=1.0)),
    "soap": (
        "soap",
        {"lr": 0.02, "betas": (0.9, 0.95), "eps": 1e-3},
        partial(TorchSoap, lr=0.02, beta=0.95, eps=1e-3),
    ),
    "schatten mirror": (
        "mirror",
        {"lr": 0.1, "p": 1.5, "norm": "schatten"},
        partial(TorchSchattenMirror, lr=0.1, p=1.5),
    ),
}


def weights_of(problem, start, name, options, steps=STEPS):
    return attention_descent(problem, start, name, steps=steps, **options).final


COMPILE_LONG = {"shampoo", "shampoo, sums", "soap"}  # factorizations of matrices inside of a kernel


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in COMPILE_LONG else ()) for case in CASES]
)
def test_follows_torch(case):
    name, options, peer = CASES[case]
    # a gradient of full rank, where the bases of soap are no matter of taste; of rank 6 of 10 for all others
    problem, start = problem_and_start(sequences=14 if name == "soap" else 6)
    found = weights_of(problem, start, name, options).weights
    (expected,) = torch_run(problem, start, peer, options.get("lr_power", 0.0))
    assert np.abs(expected - start).max() > 0.05
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_every_optimizer_has_a_row():
    assert set(OPTIMIZERS) == {name for name, _, _ in CASES.values()} - {"mirror"}


def test_newton_schulz_is_torch_muon_without_its_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    problem, start = problem_and_start()
    options = {"lr": 0.1, "method": "newton-schulz", "momentum": 0.95}
    found = weights_of(problem, start, "muon", options).weights
    (expected,) = torch_run(problem, start, partial(torch.optim.Muon, lr=0.1, weight_decay=0.0, momentum=0.95))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", ["gd", "adam", "muon"])
def test_follows_torch_on_keys_and_queries(case):
    name, options, peer = CASES[case]
    problem, start = problem_and_start()
    rng = np.random.default_rng(5)
    start = (0.5 * rng.standard_normal((10, 4)), 0.5 * rng.standard_normal((4, 10)))
    final = weights_of(problem, start, name, options)
    for found, expected in zip(final.factors, torch_run(problem, start, peer), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(final.weights, final.factors[0] @ final.factors[1], rtol=0, atol=1e-12)


def test_follows_torch_on_three_factors():
    problem, start = problem_and_start()
    factors = balanced_chain(start, 3)
    np.testing.assert_allclose(factors[0] @ factors[1] @ factors[2], start, rtol=0, atol=1e-13)
    found = weights_of(problem, factors, "gd", {"lr": 0.5}).factors
    for one, other in zip(found, torch_run(problem, factors, partial(SGD, lr=0.5)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
