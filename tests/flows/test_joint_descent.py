from dataclasses import replace

import numpy as np
import pytest
import torch

from whichtoken.datasets import AttentionProblem, AttentionTokens
from whichtoken.errors import UsageError
from whichtoken.flows.descent import attention_descent, joint_descent, joint_ratio
from whichtoken.margin import joint_limit, prompt_svm

PLANE = np.array([[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]])
LOSSES = {
    "logistic": torch.nn.functional.softplus,
    "exponential": torch.exp,
    "linear": lambda x: x,
}


def plane():
    return AttentionProblem(PLANE, PLANE[:, 0], np.array([1, -1]), np.zeros(2))


def random_problem(seed, sequences=6, length=5, dim=8):
    problem = AttentionTokens(sequences, length, dim).sample(np.random.default_rng(seed))
    return replace(problem, decoder=np.zeros(dim))


def cosine(a, b):
    return np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)


def whole(state):
    """The dual variable itself."""
    return np.exp(state.log_dual_norm) * state.dual


def autograd_descent(problem, start, p, lr, lr_decoder, steps, rule, loss):
    """Both gradients by autograd at the current point, then both mirror steps."""
    tokens, queries = torch.from_numpy(problem.tokens), torch.from_numpy(problem.queries)
    labels, q = torch.from_numpy(problem.labels), p / (p - 1)
    duals = [torch.sign(x) * x.abs() ** (p - 1) for x in map(torch.tensor, (start, problem.decoder))]
    for _ in range(steps):
        weights, decoder = ((torch.sign(u) * u.abs() ** (q - 1)).requires_grad_() for u in duals)
        attention = torch.softmax(torch.einsum("ntd,de,ne->nt", tokens, weights, queries), dim=1)
        margins = labels * torch.einsum("nt,ntd,d->n", attention, tokens, decoder)
        gradients = torch.autograd.grad(LOSSES[loss](-margins).mean(), (weights, decoder))
        for dual, gradient, rate in zip(duals, gradients, (lr, lr_decoder), strict=True):
            length = 1.0 if rule == "plain" else 1.0 / (gradient.abs() ** q).sum() ** (1 / q)
            if rule == "geometric":
                length *= max(1.0, (dual.abs() ** q).sum() ** (1 / q))
            dual -= rate * length * gradient
    return [dual.numpy() for dual in duals]


def decoder_limit(problem, selected, p):
    """Max-margin direction of the decoder and the label margins that it gives."""
    chosen = problem.labels[:, None] * problem.tokens[np.arange(len(selected)), selected]
    limit = prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0] * len(chosen), p)
    return limit, chosen @ limit.direction


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("rule", ["plain", "normalized", "geometric"])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_follows_autograd(p, rule, loss):
    rng = np.random.default_rng(1)
    problem, start = AttentionTokens().sample(rng), rng.standard_normal((10, 10))
    options = {"p": p, "lr": 0.01, "lr_decoder": 0.03, "steps": 20, "rule": rule, "loss": loss}
    final = joint_descent(problem, start, **options).final
    weights, decoder = autograd_descent(problem, start, **options)
    np.testing.assert_allclose(whole(final.weights), weights, rtol=0, atol=1e-11)
    np.testing.assert_allclose(whole(final.decoder), decoder, rtol=0, atol=1e-11)


def test_decoder_moves_first_when_both_start_at_zero():
    problem = random_problem(1)
    first = joint_descent(problem, np.zeros((8, 8)), p=2.0, lr=0.1, lr_decoder=0.2, steps=1).final
    assert first.weights.log_norm == -np.inf  # without a decoder no token is better than another
    mean = (problem.labels[:, None] * problem.tokens.mean(axis=1)).mean(axis=0)
    np.testing.assert_allclose(whole(first.decoder), 0.2 * mean / np.linalg.norm(mean), rtol=1e-13)


def test_decoder_that_hardly_moves_is_a_fixed_decoder():
    rng = np.random.default_rng(2)
    problem, start = AttentionTokens().sample(rng), rng.standard_normal((10, 10))
    fixed = attention_descent(problem, start, p=1.75, lr=0.1, steps=200)
    joint = joint_descent(problem, start, p=1.75, lr=0.1, lr_decoder=1e-13, steps=200)
    np.testing.assert_allclose(joint.final.weights.dual, fixed.final.dual, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(joint.selected, fixed.selected)


def test_snapshots_are_where_shorter_runs_end():
    problem = random_problem(3)
    options = {"p": 1.75, "lr": 0.1, "lr_decoder": 0.2}
    snapshots = joint_descent(problem, np.zeros((8, 8)), steps=60, record=[7, 40], **options).snapshots
    for state, steps in zip(snapshots, (7, 40), strict=True):
        shorter = joint_descent(problem, np.zeros((8, 8)), steps=steps, **options).final
        for block in ("weights", "decoder"):
            np.testing.assert_array_equal(getattr(state, block).dual, getattr(shorter, block).dual)
            assert getattr(state, block).log_time == getattr(shorter, block).log_time


REFERENCE = {  # p: steps, selected tokens, W / |W|_p, v / |v|_p, least cosine of W and of v after these steps
    1.75: (1_000, [1, 0], (-0.3221, -0.2471, -0.3059, 0.7817), (0.0554, 0.9964), 0.99997, 0.99999),
    2.0: (2_000, [1, 0], (-0.3554, -0.2859, -0.3364, 0.8239), (0.0555, 0.9985), 0.99999, 0.99999),
    3.0: (20_000, [0, 0], (0.5225, -0.1536, -0.3171, 0.9367), (-0.4235, 0.9740), 0.99987, 0.99951),
}


@pytest.mark.parametrize("p", list(REFERENCE))
def test_two_sample_problem_of_the_source(p):
    steps, tokens, weights, decoder, least_weights, least_decoder = REFERENCE[p]
    result = joint_descent(plane(), np.zeros((2, 2)), p=p, lr=0.1, lr_decoder=0.1, steps=steps)
    assert result.selected.tolist() == tokens
    limit, margins = decoder_limit(plane(), result.selected, p)
    member = joint_limit(PLANE, PLANE[:, 0], result.selected, margins, result.final.ratio, p)
    np.testing.assert_allclose(member.direction.ravel(), weights, atol=1e-4)
    np.testing.assert_allclose(limit.direction, decoder, atol=1e-4)
    assert cosine(result.final.weights.direction, member.direction) >= least_weights
    assert cosine(result.final.decoder.direction, limit.direction) >= least_decoder


@pytest.mark.parametrize(("lr_decoder", "end"), [(0.1, np.inf), (0.03, 0.0), (0.01, 0.0)])
def test_step_sizes_choose_the_end_of_the_family(lr_decoder, end):
    """At p = 1.1 the second sequence does not support the decoder: strict and relaxed limits have cosine 0.26."""
    p = 1.1
    result = joint_descent(plane(), np.zeros((2, 2)), p=p, lr=0.1, lr_decoder=lr_decoder, steps=1_500)
    assert result.selected.tolist() == [1, 0]
    _, margins = decoder_limit(plane(), result.selected, p)
    limits = {r: joint_limit(PLANE, PLANE[:, 0], result.selected, margins, r, p).direction for r in (0.0, np.inf)}
    cosines = {r: cosine(result.final.weights.direction, direction) for r, direction in limits.items()}
    assert cosines.pop(end) > 0.99999
    assert next(iter(cosines.values())) < 0.27


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_between_the_ends_only_the_family_fits(seed):
    problem = random_problem(seed)
    result = joint_descent(problem, np.zeros((8, 8)), p=2.0, lr=1.0, lr_decoder=1.0, steps=20_000)
    limit, margins = decoder_limit(problem, result.selected, 2.0)
    cosines = [
        cosine(
            result.final.weights.direction,
            joint_limit(problem.tokens, problem.queries, result.selected, margins, ratio, 2.0).direction,
        )
        for ratio in (result.final.ratio, 0.0, np.inf)
    ]
    assert cosine(result.final.decoder.direction, limit.direction) > 0.99999
    assert cosines[0] > 0.9999
    assert max(cosines[1:]) < 0.9995


def test_ratio_follows_the_step_sizes():
    problem = random_problem(1)
    ratios = [
        joint_descent(problem, np.zeros((8, 8)), p=3.0, lr=100.0, lr_decoder=100.0 * r**2, steps=5_000).final.ratio
        for r in (0.1, 0.3, 1.0)
    ]
    np.testing.assert_allclose(ratios, [0.1, 0.3, 1.0], rtol=0.05)


def test_flow_of_plain_steps_does_not_depend_on_its_resolution():
    problem = random_problem(1)
    coarse, fine = (
        joint_descent(
            problem, np.zeros((8, 8)), p=2.0, lr=h, lr_decoder=h, steps=int(400 / h), rule="flow", record=[int(200 / h)]
        )
        for h in (0.05, 0.0125)
    )
    for one, other in zip((*coarse.snapshots, coarse.final), (*fine.snapshots, fine.final), strict=True):
        assert one.weights.log_time == pytest.approx(other.weights.log_time, rel=0.002)
        assert one.weights.log_norm == pytest.approx(other.weights.log_norm, abs=0.002)
        assert one.decoder.log_norm == pytest.approx(other.decoder.log_norm, abs=0.002)


def test_flow_is_where_many_small_plain_steps_lead():
    problem = random_problem(2)
    flow = joint_descent(problem, np.zeros((8, 8)), p=2.0, lr=0.002, lr_decoder=0.002, steps=4_000, rule="flow").final
    lr = np.exp(flow.weights.log_time) / 20_000
    plain = joint_descent(problem, np.zeros((8, 8)), p=2.0, lr=lr, lr_decoder=lr, steps=20_000, rule="plain").final
    assert plain.weights.log_time == pytest.approx(flow.weights.log_time, rel=1e-12)
    np.testing.assert_allclose(whole(plain.decoder), whole(flow.decoder), rtol=0, atol=0.01)
    np.testing.assert_allclose(whole(plain.weights), whole(flow.weights), rtol=0, atol=0.01)


def test_flow_grows_as_log_and_as_log_log():
    problem = random_problem(1)
    flow = joint_descent(
        problem, np.zeros((8, 8)), p=2.0, lr=0.05, lr_decoder=0.05, steps=20_000, rule="flow", record=[2_000]
    )
    early, late = flow.snapshots[0], flow.final
    limit, margins = decoder_limit(problem, flow.selected, 2.0)
    relaxed = joint_limit(problem.tokens, problem.queries, flow.selected, margins, np.inf, 2.0)
    times = np.array([early.weights.log_time, late.weights.log_time])
    assert times[1] > 400.0
    growth = [np.diff(np.exp([getattr(s, name).log_norm for s in (early, late)])) for name in ("decoder", "weights")]
    assert limit.margin * growth[0] / np.diff(times) == pytest.approx(1.0, abs=0.02)
    assert relaxed.margin * growth[1] / np.diff(np.log(times)) == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("lr_decoder", [0.0, -1.0, np.nan, np.inf])
def test_decoder_rate_is_checked(lr_decoder):
    with pytest.raises(ValueError, match=r"^lr_decoder=\S+ must be a finite positive number$"):
        joint_descent(plane(), np.zeros((2, 2)), p=2.0, lr=0.1, lr_decoder=lr_decoder, steps=1)


@pytest.mark.parametrize(("p", "lr", "lr_decoder"), [(1.4, 1.0, 0.3), (1.6, 10.0, 3.0), (2.0, 1.0, 0.3)])
def test_the_ratio_of_long_runs_is_known_from_their_tokens(p, lr, lr_decoder):
    for seed in range(3):
        problem = random_problem(seed)
        run = joint_descent(problem, np.zeros((8, 8)), p=p, lr=lr, lr_decoder=lr_decoder, steps=10_000)
        predicted = joint_ratio(problem, run.selected, p=p, lr=lr, lr_decoder=lr_decoder)
        assert run.final.ratio == pytest.approx(predicted, rel=0.02)


def test_tokens_without_a_limit_have_no_ratio():
    tokens = np.array([[(1.0, 0.0), (0.0, 1.0)], [(1.0, 0.0), (0.0, 1.0)]])
    problem = AttentionProblem(tokens, tokens[:, 0], np.array([1, -1]), np.zeros(2))
    with pytest.raises(UsageError, match="cannot be classified"):
        joint_ratio(problem, [0, 0], p=1.5, lr=1.0, lr_decoder=1.0)
