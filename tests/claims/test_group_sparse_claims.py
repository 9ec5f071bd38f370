"""The claims about group-sparse selection can fail: what they would say of other data, and brute force for their formulas."""

import numpy as np
import pytest
import torch

from whichtoken.claims._checks import pool_parts
from whichtoken.claims.group_sparse import learning_rate, overlap, transfer
from whichtoken.claims.group_sparse._training import stratified_sample
from whichtoken.datasets import GroupSparse
from whichtoken.lab import Row, Rows
from whichtoken.theory.group_sparse.descent import descend_on_batches
from whichtoken.theory.group_sparse.transformer import GroupTransformer


def rows_of(points_and_measurements):
    return Rows(Row(point, seed, "ok", "", found, 0.1, "0") for seed, point, found in points_and_measurements)


@pytest.mark.parametrize(
    ("log_leakage", "state"), [(lambda D: -0.4 * D, "agrees"), (lambda D: -7 / 3 * np.log(D), "disagrees")]
)
def test_the_doubling_tells_an_exponential_from_a_power(log_leakage, state):
    points = [learning_rate.Point(groups=D, sigma=1.0, rate=4.0, steps=round(D**3 / 4)) for D in (8, 16, 32)]
    rows = rows_of((0, point, {"log_leakage": log_leakage(point.groups)}) for point in points)
    checks = {check.code: check for check in learning_rate.LearningRate().judge(rows)}
    assert checks["learning-rate.exponential.frozen"].settle(0.99).state == state


def test_logistic_regression_would_fail_the_claims_about_transfer():
    rng = np.random.default_rng(0)
    found = []
    for seed in range(8):
        X, y = GroupSparse(16, 8, 0, rng.standard_normal(8), margin=0.3).sample(transfer.SIZES[-1], rng)
        mistakes = transfer._fewest_mistakes(X.reshape(len(X), -1), y)
        found.append((seed, transfer.Point(), {"mistakes": {"transferred": mistakes, "all-variables": mistakes}}))
    rows = rows_of(found)
    judge = pool_parts(lambda _, rows: transfer._mistake_checks(rows, rows))
    states = {check.code: check.settle(0.99).state for check in judge(None, rows)}
    assert states["transfer.rate"] != "agrees"
    assert states["transfer.regression"] != "disagrees"  # the same mistakes on both sides
    assert states["transfer.level"] == "disagrees"
    assert states["transfer.level.all-variables"] == "agrees"


def test_a_ratio_of_measured_means_is_as_unsure_as_both_of_them():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        above, below = rng.normal(20.0, 4.0, 12), rng.normal(10.0, 3.0, 12)
        found.append(
            (np.mean(above) / np.mean(below), np.std(transfer._ratio_of_means(above, below), ddof=1) / 12**0.5)
        )
    ratios, errors = np.array(found).T
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.06)
    known = 4.0 / 10.0 / 12**0.5  # what a denominator without scatter would give
    assert np.mean(errors) > 1.5 * known


def test_the_favored_group_the_group_that_training_finds():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        data = GroupSparse(6, 4, 2, rng.standard_normal(4), shared=2)
        model = GroupTransformer(4, 6)
        X, y = data.sample(5000, rng)
        batch = np.concatenate([X, -X]), np.concatenate([y, -y])
        descend_on_batches(model, [batch] * 3, torch.optim.SGD(model.parameters(), lr=0.02), 3)
        with torch.no_grad():
            received = model.attention(torch.from_numpy(X[:200])).mean(dim=(0, 2)).numpy()
        assert int(np.argmax(received)) == overlap._favored_group(data)


def test_astratified_sample_has_the_moments_of_a_plain_one():
    data = GroupSparse(3, 2, 1, [3.0, 4.0], sigma=0.5)
    X, y = stratified_sample(data, 50_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(X.reshape(-1, 6).T), 0.25 * np.eye(6), atol=0.006)
    assert (y == np.sign(X[:, 1] @ data.directions[0])).all()
    assert np.mean(np.abs(X[:, 1] @ data.directions[0])) == pytest.approx(0.5 * np.sqrt(2 / np.pi), rel=1e-4)
