"""The lemmas and Theorem 5 of Wu, Shevchenko, Oymak, Mondelli as functions: their bounds, conditions and rivals on a data set.

In the order of the paper: bounds after one step (Lemmas 2, 11, 12), Assumption 4, conditions at a given start (Lemma 14), other
selections (Lemma 19), and a condition of ours for unique selection.

==================  ====================================================================
symbol              meaning
==================  ====================================================================
n, T, |S|, d        sequences, their length, size of the vocabulary, width of embeddings
lr                  eta_0, the first gradient step
alpha_s             signed frequency of token s
g_s, gamma_s        value v.E_s of a token, and y v.E_s
==================  ====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import null_space
from scipy.optimize import nnls
from scipy.special import logsumexp

from whichtoken.attention.losses import log_logistic
from whichtoken.checks import check_count, check_range
from whichtoken.datasets.token_counts import as_counts, as_signs, row_maxima, stored_rows
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.theory.trained_embeddings.attention import (
    TokenClasses,
    attend,
    signed_frequency,
    token_classes,
    token_sets,
)
from whichtoken.theory.trained_embeddings.one_step import as_parameters

# what the package does not export itself
__all__ = [
    "OneRelevantToken", "OneStepBounds", "Rival", "UniqueSelection", "loss_bound", "loss_limit",
    "lost_label", "one_relevant_token", "one_step_bounds", "relevant_selection",
    "rival_selections", "smallest_rival", "unique_selection",
]  # fmt: skip

Vector = NDArray[np.float64]
CLOSE = 1e-7
MOST_NODES = 20_000  # problems after which a search for a rival gives up, with the best one so far
FREE, TIED, APART = 0, 1, 2


@dataclass(frozen=True)
class OneStepBounds(Shown):
    """Upper bounds that hold with high probability after one step of size lr, for d >= max(256, (2 log(|S|^2/delta))^2).

    Attributes
    ----------
    error : float
        Bound on |err_s| and |err_p|: 11 lr d^(-1/4) (Lemma 2).
    embedding_norm : float
        Bound on |E_s^1|: 2 (1 + 2 lr) (Lemma 11).
    cls_norm : float
        Bound on |p^1|: 2 + 11 lr d^(-1/4) (Lemma 11).

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import one_step_bounds
    >>> bounds = one_step_bounds(lr=0.1, dim=10_000)
    >>> round(bounds.error, 4), round(bounds.embedding_norm, 4), round(bounds.cls_norm, 4)
    (0.11, 2.4, 2.11)
    """

    error: float
    embedding_norm: float
    cls_norm: float


def one_step_bounds(lr: float, dim: int) -> OneStepBounds:
    """Lemmas 2 and 11 at a step size and a dimension.

    Parameters
    ----------
    lr : float
        Size of the first step.
    dim : int
        d, width of the embeddings.

    Returns
    -------
    OneStepBounds
        Bounds on errors and norms after the step.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import one_step_bounds
    >>> one_step_bounds(lr=0.1, dim=10_000).error < one_step_bounds(lr=0.1, dim=100).error
    True
    """
    check_range("lr", lr, 0.0, math.inf)
    check_count("dim", dim, 1)
    error = 11 * lr * dim**-0.25
    return OneStepBounds(error, 2 * (1 + 2 * lr), 2 + error)


def loss_bound(counts: Any, labels: ArrayLike, lr: float) -> float:
    """Upper bound on the loss after one step (Lemma 12), with y alpha averaged over each sequence's own length.

    E[log(1 + exp(-(lr/2) mean_i y alpha_{x_i} + 1 / (22 lr)))]; it asks for d >= (88 lr^2 + 111 lr + 2)^8.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    lr : float
        Size of the first step.

    Returns
    -------
    float
        Bound on the mean logistic loss.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import loss_bound
    >>> counts, labels = [[1, 0], [0, 1]], [1, -1]
    >>> loss_bound(counts, labels, lr=20.0) < loss_bound(counts, labels, lr=5.0)
    True
    """
    return math.exp(log_loss_bound(counts, labels, lr))


def log_loss_bound(counts: Any, labels: ArrayLike, lr: float) -> float:
    """Logarithm of `loss_bound`, which underflows at the step size of the theorem."""
    check_range("lr", lr, 0.0, math.inf)
    margins = lr * first_margins(counts, labels) - 1 / (22 * lr)
    logs = [log_logistic(margin) for margin in margins]
    return float(logsumexp(logs)) - math.log(len(logs))


def first_margins(counts: Any, labels: ArrayLike) -> Vector:
    """y f(X) / lr after a first step without errors, in the limit of infinite dimension: half the mean of y alpha, (n,)."""
    counts, signs = as_counts(counts), as_signs(labels)
    alpha, rows = signed_frequency(counts, signs), stored_rows(counts)
    lengths = np.maximum(np.asarray(counts.sum(axis=1)), 1)
    means: Vector = np.bincount(rows, counts.data * alpha[counts.indices], minlength=len(signs)) / lengths
    return signs * means / 2


@dataclass(frozen=True, eq=False)
class OneRelevantToken(Shown):
    """Assumption 4 on a data set: one completely positive or negative token per sequence, all others irrelevant.

    Attributes
    ----------
    holds : bool
        Whether every sequence is of this kind.
    broken : array of int
        Sequences that break it.
    sentence : str
        What is wrong, with an example; or that nothing is.
    classes : TokenClasses
        The class of every token.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import one_relevant_token
    >>> one_relevant_token(counts=[[1, 0, 1], [0, 1, 1]], labels=[1, -1]).holds
    True
    """

    holds: bool
    broken: NDArray[np.int64]
    sentence: str
    classes: TokenClasses


def one_relevant_token(counts: Any, labels: ArrayLike) -> OneRelevantToken:
    """Find the sequences that break Assumption 4.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    OneRelevantToken
        Whether the assumption holds, and an example if it does not.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import one_relevant_token
    >>> check = one_relevant_token([[1, 0, 1], [0, 1, 1], [0, 2, 0], [0, 0, 1]], [1, -1, -1, 1])
    >>> check.holds, check.broken.tolist()
    (False, [0, 1, 2, 3])
    """
    counts, signs = as_counts(counts), as_signs(labels)
    classes = token_classes(counts, signs)
    relevant = counts @ classes.relevant.astype(np.int64)
    partly = counts @ ((classes.signs != 0) & ~classes.relevant).astype(np.int64)
    broken = np.flatnonzero((relevant != 1) | (partly > 0))
    if broken.size == 0:
        return OneRelevantToken(True, broken, f"all {len(signs)} sequences have exactly one relevant token", classes)
    x = int(broken[0])
    tokens = counts.indices[counts.indptr[x] : counts.indptr[x + 1]]
    kind = classes.relevant if relevant[x] != 1 else (classes.signs != 0) & ~classes.relevant
    found = _names([int(t) for t in tokens if kind[t]])
    what = (
        f"{relevant[x]} relevant tokens instead of one{found}"
        if relevant[x] != 1
        else f"tokens of both labels with unequal frequencies{found}"
    )
    sentence = (
        f"{broken.size} of {len(signs)} sequences break the assumption of one relevant token: "
        f"sequence {x} (label {int(signs[x]):+d}) has {what}"
    )
    return OneRelevantToken(False, broken, sentence, classes)


def _names(tokens: list[int]) -> str:
    """A few tokens in brackets; nothing for none."""
    names = [f"token {t}" for t in tokens[:3]]
    return f" ({', '.join(names)}{', ...' if len(tokens) > 3 else ''})" if names else ""


def loss_limit(values: ArrayLike, counts: Any, labels: ArrayLike) -> float:
    """Least loss of a p that attends to no relevant token in some sequence: min over X of log(1 + exp(-max_j y g_j)) / n.

    A flow only descends, so it loses no relevant token from a loss below that. The 1/(2n) of the proof of Lemma 14 is below it
    only while the values of all other tokens are below 0.4327.

    Parameters
    ----------
    values : array_like of shape (|S|,)
        g_s = v.E_s of every token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    float
        The limit.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import loss_limit
    >>> round(loss_limit([9.0, -9.0, 0.0], [[1, 0, 1], [0, 1, 1]], [1, -1]), 4)  # log(2) / 2
    0.3466
    >>> round(loss_limit([9.0, -9.0, 1.0], [[1, 0, 1], [0, 1, 1]], [1, -1]), 4)  # the third token speaks for the first label
    0.1566
    """
    counts, signs = as_counts(counts), as_signs(labels).astype(np.float64)
    others = ~token_classes(counts, signs).relevant[counts.indices]
    gamma = signs[stored_rows(counts)] * np.asarray(values, dtype=np.float64)[counts.indices]
    best = row_maxima(np.where(others, gamma, -np.inf), counts.indptr)
    return float(np.logaddexp(0.0, -best).min() / len(signs))


def lost_label(scores: ArrayLike, values: ArrayLike, counts: Any, labels: ArrayLike) -> int:
    """Which label loses its tokens if one does: the one against which p starts to move along v.

    d(p.v)/dt = mean over X of y sigma(-y f) Var_q(g), with the variance of the values under attention. If it is positive, p
    grows along v, which lifts the tokens of label +1 and lowers those of label -1.

    Parameters
    ----------
    scores, values : array_like of shape (|S|,)
        a_s and g_s of every token after the first step.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    int
        -1 or +1; 0 if p does not move along v.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import lost_label
    >>> lost_label([1.0, 0.0, 0.0], [2.0, -2.0, 0.0], [[1, 0, 1], [0, 1, 1]], [1, -1])
    1
    """
    seen = attend(scores, values, counts, labels)
    _, along_cls = seen.gradients()
    return int(np.sign(along_cls @ seen.values))


def relevant_selection(counts: Any, labels: ArrayLike) -> sparse.csr_array:
    """The selection of Theorem 5 that takes the relevant tokens and nothing else, (n, |S|) of bool.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    sparse.csr_array of shape (n, |S|)
        True where a token is selected.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import relevant_selection
    >>> relevant_selection(counts=[[1, 0, 1], [0, 1, 1]], labels=[1, -1]).toarray().astype(int).tolist()
    [[1, 0, 0], [0, 1, 0]]
    """
    counts = as_counts(counts)
    return token_sets(counts, token_classes(counts, labels).relevant[counts.indices])


def rival_selections(counts: Any, labels: ArrayLike) -> Iterator[tuple[str, NDArray[np.int64], sparse.csr_array]]:
    """Other selections that Lemma 19 has to beat: relevant tokens and more, tied wherever they occur together.

    Yields (family, irrelevant tokens tied in, selection): for every irrelevant token s that occurs, "one more" ties the
    relevant tokens with s, "all but one" with every irrelevant token except s. Only selections that leave a token
    unselected somewhere are given.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    iterator of tuple
        (family, irrelevant tokens tied in, selection).

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings.lemmas import rival_selections
    >>> counts, labels = [[1, 0, 1, 1], [0, 1, 1, 1]], [1, -1]
    >>> [(family, tied.tolist()) for family, tied, _ in rival_selections(counts, labels)]
    [('one more', [2]), ('all but one', [3]), ('one more', [3]), ('all but one', [2])]
    """
    counts = as_counts(counts)
    classes = token_classes(counts, labels)
    others = np.flatnonzero(~classes.relevant & ~classes.absent)
    for token in others:
        for family, tied in (("one more", others[others == token]), ("all but one", others[others != token])):
            chosen = classes.relevant.copy()
            chosen[tied] = True
            selection = token_sets(counts, chosen[counts.indices])
            if selection.nnz < counts.nnz:
                yield family, tied, selection


@dataclass(frozen=True, eq=False)
class Rival(Shown):
    """The shortest max-margin solution of a selection with all relevant tokens and at least one other.

    Attributes
    ----------
    norm : float
        Its norm; inf if there is no such selection.
    scores : array of shape (|S|,)
        Its scores p.E_s.
    tied : array of shape (m, 2)
        Pairs of a relevant and another token that it ties.
    exact : bool
        Whether all selections were excluded; otherwise the norm is only an upper bound.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.lemmas import smallest_rival
    >>> rival = smallest_rival(np.eye(4), [[1, 0, 1, 1], [0, 1, 1, 1]], [1, -1])
    >>> round(rival.norm, 4), rival.exact
    (0.866, True)
    """

    norm: float
    scores: Vector
    tied: NDArray[np.int64]
    exact: bool


def smallest_rival(embeddings: ArrayLike, counts: Any, labels: ArrayLike) -> Rival:
    """Search the rivals of the relevant-only selection exactly: Lemma 19 asks for all of them to be longer.

    Each pair of a relevant token and another one of its sequence is either tied or apart by at least 1. Branch and bound on
    that choice: what is undecided may lie anywhere in between, which can only shorten p.

    Parameters
    ----------
    embeddings : array_like of shape (|S|, d)
        E, one row per token.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    Rival
        The shortest one.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.lemmas import smallest_rival
    >>> v, counts, labels = np.array([0, 0, 0, 0, 9.0]), [[1, 0, 1, 1], [0, 1, 1, 1]], [1, -1]
    >>> E = np.eye(5)[:4] + np.outer([1, -1, 0, 0], v)
    >>> rival = smallest_rival(E, counts, labels)  # a step along v is almost free: it lifts one label and lowers the other
    >>> rival.tied.tolist() in ([[0, 2], [0, 3]], [[1, 2], [1, 3]]), round(rival.norm, 2)
    (True, 0.5)
    """
    E = np.asarray(embeddings, dtype=np.float64)
    counts = as_counts(counts)
    pairs = _pairs(counts, labels)
    _, triangle = np.linalg.qr(E.T)
    rows = triangle.T[pairs[:, 0]] - triangle.T[pairs[:, 1]]  # (m, r)
    best, best_states, nodes = np.inf, np.zeros(0, dtype=np.int64), 0
    best_p = np.zeros(rows.shape[1])
    # every rival has a first pair that it holds apart: those before it are tied
    stack = [np.repeat([TIED, APART, FREE], [k, 1, len(pairs) - k - 1]) for k in reversed(range(len(pairs)))]
    while stack and nodes < MOST_NODES:
        states = stack.pop()
        nodes += 1
        p = _shortest(rows, states)
        if p is None or np.linalg.norm(p) >= best * (1 - CLOSE):
            continue
        gaps = rows @ p
        between = (states == FREE) & (gaps > CLOSE) & (gaps < 1 - CLOSE)
        free = between if between.any() else (states == FREE) & ((states == TIED).sum() == 0) & (gaps > CLOSE)
        if not free.any():
            best, best_p, best_states = float(np.linalg.norm(p)), p, np.where(gaps < CLOSE, TIED, APART)
            continue
        pair = int(np.argmax(np.where(free, np.minimum(gaps, 1 - gaps), -np.inf)))
        for state in (APART, TIED):
            stack.append(np.where(np.arange(len(pairs)) == pair, state, states))
    tied = pairs[best_states == TIED] if len(best_states) else pairs[:0]
    return Rival(best, triangle.T @ best_p, tied, not stack)


def _pairs(counts: Any, labels: ArrayLike) -> NDArray[np.int64]:
    """Distinct (relevant, other) tokens that share a sequence, (m, 2)."""
    relevant = token_classes(counts, labels).relevant[counts.indices]
    rows, tokens = stored_rows(counts), counts.indices.astype(np.int64)
    found = {
        (int(s), int(j))
        for x in range(counts.shape[0])
        for s in tokens[(rows == x) & relevant]
        for j in tokens[(rows == x) & ~relevant]
    }
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


def _shortest(rows: Vector, states: NDArray[np.int64]) -> Vector | None:
    """Least |p| with rows p = 0 where tied, >= 1 where apart, >= 0 where free; None if there is none (Lawson and Hanson)."""
    tied = rows[states == TIED]
    basis = null_space(tied) if len(tied) else np.eye(rows.shape[1])
    if basis.shape[1] == 0:
        return None
    others = states != TIED
    least = (states[others] == APART).astype(np.float64)
    wanted = np.append(np.zeros(basis.shape[1]), 1.0)
    system = np.vstack([(rows[others] @ basis).T, least])
    multipliers, distance = nnls(system, wanted)
    if distance < CLOSE:
        return None
    left = system @ multipliers - wanted
    return np.asarray(basis @ (-left[:-1] / left[-1]))


@dataclass(frozen=True, eq=False)
class UniqueSelection(Shown):
    """What makes a flow that has a direction in the limit select the relevant tokens and nothing else.

    Attributes
    ----------
    loss_met : bool
        Whether the loss is so low that no relevant token can be lost (Lemma 14, in its sound form).
    gain : float
        Least y (g_s - g_j) of a relevant token s over another token j of its sequence; it has to be positive.
    independent : bool
        Whether the embeddings of the tokens are linearly independent.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.lemmas import unique_selection
    >>> from whichtoken.theory.trained_embeddings.one_step import ideal_first_step
    >>> axes, counts, labels = np.eye(5), [[1, 0, 1], [0, 1, 1]], [1, -1]
    >>> E, p = ideal_first_step(axes[:3], axes[3], axes[4], counts, labels, lr=64.0)
    >>> unique_selection(E, p, axes[4], counts, labels).holds
    True
    """

    loss_met: bool
    gain: float
    independent: bool

    @property
    def holds(self) -> bool:
        return self.loss_met and self.gain > 0 and self.independent


def unique_selection(
    embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike
) -> UniqueSelection:
    """A condition for Lemma 19's conclusion that asks nothing of margins.

    Write the flow as a sum over pairs of tokens of a sequence (Lemma 8) and suppose that its limit ties a relevant token s with
    another token j. The pairs that it separates weigh exponentially less than (s, j) does, and along a tied pair the limit does
    not grow; so the limit is orthogonal to all of the flow that counts. But a p with score 1 on relevant tokens and 0 on all
    others exists if embeddings are independent, and shows that this part does not vanish if every relevant token has the
    largest value of its sequence. Hence the limit ties no relevant token, if only it selects all of them.

    Parameters
    ----------
    embeddings, cls : array_like of shape (|S|, d) and (d,)
        Where the flow of p starts.
    value : array_like of shape (d,)
        v.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.

    Returns
    -------
    UniqueSelection
        The parts of the condition.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings.lemmas import unique_selection
    >>> E, counts, labels = np.eye(3), [[1, 0, 1], [0, 1, 1]], [1, -1]
    >>> unique_selection(E, np.zeros(3), np.array([5.0, -5.0, 0.0]), counts, labels).gain
    5.0
    """
    E, p, v = as_parameters(embeddings, cls, value)
    counts, signs = as_counts(counts), as_signs(labels)
    check = one_relevant_token(counts, signs)
    if not check.holds:
        raise UsageError(f"{check.sentence}; the condition is about data with one relevant token in each sequence")
    seen, relevant = attend(E @ p, E @ v, counts, signs), check.classes.relevant[counts.indices]
    gamma = seen.signs[seen.rows] * seen.values[counts.indices]
    own = np.bincount(seen.rows, np.where(relevant, gamma, 0.0), minlength=len(signs))
    gain = float(np.min((own[seen.rows] - gamma)[~relevant], initial=np.inf))
    loss_met = float(seen.losses.mean()) < loss_limit(seen.values, counts, signs)
    present = ~check.classes.absent
    independent = bool(np.linalg.matrix_rank(E[present]) == present.sum())
    return UniqueSelection(loss_met, gain, independent)
