"""The tour: every step is told, the last screen is short, and the models that a person meets first are sensible."""

import csv

import numpy as np
import pytest

from whichtoken.app import movie_reviews
from whichtoken.app.cli import demo
from whichtoken.app.cli.demo import HEADLINES, Headline
from whichtoken.app.movie_reviews import BLAME, EXAMPLES, PRAISE, bundled_movie_model, train_movie_model
from whichtoken.datasets import read_movie_reviews
from whichtoken.errors import UsageError
from whichtoken.lab.discovery import find
from whichtoken.lab.record import recorded_runs

# written down before any model was trained
GOOD = "wonderful excellent superb brilliant great perfect amazing loved beautiful enjoyed funny favorite best moving delightful"
BAD = (
    "terrible awful boring worst waste poor stupid bad dull disappointing horrible annoying ridiculous lame predictable"
)


def signs(classifier) -> dict[str, float]:
    """What each plain word adds for praise, alone in a text."""
    words = f"{GOOD} {BAD}".split()
    return {
        word: sum(reason.contribution for reason in why.reasons) * (1 if why.label == PRAISE else -1)
        for word, why in zip(words, classifier.explain(words), strict=True)
    }


def wrong_signs(classifier) -> list[str]:
    assert classifier.classes_.tolist() == [BLAME, PRAISE]
    found = signs(classifier)
    return [word for word in GOOD.split() if found[word] <= 0] + [word for word in BAD.split() if found[word] >= 0]


def installed() -> bool:
    try:
        return bool(read_movie_reviews("imdb"))
    except UsageError:
        return False


@pytest.fixture(scope="module")
def bundled():
    return bundled_movie_model()


def test_thirty_plain_words_have_the_right_sign_in_the_bundled_model(bundled):
    assert wrong_signs(bundled.classifier) == []


def wrong_examples(classifier) -> list[str]:
    """Which of the examples, each of them plain to a person, the model reads in another way."""
    with EXAMPLES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"text": movie_reviews.REVIEW, "label": PRAISE} in rows
    found = classifier.predict([row["text"] for row in rows])
    return [row["text"] for row, label in zip(rows, found, strict=True) if row["label"] != label]


def test_the_bundled_model_reads_its_examples_as_a_person_does(bundled):
    assert wrong_examples(bundled.classifier) == []


def test_the_bundled_model_is_right_on_reviews_that_it_has_not_seen(bundled, real_data):
    import pandas as pd

    reviews = pd.read_parquet(real_data / "imdb_reviews_50k.parquet").query("split == 'test'")
    chosen = reviews.sample(1000, random_state=0)
    right = bundled.classifier.predict(chosen["text"].tolist()) == np.where(chosen["label"] > 0, PRAISE, BLAME)
    assert right.mean() >= 0.85


@pytest.mark.slow
def test_the_model_of_the_demo_is_right_on_unseen_reviews_and_has_the_right_signs():
    if not installed():
        pytest.skip("the package movie-reviews is not installed")
    model = train_movie_model()
    assert model.held_out == 1000
    assert model.accuracy >= 0.85
    assert wrong_signs(model.classifier) == []
    assert wrong_examples(model.classifier) == []


@pytest.mark.slow
def test_the_head_of_the_small_transformer_picks_words_that_matter():
    from whichtoken.inspection.small_transformer import train_small_transformer

    found = train_small_transformer()
    assert found.accuracy > 0.8
    assert found.share_of_words < 0.1
    assert found.share_picked > 0.5


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda headline: headline.claim)
def test_a_headline_is_filled_in_from_the_record_and_decided(headline):
    run = recorded_runs()[headline.claim, "quick"]
    assert find(headline.claim).id == headline.claim
    states = {verdict.code: verdict.state for verdict in run.verdicts}
    assert set(states.values()) <= {"agrees", "disagrees"}
    assert headline.against.keys() == {code for code, state in states.items() if state == "disagrees"}
    line = f"  {headline.theory}: {demo._fill_sentence(headline, run)}"
    assert "not run" not in line
    assert len(line) <= 100


@pytest.fixture
def toy_tour(monkeypatch, no_workers, bundled):
    """The tour with one toy claim and models that are at hand."""
    monkeypatch.setattr(demo, "HEADLINES", (Headline("toy/mean", "toys", "the mean is {measured[mean.zero]:.3f}"),))
    monkeypatch.setattr(movie_reviews, "train_movie_model", lambda: bundled)


def test_every_step_is_told_and_the_last_screen_is_short(toy_tour, whichtoken, monkeypatch):
    monkeypatch.setattr(demo, "is_installed", lambda package: package != "torch")
    done = whichtoken("demo", "--out", "out")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert [line for line in lines if len(line) > 100] == []
    last = lines[lines.index("What was found on this machine") :]
    assert len(last) <= 20
    assert "Try next" in last
    assert 'pip install "whichtoken[torch]"' in done.stdout
    assert "reproduce mirror-descent/direction --out out" in last[-2]
    quiet = whichtoken("demo", "--out", "out", "--quiet").stdout
    assert quiet.strip().splitlines() == last


def test_an_interrupted_tour_continues_where_it_stopped(toy_tour, whichtoken, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo, "_head", interrupt)
        stopped = whichtoken("demo", "--out", "out")
    assert stopped.returncode == 130
    assert "the same command continues" in stopped.stderr
    monkeypatch.setattr(demo, "_head", lambda: None)
    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", None)  # nothing is computed again
    assert whichtoken("demo", "--out", "out").returncode == 0


@pytest.mark.slow
@pytest.mark.process
def test_the_real_tour_ends_with_every_claim_decided(whichtoken_process):
    done = whichtoken_process("demo", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "undecided" not in done.stdout
    assert done.stderr.count("Traceback") == 0
