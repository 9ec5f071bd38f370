"""The fit of a text model: settings by validation on held-out documents, then the values; and updates by more documents.

Values of tokens given their attention are a ridge problem per output, solved to a certified gap by dual coordinate ascent:

    minimize  sum_s (g_s - g0_s)^2 / (2 spread_s) + (c - c0)^2 / (2 spread_c) + sum_i bound_i loss(y_i (q_i.g + b))

with the attention q_i (a row of shares) held fixed and c = b + mean.g, the output at a mean attention (0 unless it is given).
Each document has one dual variable, bound_i times the slope of its loss, and a visit makes its own optimality condition exact
(Hsieh et al. 2008; Yu, Huang, Lin 2011). The duality gap is a sum over documents of Fenchel-Young terms
loss(m) + conjugate(p) + p m, so it is known from the margins alone.

Texts have more tokens than documents need, and a few passes are enough. Where there are many more documents than tokens the
ascent slows down; Newton's method then finishes in the primal, where such problems are easy.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, log_softmax, logit

from whichtoken.display.shown import Shown
from whichtoken.estimators.text.blocks import DaskRows, map_rows, sum_blocks
from whichtoken.estimators.text.counting import Documents, attention_shares
from whichtoken.theory.trained_embeddings.score_descent import ScoreDescent, Scores, schedule

if TYPE_CHECKING:
    from whichtoken.estimators.text.model import TextModel

Array = NDArray[np.float64]
ReadoutLoss = Literal["logistic", "squared_hinge", "squared"]

TOLERANCE = 1e-5  # gap over the objective
MOST_PASSES, MOST_VISITS = 60, 500_000  # over all documents, or of a few, before Newton's method takes over
EXACT = 1e-12  # gap of Newton's method on Dask, which costs it few steps: values to a millionth of the largest
MOST_STEPS, TIGHTER = 200, 4  # steps of that, and how often it tries again with a smaller slope in view


@dataclass(frozen=True, eq=False)
class RidgeProblem:
    """One output: which documents, with which labels and weights, and where the ridge pulls to."""

    shares: sparse.csr_array  # attention, (n, |S|)
    rows: NDArray[np.int64]  # documents that take part
    signs: Array  # -1 or +1, of the squared loss the number to learn, (n,)
    bounds: Array  # C times the weight of a document, (n,)
    loss: ReadoutLoss = "logistic"
    spread: Array | None = None  # inverse precision of the ridge, (|S| + 1,), that of c last; 1 by default
    values: Array | None = None  # g0, (|S|,); 0 by default
    bias: float = 0.0  # b0
    mean: Array | None = None  # (|S|,)
    # features that every document has, after those of the tokens, relative to their mean: (n, dim); they share one spread
    dense: NDArray[np.float32] | None = None

    @property
    def features(self) -> sparse.csr_array:
        """All features in one matrix, (n, |S| [+ dim])."""
        if self.dense is None:
            return self.shares
        return map_rows(self.shares, beside, by_row=[self.dense], columns=self.shares.shape[1] + self.dense.shape[1])


def beside(shares: sparse.csr_array, dense: NDArray[Any]) -> sparse.csr_array:
    """Dense columns after sparse ones."""
    return sparse.csr_array(sparse.hstack([shares, sparse.csr_array(dense)], format="csr"))


@dataclass(frozen=True, eq=False)
class SolvedValues:
    """Its solution."""

    values: Array  # g, (|S|,)
    bias: float
    gap: float  # to the minimum, at most, relative to the objective
    duals: Array  # the dual variables, (n,); of documents on Dask (0,)


def solve_values(problem: RidgeProblem, tolerance: float = TOLERANCE, near: SolvedValues | None = None) -> SolvedValues:
    """The minimizer, up to `tolerance` times the objective; `near` is the solution of a similar problem, if one is known."""
    from whichtoken.estimators.text.dual_ascent_kernels import ascend

    shares, nothing = problem.shares, np.empty((problem.shares.shape[0], 0), np.float32)
    # half the memory is most of the time of a pass, and vectors have no more digits
    dense = nothing if problem.dense is None else np.asarray(problem.dense, np.float32)
    tokens = shares.shape[1]
    spread = np.ones(tokens + dense.shape[1] + 1) if problem.spread is None else problem.spread
    mean = np.zeros(tokens) if problem.mean is None else problem.mean
    start = np.zeros(tokens) if problem.values is None else problem.values
    rows = problem.rows[problem.bounds[problem.rows] > 0]
    if problem.loss == "squared" or isinstance(shares, DaskRows):
        return _newton(problem, rows, spread, mean, start, tolerance, near)
    values, logistic = start.copy(), problem.loss == "logistic"
    # dual variables and not their shares of the bounds: with another C the values stay near where they were
    duals = problem.bounds * (0.5 if logistic else 0.0) if near is None else near.duals.copy()
    if logistic:
        duals = duals.clip(1e-9 * problem.bounds, (1 - 1e-9) * problem.bounds)
    bias, gap = ascend(
        shares.indptr.astype(np.int64), shares.indices.astype(np.int32, copy=False), shares.data, dense, rows.copy(),
        problem.signs, problem.bounds, spread[:tokens], spread[-2], spread[-1], mean, values, problem.bias,
        None if logistic else True, tolerance, max(MOST_PASSES, MOST_VISITS // max(len(rows), 1)), duals,
    )  # fmt: skip
    if gap > tolerance:
        return _newton(problem, rows, spread, mean, start, tolerance)
    # from the dual variables: the ascent keeps it in float32
    signed = np.zeros(len(duals), np.float32)
    signed[rows] = problem.signs[rows] * duals[rows]
    values = np.concatenate([values, spread[-2] * (dense.T @ signed)])
    return SolvedValues(values, float(bias), float(gap), duals)


def loss_slopes(margins: Array, loss: ReadoutLoss) -> tuple[Array, Array]:
    """First and second derivative of the loss in the margin, of the squared loss in the residual."""
    if loss == "squared":
        return margins, np.ones_like(margins)
    if loss == "logistic":
        wrong = expit(-margins)
        return np.asarray(-wrong), np.asarray(wrong * (1 - wrong))
    return np.asarray(-2 * np.maximum(1 - margins, 0)), np.asarray(2.0 * (margins < 1))


def output_slopes(outputs: Array, signs: Array, loss: ReadoutLoss) -> tuple[Array, Array]:
    """First and second derivative of the loss in the outputs."""
    if loss == "squared":
        return loss_slopes(outputs - signs, loss)
    slopes, bends = loss_slopes(signs * outputs, loss)
    return signs * slopes, bends


@dataclass(frozen=True, eq=False)
class LossBlock:
    """Some documents of a problem, of which a function of the values is asked: all that are here, or those of a partition."""

    shares: sparse.csr_array  # with all features
    signs: Array | float  # 1 for numbers
    weights: Array  # of the losses, or of their curvatures
    offset: Array  # the margins of values of 0
    loss: ReadoutLoss

    @classmethod
    def of(
        cls, shares: sparse.csr_array, signs: Array, bounds: Array, loss: ReadoutLoss, start: Array, bias: float
    ) -> Self:
        """The margins are relative to a start."""
        signs, wanted = (np.ones(len(signs)), signs) if loss == "squared" else (signs, 0.0)
        return cls(shares, signs, bounds, signs * (shares @ start + bias) - wanted, loss)

    def margins(self, values: Array, bias: float) -> Array:
        """Of the losses, (n,)."""
        return np.asarray(self.offset + self.outputs(values, bias))

    def outputs(self, values: Array, bias: float) -> Array:
        """What values add to the margins, (n,)."""
        return np.asarray(self.signs * (self.shares @ values + bias))

    def objective(self, values: Array, bias: float) -> tuple[float, Array, float]:
        """The sum of the losses and its slopes in the values and in the bias."""
        m = self.margins(values, bias)
        losses = np.logaddexp(0, -m) if self.loss == "logistic" else np.maximum(1 - m, 0) ** 2
        losses = m**2 / 2 if self.loss == "squared" else losses
        return float(self.weights @ losses), *self._pull_back(self.weights * loss_slopes(m, self.loss)[0])

    def curved(self, values: Array, bias: float) -> Self:
        """The same documents with the curvatures of their losses as weights."""
        return replace(self, weights=self.weights * loss_slopes(self.margins(values, bias), self.loss)[1])

    def hessian_product(self, values: Array, bias: float) -> tuple[Array, float]:
        """Of curved documents, in the values and in the bias."""
        return self._pull_back(self.weights * self.outputs(values, bias))

    def _pull_back(self, slopes: Array) -> tuple[Array, float]:
        signed = self.signs * slopes
        return self.shares.T @ signed, float(signed.sum())


def _newton(
    problem: RidgeProblem,
    rows: NDArray[np.int64],
    spread: Array,
    mean: Array,
    start: Array,
    tolerance: float,
    near: SolvedValues | None = None,
) -> SolvedValues:
    """The minimizer by a trust-region Newton method, whose steps are sums over the documents, wherever they are.

    In z = (g - g0, c - c0) / sqrt(spread) the objective has a curvature of at least 1: |gradient|^2 / 2 bounds what is missing.
    """
    from scipy.optimize import minimize

    features: Any = problem.features
    known = [problem.signs, problem.bounds]
    distributed = isinstance(features, DaskRows)
    root, root_c = np.sqrt(spread[:-1]), math.sqrt(spread[-1])
    more = np.zeros(features.shape[1] - len(mean))
    start, mean = np.append(start, more), np.append(mean, more)
    if not distributed:
        features, *known = (part[rows] for part in (features, *known))
    blocks = map_rows(features, LossBlock.of, problem.loss, start, problem.bias, by_row=known, keep=True)

    def at(z: Array) -> tuple[Array, float]:
        g = root * z[:-1]
        return g, float(root_c * z[-1] - mean @ g)

    def total(blocks: Any, function: Callable[..., Any], z: Array) -> Any:
        return blocks.sum(function, *at(z)) if distributed else function(blocks, *at(z))

    def pull_back(slope: Array, whole: float) -> Array:
        return np.append(root * (slope - mean * whole), root_c * whole)

    def objective(z: Array) -> tuple[float, Array]:
        value, *slopes = total(blocks, LossBlock.objective, z)
        return float(value + z @ z / 2), pull_back(*slopes) + z

    curved: list[Any] = [None, None]  # where the curvatures were asked for last, and the documents with them

    def hessian_product(z: Array, direction: Array) -> Array:
        if curved[0] is None or not np.array_equal(z, curved[0]):
            curved[:] = z.copy(), map_rows(blocks, LossBlock.curved, *at(z), keep=True)
        return pull_back(*total(curved[1], LossBlock.hessian_product, direction)) + direction

    z = np.zeros(len(spread))
    if distributed:
        tolerance = min(tolerance, EXACT)
        if near is not None:
            g = near.values - start
            z = np.append(g / root, (near.bias - problem.bias + mean @ g) / root_c)
    options = {"gtol": math.sqrt(tolerance * objective(z)[0]) / 10, "maxiter": MOST_STEPS}
    value, slope = np.inf, np.full(1, np.inf)
    for _ in range(TIGHTER):
        z = minimize(objective, z, jac=True, hessp=hessian_product, method="trust-ncg", options=options).x
        value, slope = objective(z)
        if slope @ slope / 2 <= tolerance * value:
            break
        options["gtol"] /= 100
    g, bias = at(z)
    gap = float(slope @ slope / 2 / value) if value > 0 else 0.0
    duals = np.zeros(0 if distributed else len(problem.bounds))
    if not distributed:
        duals[rows] = -problem.bounds[rows] * loss_slopes(blocks.margins(g, bias), problem.loss)[0]
    return SolvedValues(start + g, problem.bias + bias, gap, duals)


# factor of |a|^2 / 2 beside the sum of the losses; a is on a logarithmic scale, so one number fits all vocabularies
SELECTION_RIDGE = 25.0


@dataclass(frozen=True)
class TextRecipe(Shown):
    """The settings of a fit that a validation chooses."""

    C: float
    loss: ReadoutLoss
    null: float  # mass of the null token, in units of the mean mass of a document
    attention_step: bool  # whether attention moves once from its start
    vectors: float = 0.0  # share of the vectors in the ridge on the values; 0 for words alone
    blend: float = 1.0  # weight of the values with vectors, beside those of words alone


def run_in_threads(calls: Sequence[Callable[[], Any]], jobs: int | None) -> list[Any]:
    """Results of the calls, in threads: the work is compiled code that leaves Python to others."""
    if len(calls) < 2 or jobs in (None, 1):
        return [call() for call in calls]
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    return list(Parallel(n_jobs=jobs, prefer="threads")(delayed(call)() for call in calls))


@dataclass(frozen=True)
class SpelledScores(Scores):
    """A model whose values are v.E_s + delta_s, or that has columns beside its tokens, with weights v."""

    direction: Array = field(default_factory=lambda: np.zeros((0, 1)))  # v, (dim, outputs)

    @classmethod
    def of(
        cls, selection: Array, parts: Array, bias: Array, log_null: float, vectors: NDArray[np.float32] | None
    ) -> Self:
        """From delta and v, which stand below each other in `parts`."""
        own, direction = np.split(parts, [len(selection)])
        values = own if vectors is None else own + vectors @ direction
        return cls(selection, values[:, None], bias, log_null, direction)


def split_values(scores: Scores, vectors: NDArray[np.float32] | None) -> Array:
    """The parameters (delta, v) of a model, (|S| + dim, outputs); without vectors and columns the values."""
    values = scores.values[:, 0]
    if not isinstance(scores, SpelledScores):
        return values
    own = values if vectors is None else values - vectors @ scores.direction
    return np.concatenate([own, scores.direction])


def add_values(words: SolvedValues, vectors: SolvedValues, factor: float, weight: float) -> SolvedValues:
    """So much of the one and so much of the other; the values of words alone come first in both."""
    values = weight * vectors.values
    values[: len(words.values)] += factor * words.values
    return replace(vectors, values=values, bias=weight * vectors.bias + factor * words.bias)


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
        shares = map_rows(documents.amounts, attention_shares, selection, log_null, keep=True)
        concentration = sum_blocks(shares, lambda block: block.power(2).sum(axis=1).sum()) / len(documents.labels)
        return cls(documents, selection, log_null, shares, float(concentration) or 1.0)

    @cached_property
    def _beside(self) -> tuple[NDArray[np.float32], Array, float] | None:
        vectors, found = self.documents.vectors, self.documents.columns
        if vectors is not None:
            found = self.shares.astype(np.float32) @ vectors
        if found is None:
            return None
        center = found.mean(axis=0, dtype=np.float64)
        found = found - center.astype(np.float32)
        return found, center, max(float(np.einsum("nd,nd->", found, found, dtype=np.float64)) / len(found), 1e-12)

    @property
    def dense(self) -> NDArray[np.float32] | None:
        """What every document has beside its tokens, relative to `center`: the mean of its vectors, or its columns, (n, dim)."""
        return None if self._beside is None else self._beside[0]

    @property
    def center(self) -> Array:
        """The mean of that over the documents, (dim,)."""
        return np.zeros(0) if self._beside is None else self._beside[1]

    def precision(self, recipe: TextRecipe) -> Array:
        """Precision of the ridge on values, direction and bias, (queries * |S| [+ dim] + 1,)."""
        tokens, share = np.full(self.shares.shape[1], self.concentration), recipe.vectors
        if self._beside is None or self._dense_of(recipe) is None:
            return np.append(tokens, 1.0)
        _, center, size = self._beside
        return np.concatenate([tokens / (1 - share), np.full(len(center), size / (share or 1.0)), [1.0]])

    def _dense_of(self, recipe: TextRecipe) -> NDArray[np.float32] | None:
        return self.dense if recipe.vectors or self.documents.columns is not None else None

    def problem(self, rows: NDArray[np.int64], recipe: TextRecipe, output: int) -> RidgeProblem:
        """That of one output."""
        weights = self.documents.weights
        # part of the documents weighs as much as all: with fewer the outputs, and with them the temperature, would be others
        bounds, spread = recipe.C * weights.sum() / (weights[rows].sum() or 1.0) * weights, 1 / self.precision(recipe)
        signs = signs_for(self.documents.labels, self.documents.classes, output)
        return RidgeProblem(self.shares, rows, signs, bounds, recipe.loss, spread, dense=self._dense_of(recipe))

    def outputs(self, solved: Sequence[SolvedValues]) -> Array:
        """Outputs of the documents with these values, (n, outputs)."""
        (values, bias), tokens = _stacked(solved), self.shares.shape[1]
        outputs = self.shares @ values[:tokens] + bias
        if self._beside is None or len(values) == tokens:
            return np.asarray(outputs)
        return np.asarray(outputs + self._beside[0] @ values[tokens:].astype(np.float32))

    def scores(self, solved: Sequence[SolvedValues]) -> Scores:
        """The model with these values."""
        (values, bias), queries = _stacked(solved), self.selection.shape[1]
        if self._beside is not None:
            bias = bias - self.center @ values[self.shares.shape[1] :]
            return SpelledScores.of(self.selection, values, bias, self.log_null, self.documents.vectors)
        heads = values.reshape(queries, -1, values.shape[1]).transpose(1, 0, 2)
        return Scores(self.selection, np.ascontiguousarray(heads), bias, self.log_null)


def _stacked(solved: Sequence[SolvedValues]) -> tuple[Array, Array]:
    """Values, (queries * |S| [+ dim], outputs), and bias, (outputs,)."""
    return np.stack([output.values for output in solved], axis=1), np.array([output.bias for output in solved])


def signs_for(labels: NDArray[Any], classes: int, output: int) -> Array:
    """-1 and +1 for an output, or the number to learn, (n,)."""
    if labels.dtype.kind == "f":
        return labels
    positive = labels[:, output] > 0 if labels.ndim == 2 else labels == (1 if classes == 2 else output)
    return np.where(positive, 1.0, -1.0)


def output_signs(documents: Documents) -> list[Array]:
    """Those of all outputs."""
    return [signs_for(documents.labels, documents.classes, output) for output in range(documents.outputs)]


def fit_values(
    attended: AttendedDocuments,
    rows: NDArray[np.int64],
    recipe: TextRecipe,
    jobs: int | None = None,
    tolerance: float = TOLERANCE,
    near: Sequence[SolvedValues] | None = None,
) -> list[SolvedValues]:
    """The best values of each output for documents `rows`; `near` are similar ones to start from."""

    def solve(output: int) -> SolvedValues:
        return solve_values(attended.problem(rows, recipe, output), tolerance, near[output] if near else None)

    # of documents on Dask one output at a time is with the workers
    jobs = None if isinstance(attended.shares, DaskRows) else jobs
    return run_in_threads([partial(solve, output) for output in range(attended.documents.outputs)], jobs)


def step_attention(
    attended: AttendedDocuments, rows: NDArray[np.int64], scores: Scores, loss: ReadoutLoss, ridge: float
) -> Array:
    """Selection scores after one step of the attention: Newton's, with the diagonal of the Gauss-Newton matrix."""
    documents, shares = attended.documents, attended.shares
    by_row = [documents.labels, documents.weights, documents.columns]
    if len(rows) < len(documents.labels):
        shares, by_row = shares[rows], [None if array is None else array[rows] for array in by_row]
    slope, curvature = sum_blocks(shares, _attention_slopes, scores, documents.classes, loss, by_row=by_row)
    return np.asarray(attended.selection - (slope / (np.maximum(curvature, 0) + ridge))[:, None])


def _output_derivatives(
    shares: sparse.csr_array, labels: NDArray[Any], columns: Any, scores: Scores, classes: int, loss: ReadoutLoss
) -> tuple[Array, Array, Array]:
    """Outputs of words alone, and the derivatives of the losses in the outputs, (n, outputs) each."""
    outputs = shares @ scores.values[:, 0]
    more = 0.0 if columns is None else columns @ scores.direction  # type: ignore[attr-defined]
    signs = np.stack([signs_for(labels, classes, output) for output in range(outputs.shape[1])], axis=1)
    return outputs, *output_slopes(outputs + scores.bias + more, signs, loss)


def _attention_slopes(
    shares: sparse.csr_array, labels: NDArray[Any], weights: Array, columns: Any, scores: Scores, classes: int,
    loss: ReadoutLoss,
) -> tuple[Array, Array]:  # fmt: skip
    """Slope and curvature in the selection scores, (|S|,): f = sum_s q_s g_s has the slope q_s (g_s - f) in a_s."""
    outputs, *derivatives = _output_derivatives(shares, labels, columns, scores, classes, loss)
    slopes, bends = (part * weights[:, None] for part in derivatives)
    values, squares = scores.values[:, 0], shares.power(2).T
    slope = (values * (shares.T @ slopes)).sum(axis=1) - shares.T @ (slopes * outputs).sum(axis=1)
    curvature = (values**2 * (squares @ bends) - 2 * values * (squares @ (bends * outputs))).sum(axis=1)
    return slope, curvature + squares @ (bends * outputs**2).sum(axis=1)


def _information(
    shares: sparse.csr_array, labels: NDArray[Any], weights: Array, columns: Any, dense: Any, scores: Scores,
    mean: Array, classes: int, recipe: TextRecipe,
) -> Array:  # fmt: skip
    """Curvature that the losses give to each parameter and to the output at the mean attention, (parameters + 1, outputs).

    Shares are taken relative to the mean: what all documents have in common belongs to the output at the mean.
    """
    bends = _output_derivatives(shares, labels, columns, scores, classes, recipe.loss)[2]
    bends = (recipe.C * weights)[:, None] * bends
    whole, mean = bends.sum(axis=0), mean[:, None]
    learned = [shares.power(2).T @ bends - 2 * mean * (shares.T @ bends) + mean**2 * whole]
    return np.concatenate([*learned, *([] if dense is None else [(dense**2).T @ bends]), whole[None]])


Rows = NDArray[np.int64]
Splits = list[tuple[Rows, Rows]]

C_GRID = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # weaker and weaker ridge on the values
NULL_GRID = (0.03, 0.1, 0.3, 1.0, 3.0)
VECTOR_SHARES, VECTOR_SHARE = (0.05, 0.2, 0.5, 0.8), 0.5  # tried; usual
SHARE_SPREAD = 2.0  # of the prior on the log odds
VECTOR_CS, C_SPREAD = (1.0, 3.0, 10.0, 30.0), 1.5  # tried beside vectors; of the prior on the logarithm
VECTOR_HELD = 300  # held-out documents that are enough for these means
BLENDS, LEAST_BLEND = np.linspace(0, 1, 11), 0.1  # weights of vectors beside words; less than this is none
DEFAULT = TextRecipe(C=3.0, loss="logistic", null=0.3, attention_step=False)  # where nothing can be held out
# gap of the values in a trial, of one output and of several, whose errors even out: below what held-out documents tell apart
TRIED, TRIED_SEVERAL = 1e-3, 1e-2
ENOUGH = 800  # held-out documents that are enough on the way to a choice
HOPELESS = 2.0  # standard errors above another loss in a split, from which on the other splits are not asked
STEP = 0.5  # standard errors by which held-out losses must fall at a step along a grid
HELD = 2500  # held-out documents that are enough in the end: so many folds, or all of them


@dataclass(frozen=True)
class Choice(TextRecipe):
    """What the validation found."""

    temperature: float = 1.0  # the factor of the outputs that makes probabilities out of them
    losses: dict[str, float] = field(default_factory=dict)  # held-out log loss of everything that was tried
    threshold: float | None = None  # probability of the second class above which it is chosen; None: as it was fitted
    log_weights: tuple[float, ...] = ()  # of the classes in the fit: what the probabilities must not believe

    @property
    def held_out(self) -> float:
        """Held-out log loss of the choice itself; infinite if nothing was held out."""
        return self.losses.get(_describe(self), math.inf)


@dataclass(frozen=True, eq=False)
class Trial:
    """How a recipe does on held-out documents."""

    temperature: float
    losses: Array  # of each held-out document, weighted, with that temperature, (n,)
    errors: Array  # 1 where the label is wrong, weighted, (n,)

    @property
    def loss(self) -> float:
        """Their mean."""
        return float(self.losses.mean())


class Trials:
    """Fits on a part of the documents, each evaluated on the held-out rest, where its temperature is set too.

    Parameters
    ----------
    start
        Gives the selection scores (|S|, queries) that a fit on some of the documents starts from.
    ridge
        Strength of the ridge on the selection scores.
    jobs
        Threads.
    report
        Called with a line for every trial.
    """

    def __init__(
        self,
        documents: Documents,
        splits: Splits,
        start: Callable[[Rows], Array],
        ridge: float,
        jobs: int | None = None,
        report: Callable[[str], object] | None = None,
    ) -> None:
        self.documents, self.splits, self.ridge, self.jobs, self.report = documents, splits, ridge, jobs, report
        self.starts = [start(fit) for fit, _ in splits]
        self.log_mass = float(np.log(documents.mean_mass))
        self.found: dict[tuple[TextRecipe, int], Trial] = {}  # by recipe and number of splits
        self._outputs: dict[tuple[TextRecipe, int], Array] = {}  # by recipe and split
        self._attended: dict[tuple[float, int], AttendedDocuments] = {}
        # by loss and split, of one query: what was solved last
        self.last: dict[tuple[str, int], tuple[TextRecipe, list[SolvedValues]]] = {}

    def run(self, recipes: Sequence[TextRecipe], enough: float = np.inf) -> list[Trial]:
        """Try what was not tried yet: on all splits, or on as many as hold out `enough` documents."""
        before = np.cumsum([0, *(len(held) for _, held in self.splits[:-1])])
        number = int((before < enough).sum())
        missing = [
            (recipe, place) for recipe in recipes for place in range(number) if (recipe, place) not in self._outputs
        ]
        for recipe, place in missing:
            self.attend(recipe.null, place)
        # of one split all at once; of several each recipe in turn, and its first split before the others, which begin there
        batches = [missing]
        if number > 1:
            turns = [(recipe, others) for recipe in recipes for others in (False, True)]
            batches = [[pair for pair in missing if (pair[0], pair[1] > 0) == turn] for turn in turns]
        for batch in batches:
            calls = [partial(self._held_out, *pair) for pair in batch]
            for (recipe, place), (outputs, solved) in zip(batch, run_in_threads(calls, self.jobs), strict=True):
                self._outputs[recipe, place] = outputs
                if self.starts[place].shape[1] == 1:
                    self.last[recipe.loss, place] = recipe, solved
        held = np.concatenate([held for _, held in self.splits[:number]])
        labels, weights = self.documents.labels[held], self.documents.weights[held]
        for recipe in recipes:
            if (recipe, number) not in self.found:
                joined = np.concatenate([self._outputs[recipe, place] for place in range(number)])
                temperature = best_temperature(joined, labels, weights)
                shares = weights / weights.mean() if weights.any() else np.ones(len(weights))
                losses = document_losses(joined * temperature, labels)
                wrong = decide(joined) != labels if labels.ndim == 1 and labels.dtype.kind != "f" else losses
                self.found[recipe, number] = trial = Trial(temperature, shares * losses, shares * wrong)
                if self.report is not None:
                    self.report(
                        f"{_describe(recipe)}: held-out log loss {trial.loss:.4f}, error {trial.errors.mean():.4f}"
                        f" ({number} of {len(self.splits)} folds)"
                    )
        return [self.found[recipe, number] for recipe in recipes]

    def held_out(self, recipe: TextRecipe) -> tuple[Array, NDArray[np.int64], Array]:
        """Outputs, labels and weights of the held-out documents of all splits."""
        self.run([recipe])
        held = np.concatenate([held for _, held in self.splits])
        outputs = np.concatenate([self._outputs[recipe, place] for place in range(len(self.splits))])
        return outputs, self.documents.labels[held], self.documents.weights[held]

    def best(self, recipes: Sequence[TextRecipe], enough: float = np.inf) -> TextRecipe:
        """The one with the smallest held-out loss."""
        losses = [trial.loss for trial in self.run(recipes, enough)]
        return recipes[int(np.argmin(losses))]

    def blend(self, words: TextRecipe, vectors: TextRecipe) -> tuple[TextRecipe, float]:
        """The recipe of vectors with its weight beside words alone, and the factor of the latter, which brings both to one scale.

        Calibrated outputs are added with the mean weight over what the held-out documents find likely: a hundred documents
        hardly say which of the two is better, and the blend is seldom much worse than either.
        """
        one, two = self.run([words, vectors])
        (first, labels, weights), second = self.held_out(words), self.held_out(vectors)[0]
        factor = one.temperature / two.temperature
        shares = weights / weights.mean() if weights.any() else np.ones(len(weights))
        blends = [two.temperature * ((1 - w) * factor * first + w * second) for w in BLENDS]
        tried = [Trial(1.0, shares * document_losses(blend, labels), np.zeros(0)) for blend in blends]
        weight = _posterior_mean(BLENDS, 0.5, np.inf, tried)
        blended = replace(vectors, blend=weight)
        for place in range(len(self.splits)):
            outputs = self._outputs[words, place], self._outputs[vectors, place]
            self._outputs[blended, place] = (1 - weight) * factor * outputs[0] + weight * outputs[1]
        return blended, (1 - weight) * factor

    def choice(self, recipe: TextRecipe) -> Choice:
        """The result, with everything that was tried."""
        (trial,) = self.run([recipe])
        most = dict(sorted(self.found, key=lambda key: key[1]))
        losses = {_describe(tried): self.found[tried, number].loss for tried, number in most.items()}
        return Choice(**vars(recipe), temperature=trial.temperature, losses=losses)

    def attend(self, null: float, place: int) -> AttendedDocuments:
        """The documents as the attention of a split starts."""
        # one query starts from the same scores in every split
        key = null, place if self.starts[place].shape[1] > 1 else 0
        if key not in self._attended:
            log_null = np.log(null) + self.log_mass if null > 0 else -np.inf
            self._attended[key] = AttendedDocuments.of(self.documents, self.starts[place], log_null)
        return self._attended[key]

    def nearest(self, loss: str, place: int = 0) -> list[SolvedValues] | None:
        """What to start from: of this loss and split, or of the first split, or of another loss."""
        known = [key for key in ((loss, place), (loss, 0), *self.last) if key in self.last]
        return self.last[known[0]][1] if known else None

    def _held_out(self, recipe: TextRecipe, place: int) -> tuple[Array, list[SolvedValues]]:
        (fit, held), attended = self.splits[place], self.attend(recipe.null, place)
        still = replace(recipe, attention_step=False)
        last, tolerance = self.last.get((recipe.loss, place)), TRIED if self.documents.outputs == 1 else TRIED_SEVERAL
        # its first half may be what was solved last, of these documents and not of those with fewer tokens
        known = last[1] if last and last[0] == still and (still, place) in self._outputs else None
        solved = known or fit_values(attended, fit, still, tolerance=tolerance, near=self.nearest(recipe.loss, place))
        if not recipe.attention_step:
            return attended.outputs(solved)[held], solved
        selection = step_attention(attended, fit, attended.scores(solved), recipe.loss, self.ridge)
        moved = AttendedDocuments.of(self.documents, selection, attended.log_null)
        return moved.outputs(fit_values(moved, fit, recipe, tolerance=tolerance, near=solved))[held], solved


def _describe(recipe: TextRecipe) -> str:
    step = ", attention step" if recipe.attention_step else ""
    vectors = f", vectors={recipe.vectors:g}" if recipe.vectors else ""
    if recipe.blend < 1:
        vectors += f" with a weight of {recipe.blend:g}"
    return f"{recipe.loss}, C={recipe.C:g}, null={recipe.null:g}{vectors}{step}"


def choose_recipe(
    trials: Trials, losses: Sequence[ReadoutLoss], C_grid: Sequence[float], null_grid: Sequence[float]
) -> TextRecipe:
    """First C for each loss, then the loss, then the null token: by the held-out log loss.

    Between two losses of the values a clear difference in errors comes first: probabilities are calibrated afterwards.
    """
    null = DEFAULT.null if DEFAULT.null in null_grid else null_grid[0]
    first, *others = [replace(DEFAULT, loss=loss, null=null) for loss in reversed(losses)]
    best = _descend_grid(trials, first, "C", C_grid)
    for other in others:
        # the logistic loss bends an eighth as much as the squared hinge: with the C after next it does as much
        other = replace(other, C=C_grid[min(C_grid.index(best.C) + 2, len(C_grid) - 1)])
        one, two = trials.run([best, other], 1)
        if _clearly_positive(two.losses - one.losses, HOPELESS) and two.errors.mean() >= one.errors.mean():
            continue
        rival = _descend_grid(trials, other, "C", C_grid)
        ours, theirs = trials.run([best, rival], ENOUGH)
        if _clearly_positive(ours.errors - theirs.errors) or (
            theirs.loss < ours.loss and not _clearly_positive(theirs.errors - ours.errors)
        ):
            best = rival
    return _descend_grid(trials, best, "null", null_grid)


def attention_helps(trials: Trials, still: TextRecipe, moved: TextRecipe) -> bool:
    """Whether attention may move: unless held-out documents clearly object."""
    if still == moved:
        return False
    before, after = (trials.run([recipe], ENOUGH)[0] for recipe in (still, moved))
    return not _clearly_positive(after.losses - before.losses)


def _clearly_positive(differences: Array, errors: float = 1.0) -> bool:
    """Whether the mean is above 0 by more than so many of its standard errors."""
    return bool(differences.mean() > errors * differences.std() / np.sqrt(len(differences)))


def choose_vectors(trials: Trials, words: TextRecipe, C_grid: Sequence[float]) -> TextRecipe:
    """The recipe with vectors: C, then their share, each at its mean over what the held-out documents find likely.

    A hundred documents tell recipes apart only by chance. A mean leaves the usual recipe as far as they say, and no farther.
    """
    usual = replace(words, C=DEFAULT.C, vectors=VECTOR_SHARE)
    Cs = np.array([C for C in C_grid if C in VECTOR_CS] or C_grid[:1])
    # one after the other, as each starts where the last one ended
    of_C = [trials.run([replace(usual, C=float(C))], enough=VECTOR_HELD)[0] for C in Cs]
    C = float(np.exp(_posterior_mean(np.log(Cs), np.log(usual.C), C_SPREAD, of_C)))
    of_share = [trials.run([replace(usual, vectors=share)], enough=VECTOR_HELD)[0] for share in VECTOR_SHARES]
    share = expit(_posterior_mean(logit(VECTOR_SHARES), logit(VECTOR_SHARE), SHARE_SPREAD, of_share))
    return replace(usual, C=C, vectors=float(share))


def _posterior_mean(places: Array, usual: float, spread: float, trials: Sequence[Trial]) -> float:
    """The mean of what was tried, weighted by the likelihood of the held-out documents and a normal prior."""
    losses = np.array([trial.losses.sum() for trial in trials])
    weights = np.exp(losses.min() - losses - ((places - usual) / spread) ** 2 / 2)
    return float(weights @ places / weights.sum())


def _descend_grid(trials: Trials, recipe: TextRecipe, name: Literal["C", "null"], grid: Sequence[float]) -> TextRecipe:
    """The recipe at the end of a walk along a grid from its start, as long as held-out losses fall by `STEP`."""
    start = grid.index(getattr(recipe, name)) if getattr(recipe, name) in grid else 0
    best = replace(recipe, **{name: grid[start]})  # type: ignore[arg-type]
    for way in (grid[start + 1 :], grid[:start][::-1]):
        first = best
        for value in way:
            before, after = trials.run([best, replace(best, **{name: value})], ENOUGH)  # type: ignore[arg-type]
            if not _clearly_positive(before.losses - after.losses, STEP):
                break
            best = replace(best, **{name: value})  # type: ignore[arg-type]
        if best != first:
            break
    return best


def weigh_decisions(
    choice: Choice, outputs: Array, labels: NDArray[np.int64], weights: Array, shifts: tuple[float, ...], asked: Any
) -> Choice:
    """The choice with what class weights must not move, and with the threshold that is asked for, by held-out outputs."""
    if len(labels) and shifts:
        choice = _without_class_weights(choice, outputs, labels, weights, shifts)
    if asked is None or isinstance(asked, float | int) or not len(labels):
        return replace(choice, threshold=asked if isinstance(asked, float | int) else None)
    shift = choice.log_weights[1] - choice.log_weights[0] if choice.log_weights else 0.0
    probabilities = expit(choice.temperature * outputs[:, 0] - shift)
    return replace(choice, threshold=decision_threshold(probabilities, labels == 1, asked))


def _without_class_weights(
    choice: Choice, outputs: Array, labels: NDArray[np.int64], weights: Array, log_weights: tuple[float, ...]
) -> Choice:
    """The choice with the temperature, and the share of the class weights to take back, that fit the documents as they are."""
    from scipy.optimize import minimize

    shifts = np.array(log_weights)
    own = weights / np.exp(shifts)[labels]
    side = shifts[None, 1:] - shifts[0] if outputs.shape[1] == 1 else shifts[None]

    def loss(at: Array) -> float:
        return log_loss(np.exp(at[0]) * outputs - at[1] * side, labels, own)

    log_temperature, share = minimize(loss, [np.log(choice.temperature), 1.0], method="Nelder-Mead").x
    return replace(choice, temperature=float(np.exp(log_temperature)), log_weights=tuple((share * shifts).tolist()))


def decision_threshold(probabilities: Array, second: NDArray[np.bool_], asked: Any) -> float:
    """Between which two probabilities of the second class the cut is best: by the F1 of the rarer class, or by two costs.

    `asked` is "f1", or what it costs to take a document of the first class for one of the second, and the reverse.
    """
    order = np.argsort(probabilities, kind="stable")
    p, hit = probabilities[order], second[order]
    # cut k: the first k documents get the first class
    misses = np.concatenate([[0], np.cumsum(hit)])
    alarms = np.concatenate([[0], np.cumsum(~hit)])
    alarms = alarms[-1] - alarms
    if asked == "f1":
        found, wrong = (
            (misses[-1] - misses, misses + alarms)
            if 2 * misses[-1] <= len(hit)
            else (alarms[0] - alarms, misses + alarms)
        )
        value = 2 * found / np.maximum(2 * found + wrong, 1)
    else:
        value = -(asked[0] * alarms + asked[1] * misses)
    edges = np.concatenate([[0.0], (p[1:] + p[:-1]) / 2, [1.0]])
    possible = np.concatenate([[True], p[1:] > p[:-1], [True]])  # equal probabilities cannot be told apart
    return float(np.clip(edges[np.argmax(np.where(possible, value, -np.inf))], 1e-6, 1 - 1e-6))


def held_out_splits(labels: NDArray[Any], groups: Any, cv: Any, seed: int, copies: Any = None) -> Splits:
    """Rows to fit on and rows to test on: all folds, or one of very many documents.

    What is a copy of a held-out document (the same number in `copies`) is not fitted on.
    Groups stay together. Without groups a fold is a block of neighbors in the order of the documents: what belongs together
    (the reviews of a film, the mails of a thread) mostly stands together, and on both sides it would flatter weak ridges.
    A class with fewer documents than folds is never held out, so that every fit knows it.
    """
    from sklearn.model_selection import GroupKFold, StratifiedKFold, check_cv

    rows = np.arange(len(labels))
    if labels.ndim == 2:  # by the label that is nearest to half of the documents
        labels = labels[:, np.abs(labels.mean(axis=0) - 0.5).argmin()].astype(np.int64)
    elif labels.dtype.kind == "f":  # each fold has small and large numbers
        labels = np.searchsorted(np.quantile(labels, (0.2, 0.4, 0.6, 0.8)), labels)
    if not isinstance(cv, Integral):
        return _testable(list(check_cv(cv, labels).split(rows, labels, groups)), labels, copies)
    sizes = np.sort(np.bincount(labels))
    folds = min(int(cv), sizes[-2] if groups is None else len(np.unique(groups)))  # two classes must be tested
    if folds < 2:
        return []
    if groups is not None:
        parts = list(GroupKFold(folds, shuffle=True, random_state=seed).split(rows, labels, groups))
    else:
        few = int(((sizes > 0) & (sizes < folds)).sum())
        if few:
            warnings.warn(
                f"{'1 class has' if few == 1 else f'{few} classes have'} fewer than {folds} documents: learned, but too rare to"
                f" be judged by the validation; leave such classes out with min_class={folds}, or lower cv",
                stacklevel=4,
            )
        rare = np.bincount(labels)[labels] < folds
        common = rows[~rare]
        parts = [
            (np.sort(np.concatenate([common[fit], rows[rare]])), common[held])
            for fit, held in StratifiedKFold(folds).split(common, labels[common])
        ]
    first = seed % folds
    turned = [*parts[first:], *parts[:first]]
    return _testable(turned[: math.ceil(HELD * folds / len(labels))], labels, copies)


def _testable(splits: Splits, labels: NDArray[np.int64], copies: Any) -> Splits:
    """The splits without copies of held-out documents, and without held-out documents of a class that the fit would not know."""
    if copies is not None:
        splits = [(fit[~np.isin(copies[fit], copies[held])], held) for fit, held in splits]
    known = [(fit, held[np.isin(labels[held], labels[fit])]) for fit, held in splits]
    return [(fit, held) for fit, held in known if len(held) and len(np.unique(labels[fit])) > 1]


def decide(outputs: Array) -> NDArray[np.int64]:
    """Number of the class of each row of outputs."""
    return np.asarray(outputs[:, 0] > 0, dtype=np.int64) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def log_loss(outputs: Array, labels: NDArray[np.int64], weights: Array) -> float:
    """Mean logistic or softmax loss of outputs (n, outputs)."""
    losses = document_losses(outputs, labels)
    return float(np.average(losses, weights=weights if weights.any() else None))


def document_losses(outputs: Array, labels: NDArray[np.int64]) -> Array:
    """Loss of each row of outputs (n, outputs), (n,): logistic, its mean over several labels, softmax, or squared for numbers."""
    if labels.dtype.kind == "f":
        return np.asarray((outputs[:, 0] - labels) ** 2)
    if labels.ndim == 2:
        return np.asarray(np.logaddexp(0.0, np.where(labels > 0, -outputs, outputs)).mean(axis=1))
    if outputs.shape[1] == 1:
        return np.asarray(np.logaddexp(0.0, np.where(labels == 1, -outputs[:, 0], outputs[:, 0])))
    return np.asarray(-log_softmax(outputs, axis=1)[np.arange(len(labels)), labels])


def best_temperature(
    outputs: Array, labels: NDArray[np.int64], weights: Array, prior: float = 1.0, reach: float = 3.0
) -> float:
    """The factor, at most exp(reach), that makes the outputs fit the labels best; the decisions stay as they are.

    A normal prior of this precision on its logarithm keeps a handful of documents, which may all be right or all be wrong, from
    an extreme.
    """
    from scipy.optimize import minimize_scalar

    if labels.dtype.kind == "f":
        return 1.0

    def loss(log_factor: float) -> float:
        return len(labels) * log_loss(outputs * np.exp(log_factor), labels, weights) + prior * log_factor**2 / 2

    return float(np.exp(minimize_scalar(loss, bounds=(-reach, reach), method="bounded").x))


ENOUGH_TO_CHOOSE = 30_000  # documents that the validation looks at: C is measured per document, so it carries over
REMEMBERED = 1000  # documents that a temperature is an average over, when the model behind it goes on learning
BEND = 0.1  # of a document's loss in the logarithm of the temperature; that of a small batch itself would be biased


@dataclass(frozen=True, eq=False)
class Memory:
    """What `partial_fit` needs of earlier documents: how firmly they determine the model."""

    precision: Array  # of values [and direction] and of the output at the mean attention, (|S| [+ dim] + 1, outputs)
    mean: Array  # attention [and its vectors], (|S| [+ dim],)

    @classmethod
    def of(cls, attended: AttendedDocuments, scores: Scores, recipe: TextRecipe) -> Memory:
        """After a fit."""
        documents, shares = attended.documents, attended.shares
        mean = sum_blocks(shares, lambda block: block.sum(axis=0)) / len(documents.labels)
        by_row = [documents.labels, documents.weights, documents.columns, attended.dense]
        learned = sum_blocks(shares, _information, scores, mean, documents.classes, recipe, by_row=by_row)
        return cls(attended.precision(recipe)[:, None] + learned, np.append(mean, attended.center))


def fit_documents(
    documents: Documents,
    groups: Any,
    copies: Rows,
    model: TextModel,
    rng: np.random.Generator,
    spelled: Documents | None = None,
) -> tuple[Scores, Choice, Memory | None, tuple[Splits, Array]]:
    """The fit that the parameters of a model ask for.

    `spelled` are the same documents with the vectors of more tokens: the model is one of those if they do better on what is
    held out. Returns the scores, what the validation found, for one query what more documents are weighed against, and the
    splits with the outputs of the documents that they hold out.
    """
    seed, ridge = int(rng.integers(2**31)), SELECTION_RIDGE / model.attention_C if model.attention_C else np.inf
    Cs = C_GRID if model.C == "auto" else (float(model.C),)
    nulls = NULL_GRID if model.null == "auto" else (float(model.null),)
    several = documents.classes > 2 and documents.labels.ndim == 1
    losses: tuple[ReadoutLoss, ...] = ("logistic", "squared_hinge") if several else ("logistic",)
    if documents.labels.dtype.kind == "f":
        losses = ("squared",)
    elif model.loss != "auto":
        losses = (model.loss,)
    rows = np.arange(len(documents.labels))
    chosen = None
    if len(rows) > ENOUGH_TO_CHOOSE:
        chosen = np.sort(np.random.default_rng(seed).choice(len(rows), ENOUGH_TO_CHOOSE, replace=False))
        copies, groups = copies[chosen], None if groups is None else groups[chosen]
    labels = documents.labels if chosen is None else documents.labels[chosen]
    splits = held_out_splits(labels, groups, model.cv, seed, copies)

    def trials_of(documents: Documents) -> Trials:
        some = documents if chosen is None else documents.part(chosen)
        report = partial(print, file=sys.stderr) if model.verbose else None
        return Trials(some, splits, partial(_start, some, model, ridge, seed), ridge, model.n_jobs, report)

    def attend(null: float) -> AttendedDocuments:  # as the attention starts
        if chosen is None and splits and model.n_queries == 1:
            return trials.attend(null, 0)
        log_null = np.log(null * documents.mean_mass) if null > 0 else -np.inf
        return AttendedDocuments.of(documents, _start(documents, model, ridge, seed, rows), log_null)

    def final(recipe: TextRecipe) -> tuple[Scores, AttendedDocuments]:
        attended = attend(recipe.null)
        near = trials.nearest(recipe.loss) if chosen is None else None
        solved = fit_values(attended, rows, recipe, model.n_jobs, near=near)
        if beside_vectors is not None:
            words, factor = beside_vectors
            alone = fit_values(attended, rows, words, model.n_jobs, near=solved)
            solved = [add_values(*pair, factor, recipe.blend) for pair in zip(alone, solved, strict=True)]
        if recipe.attention_step:
            log_null = attended.log_null
            selection = step_attention(attended, rows, attended.scores(solved), recipe.loss, ridge)
            del attended  # its shares are most of the memory of a fit: free them before the next
            attended = AttendedDocuments.of(documents, selection, log_null)
            solved = fit_values(attended, rows, recipe, model.n_jobs, near=solved)
        return attended.scores(solved), attended

    shifts = model._log_weights(documents)
    trials, beside_vectors = trials_of(documents), None
    if not splits:  # too few documents to hold any out
        documents = spelled or documents
        choice = Choice(
            DEFAULT.C if model.C == "auto" else Cs[0],
            losses[0],
            DEFAULT.null if model.null == "auto" else nulls[0],
            attention_step=False,
            vectors=VECTOR_SHARE if spelled else 0.0,
            log_weights=shifts,
        )
        scores, attended = final(choice)
        outside, labels, weights = np.empty((0, documents.outputs)), labels[:0], documents.weights[:0]
    else:
        recipe = choose_recipe(trials, losses, Cs, nulls)
        if spelled is not None:
            more = trials_of(spelled)
            more.last = dict(trials.last)
            blended, factor = more.blend(recipe, choose_vectors(more, recipe, Cs))
            if blended.blend >= LEAST_BLEND:
                trials, recipe, documents, beside_vectors = more, blended, spelled, (recipe, factor)
        # with vectors a step of the attention changed no decision that held-out documents could notice, and took time
        moved = replace(recipe, attention_step=model.n_queries == 1 and ridge < np.inf and not recipe.vectors)
        best = moved if attention_helps(trials, recipe, moved) else recipe
        choice, (scores, attended) = trials.choice(best), final(best)
        outside, labels, weights = trials.held_out(best)
    choice = weigh_decisions(choice, outside, labels, weights, shifts, model.threshold)
    if chosen is not None:
        splits = [(chosen[fit], chosen[held]) for fit, held in splits]
    memory = None if model.n_queries > 1 else Memory.of(attended, scores, choice)
    return scores, choice, memory, (splits, outside)


def _start(documents: Documents, model: TextModel, ridge: float, seed: int, rows: Rows) -> Array:
    """Selection scores that a fit on these rows starts from: 0, or, for several queries, the result of Adam."""
    tokens = documents.amounts.shape[1]
    if model.n_queries == 1:
        return np.zeros((tokens, 1))
    part = documents.part(rows)
    concentration = AttendedDocuments.of(part, np.zeros((tokens, 1)), -np.inf).concentration
    C = DEFAULT.C if model.C == "auto" else float(model.C)
    descent = ScoreDescent(
        tokens,
        ridge / len(rows),
        concentration / (len(rows) * C),
        np.random.default_rng(seed),
        queries=model.n_queries,
        outputs=part.outputs,
    )
    epochs, batch = schedule(len(rows), model.max_epochs, model.batch_size)
    targets = (np.stack(output_signs(part), axis=1) > 0).astype(np.float64)
    return descent.fit(part.amounts, targets, part.weights, epochs, batch).selection


def update_model(
    scores: Scores, choice: Choice, memory: Memory, documents: Documents, seen: float, jobs: int | None
) -> tuple[Scores, Choice, Memory]:
    """The model after more documents.

    Those so far stand behind each value as a quadratic of their curvature, the diagonal of Laplace's approximation; beside it
    the loss of the new ones is minimized exactly. The temperature moves likewise, by the outputs before the values move.
    """
    shares = attention_shares(documents.amounts, scores.selection, scores.log_null)
    if documents.vectors is not None or documents.columns is not None:
        shares = beside(shares, documents.columns if documents.vectors is None else shares @ documents.vectors)  # type: ignore[arg-type]
    start = split_values(scores, documents.vectors)
    before = shares @ start + scores.bias
    temperature = choice.temperature
    if len(documents.labels) and documents.weights.any():
        known = documents.labels, documents.weights, min(seen, REMEMBERED) * BEND
        temperature *= best_temperature(before * temperature, *known, reach=1.0)
    rows, bounds = np.arange(len(documents.labels)), choice.C * documents.weights
    problems = [
        RidgeProblem(
            shares, rows, signs, bounds, choice.loss, 1 / memory.precision[:, k], start[:, k].copy(),
            float(scores.bias[k]), memory.mean,
        )
        for k, signs in enumerate(output_signs(documents))
    ]  # fmt: skip
    values, bias = _stacked(run_in_threads([partial(solve_values, problem) for problem in problems], jobs))
    new = replace(scores, values=values[:, None], bias=bias)
    by_row = [documents.labels, documents.weights, None, None]
    learned = sum_blocks(shares, _information, new, memory.mean, documents.classes, choice, by_row=by_row)
    if isinstance(scores, SpelledScores):
        new = SpelledScores.of(scores.selection, values, bias, scores.log_null, documents.vectors)
    return new, replace(choice, temperature=temperature), replace(memory, precision=memory.precision + learned)
