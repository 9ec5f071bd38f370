"""The max-margin problem of a `<cls>` vector over a vocabulary: sizes in the thousands of tokens and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse import csgraph

from whichtoken.margin.certificate import MarginCertificate, certify_direction, certify_infeasible
from whichtoken.margin.cholesky import cholesky
from whichtoken.margin.geometry import EUCLIDEAN
from whichtoken.margin.pair_ascent import PairProblem
from whichtoken.margin.solve import solve
from whichtoken.margin.vocabulary import VocabularyConstraints, graph_of, spanning_forest, vocabulary_constraints
from whichtoken.memory import require_memory
from whichtoken.norms import Vector

# Violations at which coordinate ascent pauses to have its guess of the tight constraints solved exactly, and the duality gap
# that ends it then; the last tolerance is for embeddings stretched by a factor of thousands.
STAGES = ((1e-4, 1e-13), (1e-6, 1e-13), (1e-9, 1e-10), (1e-12, 1e-8))
REFINEMENTS = 3
MATRICES = 5  # of the size of the Gram matrix that are held at once
USED = 1e-7  # a multiplier above this fraction of the largest makes its constraint tight


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
        return certify_infeasible(constraints, tied.with_ties(cycle, np.zeros(constraints.embeddings.shape[1])))
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
        nodes, node = csgraph.connected_components(graph_of(constraints.pairs[free], size), directed=False)
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
        demands = graph_of(np.stack([self.first, self.second], axis=1), len(self.points))
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
        return self._on_pairs(chosen)

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
            dual = self.with_ties(self._on_pairs(multipliers), self.points.T @ problem.on_nodes(multipliers))
            for weights in (self._exact(problem, multipliers), settled):
                if weights is None:
                    continue
                certificate = certify_direction(self.constraints, self.points.T @ weights, dual, EUCLIDEAN)
                if best is None or certificate.gap < best.gap:
                    best = certificate
            if best is not None and (best.direction is None or self._computed_gap(best.direction, best) <= enough):
                return best
        return best or certify_direction(
            self.constraints, self.points.sum(axis=0), np.where(self.constraints.free, 0.0, 1.0), EUCLIDEAN
        )

    def _computed_gap(self, direction: Vector, certificate: MarginCertificate) -> float:
        """The gap as computed: that of the certificate has room for rounding, more than would tell a finished ascent."""
        rows = self.constraints
        margin = rows.apply(direction)[~rows.free].min()
        return 1 - float(margin / np.linalg.norm(rows.adjoint(certificate.on_rows(rows.free))))

    def with_ties(self, multipliers: Vector, combination: Vector) -> Vector:
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
            scores = self.points @ (self.points.T @ problem.on_nodes(alone))
            alone[rows] += invert(1 - scores[first] + scores[second])
        return problem.on_nodes(alone)

    def _on_pairs(self, multipliers: Vector) -> Vector:
        """Multipliers of node pairs as multipliers of all constraints."""
        full = np.zeros(len(self.constraints))
        full[np.flatnonzero(~self.constraints.free)[self.representative]] = multipliers
        return full
