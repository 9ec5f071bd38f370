r"""Where training ends with fewer outputs than features: the layer chooses where in its context it looks.

In the whitened coordinates of its n stored tokens the layer computes, for a query z and b = Q^T z,

    P h(z) = P (b + 1/2 K3[b, b] + 1/6 K4[b, b, b] + ...),

where K3, K4, ... are the cumulants of the tokens beyond the second. For Gaussian tokens they vanish but for sampling noise: an
entry of K3 has variance 6/n, 2/n or 1/n (three, two or no equal indices), of K4 24/n down to 1/n. Balanced factors of
Y = U s V^T are P = U s^(1/2) R^T / c and Q = c V s^(1/2) R^T with a frame R of k orthonormal columns in R^d, k the number of
outputs. In the limit all frames are equal. On a finite context the error is that of K3 and K4 compressed to the frame, and
training turns the subspace of the frame until they are small. The cubic form K3 vanishes on a whole k-dimensional subspace
if that asks no more equations, k (k+1) (k+2) / 6, than there is freedom, k (d - k): one output in two or more dimensions
always finds such a direction, two outputs do from four dimensions on, while with k = d there is no subspace to choose.

The Gram preconditioner is what makes the turn quick: across the frame P^T P is zero, so that only the damping divides the
gradient. Rotations within the subspace have no such help, and in the steps of one training they hardly happen: they are left
out here. So are cumulants beyond the fourth, about 1 % of the start's error at |Q|_F = 0.3.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import combinations_with_replacement, permutations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DRAWS = 12  # of the cumulants; the mean then errs by 5 to 10 %
# dimensions up to which K4, of dim^4 entries, is counted; its error is about 8 % of that of K3 at |Q|_F = 0.3
WIDEST = 12
EVALUATIONS = 25  # of the error and its derivatives in one search for a subspace


def frame_error(sizes: Array, dim: int, noise: float, samples: int, logit_norm: float) -> float:
    """Mean squared error, of the third and fourth cumulants of n stored tokens, that is left after the subspace is chosen.

    Parameters
    ----------
    sizes : array of shape (outputs,)
        Singular values of Y.
    dim : int
        Number of features d, more than outputs.
    noise : float
        Standard deviation of the label noise: the subspace is chosen so as to fit it too.
    samples : int
        Training pairs n.
    logit_norm : float
        |Q|_F.

    Returns
    -------
    float
        Averaged over `DRAWS` Gaussian cumulants, the same in every call.
    """
    rng = np.random.default_rng(0)
    return float(np.mean([_one_draw(sizes, dim, noise, logit_norm, rng) for _ in range(DRAWS)])) / samples


def _one_draw(sizes: Array, dim: int, noise: float, logit_norm: float, rng: np.random.Generator) -> float:
    """n times the error for one draw of the cumulants, whose entries are here of order one."""
    from scipy.optimize import least_squares

    outputs = len(sizes)
    cumulants = [_symmetric_normal(dim, order, rng) for order in ((3, 4) if dim <= WIDEST else (3,))]
    fitted_noise = noise * rng.standard_normal(_residuals(np.eye(dim, outputs), cumulants, sizes, logit_norm).shape)
    fitted_noise[:outputs] = 0.0  # constants: the labels are centred

    def misfit(tilt: Array) -> Array:
        return _residuals(_frame(tilt, outputs), cumulants, sizes, logit_norm) - fitted_noise

    found = least_squares(
        misfit, np.zeros((dim - outputs) * outputs), ftol=1e-3, xtol=1e-3, gtol=1e-6, max_nfev=EVALUATIONS
    )
    return float(np.sum(_residuals(_frame(found.x, outputs), cumulants, sizes, logit_norm) ** 2))


def _residuals(frame: Array, cumulants: list[Array], sizes: Array, logit_norm: float) -> Array:
    """Coefficients of the error in orthonormal polynomials of the query, constants first.

    Its linear part is left out: training fits the linear map to the labels in any case.
    """
    scale = logit_norm / math.sqrt(sizes.sum())
    root = frame * np.sqrt(sizes)
    third = 0.5 * scale * _compressed(cumulants[0], root)
    constants = np.trace(third, axis1=1, axis2=2)
    parts = [constants, math.sqrt(2.0) * _distinct(third, 2)]
    for fourth in cumulants[1:]:
        cubic = scale**2 / 6.0 * _compressed(fourth, root)
        parts.append(math.sqrt(6.0) * _distinct(cubic, 3))
    return np.concatenate(parts)


def _compressed(tensor: Array, root: Array) -> Array:
    for _ in range(tensor.ndim):  # contract the first axis, append the new one: after all of them the order is the old
        tensor = np.tensordot(tensor, root, axes=(0, 0))
    return tensor


def _distinct(form: Array, degree: int) -> Array:
    """Entries (output, i <= j <= ...) with weights such that their squares sum to those of the whole form."""
    columns, weights = _columns(form.shape[0], degree)
    picked: Array = np.moveaxis(form, 0, -1)[columns].T * weights
    return picked.ravel()


@cache
def _columns(outputs: int, degree: int) -> tuple[tuple[NDArray[np.int64], ...], Array]:
    indices = list(combinations_with_replacement(range(outputs), degree))
    weights = [math.sqrt(math.factorial(degree) / _repetitions(index)) for index in indices]
    return tuple(np.array(indices).T), np.array(weights)


def _symmetric_normal(dim: int, order: int, rng: np.random.Generator) -> Array:
    """Hermite moments of Gaussian tokens, times sqrt(n): an entry's variance is the product of its repetitions' factorials."""
    tensor = np.empty((dim,) * order)
    for index in combinations_with_replacement(range(dim), order):
        value = math.sqrt(_repetitions(index)) * rng.standard_normal()
        for place in set(permutations(index)):
            tensor[place] = value
    return tensor


def _repetitions(index: tuple[int, ...]) -> int:
    return math.prod(math.factorial(count) for count in Counter(index).values())


def _frame(tilt: Array, outputs: int) -> Array:
    """The first axes, tilted into the others without a rotation of their own: every subspace but those at a right angle."""
    left, _, right = np.linalg.svd(np.vstack([np.eye(outputs), tilt.reshape(-1, outputs)]), full_matrices=False)
    nearest: Array = left @ right
    return nearest
