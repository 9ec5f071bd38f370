"""Optional packages: which extra installs each, and the one sentence for a package that is not there.

A module that needs such a package may import it at its top; it is then loaded on demand, by `whichtoken.lazy` or inside
`with needed_by(...)`, and both turn the failed import into the sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from whichtoken.errors import UsageError

EXTRA_OF = {  # the extra of pyproject.toml that installs each package, by the name under which it is imported
    "torch": "torch",
    "transformers": "transformers",
    "cryptography": "dask",
    "dask": "dask",
    "distributed": "dask",
    "h11": "web",
    "python_multipart": "web",
    "starlette": "web",
    "uvicorn": "web",
    "pyarrow": "parquet",
    "captum": "bench",
    "clarabel": "bench",
    "cvxpy": "bench",
    "interpret": "bench",
    "lime": "bench",
    "skglm": "bench",
    "torchmil": "bench",
}


class MissingExtra(ModuleNotFoundError, UsageError):  # noqa: N818  it reads as the sentence that it is
    """An optional package is not installed: says what needs it and which command installs it."""


def install_command(extra: str) -> str:
    """The command that adds an extra to an installed whichtoken."""
    return f'pip install "whichtoken[{extra}]"'


def lacks(package: str) -> str:
    """The sentence for a package that is not installed, without its subject."""
    command = install_command(EXTRA_OF[package]) if package in EXTRA_OF else f"pip install {package}"
    return f"needs {package}, which is not installed: {command}"


def installed(package: str) -> bool:
    """Whether a package could be imported; importing it might take seconds."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # what an import hook refuses; a module without a spec
        return False


def require(package: str, what: str) -> None:
    """Refuse to begin with what would need a missing package at its end."""
    if not installed(package):
        raise MissingExtra(f"{what} {lacks(package)}", name=package)


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Turn a missing optional package inside into the sentence that says how to install it.

    Parameters
    ----------
    what : what cannot be done without, as the subject of the sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or package not in EXTRA_OF:
            raise
        raise MissingExtra(f"{what} {lacks(package)}", name=package) from None
