"""Dual coordinate ascent for min |p|^2 / 2 with p.(z_i - z_j) >= 1 on many pairs (i, j), through the Gram matrix of the z.

The dual is max sum_k lambda_k - |sum_k lambda_k (z_i - z_j)|^2 / 2 over lambda >= 0. With scores a = K w, w the multipliers
summed on the nodes, one coordinate is solved exactly with two rows of K. Only a working set is swept: for every node its
most violated pair on either side, and the pairs that have a multiplier.

Embeddings that one large gradient step has stretched along one or two directions make K so ill-conditioned that coordinates
hardly move. Along these directions the eigenvalue is lowered to an ordinary one and the difference is made good by proximal
steps: p is penalised for leaving its last component there, which changes nothing at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from whichtoken.norms import Vector

Indices = NDArray[np.int64]
SWEEPS = 20  # of one working set
STRETCHED, DIRECTIONS = 10.0, 2  # an eigenvalue so many times the next ordinary one is lowered; of at most so many
FLAT = 1e-12  # of the largest: an eigenvalue or a squared distance that is zero but for rounding
SMALL = 64  # nodes up to which all eigenvalues are computed
WORK, OVERHEAD = 2e10, 2e6  # multiply-adds after which a problem is left to another method; those of a round, at least


@dataclass(frozen=True, eq=False)
class PairProblem:
    """Distinct pairs of nodes in lexicographic order, and the Gram matrix of the nodes."""

    gram: Vector  # (nodes, nodes)
    first: Indices  # (m,)
    second: Indices  # (m,)

    def ascend(self, multipliers: Vector, tolerance: float) -> tuple[Vector, Vector, bool]:
        """Multipliers (m,), weights on nodes of a p that violates no constraint by more than `tolerance`, and success.

        The constraints have right-hand side 1, so `tolerance` is relative to the margin.
        """
        multipliers, work, finished = multipliers.copy(), 0.0, False
        directions, values, ordinary = self.stretched
        gram = self.gram - (directions.T * (values - ordinary)) @ directions
        nodes = self.on_nodes(multipliers)
        centre = values * (directions @ nodes)  # scores along the stretched directions
        while work < WORK and not finished:
            scores = gram @ nodes + (centre * (1 - ordinary / values)) @ directions
            cost = self._settle(gram, multipliers, scores, tolerance)
            work += cost + OVERHEAD
            nodes = self.on_nodes(multipliers)
            moved = directions @ scores - centre
            centre = centre + moved
            finished = bool(np.abs(moved @ directions).max() <= tolerance) and cost < WORK
        missing = centre / values - directions @ nodes
        return self._corrected(multipliers, missing), nodes + missing @ directions, finished

    def _corrected(self, multipliers: Vector, missing: Vector) -> Vector:
        """Change multipliers in proportion, so that on nodes they gain what is missing along the stretched directions.

        The proximal steps know the scores there to a tolerance, but the multipliers only to that times the stretching.
        """
        directions, values, ordinary = self.stretched
        effect = directions[:, self.first] - directions[:, self.second]  # (r, m)
        response, *_ = np.linalg.lstsq(
            (effect * multipliers) @ effect.T, np.where(values > ordinary, missing, 0.0), rcond=None
        )
        factor = 1 + response @ effect
        return multipliers * factor if factor.min() > 0 else multipliers

    @cached_property
    def stretched(self) -> tuple[Vector, Vector, float]:
        """Orthonormal directions on nodes (r, nodes) with the largest eigenvalues (r,), and an ordinary eigenvalue.

        Values of directions that are not stretched are set to the ordinary one, so that nothing is lowered there.
        """
        kept = min(DIRECTIONS, len(self.gram) - 1)
        if len(self.gram) <= SMALL:
            values, vectors = np.linalg.eigh(self.gram)
        else:
            values, vectors = eigsh(self.gram, k=kept + 1, v0=np.ones(len(self.gram)))
        top, ordinary = values[-kept:], float(values[-kept - 1])
        if ordinary <= FLAT * top[-1]:  # no more dimensions than directions: none is stretched against the others
            ordinary = float(top[-1])
        return vectors[:, -kept:].T, np.where(top > STRETCHED * ordinary, top, ordinary), ordinary

    def _settle(self, gram: Vector, multipliers: Vector, scores: Vector, tolerance: float) -> float:
        """Coordinate ascent in place at a fixed centre; returns the multiply-adds spent, WORK if it did not settle."""
        work = 0.0
        while work < WORK:
            worst_pairs, worst = self.most_violated(scores, tolerance)
            if worst <= tolerance:
                return work
            rows = np.union1d(np.flatnonzero(multipliers), worst_pairs)
            level = max(tolerance / 2, worst / 100)
            sweeps = sweep(gram, self.first, self.second, multipliers, scores, rows, SWEEPS, level)
            work += max(float(sweeps) * len(rows) * len(scores), OVERHEAD)
        return WORK

    @cached_property
    def ends(self) -> tuple[Indices, Indices]:
        """Nodes that are first in a pair, and those that are second."""
        return np.unique(self.first), np.unique(self.second)

    @cached_property
    def separate(self) -> bool:
        """Whether the nodes of every pair are different points; if not, nothing can separate them."""
        diagonal = np.diagonal(self.gram)
        squares = diagonal[self.first] + diagonal[self.second] - 2 * self.gram[self.first, self.second]
        return bool(squares.min() > FLAT * diagonal.max())

    def on_nodes(self, multipliers: Vector) -> Vector:
        """Multipliers of pairs summed on nodes, + on the first and - on the second, (nodes,)."""
        size = len(self.gram)
        gained = np.bincount(self.first, multipliers, minlength=size)
        return np.asarray(gained - np.bincount(self.second, multipliers, minlength=size))

    def most_violated(self, scores: Vector, threshold: float) -> tuple[Indices, float]:
        """For every node the pair that violates its constraint most; and by how much the worst of all does."""
        senders, receivers = self.ends
        if len(senders) * len(receivers) == len(self.first):
            # every pair occurs, so that the constraints are a_i >= b + 1 and a_j <= b: one extreme serves all nodes
            low, high = scores[senders].argmin(), scores[receivers].argmax()
            by_sender = np.arange(len(senders)) * len(receivers) + high
            by_receiver = low * len(receivers) + np.arange(len(receivers))
            candidates = np.union1d(by_sender, by_receiver)
        else:
            candidates = np.unique(worst_of_nodes(self.first, self.second, scores))
        lack = 1.0 - scores[self.first[candidates]] + scores[self.second[candidates]]
        return candidates[lack > threshold], float(lack.max())


@njit(cache=True, nogil=True)
def sweep(
    gram: Vector,
    first: Indices,
    second: Indices,
    multipliers: Vector,
    scores: Vector,
    rows: Indices,
    sweeps: int,
    tolerance: float,
) -> int:
    """Solve for the multipliers of `rows` one by one, in place, until none moves its constraint by more than `tolerance`.

    Returns the number of sweeps.
    """
    for done in range(sweeps):
        worst = 0.0
        for k in rows:
            i, j = first[k], second[k]
            lack = 1.0 - scores[i] + scores[j]
            if multipliers[k] == 0.0 and lack <= 0.0:
                continue
            curvature = gram[i, i] + gram[j, j] - 2.0 * gram[i, j]
            move = max(lack / curvature, -multipliers[k])
            worst = max(worst, abs(move) * curvature)
            multipliers[k] += move
            for t in range(len(scores)):
                scores[t] += move * (gram[i, t] - gram[j, t])
        if worst <= tolerance:
            return done + 1
    return sweeps


@njit(cache=True, nogil=True)
def worst_of_nodes(first: Indices, second: Indices, scores: Vector) -> Indices:
    """For every node the most violated pair in which it is first, and that in which it is second."""
    best = np.full((2, len(scores)), -np.inf)
    place = np.full((2, len(scores)), -1, np.int64)
    for k in range(len(first)):
        i, j = first[k], second[k]
        lack = scores[j] - scores[i]
        if lack > best[0, i]:
            best[0, i], place[0, i] = lack, k
        if lack > best[1, j]:
            best[1, j], place[1, j] = lack, k
    found = place.ravel()
    return found[found >= 0]
