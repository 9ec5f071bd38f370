import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from whichtoken.datasets import AttentionRegression
from whichtoken.optim import StructureAware
from whichtoken.optim.structure_aware import precondition_by_grams
from whichtoken.theory.attention_regression.structure_aware_descent import gram_step
from whichtoken.theory.attention_regression.whitening import Whitening

seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices of this size gain nothing from more, and on a busy machine the threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gaussian(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def covariance(dim, condition=100.0, seed=0):
    basis = torch.linalg.qr(gaussian(dim, dim, seed=seed))[0]
    return (basis * torch.logspace(0, -math.log10(condition), dim, dtype=torch.float64)) @ basis.T


def attention_factors(out=5, dim=6, value_rank=4, key_rank=4, seed=0, dtype=torch.float64):
    shapes = ((out, value_rank), (value_rank, dim), (key_rank, dim), (key_rank, dim))
    return [gaussian(*shape, seed=seed + i, dtype=dtype).requires_grad_() for i, shape in enumerate(shapes)]


def set_gradients(params, seed=10):
    for index, param in enumerate(params):
        param.grad = gaussian(*param.shape, seed=seed + index, dtype=param.dtype)


def moves(params, **options):
    """By how much one step of size 1 moves each tensor, against the gradients they have, however far that is."""
    before = [param.detach().clone() for param in params]
    StructureAware(params, lr=1.0, **{"trust": math.inf, **options}).step()
    return [(start - param).detach() for start, param in zip(before, params, strict=True)]


# the formula


def inverse(gram, damping):
    return np.linalg.inv(gram + damping * np.linalg.eigvalsh(gram)[-1] * np.eye(len(gram)))


def test_attention_step_follows_the_formula_in_raw_coordinates():
    """Without damping of note, the whitened algebra is G <- (L^T L)^(-1) G (R S R^T)^(-1) for L F R = W_O W_V S W_K^T W_Q."""
    dim, damping, scale = 4, 1e-13, 0.7
    params = attention_factors(dim, dim, dim, dim)
    set_gradients(params)
    S = covariance(dim, 10.0)
    W_O, W_V, W_K, W_Q = (param.detach().numpy().copy() for param in params)
    G_O, G_V, G_K, G_Q = (param.grad.numpy() for param in params)
    found = [step.numpy() for step in moves(params, covariance=S, damping=damping, logit_factor=scale)]
    S = S.numpy()
    A, B = W_O @ W_V, scale * W_Q.T @ W_K  # logits x^T B x'
    expected = [
        G_O @ inverse(W_V @ S @ B.T @ S @ B @ S @ W_V.T, damping),
        inverse(W_O.T @ W_O, damping) @ G_V @ inverse(S @ B.T @ S @ B @ S, damping),
        (inverse(S @ A.T @ A @ S, damping) @ G_K.T @ inverse(scale**2 * W_Q @ S @ W_Q.T, damping)).T,
        inverse(scale**2 * W_K @ S @ A.T @ A @ S @ W_K.T, damping) @ G_Q @ inverse(S, damping),
    ]
    for step, formula in zip(found, expected, strict=True):
        np.testing.assert_allclose(step, formula, rtol=1e-7, atol=1e-9 * np.abs(formula).max())


def test_pair_step_is_the_gram_step_of_the_two_factor_solver():
    P, Q, dP, dQ = (gaussian(*shape, seed=i) for i, shape in enumerate([(3, 5), (5, 5), (3, 5), (5, 5)]))
    expected = gram_step(P.numpy(), Q.numpy(), dP.numpy(), dQ.numpy(), 0.25, 0.03)
    pair = [P.clone().requires_grad_(), Q.T.clone().requires_grad_()]
    pair[0].grad, pair[1].grad = dP, dQ.T
    StructureAware(pair, lr=0.25, structure="pair", damping=0.03).step()
    np.testing.assert_allclose(pair[0].detach(), expected[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(pair[1].detach().T, expected[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("factors", "condition"), [(1, 1000.0), (2, 1.0), (2, 1000.0), (4, 10.0), (5, 3.0)])
def test_product_converges_at_the_predicted_rate(factors, condition):
    """Near the solution, whatever the condition numbers of the factors."""
    step, identity = 0.5 / factors, torch.eye(4, dtype=torch.float64)
    chain = [covariance(4, condition, seed=i).requires_grad_() for i in range(factors)]
    with torch.no_grad():
        target = torch.linalg.multi_dot([*chain, identity]) + 1e-9 * gaussian(4, 4)
    losses = []
    for _ in range(2):
        loss = ((torch.linalg.multi_dot([*chain, identity]) - target) ** 2).sum() / 2
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, chain)
        with torch.no_grad():
            steps = precondition_by_grams(chain, gradients, 1e-30)
        chain = [(factor.detach() - step * d).requires_grad_() for factor, d in zip(chain, steps, strict=True)]
    assert losses[1] / losses[0] == pytest.approx((1 - factors * step) ** 2, rel=1e-3)


# symmetries


@settings(max_examples=20)
@given(seed=seeds, trust=st.sampled_from([0.01, math.inf]))
def test_step_does_not_depend_on_coordinates_of_the_tokens(seed, trust):
    """x -> C x with S -> C S C^T takes W to W C^(-1): the same layer, so the same step."""
    dim, C = 6, gaussian(6, 6, seed=seed) + 3 * torch.eye(6, dtype=torch.float64)
    inverse, S = torch.linalg.inv(C), covariance(dim, seed=seed)
    plain = attention_factors(dim=dim, seed=seed)
    set_gradients(plain, seed)
    turned = [plain[0].detach().clone().requires_grad_()]
    turned += [(param.detach() @ inverse).requires_grad_() for param in plain[1:]]
    turned[0].grad = plain[0].grad.clone()
    for param, other in zip(plain[1:], turned[1:], strict=True):
        other.grad = param.grad @ C.T
    first = moves(plain, covariance=S, trust=trust)
    second = moves(turned, covariance=(C @ S @ C.T + (C @ S @ C.T).T) / 2, trust=trust)
    for step, other, turn in zip(first, second, [torch.eye(4, dtype=torch.float64), *[inverse] * 3], strict=True):
        expected = step @ turn
        torch.testing.assert_close(other, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max()))


@settings(max_examples=20)
@given(
    seed=seeds,
    size=st.floats(0.01, 100.0),
    structure=st.sampled_from(["attention", "pair"]),
    trust=st.sampled_from([0.01, math.inf]),
)
def test_step_does_not_depend_on_the_share_of_each_factor(seed, size, structure, trust):
    """(c F, F'/c) has the gradients (G/c, c G') and takes the steps (c D, D'/c)."""
    plain = attention_factors(seed=seed)
    set_gradients(plain, seed)
    scales = [size, 1 / size, 1.0, 1.0] if structure == "pair" else [size, 1.0, 1 / size, 1.0]
    scaled = [(c * param.detach()).requires_grad_() for c, param in zip(scales, plain, strict=True)]
    for c, param, other in zip(scales, plain, scaled, strict=True):
        other.grad = param.grad / c
    count = 2 if structure == "pair" else 4
    first = moves(plain[:count], structure=structure, trust=trust)
    second = moves(scaled[:count], structure=structure, trust=trust)
    for c, step, other in zip(scales, first, second, strict=False):
        torch.testing.assert_close(other, c * step, rtol=1e-7, atol=1e-10 * float((c * step).abs().max()))


def test_heads_are_chains_of_their_own():
    whole = attention_factors(out=5, dim=6, value_rank=4, key_rank=6)
    set_gradients(whole)
    parts = []
    for head in range(2):
        rows = [slice(2 * head, 2 * head + 2), slice(3 * head, 3 * head + 3)]
        cuts = [(slice(None), rows[0]), (rows[0],), (rows[1],), (rows[1],)]
        parts.append([param.detach()[cut].clone().requires_grad_() for param, cut in zip(whole, cuts, strict=True)])
        for part, param, cut in zip(parts[-1], whole, cuts, strict=True):
            part.grad = param.grad[cut].clone()
    steps = moves(whole, heads=2)
    single = [moves(part) for part in parts]
    torch.testing.assert_close(steps[0], torch.cat([single[0][0], single[1][0]], dim=1), rtol=1e-12, atol=1e-12)
    for index in (1, 2, 3):
        both = torch.cat([single[0][index], single[1][index]])
        torch.testing.assert_close(steps[index], both, rtol=1e-12, atol=1e-12)


def test_fused_projections_move_as_the_four_factors():
    layer = nn.MultiheadAttention(8, 2, dtype=torch.float64)
    set_gradients([layer.out_proj.weight, layer.in_proj_weight])
    query, key, value = layer.in_proj_weight.detach().chunk(3)
    factors = [layer.out_proj.weight.detach(), value, key, query]
    factors = [factor.clone().requires_grad_() for factor in factors]
    factors[0].grad = layer.out_proj.weight.grad.clone()
    for param, gradient in zip(factors[1:], reversed(layer.in_proj_weight.grad.chunk(3)), strict=True):
        param.grad = gradient.clone()
    S = covariance(8)
    output, stacked = moves([layer.out_proj.weight, layer.in_proj_weight], structure="fused", heads=2, covariance=S)
    separate = moves(factors, heads=2, covariance=S, logit_factor=0.5)
    torch.testing.assert_close(output, separate[0], rtol=0, atol=0)
    torch.testing.assert_close(stacked, torch.cat(separate[:0:-1]), rtol=0, atol=0)


def test_kept_norms_are_those_of_the_gradients():
    params = attention_factors()
    set_gradients(params)
    for param, step in zip(params, moves(params, keep_norm=True, covariance=covariance(6)), strict=True):
        assert float(step.norm()) == pytest.approx(float(param.grad.norm()), rel=1e-12)


# on attention


def head_problem(condition):
    """Centered tokens (200, 4), noisy labels, the covariance, the target, and balanced factors of a map 20 % away from it."""
    rng = np.random.default_rng(0)
    problem = AttentionRegression(4, tokens=200, covariance=condition, target=condition, noise=0.05).sample(rng)
    whitening = Whitening.from_tokens(problem.tokens)
    goal, error = problem.target @ whitening.root, rng.standard_normal((4, 4))
    left, sizes, right = np.linalg.svd(goal + 0.2 * np.linalg.norm(goal) / np.linalg.norm(error) * error)
    share = np.diag(sizes**0.25)
    scale = math.sqrt(0.3 / np.linalg.norm(share @ share))  # |W_K^T W_Q|_F = 0.3
    inputs = [share / scale, share * scale, share * scale @ right]
    factors = [left @ share / scale, *(factor @ whitening.inverse_root for factor in inputs)]
    labels = problem.labels - problem.labels.mean(axis=0)
    covariance = whitening.root @ whitening.root
    arrays = (problem.tokens - whitening.mean, labels, covariance, problem.target)
    return *map(torch.tensor, arrays), [torch.tensor(factor, requires_grad=True) for factor in factors]


@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_one_head_reaches_its_floor_in_five_steps_and_adam_does_not(condition):
    """Squared loss of the four factors of one head; the floor of the long-context map is that of the noise and the context."""

    def errors(make, steps):
        tokens, labels, S, target, factors = head_problem(condition)
        optimizer, found = make(factors, S), []
        for _ in range(steps):
            output, value, key, query = factors
            attention = torch.softmax(tokens @ query.T @ key @ tokens.T, dim=1)
            loss = ((attention @ tokens @ (output @ value).T - labels) ** 2).sum() / (2 * len(tokens))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                wrong = output @ value @ S @ key.T @ query - target
                found.append(float((wrong @ S * wrong).sum() / (target @ S * target).sum()))
        return found

    ours = errors(lambda factors, S: StructureAware(factors, lr=0.25, covariance=S), 20)
    assert ours[4] < 1.2 * min(ours)
    for lr in (3e-3, 1e-2, 3e-2, 1e-1):
        assert min(errors(lambda factors, _, lr=lr: torch.optim.Adam(factors, lr), 10)) > 2 * min(ours)


def layer_losses(dim, heads, length, scale, steps=60, **options):
    """Squared loss of a layer of torch that learns another one plus its inputs, with the step size of the theory."""
    torch.manual_seed(0)
    layer, goal = (nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(2))
    tokens = gaussian(64, length, dim, dtype=torch.float32)
    target = goal(tokens, tokens, tokens)[0].detach() + tokens
    optimizer = StructureAware([layer.out_proj.weight, layer.in_proj_weight], structure="fused", heads=heads, **options)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((layer(tokens, tokens, tokens)[0] - target) ** 2).mean() * scale
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize(("dim", "heads", "length"), [(16, 1, 10), (16, 4, 10)])
def test_default_step_on_a_layer_of_torch_does_not_diverge(dim, heads, length, scale):
    losses = layer_losses(dim, heads, length, scale)
    assert max(losses) <= 1.05 * losses[0]
    assert losses[-1] < 0.5 * losses[0]
    assert max(layer_losses(dim, heads, length, scale, steps=15, trust=math.inf)) > 5 * losses[0]


def test_trusted_step_moves_the_map_by_no_more_and_keeps_its_direction():
    params, free = attention_factors(), attention_factors()
    for tensors in (params, free):
        set_gradients(tensors)
    S = covariance(6)
    long, short = moves(free, covariance=S, trust=math.inf), moves(params, covariance=S, trust=1e-3)
    ratio = float(short[0].norm() / long[0].norm())
    for step, other in zip(short, long, strict=True):
        torch.testing.assert_close(step, ratio * other, rtol=1e-9, atol=0)
    root = torch.linalg.cholesky(S)

    def white(factors):
        output, value, key, query = factors
        return output @ value @ root @ (key @ root).T @ query @ root

    before = [param.detach() + step for param, step in zip(params, short, strict=True)]
    moved = sum(float(white([*before[:i], short[i], *before[i + 1 :]]).norm()) for i in range(4))
    assert moved == pytest.approx(1e-3 * float(white(before).norm()), rel=1e-9)


def test_lora_pair_leaves_its_zero_start():
    """B = 0 has a zero Gram matrix, and the gradient of A is zero with it."""
    pair = [torch.zeros(3, 2, requires_grad=True), gaussian(2, 5, dtype=torch.float32).requires_grad_()]
    inputs, goal = gaussian(50, 5, dtype=torch.float32), gaussian(3, 5, seed=1, dtype=torch.float32)
    optimizer = StructureAware(pair, 0.25, structure="pair", covariance=inputs.T @ inputs / 50)
    for _ in range(60):
        optimizer.zero_grad()
        ((inputs @ (pair[0] @ pair[1] - goal).T) ** 2).sum().div(100).backward()
        optimizer.step()
    assert all(param.isfinite().all() for param in pair)
    S = (inputs.T @ inputs / 50).double()
    root = torch.linalg.cholesky(S)
    error = float(((pair[0] @ pair[1] - goal).detach().double() @ root).square().sum())
    best = float(torch.linalg.svdvals(goal.double() @ root)[2:].square().sum())
    assert error == pytest.approx(best, rel=0.01)


def test_gradients_preconditioned_for_another_optimizer_take_the_same_steps():
    ours, theirs = attention_factors(), attention_factors()
    aware, sgd = StructureAware(ours, 0.1, keep_norm=True), torch.optim.SGD(theirs, 0.1)
    other = StructureAware(theirs, keep_norm=True)
    sgd.register_step_pre_hook(lambda *_: other.precondition_gradients())
    for seed in range(3):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        aware.step()
        sgd.step()
    for param, same in zip(ours, theirs, strict=True):
        torch.testing.assert_close(param, same, rtol=0, atol=0)


def test_frozen_factor_stays_and_is_still_taken_into_account():
    params, whole = attention_factors(), attention_factors()
    set_gradients(params)
    set_gradients(whole)
    params[1].grad = None
    frozen, all_moved = moves(params), moves(whole)
    assert (frozen[1] == 0).all()
    for index in (0, 2, 3):
        torch.testing.assert_close(frozen[index], all_moved[index], rtol=0, atol=0)


def test_covariance_is_read_in_every_step():
    S = torch.eye(6, dtype=torch.float64)
    params = attention_factors()
    optimizer = StructureAware(params, 1.0, covariance=S, trust=math.inf)
    S.copy_(covariance(6))
    set_gradients(params)
    before = params[3].detach().clone()
    optimizer.step()
    fresh = attention_factors()
    set_gradients(fresh)
    torch.testing.assert_close(before - params[3].detach(), moves(fresh, covariance=covariance(6))[3], rtol=0, atol=0)


# bad input


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((5, 4), (3, 6), (4, 6), (4, 6)), {}, r"W_O \(5, 4\), W_V \(3, 6\), .* do not chain, shapes must be \(out, r\)"),
        (((5, 4), (4, 6), (4, 6), (3, 6)), {}, "do not chain"),
        (((5, 4), (4, 7), (4, 6), (4, 6)), {}, "do not chain"),
        (((5, 4), (4, 6), (4, 6)), {}, r"chains of 4 tensors \(W_O, W_V, W_K, W_Q\), got 3 in a group"),
        (((5, 4), (3, 6)), {"structure": "pair"}, r"B \(5, 4\), A \(3, 6\) do not chain"),
        (((5, 4), (4, 6)), {"structure": "fused"}, r"in_proj_weight \(4, 6\) do not chain"),
        (((5, 4), (4,)), {"structure": "pair"}, r"A \(4,\): factors must be matrices"),
        (((5, 4), (4, 6)), {"structure": "pair", "heads": 3}, "cannot be split into heads=3"),
        (((5, 4), (4, 6)), {"structure": "pair", "covariance": torch.eye(4)}, r"must have shape \(6, 6\)"),
        (((5, 4), (4, 6)), {"structure": "pair", "covariance": -torch.eye(6)}, "singular or indefinite"),
        (((5, 4), (4, 6)), {"structure": "pair", "covariance": torch.ones(6)}, r"covariance value: \(6,\), must be a square"),
        (((5, 4), (4, 6)), {"structure": "pair", "covariance": [[1.0]]}, "covariance value: list, must be a square"),
        (((5, 4), (4, 6)), {"structure": "pair", "covariance": torch.ones(6, 6).triu()}, "it is not symmetric"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_chains_are_refused(shapes, options, message):
    with pytest.raises(ValueError, match=message):
        StructureAware([torch.zeros(*shape, requires_grad=True) for shape in shapes], **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_other_dtypes_are_refused(dtype):
    params = [(name, torch.zeros(2, 2, dtype=dtype, requires_grad=True)) for name in ("lora.B", "lora.A")]
    with pytest.raises(ValueError, match=r"supports float32 and float64 parameters, but parameter lora\.B is torch\."):
        StructureAware(params, structure="pair")


def test_sparse_gradients_are_refused():
    params = attention_factors()
    set_gradients(params)
    params[1].grad = params[1].grad.to_sparse()
    optimizer, before = StructureAware(params), params[0].detach().clone()
    with pytest.raises(
        RuntimeError, match="does not support sparse gradients, please make that of parameter 1 of group 0 dense"
    ):
        optimizer.step()
    torch.testing.assert_close(params[0].detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_gradients_move_nothing(value):
    params = attention_factors()
    set_gradients(params)
    params[3].grad[0, 0] = value
    optimizer, before = StructureAware(params), [param.detach().clone() for param in params]
    with pytest.raises(ValueError, match="gradient of parameter 3 of group 0 is non-finite, so nothing was moved"):
        optimizer.step()
    for param, same in zip(params, before, strict=True):
        torch.testing.assert_close(param.detach(), same, rtol=0, atol=0)


def test_covariance_that_became_singular_is_named():
    S, params = torch.eye(6, dtype=torch.float64), attention_factors()
    optimizer = StructureAware(params, covariance=S)
    S.zero_()
    set_gradients(params)
    with pytest.raises(ValueError, match="covariance is singular or indefinite"):
        optimizer.step()


def test_a_loaded_state_leaves_the_running_covariance_connected():
    S = covariance(6)
    stored = StructureAware(attention_factors(), covariance=S).state_dict()
    running = torch.eye(6, dtype=torch.float64)
    optimizer = StructureAware(attention_factors(), covariance=running)
    optimizer.load_state_dict(stored)
    assert optimizer.param_groups[0]["covariance"] is running
    torch.testing.assert_close(running, S, rtol=0, atol=0)
