"""What each token means: the statistics of the theory beside the scores that were learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import check_random_state

from whichtoken.checks import check_range
from whichtoken.estimators.text.counting import count_documents, encode_classes
from whichtoken.estimators.text.documents import row_blocks

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.text.classifier import TextClassifier

Array = NDArray[np.float64]

NUMBERS = ("signed_frequency", "posterior_difference", "value", "selection")


def token_statistics(counts: sparse.csr_array, labels: NDArray[np.int64], classes: int) -> tuple[Array, Array, Array]:
    """Counts and per-document shares by class, (|S|, classes), and documents by class: all that `importance` needs."""
    tokens = counts.shape[1]
    totals, shares, sizes = np.zeros((tokens, classes)), np.zeros((tokens, classes)), np.zeros(classes)
    first = 0
    for block in row_blocks(counts):
        members = np.eye(classes)[labels[first : first + block.shape[0]]]  # (n, classes)
        lengths = block.sum(axis=1)
        totals += block.T @ members
        shares += (sparse.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ block).T @ members
        sizes += members.sum(axis=0)
        first += block.shape[0]
    return totals, shares, sizes


def importance(model: TextClassifier) -> pd.DataFrame:
    """One row per token, the most important first; for more than two classes one block per class against the rest.

    Signed frequency is equation (3), with each document's own length, posterior difference equation (37) of Wu, Shevchenko,
    Oymak, Mondelli. Over several queries the value is the mean, the selection score the largest.
    """
    return _sorted(_table(model))


def strongest_tokens(model: TextClassifier, count: int = 8) -> list[str]:
    """The tokens that would weigh most in a document, for or against any class."""
    strength = np.exp(model.selection_ - model.selection_.max()) * np.abs(model.values_).max(axis=2)  # (|S|, n_queries)
    return [model.token_names_[token] for token in np.argsort(-strength.max(axis=1), kind="stable")[:count]]


def bootstrap_importance(model: TextClassifier, X: Any, y: Any, repeats: int, level: float) -> pd.DataFrame:
    """`importance` with percentile intervals over fits on documents drawn anew within each class; C and vocabulary stay."""
    if X is None or y is None:
        raise ValueError(f"repeats={repeats} needs the documents X and their labels y")
    check_range("level", level, 0.0, 1.0)
    counts = count_documents(model, X)
    labels = encode_classes(y, counts.shape[0], model.classes_)
    rng = check_random_state(model.random_state)
    again = clone(model).set_params(C=model.choice_.C, null=model.choice_.null, loss=model.choice_.loss)
    members = [np.flatnonzero(labels == k) for k in range(len(model.classes_))]
    samples = []
    for _ in range(repeats):
        rows = np.concatenate([rng.choice(group, len(group)) for group in members])
        samples.append(_table(again.fit(counts[rows], model.classes_[labels[rows]])))
    table = _table(model)
    for name in NUMBERS:
        values = np.stack([sample[name].to_numpy() for sample in samples])
        table[f"{name}_low"], table[f"{name}_high"] = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return _sorted(table)


def _table(model: TextClassifier) -> pd.DataFrame:
    """One row per class (the second of two) and token, in the order of the vocabulary."""
    import pandas as pd

    counts, shares, sizes = model._statistics
    total = counts.sum(axis=1)
    binary = len(model.classes_) == 2
    tables = []
    for k in [1] if binary else range(len(model.classes_)):
        table = pd.DataFrame(
            {
                "class": model.classes_[k],
                "token": list(model.token_names_),
                "count": total,
                "signed_frequency": (2 * shares[:, k] - shares.sum(axis=1)) / sizes.sum(),
                "posterior_difference": (2 * counts[:, k] - total) / np.where(total > 0, total, 1.0),
                "value": model.values_[:, :, 0 if binary else k].mean(axis=1),
                "selection": model.selection_.max(axis=1),
            }
        )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Classes in their order, within them what would weigh most in a document first."""
    import pandas as pd

    strength = np.exp(table["selection"] - table["selection"].max()) * table["value"].abs()
    keys = table.assign(strength=-strength, block=pd.factorize(table["class"])[0])
    return table.loc[keys.sort_values(["block", "strength"], kind="stable").index].reset_index(drop=True)
