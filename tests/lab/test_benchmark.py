"""Benchmarks are found by folder, and say what they lack."""

import importlib
import sys
from types import ModuleType

import pytest

from whichtoken.errors import UsageError
from whichtoken.lab.benchmark import PACKAGE, benchmark_files, run_benchmark

PEERS = {"captum", "cvxpy", "interpret", "lime", "skglm", "torchmil", "transformers"}


@pytest.mark.xdist_group("benchmarks")
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


def test_an_unknown_benchmark_is_named():
    with pytest.raises(UsageError, match="unknown benchmark 'mirror-stp'; did you mean 'mirror-step'"):
        next(run_benchmark("mirror-stp"))
