"""A text model from documents and a recipe: values are solved exactly, attention moves by one step, values are solved again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.display.shown import Shown
from whichtoken.estimators.text.counting import BLOCK, Documents, attention_shares, row_blocks
from whichtoken.estimators.text.dual_ascent import (
    TOLERANCE,
    ReadoutLoss,
    RidgeProblem,
    SolvedValues,
    loss_slopes,
    solve_values,
)
from whichtoken.theory.trained_embeddings.score_descent import Scores

Array = NDArray[np.float64]

# factor of |a|^2 / 2 beside the sum of the losses; a is on a logarithmic scale, so one number fits all vocabularies
SELECTION_RIDGE = 25.0


@dataclass(frozen=True)
class TextRecipe(Shown):
    """The settings of a fit that a validation chooses."""

    C: float
    loss: ReadoutLoss
    null: float  # mass of the null token, in units of the mean mass of a document
    attention_step: bool  # whether attention moves once from its start


def run_in_threads(calls: Sequence[Callable[[], Any]], jobs: int | None) -> list[Any]:
    """Results of the calls, in threads: the work is compiled code that leaves Python to others."""
    if len(calls) < 2 or jobs in (None, 1):
        return [call() for call in calls]
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    return list(Parallel(n_jobs=jobs, prefer="threads")(delayed(call)() for call in calls))


@dataclass(frozen=True, eq=False)
class AttendedDocuments:
    """Documents under one attention: where the values of any recipe with its null token are solved."""

    documents: Documents
    selection: Array  # relative to the start, (|S|, queries)
    log_null: float
    shares: sparse.csr_array  # (n, queries * |S|)
    concentration: float  # mean of sum_s q_s^2, the size of the features, in which C is measured

    @classmethod
    def of(cls, documents: Documents, selection: Array, log_null: float) -> AttendedDocuments:
        shares = attention_shares(documents.amounts, selection, log_null)
        squares = np.concatenate([np.asarray(block.power(2).sum(axis=1)) for block in row_blocks(shares)])
        return cls(documents, selection, log_null, shares, float(squares.mean()) or 1.0)

    @property
    def precision(self) -> Array:
        """Precision of the ridge on values and bias, (queries * |S| + 1,)."""
        return np.append(np.full(self.shares.shape[1], self.concentration), 1.0)

    def problems(self, rows: NDArray[np.int64], recipe: TextRecipe) -> list[RidgeProblem]:
        """One per output."""
        bounds, spread = recipe.C * self.documents.weights, 1 / self.precision
        return [
            RidgeProblem(self.shares, rows, signs, bounds, recipe.loss, spread)
            for signs in output_signs(self.documents)
        ]

    def scores(self, solved: Sequence[SolvedValues]) -> Scores:
        """The model with these values."""
        queries = self.selection.shape[1]
        values = np.stack([output.values for output in solved], axis=1)  # (queries * |S|, outputs)
        heads = values.reshape(queries, -1, values.shape[1]).transpose(1, 0, 2)
        bias = np.array([output.bias for output in solved])
        return Scores(self.selection, np.ascontiguousarray(heads), bias, self.log_null)


def output_signs(documents: Documents) -> list[Array]:
    """-1 and +1 for each output, (n,)."""
    return [np.where(column > 0, 1.0, -1.0) for column in documents.targets.T]


def fit_values(
    attended: AttendedDocuments,
    rows: NDArray[np.int64],
    recipe: TextRecipe,
    jobs: int | None = None,
    tolerance: float = TOLERANCE,
) -> Scores:
    """The model with the best values for documents `rows`."""
    calls = [partial(solve_values, problem, tolerance=tolerance) for problem in attended.problems(rows, recipe)]
    return attended.scores(run_in_threads(calls, jobs))


def fit_values_and_attention(
    attended: AttendedDocuments,
    rows: NDArray[np.int64],
    recipe: TextRecipe,
    ridge: float,
    jobs: int | None = None,
    tolerance: float = TOLERANCE,
) -> list[Scores]:
    """The model with the attention of the start, and, if the recipe says so, the one after a step of the attention."""
    scores = fit_values(attended, rows, recipe, jobs, tolerance)
    if not recipe.attention_step:
        return [scores]
    documents, selection = attended.documents, step_attention(attended, rows, scores, recipe.loss, ridge)
    del attended  # its shares are most of the memory of a fit: free them, where nobody else needs them, before the next
    moved = AttendedDocuments.of(documents, selection, scores.log_null)
    return [scores, fit_values(moved, rows, recipe, jobs, tolerance)]


def step_attention(
    attended: AttendedDocuments, rows: NDArray[np.int64], scores: Scores, loss: ReadoutLoss, ridge: float
) -> Array:
    """Selection scores after one step of the attention: Newton's, with the diagonal of the Gauss-Newton matrix.

    f = sum_s q_s g_s has the slope q_s (g_s - f) in a_s, whatever the null token takes.
    """
    slope, curvature = np.zeros((2, len(scores.selection)))
    values, documents = scores.values[:, 0], attended.documents  # (|S|, outputs)
    signs = np.stack(output_signs(documents), axis=1)
    for first in range(0, len(rows), BLOCK):
        some = rows[first : first + BLOCK]
        shares = attended.shares[some]
        outputs = shares @ values
        slopes, bends = loss_slopes(signs[some] * (outputs + scores.bias), loss)
        slopes, bends = (part * documents.weights[some, None] for part in (slopes * signs[some], bends))
        slope += (values * (shares.T @ slopes)).sum(axis=1) - shares.T @ (slopes * outputs).sum(axis=1)
        squares = shares.power(2).T
        curvature += (values**2 * (squares @ bends) - 2 * values * (squares @ (bends * outputs))).sum(axis=1)
        curvature += squares @ (bends * outputs**2).sum(axis=1)
    return np.asarray(attended.selection - (slope / (np.maximum(curvature, 0) + ridge))[:, None])


def information(
    shares: sparse.csr_array, scores: Scores, documents: Documents, recipe: TextRecipe, mean: Array
) -> Array:
    """Curvature that the losses give to each value and to the output at the mean attention, (|S| + 1, outputs).

    Shares are taken relative to the mean: what all documents have in common belongs to the output at the mean.
    """
    total = np.zeros((shares.shape[1] + 1, documents.outputs))
    signs, bounds = np.stack(output_signs(documents), axis=1), recipe.C * documents.weights
    for first in range(0, shares.shape[0], BLOCK):
        some = slice(first, first + BLOCK)
        part = shares[some]
        margins = signs[some] * (part @ scores.values[:, 0] + scores.bias)
        bends = bounds[some, None] * loss_slopes(margins, recipe.loss)[1]
        whole = bends.sum(axis=0)
        total[:-1] += part.power(2).T @ bends - 2 * mean[:, None] * (part.T @ bends) + mean[:, None] ** 2 * whole
        total[-1] += whole
    return total
