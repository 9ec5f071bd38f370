"""Texts and other columns on the command line: reasons for both kinds, and sentences for what is missing."""

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def fitted(tmp_path, whichtoken):
    """A table in which age decides, and a model of it."""
    rng = np.random.default_rng(0)
    notes = [" ".join(rng.choice(["cough", "fever", "rash", "pain"], 3)) for _ in range(60)]
    age = rng.integers(20, 90, 60)
    table = pd.DataFrame({"id": range(60), "note": notes, "age": age, "ward": rng.choice(["A", "B"], 60)})
    table["back"] = np.where(age > 55, "yes", "no")
    table.to_csv(tmp_path / "stays.csv", index=False)
    fit = ["fit", "text", tmp_path / "stays.csv", "--text", "note", "--label", "back", "--columns", "age, ward"]
    assert whichtoken(*fit, "--model", tmp_path / "model", "--no-baseline").returncode == 0
    return tmp_path, table, fit


def test_columns_are_learned_answered_and_explained(fitted, whichtoken):
    folder, table, _ = fitted
    ran = whichtoken("predict", folder / "model", folder / "stays.csv", "--to", folder / "out.csv")
    assert ran.returncode == 0, ran.stderr
    assert (pd.read_csv(folder / "out.csv")["predicted"] == table["back"]).mean() > 0.9
    ran = whichtoken("explain", folder / "model", "--file", folder / "stays.csv", "--json", folder / "why.json")
    assert ran.returncode == 0, ran.stderr
    first = json.loads((folder / "why.json").read_text())[0]
    assert [part["column"] for part in first["columns"]] == ["age", "ward"]
    assert whichtoken("evaluate", folder / "model", folder / "stays.csv").returncode == 0
    (folder / "many").mkdir()
    for place in range(2):
        table[30 * place : 30 * place + 30].to_csv(folder / "many" / f"{place}.csv", index=False)
    ran = whichtoken("predict", folder / "model", folder / "many", "--to", folder / "answers")
    assert ran.returncode == 0, ran.stderr
    answers = pd.concat([pd.read_csv(folder / "answers" / f"{place}.csv") for place in range(2)], ignore_index=True)
    pd.testing.assert_frame_equal(answers, pd.read_csv(folder / "out.csv"))
    table.assign(age="old").to_csv(folder / "many" / "1.csv", index=False)
    ran = whichtoken("predict", folder / "model", folder / "many", "--to", folder / "other")
    assert "1.csv: column 'age' holds texts, such as 'old'" in ran.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (lambda f: ["predict", f / "model", f / "renamed.csv"], "renamed.csv has no column 'age'"),
        (lambda f: ["explain", f / "model", "a cough"], "also reads age, ward"),
        (lambda f: ["explain", f / "model", "--explainer", f / "page.html"], "is for words alone"),
        (lambda f: ["fit", "text", f / "stays.csv", "--text", "note", "--label", "back", "--encoder", "any", "--explainer",
                    f / "page.html", "--model", f / "new"], "--encoder 'any' does not run in a page"),
        (lambda f: ["fit", "text", f / "stays.csv", "--text", "note", "--label", "back", "--columns", "note", "--model",
                    f / "new"], "named as text and other"),
    ],
    ids=["renamed", "one text", "page", "encoder in a page", "in two roles"],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(fitted, whichtoken, command, said):
    folder, table, _ = fitted
    table.rename(columns={"age": "years"}).to_csv(folder / "renamed.csv", index=False)
    ran = whichtoken(*command(folder))
    assert ran.returncode == 2
    assert said in ran.stderr
    assert not (folder / "new").exists()
    assert not (folder / "page.html").exists()
