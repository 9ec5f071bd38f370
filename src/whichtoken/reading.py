"""Read users' files safely: whatever is wrong with a file becomes one sentence with its name.

Every reader opens and parses inside `readable`, and texts come through `open_text`, so that damaged files, files of a wrong
kind, endless ones and those that would fill the memory are handled once, here.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.extras import needed_by
from whichtoken.machine import available_memory

BLOCK = 1 << 16  # bytes
LONGEST_LINE = 1 << 26  # bytes without a line break that no text has
LONGEST_BLANK = 1 << 22  # bytes of white space
LARGEST_JSON = 1 << 28  # bytes
JSON_VALUE = 32  # bytes of memory for each of JSON's, at worst
BUDGET, EXPANSION = 1 << 30, 1000  # bytes that any file may become, and so many more for each of its own
TABLES = ("csv", "tsv", "jsonl", "json")  # forms whose encoding may be named
SIGNATURES = {
    b"PK\x03\x04": "a zip archive or a spreadsheet such as .xlsx",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet (.xls)",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\x93NUMPY": "a numpy array",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"SQLite format": "a database",
    b"%PDF": "a PDF",
}


@contextmanager
def readable(path: str | Path, form: str) -> Iterator[None]:
    """Run a block that reads `path` as `form` ("csv", "JSON", ...); what goes wrong in it is a `UsageError`.

    Refuses at once what is not a regular file with something in it: pipes and devices have no end.
    """
    name = shown(path)
    check_regular(path)
    try:
        yield
    except UsageError:
        raise
    except UnicodeDecodeError as error:
        sign = f"byte 0x{error.object[error.start]:02x} does not fit" if error.object else error.reason
        wanted = "UTF-8" if error.encoding.startswith("utf-8") else error.encoding
        advice = "save it as UTF-8 and try again"
        if form in TABLES:
            advice = "name its encoding, such as latin-1, or save it as UTF-8"
        raise UsageError(f"{name} is not {wanted} ({sign}); {advice}") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{name} is not valid JSON: {place} ({error.msg})") from error
    except RecursionError as error:
        raise UsageError(f"{name} cannot be read as {form}: it is nested too deeply") from error
    except MemoryError as error:
        raise UsageError(f"{name} does not fit into memory; use a part of it") from error
    except Exception as error:  # parsers raise what they like: zlib.error, BadZipFile, ArrowInvalid, bare Exceptions
        raise UsageError(f"{name} cannot be read as {form}: {reason(error)}") from error


_names: ContextVar[Mapping[str, str]] = ContextVar("_names", default=MappingProxyType({}))


@contextmanager
def shown_as(path: str | Path, name: str) -> Iterator[None]:
    """Call a file by another name in the messages of a block: a user does not know the path of a copy that we made."""
    token = _names.set({**_names.get(), str(path): name})
    try:
        yield
    finally:
        _names.reset(token)


def shown(path: str | Path) -> str:
    """A file's name that can be printed."""
    return visible(_names.get().get(str(path), str(path)), keep="")


def reason(error: BaseException) -> str:
    """What a library says of a fault, on one line and safe to print."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    line = visible(" ".join(str(said).split()))
    return line if len(line) <= 200 else line[:200] + " ..."


def check_regular(path: str | Path) -> None:
    """Refuse whatever is not a file with an end and a content."""
    name = shown(path)
    try:
        found = Path(path).stat()
    except FileNotFoundError as error:
        raise UsageError(f"{name} does not exist") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{name} cannot be read: {reason(error).lower()}") from error
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{name} is a folder; name a file")
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{name} is not a regular file; save its content to a file first")
    if found.st_size == 0:
        raise UsageError(f"{name} is empty")


def check_proportion(path: str | Path, needed: int, what: str = "the content") -> None:
    """Refuse what is out of all proportion to the file, before it is read: it is damaged, or meant to fill the memory."""
    size = Path(path).stat().st_size
    if needed > BUDGET + EXPANSION * size:
        raise UsageError(
            f"{shown(path)}: {what} would take {needed / 1e9:.3g} GB, but the file has only {size} bytes; is it damaged?"
        )


def check_fits(path: str | Path, needed: int, what: str = "the content") -> None:
    """Refuse what would not fit into the memory, or is out of proportion to the file, before it is read."""
    check_proportion(path, needed, what)
    free = available_memory()
    if needed > free:
        raise UsageError(
            f"{shown(path)}: {what} would take {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB are free; use a part of it"
        )


class TextBytes(io.RawIOBase):
    """The bytes of a text file, unpacked if its name ends in .gz or .zst; refuses what no text is.

    `rows_done` says that what was given out so far has become rows: between two such calls the memory must hold it all.
    """

    def __init__(self, path: Path, wide: bool = False) -> None:
        self.path, self.wide = path, wide
        self.source = unpack(path)
        self.line = self.blank = self.piece = self.total = 0
        self.most = available_memory() // 4

    def rows_done(self) -> None:
        """Reset the count."""
        self.piece = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Also the file, if it could be opened: Python 3.13 reports what fails while an object is deleted."""
        if hasattr(self, "source"):
            self.source.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        block = self.source.read(min(len(buffer), BLOCK))
        self._check(block)
        buffer[: len(block)] = block
        return len(block)

    def _check(self, block: bytes) -> None:
        name = shown(self.path)
        if not self.total and not self.wide:
            for signature, kind in SIGNATURES.items():
                if block.startswith(signature):
                    raise UsageError(f"{name} is {kind}, not plain text; save it as UTF-8 text")
        if b"\0" in block and not self.wide:
            raise UsageError(f"{name} is not text: it holds NUL bytes; save it as UTF-8 text")
        after = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self.line = len(block) - after - 1 if after >= 0 else self.line + len(block)
        self.blank = self.blank + len(block) if block.isspace() else 0
        self.piece += len(block)
        self.total += len(block)
        if self.line > LONGEST_LINE:
            raise UsageError(f"{name} has a line of more than {LONGEST_LINE >> 20} MB; is it a text file?")
        if self.blank > LONGEST_BLANK:
            raise UsageError(f"{name} has {LONGEST_BLANK >> 20} MB of empty lines in a row; is it damaged?")
        if self.piece > self.most:
            raise UsageError(f"{name}: no row ends in {self.piece / 1e9:.2g} GB; is a quote never closed?")


def unpack(path: Path) -> Any:
    """The bytes of a file that may be compressed."""
    match path.suffix.lower():
        case ".gz":
            import gzip

            return gzip.GzipFile(path)
        case ".zst":
            with needed_by(shown(path)):
                import pyarrow

            return pyarrow.input_stream(str(path), compression="zstd")
        case _:
            return path.open("rb")


@contextmanager
def open_text(path: Path, encoding: str | None = None) -> Iterator[tuple[io.TextIOWrapper, TextBytes]]:
    """A text file, UTF-8 by default, line breaks as they are, and the bytes below it; call it inside `readable`."""
    known = "utf-8" if encoding is None else check_encoding(encoding)
    source = TextBytes(path, wide=known.startswith(("utf-16", "utf-32")))
    # -sig: a mark at the beginning, which spreadsheets write, is no part of the first line
    chosen = "utf-8-sig" if known == "utf-8" else known
    with io.TextIOWrapper(io.BufferedReader(source, BLOCK), encoding=chosen, newline="") as text:
        yield text, source


def check_encoding(name: str) -> str:
    """The usual name of a text encoding; refuses what is none."""
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        found = None
    if found is None or not found._is_text_encoding:
        raise UsageError(f"encoding '{visible(name)}' is not known; give one such as utf-8, latin-1, cp1252 or utf-16")
    return found.name


def read_text(path: str | Path, form: str = "UTF-8 text") -> str:
    """A whole text file, its line breaks as newlines."""
    with readable(path, form):
        check_fits(path, 4 * Path(path).stat().st_size)
        with open_text(Path(path)) as (file, _):
            return file.read().replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | Path) -> Any:
    """The value that a JSON file holds."""
    with readable(path, "JSON"):
        if Path(path).stat().st_size > LARGEST_JSON:
            raise UsageError(f"{shown(path)} is larger than {LARGEST_JSON >> 20} MB, too large for JSON")
        check_fits(path, JSON_VALUE * Path(path).stat().st_size)
        return parse_json(read_text(path, "JSON"))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a name that appears twice in one object is refused, for one of the two would be lost."""
    return DECODER.decode(text) if isinstance(text, str) else json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' appears twice in one object")
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_object)  # loads would make one for every line of a file


HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of a file."""
    with readable(path, "npz"), zipfile.ZipFile(path) as archive:
        there = {member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy")}
        for name in names:
            if name not in there:
                raise UsageError(f"{shown(path)} has no array '{name}'; arrays: {', '.join(map(shown, sorted(there)))}")
        return {name: _array(path, archive, name) for name in names}


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        size = _declared_size(path, name, file)
    if size > member.file_size:
        raise ValueError(f"array '{name}' declares {size} bytes and has {member.file_size}")
    check_fits(path, size, f"array '{name}'")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _declared_size(path: Path, name: str, file: IO[bytes]) -> int:
    """Bytes that an array says it has."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"array '{name}' has format {version[0]}.{version[1]}, which is not known")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise UsageError(
            f"{shown(path)}: array '{name}' holds Python objects, which are never loaded; save numbers or texts"
        )
    return math.prod(shape) * int(dtype.itemsize)
