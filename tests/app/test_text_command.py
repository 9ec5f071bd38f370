"""`whichtoken fit text`, `predict` and `explain`, as a user runs them."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from whichtoken.app import evaluation
from whichtoken.datasets.review_sentences import synthetic_reviews


@pytest.fixture
def reviews(tmp_path):
    texts, labels = synthetic_reviews(240, np.random.default_rng(0))
    table = pd.DataFrame(
        {"review": texts, "sentiment": np.where(labels > 0, "good", "bad"), "film": np.arange(240) // 4}
    )
    table.to_csv(tmp_path / "reviews.csv", index=False)
    return table


def test_fit_predict_explain(whichtoken, tmp_path, reviews):
    fitted = whichtoken(
        "fit", "text", "reviews.csv", "--text", "review", "--label", "sentiment", "--split-by", "film", "--model", "model",
        "--json", "metrics.json",
    )  # fmt: skip
    assert fitted.returncode == 0, fitted.stderr
    assert "TF-IDF + logistic regression" in fitted.stdout
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["test"] == 60
    assert metrics["ours"]["accuracy"] > 0.6
    predicted = whichtoken("predict", "model", "reviews.csv", "--text", "review", "--to", "out.csv")
    assert predicted.returncode == 0, predicted.stderr
    table = pd.read_csv(tmp_path / "out.csv")
    assert list(table.columns) == ["review", "sentiment", "film", "predicted", "probability_bad", "probability_good"]
    assert (table["predicted"] == reviews["sentiment"]).mean() > 0.8
    explained = whichtoken(
        "explain", "model", "A superb story with a <b>dreadful</b> end.", "--html", "a.html", "--json", "a.json"
    )
    assert explained.returncode == 0, explained.stderr
    (record,) = json.loads((tmp_path / "a.json").read_text())
    total = record["bias"] + sum(reason["contribution"] for reason in record["reasons"])
    assert total == pytest.approx(record["decision"])
    assert explained.stdout.splitlines() == ["wrote 1 explanation to a.html", "wrote 1 explanation to a.json"]
    assert (
        {entry["label"] for entry in record["probabilities"]}
        == {record["label"], record["runner_up"]}
        == {"bad", "good"}
    )
    page = (tmp_path / "a.html").read_text()
    assert "&lt;" in page
    assert "<b>dreadful" not in page
    shown = whichtoken("explain", "model", "--file", "reviews.csv", "--text", "review")
    assert [f"document {number}: " in shown.stdout for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert "and 237 more; --html FILE shows them all" in shown.stdout
    assert "attention" not in shown.stdout
    assert (
        "attention" in whichtoken("explain", "model", "--file", "reviews.csv", "--text", "review", "--rows", "1").stdout
    )


def test_few_texts_are_said_to_be_few(whichtoken, tmp_path):
    """What the saved model has learned, what a page of it lacks, and which words of a text are unknown."""
    things = ["film", "plot", "cast", "end", "song", "joke"]
    rows = [(f"{word} {thing} {k}", word) for k in range(5) for word in ("good", "bad") for thing in things]
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(tmp_path / "few.csv", index=False)
    unnamed = whichtoken("fit", "text", "few.csv")
    assert "Missing option '--model'. Folder to save the model in." in unnamed.stderr
    fitted = whichtoken("fit", "text", "few.csv", "--model", "m")
    assert "learned from 45 rows, not from the 15 of the test; with --folds 5 it learns from all" in fitted.stdout
    assert "60 rows of `few.csv`" in (card := (tmp_path / "m" / "README.md").read_text())
    assert "The model learned from 45 of them.\n\n| class |" in card
    page = ("explain", "m", "--explainer", "page.html", "--min-df", "6")
    told = "give texts as --file FILE to see how many decisions this changes; a lower --min-df keeps more tokens"
    assert told in whichtoken(*page).stdout
    compared = whichtoken(*page, "--file", "few.csv").stdout
    assert "of 60 texts differently" in compared
    assert told not in compared
    explained = whichtoken("explain", "m", "A wonderful good film").stdout
    assert "the model does not know 2 of 4 words: a, wonderful" in explained.replace("\n", " ")
    assert "does not know" not in whichtoken("explain", "m", "good film").stdout


def test_a_page_reads_what_an_explanation_reads(whichtoken, tmp_path, reviews):
    """The column of the fit, one text in a file, and no name of a file in place of a text."""
    fit = (
        "fit",
        "text",
        "reviews.csv",
        "--text",
        "review",
        "--label",
        "sentiment",
        "--model",
        "model",
        "--no-baseline",
    )
    assert whichtoken(*fit).returncode == 0
    (tmp_path / "one.txt").write_text("A superb story by Ann Smith, and Smith's best.")
    (tmp_path / "names.txt").write_text("Smith\nstory\n")
    page = ("--explainer", "page.html")
    found = whichtoken("explain", "model", "--file", "reviews.csv", *page, "--redact", "names.txt")
    assert "of 240 texts differently" in found.stdout, found.stderr
    assert whichtoken("explain", "model", "--file", "one.txt", *page, "--redact", "names.txt").returncode == 0
    assert '"examples":["A superb ___ by Ann ___, and ___ best."]' in (tmp_path / "page.html").read_text()
    refused = whichtoken("explain", "model", "one.txt", *page)
    assert (refused.returncode, "one.txt is a file" in refused.stderr) == (2, True)


def test_rows_of_a_file_are_read_whenever_they_are_needed(tmp_path, reviews, monkeypatch):
    from whichtoken.app import fitting as text_fits

    monkeypatch.setattr(text_fits, "stream_table", partial(text_fits.stream_table, chunk=100))
    rows = np.array([0, 3, 99, 100, 239])
    texts = text_fits.TextRows(tmp_path / "reviews.csv", "review", rows)
    assert list(texts) == list(texts) == reviews["review"][rows].tolist()


def test_the_baseline_of_many_documents_chooses_on_some(whichtoken, tmp_path, reviews, monkeypatch):

    arguments = ["fit", "text", "reviews.csv", "--text", "review", "--label", "sentiment", "--json", "metrics.json"]
    accuracy = []
    for enough in (1000, 120):  # of 180
        monkeypatch.setattr(evaluation, "ENOUGH_TO_CHOOSE", enough)
        assert whichtoken(*arguments, "--model", f"model{enough}").returncode == 0
        accuracy.append(json.loads((tmp_path / "metrics.json").read_text())["baseline"]["accuracy"])
    assert accuracy[1] == pytest.approx(accuracy[0], abs=0.05)


def test_a_tampered_model_is_refused(whichtoken, tmp_path, reviews):
    whichtoken("fit", "text", "reviews.csv", "--text", "review", "--label", "sentiment", "--model", "model")
    tensors = next((tmp_path / "model").glob("*.safetensors"))
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(bytes(content))
    result = whichtoken("explain", "model", "superb")
    assert result.returncode == 2
    assert "does not match the checksum" in result.stderr
