"""Compiled: numpy would write five matrices of all pairs of rows where one suffices."""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def add_products(gram: NDArray[Any], between: NDArray[Any], across: NDArray[Any], run: NDArray[Any]) -> None:
    """gram_kl <- gram_kl between_(run k, run l) + across_(k, run l) across_(l, run k), in place.

    Parameters
    ----------
    gram : (m, m)
    between : (runs, runs)
        Of the queries that runs of rows share.
    across : (m, runs)
    run : (m,)
        The run of every row.
    """
    for k in range(len(run)):
        mine = run[k]
        for other in range(len(run)):
            theirs = run[other]
            gram[k, other] = gram[k, other] * between[mine, theirs] + across[k, theirs] * across[other, mine]
