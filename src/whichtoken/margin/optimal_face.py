"""How many best directions there are: the dimension of the optimal face, where floats can tell.

Strictly convex norms have one best direction. At p = 1 and p = inf an interior-point method ends inside the optimal face, and
the directions along which one can move inside it are those that keep the tight rows tight and, of the singular values,

nuclear    the rank: dW = U H V^T with H symmetric, on the singular vectors of positive singular values;
spectral   those that equal the norm: dW = U H V^T with any H, on the other singular vectors;

or, of the entries, those that are zero (p = 1) or equal to the norm (p = inf).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from whichtoken.margin.certificate import MarginCertificate
from whichtoken.margin.constraints import Constraints
from whichtoken.margin.geometry import Norm, SchattenNorm
from whichtoken.norms import Vector

if TYPE_CHECKING:
    from whichtoken.margin.vocabulary import VocabularyConstraints

# Below the first, a number is zero; above the second, it is not; in between, floats cannot tell.
DOUBT = (1e-6, 1e-4)
# tight rows depend on each other by their multipliers, up to the error of singular vectors
DOUBT_OF_SQUARES = (1e-9, 1e-6)


def face_dimension(
    constraints: Constraints | VocabularyConstraints, certificate: MarginCertificate, norm: Norm
) -> int | None:
    """Dimension of the set of best directions, or None if it is not known."""
    if certificate.status != "optimal" or certificate.direction is None:
        return None
    if 1 < norm.p < np.inf:
        return 0
    weights, (unit, _) = certificate.direction.ravel(), constraints.normalized()
    scores, positive = unit.apply(weights), unit.rhs > 0
    slack = scores - unit.rhs * np.min(scores[positive] / unit.rhs[positive])
    loose = _positive(slack / np.abs(scores).max(), DOUBT)
    if isinstance(norm, SchattenNorm):
        left, values, right = np.linalg.svd(certificate.direction)
    else:
        values = np.abs(weights)
    values = values / values.max()
    kept = _positive(values if norm.p == 1 else 1 - values, DOUBT)
    if loose is None or kept is None:
        return None
    tight = unit.subset(unit.free | ~loose)
    if isinstance(norm, SchattenNorm):
        return _freedom_of_matrices(tight.left @ left[:, kept], tight.right @ right[kept].T, symmetric=norm.p == 1)
    return _freedom(int(kept.sum()), tight.gram(kept.astype(float)))


def _positive(values: Vector, doubt: tuple[float, float]) -> NDArray[np.bool_] | None:
    """Which values are not zero; None if there is doubt about one of them."""
    if np.any((values > doubt[0]) & (values < doubt[1])):
        return None
    result: NDArray[np.bool_] = values >= doubt[1]
    return result


def _freedom_of_matrices(left: Vector, right: Vector, symmetric: bool) -> int | None:
    """Dimension of the (symmetric) matrices H with left_k^T H right_k = 0 for all k."""
    size = int(left.shape[1])
    gram = (left @ left.T) * (right @ right.T)
    if not symmetric:
        return _freedom(size**2, gram)
    mixed = left @ right.T
    return _freedom(size * (size + 1) // 2, (gram + mixed * mixed.T) / 2)


def _freedom(unknowns: int, gram: Vector) -> int | None:
    """How many of the unknowns equations with this Gram matrix leave free."""
    values = np.linalg.eigvalsh(gram)
    independent = _positive(values / values.max(initial=1e-300), DOUBT_OF_SQUARES)
    return None if independent is None else unknowns - int(independent.sum())
