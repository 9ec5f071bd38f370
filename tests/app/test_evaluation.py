"""Scores and their intervals say what they should, whoever computes them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import confusion_matrix, f1_score, log_loss, roc_auc_score

from whichtoken.app.evaluation import WORDS, Scheme, Trained, evaluate_saved, evaluate_with_baselines, text_baseline
from whichtoken.app.pages.evaluation import print_evaluation
from whichtoken.app.readers import Target
from whichtoken.errors import UsageError
from whichtoken.estimators.metrics import (
    HeldOut,
    calibration_of,
    calibration_svg,
    details_of,
    evaluation_html,
    metrics_of,
    wilson,
)

PATH = Path("t.csv")


def softmax(scores):
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


def sample(n=300, classes=2, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n, classes))
    if ties:
        scores = np.round(scores)
    probabilities = softmax(2 * scores)
    codes = np.array([rng.choice(classes, p=row) for row in softmax(scores)])
    return codes, probabilities


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("ties", [False, True])
def test_scores_are_those_of_scikit_learn(classes, ties):
    codes, probabilities = sample(classes=classes, ties=ties)
    found = metrics_of("ours", HeldOut(codes, [probabilities]), 1.0)
    assert found.accuracy == pytest.approx(np.mean(probabilities.argmax(axis=1) == codes))
    assert found.log_loss == pytest.approx(log_loss(codes, probabilities))
    scores = probabilities[:, 1] if classes == 2 else probabilities
    assert found.auc == pytest.approx(roc_auc_score(codes, scores, multi_class="ovr"))
    details = details_of(HeldOut(codes, [probabilities]), np.arange(classes))
    said = probabilities.argmax(axis=1)
    np.testing.assert_array_equal(details.confusion, confusion_matrix(codes, said))
    np.testing.assert_allclose([one.f1 for one in details.classes], f1_score(codes, said, average=None))


def test_intervals_cover_as_often_as_they_say():
    """Of the true accuracy, log loss and area, which many samples tell."""
    codes, probabilities = sample(40_000, seed=99)
    truth = {
        "accuracy": np.mean(probabilities.argmax(axis=1) == codes),
        "log_loss": log_loss(codes, probabilities),
        "auc": roc_auc_score(codes, probabilities[:, 1]),
    }
    inside = np.zeros(3)
    for seed in range(120):
        codes, probabilities = sample(150, seed=seed)
        found = metrics_of("ours", HeldOut(codes, [probabilities]), 0.0)
        for place, name in enumerate(truth):
            low, high = found.intervals[name]
            inside[place] += low <= truth[name] <= high
    assert (inside / 120 > 0.88).all(), inside / 120


def test_what_belongs_together_widens_the_interval():
    codes, probabilities = sample(100)
    codes, probabilities = np.repeat(codes, 9), np.repeat(probabilities, 9, axis=0)
    alone = metrics_of("ours", HeldOut(codes, [probabilities]), 0.0).intervals
    together = metrics_of("ours", HeldOut(codes, [probabilities], np.repeat(np.arange(100), 9)), 0.0).intervals
    for name in alone:
        assert np.ptp(together[name]) > 2 * np.ptp(alone[name])


def test_a_perfect_score_is_not_certain():
    low, high = wilson(1.0, 20)
    assert high == pytest.approx(1.0)
    assert low == pytest.approx(0.8389, abs=1e-4)  # 20 / (20 + z^2)


def test_repeats_are_averaged():
    codes, first = sample()
    second = first[:, ::-1]
    both = metrics_of("ours", HeldOut(codes, [first, second]), 0.0)
    each = [metrics_of("ours", HeldOut(codes, [one]), 0.0) for one in (first, second)]
    for name in ("accuracy", "log_loss", "auc"):
        assert getattr(both, name) == pytest.approx(np.mean([getattr(one, name) for one in each]))


def test_calibration_error_is_near_zero_for_true_probabilities_only():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 4000)
    right = rng.random(4000) < confidence
    assert calibration_of(confidence, right).error < 0.015
    overconfident = calibration_of(np.sqrt(confidence), right)
    assert overconfident.error == pytest.approx(np.sqrt(np.mean((np.sqrt(confidence) - confidence) ** 2)), abs=0.02)
    assert sum(overconfident.rows) == 4000


def test_equal_probabilities_are_calibrated_together_in_whatever_order_the_rows_are():
    confidence, right = np.full(50, 0.54), np.arange(50) < 27
    assert calibration_of(confidence, right).error == 0
    assert calibration_of(confidence, right).rows == [50]
    assert calibration_of(np.repeat([0.9, 0.6], [20, 30]), np.arange(50) % 2 == 0).rows == [30, 20]


def test_bins_of_few_rows_do_not_take_chance_for_an_error():
    """In bins of one row each the error would be .5."""
    found = calibration_of(np.linspace(0.5, 0.51, 10), np.arange(10) % 2 == 0)
    assert found.rows == [5, 5]
    assert found.error == 0


class Toy:
    """Labels that a model knows, and rows that it was trained on."""

    target = Target()

    def __init__(self, n=60, clusters=None, labels=None, least=1):
        self.labels = np.arange(n) % 3 if labels is None else labels
        self.clusters, self.copies, self.least, self.seen = clusters, None, least, []

    def name_of(self, kind):
        return kind

    def ours(self, rows):
        self.seen.append(set(rows.tolist()))
        classes = np.unique(self.labels[rows])
        own = np.eye(len(classes)) * 0.7 + 0.1
        return Trained(len(rows), classes, lambda others: own[np.searchsorted(classes, self.labels[others])])

    def baseline(self, kind, rows):
        classes = np.unique(self.labels[rows])
        return Trained(None, classes, lambda others: np.full((len(others), len(classes)), 1 / len(classes)))


def test_one_test_keeps_the_model_that_was_judged():
    work = Toy()
    report, kept, held = evaluate_with_baselines(PATH, work, Scheme(test_share=0.2))
    assert (report.training, report.test, kept.model, len(work.seen)) == (48, 12, 48, 1)
    assert not work.seen[0] & set(held.tolist())
    assert report.ours.accuracy == 1.0
    assert report.baseline.log_loss == pytest.approx(np.log(3))
    assert report.majority.accuracy == pytest.approx(1 / 3)


def test_cross_validation_judges_every_row_and_keeps_a_model_of_all():
    work = Toy()
    report, kept, held = evaluate_with_baselines(PATH, work, Scheme(folds=4, repeats=2, baseline=None))
    assert (report.training, report.test, kept.model, len(held)) == (60, 60, 60, 0)
    assert [len(rows) for rows in work.seen] == [45] * 8 + [60]
    assert report.baseline is None
    assert report.judged_by == "4-fold cross-validation, repeated 2 times"


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(folds=3)], ids=str)
def test_clusters_are_never_on_both_sides(scheme):
    clusters = np.arange(60) // 6
    work = Toy(clusters=clusters)
    evaluate_with_baselines(PATH, work, scheme)
    for rows in work.seen[:3]:
        inside = {clusters[row] for row in rows}
        outside = set(clusters[sorted(set(range(60)) - rows)])
        assert not inside & outside or len(rows) == 60


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("share", [0.1, 0.25, 0.4, 0.7])
def test_whole_groups_are_held_out_with_all_classes(seed, share):
    """Every group has one class, and one class is in few groups: chance alone would often leave it out."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat([0, 1, 2], [40, 17, 3])
    clusters = rng.permutation(np.repeat(np.arange(60), 5))
    work = Toy(labels=kinds[clusters], clusters=clusters)
    report, _, rows = evaluate_with_baselines(PATH, work, Scheme(seed=seed, test_share=share), "film")
    assert set(work.labels[rows]) == set(work.labels[sorted(work.seen[0])]) == {0, 1, 2}
    assert not set(clusters[rows]) & set(clusters[sorted(work.seen[0])])
    assert report.judged_by == f"whole groups of 'film' held out at random, {len(rows) / 300:.0%} of the rows"
    assert len(rows) / 300 == pytest.approx(share, abs=0.03)
    assert report.notes == ()


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(folds=3)], ids=str)
def test_a_class_of_one_group_is_learned_with_its_whole_group(scheme):
    clusters = np.arange(60) // 6
    labels = np.arange(60) % 2
    labels[13] = 2
    work = Toy(labels=labels, clusters=clusters)
    report, _, _ = evaluate_with_baselines(PATH, work, scheme, "film")
    assert all(set(range(12, 18)) <= rows for rows in work.seen)
    assert "class 2 is in too few groups to be tested; it is learned all the same" in report.notes


def test_what_is_printed_of_folds_and_of_a_class_that_was_not_tested(capsys):
    labels = np.where(np.arange(60) == 7, 2, np.arange(60) % 2)
    report, _, _ = evaluate_with_baselines(PATH, Toy(labels=labels), Scheme(folds=4))
    print_evaluation(report)
    printed = capsys.readouterr().out
    assert "60 rows, 59 of them tested, 4-fold cross-validation; the saved model is trained on all of them" in printed
    (line,) = [line for line in printed.splitlines() if "not tested" in line]
    assert line.split() == ["2", "0", "not", "tested", "0", "0", "0"]
    page = evaluation_html(asdict(report))
    assert "<td>2</td><td>0</td><td></td><td></td><td>not tested</td>" in page


class Guess(Toy):
    """A model that knows no more than the most frequent class."""

    def ours(self, rows):
        return self.baseline("", rows)


def test_a_model_that_is_no_better_than_the_most_frequent_class_is_said_to_be(capsys):
    for scheme, advice in (
        (Scheme(), "label more, or test on all rows with --folds 5"),
        (Scheme(folds=5), "label more"),
    ):
        bad, good = (evaluate_with_baselines(PATH, work, scheme)[0] for work in (Guess(), Toy()))
        (said,) = bad.notes
        assert "most frequent class (0.333)" in said
        assert said.endswith(f": {advice}")
        assert good.notes == ()
        assert said in evaluation_html(asdict(bad))  # of the card and of the workbench
        capsys.readouterr()
        print_evaluation(bad)
        printed = capsys.readouterr().out
        assert said in printed
        assert ("learned from 45 rows, not from the 15 of the test" in printed) == (scheme.folds is None)


@pytest.mark.parametrize("width", [80, 100])
def test_no_number_is_broken_in_two_and_shares_have_their_counts(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print_evaluation(evaluate_with_baselines(PATH, Toy(labels=np.arange(60) % 2), Scheme())[0])
    printed = capsys.readouterr().out
    assert max(map(len, printed.split("calibration")[0].splitlines())) <= width
    assert "(0.796 to 1.000)" in printed
    assert "probabilities and observed frequencies lie 0.20 apart; chance alone gives 0.00 with 15 rows" in printed
    report = evaluate_with_baselines(PATH, Toy(), Scheme())[0]
    for classes, shown in ((2, "predicted"), (12, "does not fit here; --json FILE has it")):
        labels = np.array([f"class{k % classes}" for k in range(600)])
        print_evaluation(evaluate_with_baselines(PATH, Toy(labels=labels), Scheme())[0])
        printed = capsys.readouterr().out
        assert shown in printed
        assert printed.split("F1", 1)[1].count("(1.000 to 1.000)") == classes
    coverage = [(0.6, 2 / 15, 0.5)]
    print_evaluation(replace(report, details=replace(report.details, coverage=coverage)))
    assert "with --abstain-below 0.6 it answers 13% of the rows (2 of 15), 50.0% of them correctly (1)" in (
        capsys.readouterr().out
    )


def test_the_most_frequent_class_of_another_table_is_named_so():
    trained = Trained(None, np.arange(2), lambda rows: np.full((len(rows), 2), 0.5))
    report = evaluate_saved(PATH, trained, np.array([0, 1, 1]))
    assert report.majority.name == "most frequent class of this table"


def test_groups_of_one_class_each_cannot_be_tested():
    with pytest.raises(UsageError, match="the test needs two classes that are in several groups each"):
        evaluate_with_baselines(PATH, Toy(labels=np.arange(60) // 30, clusters=np.arange(60) // 30), Scheme())


def test_a_class_that_is_too_rare_to_train_on_is_left_out_with_min_class():
    labels = np.where(np.arange(60) == 7, 2, np.arange(60) % 2)
    with pytest.raises(UsageError, match=r"class 2 has one row only.*--min-class"):
        evaluate_with_baselines(PATH, Toy(labels=labels, least=3), Scheme())
    report, _, _ = evaluate_with_baselines(PATH, Toy(labels=labels, least=3), Scheme(min_class=4))
    assert report.notes == ("1 row of 1 class with fewer than 4 was left out: 2",)
    with pytest.raises(UsageError, match=r"class 2 has 3 rows, but the split leaves only 2 .*--min-class 4"):
        evaluate_with_baselines(PATH, Toy(labels=np.where(np.arange(60) < 3, 2, np.arange(60) % 2), least=3), Scheme())


@pytest.mark.parametrize("clusters", [None, np.arange(61) // 3], ids=["rows", "groups"])
def test_the_area_compares_rows_of_one_fold_only(clusters):
    """The most frequent class ranks nothing, though its frequency differs from fold to fold."""
    labels = (np.random.default_rng(0).random(61) < 0.3).astype(int)
    report, _, _ = evaluate_with_baselines(PATH, Toy(labels=labels, clusters=clusters), Scheme(folds=5, repeats=2))
    assert report.majority.auc == 0.5
    assert report.majority.intervals["auc"] == (0.5, 0.5)


def test_the_area_of_folds_is_the_mean_over_their_pairs():
    codes, probabilities = sample(ties=True)
    folds = np.arange(300) % 3
    found = metrics_of("ours", HeldOut(codes, [probabilities], None, [folds]), 0.0)
    inside = [folds == fold for fold in range(3)]
    pairs = [codes[fold].sum() * (1 - codes[fold]).sum() for fold in inside]
    areas = [roc_auc_score(codes[fold], probabilities[fold, 1]) for fold in inside]
    assert found.auc == pytest.approx(np.average(areas, weights=pairs))
    low, high = found.intervals["auc"]
    assert low < found.auc < high


def test_schemes_that_cannot_be():
    for options, sentence in [
        ({"folds": 1}, "folds=1 must be a whole number from 2 to 100"),
        ({"repeats": 2}, "give the number of folds too"),
        ({"seed": -1}, "seed=-1 must be a whole number from 0"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            Scheme(**options)
    with pytest.raises(UsageError, match="30 folds need as many rows of the rarest class; there are 20"):
        evaluate_with_baselines(PATH, Toy(least=3), Scheme(folds=30))


def test_calibration_is_drawn_with_a_dot_and_a_bar_for_each_bin_inside_the_picture():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1, 4000)
    calibration = calibration_of(confidence, rng.random(4000) < confidence)
    picture = ElementTree.fromstring(calibration_svg(calibration))
    width, height = map(float, picture.get("viewBox").split()[2:])
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in picture.iter("circle")]
    assert (
        len(dots)
        == len(calibration.right)
        == sum("V" in p.get("d") and "H" not in p.get("d") for p in picture.iter("path"))
    )
    assert all(0 < x < width and 0 < y < height for x, y in dots)
    assert dots == sorted(dots), "a higher probability stands further to the right"


@pytest.mark.parametrize("kind", ["logistic", "naive-bayes"])
@pytest.mark.parametrize(
    ("good", "bad", "rest"), [("好看", "无聊", "这部电影的音乐"), ("ชอบ", "เบื่อ", "หนังเรื่องนี้")], ids=["Chinese", "Thai"]
)
def test_a_baseline_reads_scripts_without_spaces(kind, good, bad, rest):
    places = np.arange(40) % len(rest)  # no sentence is there twice with the same label
    texts = [
        f"{rest[:k]}{bad if row % 2 else good}{rest[k:]}{row // 2 * rest[0]}" for row, k in enumerate(places.tolist())
    ]
    baseline = text_baseline(kind, (1, 1)).fit(texts[:28], np.arange(28) % 2)
    assert np.array_equal(baseline.predict_proba(texts[28:]).argmax(axis=1), np.arange(28, 40) % 2)


def test_a_baseline_reads_other_scripts_as_scikit_learn_does():
    texts = [
        "It's a B-movie_1, isn't it?",
        "L'été à Łódź; 10/10",
        "Очень хорошо!",
        "यह अच्छी फ़िल्म है।",
        "ok ok 👍🏽 fine",
    ]
    assert CountVectorizer(token_pattern=WORDS).fit(texts).vocabulary_ == CountVectorizer().fit(texts).vocabulary_
