"""Plans from a pilot of texts: the learning curve of a text classifier, extrapolated with an interval."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from whichtoken.datasets import synthetic_reviews
from whichtoken.errors import UsageError
from whichtoken.estimators import plan_study

QUICK = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10.0))  # any classifier of texts will do


@pytest.fixture(scope="module")
def reviews():
    texts, labels = synthetic_reviews(3400, np.random.default_rng(0))
    return list(texts), np.asarray(labels)


def test_intervals_hold_the_error_of_the_larger_study(reviews):
    texts, labels = reviews
    test, hits = slice(2400, None), 0
    for first in range(0, 2400, 300):
        pilot, more = slice(first, first + 60), slice(first + 60, first + 300)
        study = plan_study(pilot=(texts[pilot], labels[pilot]), samples=240, model=QUICK)
        error = 1 - clone(QUICK).fit(texts[more], labels[more]).score(texts[test], labels[test])
        hits += study.forecast.low <= error <= study.forecast.high
    assert (study.unit, study.model, study.theory, study.maps[0].instance_map) == ("texts", "Pipeline", None, "")
    assert hits >= 5  # of 8 at a promised 90 %: fewer by chance once in 200 times


def test_the_default_is_our_classifier_and_its_advice_names_texts(reviews):
    study = plan_study(pilot=(reviews[0][:40], reviews[1][:40]), target_error=0.4)
    assert study.model == "TextClassifier"
    assert "texts" in study.recommendation
    assert "bag" not in study.recommendation


def test_copies_count_once(reviews):
    texts, labels = reviews[0][:60], reviews[1][:60]
    once = plan_study(pilot=(texts, labels), model=QUICK)
    twice = plan_study(pilot=([*texts, *texts], np.tile(labels, 2)), model=QUICK)
    assert (twice.pilot.bags, twice.pilot.error) == (once.pilot.bags, once.pilot.error)
    assert "60 texts of the pilot nearly repeat others: left out" in twice.notes


def test_several_classes_have_the_largest_one_as_constant_answer():
    words, rng = {"a": "apple", "b": "book", "c": "car"}, np.random.default_rng(0)
    labels = rng.choice(["a", "b", "c"], 90, p=[0.5, 0.3, 0.2])
    texts = [f"{words[label]} {' '.join(rng.choice(list('defghijklmnop'), 8))}" for label in labels]
    study = plan_study(pilot=(texts, labels), model=QUICK)
    assert study.pilot.classes == ("a", "b", "c")
    assert study.pilot.constant_error == pytest.approx(1 - np.mean(labels == "a"))
    assert study.pilot.error < study.pilot.constant_error


def test_numbers_of_the_other_kind_are_refused(reviews):
    with pytest.raises(UsageError, match="length is of the theory of bags"):
        plan_study(pilot=reviews, length=5)
    with pytest.raises(UsageError, match="model is for pilots of texts"):
        plan_study(pilot=(np.zeros((20, 3, 2)), np.arange(20) % 2), model=QUICK)


def test_the_command_plans_from_a_table_of_texts(reviews, tmp_path, whichtoken):
    table = pd.DataFrame({"review": reviews[0][:60], "mood": reviews[1][:60]})
    table.to_csv(tmp_path / "pilot.csv", index=False)
    asked = ["plan", "--pilot", tmp_path / "pilot.csv", "--text", "review", "--label", "mood"]
    ran = whichtoken(*asked, "--target-error", 0.3)
    assert ran.returncode == 0, ran.stderr
    assert "Pilot: 60 texts of" in ran.stdout
    ran = whichtoken(*asked, "--feature", "x")
    assert (ran.returncode, "--feature is for pilots of bags" in ran.stderr) == (2, True)
