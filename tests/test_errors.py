"""An error about arguments carries them as data, so that whoever knows them by other names can say so."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from whichtoken.checks import check_choice, check_count, check_range
from whichtoken.datasets import SparseTokens
from whichtoken.errors import ColumnError, UsageError, in_one_line, unknown
from whichtoken.extras import MissingExtra
from whichtoken.tables import check_columns


def flag(name: str, value: str) -> str:
    return f"--{name} {value}"


@pytest.mark.parametrize(
    ("wrong", "in_python", "on_the_command_line"),
    [
        (
            lambda: check_count("seeds", 0, 1),
            "seeds=0 must be a whole number of at least 1",
            "--seeds 0 must be a whole number of at least 1",
        ),
        (lambda: check_range("betas[0]", 2, 0, 1), "betas[0]=2 must lie in (0, 1)", "--betas[0] 2 must lie in (0, 1)"),
        (
            lambda: check_choice("loss", "{loss}", ("a", "b")),
            "loss='{loss}' must be one of a, b",
            "--loss '{loss}' must be one of a, b",
        ),
        (
            lambda: SparseTokens(length=10, signal_tokens=12, strength=1.0, prevalence=0.5, dim=3),
            "signal_tokens=12 must be smaller than length=10",
            "--signal_tokens 12 must be smaller than --length 10",
        ),
    ],
)
def test_an_error_is_described_by_those_who_know_its_arguments(wrong, in_python, on_the_command_line):
    with pytest.raises(UsageError) as caught:
        wrong()
    # it comes back whole from a worker process
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert str(error) == in_python
        assert error.describe(flag) == on_the_command_line


def test_braces_of_a_path_are_not_fields():
    assert str(UsageError("{a}.csv is missing")) == "{a}.csv is missing"
    assert str(UsageError("{a}.csv has {rows}", rows=3)) == "{a}.csv has rows=3"


def test_an_error_that_is_also_one_of_python_s_is_described_too():
    assert MissingExtra("needs torch", name="torch").describe(flag) == "needs torch"


def test_an_error_of_a_column_has_its_name(tmp_path):
    with pytest.raises(ColumnError) as caught:
        check_columns(tmp_path / "t.csv", ["text"], ["texts", "label"])
    assert pickle.loads(pickle.dumps(caught.value)).column == caught.value.column == "text"


def test_of_many_names_only_the_nearest_are_offered():
    names = [f"theory/claim-{letter}" for letter in "abcdefghijklmnop"]
    said = str(unknown("claim", "theory/claim-bb", names, listed_by="whichtoken list"))
    assert said.startswith("unknown claim 'theory/claim-bb'; did you mean 'theory/claim-b', ")
    assert said.count("theory/claim-") == 4
    assert said.endswith("? whichtoken list shows all 16 claims")
    few = str(unknown("claim", "nothing-like-it", names[:3], listed_by="whichtoken list"))
    assert few == "unknown claim 'nothing-like-it'; claims: theory/claim-a, theory/claim-b, theory/claim-c"


def test_a_size_that_does_not_fit_into_memory_is_named_without_a_place():
    with pytest.raises(MemoryError) as caught:
        np.zeros((10**7, 10**7))
    assert in_one_line(caught.value).startswith("not enough memory: Unable to allocate 728. TiB for an array")
    assert in_one_line(caught.value).endswith("float64; choose smaller sizes")
