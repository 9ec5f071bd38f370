import pickle

import mpmath
import numpy as np
import pytest
import torch

from whichtoken.datasets import AttentionProblem, AttentionTokens
from whichtoken.flows.descent import attention_descent
from whichtoken.theory.mirror_descent.key_query_attention import KeyQueryAttention

LOSSES = ["logistic", "exponential", "linear"]


def head_with_data(loss="logistic", *, scale=1.0, dtype=torch.float64, seed=1):
    """A head with random weights, and tokens, queries, labels; sizes as in the paper's synthetic data."""
    rng = np.random.default_rng(seed)
    problem = AttentionTokens().sample(rng)
    head = KeyQueryAttention(10, loss=loss, dtype=dtype)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(scale * rng.standard_normal((10, 10))))
        head.decoder.copy_(torch.tensor(problem.decoder))
    data = (torch.tensor(x).to(dtype) for x in (problem.tokens, problem.queries, problem.labels))
    return head, tuple(data)


def with_smallest_gap(gap, **options):
    """The same with trained weights: the closest runner-up is `gap` behind its winner, others of weight not much more."""
    head, data = head_with_data(**options)
    problem = AttentionProblem(*(x.double().numpy() for x in (*data, head.decoder.detach())))
    trained = attention_descent(problem, np.zeros((10, 10)), p=2.0, lr=1.0, steps=int(6 * gap)).final.direction
    top = np.sort(np.einsum("ntd,de,ne->nt", problem.tokens, trained, problem.queries), axis=1)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(trained * gap / (top[:, -1] - top[:, -2]).min()))
    return head, data


def textbook_loss(head, tokens, queries, labels, loss):
    attention = torch.softmax(torch.einsum("ntd,de,ne->nt", tokens, head.weight, queries), dim=1)
    margins = labels * torch.einsum("nt,ntd,d->n", attention, tokens, head.decoder)
    return {
        "logistic": lambda: torch.log1p(torch.exp(-margins)),
        "exponential": lambda: torch.exp(-margins),
        "linear": lambda: -margins,
    }[loss]().mean()


def exact_gradient(head, tokens, queries, labels, loss, gap):
    """Textbook dL/dW of the stored numbers, as (largest magnitude, gradient over that)."""
    with mpmath.workdps(40 + int(gap / 2)):  # log(10) > 2: forty digits more than the cancellation takes
        numbers = [mpmath.matrix(x.detach().double().tolist()) for x in (head.weight, head.decoder, queries)]
        weight, decoder, queries = numbers
        gradient = mpmath.zeros(*head.weight.shape)
        for i, sequence in enumerate(tokens.double().tolist()):
            x, z, y = mpmath.matrix(sequence), queries[i, :].T, int(labels[i])
            scores, token_scores = x * (weight * z), y * (x * decoder)
            top = max(scores)
            attention = scores.apply(lambda score, top=top: mpmath.exp(score - top))
            attention /= mpmath.fsum(attention)
            margin = (attention.T * token_scores)[0]
            slope = {"logistic": -1 / (1 + mpmath.exp(margin)), "exponential": -mpmath.exp(-margin), "linear": -1}[loss]
            for t in range(x.rows):
                gradient += slope * attention[t] * (token_scores[t] - margin) * x[t, :].T * z.T / len(tokens)
        largest = max(abs(entry) for entry in gradient)
        return largest, np.array((gradient / largest).tolist(), dtype=float)


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_the_textbook_form_where_that_is_accurate(loss):
    head, data = head_with_data(loss, scale=3.0)
    ours, textbook = head.loss(*data), textbook_loss(head, *data, loss)
    torch.testing.assert_close(ours, textbook, rtol=1e-14, atol=0)
    for mine, theirs in zip(
        *(torch.autograd.grad(x, [head.weight, head.decoder]) for x in (ours, textbook)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["weight", "decoder"])
def test_gradient_agrees_with_finite_differences(loss, name):
    head, data = head_with_data(loss)
    head.loss(*data).backward()
    parameter = getattr(head, name)
    along = torch.tensor(np.random.default_rng(0).standard_normal(parameter.shape))
    with torch.no_grad():
        parameter += 1e-5 * along
        ahead = head.loss(*data)
        parameter -= 2e-5 * along
        behind = head.loss(*data)
    assert float((ahead - behind) / 2e-5) == pytest.approx(float((parameter.grad * along).sum()), rel=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("gap", [30.0, 60.0, 100.0])
def test_backward_is_accurate_when_the_softmax_is_saturated(loss, gap):
    head, data = with_smallest_gap(gap, loss=loss)
    largest, direction = exact_gradient(head, *data, loss, gap)
    head.loss(*data).backward()
    # a score of size |W| is known to |W| * 1e-16, and so is the logarithm of its weight
    tolerance = 1e-16 * float(head.weight.detach().norm())
    np.testing.assert_allclose(head.weight.grad / float(largest), direction, rtol=0, atol=tolerance)


def test_textbook_backward_is_not():
    head, data = with_smallest_gap(60.0)
    _, direction = exact_gradient(head, *data, "logistic", 60.0)
    textbook_loss(head, *data, "logistic").backward()
    cosine = torch.cosine_similarity(head.weight.grad.ravel(), torch.tensor(direction).ravel(), dim=0)
    assert cosine < 0.9


def test_single_precision_gradient_keeps_its_direction():
    head, data = with_smallest_gap(60.0, dtype=torch.float32)
    largest, direction = exact_gradient(head, *data, "logistic", 60.0)
    head.loss(*data).backward()
    tolerance = 6e-8 * float(head.weight.detach().norm())
    np.testing.assert_allclose(head.weight.grad / float(largest), direction, rtol=0, atol=tolerance)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_log_gradient_is_the_gradient(loss, scale):
    head, data = head_with_data(loss, scale=scale)
    head.loss(*data).backward()
    log_scale, direction = head.log_gradient(*data)
    assert direction.abs().max() == 1.0
    torch.testing.assert_close(log_scale.exp() * direction, head.weight.grad, rtol=1e-11, atol=1e-16)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("gap", "dtype"), [(1000.0, torch.float64), (4000.0, torch.float64), (300.0, torch.float32)])
def test_log_gradient_outlives_the_underflow_of_backward(loss, gap, dtype):
    head, data = with_smallest_gap(gap, loss=loss, dtype=dtype)
    head.loss(*data).backward()
    assert torch.count_nonzero(head.weight.grad) == 0
    largest, expected = exact_gradient(head, *data, loss, gap)
    log_scale, direction = head.log_gradient(*data)
    tolerance = torch.finfo(dtype).eps * float(head.weight.detach().norm())
    np.testing.assert_allclose(direction, expected, rtol=0, atol=tolerance)
    assert float(log_scale) == pytest.approx(float(mpmath.log(largest)), abs=tolerance)


def test_copy_of_the_winning_token_changes_nothing_but_the_loss():
    """Two equal winners share the attention; neither may drown what the other tokens say."""
    head, (tokens, queries, labels) = with_smallest_gap(1000.0)
    scores = torch.einsum("ntd,de,ne->nt", tokens, head.weight, queries)
    winners = tokens[torch.arange(6), scores.argmax(dim=1)]
    doubled = torch.cat([tokens, winners[:, None]], dim=1)
    expected, actual = head.log_gradient(tokens, queries, labels), head.log_gradient(doubled, queries, labels)
    torch.testing.assert_close(actual.direction, expected.direction, rtol=0, atol=1e-10)
    # half of the attention leaves each copy, the runners-up get half of what they had
    assert float(actual.log_scale) == pytest.approx(float(expected.log_scale) - np.log(2.0), abs=1e-10)


def test_tokens_of_equal_score_leave_no_gradient():
    head, (tokens, queries, labels) = head_with_data()
    with torch.no_grad():
        head.decoder.zero_()
    log_scale, direction = head.log_gradient(tokens, queries, labels)
    assert log_scale == -torch.inf
    assert torch.count_nonzero(direction) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "^dim=0 must be a whole number of at least 1$"),
        ({"dim": 2, "loss": "hinge"}, "^loss='hinge' must be one of logistic, exponential, linear$"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        KeyQueryAttention(**arguments)


def test_model_can_be_pickled():
    tokens, queries, labels = torch.randn(3, 4, 5), torch.randn(3, 5), torch.tensor([1, -1, 1])
    model = KeyQueryAttention(5, loss="exponential")
    torch.nn.init.normal_(model.decoder)
    again = pickle.loads(pickle.dumps(model))
    assert again.loss(tokens, queries, labels) == model.loss(tokens, queries, labels)
