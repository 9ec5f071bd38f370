"""Where training on finitely many pairs ends, and where it starts. Symbols as in `attention_regression`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.theory.attention_regression.context import finite_context_error
from whichtoken.theory.attention_regression.factors import balanced_factors, gauge_floor, svdvals
from whichtoken.theory.attention_regression.frames import frame_error

Array = NDArray[np.float64]


def excess_floor(kind: str, target: ArrayLike, noise: float, samples: int, logit_norm: float) -> float:
    """Excess 1/2 E |f(x) - M x|^2 at which training on n centred pairs ends, to order 1/n.

    Least squares contributes noise^2 d outputs / n to the squared error, its intercept noise^2 outputs / n. The context
    contributes its own error; where it is not the training set, so does the gap between the two covariances. With fewer
    outputs than features training chooses the subspace in which it looks at the training tokens, and most of their own
    error goes (`frames`; a mean over simulated cumulants, which takes about a second); with as many it stays. One or two outputs
    at very little noise end two to three times above it (`attention-regression/floor`).

    Parameters
    ----------
    kind : {"population", "stored", "fresh"}
        An infinite context; the training tokens; n new tokens.
    target : array_like of shape (outputs, d)
        Y = M Sigma^(1/2).
    noise : float
        Standard deviation of the label noise.
    samples : int
        Training pairs n.
    logit_norm : float
        |Q|_F of the balanced factors that training ends in.

    Returns
    -------
    float
        The excess.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import excess_floor
    >>> few, many = (excess_floor("stored", np.eye(4), noise=0.1, samples=n, logit_norm=0.3) for n in (100, 1000))
    >>> round(few / many, 6)
    10.0
    """
    whitened_map = np.asarray(target, dtype=np.float64)
    outputs, dim = whitened_map.shape
    least_squares, intercept = noise**2 * dim * outputs / samples, noise**2 * outputs / samples
    covariance_gap = gauge_floor(whitened_map) / samples  # E |P (S - I) Q^T|_F^2, S the covariance of n tokens
    if kind == "population":
        return float(0.5 * (least_squares + covariance_gap))
    if kind == "stored" and outputs < dim:
        own = frame_error(svdvals(whitened_map), dim, noise, samples, logit_norm)
        return float(0.5 * (least_squares + intercept + own))
    untrained = start_floor(whitened_map, noise, samples, logit_norm)
    if kind == "stored":
        return untrained
    if kind == "fresh":
        return untrained + covariance_gap
    raise ValueError(f"kind={kind!r} must be one of population, stored, fresh")


def start_floor(target: ArrayLike, noise: float, samples: int, logit_norm: float) -> float:
    """Excess of the spectral start itself on its n training tokens: least squares, and the error of any balanced factors.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y = M Sigma^(1/2).
    noise : float
        Standard deviation of the label noise.
    samples : int
        Training pairs n.
    logit_norm : float
        |Q|_F of the balanced factors.

    Returns
    -------
    float
        The excess, 1/2 E |f(x) - M x|^2.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import excess_floor, start_floor
    >>> start = start_floor(np.eye(1, 6), noise=0.01, samples=800, logit_norm=0.3)
    >>> excess_floor("stored", np.eye(1, 6), noise=0.01, samples=800, logit_norm=0.3) < 0.02 * start  # one output
    True
    """
    whitened_map = np.asarray(target, dtype=np.float64)
    outputs, dim = whitened_map.shape
    P, Q = balanced_factors(whitened_map, logit_norm)
    own = finite_context_error(P, Q, samples, whitened=True)
    return float(0.5 * (noise**2 * outputs * (dim + 1) / samples + own))


def start_error(target: ArrayLike, noise: float, samples: int, moment: bool = False) -> float:
    """Root mean square of |Yhat - Y|_F / |Y|_F of the spectral start from n pairs: least squares, or the raw moment.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y = M Sigma^(1/2).
    noise : float
        Standard deviation of the label noise.
    samples : int
        Training pairs n.
    moment : bool, default=False
        Whether the start is the raw moment instead of least squares.

    Returns
    -------
    float
        Relative error.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import start_error
    >>> least_squares, raw = (start_error(np.eye(4), noise=0.1, samples=200, moment=m) for m in (False, True))
    >>> least_squares < raw
    True
    """
    whitened_map = np.asarray(target, dtype=np.float64)
    outputs, dim = whitened_map.shape
    size = float(np.sum(whitened_map**2))
    if moment:
        return math.sqrt((dim + 1 + noise**2 * dim * outputs / size) / samples)
    if samples <= dim + 1:
        raise ValueError(f"samples={samples} must exceed dim + 1 = {dim + 1} for least squares to have a finite error")
    return float(noise * math.sqrt(dim * outputs / size / (samples - dim - 1)))
