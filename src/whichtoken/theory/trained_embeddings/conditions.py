"""Does a data set meet what Theorem 5 and Lemma 19 assume?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from whichtoken.data.token_counts import as_counts, as_signs
from whichtoken.theory.trained_embeddings.attention import attend, token_sets
from whichtoken.theory.trained_embeddings.bounds import Requirements, theorem_requirements
from whichtoken.theory.trained_embeddings.frequencies import TokenClasses, token_classes
from whichtoken.theory.trained_embeddings.one_step import as_parameters


@dataclass(frozen=True, eq=False)
class OneRelevantToken:
    """Assumption 4 on a data set: one completely positive or negative token per sequence, all others irrelevant.

    Attributes
    ----------
    holds : bool
    broken : array of int
        Sequences that break it.
    sentence : str
        What is wrong, with an example; or that nothing is.
    classes : TokenClasses
    """

    holds: bool
    broken: NDArray[np.int64]
    sentence: str
    classes: TokenClasses


def one_relevant_token(counts: Any, labels: ArrayLike, vocabulary: Sequence[str] | None = None) -> OneRelevantToken:
    """Find the sequences that break Assumption 4; `vocabulary` names the tokens in the example."""
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
class TheoremConditions:
    """What Theorem 5 assumes, beside what is given.

    Attributes
    ----------
    assumption : OneRelevantToken
    requirements : Requirements
        Smallest step and dimension by equation (10).
    sizes_met : bool
        Whether the step and the dimension at hand reach them.
    loss, loss_limit : float
        L(E^1, p^1) and 1/(2n): below it the flow cannot drop a relevant token (proof of Lemma 14). This is the condition
        that does the work; it can hold when the sizes are far from equation (10).
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
    embeddings, cls : E^1 (|S|, d) and p^1 (d,), after the first step.
    value : (d,)
    counts : (n, |S|)
    labels : (n,), -1 or +1
    lr : the first step that was taken.
    """
    E, p, v = as_parameters(embeddings, cls, value)
    counts = as_counts(counts)
    n, length = counts.shape[0], int(np.max(counts.sum(axis=1)))
    needed = theorem_requirements(n, length, E.shape[0], lr=lr)
    loss = float(attend(E @ p, E @ v, counts, labels).losses.mean())
    return TheoremConditions(one_relevant_token(counts, labels), needed, needed.met(lr, E.shape[1]), loss, 1 / (2 * n))


def relevant_selection(counts: Any, labels: ArrayLike) -> sparse.csr_array:
    """The selection of Theorem 5 that takes the relevant tokens and nothing else, (n, |S|) of bool."""
    counts = as_counts(counts)
    return token_sets(counts, token_classes(counts, labels).relevant[counts.indices])


def rival_selections(counts: Any, labels: ArrayLike) -> Iterator[tuple[str, NDArray[np.int64], sparse.csr_array]]:
    """Other selections that Lemma 19 has to beat: relevant tokens and more, tied wherever they occur together.

    Yields (family, irrelevant tokens tied in, selection): for every irrelevant token s that occurs, "one more" ties the
    relevant tokens with s, "all but one" with every irrelevant token except s. Only selections that leave a token
    unselected somewhere are given.
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
