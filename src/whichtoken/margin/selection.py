"""The max-margin problem of a `<cls>` vector over a vocabulary: sizes in the thousands of tokens and sequences.

Tied tokens are merged first (`Ties`). What remains is min |p|^2 / 2 with p.(z_i - z_j) >= 1 on many pairs (i, j), which
`PairProblem` solves by dual coordinate ascent through the Gram matrix K of the z. The dual is
max sum_k lambda_k - |sum_k lambda_k (z_i - z_j)|^2 / 2 over lambda >= 0. With scores a = K w, w the multipliers summed on the
nodes, one coordinate is solved exactly with two rows of K. Only a working set is swept: for every node its most violated pair
on either side, and the pairs that have a multiplier.

Embeddings that one large gradient step has stretched along one or two directions make K so ill-conditioned that coordinates
hardly move. Along these directions the eigenvalue is lowered to an ordinary one and the difference is made good by proximal
steps: p is penalized for leaving its last component there, which changes nothing at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import eigsh

from whichtoken.machine import require_memory
from whichtoken.margin.certificate import MarginCertificate, certify_direction, certify_infeasible
from whichtoken.margin.constraints import (
    Indices,
    VocabularyConstraints,
    cholesky,
    make_graph,
    spanning_forest,
    vocabulary_constraints,
)
from whichtoken.margin.geometry import EUCLIDEAN
from whichtoken.margin.solve import solve
from whichtoken.norms import Vector

# Violations at which coordinate ascent pauses to have its guess of the tight constraints solved exactly, and the duality gap
# that ends it then; the last tolerance is for embeddings stretched by a factor of thousands.
STAGES = ((1e-4, 1e-13), (1e-6, 1e-13), (1e-9, 1e-10), (1e-12, 1e-8))
REFINEMENTS = 3
MATRICES = 5  # of the size of the Gram matrix that are held at once
USED = 1e-7  # a multiplier above this fraction of the largest makes its constraint tight
SWEEPS = 20  # of one working set
STRETCHED, DIRECTIONS = 10.0, 2  # an eigenvalue so many times the next ordinary one is lowered; of at most so many
FLAT = 1e-12  # of the largest: an eigenvalue or a squared distance that is zero but for rounding
SMALL = 64  # nodes up to which all eigenvalues are computed
WORK, OVERHEAD = 2e10, 2e6  # multiply-adds after which a problem is left to another method; those of a round, at least


def selection_svm(embeddings: ArrayLike, counts: Any, selected: Any) -> MarginCertificate:
    """Minimal l_2 norm p with p.(E_s - E_t) >= 1 for selected s and unselected t of the same sequence.

    Selected tokens of one sequence get equal scores. This is the limit in direction of the `<cls>` vector (problem (9) of
    Wu, Shevchenko, Oymak, Mondelli, "Attention with Trained Embeddings Provably Selects Important Tokens").

    Parameters
    ----------
    embeddings : array_like of shape (|S|, d)
        One row per token of the vocabulary.
    counts : array of shape (n, |S|)
        Token counts; only which tokens meet in a sequence matters.
    selected : list of n token indices or index sets, or a boolean array (n, |S|), sparse or dense
        Tokens with equal embeddings count as one.

    Returns
    -------
    MarginCertificate
        `pairs` are distinct pairs (selected, unselected) of tokens, in this order sorted; a sequence is represented by the
        first of its selected tokens. `direction` has shape (d,).

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.margin import selection_svm
    >>> embeddings = np.eye(3)
    >>> limit = selection_svm(embeddings, counts=[[1, 0, 2], [0, 1, 1]], selected=[0, 1])
    >>> limit.status, (limit.direction @ embeddings.T).round(3).tolist()
    ('optimal', [0.408, 0.408, -0.816])
    """
    constraints = vocabulary_constraints(embeddings, counts, selected)
    tied = Ties(constraints)
    cycle = tied.cycle()
    if cycle is not None:
        return certify_infeasible(constraints, tied.complete_ties(cycle, np.zeros(constraints.embeddings.shape[1])))
    certificate = tied.ascend()
    return solve(constraints, EUCLIDEAN) if certificate.status == "unconverged" else certificate


class Ties:
    """The problem with tied tokens merged: nodes are groups of tied tokens, embeddings orthogonal to all ties.

    Equal scores inside a group say that p is orthogonal to the differences of its embeddings. Without these components
    all members of a group are one point, and only inequalities between groups remain.
    """

    def __init__(self, constraints: VocabularyConstraints) -> None:
        self.constraints = constraints
        E, free = constraints.embeddings, constraints.free
        size = len(E)
        nodes, node = csgraph.connected_components(make_graph(constraints.pairs[free], size), directed=False)
        basis = constraints.tied_directions()
        members = sparse.csr_array((np.ones(size), (node, np.arange(size))), shape=(nodes, size))
        self.points: Vector = (
            E if nodes == size else (members @ (E - (E @ basis.T) @ basis)) / members.sum(axis=1)[:, None]
        )
        ends = node[constraints.pairs[~free]]
        # of several token pairs between two groups one stands for all
        codes, self.representative = np.unique(ends[:, 0].astype(np.int64) * nodes + ends[:, 1], return_index=True)
        self.first, self.second = codes // nodes, codes % nodes

    def cycle(self) -> Vector | None:
        """Multipliers (1 on each pair) of a cycle of demands s over t over ... over s, which nothing can meet."""
        demands = make_graph(np.stack([self.first, self.second], axis=1), len(self.points))
        _, part = csgraph.connected_components(demands, connection="strong")
        circular = np.flatnonzero(part[self.first] == part[self.second])
        if circular.size == 0:
            return None
        start, node = int(self.first[circular[0]]), int(self.second[circular[0]])
        _, previous = csgraph.breadth_first_order(demands.T, start)  # previous[s]: where to go from s to reach start
        chosen = np.zeros(len(self.first))
        chosen[circular[0]] = 1.0
        place = {(int(i), int(j)): k for k, (i, j) in enumerate(zip(self.first, self.second, strict=True))}
        while node != start:
            chosen[place[node, int(previous[node])]] = 1.0
            node = int(previous[node])
        return self._row_multipliers(chosen)

    def ascend(self) -> MarginCertificate:
        """Coordinate ascent until the tight constraints are known, then their exact solution."""
        size = len(self.points)
        advice = "leave out tokens that occur rarely"
        require_memory(MATRICES * 8 * size**2, f"the max-margin problem of {size} tokens", advice)
        problem = PairProblem(self.points @ self.points.T, self.first, self.second)
        multipliers = np.zeros(len(self.first))
        best: MarginCertificate | None = None
        for tolerance, enough in STAGES if problem.separate else ():
            multipliers, settled, done = problem.ascend(multipliers, tolerance)
            if not done:
                break
            dual = self.complete_ties(
                self._row_multipliers(multipliers), self.points.T @ problem.node_weights(multipliers)
            )
            for weights in (self._exact(problem, multipliers), settled):
                if weights is None:
                    continue
                certificate = certify_direction(self.constraints, self.points.T @ weights, dual, EUCLIDEAN)
                if best is None or certificate.gap < best.gap:
                    best = certificate
            if best is None:
                continue
            if best.direction is None:
                return best
            # the gap as computed: that of the certificate adds bounds on rounding, which can exceed what is enough here
            rows, combined = self.constraints, self.constraints.adjoint(best.row_multipliers(self.constraints.free))
            margin = rows.apply(best.direction)[~rows.free].min()
            if 1 - float(margin / np.linalg.norm(combined)) <= enough:
                return best
        return best or certify_direction(
            self.constraints, self.points.sum(axis=0), np.where(self.constraints.free, 0.0, 1.0), EUCLIDEAN
        )

    def complete_ties(self, multipliers: Vector, combination: Vector) -> Vector:
        """Complete multipliers of inequalities by those of the ties, so that all rows combine to `combination` (d,)."""
        ties = self.constraints.tie_rows()
        if ties.size:
            rows = self.constraints.subset(ties).dense
            rest = combination - self.constraints.adjoint(multipliers)
            multipliers[ties], *_ = np.linalg.lstsq(rows.T, rest, rcond=None)
        return multipliers

    def _exact(self, problem: PairProblem, multipliers: Vector) -> Vector | None:
        """Weights on nodes (nodes,) of the minimal norm solution with equality where there is a multiplier."""
        used = np.flatnonzero(multipliers > USED * multipliers.max())
        pairs = np.stack([self.first[used], self.second[used]], axis=1)
        rows = used[spanning_forest(pairs, len(self.points), multipliers[used])]
        first, second = self.first[rows], self.second[rows]
        differences = problem.gram[first] - problem.gram[second]
        try:
            invert = cholesky(np.ascontiguousarray(differences[:, first] - differences[:, second]), 0.0)
        except np.linalg.LinAlgError:
            return None
        alone = np.zeros(len(self.first))
        for _ in range(REFINEMENTS):  # the residual is that of the embeddings, which know more than their Gram matrix
            scores = self.points @ (self.points.T @ problem.node_weights(alone))
            alone[rows] += invert(1 - scores[first] + scores[second])
        return problem.node_weights(alone)

    def _row_multipliers(self, multipliers: Vector) -> Vector:
        """Multipliers of node pairs as multipliers of all constraints."""
        full = np.zeros(len(self.constraints))
        full[np.flatnonzero(~self.constraints.free)[self.representative]] = multipliers
        return full


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
        nodes = self.node_weights(multipliers)
        center = values * (directions @ nodes)  # scores along the stretched directions
        while work < WORK and not finished:
            scores = gram @ nodes + (center * (1 - ordinary / values)) @ directions
            cost = self._settle(gram, multipliers, scores, tolerance)
            work += cost + OVERHEAD
            nodes = self.node_weights(multipliers)
            moved = directions @ scores - center
            center = center + moved
            finished = bool(np.abs(moved @ directions).max() <= tolerance) and cost < WORK
        missing = center / values - directions @ nodes
        return self._correct(multipliers, missing), nodes + missing @ directions, finished

    def _correct(self, multipliers: Vector, missing: Vector) -> Vector:
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
        """Coordinate ascent in place at a fixed center; returns the multiply-adds spent, WORK if it did not settle."""
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

    def node_weights(self, multipliers: Vector) -> Vector:
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
    gram: Vector, first: Indices, second: Indices, multipliers: Vector, scores: Vector, rows: Indices, sweeps: int,
    tolerance: float,
) -> int:  # fmt: skip
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
