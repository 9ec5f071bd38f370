"""Public data sets that cannot be shipped: the folder in which a user keeps them."""

from __future__ import annotations

import os
from pathlib import Path

from whichtoken.errors import UsageError

VARIABLE = "WHICHTOKEN_DATA"


def data_file(name: str) -> Path:
    """The file of that name in the folder named by WHICHTOKEN_DATA."""
    folder = os.environ.get(VARIABLE, "")
    path = Path(folder) / name
    if not folder or not path.is_file():
        raise UsageError(f"{name} is not here; set {VARIABLE} to a folder that holds it")
    return path
