"""Reasons of a text decision: exact attention, contributions that add up, and the smallest change that would flip it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.estimators.text_classifier import _texts, decide
from whichtoken.theory.trained_embeddings.decisions import OUT_OF_REACH, Certificate, certify, minimal_deletions

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.text_classifier import TextClassifier


@dataclass(slots=True)
class TokenReason:
    """What one token does in one document."""

    token: str
    count: float
    attention: float  # share of the attention, all occurrences together; the mean over queries
    contribution: float  # to the decision
    places: list[tuple[int, int]]  # text[start:stop] of the words it came from


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a document gets its label: `decision` is `bias` plus the sum of the contributions.

    For two classes contributions are positive where they speak for the second class; for more, where they speak for `label`.
    The arrays are sorted by the size of the contribution; `reasons` has the same with names and places in the text.
    """

    text: str | None
    label: Any
    probability: float
    decision: float
    bias: float
    columns: NDArray[Any]  # the distinct tokens of the document
    counts: NDArray[Any]
    attention: NDArray[Any]
    contributions: NDArray[Any]
    model: TextClassifier = field(repr=False)
    flips: NDArray[np.int64] = field(repr=False)

    @property
    def counterfactual(self) -> list[str] | None:
        """Fewest tokens to delete until the label changes; None: no deletion does, or the model has several queries."""
        return [self.model.token_names_[column] for column in self.flips] or None

    @cached_property
    def reasons(self) -> list[TokenReason]:
        """What each token does, the largest contribution first."""
        names = self.model.token_names_
        places = {} if self.text is None else self.model._vocabulary.place(self.text)
        numbers = (part.tolist() for part in (self.columns, self.counts, self.attention, self.contributions))
        return [TokenReason(names[s], c, q, r, places.get(s, [])) for s, c, q, r in zip(*numbers, strict=True)]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return {
            "text": self.text,
            "label": self.label.item() if isinstance(self.label, np.generic) else self.label,
            "probability": self.probability,
            "decision": self.decision,
            "bias": self.bias,
            "reasons": [asdict(reason) for reason in self.reasons],
            "counterfactual": self.counterfactual,
        }


def explain(model: TextClassifier, X: Any) -> list[Explanation]:
    """One explanation per document."""
    texts = _texts(X)
    counts = model._counts(X)
    outputs = model._outputs(counts)
    chosen = decide(outputs)
    column = chosen if outputs.shape[1] > 1 else np.zeros(len(chosen), dtype=np.int64)
    attention, contributions = _attention(model, counts, column)
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    order = np.lexsort((-np.abs(contributions), rows))
    columns, numbers, attention, contributions = (
        part[order] for part in (counts.indices, counts.data, attention, contributions)
    )
    probabilities = model._probabilities(outputs)[np.arange(len(chosen)), chosen].tolist()
    linear = model.selection_.shape[1] == 1
    flips = flipping_sets(model, counts) if linear else [np.empty(0, np.int64)] * len(chosen)
    explanations = []
    for i in range(counts.shape[0]):
        part = slice(counts.indptr[i], counts.indptr[i + 1])
        explanations.append(
            Explanation(
                None if texts is None else texts[i],
                model.classes_[chosen[i]],
                probabilities[i],
                float(outputs[i, column[i]]),
                float(model.bias_[column[i]]),
                columns[part],
                numbers[part],
                attention[part],
                contributions[part],
                model,
                flips[i],
            )
        )
    return explanations


def flipping_sets(model: TextClassifier, counts: sparse.csr_array) -> list[NDArray[np.int64]]:
    """Columns of the smallest set of tokens of each document whose deletion changes its label; empty if none does."""
    amounts = model._amounts(counts)
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * counts.shape[0]
    for values, bias, rows in _duels(model, counts):
        flips = minimal_deletions(counts[rows], model.selection_[:, 0], values, bias, amounts[rows].data)
        for place, row in enumerate(rows):
            size = flips.sizes[place]
            if size != OUT_OF_REACH and (not len(found[row]) or size < len(found[row])):
                found[row] = flips.of(place)
    return found


def certificates(model: TextClassifier, counts: sparse.csr_array) -> pd.DataFrame:
    """Fewest changes of single tokens before a label can change, over all rivals of it."""
    import pandas as pd

    if (counts.data != np.floor(counts.data)).any():
        raise ValueError(
            "X holds fractions; a certificate speaks of whole occurrences, so counts must be whole numbers"
        )
    amounts = model._amounts(counts)
    kinds = [name for name in Certificate.__dataclass_fields__ if name != "decisions"]
    fewest = np.full((counts.shape[0], len(kinds)), np.iinfo(np.int64).max)
    for values, bias, rows in _duels(model, counts):
        duel = certify(counts[rows], model.selection_[:, 0], values, bias, amounts[rows].data)
        numbers = np.stack([getattr(duel, kind) for kind in kinds], axis=1)
        numbers = np.where(numbers == OUT_OF_REACH, np.iinfo(np.int64).max, numbers)
        fewest[rows] = np.minimum(fewest[rows], numbers)
    return pd.DataFrame(np.where(fewest == np.iinfo(np.int64).max, OUT_OF_REACH, fewest), columns=kinds)


def _duels(model: TextClassifier, counts: sparse.csr_array) -> list[tuple[Any, float, NDArray[np.int64]]]:
    """Values and bias of the winner against each rival, and the documents that the duel is about."""
    if model.selection_.shape[1] > 1:
        raise ValueError(f"n_queries={model.n_queries}: counterfactuals are exact for one query only")
    values, bias = model.values_[:, 0], model.bias_
    if values.shape[1] == 1:
        return [(values[:, 0], float(bias[0]), np.arange(counts.shape[0]))]
    winner = decide(model._outputs(counts))
    duels = []
    for k in np.unique(winner):
        for rival in range(values.shape[1]):
            if rival != k:
                rows = np.flatnonzero(winner == k)
                duels.append((values[:, k] - values[:, rival], float(bias[k] - bias[rival]), rows))
    return duels


def _attention(
    model: TextClassifier, counts: sparse.csr_array, column: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Attention and contribution of every stored count, in the order of `counts.data`."""
    amounts = model._amounts(counts)
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    attention, contributions = np.zeros(len(rows)), np.zeros(len(rows))
    queries = model.selection_.shape[1]
    for h in range(queries):
        selection = model.selection_[:, h]
        weights = amounts.data * np.exp(selection - selection.max())[counts.indices]
        share = weights / np.bincount(rows, weights, minlength=counts.shape[0])[rows]
        attention += share / queries
        contributions += share * model.values_[counts.indices, h, column[rows]]
    return attention, contributions
