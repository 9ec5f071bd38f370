"""Data in which only tuples tell the label, the model that reads them, and rows that would refute the claim."""

import numpy as np
import pytest
import torch

from whichtoken.claims.trained_embeddings import tuples
from whichtoken.claims.trained_embeddings._tuples import AdjacentTuples, DeepAttention, Induction
from whichtoken.lab import Row, Rows

LAWS = [AdjacentTuples(2, 0.9), AdjacentTuples(3, 0.9), Induction(0.95)]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_statistic_is_the_log_odds_and_no_place_alone_says_anything(law):
    ids, labels, statistics = law.sample(60_000, np.random.default_rng(0))
    assert ids.shape == (60_000, law.length)
    assert set(np.unique(ids)) == set(range(law.kinds))
    for level in np.unique(statistics.round(6)):
        same = np.isclose(statistics, level)
        if same.sum() > 1000:
            assert np.mean(labels[same] > 0) == pytest.approx(1 / (1 + np.exp(-level)), abs=5 * 0.5 / same.sum() ** 0.5)
    for place in range(law.length):
        for kind in range(law.kinds):
            here = labels[ids[:, place] == kind]
            assert abs(here.sum()) <= 4.5 * len(here) ** 0.5


@pytest.mark.parametrize("k", [2, 3])
def test_no_part_of_a_tuple_says_anything(k):
    ids, labels, _ = AdjacentTuples(k, 0.98).sample(100_000, np.random.default_rng(1))
    part = ids[:, : k - 1] @ 4 ** np.arange(k - 1)
    sums = np.bincount(part, weights=labels)
    assert (np.abs(sums) <= 4.5 * np.bincount(part) ** 0.5).all()


def test_a_layer_attends_to_no_later_token_and_one_layer_has_only_the_query():
    ids = torch.from_numpy(LAWS[0].sample(3, np.random.default_rng(2))[0])
    model = DeepAttention(12, 12, dim=8, heads=2, layers=3, rng=np.random.default_rng(3))
    weights = model.attend(ids)[1]
    assert [layer.shape for layer in weights] == [(3, 2, 12, 12)] * 2
    assert all(layer.triu(1).abs().max() == 0 for layer in weights)
    alone = DeepAttention(12, 12, dim=8, heads=2, layers=1, rng=np.random.default_rng(3))
    assert alone.attend(ids)[1] == []


def test_an_induction_head_is_measured_where_it_looks():
    law = Induction(0.9)
    ids = torch.from_numpy(law.sample(50, np.random.default_rng(4))[0])
    before = torch.eye(9).roll(-1, dims=1).expand(50, 2, 9, 9)  # every token attends to the one before
    place = (ids[:, :-1] == ids[:, -1:]).int().argmax(dim=1) + 1
    after = torch.zeros(50, 2, 9, 9)
    after[torch.arange(50), 1, 8, place] = 1.0
    assert law.structure(ids, [before, after]) == {"before": 1.0, "after": 1.0}
    assert law.structure(ids, [after])["before"] == 0.0


@pytest.mark.parametrize(("correlation", "state"), [(0.97, "agrees"), (0.7, "disagrees")])
def test_a_deep_model_that_does_not_follow_the_tuples_refutes_the_claim(correlation, state):
    measured = {"lost": 0.01, "within": 0.5}
    rows = [
        Row(tuples.Point(), seed, "ok", "", measured | {"correlation": correlation + seed / 1000}, 0.0, "0")
        for seed in range(6)
    ]
    checks = {check.code: check for check in tuples.Tuples().judge(Rows(rows))}
    assert checks["tuples.follows.pairs"].settle(0.99).state == state
