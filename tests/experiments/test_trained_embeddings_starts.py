"""What the experiments on trained embeddings share: starts of the flow, and reviews that may be absent."""

import numpy as np
import pytest

from whichtoken.data import RelevantTokens
from whichtoken.experiments.trained_embeddings.corpora import missing_reviews
from whichtoken.experiments.trained_embeddings.selection_window import MIDDLE, Point, SelectionWindow
from whichtoken.experiments.trained_embeddings.starts import first_step_on
from whichtoken.theory.trained_embeddings import signed_frequency


def test_steps_differ_only_where_they_should():
    data = RelevantTokens().sample(8, np.random.default_rng(0))
    starts = {
        step: first_step_on(data, 512, 100.0, step, np.random.default_rng(1)) for step in ("actual", "ideal", "flat")
    }
    law = 50.0 * np.outer(signed_frequency(data.counts, data.labels), starts["ideal"].value)
    np.testing.assert_allclose(starts["ideal"].embeddings - starts["ideal"].initial, law, atol=1e-14)
    np.testing.assert_array_equal(starts["flat"].embeddings, starts["ideal"].embeddings)
    assert abs(starts["flat"].cls @ starts["flat"].value) < 1e-15
    away = np.linalg.norm(starts["actual"].embeddings - starts["ideal"].embeddings) / np.linalg.norm(law)
    assert 0 < away < 0.2
    with pytest.raises(ValueError, match="step='other' must be one of actual, ideal, flat"):
        first_step_on(data, 8, 1.0, "other", np.random.default_rng(0))


def test_a_middling_first_step_fails_on_one_label():
    failed = []
    for seed in range(6):
        measured = SelectionWindow().run(Point(lr=MIDDLE, arc_length=50.0), np.random.default_rng(seed))
        if not measured["complete"]:
            failed.append(measured)
    assert failed
    for measured in failed:
        assert sorted((measured["positive"], measured["negative"])) == [0.0, 1.0]
        towards = 1 if measured["positive"] else -1  # p has grown along v for the label that is right
        assert towards * measured["cosine_with_value"] > 0.2


def test_absent_reviews_are_explained(monkeypatch, tmp_path):
    assert missing_reviews("levels") == ""
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    assert missing_reviews("yelp") == (
        "yelp reviews need yelp_reviews_1000_1500.parquet and bert-base-uncased-vocab.txt in the folder named by "
        "WHICHTOKEN_DATA"
    )
