"""Pictures with the class of each: scikit-learn's digits, or CIFAR-10 from a file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.data_folder import data_file
from whichtoken.data.image_patches import CIFAR_FILE, read_pictures, unpack_pictures
from whichtoken.data.reading import readable

Pictures = tuple[NDArray[np.float32], NDArray[np.int64]]  # (n, channels, side, side) in 0..1, and labels 0..9 (n,)


def digit_pictures() -> Pictures:
    """The 1797 handwritten digits of scikit-learn, 1 x 8 x 8."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels.reshape(-1, 1, 8, 8) / 16.0).astype(np.float32), labels.astype(np.int64)


def cifar_pictures(split: str, folder: Path | None = None) -> Pictures:
    """All CIFAR-10 pictures of a split, `train` or `test`, 3 x 32 x 32.

    `folder` holds cifar10_20k_jpeg.parquet (columns split, label, jpeg); the one named by the environment variable
    WHICHTOKEN_DATA by default.
    """
    path = data_file(CIFAR_FILE, folder=folder)
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r} must be train or test")
    pixels, labels = _decoded(path, split)
    return (pixels / np.float32(255)).astype(np.float32, copy=False), labels


@cache
def _decoded(path: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (n, 3, 32, 32); kept, because unpacking takes seconds and many runs want them."""
    table = read_pictures(path, split, "label")
    pixels = unpack_pictures(path, table["jpeg"])  # (n, 32, 32, 3)
    with readable(path, "labels"):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), table["label"].to_numpy(np.int64)
