"""Without its optional packages whichtoken imports, works as far as it can, and says in one sentence what is missing."""

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from whichtoken.errors import UsageError
from whichtoken.extras import EXTRA_OF, MissingExtra, is_installed, lacks, needed_by
from whichtoken.lab.discovery import experiments

SOURCE = Path(__file__).parents[1] / "src"
CLAIMS = {claim.id: claim for claim in experiments().values() if not claim.id.startswith("toy/")}
WEB = {
    name for name, extra in EXTRA_OF.items() if extra == "web"
}  # stays, to ask the workbench; its own test is in workbench/
HEAVY = {"torch", "pandas", "pyarrow", "matplotlib", "sklearn"}  # no package of ours loads these by being imported
ROOMS_IN_NEED = {"inspection", "optim", "theory"}  # the only ones with names that need an extra
WORKING = [
    "--version",
    "list",
    "list group-sparse/encodings",
    "fit text texts.csv --model model",
    "explain model film",
    "predict model texts.csv",
    "evaluate model texts.csv",
    "plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 100 --samples 400",
    "reproduce group-sparse/encodings --json encodings.json",
    "report",
]
REFUSED = {  # what the command line needs, by the package that its one line names
    "inspect transformer --file texts.csv": "transformers",
    "fit text texts.parquet --model new": "pyarrow",
    "predict model texts.csv --to new.parquet": "pyarrow",
    "reproduce mirror-descent/direction --engine dask": "distributed",
    "bench mirror-step": "torch",
}
PAGES = ["/", "/planner", "/data", "/dynamics", "/inspect"]


def path_of(module):
    """File of a module of ours; None for a name inside one."""
    path = SOURCE.joinpath(*module.split("."))
    files = [path / "__init__.py", path.with_suffix(".py")]
    return next((file for file in files if file.exists()), None)


@cache
def imports(module):
    """Modules that a module imports anywhere in it, but for type checkers alone; names of packages lead to their modules."""
    found, parts = set(), [ast.parse(path_of(module).read_text())]
    for part in parts:
        for node in ast.iter_child_nodes(part):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {home(node.module, alias.name) for alias in node.names}
            parts.append(node)
    return found


@cache
def home(module, name):
    """The module in which a name that a module offers is written."""
    path = path_of(module) if module.startswith("whichtoken") else None
    if path is None or path.name != "__init__.py" or path_of(f"{module}.{name}"):
        return f"{module}.{name}" if path and path_of(f"{module}.{name}") else module
    stub = path.with_suffix(".pyi")
    for node in ast.walk(ast.parse((stub if stub.exists() else path).read_text())):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return home(f"{module}.{node.module}" if node.level else node.module, name)
    return module


def may_reach(package, module):
    """Whether some line of a module, or of those it imports, imports a package."""
    seen, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] == package:
            return True
        if name not in seen and name.startswith("whichtoken.") and path_of(name):
            waiting += imports(name)
        seen.add(name)
    return False


REACHING = {id for id, claim in CLAIMS.items() if may_reach("torch", type(claim).__module__)}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """What whichtoken does in a Python without any of the optional packages, in one process for all tests."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "transformer").mkdir()
    (folder / "texts.parquet").write_bytes(b"PAR1")
    kinds = (("good", 1), ("bad", 0))
    rows = [f"a {word} film number {k} of {k * k},{label}" for k in range(20) for word, label in kinds]
    (folder / "texts.csv").write_text("\n".join(["text,label", *rows]))
    request = {
        "refused": sorted(EXTRA_OF.keys() - WEB),
        "commands": [line.split() for line in [*WORKING, *REFUSED]],
        "pages": PAGES,
        "claims": sorted(REACHING),
    }
    command = [sys.executable, Path(__file__).with_name("without_extras.py"), json.dumps(request)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    found["commands"] = dict(zip([*WORKING, *REFUSED], found["commands"], strict=True))
    found["results"] = json.loads((folder / "encodings.json").read_text())["experiments"]
    return found


def test_every_package_imports_and_loads_nothing_heavy(bare):
    folders = {file.parent for file in (SOURCE / "whichtoken").rglob("__init__.py")}
    assert set(bare["packages"]) == {".".join(folder.relative_to(SOURCE).parts) for folder in folders}
    assert not HEAVY & set(bare["loaded"])


def test_a_name_that_needs_an_extra_says_so(bare):
    assert {name.split(".")[1] for name in bare["missing"]} == ROOMS_IN_NEED
    for name, (kind, said) in bare["missing"].items():
        assert (kind, said) == ("MissingExtra", f"{name} {lacks('torch')}")


@pytest.mark.parametrize("line", WORKING)
def test_commands_work_without_extras(bare, line):
    status, out, err = bare["commands"][line]
    assert (status, bool(out.strip())) == (0, True), err


@pytest.mark.parametrize(("line", "package"), REFUSED.items())
def test_a_command_that_needs_an_extra_says_so_in_one_line(bare, line, package):
    status, _, err = bare["commands"][line]
    assert (status, err.count("\n")) == (2, 1), err
    assert lacks(package) in err


@pytest.mark.parametrize("page", PAGES)
def test_the_workbench_shows_its_pages_without_extras(bare, page):
    status, text = bare["pages"][page]
    assert status == 200
    assert ("whichtoken[transformers]" in text) == (page == "/inspect")


def test_a_claim_that_needs_an_extra_is_not_run_and_says_why(bare):
    [result] = bare["results"]
    assert (result["failed"], result["rows"]) == (0, [])
    assert {(verdict["state"], verdict["note"]) for verdict in result["verdicts"]} == {("not-run", lacks("torch"))}
    said = bare["commands"]["reproduce group-sparse/encodings --json encodings.json"][1]
    assert lacks("torch") in " ".join(said.split())
    for listing in ("list", "list group-sparse/encodings"):
        assert lacks("torch") in " ".join(bare["commands"][listing][1].split())


@pytest.mark.parametrize("id", CLAIMS)
def test_a_claim_says_whether_it_needs_torch(bare, id):
    """One from which no import leads to torch needs none; of the others, the first row tells."""
    fails = id in REACHING and bare["rows"][id][0] == "failed"
    assert CLAIMS[id].needs == ("torch" if fails else ""), bare["rows"].get(id)
    assert not fails or "torch" in bare["rows"][id][1]


def test_what_needs_a_package_names_it_once():
    with pytest.raises(MissingExtra) as caught, needed_by("the whole"), needed_by("this part"):
        raise ModuleNotFoundError("No module named 'torch.optim'", name="torch.optim")
    assert str(caught.value) == 'this part needs torch, which is not installed: pip install "whichtoken[torch]"'
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, UsageError)
    assert caught.value.name == "torch"


def test_a_fault_of_another_kind_stays_what_it_is():
    with pytest.raises(ModuleNotFoundError, match="nothing_of_ours") as caught, needed_by("this"):
        import nothing_of_ours  # noqa: F401
    assert not isinstance(caught.value, MissingExtra)
    assert (is_installed("numpy"), is_installed("nothing_of_ours")) == (True, False)
