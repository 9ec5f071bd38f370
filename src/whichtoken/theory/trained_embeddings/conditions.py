"""Does a data set meet what Theorem 5 and Lemma 19 assume?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.display.shown import Shown
from whichtoken.theory.trained_embeddings.attention import attend, row_maxima, stored_rows, token_sets
from whichtoken.theory.trained_embeddings.bounds import Requirements, theorem_requirements
from whichtoken.theory.trained_embeddings.frequencies import TokenClasses, token_classes
from whichtoken.theory.trained_embeddings.one_step import as_parameters


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
    >>> from whichtoken.theory.trained_embeddings import one_relevant_token
    >>> one_relevant_token(counts=[[1, 0, 1], [0, 1, 1]], labels=[1, -1]).holds
    True
    """

    holds: bool
    broken: NDArray[np.int64]
    sentence: str
    classes: TokenClasses


def one_relevant_token(counts: Any, labels: ArrayLike, vocabulary: Sequence[str] | None = None) -> OneRelevantToken:
    """Find the sequences that break Assumption 4; `vocabulary` names the tokens in the example.

    Parameters
    ----------
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    vocabulary : sequence of str, optional
        Names of the tokens, for the example in the sentence.

    Returns
    -------
    OneRelevantToken
        Whether the assumption holds, and an example if it does not.

    Examples
    --------
    >>> from whichtoken.theory.trained_embeddings import one_relevant_token
    >>> check = one_relevant_token([[1, 0, 1], [0, 1, 1], [0, 2, 0], [0, 0, 1]], [1, -1, -1, 1], ["good", "bad", "the"])
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
    found = _names([int(t) for t in tokens if kind[t]], vocabulary)
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


@dataclass(frozen=True, eq=False)
class TheoremConditions(Shown):
    """What Theorem 5 assumes, beside what is given.

    Attributes
    ----------
    assumption : OneRelevantToken
        Whether every sequence has one relevant token (Assumption 4).
    requirements : Requirements
        Smallest step and dimension by equation (10).
    sizes_met : bool
        Whether the step and the dimension at hand reach them.
    loss, loss_limit : float
        L(E^1, p^1) and what it has to stay below, so that the flow cannot drop a relevant token: see `loss_limit`. This is
        the condition that does the work; it can hold when the sizes are far from equation (10).

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import first_step, theorem_conditions
    >>> counts, labels, value = [[1, 0, 1], [0, 1, 1]], [1, -1], np.array([1.0, 0.0])
    >>> E, p = first_step(np.zeros((3, 2)), np.zeros(2), value, counts, labels, lr=40.0)
    >>> found = theorem_conditions(E, p, value, counts, labels, lr=40.0)
    >>> found.assumption.holds, found.loss_met, found.sizes_met  # far too few dimensions, but the loss is low enough
    (True, True, False)
    """

    assumption: OneRelevantToken
    requirements: Requirements
    sizes_met: bool
    loss: float
    loss_limit: float

    @property
    def loss_met(self) -> bool:
        return self.loss < self.loss_limit


def theorem_conditions(
    embeddings: ArrayLike, cls: ArrayLike, value: ArrayLike, counts: Any, labels: ArrayLike, lr: float
) -> TheoremConditions:
    """Check Theorem 5's conditions on a data set.

    Parameters
    ----------
    embeddings, cls : array_like of shape (|S|, d) and (d,)
        E^1 and p^1, after the first step.
    value : array_like of shape (d,)
        v.
    counts : sparse or dense, shape (n, |S|)
        How often each token occurs in each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    lr : float
        The first step that was taken.

    Returns
    -------
    TheoremConditions
        Each condition beside what is given.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.trained_embeddings import theorem_conditions
    >>> found = theorem_conditions(np.zeros((3, 2)), np.zeros(2), np.ones(2), [[1, 0, 1], [0, 1, 1]], [1, -1], lr=1.0)
    >>> found.loss_met, round(found.loss, 4), round(found.loss_limit, 4)
    (False, 0.6931, 0.3466)
    """
    E, p, v = as_parameters(embeddings, cls, value)
    counts = as_counts(counts)
    n, length = counts.shape[0], int(np.max(counts.sum(axis=1)))
    needed = theorem_requirements(n, length, E.shape[0], lr=lr)
    loss = float(attend(E @ p, E @ v, counts, labels).losses.mean())
    limit = loss_limit(E @ v, counts, labels)
    return TheoremConditions(one_relevant_token(counts, labels), needed, needed.met(lr, E.shape[1]), loss, limit)


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
    >>> from whichtoken.theory.trained_embeddings import loss_limit
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
    >>> from whichtoken.theory.trained_embeddings import relevant_selection
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
    >>> from whichtoken.theory.trained_embeddings import rival_selections
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


def _names(tokens: list[int], vocabulary: Sequence[str] | None) -> str:
    """A few tokens in brackets, by name where there is one; nothing for none."""
    names = [vocabulary[t] if vocabulary is not None else f"token {t}" for t in tokens[:3]]
    return f" ({', '.join(names)}{', ...' if len(tokens) > 3 else ''})" if names else ""
