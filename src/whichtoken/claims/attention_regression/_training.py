"""Problems, training sets and training methods of the claims about attention regression."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken import datasets
from whichtoken.checks import check_choice
from whichtoken.claims._runs import Array, group_by
from whichtoken.lab import Measured, Rows, log_slope
from whichtoken.theory import attention_regression

if TYPE_CHECKING:
    from whichtoken.claims.attention_regression.convergence import Point


def sample_problem(point: Any, rng: np.random.Generator, **fields: Any) -> datasets.RegressionProblem:
    """The problem of a point and of `fields` in place of its own; `condition` is that of target and covariance."""
    known = vars(point) | fields
    if "condition" in known:
        known |= {"covariance": known["condition"], "target": known["condition"]}
    names = ("dim", "outputs", "tokens", "covariance", "target", "noise", "law", "mean")
    return datasets.AttentionRegression(**{name: known[name] for name in names if name in known}).sample(rng)


class TrainingSet:
    """One problem as the layer sees it, with fresh queries on which every trained layer is measured.

    Excesses are E |f(x) - M x|^2 divided by tr(M Sigma M^T).
    """

    def __init__(
        self, problem: datasets.RegressionProblem, rng: np.random.Generator, center: bool = True, queries: int = 400
    ):
        from whichtoken.theory.attention_regression.whitening import Whitening

        self.problem, self.center = problem, center
        self.whitening = Whitening.from_tokens(problem.tokens, center)
        self.label_mean = problem.labels.mean(axis=0) if center else np.zeros(problem.labels.shape[1])
        self.Z, self.Y = self.whitening.whiten(problem.tokens), problem.labels - self.label_mean  # (n, d), (n, outputs)
        tokens, clean = problem.draw(queries, rng)
        self.queries, self.answers = self.whitening.whiten(tokens), clean - self.label_mean
        self.other_tokens = problem.draw(len(problem.tokens), rng)[0]
        self.size = float(np.sum(problem.whitened_target**2))

    def stored(self, P: Array, Q: Array) -> float:
        """The training tokens are the context: the test error of the trained layer."""
        return self._excess(P, Q, self.Z)

    def fresh(self, P: Array, Q: Array) -> float:
        """As many new tokens are the context."""
        return self._excess(P, Q, self._other_context)

    def population(self, P: Array, Q: Array) -> float:
        """The context is infinite."""
        A, B = self.whitening.to_raw(P, Q)
        error = attention_regression.limit_map(A, B, self.problem.covariance) - self.problem.target
        return float(np.sum((error @ self.problem.covariance) * error)) / self.size

    def floor(self, kind: str, logit_norm: float) -> float:
        """The predicted excess of that name: the theory's has a half before it."""
        problem = self.problem
        floor = attention_regression.excess_floor(
            kind, problem.whitened_target, problem.noise, len(problem.tokens), logit_norm
        )
        return 2 * floor / self.size

    def least_squares(self) -> float:
        """The stored excess of the best linear predictor of the training labels."""
        linear_map = np.linalg.lstsq(self.Z, self.Y)[0]
        return float(np.mean(np.sum((self.queries @ linear_map - self.answers) ** 2, axis=1))) / self.size

    def last_layer(self, logit_norm: float) -> tuple[Array, Array]:
        """Q a multiple of the identity, P by least squares: what needs no training at all."""
        Q = np.eye(self.Z.shape[1]) * logit_norm / np.sqrt(self.Z.shape[1])
        means = layer_outputs(np.eye(len(Q)), Q, self.Z, self.Z)
        return np.asarray(np.linalg.lstsq(means, self.Y)[0].T, dtype=np.float64), Q

    @cached_property
    def _other_context(self) -> Array:
        tokens = self.other_tokens - self.other_tokens.mean(axis=0) if self.center else self.other_tokens
        return np.asarray(tokens @ self.whitening.inverse_root)

    def _excess(self, P: Array, Q: Array, context: Array) -> float:
        error = layer_outputs(P, Q, self.queries, context) - self.answers
        return float(np.mean(np.sum(error**2, axis=1))) / self.size


def exponents(rows: Rows[Any], quantity: str) -> Array:
    """Exponent of an excess in the number of tokens, of every repeat and condition number; empty for one number of tokens."""
    if len(rows.levels("tokens")) < 2:
        return np.zeros(0)
    return np.concatenate(
        [[], *(log_slope(runs, "tokens", quantity).values for _, runs in group_by(rows, "condition"))]
    )


def layer_outputs(P: Array, Q: Array, queries: Array, context: Array) -> Array:
    """Outputs (m, outputs) of a layer for queries (m, d) that attend to a context (n, d)."""
    import torch

    model = attention_regression.SoftmaxRegression(torch.from_numpy(P), torch.from_numpy(Q))
    outputs: Array = model(torch.from_numpy(queries), torch.from_numpy(context)).numpy()
    return outputs


def distance_to_limit(P: Array, Q: Array, queries: Array, context: Array) -> float:
    """Mean squared distance of a layer's outputs to those of its linear limit P Q^T."""
    distances = layer_outputs(P, Q, queries, context) - queries @ Q @ P.T
    return float(np.mean(np.sum(distances**2, axis=1)))


# Words for each method and the step sizes tried; "<method>-raw" works on (A, B) instead of the whitened (P, Q).
METHODS: dict[str, tuple[str, tuple[float, ...]]] = {
    "gram": ("Gram preconditioning, step 0.5", (0.5,)),
    "gram-quarter": ("Gram preconditioning, step 0.25", (0.25,)),
    "covariance": ("covariance preconditioning", (1.0,)),
    "gradient": ("gradient descent, whitened", (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "gradient-raw": ("gradient descent", (0.003, 0.01, 0.1, 0.3, 1.0, 3.0)),
    "adam": ("Adam, whitened", (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)),
    "adam-raw": ("Adam", (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)),
    "muon": ("Muon, whitened", (0.0003, 0.001, 0.003, 0.01, 0.03)),
    "lbfgs": ("L-BFGS, whitened", (1.0,)),
    "alternating": ("alternating least squares", (0.5, 1.0, 1.5, 2.0)),
    "gauss-newton": ("Gauss-Newton", (0.5, 1.0, 1.5, 2.0)),
    "last-layer": ("last layer alone", ()),
}
WORDS = {name: words for name, (words, _) in METHODS.items()}
GRIDS = {name: rates for name, (_, rates) in METHODS.items() if rates}
POPULATION_GRIDS = GRIDS | {"gradient-raw": (0.05, 0.15, 0.4, 0.8, 1.6), "adam-raw": (0.001, 0.01, 0.03, 0.1)}
OURS = ("gram", "gram-quarter", "covariance")
WRONG = 0.2  # relative error of the map from which the rate on tokens is measured
ACCURATE = 1e-6  # squared relative error of the least accurate direction


def run_population(point: Point, rng: np.random.Generator) -> Measured:
    """Iterations on the limit to accuracy in every direction, from the raw cross moment of noise-free pairs."""
    from whichtoken.theory.attention_regression.structure_aware_descent import PopulationObjective
    from whichtoken.theory.attention_regression.whitening import Whitening

    problem = sample_problem(point, rng, outputs=point.outputs or None)
    whitening, goal = Whitening.from_covariance(problem.covariance), problem.whitened_target
    solver = _solver(point, center=False, start="moment", backtrack=False)
    P, Q = solver.starting_factors(whitening.whiten(problem.tokens), problem.labels)
    if point.method not in OURS:  # equal norms suit them best
        scale = np.sqrt(np.linalg.norm(P) / np.linalg.norm(Q))
        P, Q = P / scale, Q * scale
    inverse = np.linalg.pinv(goal)
    objective = PopulationObjective(goal)
    arrivals, factor = {}, None
    for lr in _rates(POPULATION_GRIDS, point.method):
        path = _path(point, solver, objective, whitening, P, Q, lr)
        errors = [float(np.linalg.norm((P @ Q.T - goal) @ inverse, 2) ** 2) for P, Q, _ in path]
        arrivals[f"{lr:g}"] = next((index for index, error in enumerate(errors) if error <= ACCURATE), None)
        losses = [loss for _, _, loss in path]
        settled = [b / a for a, b in pairwise(losses) if 1e-20 < b < 1e-3 * losses[0]]
        factor = float(np.median(settled)) if settled else None
    found = [count for count in arrivals.values() if count is not None]
    return {"iterations": min(found, default=None), "arrivals": arrivals, "factor": factor, "curve": errors[:60]}


def run_tokens(point: Point, rng: np.random.Generator) -> Measured:
    """Excess after so many gradient evaluations on tokens, for every step size."""
    from whichtoken.theory.attention_regression.structure_aware_descent import TokenObjective

    data = TrainingSet(sample_problem(point, rng, outputs=None), rng)
    if point.method == "last-layer":
        return {"curves": {"1": [data.stored(*data.last_layer(0.3))]}, "counts": [1]}
    own = {"start": "spectral"} if point.method in OURS else {"start": "random"}
    crude = {"start": "spectral", "start_samples": 4 * point.dim}
    solver = _solver(point, **(own if point.start == "own" else crude))
    P, Q = solver.starting_factors(data.Z, data.Y, rng)
    objective = TokenObjective(data.Z, data.Y)
    counts = [*range(min(21, point.budget)), *range(25, point.budget, 5)]
    curves = {}
    for lr in _rates(GRIDS, point.method):
        path = _path(point, solver, objective, data.whitening, P, Q, lr)
        curves[f"{lr:g}"] = [data.stored(*path[count][:2]) for count in counts if count < len(path)]
    return {"curves": curves, "counts": counts}


def run_rate(point: Point, rng: np.random.Generator) -> Measured:
    """Excess after every step on tokens, from factors of a map that is wrong in all directions alike."""
    from whichtoken.theory.attention_regression.structure_aware_descent import TokenObjective

    problem = sample_problem(point, rng, outputs=None)
    data = TrainingSet(problem, rng)
    goal, wrong = problem.target @ data.whitening.root, rng.standard_normal(problem.target.shape)
    wrong *= WRONG * np.linalg.norm(goal) / np.linalg.norm(wrong)
    step, short = GRIDS["gram-quarter"][0], 0.1
    solver = attention_regression.StructureAwareDescent(
        step=step, iterations=point.budget - 1, tolerance=0.0, logit_norm=short
    )
    P, Q = attention_regression.balanced_factors(goal + wrong, short)
    path = solver.minimize(TokenObjective(data.Z, data.Y), P, Q).accepted
    dampings = [iterate.damping for iterate in path]
    floor = 2 * attention_regression.excess_floor("stored", problem.whitened_target, point.noise, point.tokens, short)
    errors = (float(np.sum(error**2)) for error in _damped_errors(goal, wrong, dampings, step))
    return {
        "excess": [data.stored(iterate.P, iterate.Q) for iterate in path],
        "predicted": [(error + floor) / data.size for error in errors],
    }


def _damped_errors(goal: Array, wrong: Array, dampings: list[float], step: float) -> Iterator[Array]:
    """Error of the limit's map after each step, to first order: damping slows the directions of small singular values."""
    left, sizes, right = np.linalg.svd(goal)
    error = left.T @ wrong @ right.T
    for damping in dampings:
        yield error
        weights = sizes / (sizes + damping * sizes[0])
        error = error * (1.0 - step * (weights[:, None] + weights[None, :]))


def _rates(grids: dict[str, tuple[float, ...]], method: str) -> tuple[float, ...]:
    check_choice("method", method, grids)
    return grids[method]


def _solver(point: Point, **settings: Any) -> attention_regression.StructureAwareDescent:

    return attention_regression.StructureAwareDescent(
        "covariance" if point.method == "covariance" else "gram",
        step=GRIDS[point.method][0] if point.method in OURS else None,
        iterations=point.budget - 1,
        tolerance=0.0,
        **settings,
    )


def _path(point: Point, solver: Any, objective: Any, whitening: Any, P: Any, Q: Any, lr: float) -> list[Any]:
    """(P, Q, loss) at every gradient evaluation."""
    from whichtoken.theory.attention_regression.factor_baselines import run_baseline
    from whichtoken.theory.attention_regression.structure_aware_descent import RawCoordinates

    if point.method in OURS:
        return [(iterate.P, iterate.Q, iterate.loss) for iterate in solver.minimize(objective, P, Q).trace]
    method = point.method.removesuffix("-raw")
    if method == point.method:
        return list(run_baseline(method, objective, P, Q, lr, point.budget))
    A, B = whitening.to_raw(P, Q)
    path = run_baseline(method, RawCoordinates(objective, whitening), A, B, lr, point.budget)
    return [(*whitening.to_whitened(A, B), loss) for A, B, loss in path]
