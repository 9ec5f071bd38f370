"""Labeled texts from files: the published forms of the IMDB and Yelp reviews, and any table of texts and labels."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.reading import BLOCK, read_text, readable, reason, shown
from whichtoken.tables import column_names, label_names, stream_table, text_values

PAIRS = (("-1", "1"), ("0", "1"), ("neg", "pos"), ("negative", "positive"))  # what is negative when it is known
IMDB_SIGN = {"neg": -1, "pos": 1}
LARGEST_ARCHIVE = 1 << 31  # bytes; aclImdb has half a gigabyte
STARS_SIGN = {1: -1, 2: -1, 3: 0, 4: 1, 5: 1}


@dataclass(frozen=True, eq=False)
class Reviews(Shown):
    """Texts with labels of two kinds: what the readers of reviews return.

    Reach for it to hand labeled texts of two kinds, with their publisher's split, to a classifier.

    Attributes
    ----------
    texts : list[str]
        n texts.
    labels : array of shape (n,)
        -1 or +1.
    split : array of shape (n,), or None
        "train" or "test", where the publisher says so.
    classes : tuple of str
        Names of -1 and +1.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import Reviews
    >>> reviews = Reviews(["good", "bad"], np.array([1, -1], dtype=np.int8), split=np.array(["train", "test"]))
    >>> len(reviews), reviews.part("train").texts
    (2, ['good'])
    """

    texts: list[str]
    labels: NDArray[np.int8]
    split: NDArray[np.str_] | None = None
    classes: tuple[str, str] = ("negative", "positive")

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, name: str) -> Reviews:
        """The reviews of one split."""
        if self.split is None or name not in self.split:
            known = "none" if self.split is None else ", ".join(np.unique(self.split))
            raise UsageError(f"these reviews have no split '{name}'; splits: {known}")
        rows = np.flatnonzero(self.split == name)
        return Reviews([self.texts[i] for i in rows], self.labels[rows], self.split[rows], self.classes)


def read_reviews(
    path: Path, text: str, label: str, *, split: str | None = None, separator: str | None = None
) -> Reviews:
    """Any CSV, TSV, Parquet or JSON-lines table with a column of texts and one of labels of two kinds."""
    path = Path(path)
    columns = [text, label] if split is None else [text, label, split]
    if len(set(columns)) < len(columns):
        raise UsageError(f"columns {', '.join(columns)} must be different ones for texts, labels and splits")
    texts: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for piece in stream_table(path, columns, separator=separator):
        texts += text_values(path, piece[text], text, len(texts))
        labels += label_names(path, piece[label], label, len(labels))
        if split is not None:
            splits += piece[split].astype(str).tolist()
    classes = _two_classes(path, labels)
    signs = np.where(np.asarray(labels) == classes[1], 1, -1).astype(np.int8)
    return Reviews(texts, signs, None if split is None else np.asarray(splits), classes)


def read_texts(
    path: Path, text: str, label: str | None, most: int, separator: str | None = None
) -> tuple[list[str], list[str] | None]:
    """At most `most` texts of any such table, from its beginning, and their labels where a column is named."""
    path = Path(path)
    texts: list[str] = []
    labels: list[str] = []
    for piece in stream_table(path, [text] if label is None else [text, label], separator=separator):
        rows = piece[: most - len(texts)]
        if label is not None:
            labels += label_names(path, rows[label], label, len(texts))
        texts += text_values(path, rows[text], text, len(texts))
        if len(texts) >= most:
            break
    if not texts:
        raise UsageError(f"{shown(path)} has no rows")
    return texts, labels if label is not None else None


def read_imdb(path: Path) -> Reviews:
    """The IMDB reviews of Maas et al. (2011): folder aclImdb, its tar.gz, the CSV of 50 000 rows, or Parquet.

    Parameters
    ----------
    path : Path
        The folder, archive or table.

    Returns
    -------
    Reviews
        50 000 texts, in two splits where the file says so.

    Raises
    ------
    UsageError
        If the file is missing, damaged or of another kind.

    Examples
    --------
    >>> from pathlib import Path
    >>> from whichtoken.datasets import read_imdb
    >>> reviews = read_imdb(Path("aclImdb_v1.tar.gz"))  # doctest: +SKIP
    """
    path = Path(path)
    if path.is_dir():
        files = ((_imdb_place(file.relative_to(path).as_posix()), file) for file in sorted(path.rglob("*.txt")))
        return _imdb_reviews(path, {place: read_text(file) for place, file in files if place})
    if path.suffixes[-2:] == [".tar", ".gz"] or path.suffix == ".tgz":
        return _read_archive(path)
    header = column_names(path)
    text = "text" if "text" in header else "review"
    label = "label" if "label" in header else "sentiment"
    return read_reviews(path, text, label, split="split" if "split" in header else None)


SHORTEST, LONGEST = 1000, 1500  # characters of a review of Yelp


def read_yelp(path: Path) -> Reviews:
    """Yelp reviews (JSON lines as published, CSV or Parquet) by the rules of Wu et al.: by length, without three stars."""
    path = Path(path)
    texts: list[str] = []
    signs: list[int] = []
    seen = 0
    for piece in stream_table(path, ["text", "stars"]):
        rows = text_values(path, piece["text"], "text", seen)
        for i, (text, stars) in enumerate(zip(rows, piece["stars"], strict=True)):
            sign = _star_sign(path, stars, seen + i)
            if sign and SHORTEST <= len(text) <= LONGEST:
                texts.append(text)
                signs.append(sign)
        seen += len(rows)
    if not texts:
        raise UsageError(f"{shown(path)} holds no review of {SHORTEST} to {LONGEST} characters with 1, 2, 4 or 5 stars")
    return Reviews(texts, np.array(signs, dtype=np.int8))


def _read_archive(path: Path) -> Reviews:
    found: dict[tuple[str, str, int], str] = {}
    passed = 0
    with readable(path, "tar.gz"):
        try:
            # one pass, nothing is written to disk; gzip by itself, for tarfile takes a cut between two files for the end
            with gzip.open(path) as source, tarfile.open(fileobj=source, mode="r|") as archive:
                for member in archive:
                    passed = _check_size(path, passed + member.size)
                    place = _imdb_place(member.name) if member.isfile() else None
                    if place and (file := archive.extractfile(member)):
                        found[place] = file.read().decode()
                while block := source.read(BLOCK):  # the checksum stands at the end
                    passed = _check_size(path, passed + len(block))
        except (tarfile.TarError, EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            raise UsageError(
                f"{shown(path)} is damaged after {len(found)} reviews ({reason(error)}); download it again"
            ) from error
    return _imdb_reviews(path, found)


def _check_size(path: Path, size: int) -> int:
    if size > LARGEST_ARCHIVE:
        raise UsageError(f"{shown(path)} unpacks to more than {LARGEST_ARCHIVE >> 30} GB; it is not aclImdb")
    return size


def _imdb_place(name: str) -> tuple[str, str, int] | None:
    """Split, label and number of a file such as aclImdb/train/pos/127_10.txt; nothing for any other file."""
    parts = PurePosixPath(name).parts
    if len(parts) < 3 or parts[-3] not in ("train", "test") or parts[-2] not in IMDB_SIGN:
        return None
    number = parts[-1].partition("_")[0]
    return (parts[-3], parts[-2], int(number)) if number.isdigit() and parts[-1].endswith(".txt") else None


def _imdb_reviews(path: Path, found: dict[tuple[str, str, int], str]) -> Reviews:
    if not found:
        raise UsageError(
            f"{shown(path)} holds no reviews; expected files such as train/pos/0_9.txt, as in the published aclImdb"
        )
    places = sorted(found, key=lambda place: (place[0] != "train", place[1], place[2]))
    signs = np.array([IMDB_SIGN[label] for _, label, _ in places], dtype=np.int8)
    return Reviews([found[place] for place in places], signs, np.array([split for split, _, _ in places]))


def _star_sign(path: Path, stars: Any, row: int) -> int:
    try:
        return STARS_SIGN[float(stars)]  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{shown(path)}: row {row + 1} has {visible(repr(stars)[:60])} stars; 1 to 5 are expected"
        ) from None


def _two_classes(path: Path, labels: Sequence[str]) -> tuple[str, str]:
    """The two labels that occur, the negative one first: as known by name, otherwise by number or by the alphabet."""
    names = sorted(set(labels))
    if len(names) != 2:
        some = visible(", ".join(name[:60] for name in names[:6])) + (", ..." if len(names) > 6 else "")
        raise UsageError(f"{shown(path)} has {len(names)} different labels ({some}); two are expected")
    for pair in PAIRS:
        if set(pair) == {name.lower() for name in names}:
            negative, positive = sorted(names, key=lambda name: pair.index(name.lower()))
            return negative, positive
    try:
        low, high = sorted(names, key=float)
    except ValueError:
        low, high = names
    return low, high
