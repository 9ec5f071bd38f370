"""Every optimiser beside plain float64 torch, for as long as torch has resolution, and beyond it."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from whichtoken.data import AttentionProblem, AttentionTokens, MulticlassProblem, MulticlassTokens
from whichtoken.flows.descent import attention_descent
from whichtoken.flows.steps import OPTIMIZERS
from whichtoken.flows.trajectory import balanced_chain

STEPS = 40


def problem_and_start(seed=1, std=0.3, heads=None, tokens=None):
    rng = np.random.default_rng(seed)
    problem = (tokens or AttentionTokens()).sample(rng)
    return problem, std * rng.standard_normal((10, 10) if heads is None else (heads, 10, 10))


def mean_loss(problem, heads):
    """The textbook model in torch, averaged over heads (h, d, d)."""
    tokens, queries = torch.from_numpy(problem.tokens), torch.from_numpy(problem.queries)
    attention = torch.softmax(torch.einsum("ntd,hde,ne->hnt", tokens, heads, queries), dim=-1)
    pooled = torch.einsum("hnt,ntd->nd", attention, tokens) / len(heads)
    if isinstance(problem, AttentionProblem):
        margins = torch.from_numpy(problem.labels * 1.0) * (pooled @ torch.from_numpy(problem.decoder))
        return torch.nn.functional.softplus(-margins).mean()
    outputs = pooled @ torch.from_numpy(problem.decoders).T
    return torch.nn.functional.cross_entropy(outputs, torch.from_numpy(problem.labels))


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
        mean_loss(problem, weights if weights.ndim == 3 else weights[None]).backward()
        for group, size in zip(stepper.param_groups, sizes, strict=True):
            group["lr"] = size * k**-lr_power
        with torch.no_grad():
            stepper.step()
    return [parameter.detach().numpy() for parameter in parameters]


class Plain:
    """An update rule of one gradient, with an exponential average of gradients before it as Muon and signum take it."""

    def __init__(self, parameters, update, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
        self.parameters, self.update, self.momentum, self.nesterov = parameters, update, momentum, nesterov
        self.param_groups, self.weight_decay = [{"lr": lr}], weight_decay
        self.buffers = [torch.zeros_like(parameter) for parameter in parameters]

    def step(self):
        lr = self.param_groups[0]["lr"]
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            direction = parameter.grad.lerp(buffer, self.momentum) if self.nesterov else buffer
            parameter.mul_(1 - lr * self.weight_decay)
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
        parameter.mul_(1 - lr * self.weight_decay)
        parameter.sub_(lr * parameter.grad.lerp(buffer, 0.8).sign())
        buffer.lerp_(parameter.grad, 1 - 0.95)


class TorchAdamUncorrected(Plain):
    def step(self):
        (parameter,), (buffer,) = self.parameters, self.buffers
        self.squares = 0.9 * getattr(self, "squares", 0.0) + 0.1 * parameter.grad**2
        buffer.lerp_(parameter.grad, 1 - 0.8)
        parameter.sub_(self.param_groups[0]["lr"] * buffer / (self.squares.sqrt() + 1e-3))


class TorchShampoo(Plain):
    def __init__(self, parameters, lr, beta, eps):
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
        values = values.clamp(min=0) + self.eps
        roots = torch.where(values > 1e-12 * values.max(), values.clamp(min=1e-300) ** -0.25, 0.0)
        return vectors @ torch.diag(roots) @ vectors.T


class TorchSoap(TorchShampoo):
    def step(self):
        (parameter,), (buffer,) = self.parameters, self.buffers
        gradient = parameter.grad
        self.k += 1
        self.left = self.beta * self.left + (1 - self.beta) * gradient @ gradient.T
        self.right = self.beta * self.right + (1 - self.beta) * gradient.T @ gradient
        if self.k % 3 == 1:
            self.bases = [torch.linalg.eigh(side)[1] for side in (self.left, self.right)]
        left, right = self.bases
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


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
CASES = {
    "gd": ("gd", {"lr": 1.0}, partial(SGD, lr=1.0)),
    "heavy ball": (
        "gd",
        {"lr": 1.0, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
        partial(SGD, lr=1.0, momentum=0.9, dampening=0.3, weight_decay=0.01),
    ),
    "nesterov": (
        "gd",
        {"lr": 1.0, "momentum": 0.9, "nesterov": True, "lr_power": 0.5},
        partial(SGD, lr=1.0, momentum=0.9, nesterov=True),
    ),
    "normalized": (
        "normalized-gd",
        {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1},
        partial(Plain, update=lambda g: g / g.norm(), lr=0.1, momentum=0.5, weight_decay=0.1),
    ),
    "sign": ("sign", {"lr": 0.01}, partial(Plain, update=torch.sign, lr=0.01)),
    "signum": (
        "sign",
        {"lr": 0.01, "momentum": 0.9, "nesterov": True},
        partial(Plain, update=torch.sign, lr=0.01, momentum=0.9, nesterov=True),
    ),
    "coordinate": ("coordinate", {"lr": 0.1}, partial(Plain, update=largest_entry, lr=0.1)),
    "adam": ("adam", {"lr": 0.02}, partial(ADAM, lr=0.02)),
    "adam, eps 0, decay": (
        "adam",
        {"lr": 0.02, "betas": (0.5, 0.9), "eps": 0.0, "weight_decay": 0.01, "lr_power": 0.5},
        partial(ADAM, lr=0.02, betas=(0.5, 0.9), eps=0.0, weight_decay=0.01),
    ),
    "adam, eps of the gradient's size": ("adam", {"lr": 0.2, "eps": 1e-2}, partial(ADAM, lr=0.2, eps=1e-2)),
    "adam, uncorrected": (
        "adam",
        {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "bias_correction": False},
        partial(TorchAdamUncorrected, update=None, lr=0.02),
    ),
    "adamw": (
        "adamw",
        {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.3},
        partial(ADAMW, lr=0.02, betas=(0.9, 0.95), weight_decay=0.3),
    ),
    "lion": (
        "lion",
        {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1},
        partial(TorchLion, update=None, lr=0.01, weight_decay=0.1),
    ),
    "muon": (
        "muon",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
        partial(Plain, update=polar, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
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
    "shampoo": ("shampoo", {"lr": 0.1, "beta": 0.9, "eps": 1e-4}, partial(TorchShampoo, lr=0.1, beta=0.9, eps=1e-4)),
    "shampoo on its range": ("shampoo", {"lr": 0.1, "beta": 1.0}, partial(TorchShampoo, lr=0.1, beta=1.0, eps=0.0)),
    "soap": (
        "soap",
        {"lr": 0.02, "betas": (0.9, 0.95), "eps": 1e-3, "every": 3},
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


@pytest.mark.parametrize("case", CASES)
def test_follows_torch(case):
    name, options, peer = CASES[case]
    # a gradient of full rank, where the bases of soap are no matter of taste; of rank 6 of 10 for all others
    problem, start = problem_and_start(tokens=AttentionTokens(sequences=14 if name == "soap" else 6))
    found = weights_of(problem, start, name, options).weights
    (expected,) = torch_run(problem, start, peer, options.get("lr_power", 0.0))
    assert np.abs(expected - start).max() > 0.05
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_every_optimizer_has_a_row():
    assert set(OPTIMIZERS) == {name for name, _, _ in CASES.values()} - {"mirror"}


def test_newton_schulz_is_torch_muon_without_its_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    problem, start = problem_and_start()
    options = {"lr": 0.1, "method": "newton-schulz", "momentum": 0.95, "weight_decay": 0.1}
    found = weights_of(problem, start, "muon", options).weights
    (expected,) = torch_run(problem, start, partial(torch.optim.Muon, lr=0.1, weight_decay=0.1, momentum=0.95))
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


@pytest.mark.parametrize("heads", ["each", "whole"])
def test_follows_torch_on_several_heads(heads):
    problem, start = problem_and_start(heads=3)

    def update(gradient):
        return (
            torch.stack([polar(one) for one in gradient])
            if heads == "each"
            else polar(gradient.view(30, 10)).view(3, 10, 10)
        )

    peer = partial(Plain, update=update, lr=0.1, momentum=0.9)
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": False, "heads": heads}
    result = attention_descent(problem, start, "muon", steps=STEPS, **options)
    (expected,) = torch_run(problem, start, peer)
    np.testing.assert_allclose(result.final.weights, expected, rtol=0, atol=1e-9)
    scores = np.einsum("ntd,hde,ne->hnt", problem.tokens, expected, problem.queries)
    np.testing.assert_array_equal(result.selected, scores.argmax(axis=2))


def test_follows_torch_on_several_classes():
    problem, start = problem_and_start(tokens=MulticlassTokens(classes=4))
    found = weights_of(problem, start, "adam", {"lr": 0.02}).weights
    (expected,) = torch_run(problem, start, partial(ADAM, lr=0.02))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_two_opposite_decoders_are_one():
    problem, start = problem_and_start()
    decoders = np.array([-0.5, 0.5])[:, None] * problem.decoder
    twofold = MulticlassProblem(problem.tokens, problem.queries, (problem.labels + 1) // 2, decoders)
    one, two = (weights_of(case, start, "gd", {"lr": 1.0}, steps=300).weights for case in (problem, twofold))
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-11)


SCALE_FREE = {
    "normalized-gd": {"lr": 0.1, "momentum": 0.9},
    "sign": {"lr": 0.01, "momentum": 0.9},
    "coordinate": {"lr": 0.1},
    "adam": {"lr": 0.02, "eps": 0.0, "betas": (0.9, 0.99)},
    "adamw": {"lr": 0.02, "eps": 0.0},
    "lion": {"lr": 0.01},
    "muon": {"lr": 0.1},
    "shampoo": {"lr": 0.1},
    "soap": {"lr": 0.02, "eps": 0.0},
}


@pytest.mark.parametrize("name", SCALE_FREE)
def test_gradients_below_every_float_lead_to_the_same_place(name):
    """A loss e^-1000 times another has gradients e^-1000 times as large, and second moments e^-2000 times."""
    problem, start = problem_and_start()
    one, other = (
        attention_descent(problem, start, name, steps=300, loss=loss, **SCALE_FREE[name]).final.weights
        for loss in (lambda m: -m, lambda m: -m - 1000.0)
    )
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["adam", "soap"])
def test_eps_stops_gradients_below_it(name):
    problem, start = problem_and_start()
    final = attention_descent(problem, start, name, steps=10, lr=0.1, eps=1e-8, loss=lambda m: -m - 1000.0).final
    np.testing.assert_allclose(final.weights, start, rtol=1e-14)


@pytest.mark.parametrize("name", ["sign", "muon", "adam"])
def test_direction_keeps_improving_where_autograd_has_none_left(name):
    problem, start = problem_and_start(std=1e-3)
    options = {"adam": {"eps": 0.0, "betas": (0.9, 0.9), "lr": 0.02}, "sign": {"lr": 0.02}, "muon": {"lr": 0.1}}[name]
    result = attention_descent(problem, start, name, steps=20_000, record=[2_000], **options)
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, result.final.weights, problem.queries)
    gaps = np.sort(scores, axis=1)[:, -1] - np.sort(scores, axis=1)[:, -2]
    assert gaps.min() > 40.0  # from 36 on, 1 + exp(-gap) is 1
    norm = {
        "sign": lambda w: np.abs(w).max(),
        "adam": lambda w: np.abs(w).max(),
        "muon": lambda w: np.linalg.norm(w, 2),
    }
    early, late = (
        margin(problem, state.direction, result.selected) / norm[name](state.direction)
        for state in (*result.snapshots, result.final)
    )
    assert late > early


def margin(problem, weights, selected):
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
    chosen = np.take_along_axis(scores, selected[:, None], axis=1)
    return np.where(np.arange(8) == selected[:, None], math.inf, chosen - scores).min()


def test_equal_heads_are_one_head():
    problem, start = problem_and_start()
    one = attention_descent(problem, start, "sign", lr=0.01, steps=200)
    two = attention_descent(problem, np.stack([start, start]), "sign", lr=0.01, steps=200)
    np.testing.assert_allclose(two.final.weights, np.stack([one.final.weights] * 2), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(two.selected, np.stack([one.selected] * 2))


def test_shampoo_without_memory_is_muon():
    problem, start = problem_and_start()
    shampoo = weights_of(problem, start, "shampoo", {"lr": 0.1, "beta": 0.0}).weights
    muon = weights_of(problem, start, "muon", {"lr": 0.1, "momentum": 0.0}).weights
    np.testing.assert_allclose(shampoo, muon, rtol=0, atol=1e-6)


def test_schatten_mirror_with_p_2_is_normalised_descent():
    problem, start = problem_and_start()
    mirror = weights_of(problem, start, "mirror", {"lr": 0.1, "norm": "schatten", "p": 2.0}, steps=500)
    plain = weights_of(problem, start, "normalized-gd", {"lr": 0.1}, steps=500)
    entries = weights_of(problem, start, "mirror", {"lr": 0.1}, steps=500)
    np.testing.assert_allclose(mirror.direction, plain.direction, rtol=0, atol=1e-10)
    np.testing.assert_allclose(entries.direction, plain.direction, rtol=0, atol=1e-10)


def test_schatten_mirror_survives_norms_beyond_every_float():
    problem, start = problem_and_start()
    options = {"norm": "schatten", "p": 1.1, "rule": "geometric", "lr": 0.5}
    final = attention_descent(problem, start, "mirror", steps=2_000, **options).final
    assert final.log_norm > 750.0
    assert np.linalg.norm(final.direction) == pytest.approx(1.0, rel=1e-12)


def test_snapshots_are_where_shorter_runs_end():
    problem, start = problem_and_start()
    result = attention_descent(problem, start, "adam", lr=0.02, steps=30, record=[0, 10, 30])
    assert [state.step for state in result.snapshots] == [0, 10, 30]
    for state in result.snapshots:
        shorter = attention_descent(problem, start, "adam", lr=0.02, steps=state.step).final
        np.testing.assert_array_equal(state.direction, shorter.direction)
        assert state.log_norm == shorter.log_norm
    assert 4 * result.last_change > 90 or result.settled


BAD = {
    "optimizer='adm' must be one of mirror, gd": {"optimizer": "adm"},
    "adam has no option 'beta2'; it has betas": {"optimizer": "adam", "beta2": 0.9},
    "betas[1]=1.0 must lie in [0, 1)": {"optimizer": "adam", "betas": (0.9, 1.0)},
    "betas=0.9 must be two numbers": {"optimizer": "lion", "betas": 0.9},
    "eps=-1 must lie in [0, inf)": {"optimizer": "adam", "eps": -1},
    "momentum=1 must lie in [0, 1)": {"optimizer": "muon", "momentum": 1},
    "method='qr' must be one of polar, newton-schulz": {"optimizer": "muon", "method": "qr"},
    "p=3.0 is the geometry of optimizer='mirror', sign has its own": {"optimizer": "sign", "p": 3.0},
    "p=0.5 must be a finite number above 1": {"p": 0.5},
    "p=0.5 must lie in (1, inf)": {"p": 0.5, "norm": "schatten"},
    "norm='ky-fan' must be one of entrywise, schatten": {"norm": "ky-fan"},
    "mirror has no option 'momentum' in this norm": {"momentum": 0.9},
    "heads='some' must be one of each, whole": {"optimizer": "muon", "heads": "some"},
    "lr_power=-1 must lie in [0, inf)": {"optimizer": "sign", "lr_power": -1},
    "start must hold finite numbers": {"optimizer": "sign", "start": np.full((10, 10), np.nan)},
    "start of shape (3, 3) must be a matrix of shape (10, 10)": {"optimizer": "sign", "start": np.zeros((3, 3))},
    "factors of shapes [(10, 4), (3, 10)] must multiply": {
        "optimizer": "sign",
        "start": [np.zeros((10, 4)), np.zeros((3, 10))],
    },
}


@pytest.mark.parametrize("sentence", BAD)
def test_refuses_in_one_sentence(sentence):
    problem, start = problem_and_start()
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        attention_descent(problem, **{"start": start, "lr": 0.1, "steps": 3, **BAD[sentence]})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_token_or_equal_tokens_leave_the_start_alone():
    problem, start = problem_and_start()
    alone = replace(problem, tokens=problem.tokens[:, :1])
    equal = replace(problem, tokens=np.repeat(problem.tokens[:, :1], 4, axis=1))
    for case in (alone, equal):
        for name in OPTIMIZERS:
            options = {"weight_decay": 0.0} if name == "adamw" else {}
            final = attention_descent(case, start, name, lr=0.1, steps=5, **options).final
            np.testing.assert_allclose(final.weights, start, rtol=1e-14)


def test_one_dimension_is_enough():
    problem = AttentionTokens(dim=1).sample(np.random.default_rng(0))
    for name in OPTIMIZERS:
        assert np.isfinite(attention_descent(problem, [[0.1]], name, lr=0.1, steps=20).final.direction).all()


def test_says_that_an_optimizer_diverges():
    """With beta_1^2 > beta_2, steps of Adam without eps grow as gradients fall."""
    tokens = np.array([[[1.0, 1.0], [-1.0, 2.0], [2.0, -1.0]]])
    problem = AttentionProblem(tokens, np.array([[1.0, 0.0]]), np.array([1]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match=r"diverges with lr=0\.05"):
        attention_descent(problem, np.zeros((2, 2)), "adam", lr=0.05, steps=20_000, betas=(0.99, 0.9), eps=0.0)
