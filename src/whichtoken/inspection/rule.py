"""Is a head one bilinear max-margin rule? Solved on half of the texts, put to the test on the other half."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.estimators.metrics import wilson
from whichtoken.margin import key_query_svm

LEAST_TEXTS = 20


@dataclass(frozen=True)
class Agreement(Shown):
    """Share of picks on unseen texts that something predicts, with a 95 % interval (Wilson)."""

    share: float
    low: float
    high: float


NOTHING = Agreement(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class BilinearRule(Shown):
    """The max-margin rule of a head and what it explains.

    Few texts in many unknowns separate by chance, so that a margin alone proves nothing: what counts is the agreement on
    texts that the rule has not seen, beside that of simpler explanations.
    """

    texts: int  # in the half that the rule was solved on
    agreement: Agreement  # of the rule's picks with the head's
    own: Agreement  # of the head's own matrix: 1 where the head is a function of these vectors and nothing else
    position: Agreement  # of the place alone
    token: Agreement  # of the word alone
    chance: float  # of a random pick
    best_margin: float  # the largest that any matrix of norm 1 reaches on the first half
    realised_margin: float  # of the head's own matrix, scaled to norm 1
    gap: float  # certified distance of best_margin from the optimum
    status: str


def bilinear_rule(
    hidden: Sequence[NDArray[np.float64]],
    queries: NDArray[np.float64],
    picks: Sequence[int],
    ids: Sequence[NDArray[np.int32]],
    own: NDArray[np.float64] | None = None,
    seed: int = 0,
) -> BilinearRule:
    """Solve the key-query problem of a head on half of the texts and count its hits on the other half.

    Parameters
    ----------
    hidden : list of (tokens, width) arrays
        What the layer was given, for the tokens that can be picked.
    queries : (texts, width)
        What it was given at the query.
    picks : (texts,) positions among `hidden`
    ids : list of (tokens,) arrays
        Token ids.
    own : (width + 1, width + 1), optional
        The head's own matrix, for vectors with a 1 at the end (biases of keys and queries).
    """
    if len(hidden) < 2 * LEAST_TEXTS:
        raise UsageError(
            f"a rule of a head needs at least {2 * LEAST_TEXTS} texts, half of them to be tested on; got {len(hidden)}"
        )
    order = np.random.default_rng(seed).permutation(len(hidden))
    train, test = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    tokens = [np.c_[text, np.ones(len(text))] for text in hidden]
    asked = np.c_[queries, np.ones(len(queries))]
    solved = key_query_svm([tokens[i] for i in train], asked[train], [picks[i] for i in train])
    direction = np.zeros((asked.shape[1],) * 2) if solved.direction is None else solved.direction

    def hits(matrix: NDArray[np.float64]) -> Agreement:
        return share(sum(int(np.argmax(tokens[i] @ matrix @ asked[i])) == picks[i] for i in test), len(test))

    realised = math.nan if own is None else _margin(tokens, asked, picks, train, own / np.linalg.norm(own))
    return BilinearRule(
        texts=len(train),
        agreement=hits(direction),
        own=NOTHING if own is None else hits(own),
        position=share(hits_by_position(picks, [len(t) for t in tokens], train, test), len(test)),
        token=share(hits_by_token(picks, ids, train, test), len(test)),
        chance=float(np.mean([1 / len(tokens[i]) for i in test])),
        best_margin=float(solved.margin),
        realised_margin=realised,
        gap=float(solved.gap),
        status=solved.status,
    )


def _margin(
    tokens: list[NDArray[np.float64]], asked: NDArray[np.float64], picks: Sequence[int], rows: NDArray[np.int64],
    matrix: NDArray[np.float64],
) -> float:  # fmt: skip
    margins = []
    for i in rows:
        scores = tokens[i] @ matrix @ asked[i]
        rivals = np.delete(scores, picks[i])
        if len(rivals):
            margins.append(scores[picks[i]] - rivals.max())
    return float(min(margins, default=math.nan))


def hits_by_position(
    picks: Sequence[int], lengths: Sequence[int], train: NDArray[np.int64], test: NDArray[np.int64]
) -> int:
    """Picks of the test texts that the most frequent place of the others predicts, counted from the front or the back."""
    front = np.array([picks[i] for i in train])
    back = np.array([lengths[i] - 1 - picks[i] for i in train])
    best_front, best_back = (int(np.bincount(places).argmax()) for places in (front, back))
    if np.mean(front == best_front) >= np.mean(back == best_back):
        return sum(picks[i] == best_front for i in test)
    return sum(lengths[i] - 1 - picks[i] == best_back for i in test)


def hits_by_token(
    picks: Sequence[int], ids: Sequence[NDArray[np.int32]], train: NDArray[np.int64], test: NDArray[np.int64]
) -> int:
    """Picks of the test texts that are the token picked most often, where it occurs, in the others."""
    rates = pick_rates(picks, ids, train)
    overall = 1 / float(np.mean([len(ids[i]) for i in train]))
    return sum(int(np.argmax([rates.get(int(t), overall) for t in ids[i]])) == picks[i] for i in test)


def pick_rates(picks: Sequence[int], ids: Sequence[NDArray[np.int32]], rows: NDArray[np.int64]) -> dict[int, float]:
    """How often each token is picked where it occurs, shrunk towards the mean by one text of average length."""
    present: dict[int, float] = {}
    picked: dict[int, float] = {}
    for i in rows:
        for token in ids[i]:
            present[int(token)] = present.get(int(token), 0.0) + 1
        chosen = int(ids[i][picks[i]])
        picked[chosen] = picked.get(chosen, 0.0) + 1
    prior = 1 / float(np.mean([len(ids[i]) for i in rows]))
    return {token: (picked.get(token, 0.0) + prior) / (count + 1) for token, count in present.items()}


def share(hits: int, count: int) -> Agreement:
    """A share with its interval."""
    return Agreement(hits / count, *wilson(hits / count, count))
