"""How much of the best attainable margin a key-query matrix reaches, norm by norm: in whose geometry was it trained?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.display.shown import Shown
from whichtoken.margin import MarginCertificate, key_query_svm
from whichtoken.margin.geometry import choose_norm

Matrix = NDArray[np.float64]
# the norms of the map, by the names that people give them: kind and exponent
NORMS: dict[str, tuple[str, float]] = {
    "l1": ("entrywise", 1.0),
    "l2": ("entrywise", 2.0),
    "linf": ("entrywise", math.inf),
    "nuclear": ("schatten", 1.0),
    "spectral": ("schatten", math.inf),
}


@dataclass(frozen=True, eq=False)
class MarginScale(Shown):
    """The best margins of one selection of tokens, each with its certificate."""

    tokens: Matrix  # (n, T, d)
    queries: Matrix  # (n, d)
    selected: NDArray[np.int64]  # (n,)
    norms: Mapping[str, tuple[str, float]]
    certificates: Mapping[str, MarginCertificate]

    def shares(self, weights: ArrayLike) -> dict[str, float]:
        """min over constraints of <constraint, W> / |W|, over the best of all W, for each norm; negative if a token is not ahead.

        The best margin is taken at its proven upper bound: shares are never overstated.
        """
        matrix = np.asarray(weights, dtype=np.float64)
        lead = self.least_lead(matrix)
        sizes = {name: choose_norm(kind, p, matrix.shape).of(matrix.ravel()) for name, (kind, p) in self.norms.items()}
        return {name: lead / (size * self.certificates[name].dual_bound) for name, size in sizes.items()}

    def least_lead(self, weights: Matrix) -> float:
        """By how much the selected tokens are ahead of all others, at least."""
        scores = np.einsum("ntd,de,ne->nt", self.tokens, weights, self.queries)
        chosen = np.take_along_axis(scores, self.selected[:, None], axis=1)
        others = np.arange(scores.shape[1]) != self.selected[:, None]
        return float((chosen - scores)[others].min())

    @property
    def gap(self) -> float:
        """The largest duality gap of the best margins."""
        return max(certificate.gap for certificate in self.certificates.values())


def margin_scale(
    tokens: ArrayLike, queries: ArrayLike, selected: ArrayLike, norms: Mapping[str, tuple[str, float]] = NORMS
) -> MarginScale:
    """Solve the limit problems of a selection in several norms.

    Parameters
    ----------
    tokens, queries, selected : arrays of shape (n, T, d), (n, d) and (n,)
        The sequences, one query for each, and the token that attention selects.
    norms : Mapping of names, optional
        Kind ("entrywise" or "schatten") and exponent by name.

    Returns
    -------
    MarginScale
        With `shares(weights)`, what a matrix has of the best margin in each norm.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import margin_scale
    >>> tokens, queries = np.eye(3)[None], np.ones((1, 3))
    >>> scale = margin_scale(tokens, queries, [0])
    >>> best = scale.certificates["l2"].direction
    >>> round(scale.shares(best)["l2"], 6)
    1.0
    """
    x, z, chosen = np.asarray(tokens, float), np.asarray(queries, float), np.asarray(selected, np.int64)
    certificates = {name: key_query_svm(x, z, chosen, p=p, norm=kind) for name, (kind, p) in norms.items()}
    for certificate in certificates.values():
        certificate.require_direction()
    return MarginScale(x, z, chosen, dict(norms), certificates)
