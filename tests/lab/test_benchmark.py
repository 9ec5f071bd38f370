"""Benchmarks are found by folder, and say what they lack."""

import importlib
import json
import re
import sys
from types import ModuleType

import pytest

from whichtoken.app.cli.bench import bench
from whichtoken.errors import UsageError
from whichtoken.lab.benchmark import PACKAGE, Beside, benchmark_files, run_benchmark

PEERS = {"captum", "cvxpy", "interpret", "lime", "skglm", "torchmil", "transformers"}


@pytest.mark.parametrize("name", sorted(benchmark_files()))
def test_every_benchmark_can_be_loaded(name, monkeypatch):
    path = benchmark_files()[name]
    package = ModuleType(PACKAGE)
    package.__path__ = [str(path.parent)]
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    try:
        module = importlib.import_module(f"{PACKAGE}.{path.stem}")
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in PEERS
    else:
        assert module.__doc__
        assert callable(module.measure)


def test_a_benchmark_that_runs_its_own_file_leaves_python_its_modules():
    """`inspect` is also the name of a module of Python, which a script beside it would find first."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in benchmark_files().items()}
    own = [name for name, text in texts.items() if "__file__" in text and "sys.executable" in text]
    assert own
    assert [name for name in own if '"-P"' not in texts[name]] == []


def test_a_benchmark_that_runs_as_a_script_imports_nothing_from_its_folder_at_the_top():
    """A script has no package, so the import would end the process that the benchmark starts."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in benchmark_files().items()}
    scripts = [name for name, text in texts.items() if "__file__," in text or 'if __name__ == "__main__"' in text]
    assert scripts
    assert [name for name in scripts if re.search(r"^from \.", texts[name], re.MULTILINE)] == []


def test_an_unknown_benchmark_is_named():
    with pytest.raises(UsageError, match="unknown benchmark 'mirror-stp'; did you mean 'mirror-step'"):
        next(run_benchmark("mirror-stp"))


@pytest.mark.parametrize(
    ("beside", "result"),
    [
        (Beside("peer", 1.0, 2.0, "s"), "win"),
        (Beside("peer", 2.0, 1.0, "s"), "loss"),
        (Beside("peer", 1.0, 1.09, "s"), "even"),
        (Beside("peer", 0.9, 0.5, "accuracy", True), "win"),
        (Beside("peer", 0.9, 0.5, "error"), "loss"),
        (Beside("peer", 0.9, 0.5, "accuracy", True, (-0.1, 0.9)), "even"),
        (Beside("peer", 0.9, 0.91, "accuracy", True, (-0.02, -0.001)), "loss"),
        (Beside("peer", 0.9, 0.91, "error", False, (-0.02, -0.001)), "win"),
    ],
)
def test_who_is_better(beside, result):
    assert beside.result == result


TOY = """
import torch
from whichtoken.lab.benchmark import Beside, Measure

def measure():
    yield Measure("n=1", "threads", torch.get_num_threads(), 1.0, beside=Beside("peer", 1.0, 3.0, "s"))
"""


@pytest.fixture
def toy_benchmarks(tmp_path, monkeypatch):
    """Three benchmarks: one runs, one lacks its data, one comes after it."""
    needs = "from whichtoken.errors import UsageError\ndef measure():\n    raise UsageError('data.csv not found')\n    yield"
    for name, text in (("first", TOY), ("needs_data", needs), ("third", TOY)):
        (tmp_path / f"toy_{name}.py").write_text(text)
    files = {path.stem.replace("_", "-"): path for path in sorted(tmp_path.glob("*.py"))}
    monkeypatch.setattr("whichtoken.lab.benchmark.benchmark_files", lambda: files)
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.toy_")]:
        monkeypatch.delitem(sys.modules, name)  # those of another test
    return files


def test_all_benchmarks_make_one_table_each_and_absent_data_stop_no_other(toy_benchmarks, tmp_path, capsys):
    bench(all_of_them=True, json_file=tmp_path / "all.json")
    written = json.loads((tmp_path / "all.json").read_text())
    assert {"date", "machine", "load", "threads", "versions"} <= set(written)
    assert [(table["name"], table["finished"], table["not_run"]) for table in written["benchmarks"]] == [
        ("toy-first", True, ""),
        ("toy-needs-data", False, "data.csv not found"),
        ("toy-third", True, ""),
    ]
    (measure,) = written["benchmarks"][0]["measures"]
    assert measure["value"] == 1  # thread, for us and for them
    assert measure["beside"]["result"] == "win"
    assert "toy-needs-data is not run: data.csv not found" in capsys.readouterr().out


def test_without_a_name_benchmarks_are_listed_and_none_runs(toy_benchmarks, tmp_path, capsys):
    bench(json_file=tmp_path / "all.json")
    shown = capsys.readouterr().out
    assert [name for name in toy_benchmarks if name in shown] == [*toy_benchmarks]
    assert not (tmp_path / "all.json").exists()


def test_one_that_is_asked_for_by_name_says_what_it_lacks(toy_benchmarks):
    with pytest.raises(UsageError, match=r"data\.csv not found"):
        bench(["toy-needs-data"])


def test_a_run_that_is_stopped_keeps_what_it_has(toy_benchmarks, tmp_path):
    toy_benchmarks["toy-first"].write_text(TOY + "    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        bench(["toy-first"], json_file=tmp_path / "one.json")
    (table,) = json.loads((tmp_path / "one.json").read_text())["benchmarks"]
    assert not table["finished"]
    assert len(table["measures"]) == 1


def test_a_case_that_ran_before_a_stop_keeps_its_day(toy_benchmarks, tmp_path):
    toy_benchmarks["toy-first"].write_text(CASES + "    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        bench(["toy-first"], json_file=tmp_path / "one.json", case=["small"])
    (table,) = json.loads((tmp_path / "one.json").read_text())["benchmarks"]
    assert set(table["cases"]) == {"small"}


CASES = """
from whichtoken.lab.benchmark import Measure

def measure(wanted):
    for number, case in enumerate(("small", "large")):
        if wanted(case):
            yield Measure(case, "number", number, 0.0)
"""


def test_cases_run_alone_and_the_file_keeps_the_others(toy_benchmarks, tmp_path):
    toy_benchmarks["toy-first"].write_text(CASES)
    file = tmp_path / "one.json"

    def table():
        (found,) = json.loads(file.read_text())["benchmarks"]
        return [measure["case"] for measure in found["measures"]], found["finished"]

    bench(["toy-first"], json_file=file, case=["small"])
    assert table() == (["small"], False)
    bench(["toy-first"], json_file=file, case=["large"])
    assert table() == (["small", "large"], True)
    bench(["toy-first"], json_file=file, case=["small"])
    assert table() == (["large", "small"], True)
    assert set(json.loads(file.read_text())["benchmarks"][0]["cases"]) == {"small", "large"}
    with pytest.raises(UsageError, match="no case of toy-first has huge in its name: small; large"):
        bench(["toy-first"], json_file=file, case=["huge"])
    with pytest.raises(UsageError, match="toy-third has no cases that can be run alone; leave --case out"):
        bench(["toy-third"], json_file=file, case=["small"])
    assert table() == (["large", "small"], True)
