"""Optional packages: which extra installs each, and one error message for a package that is missing.

A module may import an optional package at its top if it is itself loaded on demand: by a package that calls `attach`, or
inside `with needed_by(...)`. Both turn the failed import into that message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import lazy_loader

from whichtoken.errors import UsageError

# the extras of pyproject.toml, and the packages that each installs, by the names under which they are imported
_EXTRAS = {
    "torch": "torch",
    "transformers": "transformers",
    "dask": "cryptography dask distributed",
    "web": "h11 python_multipart starlette uvicorn",
    "parquet": "pyarrow",
    "h5": "h5py",
    "notebook": "anywidget traitlets",
    "bench": "captum clarabel cvxpy interpret lime skglm torchmil",
}
EXTRA_OF = {package: extra for extra, packages in _EXTRAS.items() for package in packages.split()}


class MissingExtra(ModuleNotFoundError, UsageError):  # noqa: N818  its name is its message
    """An optional package is not installed: says what needs it and which command installs it."""


def install_command(extra: str) -> str:
    """The command that adds an extra to an installed whichtoken."""
    return f'pip install "whichtoken[{extra}]"'


def lacks(package: str) -> str:
    """The sentence for a package that is not installed, without its subject."""
    command = install_command(EXTRA_OF[package]) if package in EXTRA_OF else f"pip install {package}"
    return f"needs {package}, which is not installed: {command}"


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it, which might take seconds."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # an import hook refuses it, or the module has no spec
        return False


def require(package: str, what: str) -> None:
    """Raise at the start of a task if a package that it needs later is missing."""
    if not is_installed(package):
        raise MissingExtra(f"{what} {lacks(package)}", name=package)


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Turn the failed import of an optional package into the message that says how to install it.

    Parameters
    ----------
    what : what needs the package, as the subject of the sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or package not in EXTRA_OF:
            raise
        raise MissingExtra(f"{what} {lacks(package)}", name=package) from None


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names are imported when they are used.

    The names and their modules stand in the stub beside the package's file (`__init__.pyi`), which type checkers read too.
    A name that needs a missing optional package raises `MissingExtra`.
    """
    load, names, public = lazy_loader.attach_stub(package, file)

    def load_or_explain(name: str) -> Any:
        with needed_by(f"{package}.{name}"):
            return load(name)

    return load_or_explain, names, public
