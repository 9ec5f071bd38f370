"""The command line as a user meets it."""

import json
import subprocess
import sys

import pandas as pd
import pytest


def test_reproduce_prints_verdicts_and_writes_json(whichtoken, tmp_path):
    done = whichtoken("reproduce", "toy/mean", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert "mean.shift" in done.stdout
    assert "agrees" in done.stdout
    assert done.stderr == "", "quiet when not a terminal"
    [experiment] = json.loads((tmp_path / "out.json").read_text())["experiments"]
    assert set(experiment) == {"id", "preset", "points", "failed", "seconds", "verdicts", "rows"}
    assert (experiment["points"], experiment["failed"], len(experiment["rows"])) == (2, 0, 10)
    row = {"point", "seed", "status", "message", "measured", "predicted", "seconds", "package_version"}
    assert set(experiment["rows"][0]) == row
    assert experiment["rows"][0]["predicted"]["mean"] == {"value": 1.0, "error": 1e-12}
    verdict = {
        "code",
        "claim",
        "theory",
        "theory_error",
        "measured",
        "low",
        "high",
        "relation",
        "rule",
        "state",
        "note",
    }
    assert set(experiment["verdicts"][0]) == verdict
    assert (tmp_path / "whichtoken-output" / "whichtoken-results.sqlite").exists()


def test_changed_verdict_exits_1(whichtoken, tmp_path, monkeypatch):
    folder = tmp_path / "experiments"
    folder.mkdir()
    text = (pytest.importorskip("pathlib").Path(__file__).parent / "toys" / "mean.py").read_text()
    (folder / "mean.py").write_text(text.replace("point.factor * point.shift", "1.2 * point.shift"))
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(folder))
    done = whichtoken("reproduce", "toy/mean")
    assert done.returncode == 1
    assert "changed: mean.shift was agrees, now disagrees" in done.stdout


def test_brackets_in_a_message_are_shown_as_they_are(whichtoken):
    done = whichtoken("reproduce", "toy/faults", "--set", "fault=raise", "--seeds", 1)
    assert "a planted fault in [/bold]" in done.stdout, done.stderr


def test_expected_states_do_not_apply_under_set(whichtoken):
    done = whichtoken("reproduce", "toy/mean", "--set", "factor=1.2")
    assert done.returncode == 0
    assert "disagrees" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "toy/maen"], "unknown experiment 'toy/maen'; did you mean 'toy/mean'?"),
        (["reproduce", "--preset", "ful"], "unknown preset 'ful'; did you mean 'full'?"),
        (
            ["reproduce", "toy/mean", "--engine", "dask://127.0.0.1:9"],
            "no Dask scheduler answers at dask://127.0.0.1:9",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(whichtoken, tmp_path, arguments, sentence):
    done = whichtoken(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("whichtoken: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "whichtoken-output").exists(), "nothing written"


def test_export_to_parquet_and_csv_agree(whichtoken, tmp_path):
    whichtoken("reproduce", "toy/mean")
    assert whichtoken("export", "--to", "rows.parquet").returncode == 0
    assert whichtoken("export", "toy/mean", "toy/mean", "--to", "rows.csv").returncode == 0
    parquet, csv = (
        pd.read_parquet(tmp_path / "rows.parquet"),
        pd.read_csv(tmp_path / "rows.csv", float_precision="round_trip"),
    )
    assert len(parquet) == 10
    assert list(parquet.columns) == list(csv.columns)
    assert (parquet["measured.mean"] == csv["measured.mean"]).all()
    assert (parquet["point.shift"] * parquet["point.factor"] == parquet["predicted.mean"]).all()


def test_list_shows_fields_presets_and_states(whichtoken):
    assert "not run" in whichtoken("list").stdout
    whichtoken("reproduce", "toy/mean")
    assert "quick: 1 agrees" in whichtoken("list").stdout
    shown = whichtoken("list", "toy/mean").stdout
    for text in ("draws", "float", "full: 1 points, 2500 rows", "mean.shift: agrees", "law of large numbers"):
        assert text in shown


def test_version_names_the_parts(whichtoken):
    done = whichtoken("--version")
    assert done.stdout.startswith("whichtoken 0.")
    assert "torch 2." in done.stdout


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["list", "mirror-descent/direction"]])
def test_light_commands_do_not_import_torch(arguments):
    code = (
        "import sys; from whichtoken.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'numba' in sys.modules and 'numba is heavy' or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
