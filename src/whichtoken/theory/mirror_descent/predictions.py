"""Where l_p mirror descent takes softmax attention, how fast, and how to measure the distance that remains.

Source: Julistiono, Tarzanagh, Azizan, "Optimizing Attention with Mirror Descent: Generalized Max-Margin Token
Selection", arXiv 2410.14581.

========  ==============================================================================================
symbol    meaning
========  ==============================================================================================
p, q      exponent of the geometry, p > 1, and its dual, q = p / (p - 1)
W         key-query matrix (d, d); the attention score of token x for query z is x.W z
psi       potential (1/p) sum |W_jl|^p
U         dual variable grad psi(W) = sign(W) |W|^(p-1), entry by entry; |U|_q = |W|_p^(p-1)
gamma     token scores (n, T): y_i v.x_it, label times decoder output of the token
alpha     selected token of each sequence (n,)
W_mm      the limit: least |W|_p such that alpha_i beats every other token t by (x_i,alpha_i - x_it).W z_i >= 1
D_p       directional Bregman divergence of psi between the unit vectors along two matrices
eta, k    step size and number of steps
t         time of plain gradient flow
mu, rho   label margin of the limit of v, margin of the relaxed limit of W, both of unit norm
========  ==============================================================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.norms import power_norm, signed_power

_SERIES_RADIUS = 0.1  # times 1/p: relative distance below which a term of D_p is summed as a power series
_SERIES_TERMS = 12  # each term is below a tenth of the one before


def locally_optimal(token_scores: ArrayLike, selected: ArrayLike, support: ArrayLike) -> bool:
    """Whether the selected token of every sequence has a higher token score than each of its support tokens.

    Only then is W_mm a direction that descent can converge to (Tarzanagh et al., arXiv 2306.13596).

    Parameters
    ----------
    token_scores : array_like of shape (n, T)
        Label times decoder output of every token.
    selected : array_like of shape (n,)
        Token index of each sequence.
    support : array_like
        Indices of the constraints with a positive multiplier, counted by sequence and, within it, by unselected token.

    Returns
    -------
    bool
        Whether the limit attracts descent.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import locally_optimal
    >>> locally_optimal(token_scores=[[3.0, 1.0, 5.0]], selected=[0], support=[0])  # beats token 1, which is the support
    True
    """
    gamma, alpha = _scores_and_selection(token_scores, selected)
    chosen = np.take_along_axis(gamma, alpha[:, None], axis=1)  # (n, 1)
    unselected = np.arange(gamma.shape[1]) != alpha[:, None]  # (n, T)
    advantages = (chosen - gamma)[unselected]  # (n (T-1),), in the order of the constraints
    return bool(np.all(advantages[np.asarray(support, dtype=np.intp)] > 0.0))


def globally_optimal(token_scores: ArrayLike, selected: ArrayLike) -> bool:
    """Whether every sequence selects a token of the highest token score.

    Parameters
    ----------
    token_scores : array_like of shape (n, T)
        Label times decoder output of every token.
    selected : array_like of shape (n,)
        Token index of each sequence.

    Returns
    -------
    bool
        Whether the selection is the best one.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import globally_optimal
    >>> globally_optimal([[3.0, 1.0, 5.0]], [0]), globally_optimal([[3.0, 1.0, 5.0]], [2])
    (False, True)
    """
    gamma, alpha = _scores_and_selection(token_scores, selected)
    return bool(np.all(np.take_along_axis(gamma, alpha[:, None], axis=1)[:, 0] == gamma.max(axis=1)))


def _scores_and_selection(token_scores: ArrayLike, selected: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    gamma, alpha = np.asarray(token_scores, dtype=np.float64), np.asarray(selected, dtype=np.intp)
    if gamma.ndim != 2 or alpha.shape != gamma.shape[:1]:
        raise ValueError(f"token_scores {gamma.shape} and selected {alpha.shape} must have shapes (n, T) and (n,)")
    return gamma, alpha


def mirror_map(weights: ArrayLike, p: float) -> NDArray[np.float64]:
    """U = sign(W) |W|^(p-1), the gradient of psi.

    Parameters
    ----------
    weights : array_like
        W.
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    array
        U, of the shape of W.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import mirror_map
    >>> mirror_map([2.0, -3.0], p=3.0).tolist()
    [4.0, -9.0]
    """
    _check_geometry(p)
    return signed_power(weights, p - 1.0)


def inverse_mirror_map(dual: ArrayLike, p: float) -> NDArray[np.float64]:
    """W = sign(U) |U|^(1/(p-1)); it takes unit l_q norm to unit l_p norm.

    Parameters
    ----------
    dual : array_like
        U.
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    array
        W, of the shape of U.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import inverse_mirror_map, mirror_map
    >>> inverse_mirror_map(mirror_map([2.0, -3.0], p=3.0), p=3.0).tolist()
    [2.0, -3.0]
    """
    _check_geometry(p)
    return signed_power(dual, 1.0 / (p - 1.0))


def directional_divergence(limit: ArrayLike, iterate: ArrayLike, p: float) -> float:
    """D_p from the limit to the iterate, both first scaled to unit l_p norm; for p = 2 this is 1 - cosine.

    On unit vectors D_p = 1 - <limit, grad psi(iterate)>, which is rounding noise below 1e-15. Here it is summed entry
    by entry: every term is non-negative and computed to full relative accuracy, so that D_p is right down to 1e-30.

    Parameters
    ----------
    limit, iterate : array_like
        Arrays of one shape, neither of them zero. D_p is not symmetric.
    p : float
        The exponent of the *algorithm* that made the iterate, whatever problem the limit solves.

    Returns
    -------
    float
        D_p, at least 0.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import directional_divergence
    >>> directional_divergence([1.0, 0.0], [5.0, 0.0], p=1.5)
    0.0
    >>> round(directional_divergence([1.0, 0.0], [1.0, 1.0], p=2.0), 4)  # 1 - cosine
    0.2929
    """
    _check_geometry(p)
    a, b = (np.asarray(x, dtype=np.float64) for x in (limit, iterate))
    if a.shape != b.shape:
        raise ValueError(f"limit of shape {a.shape} and iterate of shape {b.shape} must have the same shape")
    size_a, size_b = power_norm(a, p), power_norm(b, p)
    if not (0.0 < size_a < np.inf and 0.0 < size_b < np.inf):
        raise ValueError(f"limit and iterate must be finite and not zero, their l_p norms are {size_a} and {size_b}")
    return float(np.sum(_entrywise_bregman(a.ravel() / size_a, b.ravel() / size_b, p)))


def _entrywise_bregman(a: NDArray[np.float64], b: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    """|a|^p/p - |b|^p/p - sign(b)|b|^(p-1) (a - b)."""
    terms: NDArray[np.float64] = (np.abs(a) ** p - np.abs(b) ** p) / p - signed_power(b, p - 1.0) * (a - b)
    near = np.abs(a - b) <= _SERIES_RADIUS / p * np.abs(b)
    near &= b != 0.0
    # a = b (1 + r): |b|^p ((1 + r)^p - 1 - p r) / p cancels to second order in r, so start its series there
    r = (a[near] - b[near]) / b[near]
    power = (p - 1.0) / 2.0 * r**2
    series = np.zeros_like(r)
    for order in range(2, 2 + _SERIES_TERMS):
        series += power
        power = power * r * (p - order) / (order + 1)
    terms[near] = np.abs(b[near]) ** p * series
    return terms


def divergence_rate(p: float) -> float:
    """The exponent r of D_p ~ k^-r under normalized steps of constant size.

    The relative weights of the constraints settle while the scores keep growing, so the direction is wrong by about
    1/|W|_p and D_p by its square, k^(-2/(p-1)). But a single step still turns U by about 1/k: never faster than k^-2.

    Parameters
    ----------
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    float
        The exponent r.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import divergence_rate
    >>> divergence_rate(1.5), divergence_rate(2.0), divergence_rate(3.0)
    (2.0, 2.0, 1.0)
    """
    _check_geometry(p)
    return min(2.0, 2.0 / (p - 1.0))


def plain_divergence_rate(p: float) -> float:
    """The exponent r of D_p ~ (log t)^-r under plain steps.

    Plain steps let |W|_p grow as log t. What the first steps put into U stays, and is wrong relative to |U|_q by
    (log t)^-(p-1); the constraints are met up to a constant, hence relative to |W|_p up to 1 / log t. D_p is the square
    of the larger one.

    Parameters
    ----------
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    float
        The exponent r.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import plain_divergence_rate
    >>> plain_divergence_rate(1.5), plain_divergence_rate(3.0)
    (1.0, 2.0)
    """
    return 2.0 * proven_divergence_rate(p)


def proven_divergence_rate(p: float) -> float:
    """The exponent r of the source's bound D_p = O((log t)^-r) under plain steps, up to powers of log log t.

    That the bound is poly-logarithmic was read in an excerpt; its exponent is recalled, not read.

    Parameters
    ----------
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    float
        The exponent r.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import proven_divergence_rate
    >>> proven_divergence_rate(1.5), proven_divergence_rate(3.0)
    (0.5, 1.0)
    """
    _check_geometry(p)
    return min(1.0, p - 1.0)


def joint_flow_growth(weight_norm: ArrayLike, relaxed_margin: float, p: float) -> NDArray[np.float64]:
    """rho |W|_p + (p - 2) log |W|_p, which grows as p log log t in plain flow of W and v, while mu |v|_p grows as log t.

    The loss of the support sequences is exp(-mu |v|), so that t exp(-mu |v|) ~ |v|^(p-2) and mu |v| = log t to leading
    order. The pull on W is |v|^(p-1) exp(-rho |W|) per unit of log t and has to raise |U|_q = |W|^(p-1).

    Parameters
    ----------
    weight_norm : array_like
        |W|_p, one or several.
    relaxed_margin : float
        rho.
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    array
        The growth, in the shape of `weight_norm`.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import joint_flow_growth
    >>> joint_flow_growth([1.0, 2.0], relaxed_margin=0.5, p=2.0).tolist()
    [0.5, 1.0]
    """
    _check_geometry(p)
    norm = np.asarray(weight_norm, dtype=np.float64)
    return np.asarray(relaxed_margin * norm + (p - 2.0) * np.log(norm))


def alternating_growth(margin: float, multipliers: ArrayLike, constraint_norms: ArrayLike) -> float:
    """|U|_q / (eta k) when every normalized gradient comes from one constraint A_j: margin / sum_j mu_j |A_j|_q.

    A_j then occurs in proportion to mu_j |A_j|_q and U = eta k sum_j mu_j A_j / sum_j mu_j |A_j|_q, with multipliers mu_j
    of the limit (sum 1), for which |sum_j mu_j A_j|_q is the margin.

    Parameters
    ----------
    margin : float
        That of the limit.
    multipliers : array_like of shape (m,)
        mu_j, with sum 1.
    constraint_norms : array_like of shape (m,)
        |A_j|_q.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import alternating_growth
    >>> alternating_growth(margin=1.0, multipliers=[0.5, 0.5], constraint_norms=[2.0, 2.0])
    0.5
    """
    return margin / float(np.dot(multipliers, constraint_norms))


def effective_nonzeros(weights: ArrayLike) -> float:
    """(sum |w|)^2 / sum w^2: the number of entries if all are of one size, near one if a single entry dominates.

    Parameters
    ----------
    weights : array_like
        Any array but zero.

    Returns
    -------
    float
        Between 1 and the number of entries.

    Examples
    --------
    >>> from whichtoken.theory.mirror_descent import effective_nonzeros
    >>> effective_nonzeros([1.0, -1.0, 1.0]), round(effective_nonzeros([1.0, 0.001, 0.0]), 3)
    (3.0, 1.002)
    """
    magnitudes = np.abs(np.asarray(weights, dtype=np.float64))
    if not (peak := float(magnitudes.max())) > 0.0:
        raise ValueError(f"weights must not all be zero, the largest magnitude is {peak}")
    magnitudes = magnitudes / peak
    return float(magnitudes.sum() ** 2 / np.sum(magnitudes**2))


def _check_geometry(p: float) -> None:
    if not 1.0 < p < np.inf:
        raise ValueError(f"p={p} must be a finite number above 1")
