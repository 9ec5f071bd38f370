"""Training in score space: its gradient, its limits, and a reference in torch."""

import numpy as np
import pytest
import torch
from scipy import sparse

from whichtoken.theory.trained_embeddings.score_descent import STEP_SELECTION, STEP_VALUE, ScoreDescent, schedule
from whichtoken.theory.trained_embeddings.score_descent_kernels import BETA1, BETA2, EPS


def problem(seed=0, n=40, tokens=12, outputs=1):
    rng = np.random.default_rng(seed)
    amounts = sparse.csr_array(rng.poisson(0.7, (n, tokens)).astype(float))
    labels = rng.integers(2 if outputs == 1 else outputs, size=n)
    targets = labels[:, None].astype(float) if outputs == 1 else np.eye(outputs)[labels]
    return amounts, targets, rng.random(n) + 0.5


@pytest.mark.parametrize(("queries", "outputs"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_epochs_are_those_of_adam_on_the_written_out_model(queries, outputs):
    amounts, targets, weights = problem(outputs=outputs)
    ridge_a, ridge_g, batch = 0.01, 0.002, 7
    ours = ScoreDescent(12, ridge_a, ridge_g, np.random.default_rng(5), queries=queries, outputs=outputs)
    rng = np.random.default_rng(5)
    start = rng.standard_normal((12, queries)) if queries > 1 else np.zeros((12, 1))
    a = torch.tensor(start, requires_grad=True)
    g = torch.zeros(12, queries, outputs, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    groups = [{"params": [a], "lr": STEP_SELECTION}, {"params": [g, b], "lr": STEP_VALUE}]
    adam = torch.optim.Adam(groups, betas=(BETA1, BETA2), eps=EPS)
    dense, y, w = (torch.tensor(x) for x in (amounts.toarray(), targets, weights))
    for _ in range(3):
        order = torch.tensor(rng.permutation(40))
        for rows in order.split(batch):
            share = dense[rows, :, None] * a.exp()
            share = share / share.sum(dim=1, keepdim=True).clamp_min(1e-300)  # (batch, tokens, queries)
            out = torch.einsum("nth,thk->nk", share, g) + b
            if outputs == 1:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(out[:, 0], y[rows, 0], reduction="none")
            else:
                loss = -(torch.log_softmax(out, dim=1) * y[rows]).sum(dim=1)
            total = (
                (loss * w[rows]).sum() / w[rows].sum() + ridge_a / 2 * a.square().sum() + ridge_g / 2 * g.square().sum()
            )
            adam.zero_grad()
            total.backward()
            adam.step()
        ours.epoch(amounts, targets, weights, batch)
    np.testing.assert_allclose(ours.selection, a.detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(ours.values, g.detach().numpy(), atol=1e-8)
    np.testing.assert_allclose(ours.scores.outputs(amounts), (out_of(dense, a, g, b)).detach().numpy(), atol=1e-8)


def out_of(dense, a, g, b):
    share = dense[:, :, None] * a.exp()
    share = share / share.sum(dim=1, keepdim=True).clamp_min(1e-300)
    return torch.einsum("nth,thk->nk", share, g) + b


def test_a_document_without_tokens_has_the_bias_and_moves_nothing_else():
    empty = sparse.csr_array((3, 12))
    descent = ScoreDescent(12, 0.0, 0.0, np.random.default_rng(0))
    descent.epoch(empty, np.ones((3, 1)), np.ones(3), 2)
    assert not descent.values.any()
    assert descent.bias[0] > 0
    np.testing.assert_array_equal(descent.scores.outputs(empty), np.tile(descent.bias, (3, 1)))


def test_documents_of_weight_zero_do_not_exist():
    amounts, targets, weights = problem(n=6)
    weights[:] = [1, 1, 1, 0, 0, 0]
    descents = [ScoreDescent(12, 0.1, 0.1, np.random.default_rng(0)) for _ in range(2)]
    changed = targets.copy()
    changed[3:] = 1 - changed[3:]
    for descent, y in zip(descents, (targets, changed), strict=True):
        descent.epoch(amounts, y, weights, 6)
    np.testing.assert_array_equal(descents[0].values, descents[1].values)


def test_schedule_gives_small_sets_enough_steps():
    for documents in (1, 10, 300, 25_000):
        epochs, batch = schedule(documents, 8, 256)
        assert epochs >= 8
        assert epochs * -(-documents // batch) >= 600
    assert schedule(25_000, 8, 256) == (8, 256)
