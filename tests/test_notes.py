"""What a user of the command line is told beside the results: each thing once, and no lines of source."""

import inspect
import shutil
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from typer.main import get_command

from whichtoken import TextClassifier
from whichtoken.app.cli import main as cli
from whichtoken.app.fitting import fit_text
from whichtoken.datasets.review_sentences import synthetic_reviews
from whichtoken.display.terminal import note_of, warnings_as_notes

UNKNOWN = "1 of 10 documents has no known word; the prediction does not come from words"


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A table in which the words of one test document are unknown."""
    monkeypatch.chdir(tmp_path)
    texts, labels = synthetic_reviews(40, np.random.default_rng(0))
    table = pd.DataFrame({"text": texts, "label": np.where(labels > 0, "good", "bad")})
    from sklearn.model_selection import train_test_split

    _, test = train_test_split(np.arange(40), test_size=0.25, random_state=0, stratify=table["label"])
    table.loc[test[0], "text"] = "zzz"
    table.to_csv("reviews.csv", index=False)
    return table


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["whichtoken", *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as end:
            cli.main()
    printed = capsys.readouterr()
    return end.value.code or 0, printed.out, printed.err


def test_a_warning_is_one_note(reviews, monkeypatch, capsys):
    status, shown, noted = run(monkeypatch, capsys, "fit", "text", "reviews.csv", "--model", "m")
    assert status == 0, noted
    assert noted == f"note: {UNKNOWN}\n"
    assert "of half of the test documents" in shown
    status, _, noted = run(monkeypatch, capsys, "predict", "m", "reviews.csv", "--to", "out.csv")
    assert (status, noted.count("\n")) == (0, 1)
    assert noted.startswith("note: 1 of 40 documents has no known word")


def test_python_hears_a_fit_warn_once(reviews, tmp_path):
    with pytest.warns(UserWarning, match="no known word") as heard:
        fit_text(tmp_path / "reviews.csv", tmp_path / "m")
    assert [str(warning.message) for warning in heard] == [UNKNOWN]


def test_several_documents_have_no_known_word():
    model = TextClassifier(C=1.0, max_epochs=1, min_df=1).fit(["good film", "bad film"] * 4, [1, 0] * 4)
    with pytest.warns(
        UserWarning, match="^2 of 3 documents have no known word; the prediction does not come from words$"
    ):
        model.predict(["zzz", "good", "yyy"])


def test_notes_are_plain_and_said_once(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with warnings_as_notes():
            for _ in range(3):
                warnings.warn("lbfgs failed to converge (status=1)", ConvergenceWarning, stacklevel=1)
                warnings.warn("old\nname \x1b[31m", UserWarning, stacklevel=1)
                warnings.warn("a parameter will go away", FutureWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "note: a fit stopped before it had converged; its numbers may be a little worse than they could be",
        "note: old name \\x1b[31m",
    ]
    assert note_of("overflow encountered in exp", RuntimeWarning).startswith("some numbers were too large")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_predictions_are_written_as_the_suffix_says(suffix, reviews, monkeypatch, capsys, tmp_path):
    TextClassifier(C=1.0, max_epochs=1, min_df=1).fit(reviews["text"].tolist(), reviews["label"]).save("m")
    status, shown, _ = run(monkeypatch, capsys, "predict", "m", "reviews.csv", "--to", f"out{suffix}")
    assert (status, shown) == (0, "")
    readers = {
        ".csv": pd.read_csv,
        ".tsv": lambda path: pd.read_csv(path, sep="\t"),
        ".parquet": pd.read_parquet,
        ".jsonl": lambda path: pd.read_json(path, lines=True),
    }
    table = readers[suffix](tmp_path / f"out{suffix}")
    assert list(table.columns) == ["text", "label", "predicted", "probability_bad", "probability_good"]
    assert table["text"].tolist() == reviews["text"].tolist()


def test_endings_may_be_written_in_capitals(reviews, monkeypatch, capsys, tmp_path):
    TextClassifier(C=1.0, max_epochs=1, min_df=1).fit(reviews["text"].tolist(), reviews["label"]).save("m")
    shutil.copy("reviews.csv", "REVIEWS.CSV")
    (tmp_path / "ONE.TXT").write_text(reviews["text"][1])
    for arguments in (
        ["predict", "m", "REVIEWS.CSV", "--separator", ","],
        ["fit", "text", "REVIEWS.CSV", "--separator", ",", "--no-baseline", "--model", "new"],
        ["explain", "m", "--file", "ONE.TXT"],
    ):
        status, _, said = run(monkeypatch, capsys, *arguments)
        assert status == 0, said
    status, _, said = run(monkeypatch, capsys, "explain", "m", "--file", "ONE.TXT", "--text", "text")
    assert (status, "is read as one text" in said) == (2, True)


def test_control_characters_of_a_text_are_shown_as_escapes(reviews, monkeypatch, capsys):
    TextClassifier(C=1.0, max_epochs=1, min_df=1).fit(reviews["text"].tolist(), reviews["label"]).save("m")
    word = reviews["text"][1].split()[0]
    status, shown, _ = run(monkeypatch, capsys, "explain", "m", f"{word} \x1b[31m\u202e")
    assert status == 0
    assert f"{word} \\x1b[31m\\u202e" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("arguments", [(), ("fit",), ("--help",), ("fit", "-h"), ("-h",)])
def test_help_for_who_asks_and_for_who_names_no_command(arguments, monkeypatch, capsys):
    status, shown, said = run(monkeypatch, capsys, *arguments)
    assert (status, said) == (0, "")
    assert "Usage: whichtoken" in shown
    assert ("groups" if "fit" in arguments else "reproduce") in shown


COMMANDS = get_command(cli.app).commands


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command, monkeypatch, capsys):
    status, shown, said = run(monkeypatch, capsys, command, "--help")
    assert (status, said) == (0, "")
    assert f"Usage: whichtoken {command}" in shown


@pytest.mark.parametrize("command", [*COMMANDS.values(), *COMMANDS["fit"].commands.values()], ids=lambda one: one.name)
def test_help_is_wrapped_by_the_terminal_alone(command):
    """Typer keeps the line breaks of a paragraph, which leave half a line on a narrow terminal."""
    _, *paragraphs = inspect.cleandoc(command.help).split("\n\n")
    assert [text for text in paragraphs if "\n" in text and not text.lstrip().startswith("\b\nExample")] == []


@pytest.mark.parametrize(("command", "usage"), [("list", "[OPTIONS] [ID|THEORY]"), ("reproduce", "[OPTIONS] [ID]...")])
def test_usage_says_once_that_an_argument_may_be_left_out(command, usage, monkeypatch, capsys):
    _, shown, _ = run(monkeypatch, capsys, command, "--help")
    assert shown.split(f"Usage: whichtoken {command} ")[1].splitlines()[0].strip() == usage
