"""How many best directions there are: the dimension of the optimal face, where floats can tell.

Strictly convex norms have one best direction. At p = 1 and p = inf an interior-point method ends inside the optimal face, and
the directions along which one can move inside it are those that keep the tight rows tight and, of the singular values,

nuclear    the rank: dW = U H V^T with H symmetric, on the singular vectors of positive singular values;
spectral   those that equal the norm: dW = U H V^T with any H, on the other singular vectors.
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
DOUBT_OF_SQUARES = (1e-12, 1e-8)


def face_dimension(
    constraints: Constraints | VocabularyConstraints, certificate: MarginCertificate, norm: Norm
) -> int | None:
    """Dimension of the set of best directions, or None if it is not known."""
    if certificate.status != "optimal" or certificate.direction is None:
        return None
    if 1 < norm.p < np.inf:
        return 0
    if not (isinstance(norm, SchattenNorm) and isinstance(constraints, Constraints)):
        return None
    left, values, right = np.linalg.svd(certificate.direction)
    unit, _ = constraints.normalized()
    slack = unit.apply(certificate.direction.ravel())
    slack -= unit.rhs * np.min(slack[unit.rhs > 0] / unit.rhs[unit.rhs > 0])
    loose = _positive(slack, DOUBT)
    kept = _positive(values / values[0], DOUBT) if norm.p == 1 else _positive(1 - values / values[0], DOUBT)
    if loose is None or kept is None:
        return None
    tight = unit.subset(unit.free | ~loose)
    return _freedom(tight.left @ left[:, kept], tight.right @ right[kept].T, symmetric=norm.p == 1)


def _positive(values: Vector, doubt: tuple[float, float]) -> NDArray[np.bool_] | None:
    """Which values are not zero; None if there is doubt about one of them."""
    if np.any((values > doubt[0]) & (values < doubt[1])):
        return None
    result: NDArray[np.bool_] = values >= doubt[1]
    return result


def _freedom(left: Vector, right: Vector, symmetric: bool) -> int | None:
    """Dimension of the (symmetric) matrices H with left_k^T H right_k = 0 for all k."""
    size = int(left.shape[1])
    gram = (left @ left.T) * (right @ right.T)
    if symmetric:
        mixed = left @ right.T
        gram = (gram + mixed * mixed.T) / 2
    values = np.linalg.eigvalsh(gram)
    independent = _positive(values / values.max(initial=1e-300), DOUBT_OF_SQUARES)
    if independent is None:
        return None
    unknowns = size * (size + 1) // 2 if symmetric else size**2
    return unknowns - int(independent.sum())
