"""Trajectories of the optimisers that people train with, on the key-query matrices of attention heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.losses import Loss, compiled_log_slope
from whichtoken.checks import check_choice, check_count
from whichtoken.data.attention_tokens import AttentionProblem, MulticlassProblem
from whichtoken.display.shown import Shown
from whichtoken.flows.mirror_steps import checked_rate, checked_record
from whichtoken.flows.selecting import Selecting
from whichtoken.flows.steps.schatten import SchattenMirror
from whichtoken.flows.steps.settings import READ, STEP, Settings, check_not_negative

Matrix = NDArray[np.float64]
Heads = Literal["each", "whole"]
HUGE = 1e150  # weights whose squares would overflow


@dataclass(frozen=True, eq=False)
class OptimizerState(Shown):
    """Key-query weights after `step` steps, as exp(log_norm) times an array of unit Frobenius norm."""

    step: int
    direction: Matrix  # (d, d), or (h, d, d) for h heads; zero if the weights are
    log_norm: float  # logarithm of the Frobenius norm, of all heads together
    factors: tuple[Matrix, ...] = ()  # whose product is W, where the start was factored

    @property
    def weights(self) -> Matrix:
        """The key-query matrix itself, where it fits into floats."""
        return math.exp(self.log_norm) * self.direction


@dataclass(frozen=True, eq=False)
class OptimizerDescent(Selecting):
    """Where an optimiser went and which tokens it selects."""

    final: OptimizerState
    snapshots: tuple[OptimizerState, ...]  # one per recorded step, in ascending order
    selected: NDArray[np.int64]  # (n,), or (h, n): the token of highest attention score in the final state
    last_change: int  # the first step from which on the selected tokens stayed the same

    @property
    def _steps(self) -> int:
        return self.final.step


class StepSizes(NamedTuple):
    """Step k has size first * k^-power."""

    first: float
    power: float = 0.0


def follow_optimizer(
    problem: AttentionProblem | MulticlassProblem,
    start: ArrayLike | Sequence[ArrayLike],
    settings: Settings,
    *,
    sizes: StepSizes,
    steps: int,
    heads: Heads = "each",
    loss: Loss = "logistic",
    record: Iterable[int] = (),
) -> OptimizerDescent:
    """The trajectory behind `attention_descent` for every optimiser but entrywise mirror descent."""
    from whichtoken.flows.trajectory_kernels import follow  # compiled as it is imported

    dim = problem.tokens.shape[2]
    blocks, factored, shape = _blocks(start, dim, heads)
    if isinstance(settings, SchattenMirror):
        blocks = [_mirrored(blocks, factored, settings.p)]
    check_not_negative("lr_power", sizes.power)
    recorded = checked_record(record, steps)
    shapes = np.array([block.shape for block in blocks], dtype=np.int64)
    parameters = np.concatenate([block.ravel() for block in blocks])
    memory_starts = _starts(settings.memory(rows, columns) for rows, columns in shapes.tolist())
    count = 1 if len(shape) == 2 else shape[0]
    kept, kept_logs = np.empty((recorded.size + 1, count * dim * dim)), np.empty(recorded.size + 1)
    kept_parameters = np.empty((recorded.size + 1, parameters.size))
    class_scores, labels = _class_scores(problem, loss)
    starts = _starts(map(math.prod, shapes.tolist()))
    selected, last_change = follow(
        np.require(problem.tokens, requirements=["C", "W"]),
        np.require(problem.queries, requirements=["C", "W"]),
        class_scores,
        labels,
        compiled_log_slope(loss),
        parameters,
        starts,
        shapes,
        np.zeros(memory_starts[-1]),
        memory_starts,
        count,
        factored,
        _compiled(settings.step, STEP),
        _compiled(settings.read, READ),
        np.array(settings.numbers(), dtype=np.float64),
        checked_rate("lr", sizes.first),
        float(sizes.power),
        steps,
        recorded,
        kept,
        kept_logs,
        kept_parameters,
    )
    if not np.abs(kept).max(initial=0.0) < HUGE:
        raise ValueError(
            f"the weights left the range of numbers within {steps} steps: this optimiser diverges with lr={sizes.first:g}"
        )

    def state(row: int, step: int) -> OptimizerState:
        norm = float(np.linalg.norm(kept[row]))
        direction = (kept[row] / norm if norm else kept[row]).reshape(shape)
        factors = [
            kept_parameters[row, first:last].reshape(block.shape)
            for block, (first, last) in zip(blocks, pairwise(starts.tolist()), strict=True)
        ]
        log_norm = math.log(norm) + kept_logs[row] if norm else -math.inf
        return OptimizerState(step, direction, log_norm, tuple(factors) if factored else ())

    return OptimizerDescent(
        final=state(-1, steps),
        snapshots=tuple(state(row, step) for row, step in enumerate(recorded.tolist())),
        selected=selected[0] if len(shape) == 2 else selected,
        last_change=last_change,
    )


def balanced_chain(weights: ArrayLike, depth: int = 2) -> tuple[Matrix, ...]:
    """Square factors whose product is W, with equal singular values: gradient descent on them keeps them so, up to its steps.

    Parameters
    ----------
    weights : array_like of shape (d, d)
        W.
    depth : int, default=2
        Number of factors.

    Returns
    -------
    tuple of arrays
        The factors, from left to right.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import balanced_chain
    >>> first, second = balanced_chain(np.diag([4.0, 9.0]))
    >>> np.round(first @ second, 12)
    array([[4., 0.],
           [0., 9.]])
    """
    check_count("depth", depth, 2)
    left, values, right = np.linalg.svd(np.asarray(weights, dtype=np.float64))
    root = np.diag(values ** (1.0 / depth))
    return left @ root, *[root] * (depth - 2), root @ right


def _blocks(start: Any, dim: int, heads: Heads) -> tuple[list[Matrix], bool, tuple[int, ...]]:
    """The matrices that are trained, whether they multiply to W, and the shape of the weights."""
    check_choice("heads", heads, ("each", "whole"))
    factored = isinstance(start, list | tuple) and all(np.ndim(part) == 2 for part in start)
    parts = [np.array(part, dtype=np.float64) for part in (start if factored else [start])]
    shapes = [part.shape for part in parts]
    if not all(np.isfinite(part).all() for part in parts):
        raise ValueError("start must hold finite numbers")
    if factored and len(parts) > 1:
        outer, inner = (shapes[0][0], shapes[-1][1]), [one[1] == two[0] for one, two in pairwise(shapes)]
        if outer != (dim, dim) or not all(inner):
            raise ValueError(f"start: factors of shapes {shapes} must multiply to a matrix of shape {(dim, dim)}")
        return parts, True, (dim, dim)
    weights = np.asarray(parts[0])
    if weights.shape == (dim, dim):
        return [weights], False, (dim, dim)
    if weights.ndim != 3 or weights.shape[1:] != (dim, dim) or not len(weights):
        raise ValueError(
            f"start of shape {weights.shape} must be a matrix of shape {(dim, dim)}, one such matrix for each head, "
            "or a list of factors that multiply to one"
        )
    return (list(weights) if heads == "each" else [weights.reshape(-1, dim)]), False, weights.shape


def _mirrored(blocks: list[Matrix], factored: bool, p: float) -> Matrix:
    if factored or len(blocks) > 1:
        raise ValueError(
            "mirror descent in a Schatten norm takes one matrix: start must be one, or heads must be 'whole'"
        )
    left, values, right = np.linalg.svd(blocks[0], full_matrices=False)
    dual: Matrix = (left * values ** (p - 1.0)) @ right
    return dual


def _class_scores(problem: AttentionProblem | MulticlassProblem, loss: Loss) -> tuple[Matrix, NDArray[np.int64]]:
    if isinstance(problem, AttentionProblem):
        return np.ascontiguousarray(problem.token_scores[:, :, None]), np.zeros(len(problem.labels), dtype=np.int64)
    if loss != "logistic":
        raise ValueError(f"loss={loss!r} is for two classes; with more it is the cross-entropy, loss='logistic'")
    return np.ascontiguousarray(problem.tokens @ problem.decoders.T), problem.labels.astype(np.int64)


def _compiled(function: Any, signature: Any) -> Any:
    function.compile(signature)
    return function


def _starts(sizes: Iterable[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *sizes], dtype=np.int64)
