"""Splits that spread the classes evenly and keep clusters of rows whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

TRIES = 50  # of which the most even one is taken


def stratified_folds(
    labels: NDArray[Any], folds: int, clusters: NDArray[Any] | None, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows to train on and rows to test on, for each fold."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    kind = StratifiedKFold if clusters is None else StratifiedGroupKFold
    yield from kind(folds, shuffle=True, random_state=seed).split(labels, labels, clusters)


def stratified_clusters(
    labels: NDArray[Any], clusters: NDArray[np.intp], test: int, share: float, seed: int, least: int
) -> NDArray[np.bool_]:
    """Rows of `test` whole clusters that hold all classes, if some do, and of each class about this share; as booleans, (n,).

    At least `least` rows of each class are left, where that can be.
    """
    codes, kinds = (np.unique(values, return_inverse=True)[1] for values in (clusters, labels))
    count, total = int(codes.max()) + 1, np.bincount(kinds)
    table = csr_array((np.ones(len(codes)), (codes, kinds)), shape=(count, len(total)))
    rarest = np.full(count, len(total))
    np.minimum.at(rarest, codes, np.argsort(np.argsort(total, kind="stable"))[kinds])
    rng = np.random.default_rng(seed)
    best, best_cost = np.empty(0, np.bool_), (np.inf, np.inf)
    for _ in range(TRIES):
        order = np.lexsort((rng.random(count), rarest))  # clusters of one kind are neighbors; each n-th is taken
        taken = np.diff(np.floor(np.arange(count + 1) * (test / count) + rng.random())) > 0
        chosen = np.zeros(count, np.bool_)
        chosen[order[taken]] = True
        held = chosen.astype(np.float64) @ table
        lost = int(((held == 0) | (total - held < least)).sum())
        cost = (lost, float(np.abs(held / total - share).sum()))
        if 0 < chosen.sum() < count and cost < best_cost:
            best, best_cost = chosen, cost
    return np.asarray(best[codes])
