"""What the claims on optimizers rely on."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from whichtoken.claims._runs import values_with_failures
from whichtoken.claims.optimizers._methods import METHODS, OWN_NORMS, Method, margin_shares, train_with
from whichtoken.claims.optimizers.margins import Margins, Point
from whichtoken.claims.optimizers.momentum import Point as MomentumPoint
from whichtoken.claims.optimizers.momentum import linear_problem, three_tokens
from whichtoken.flows.margin_norms import NORMS
from whichtoken.lab.experiment import Row, Rows


def test_every_method_can_be_asked_for_and_claims_a_norm_that_is_measured():
    asked = {point["method"] for grid in Margins.presets["full"] for point in grid.points({})}
    assert asked == set(METHODS)
    assert {method.norm for method in METHODS.values()} <= {*NORMS, *OWN_NORMS, ""}


def test_momentum_is_what_misses_the_margin_of_three_tokens():
    problem, start = three_tokens()
    ahead = np.array(
        [[2.0, -1.0], [-1.0, 2.0]]
    )  # of the second token, of the third; by symmetry (1, 1) is best for both
    reached = {}
    for momentum in (0.0, 0.99):
        method = Method("", "normalized-gd", {"lr": 0.5, "momentum": momentum})
        run = train_with(method, problem, start, 8000)
        assert run.selected.tolist() == [0]
        reached[momentum] = (ahead @ run.final.direction[:, 0]).min() / np.sqrt(0.5)
    assert reached[0.0] > 0.999
    assert reached[0.99] < 0.95


def test_margin_of_three_tokens_is_the_largest_among_all_angles():
    """With query (1, 0) only the first column of W counts; no solver is needed to see how much momentum misses."""
    problem, start = three_tokens()
    run = train_with(Method("", "normalized-gd", {"lr": 0.5, "momentum": 0.99}), problem, start, 8000)
    scale, [share] = margin_shares(problem, run, ["l2"])
    angles = np.linspace(0.0, 2.0 * np.pi, 1_000_001)
    leads = problem.tokens[0, 0] - problem.tokens[0, 1:]  # (2, 2)
    best = (leads @ np.stack([np.cos(angles), np.sin(angles)])).min(axis=0).max()
    weights = run.final.direction
    assert scale.gap < 1e-6
    assert share["l2"] == pytest.approx((leads @ weights[:, 0]).min() / np.linalg.norm(weights) / best, abs=1e-6)
    assert share["l2"] == pytest.approx(0.898, abs=1e-3)


def test_attention_over_a_token_and_nothing_is_logistic_regression():
    """One step of plain gradient descent is that of the mean log(1 + exp(-x.W z)), written out by hand."""
    problem, start = linear_problem(MomentumPoint(), np.random.default_rng(0), 1.0)
    options = {"lr": 1.0, "loss": lambda probability: -math.log(probability)}
    run = train_with(Method("", "gd", options), problem, start, 1)
    features = np.einsum("nd,ne->nde", problem.tokens[:, 0], problem.queries)
    slopes = 1.0 / (1.0 + np.exp(np.einsum("nde,de->n", features, start)))
    np.testing.assert_allclose(run.final.weights, start + (slopes[:, None, None] * features).mean(axis=0), rtol=1e-12)


@dataclass(frozen=True)
class Shares:
    own: float
    half: float
    other: float


def row(seed, name, shares):
    norm = METHODS[name].norm
    measured = {
        "shares": {norm: shares.own, "l1": shares.other},
        "half": {norm: shares.half},
        "curves": {norm: [0.0, 0.0, 1 - 4 * (1 - shares.own), shares.half, shares.own]},
        "clock": [1, 2, 4, 8, 16],
    }
    return Row(Point(method=name), seed, "ok", "", measured, 0.0, "0")


def measured_parts(rows):
    return {part.code: part.settle(0.95).measured for check in Margins().judge(rows) for part in check.parts}


def test_judged_numbers_are_those_of_the_rows():
    rows = Rows(row(seed, "sign", Shares(0.98, 0.96, 0.5)) for seed in range(4))
    claims = measured_parts(rows)
    assert claims["margins.own.steepest.sign"] == pytest.approx(0.98)
    assert claims["margins.limit.steepest.sign"] == pytest.approx(1.0)
    assert claims["margins.dominance.steepest.sign"] == pytest.approx(0.48)
    assert claims["margins.rate.sign"] == pytest.approx(-1.0)


def test_failed_runs_count_against_the_share():
    good = [row(seed, "sign", Shares(1.0, 1.0, 0.5)) for seed in range(2)]
    failed = [Row(Point(method="sign"), seed, "failed", "cannot be separated", {}, 0.0, "0") for seed in (2, 3)]
    assert measured_parts(Rows(good, failed))["margins.own.steepest.sign"] == pytest.approx(0.5)


def test_a_run_that_failed_counts_with_its_worst_value():
    rows = [Row(Point(), seed, "ok", "", {"share": 1.0}, 0.0, "0") for seed in range(3)]
    lost = Row(Point(), 3, "failed", "no limit", {}, 0.0, "0")
    assert values_with_failures(Rows(rows, [lost]), "share", failed=-1.0).tolist() == [1.0, 1.0, 1.0, -1.0]
