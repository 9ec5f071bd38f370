"""A picture as the one relevant group among patches of noise."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_count
from whichtoken.datasets.corpora import data_file, missing_data
from whichtoken.errors import unknown
from whichtoken.reading import readable
from whichtoken.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

CIFAR_FILE = "cifar10_20k_jpeg.parquet"


def missing_cifar(column: str) -> str:
    """What is missing to read pictures of CIFAR-10 with what a column says of them; empty when nothing is."""
    return missing_data("CIFAR-10 pictures", f"{CIFAR_FILE} (columns split, {column}, jpeg)", CIFAR_FILE)


class ImagePatch:
    """Samples X of `groups` patches: the picture at `relevant`, independent normal noise elsewhere.

    The image experiment of Zhang, Meng, Cao, arXiv 2504.08638.

    Parameters
    ----------
    images : array, shape (pictures, pixels)
        The pictures to draw from.
    labels : array, shape (pictures,)
        -1 or +1.
    groups : int
        D >= 2 patches.
    relevant : int
        Place of the picture.
    noise : float
        Standard deviation of the noise.
    """

    def __init__(self, images: ArrayLike, labels: ArrayLike, groups: int = 9, relevant: int = 0) -> None:
        self.images = np.asarray(images, dtype=float)
        self.labels = np.asarray(labels, dtype=np.int64)
        check_count("groups", groups, 2)
        if not 0 <= relevant < groups:
            raise ValueError(f"relevant={relevant} must be a group index in 0..{groups - 1}")
        self.groups = groups
        self.group_dim = self.images.shape[1]
        self.relevant = relevant

    def each(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Every picture once, in fresh noise: X of shape (n, groups, pixels) and y of shape (n,)."""
        X = rng.standard_normal((len(self.images), self.groups, self.group_dim))
        X[:, self.relevant] = self.images
        return X, self.labels


def digit_images() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The threes and eights of scikit-learn's 8x8 digits, shape (pictures, 64), standardized per pixel; labels +1 and -1."""
    from sklearn.datasets import load_digits  # scikit-learn takes a second to import and only this function needs it

    pixels, digits = load_digits(return_X_y=True)
    chosen = (digits == 3) | (digits == 8)
    return _standardize(pixels[chosen]), np.where(digits[chosen] == 3, 1, -1)


def cifar_images(per_class: int = 500, split: str = "train") -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Frogs (+1) and airplanes (-1) of CIFAR-10, shape (pictures, 3072), standardized per pixel, and their labels.

    Parameters
    ----------
    per_class : int
        Pictures of each class, at most.
    split : str
        `train` or `test`.

    Raises
    ------
    UsageError
        If the file is not in the folder named by the environment variable WHICHTOKEN_DATA.
    """
    path = data_file(CIFAR_FILE)
    table = read_pictures(path, split, "class")
    pictures = []
    for name in ("frog", "airplane"):
        files = table.loc[table["class"] == name, "jpeg"].head(per_class)
        if files.empty:
            raise unknown("class", name, table["class"].unique())
        pictures.append(unpack_pictures(path, files).reshape(len(files), -1))
    labels = np.repeat([1, -1], [len(stack) for stack in pictures])
    return _standardize(np.concatenate(pictures)), labels


def read_pictures(path: Path, split: str, column: str) -> pd.DataFrame:
    """The rows of one split of the CIFAR-10 file: `column` and the packed pictures."""
    table = read_table(path, ["split", column, "jpeg"])
    return table[table["split"] == split]


def unpack_pictures(path: Path, files: Iterable[bytes]) -> NDArray[np.uint8]:
    """Pixels (n, 32, 32, 3) of packed pictures."""
    with readable(path, "pictures"):
        return np.stack([_pixels(file) for file in files])


def _pixels(file: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    picture = Image.open(io.BytesIO(file))
    if picture.size != (32, 32) or picture.mode != "RGB":  # known before anything is unpacked
        raise ValueError(f"a picture of {picture.size[0]} x {picture.size[1]} pixels is not one of CIFAR-10")
    return np.asarray(picture, dtype=np.uint8)


def _standardize(pixels: NDArray[np.generic]) -> NDArray[np.float64]:
    """Mean 0 and variance 1 for every pixel, as the noise around the picture has; pixels that never change become 0."""
    centered = pixels.astype(float)
    centered -= centered.mean(axis=0)
    spread = centered.std(axis=0)
    spread[spread == 0] = 1.0
    return np.asarray(centered / spread)


Pictures = tuple[NDArray[np.float32], NDArray[np.int64]]  # (n, channels, side, side) in 0..1, and labels 0..9 (n,)


def digit_pictures() -> Pictures:
    """The 1797 handwritten digits of scikit-learn, 1 x 8 x 8."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels.reshape(-1, 1, 8, 8) / 16.0).astype(np.float32), labels.astype(np.int64)


def cifar_pictures(split: str) -> Pictures:
    """All CIFAR-10 pictures of a split, `train` or `test`, 3 x 32 x 32, from the folder named by WHICHTOKEN_DATA."""
    path = data_file(CIFAR_FILE)
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r} must be train or test")
    pixels, labels = _decode(path, split)
    return (pixels / np.float32(255)).astype(np.float32, copy=False), labels


@cache
def _decode(path: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (n, 3, 32, 32); kept, because unpacking takes seconds and many runs want them."""
    table = read_pictures(path, split, "label")
    pixels = unpack_pictures(path, table["jpeg"])  # (n, 32, 32, 3)
    with readable(path, "labels"):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), table["label"].to_numpy(np.int64)
