"""Tables of texts as messy as they come: what `fit` says of them, and what it remembers."""

import json

import numpy as np
import pandas as pd
import pytest

from whichtoken.app.evaluation import Scheme
from whichtoken.app.fitting import TextRoles, fit_text, joined_clusters
from whichtoken.app.readers import merge_spellings
from whichtoken.errors import UsageError
from whichtoken.tables import column_names, read_table

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 160)
# each text has words of its own, and labels are noise: an honest accuracy is about one half
TEXTS = [" ".join(f"w{k}" for k in RNG.integers(0, 400, 12)) for _ in LABELS]
ROLES, QUICK = TextRoles("text", "label"), Scheme(baseline=None)


def fitted(tmp_path, frame, roles=ROLES, scheme=QUICK, name="data.csv", **form):
    frame.to_csv(tmp_path / name, index=False, sep=form.pop("sep", ","))
    return fit_text(tmp_path / name, tmp_path / "model", roles, scheme, **form)


@pytest.mark.parametrize("scheme", [QUICK, Scheme(folds=4, baseline=None)], ids=["split", "folds"])
@pytest.mark.parametrize("change", ["{}", "{} again"], ids=["exact", "near"])
def test_copies_flatter_nobody(tmp_path, scheme, change):
    texts = TEXTS + [change.format(text) for text in TEXTS]
    report = fitted(tmp_path, pd.DataFrame({"text": texts, "label": np.tile(LABELS, 2)}), scheme=scheme)
    assert report.ours.accuracy < 0.7
    repeat = "repeat another one word for word" if change == "{}" else "nearly repeat another one"
    assert f"160 of 320 texts {repeat}; copies are never on both sides of a split" in report.notes
    assert report.test == (160 if scheme.folds else 40)


def test_copies_join_the_groups_of_a_column():
    joined = joined_clusters(np.array(["a", "b", "c", "c"]), np.array([0, 0, 1, 2]))
    assert joined[0] == joined[1] != joined[2] == joined[3]


def test_a_table_says_what_is_wrong_with_it(tmp_path):
    texts = [f"{text} id9 <b>" if label else text for text, label in zip(TEXTS, LABELS, strict=True)]
    spelled = ["GUT" if k == 0 else "gut" if label else " Schlecht " for k, label in enumerate(LABELS)]
    spelled[0] = "GUT" if LABELS[0] else "schlecht"
    texts[5] = "  "
    frame = pd.DataFrame({" text ": texts, "label": spelled})
    notes = fitted(tmp_path, frame, sep=";").notes
    assert any(
        note.startswith("'id9' nearly decides alone: 100% of the tested texts of class 'gut' hold it") for note in notes
    )
    assert "1 row without a text was left out" in notes
    assert any("differ only in case, spaces or .0 and are taken as one" in note for note in notes)
    assert any("hold HTML tags or character references, which do not count" in note for note in notes)


@pytest.mark.filterwarnings("always::UserWarning")
def test_the_model_remembers_its_columns_and_rows_without_text_get_no_label(tmp_path, whichtoken):
    frame = pd.DataFrame(
        {
            "note": [f"{word} {k}" for k in range(9) for word in ("good film", "bad film", "good story", "bad story")],
            "mood": ["Yes", "no"] * 18,
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False, sep="|")
    whichtoken(
        "fit",
        "text",
        tmp_path / "a.csv",
        "--text",
        "note",
        "--label",
        "mood",
        "--model",
        tmp_path / "m",
        "--no-baseline",
    )
    frame["mood"] = frame["mood"].str.upper()
    frame.loc[0, "note"] = ""
    frame.to_csv(tmp_path / "b.csv", index=False)
    said = whichtoken("predict", tmp_path / "m", tmp_path / "b.csv", "--to", tmp_path / "c.csv")
    assert "1 row has no text and gets no label" in said.stderr
    found = pd.read_csv(tmp_path / "c.csv")
    assert found["predicted"].isna().tolist() == [True, *[False] * 35]
    whichtoken("evaluate", tmp_path / "m", tmp_path / "b.csv", "--json", tmp_path / "e.json")
    scores = json.loads((tmp_path / "e.json").read_text())
    assert (scores["test"], scores["ours"]["accuracy"]) == (35, 1.0)
    assert "1 row without a text or label was left out" in scores["notes"]
    whichtoken("explain", tmp_path / "m", "--file", tmp_path / "b.csv", "--json", tmp_path / "w.json")
    reasons = json.loads((tmp_path / "w.json").read_text())
    assert [why and why["label"] for why in reasons] == [None, *["no", "Yes"] * 17, "no"]
    assert "document 1: no text, no label" in whichtoken("explain", tmp_path / "m", "--file", tmp_path / "b.csv").stdout


def test_a_threshold_is_used_by_fit_and_predict(tmp_path, whichtoken):
    texts = [
        f"{'alarm' if RNG.random() < (0.6 if k % 8 == 0 else 0.1) else 'calm'} {text}"
        for k, text in enumerate(TEXTS * 2)
    ]
    texts = [f"{text} {k}" for k, text in enumerate(texts)]
    frame = pd.DataFrame({"text": texts, "label": [int(k % 8 == 0) for k in range(len(texts))]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    whichtoken("fit", "text", tmp_path / "a.csv", "--model", tmp_path / "m", "--no-baseline", "--threshold", "0.15")
    whichtoken("predict", tmp_path / "m", tmp_path / "a.csv", "--to", tmp_path / "c.csv")
    found = pd.read_csv(tmp_path / "c.csv")
    assert np.array_equal(found["predicted"], (found["probability_1"] > 0.15).astype(int))
    assert 0 < found["predicted"].sum() < len(found)
    assert (found["probability_1"] < 0.5)[found["predicted"] == 1].any()


def test_a_wrong_threshold_is_named_by_its_flag(tmp_path, whichtoken):
    pd.DataFrame({"text": TEXTS, "label": LABELS}).to_csv(tmp_path / "a.csv", index=False)
    answer = whichtoken("fit", "text", tmp_path / "a.csv", "--model", tmp_path / "m", "--threshold", "2")
    assert (
        "--threshold 2.0 must be a probability between 0 and 1, 'f1', or two costs of errors, such as 1 and 5"
        in answer.stderr
    )


def test_too_few_distinct_texts_are_refused_with_the_reason(tmp_path):
    with pytest.raises(
        UsageError, match="2 rows of at least two classes are needed; add rows; copies of one text count once"
    ):
        fitted(tmp_path, pd.DataFrame({"text": ["good", "bad"] * 20, "label": [1, 0] * 20}))


def test_too_few_distinct_texts_are_learned_without_a_test_by_the_command(tmp_path, whichtoken):
    pd.DataFrame({"text": ["good", "bad"] * 20, "label": [1, 0] * 20}).to_csv(tmp_path / "a.csv", index=False)
    answer = whichtoken("fit", "text", tmp_path / "a.csv", "--model", tmp_path / "m", "--json", tmp_path / "a.json")
    assert "nothing says how good the model is" in " ".join(answer.stdout.split())
    assert "accuracy" not in answer.stdout
    assert json.loads((tmp_path / "a.json").read_text())["training"] == 40
    assert json.loads((tmp_path / "m" / "model-card.json").read_text())["evaluation"] is None
    whichtoken("predict", tmp_path / "m", tmp_path / "a.csv", "--to", tmp_path / "c.csv")
    found = pd.read_csv(tmp_path / "c.csv")
    assert (found["predicted"] == found["label"]).all()


def test_spellings_are_merged_into_the_most_frequent():
    merged, notes = merge_spellings(["Gut", "gut", "gut", "GUT", "schlecht", "sehr  gut", "sehr gut"])
    assert merged == ["gut", "gut", "gut", "gut", "schlecht", "sehr  gut", "sehr  gut"]
    assert len(notes) == 2
    assert merge_spellings(["1", "1.0", "1.0", "01"])[0] == ["1.0", "1.0", "1.0", "01"]


@pytest.mark.parametrize("separator", [";", "|", "\t", ","])
def test_the_separator_of_a_table_is_seen(tmp_path, separator):
    path = tmp_path / "a.csv"
    path.write_text(f"\n text {separator}label\nx, y{separator}1\n" if separator != "," else "text,label\nx,1\n")
    assert column_names(path) == ["text", "label"]
    assert read_table(path, ["label"])["label"].tolist() == ["1"]


def test_a_misspelled_column_is_said_with_the_columns_that_the_separator_gives(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Text;label\na, b;1\n")
    with pytest.raises(UsageError, match=r"did you mean 'Text'\? columns: Text, label"):
        read_table(path, ["text"])


def test_a_name_that_only_another_separator_gives_decides(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("the text, whole;label\na, b;1\n")
    assert read_table(path, ["label"])["label"].tolist() == ["1"]
