"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.main import get_command

from whichtoken import TextClassifier
from whichtoken.app.cli import main as cli
from whichtoken.app.pages.terminal import print_claims
from whichtoken.files import LEDGER_NAME
from whichtoken.lab import Row, reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.export import export_rows
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import make_plan


@pytest.mark.process
def test_stress_prints_borders_and_writes_page_figure_and_json(whichtoken_process, tmp_path):
    """With workers that are kept for the whole search."""
    done = whichtoken_process(
        "stress",
        "toy/border",
        "--field",
        "tilt",
        "--map",
        "tilt,rate",
        "--budget",
        "1500rows",
        "--json",
        "x.json",
        "-q",
    )
    assert done.returncode == 0, done.stderr
    assert "fails as soon as tilt > 0.799" in done.stdout
    assert done.stderr == ""
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["claim"] == "toy/border"
    assert {"field", "value", "low", "high", "code"} <= found["borders"][0].keys()
    assert found["counterexamples"] == []
    pages = tmp_path / "whichtoken-output" / "stress"
    assert {path.name for path in pages.iterdir()} == {"toy-border.html", "toy-border.svg"}
    assert "whichtoken stress toy/border --field tilt" in (pages / "toy-border.html").read_text()


@pytest.mark.process
@pytest.mark.smoke
def test_reproduce_prints_verdicts_and_writes_json(whichtoken_process, tmp_path):
    done = whichtoken_process("reproduce", "toy/mean", "--json", "out.json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "toy/mean (quick)" in done.stdout
    assert "1 agrees" in done.stdout
    assert "mean.shift" not in done.stdout, "as recorded: nothing more to say"
    assert "The verdict is as the claim's own file expects." in done.stdout
    assert done.stderr == ""
    [experiment] = json.loads((tmp_path / "out.json").read_text())["experiments"]
    assert set(experiment) == {"id", "preset", "points", "failed", "seconds", "fault", "verdicts", "rows"}
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
        "resolution",
        "tolerance",
        "level",
        "look",
        "kind",
        "regime",
        "evidence",
    }
    assert set(experiment["verdicts"][0]) == verdict
    assert (tmp_path / "whichtoken-output" / "whichtoken-results.sqlite").exists()


def test_changed_verdict_exits_1(whichtoken, no_workers, tmp_path, monkeypatch):
    folder = tmp_path / "experiments"
    folder.mkdir()
    text = (Path(__file__).parents[1] / "toys" / "mean.py").read_text()
    (folder / "mean.py").write_text(text.replace("point.factor * point.shift", "1.2 * point.shift"))
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(folder))
    done = whichtoken("reproduce", "toy/mean")
    assert done.returncode == 1
    assert "changed: mean.shift was agrees, now disagrees" in done.stdout


def test_brackets_in_a_message_are_shown_as_they_are(whichtoken, no_workers):
    done = whichtoken("reproduce", "toy/faults", "--set", "fault=raise", "--seeds", 1)
    assert "a planted fault in [/bold]" in done.stdout, done.stderr


def test_a_claim_of_which_all_rows_failed_exits_1(whichtoken, no_workers):
    done = whichtoken("reproduce", "toy/faults", "--set", "fault=raise", "--seeds", 2)
    assert done.returncode == 1
    assert "failed: toy/faults: 2 of 2 rows failed; the first reason: RuntimeError: a planted fault" in done.stdout
    some = whichtoken("reproduce", "toy/faults", "--set", "fault=raise,none", "--seeds", 2)
    assert some.returncode == 0, "an expected state does not apply, and there are rows to judge"


def test_expected_states_do_not_apply_under_set(whichtoken, no_workers):
    done = whichtoken("reproduce", "toy/mean", "--set", "factor=1.2")
    assert done.returncode == 0
    assert "disagrees" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "toy/maen"], "unknown claim 'toy/maen'; did you mean 'toy/mean'"),
        (["reproduce", "--preset", "ful"], "unknown preset 'ful'; did you mean 'full'?"),
        (
            ["reproduce", "toy/mean", "--engine", "dask://127.0.0.1:9"],
            "no Dask scheduler answers at dask://127.0.0.1:9",
        ),
        (["export", "--to", "x" * 300 + ".csv"], "file name too long"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(whichtoken, tmp_path, arguments, sentence):
    done = whichtoken(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("whichtoken: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "whichtoken-output").exists(), "nothing written"


def test_export_to_parquet_and_csv_agree(whichtoken, no_workers, tmp_path):
    whichtoken("reproduce", "toy/mean")
    assert whichtoken("export", "--to", "rows.parquet").returncode == 0
    assert whichtoken("export", "toy/mean", "toy/mean", "--to", "rows.csv").returncode == 0
    parquet, csv = pd.read_parquet(tmp_path / "rows.parquet"), pd.read_csv(tmp_path / "rows.csv", dtype=str)
    assert len(parquet) == 10
    assert list(parquet.columns) == list(csv.columns)
    assert parquet["measured.mean"].tolist() == [float(cell) for cell in csv["measured.mean"]]
    assert (parquet["point.shift"] * parquet["point.factor"] == parquet["predicted.mean"]).all()


def test_list_shows_fields_presets_and_states(whichtoken, no_workers, tmp_path):
    assert "so far" not in whichtoken("list").stdout
    whichtoken("reproduce", "toy/mean")
    assert "quick: 1 agrees" in whichtoken("list").stdout
    shown = whichtoken("list", "toy/mean").stdout
    for text in ("draws", "float", "full: 1 point, 2500 rows", "mean.shift: agrees", "law of large numbers"):
        assert text in shown
    whichtoken("list", "toy/mean", "--json", str(tmp_path / "claims.json"))
    [claim] = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert (claim["id"], claim["presets"]) == ("toy/mean", ["quick", "full"])


@pytest.mark.parametrize("arguments", [["list"], ["--version"], ["--help"], ["predict", "--help"]])
def test_a_reader_who_has_seen_enough_is_no_fault(arguments):
    """As in `whichtoken list | head -1`: typer, rich and Python itself would each have its own say."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-W", "error", "-m", "whichtoken", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_names_the_parts(whichtoken):
    done = whichtoken("--version")
    assert done.stdout.startswith("whichtoken 0.")
    assert "torch 2." in done.stdout


LIGHT = [["list"], ["--help"], ["list", "mirror-descent/direction"], ["list", "toy/heavy"]]


@pytest.fixture
def heavy(tmp_path, monkeypatch, no_workers):
    """Stored results of a claim whose judge loads heavy libraries."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    text = (Path(__file__).parents[1] / "toys" / "mean.py").read_text().replace("toy/mean", "toy/heavy")
    (folder / "heavy.py").write_text(text.replace("theory = rows", "import scipy.stats, pandas\n        theory = rows"))
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(folder))
    reproduce(["toy/heavy"], out=tmp_path / "whichtoken-output")


def test_light_commands_import_no_heavy_library_and_judge_nothing(heavy):
    code = (
        "import sys; from whichtoken.app.cli.main import app\n"
        f"for arguments in {LIGHT!r}:\n"
        "    try: app(arguments)\n    except SystemExit as end: assert not end.code, end.code\n"
        "print('heavy:', *sorted({'torch', 'numba', 'scipy', 'pandas', 'matplotlib', 'jinja2'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["heavy:"], done.stderr or done.stdout[-500:]
    assert "quick: 1 agrees" in done.stdout
    assert "run of quick, " in done.stdout
    assert "  mean.shift: agrees" in done.stdout


def test_list_tells_a_run_that_was_not_judged_to_its_end(heavy, tmp_path, capsys, monkeypatch):
    with Ledger.writing(tmp_path / "whichtoken-output" / LEDGER_NAME) as ledger:
        [run] = ledger.runs()
        ledger.put_run(replace(run, started="2999-01-01T00:00:00"))
    print_claims(tmp_path / "whichtoken-output")
    assert "quick: not finished; run it again" in capsys.readouterr().out
    with Ledger.writing(tmp_path / "whichtoken-output" / LEDGER_NAME) as ledger:
        ledger.put_run(run)
    monkeypatch.setattr(type(find("toy/heavy")), "version", 2)
    print_claims(tmp_path / "whichtoken-output")
    assert "quick: judged for version 1, now 2; run it again" in capsys.readouterr().out


def test_formulas_in_an_export_are_marked_on_request(heavy, tmp_path):
    out = tmp_path / "whichtoken-output"
    with Ledger.writing(out / LEDGER_NAME) as ledger:
        task = next(iter(ledger.rows(make_plan(find("toy/heavy")))))
        row = Row(None, task.seed, "failed", "=cmd|' /C calc'!A0", {"mean": -1.5}, 0.0, "1")
        ledger.put(1, task, row)
    export_rows(out, [], tmp_path / "plain.csv")
    export_rows(out, [], tmp_path / "safe.csv", spreadsheet_safe=True)
    plain, safe = (pd.read_csv(tmp_path / name).iloc[0] for name in ("plain.csv", "safe.csv"))
    assert (plain["message"], safe["message"]) == (row.message, f"'{row.message}")
    assert plain["measured.mean"] == safe["measured.mean"] == -1.5


def test_hidden_signs_in_an_error_are_shown(whichtoken):
    done = whichtoken("list", "toy/\x1b[31mmean")
    assert done.returncode == 2
    assert "unknown claim 'toy/\\x1b[31mmean'" in done.stderr


def test_list_of_commands_says_what_each_says_of_itself():
    """The list of all commands is written out, so that it loads none of them."""
    for name, command in get_command(cli.app).commands.items():
        first = " ".join(command.help.split("\n\n")[0].split())
        assert cli.COMMANDS[name] == first


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [([], []), (["--help"], []), (["list", "-h"], ["list"]), (["lsit"], list(cli.COMMANDS)), (["--", "list"], None)],
)
def test_only_the_command_that_is_named_is_loaded(arguments, loaded):
    assert list(cli._commands_to_load(arguments)) == (list(cli.COMMANDS) if loaded is None else loaded)


NOT_FOR_A_SENTENCE = {"sklearn", "numba", "pandas", "pyarrow", "torch", "matplotlib", "scipy.stats", "scipy.optimize"}


def test_a_sentence_is_explained_without_heavy_libraries(tmp_path):
    texts = [f"{text} {k}" for k in range(5) for text in ("a good film", "a bad film", "good fun", "bad acting")]
    TextClassifier(null=0.0, random_state=0).fit(texts, ["+", "-", "+", "-"] * 5).save(tmp_path / "model")
    code = (
        "import sys; from whichtoken.app.cli.main import main\n"
        "sys.argv = ['whichtoken', 'explain', 'model', 'good acting']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print('heavy:', *sorted({NOT_FOR_A_SENTENCE!r} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["heavy:"], done.stderr or done.stdout[-500:]
    assert "deleting 'good' changes the label" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "mirror-descent"], ["list", "toy/mean"], ["reproduce", "toy/mean", "--verbose"]]
)
def test_tables_in_a_pipe_are_100_columns_wide_at_most(arguments, whichtoken, monkeypatch, no_workers):
    monkeypatch.delenv("COLUMNS")
    lines = whichtoken(*arguments).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    monkeypatch.setenv("COLUMNS", "60")
    narrow = [line for line in whichtoken(*arguments).stdout.splitlines() if "─" in line]
    assert max(map(len, narrow)) <= 60
