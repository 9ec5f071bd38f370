"""When are relevant tokens selected and nothing else: Lemma 19's hypothesis, searched exactly, and a condition that can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import null_space
from scipy.optimize import nnls

from whichtoken.checks import check_count
from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.theory.trained_embeddings.attention import attend, stored_rows
from whichtoken.theory.trained_embeddings.conditions import loss_limit, one_relevant_token
from whichtoken.theory.trained_embeddings.frequencies import token_classes
from whichtoken.theory.trained_embeddings.one_step import as_parameters

Vector = NDArray[np.float64]
CLOSE = 1e-7
FREE, TIED, APART = 0, 1, 2


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
    >>> from whichtoken.theory.trained_embeddings import ideal_first_step, unique_selection
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
    >>> from whichtoken.theory.trained_embeddings import unique_selection
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
    nodes : int
        Problems solved.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import smallest_rival
    >>> rival = smallest_rival(np.eye(4), [[1, 0, 1, 1], [0, 1, 1, 1]], [1, -1])
    >>> round(rival.norm, 4), rival.exact
    (0.866, True)
    """

    norm: float
    scores: Vector
    tied: NDArray[np.int64]
    exact: bool
    nodes: int


def smallest_rival(embeddings: ArrayLike, counts: Any, labels: ArrayLike, *, most_nodes: int = 20_000) -> Rival:
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
    most_nodes : int, default=20000
        Give up after so many problems, with the best rival so far.

    Returns
    -------
    Rival
        The shortest one.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import smallest_rival
    >>> v, counts, labels = np.array([0, 0, 0, 0, 9.0]), [[1, 0, 1, 1], [0, 1, 1, 1]], [1, -1]
    >>> E = np.eye(5)[:4] + np.outer([1, -1, 0, 0], v)
    >>> rival = smallest_rival(E, counts, labels)  # a step along v is almost free: it lifts one label and lowers the other
    >>> rival.tied.tolist() in ([[0, 2], [0, 3]], [[1, 2], [1, 3]]), round(rival.norm, 2)
    (True, 0.5)
    """
    check_count("most_nodes", most_nodes, 1)
    E = np.asarray(embeddings, dtype=np.float64)
    counts = as_counts(counts)
    pairs = _pairs(counts, labels)
    _, triangle = np.linalg.qr(E.T)
    rows = triangle.T[pairs[:, 0]] - triangle.T[pairs[:, 1]]  # (m, r)
    best, best_states, nodes = np.inf, np.zeros(0, dtype=np.int64), 0
    best_p = np.zeros(rows.shape[1])
    # every rival has a first pair that it holds apart: those before it are tied
    stack = [np.repeat([TIED, APART, FREE], [k, 1, len(pairs) - k - 1]) for k in reversed(range(len(pairs)))]
    while stack and nodes < most_nodes:
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
    return Rival(best, triangle.T @ best_p, tied, not stack, nodes)


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
    multipliers, distance = nnls(np.vstack([(rows[others] @ basis).T, least]), wanted)
    if distance < CLOSE:
        return None
    left = np.vstack([(rows[others] @ basis).T, least]) @ multipliers - wanted
    shortest: Vector = basis @ (-left[:-1] / left[-1])
    return shortest
