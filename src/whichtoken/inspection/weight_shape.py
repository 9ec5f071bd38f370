"""The key-query matrix of a head by itself: how many directions it uses, how spread its entries, how balanced its factors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.inspection.anatomy import Anatomy, linear_weight


@dataclass(frozen=True)
class WeightShape(Shown):
    """Shape of W = scale * W_key^T W_query, (width, width), of rank at most the dimension of the head."""

    frobenius: float
    spectral: float  # largest singular value
    stable_rank: float  # frobenius^2 / spectral^2: 1 for one direction
    effective_rank: float  # exponential of the entropy of the squared singular values
    spread: float  # l_1 / (width l_2) of the entries: 1 if all are equally large, 1 / width for a single one
    imbalance: float  # |W_key W_key^T - W_query W_query^T| over the sum of both norms: 0 where the factors are balanced


def factors(part: Anatomy, head: int, heads: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Key and query factors of a head with their biases: (dim, width + 1) each; None where they are fused."""
    projections = part.query_key()
    if projections is None:
        return None
    rows = []
    for projection in reversed(projections):
        weight = linear_weight(projection).detach().double().numpy()
        bias = getattr(projection, "bias", None)
        bias = np.zeros(len(weight)) if bias is None else bias.detach().double().numpy()
        whole = np.c_[weight, bias]
        dim = linear_weight(projections[0]).shape[0] // heads
        own = head if len(whole) == heads * dim else head * (len(whole) // dim) // heads  # grouped keys
        rows.append(whole[own * dim : (own + 1) * dim])
    return rows[0], rows[1]


def weight_shape(key: NDArray[np.float64], query: NDArray[np.float64], scale: float) -> WeightShape:
    """Shape of the matrix of a head, from its factors (dim, width + 1); biases are left out."""
    key, query = key[:, :-1], query[:, :-1]
    matrix = scale * key.T @ query
    values = np.linalg.svd(scale * np.linalg.qr(key.T)[1] @ np.linalg.qr(query.T)[1].T, compute_uv=False)
    energy = values**2 / (values**2).sum()
    entropy = -(energy[energy > 0] * np.log(energy[energy > 0])).sum()
    grams = key @ key.T, query @ query.T
    frobenius = float(np.linalg.norm(matrix))
    return WeightShape(
        frobenius=frobenius,
        spectral=float(values[0]),
        stable_rank=float((values**2).sum() / values[0] ** 2),
        effective_rank=float(np.exp(entropy)),
        spread=float(np.abs(matrix).sum() / (matrix.shape[0] * frobenius)),
        imbalance=float(np.linalg.norm(grams[0] - grams[1]) / (np.linalg.norm(grams[0]) + np.linalg.norm(grams[1]))),
    )
