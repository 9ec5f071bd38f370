"""A saved model on another table: which labels are which, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from whichtoken.app.applying import Applied, as_classes
from whichtoken.errors import UsageError


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["0.0", "1.0", "1"], np.array([0, 1])),
        (["0.5", "1", "1.0"], np.array([0.5, 1.0])),
        (["0", "1", "1.00"], np.array(["0.0", "1.0"])),
        (["False", "True", "True"], np.array([False, True])),
        (["no", "yes", "yes"], np.array(["no", "yes"])),
        (["no", "yes", "yes"], np.array(["no", "yes"], dtype=object)),
    ],
)
def test_labels_are_the_classes_of_the_model(names, classes):
    found = as_classes(names, classes)
    assert found.dtype == classes.dtype
    np.testing.assert_array_equal(found, classes[[0, 1, 1]])


def test_strange_labels_stay_what_they_are():
    assert as_classes(["0", "2"], np.array([0, 1])).tolist() == [0, 2]
    assert as_classes(["0", "x"], np.array([0, 1])).tolist() == ["0", "x"]


def applied(labels, mixed=None):
    table = pd.DataFrame({"label": labels} if mixed is None else {})
    return Applied(Path("t.csv"), table, np.array([0, 1]), lambda: np.eye(len(labels)), list, mixed or {})


def test_rows_without_a_label_can_be_left_out():
    found = applied(["0", "", "1.0", None])
    rows = found.labeled_rows("label", drop_missing=True)
    assert rows.tolist() == [0, 2]
    assert found.labels("label", rows).tolist() == [0, 1]
    judged = found.labeled(drop_missing=True)
    assert (judged.left, judged.lacking) == (2, False)
    np.testing.assert_array_equal(judged.trained().probabilities(np.array([1])), [[0, 0, 1, 0]])
    with pytest.raises(UsageError, match="row 2 has no label"):
        found.labels("label", found.labeled_rows("label"))
    with pytest.raises(UsageError, match=r"t\.csv: no row has a label in column 'label'"):
        applied([""]).labeled_rows("label", drop_missing=True)


def test_a_bag_with_several_labels_is_named():
    with pytest.raises(UsageError, match=r"t\.csv: bag q has several labels; a bag must have one"):
        applied([0, 1], {"label": "q"}).labeled_rows("label")
