import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from whichtoken.datasets.pictures import CIFAR_FILE, cifar_pictures, digit_pictures


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pictures, labels = digit_pictures()
    np.testing.assert_allclose(16 * pictures[:, 0], load_digits().images)
    np.testing.assert_array_equal(labels, load_digits().target)


def jpeg(color):
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), color).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def test_cifar_is_read_channel_first(tmp_path, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    files = [jpeg((250, 20, 30)), jpeg((0, 0, 240)), jpeg((9, 9, 9))]
    table = pd.DataFrame({"split": ["train", "train", "test"], "label": np.array([3, 7, 1], np.int8), "jpeg": files})
    table.to_parquet(tmp_path / CIFAR_FILE)
    pictures, labels = cifar_pictures("train")
    assert pictures.shape == (2, 3, 32, 32)
    assert pictures.dtype == np.float32
    np.testing.assert_allclose(255 * pictures.mean(axis=(2, 3)), [[250, 20, 30], [0, 0, 240]], atol=3)
    assert labels.tolist() == [3, 7]
    assert cifar_pictures("test")[1].tolist() == [1]
    with pytest.raises(ValueError, match=r"^split='validation' must be train or test$"):
        cifar_pictures("validation")


def test_absent_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"cifar10_20k_jpeg.parquet not found: set WHICHTOKEN_DATA to a folder"):
        cifar_pictures("train")
