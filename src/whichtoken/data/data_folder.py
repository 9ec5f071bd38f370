"""Public data sets that cannot be shipped: the folder in which a user keeps them."""

from __future__ import annotations

import os
from pathlib import Path

from whichtoken.errors import UsageError
from whichtoken.extras import installed, lacks

VARIABLE = "WHICHTOKEN_DATA"
# as a table with the columns split, label and text; as `download_imdb` fetches it; and unpacked
IMDB_FILES = ("imdb_reviews_50k.parquet", "aclImdb_v1.tar.gz", "aclImdb")


def find_data(*names: str, folder: Path | None = None) -> Path | None:
    """The first of these files or folders that is in `folder`, by default the one named by WHICHTOKEN_DATA."""
    place = folder or os.environ.get(VARIABLE)
    paths = [Path(place) / name for name in names] if place else []
    return next((path for path in paths if path.exists()), None)


def missing_reader(*names: str) -> str:
    """What is missing to read the first of these files that is there; empty when nothing is."""
    path = find_data(*names)
    if path is None or path.suffix != ".parquet" or installed("pyarrow"):
        return ""
    return f"{path.name} {lacks('pyarrow')}"


def data_file(*names: str, folder: Path | None = None) -> Path:
    """The same where one of them must be there."""
    path = find_data(*names, folder=folder)
    if path is None:
        raise UsageError(f"{' or '.join(names)} not found: set {VARIABLE} to a folder that holds it")
    return path
