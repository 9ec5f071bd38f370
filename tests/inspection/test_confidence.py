"""Confidence of picks: against scikit-learn, and where the truth is known."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from whichtoken.errors import UsageError
from whichtoken.inspection import PickConfidence


@pytest.fixture(scope="module")
def data():
    """Scores whose probability of being right is known: the logistic function."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 20)
    score = rng.normal(size=2000) + 0.3 * rng.normal(size=100)[groups]
    return score.round(1), rng.random(2000) < 1 / (1 + np.exp(-2 * score)), groups


def test_auroc_is_that_of_scikit_learn(data):
    score, right, groups = data
    assert PickConfidence(score, right, groups).auroc == pytest.approx(roc_auc_score(right, score), abs=1e-12)


def test_interval_over_documents_is_wider_than_over_picks_when_documents_differ():
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(30), 30)
    right = rng.random(900) < 0.2 + 0.6 * rng.random(30)[groups]
    score = right + rng.normal(size=30)[groups] * 2
    widths = [np.ptp(PickConfidence(score, right, g).auroc_interval()) for g in (groups, None)]
    assert widths[0] > widths[1]


@pytest.mark.slow
def test_interval_holds_the_truth_and_differences_are_paired(data):
    score, right, groups = data
    confidence = PickConfidence(score, right, groups)
    low, high = confidence.auroc_interval()
    assert low < confidence.auroc < high
    assert confidence.auroc_difference(PickConfidence(score * 3, right, groups)) == (0.0, 0.0)
    worse = PickConfidence(score + np.random.default_rng(2).normal(size=2000) * 3, right, groups)
    assert confidence.auroc_difference(worse)[0] > 0


def test_risk_falls_with_coverage_and_ends_at_the_error(data):
    score, right, groups = data
    confidence = PickConfidence(score, right, groups)
    assert confidence.risk(1.0) == pytest.approx(np.mean(~right))
    assert confidence.risk(0.5) < confidence.risk(0.8) < confidence.risk(1.0)
    expected = np.mean(~right[np.argsort(-score, kind="stable")[:1600]])
    assert confidence.risk(0.8) == pytest.approx(expected, abs=0.01)


def test_ties_are_kept_in_proportion():
    """Half of the two wrong picks that tie, with both right ones: one wrong pick in three."""
    assert PickConfidence([2, 2, 1, 1], [True, True, False, False]).risk(0.75) == pytest.approx(1 / 3)


def test_probabilities_are_calibrated_on_documents_that_were_not_seen(data):
    score, right, groups = data
    confidence = PickConfidence(score, right, groups)
    truth = 1 / (1 + np.exp(-2 * score))
    assert np.abs(confidence.probabilities() - truth).mean() < 0.05
    assert confidence.calibration_error() < 0.04
    flipped = right.copy()
    flipped[groups == 0] = ~right[groups == 0]
    again = PickConfidence(score, flipped, groups).probabilities()
    # never fitted on its own document
    assert np.array_equal(again[groups == 0], confidence.probabilities()[groups == 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [True], None), "must be equally long; they have 2, 1 and 2"),
        (([1, 2], [True, True], None), "nothing to compare"),
        (([1, np.nan], [True, False], None), "score holds NaN"),
        (([1, 2], [3, 4], None), "True or False"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, message):
    with pytest.raises(UsageError, match=message):
        PickConfidence(*arguments)
