"""What the theory of sparse tokens can read of a pilot: bags of one length, features that vary and do not repeat others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from whichtoken.data.bags import Bags

Array = NDArray[np.float64]

DEPENDENT = 1e-10  # share of a feature's variance below which it follows from the others


def equal_lengths(bags: Bags, notes: list[str]) -> tuple[Array, NDArray[np.intp]]:
    """Tokens (k, L, d) that the theory can read, and the bags they come from.

    Ragged bags give a random part of their instances, as many as three quarters of them have; that keeps the informative
    share, not the number.
    """
    length = max(2, int(np.quantile(bags.lengths, 0.25)))
    rows = np.flatnonzero(bags.lengths >= length)
    if bags.lengths.min() == bags.lengths.max() == length:
        return bags.tokens.reshape(len(bags), length, -1).astype(float, copy=False), rows
    notes.append(
        f"bags have {bags.lengths.min()} to {bags.lengths.max()} instances, and the theory is for one length: it sees"
        f" {length} instances drawn from each of {len(rows)} bags"
    )
    rng = np.random.default_rng(0)
    drawn = [bags.bag(int(i))[rng.permutation(bags.lengths[i])[:length]] for i in rows]
    return np.array(drawn, dtype=float).reshape(len(rows), length, bags.dim), rows


def usable_features(negative: Array, names: Sequence[str] | None, notes: list[str]) -> NDArray[np.intp]:
    """Features that vary within negative sequences and do not follow from others; notes name the rest."""
    dim = negative.shape[2]
    if not negative.size:
        return np.arange(dim)
    spread = (negative - negative.mean(axis=1, keepdims=True)).reshape(-1, dim)
    scale = np.sqrt((spread**2).mean(axis=0))
    size = np.abs(negative).reshape(-1, dim).max(axis=0)
    varies = np.flatnonzero(scale > 1e-12 * np.maximum(size, 1e-300))
    _name_left_out(np.setdiff1d(np.arange(dim), varies), "the same within every negative bag", names, notes)
    if len(varies) > len(spread):
        return varies  # more features than rows: the estimate does not decorrelate them anyway
    _, triangle, order = qr(spread[:, varies] / scale[varies], mode="economic", pivoting=True)
    free = np.abs(np.diag(triangle)) ** 2 > DEPENDENT * len(spread)
    kept = np.sort(varies[order[: len(free)][free]])
    _name_left_out(np.setdiff1d(varies, kept), "linear in the others", names, notes)
    return kept


def _name_left_out(places: NDArray[np.intp], why: str, names: Sequence[str] | None, notes: list[str]) -> None:
    if places.size:
        shown = [str(names[place]) if names is not None else f"feature {place + 1}" for place in places[:5]]
        more = f" and {places.size - 5} more" if places.size > 5 else ""
        notes.append(f"the theory leaves out {', '.join(shown)}{more}: {why}")
