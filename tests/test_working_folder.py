"""Files in the working folder are data: whatever their names, no process of any command runs them or takes settings from them."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = "import sys\nfrom whichtoken.__main__ import start\nif __name__ == '__main__':\n    sys.exit(start())\n"
TRAP = "import os\nos.makedirs({trace!r} + __name__, exist_ok=True)\n"
# what Python itself imports to run `python -m`, before any code of the module that it runs
EARLY = "import runpy, sys; print(*sys.modules)"
MINUTES = 300


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A folder with a module for every name that anything could import; each leaves a trace when it runs."""
    folder = tmp_path_factory.mktemp("data")
    names = sys.stdlib_module_names | {name for name in packages_distributions() if name.isidentifier()}
    for name in names - {"whichtoken"}:
        (folder / f"{name}.py").write_text(TRAP.format(trace=str(folder / "trace-of-")))
    (folder / "sitecustomize.py").write_text(TRAP.format(trace=str(folder / "trace-of-")))
    # latex and machine code from here, at the wish of a file of settings
    (folder / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\n")
    (folder / ".numba_config.yaml").write_text(f"cache_dir: {folder / 'machine-code'}\ndisable_jit: 1\n")
    (folder / "numba-1.dist-info").mkdir()
    (folder / "numba-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 1\n")
    (folder / "numba-1.dist-info" / "entry_points.txt").write_text("[numba_extensions]\ninit = secrets:x\n")
    return folder


@pytest.fixture
def command(planted, tmp_path, monkeypatch):
    """Run a command in the planted folder as the installed program does, whose script lies elsewhere."""
    monkeypatch.chdir(planted)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "whichtoken").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "bin" / "whichtoken")]


def traces(folder):
    return sorted(path.name for path in folder.glob("trace-of-*"))


def test_a_planted_module_leaves_a_trace_where_the_folder_is_trusted(planted, tmp_path):
    """The trap works."""
    copy = tmp_path / "trusting"
    copy.mkdir()
    (copy / "secrets.py").write_text(TRAP.format(trace=str(copy / "trace-of-")))
    subprocess.run([sys.executable, "-m", "secrets"], cwd=copy, check=True)
    assert traces(copy) == ["trace-of-__main__"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["list"],
        ["reproduce", "toy/mean", "toy/faults", "--workers", "2"],
        pytest.param(["reproduce", "toy/mean", "--workers", "2", "--engine", "dask"], marks=pytest.mark.process),
        pytest.param(
            ["reproduce", "mirror-descent/direction", "--seeds", "1", "--set", "p=2", "--workers", "1"],
            marks=pytest.mark.process,
        ),
    ],
    ids=" ".join,
)
def test_no_command_runs_a_file_of_the_working_folder(command, planted, tmp_path, arguments):
    if arguments[0] == "reproduce":
        arguments = [*arguments, "--out", str(tmp_path / "out"), "--quiet"]  # a slow machine says how far it is
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=MINUTES, check=False)
    assert traces(planted) == []
    assert not (planted / "machine-code").exists()
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""


@pytest.mark.process
def test_python_m_forgets_the_working_folder_before_it_imports_anything(planted, monkeypatch, tmp_path):
    """All but the few modules that Python itself imports to find the package."""
    early = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=True).stdout.split()
    folder = tmp_path / "planted"
    folder.mkdir()
    for path in planted.glob("*.py"):
        if path.stem not in early:
            (folder / path.name).write_text(TRAP.format(trace=str(folder / "trace-of-")))
    monkeypatch.chdir(folder)
    out = str(tmp_path / "out")
    for arguments in (
        ["-m", "whichtoken", "reproduce", "toy/mean", "--workers", "1", "--out", out, "--quiet"],
        ["-mwhichtoken"],
    ):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        assert (traces(folder), done.returncode, done.stderr) == ([], 0, "")


@pytest.mark.process
def test_jobs_and_scenes_of_the_workbench_run_no_file_of_the_working_folder(planted, monkeypatch, tmp_path):
    starlette = pytest.importorskip("starlette.testclient")
    from whichtoken.app.workbench.jobs import JobRequest, Jobs
    from whichtoken.app.workbench.serving import create_app
    from whichtoken.app.workbench.settings import ServerSettings

    monkeypatch.chdir(planted)
    home = "http://127.0.0.1:8765"
    with starlette.TestClient(create_app(ServerSettings(tmp_path / "out")), home, headers={"origin": home}) as client:
        assert '"said"' in client.get("/dynamics/factors/play?steps=5&dim=3").text
    jobs = Jobs(tmp_path / "jobs")
    try:
        chosen = {"id": "toy/mean", "preset": "quick", "out": str(tmp_path / "run"), "seeds": None, "set": {}}
        id = jobs.start(JobRequest("claim", "toy/mean", chosen))
        end = time.monotonic() + MINUTES
        while jobs.view(id).is_open and time.monotonic() < end:
            time.sleep(0.1)
        assert jobs.view(id).state == "finished", jobs.view(id).message
    finally:
        jobs.close()
    assert traces(planted) == []


def test_server_runs_no_file_of_the_working_folder(command, planted, tmp_path):
    pytest.importorskip("uvicorn")
    from urllib.request import urlopen

    started = [*command, "serve", "--out", str(tmp_path / "out"), "--port", "0"]
    server = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = line[line.index("http://") :].split()[0]
        with urlopen(address) as answer:
            assert answer.status == 200
        with urlopen(address.rstrip("/") + "/dynamics/factors/play?steps=5&dim=3") as answer:
            assert b"event: end" in answer.read()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        server.stdout.close()
    assert traces(planted) == []


@pytest.mark.process
def test_processes_that_an_estimator_starts_take_no_module_from_the_working_folder(tmp_path):
    folder, program = tmp_path / "data", tmp_path / "program.py"
    folder.mkdir()
    for name in ("tempfile", "secrets", "random", "threading", "contextlib", "pickle", "numpy"):
        (folder / f"{name}.py").write_text(TRAP.format(trace=str(folder / "trace-of-")))
    program.write_text(
        "import numpy as np\nfrom whichtoken import AttentionRegressor\n"
        "if __name__ == '__main__':\n"
        "    tokens = np.random.default_rng(0).normal(size=(40, 3))\n"
        "    AttentionRegressor(cv=2, n_jobs=2, max_iter=3).fit(tokens, tokens[:, 0])\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", str(program)], cwd=folder, check=True, timeout=MINUTES)
    assert traces(folder) == []


@pytest.mark.parametrize(("flags", "expected"), [(["-P"], "False 0"), ([], "True 1")])
def test_settings_in_the_working_folder_count_only_in_programs_that_trust_it(planted, tmp_path, flags, expected):
    program = "import whichtoken, matplotlib, numba\nnumba.config.reload_config()\n"
    program += "print(matplotlib.rcParams['text.usetex'], numba.config.DISABLE_JIT)"
    (tmp_path / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, *flags, str(tmp_path / "program.py")],
        cwd=planted, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == expected


def test_environment_of_a_users_program_is_as_it_was_after_a_run(monkeypatch, tmp_path):
    from whichtoken.lab import reproduce

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    reproduce(["toy/mean"], workers=1, out=tmp_path / "out")
    assert "PYTHONSAFEPATH" not in os.environ


STARTERS = {
    "Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen", "fork", "forkpty",
    "create_subprocess_exec", "create_subprocess_shell", "Process", "Pool", "ProcessPoolExecutor", "get_reusable_executor",
    "LocalCluster", "SubprocessCluster", "Parallel", "posix_spawn", "posix_spawnp",
}  # fmt: skip
MODULES = {
    "subprocess",
    "os",
    "asyncio",
    "multiprocessing",
    "pty",
    "concurrent",
    "loky",
    "distributed",
    "joblib",
    "sklearn",
}


def started_in(path):
    """Calls in a file that start a process, by whatever name of these modules; `self.run()` is none of them."""
    tree = ast.parse(path.read_text())
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in MODULES
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        last = called.rpartition(".")[2]
        is_starter = last in STARTERS or last.startswith(("exec", "spawn"))
        if is_starter and (called in names or called.partition(".")[0] in {*MODULES, "_dask()"}):
            yield called, node


def test_every_process_is_started_without_the_working_folder():
    """Python is named in one place, and whatever starts a process passes a safe environment or uses `safe_children`."""
    source = ROOT / "src" / "whichtoken"
    wrong, found = [], set()
    for path in source.rglob("*.py"):
        text, name = path.read_text(), path.relative_to(source).as_posix()
        if "sys.executable" in text and name != "processes.py":
            wrong.append(f"{name}: sys.executable; use processes.python_command")
        for called, node in started_in(path):
            found.add(name)
            threads = any(ast.unparse(word) == "prefer='threads'" for word in node.keywords)
            safe = any(word.arg == "env" and "python_environment(" in ast.unparse(word.value) for word in node.keywords)
            if not threads and not safe and not re.search(r"with (.+, )?safe_children\(\)", text):
                wrong.append(f"{name}:{node.lineno}: {called}; use processes.python_environment or safe_children")
    for path in (ROOT / "benchmarks").glob("*.py"):
        text = path.read_text()
        if text.count("[sys.executable,") != text.count('[sys.executable, "-P",'):
            wrong.append(f"{path.name}: sys.executable without -P")
    assert not wrong
    engines = {"lab/engines/local.py", "lab/engines/dask.py", "estimators/regression.py"}
    assert engines | {"app/workbench/jobs.py", "app/workbench/dynamics.py"} <= found, "the search itself misses some"
