"""Levels of importance: what a surplus of one label does, and what the verdicts count."""

import numpy as np
import pytest

from whichtoken.claims.trained_embeddings.levels import CLEAR, Levels, Point
from whichtoken.datasets import LevelTokens
from whichtoken.lab.experiment import Row, Rows

SMALL = {"sequences": 600, "dim": 64, "lr": 2e-3, "epochs": 30, "drop": 20}


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_surplus_of_one_label_moves_irrelevant_tokens_to_its_side(seed):
    coin, balanced = (
        Levels().run(Point(**SMALL, balanced=balanced), np.random.default_rng(seed)) for balanced in (False, True)
    )
    assert balanced["mean_label"] == 0
    assert (coin["irrelevant_value"] - balanced["irrelevant_value"]) * coin["mean_label"] > 0


def test_a_surplus_of_two_per_cent_makes_an_irrelevant_token_as_important_as_a_clear_one():
    law, mean_label = LevelTokens(), 0.0234
    alpha = ((1 + mean_label) * law.probabilities(1) - (1 - mean_label) * law.probabilities(-1)) / 2
    noise = np.array([0.5, *law.noise])[law.token_levels]
    assert alpha[-1] == pytest.approx(np.abs(alpha[noise == CLEAR]).mean(), rel=1e-3)


def test_signs_are_counted_per_token_of_the_clear_levels_and_apart_for_each_kind_of_labels():
    signs = {False: [0, 0, 0, 0.5, 1, 1, 1, 1], True: [0, 0, 0, 1, 1, 1, 1, 1]}
    measured = {"pearson_value": 0.9, "pearson_selection": 0.9, "selection": np.arange(9.0), "scores": np.arange(9.0)}
    rows = Rows(
        Row(Point(balanced=balanced), 0, "ok", "", {**measured, "signs": signs[balanced]}, 0.0, "0")
        for balanced in (False, True)
    )
    parts = [part for check in Levels().judge(rows) for part in check.parts]
    shares = {part.code: part.sample.interval(0.95).measured for part in parts}
    assert shares["levels.signs.fixed.coin"] == pytest.approx(1 - 10 / (20 + 36 + 68 + 132 + 260))
    assert shares["levels.signs.fixed.balanced"] == 1
    assert "levels.signs.trained.coin" not in shares


def test_printed_set_sizes_do_not_add_up_to_the_printed_vocabulary_and_doubled_ones_do():
    printed, used = ([4 + 2 ** (k - shift) for k in range(1, 9)] for shift in (1, 0))
    assert (LevelTokens(set_sizes=printed).size, LevelTokens(set_sizes=used).size) == (1538, 2048)
    assert list(LevelTokens().sizes) == used


def test_relevant_tokens_are_equally_frequent_and_irrelevant_ones_are_not():
    law = LevelTokens()
    frequency = law.probabilities(1) + law.probabilities(-1)
    relevant = law.token_levels > 0
    assert np.ptp(frequency[relevant]) < 1e-12 * frequency[0]
    assert frequency[~relevant].min() / frequency[0] == pytest.approx(21.4, abs=0.1)
