"""What would change a decision: exact, because the decision of a one-query model is linear in token counts.

The sign of f(X) + b is that of sum_s c_Xs u_s + e^{log_null} b with u_s = e^{a_s} (g_s + b): softmax divides by a positive
number, which no sign depends on. The null token, of value 0, casts a vote that nobody can take away. So the fewest tokens
whose deletion flips a decision are those that speak most for it, and the worst that k insertions or substitutions can do is a
sum of k largest terms. None of this holds for two or more queries.

A decision is +1 where the sum is positive and -1 where it is negative. A sum of zero, that of a document without tokens if
there is no null token, goes to the default decision: +1 if b > 0, otherwise -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.checks import as_csr
from whichtoken.datasets.token_counts import row_maxima, stored_rows
from whichtoken.display.shown import Shown

# what the package does not export itself
__all__ = ["Certificate", "Flips"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

OUT_OF_REACH = -1  # no number of tokens flips the decision
ZERO = 1e-12  # sums below this share of their terms are rounding
FARTHEST = 600.0  # e to it stands for any larger ratio of two votes
MOST = 2.0**62  # and this for any larger number of tokens
LARGEST = 1e11  # occurrences in a document: among more, one is lost in the rounding of their sum


@dataclass(frozen=True)
class Flips(Shown):
    """The smallest set of distinct tokens, by document, whose deletion with all their occurrences flips the decision.

    Attributes
    ----------
    decisions : array of shape (n,)
        Predicted labels, -1 or +1.
    sizes : array of shape (n,)
        Tokens of the set; OUT_OF_REACH where no deletion flips the decision.
    indptr : array of shape (n + 1,)
        Where the set of each document begins in `tokens`.
    tokens : array
        The sets, document after document.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import minimal_deletions
    >>> flips = minimal_deletions(counts=[[1, 1, 1]], scores=[2.0, 0.0, 0.0], values=[1.0, 0.5, -1.0])
    >>> flips.decisions.tolist(), flips.of(0).tolist()
    ([1], [0])
    """

    decisions: NDArray[np.int8]
    sizes: Ints
    indptr: Ints
    tokens: Ints

    def of(self, document: int) -> Ints:
        """Tokens to delete from one document, the strongest first."""
        return self.tokens[self.indptr[document] : self.indptr[document + 1]]


@dataclass(frozen=True)
class Certificate(Shown):
    """Changes of single occurrences, by document, of which fewer cannot flip its decision; OUT_OF_REACH: no number can.

    Exact where the amounts are the counts. For concave amounts, such as 1 + log c, a lower bound: still no fewer can.

    Attributes
    ----------
    decisions : array of shape (n,)
        Predicted labels, -1 or +1.
    deletions, insertions, substitutions : array of shape (n,)
        How many of one kind are needed.
    edits : array of shape (n,)
        How many are needed of any kind and mixture.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import certify
    >>> proof = certify(counts=[[3, 1]], scores=[0.0, 0.0], values=[1.0, -1.0])
    >>> proof.decisions.tolist(), proof.deletions.tolist(), proof.substitutions.tolist()
    ([1], [2], [1])
    """

    decisions: NDArray[np.int8]
    deletions: Ints
    insertions: Ints
    substitutions: Ints
    edits: Ints


def minimal_deletions(
    counts: Any,
    scores: ArrayLike,
    values: ArrayLike,
    bias: ArrayLike = 0.0,
    amounts: ArrayLike | None = None,
    log_null: float = -np.inf,
) -> Flips:
    """The smallest set of distinct tokens of each document whose deletion flips its decision.

    Parameters
    ----------
    counts : array of shape (n, |S|)
        Anything that `scipy.sparse.csr_array` accepts.
    scores, values : array_like of shape (|S|,)
        a_s and g_s.
    bias : float or array_like of shape (n,), default=0.0
        b, added to the output; of each document, where it says something that is not in its tokens.
    amounts : array_like of shape (stored counts,), optional
        What enters the softmax in place of each stored count, such as 1 + log c.
    log_null : float
        Score of a null token of value 0, which is in every document; -inf for none.

    Returns
    -------
    Flips
        One set of tokens per document.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import minimal_deletions
    >>> words = ["wonderful", "nice", "terrible"]
    >>> flips = minimal_deletions(counts=[[1, 1, 1]], scores=[2.0, 0.0, 0.0], values=[1.0, 0.5, -1.0])
    >>> [words[s] for s in flips.of(0)]
    ['wonderful']
    """
    linear = _Linear.of(counts, scores, values, bias)
    matrix = linear.counts
    given = matrix.data if amounts is None else np.asarray(amounts)
    ballot = _Ballot.of(matrix.indptr, given * linear.weights, linear.biases, linear.null_votes(log_null))
    sizes = ballot.fewest(np.zeros(len(ballot.support)), ballot.votes > 0)
    taken = np.maximum(sizes, 0)
    indptr = np.concatenate([[0], np.cumsum(taken)])
    place = np.arange(indptr[-1]) + np.repeat(ballot.indptr[:-1] - indptr[:-1], taken)
    return Flips(ballot.decisions, sizes, indptr, matrix.indices[ballot.order[place]].astype(np.int64))


def certify(
    counts: Any,
    scores: ArrayLike,
    values: ArrayLike,
    bias: ArrayLike = 0.0,
    amounts: ArrayLike | None = None,
    log_null: float = -np.inf,
) -> Certificate:
    """How many occurrences must be deleted, inserted or substituted before a decision can flip.

    What is inserted may be any token of the vocabulary, however often.

    Parameters
    ----------
    counts, scores, values, bias, amounts, log_null : as in `minimal_deletions`
        The documents and the model.

    Returns
    -------
    Certificate
        The least numbers of changes, by document.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import certify
    >>> proof = certify(counts=[[5, 1], [1, 0]], scores=[0.0, 0.0], values=[1.0, -1.0])
    >>> proof.edits.tolist()  # fewer changes leave the decision as it is
    [2, 1]
    """
    linear = _Linear.of(counts, scores, values, bias)
    matrix = linear.counts
    times = np.floor(matrix.data)
    if not (times.min(initial=0) >= 0 and np.bincount(stored_rows(matrix), times).max(initial=0) <= LARGEST):
        raise ValueError(
            f"counts from {times.min()} to {times.max()} must be at least 0, and together at most {LARGEST:g}"
        )
    given = matrix.data if amounts is None else np.asarray(amounts)
    # deleting j of c occurrences takes away at most the share j / c of their concave amount
    votes = np.divide(given, matrix.data, out=np.zeros(len(times)), where=times > 0) * linear.weights
    ballot = _Ballot.of(matrix.indptr, votes, linear.biases, linear.null_votes(log_null), times)
    against = linear.strongest_against(ballot.decisions)
    useful = np.maximum(against, 0.0)
    rows = ballot.rows
    mixed = ballot.fewest(useful, ballot.votes > 0)
    removed = np.bincount(rows, ballot.times * (ballot.votes > 0), minlength=len(against)).astype(np.int64)
    favorable = np.bincount(rows, ballot.times * np.maximum(ballot.votes, 0), minlength=len(against))
    rest = ballot.support - favorable - removed * useful
    longer = ballot.repeats(rest, useful)  # everything that speaks for the decision is substituted, then insertions
    return Certificate(
        ballot.decisions,
        ballot.fewest(np.zeros(len(against)), ballot.votes > 0),
        ballot.repeats(ballot.support, useful),
        ballot.fewest(against, ballot.votes + against[rows] > 0),
        np.where(mixed != OUT_OF_REACH, mixed, np.where(longer != OUT_OF_REACH, removed + longer, OUT_OF_REACH)),
    )


@dataclass(frozen=True)
class _Linear:
    """The terms of the linear sum, each document's divided by e^{a_s} of its highest token: no document underflows."""

    counts: sparse.csr_array
    weights: Floats  # u_s of each stored count, (nnz,)
    scores: Floats  # (|S|,)
    values: Floats  # g_s, (|S|,)
    biases: Floats  # b, (n,)
    tops: Floats  # highest score, (n,); 0 without tokens

    @classmethod
    def of(cls, counts: Any, scores: ArrayLike, values: ArrayLike, bias: ArrayLike) -> _Linear:
        matrix = as_csr("counts", counts)
        selection, own = np.asarray(scores, dtype=np.float64), np.asarray(values, dtype=np.float64)
        for shape in (selection.shape, own.shape):
            if shape != (matrix.shape[1],):
                raise ValueError(f"scores and values of shape {shape} must name all {matrix.shape[1]} tokens of counts")
        biases = np.asarray(bias, dtype=np.float64)
        if biases.shape not in ((), (matrix.shape[0],)):
            raise ValueError(f"bias of shape {biases.shape} must be one number or {matrix.shape[0]}, one per document")
        biases, rows = np.broadcast_to(biases, matrix.shape[0]), stored_rows(matrix)
        found = selection[matrix.indices]
        tops = row_maxima(found, matrix.indptr)
        weights = np.exp(found - tops[rows]) * (own[matrix.indices] + biases[rows])
        return cls(matrix, weights, selection, own, biases, np.where(np.isfinite(tops), tops, 0.0))

    def null_votes(self, log_null: float) -> Floats:
        """e^{log_null} b in the units of each document, (n,)."""
        return np.asarray(self.biases * np.exp(np.minimum(log_null - self.tops, FARTHEST)))

    def strongest_against(self, decisions: NDArray[np.int8]) -> Floats:
        """The strongest vote against each decision that any token has, (n,); negative if all are for it."""
        strongest = np.zeros(len(decisions))
        cases, kinds = np.unique(np.stack([decisions, self.biases]), axis=1, return_inverse=True)
        for kind, (decision, bias) in enumerate(cases.T):
            votes = -decision * (self.values + bias)
            with np.errstate(divide="ignore"):
                sizes = self.scores + np.log(np.abs(votes))  # logarithms: the token may be in no document
            opposed = votes > 0
            sign, size = (1, sizes[opposed].max()) if opposed.any() else (-1, sizes.min(initial=np.inf))
            concerned = np.ravel(kinds) == kind
            strongest[concerned] = sign * np.exp(np.clip(size - self.tops[concerned], -FARTHEST, FARTHEST))
        return strongest


@dataclass(frozen=True)
class _Ballot:
    """Votes for the decision of each document, sorted, the strongest first; each may be cast several times."""

    decisions: NDArray[np.int8]  # (n,)
    null: Floats  # votes of the null token for the decision, (n,)
    support: Floats  # sum of all votes, (n,)
    indptr: Ints  # (n + 1,)
    votes: Floats  # (all votes,)
    times: Floats  # how often each is cast, whole numbers, (all votes,)
    order: Ints  # where each vote stood before sorting
    rows: Ints  # the document of each vote
    zero: Floats  # below this a sum is rounding, (n,)
    yields: NDArray[np.bool_]  # a support of zero already flips, (n,)

    @classmethod
    def of(cls, indptr: Any, signed: Floats, biases: Floats, null: Floats, times: Floats | None = None) -> _Ballot:
        """From the terms of the linear sum, document after document, how often each occurs, and that of the null token."""
        sizes = np.diff(indptr)
        rows = np.repeat(np.arange(len(sizes)), sizes)
        times = np.ones(len(rows)) if times is None else times
        totals = np.bincount(rows, times * signed, minlength=len(sizes)) + null
        mass = np.bincount(rows, times * np.abs(signed), minlength=len(sizes)) + np.abs(null)
        zero = np.asarray(ZERO * mass, np.float64)
        default = np.where(biases > 0, 1, -1)
        decisions = np.where(totals > zero, 1, np.where(totals < -zero, -1, default)).astype(np.int8)
        votes = decisions[rows] * signed
        order = np.lexsort((-votes, rows))
        starts = np.asarray(indptr, dtype=np.int64)
        support = np.asarray(decisions * totals, dtype=np.float64)
        yields = decisions != default
        return cls(decisions, decisions * null, support, starts, votes[order], times[order], order, rows, zero, yields)

    def fewest(self, extra: Floats, useful: NDArray[np.bool_]) -> Ints:
        """Fewest of the strongest votes, as far as `useful`, to take away, each with `extra` (n,) more, until it flips.

        All documents are processed together, the longest first, from their weakest votes to the strongest. What is left falls
        linearly with the casts of one vote, so that not every number of casts is tried.
        """
        fewest = np.full(len(extra), OUT_OF_REACH)
        sizes = np.diff(self.indptr)
        order = np.argsort(-sizes, kind="stable")
        lengths, ends = sizes[order], self.indptr[1:][order]
        longest = int(lengths[0]) if len(lengths) else 0
        going = np.searchsorted(-lengths, -np.arange(longest), side="left")  # documents with more votes than so many
        # sums over what stays, the weakest first: a small rest would be lost beside what is taken away
        rest, mass, step, yielding = self.null[order], np.abs(self.null[order]), extra[order], self.yields[order]
        total = np.concatenate([[0.0], np.cumsum(self.times)])
        before = (total[self.indptr[1:]] - total[self.indptr[:-1]])[order]  # casts of the votes that are stronger
        for passed, many in enumerate(going):
            place = ends[:many] - 1 - passed
            cast, vote = self.times[place], self.votes[place]
            before[:many] -= cast
            cut = _Cut(rest[:many], mass[:many], vote, cast, step[:many], before[:many], yielding[:many])
            chosen = np.flatnonzero(useful[place] & (cast > 0))
            least = cut.least(chosen)
            fewest[order[chosen[least > 0]]] = (before[chosen] + least)[least > 0]
            rest[:many] += cast * vote
            mass[:many] += cast * np.abs(vote)
        return fewest

    def repeats(self, support: Floats, step: Floats) -> Ints:
        """How many steps (n,) take the support (n,) away."""
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(
                self.yields, np.ceil((support - self.zero) / step), np.floor((support + self.zero) / step) + 1
            )
        return np.where(step > 0, np.nan_to_num(np.clip(needed, 1, MOST)), OUT_OF_REACH).astype(np.int64)


@dataclass(frozen=True)
class _Cut:
    """One vote of each of several documents, of which some casts are taken away beside all of the stronger votes."""

    rest: Floats  # what the weaker votes say
    mass: Floats  # and the sum of their moduli
    vote: Floats
    cast: Floats
    step: Floats  # what every cast that is taken away adds
    before: Floats  # casts of the stronger votes
    yields: NDArray[np.bool_]

    def least(self, rows: Ints) -> Floats:
        """Fewest casts to take away until the decision of each of these documents flips; 0 where none do."""
        first = self._flips(rows, np.ones(len(rows)))
        least = np.where(first, 1.0, np.where(self._flips(rows, self.cast[rows]), self.cast[rows], 0.0))
        wide = np.flatnonzero(~first & (least > 1))  # linear in between: the first one that flips it, by halves
        low, high = np.ones(len(wide)), least[wide]
        while np.any(high - low > 1):
            middle = np.floor((low + high) / 2)
            flips = self._flips(rows[wide], middle)
            low, high = np.where(flips, low, middle), np.where(flips, middle, high)
        least[wide] = high
        return least

    def _flips(self, rows: Ints, taken: Floats) -> NDArray[np.bool_]:
        kept, gone = self.cast[rows] - taken, self.before[rows] + taken
        left = self.rest[rows] + kept * self.vote[rows] - gone * self.step[rows]
        zero = ZERO * (self.mass[rows] + kept * np.abs(self.vote[rows]) + gone * np.abs(self.step[rows]))
        return np.where(self.yields[rows], left <= zero, left < -zero)
