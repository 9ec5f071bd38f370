from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.theory.attention_regression.softmax_regression import SoftmaxRegression, regression_loss_and_gradient
from whichtoken.theory.attention_regression.whitening import Whitening


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


REFERENCE = {
    "tokens": tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]),
    "value": tensor([[1, 0, 2], [0, 1, -1]]),
    "key_query": tensor([[0.1, 0.2, 0], [0, 0.3, -0.1], [0.2, 0, 0.1]]),
    "labels": tensor([[1, 0], [0, 1], [1, 1], [0, 0]]),
}


def random_problem(seed, n=17, dim=4, outputs=3, size=0.4):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return normal(outputs, dim), size * normal(dim, dim), normal(n, dim), normal(n, outputs)


def textbook_loss(value, key_query, tokens, labels):
    weights = torch.softmax(tokens @ key_query @ tokens.T, dim=1)
    return (weights @ tokens @ value.T - labels).square().sum() / (2 * len(tokens))


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_matches_the_reference_vector(chunk):
    found = regression_loss_and_gradient(**REFERENCE, chunk=chunk)
    assert found.loss == pytest.approx(0.8996386189321297, abs=1e-14)
    np.testing.assert_allclose(
        found.value,
        [[0.5627898458, 0.6065830119, 0.5257586822], [-0.2311030458, -0.2350530662, -0.2216938322]],
        atol=1e-10,
    )
    np.testing.assert_allclose(
        found.key_query,
        [
            [0.1844458383, 0.0394532636, 0.2863376182],
            [0.2734631152, -0.0260609663, 0.4695237021],
            [0.1790680126, -0.0148491310, 0.3517936191],
        ],
        atol=1e-10,
    )


@given(seed=st.integers(0, 2**31), chunk=st.sampled_from([None, 1, 5, 17]), size=st.sampled_from([0.0, 0.4, 10.0]))
@settings(max_examples=40)
def test_gradient_is_that_of_autograd_for_any_chunk(seed, chunk, size):
    value, key_query, tokens, labels = random_problem(seed, size=size)
    model = SoftmaxRegression(value, key_query, chunk)
    expected = torch.autograd.grad(
        textbook_loss(model.value, model.key_query, tokens, labels), [model.value, model.key_query]
    )
    found = model.loss_and_gradient(tokens, labels)
    np.testing.assert_allclose(found.value, expected[0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found.key_query, expected[1], rtol=1e-11, atol=1e-12)


def test_gradient_matches_finite_differences():
    value, key_query, tokens, labels = random_problem(0)
    found = regression_loss_and_gradient(value, key_query, tokens, labels)
    for seed in range(5):
        dv, dk, _, _ = random_problem(seed + 1)
        ahead, behind = (
            regression_loss_and_gradient(value + h * dv, key_query + h * dk, tokens, labels).loss for h in (1e-5, -1e-5)
        )
        slope = ((found.value * dv).sum() + (found.key_query * dk).sum()).item()
        assert (ahead - behind) / 2e-5 == pytest.approx(slope, abs=1e-8)


def test_loss_node_feeds_torch_optimizers():
    value, key_query, tokens, labels = random_problem(1)
    model = SoftmaxRegression(value, key_query)
    (3 * model.loss(tokens, labels)).backward()
    found = model.loss_and_gradient(tokens, labels)
    np.testing.assert_allclose(model.value.grad, 3 * found.value)
    np.testing.assert_allclose(model.key_query.grad, 3 * found.key_query)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    assert model.loss(tokens, labels) < found.loss


@pytest.fixture
def torch_threads():
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def seen_threads():
    """Torch's number of threads here, and in a thread that begins now."""
    with ThreadPoolExecutor(1) as pool:
        return torch.get_num_threads(), pool.submit(torch.get_num_threads).result()


def test_threads_share_the_tokens_and_agree(torch_threads):
    problem, found = random_problem(8, n=700), {}
    for threads in (1, 3):
        torch_threads(threads)
        found[threads] = regression_loss_and_gradient(*problem)
        again = regression_loss_and_gradient(*problem)
        assert again.loss == found[threads].loss
        assert torch.equal(again.key_query, found[threads].key_query)
        assert seen_threads() == (threads, threads)
    assert found[1].loss == pytest.approx(found[3].loss, rel=1e-13)
    np.testing.assert_allclose(found[1].value, found[3].value, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found[1].key_query, found[3].key_query, rtol=1e-11, atol=1e-13)


def test_a_failure_in_a_thread_reaches_the_caller_and_leaves_the_setting_alone(torch_threads):
    value, key_query, tokens, labels = random_problem(8, n=700)
    torch_threads(3)
    with pytest.raises(RuntimeError, match="dtype"):
        regression_loss_and_gradient(value, key_query.float(), tokens, labels)
    assert seen_threads() == (3, 3)


def test_fresh_queries_attend_to_a_fresh_context():
    value, key_query, context, _ = random_problem(2)
    queries = random_problem(3, n=40)[2]
    expected = torch.softmax(queries @ key_query @ context.T, dim=1) @ context @ value.T
    for chunk in (None, 7):
        np.testing.assert_allclose(SoftmaxRegression(value, key_query, chunk)(queries, context), expected, rtol=1e-12)


def test_huge_logits_do_not_overflow():
    value, key_query, tokens, labels = random_problem(4, size=1e4)
    found = regression_loss_and_gradient(value, key_query, tokens, labels)
    assert np.isfinite(found.loss)
    winners = (tokens @ key_query @ tokens.T).argmax(dim=1)
    assert found.loss == pytest.approx(((tokens[winners] @ value.T - labels).square().sum() / 34).item())


def test_loss_and_gradients_agree_in_raw_and_whitened_coordinates():
    rng = np.random.default_rng(5)
    tokens, labels = rng.standard_normal((50, 4)) @ rng.standard_normal((4, 4)), rng.standard_normal((50, 3))
    whitening = Whitening.from_tokens(tokens, center=False)
    P, Q = rng.standard_normal((3, 4)), 0.3 * rng.standard_normal((4, 4))
    raw = regression_loss_and_gradient(*map(torch.from_numpy, (*whitening.to_raw(P, Q), tokens, labels)))
    white = regression_loss_and_gradient(*map(torch.from_numpy, (P, Q, whitening.whiten(tokens), labels)))
    root = whitening.root
    assert raw.loss == pytest.approx(white.loss, rel=1e-13)
    np.testing.assert_allclose(raw.value, white.value.numpy() @ root, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(raw.key_query, root @ white.key_query.numpy() @ root, rtol=1e-11, atol=1e-13)


def test_peak_memory_grows_with_chunk_times_n():
    """The largest tensor that the gradient allocates is one block of weights, never n x n."""
    value, key_query, tokens, labels = random_problem(6, n=400)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        regression_loss_and_gradient(value, key_query, tokens, labels, chunk=16)
    assert largest == 16 * 400


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v, k, t, y: SoftmaxRegression(v, k[:3]), r"\(3, 4\) and \(3, 4\) must have shapes"),
        (lambda v, k, t, y: SoftmaxRegression(v, k, chunk=0), "chunk=0 must be a whole number of at least 1"),
        (
            lambda v, k, t, y: SoftmaxRegression(v, k)(t[:, :2], t),
            r"tokens of shape \(17, 2\) must have shape \(n, 4\)",
        ),
        (
            lambda v, k, t, y: SoftmaxRegression(v, k)(t, t[:0]),
            r"tokens of shape \(0, 4\) must have shape \(n, 4\) with n of at least 1",
        ),
        (
            lambda v, k, t, y: SoftmaxRegression(v, k)(t.float(), t),
            r"tokens of torch.float32 must be of torch.float64, as the parameters are",
        ),
        (
            lambda v, k, t, y: SoftmaxRegression(v, k).loss(t, y[:5]),
            r"labels of shape \(5, 3\) must have shape \(17, 3\)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(*random_problem(7))
