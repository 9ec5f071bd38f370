"""Every way to train two attention factors on one problem: step sizes tried, and how far each gradient evaluation gets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.lab import Measured, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from whichtoken.experiments.attention_regression.convergence import Point
    from whichtoken.training.structure_aware_descent import StructureAwareDescent

    Array = NDArray[np.float64]

# Step sizes tried for each method; an entry "<method>-raw" works on (A, B) instead of the whitened (P, Q).
GRIDS: dict[str, tuple[float, ...]] = {
    "gram": (0.5,),
    "gram-quarter": (0.25,),
    "covariance": (1.0,),
    "gradient": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "gradient-raw": (0.003, 0.01, 0.1, 0.3, 1.0, 3.0),
    "adam": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
    "adam-raw": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
    "muon": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "lbfgs": (1.0,),
    "alternating": (0.5, 1.0, 1.5, 2.0),
    "gauss-newton": (0.5, 1.0, 1.5, 2.0),
}
POPULATION_GRIDS = GRIDS | {
    "gradient-raw": (0.05, 0.15, 0.4, 0.8, 1.6),
    "adam-raw": (0.001, 0.01, 0.03, 0.1),
}
WORDS = {
    "gram": "Gram preconditioning, step 0.5",
    "gram-quarter": "Gram preconditioning, step 0.25",
    "covariance": "covariance preconditioning",
    "gradient": "gradient descent, whitened",
    "gradient-raw": "gradient descent",
    "adam": "Adam, whitened",
    "adam-raw": "Adam",
    "muon": "Muon, whitened",
    "lbfgs": "L-BFGS, whitened",
    "alternating": "alternating least squares",
    "gauss-newton": "Gauss-Newton",
    "last-layer": "last layer alone",
}
OURS = ("gram", "gram-quarter", "covariance")
WRONG = 0.2  # relative error of the map from which the rate on tokens is measured
ACCURATE = 1e-6  # squared relative error of the least accurate direction


def run_population(point: Point, rng: np.random.Generator) -> Measured:
    """Iterations on the limit to accuracy in every direction, from the raw cross moment of noise-free pairs."""
    from whichtoken.data import AttentionRegression
    from whichtoken.models.whitening import Whitening
    from whichtoken.training.factor_objectives import PopulationObjective

    problem = AttentionRegression(
        point.dim,
        point.outputs or None,
        tokens=point.tokens,
        covariance=point.covariance,
        target=point.target,
        noise=point.noise,
    ).sample(rng)
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
    from whichtoken.data import AttentionRegression
    from whichtoken.experiments.attention_regression._excess import TrainingSet
    from whichtoken.training.factor_objectives import TokenObjective

    problem = AttentionRegression(
        point.dim, tokens=point.tokens, covariance=point.covariance, target=point.target, noise=point.noise
    ).sample(rng)
    data = TrainingSet(problem, rng)
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
    from whichtoken.data import AttentionRegression
    from whichtoken.experiments.attention_regression._excess import TrainingSet
    from whichtoken.theory.attention_regression import balanced_factors, excess_floor
    from whichtoken.training.factor_objectives import TokenObjective
    from whichtoken.training.structure_aware_descent import StructureAwareDescent

    problem = AttentionRegression(
        point.dim, tokens=point.tokens, covariance=point.covariance, target=point.target, noise=point.noise
    ).sample(rng)
    data = TrainingSet(problem, rng)
    goal, wrong = problem.target @ data.whitening.root, rng.standard_normal(problem.target.shape)
    wrong *= WRONG * np.linalg.norm(goal) / np.linalg.norm(wrong)
    step, short = GRIDS["gram-quarter"][0], 0.1
    solver = StructureAwareDescent(step=step, iterations=point.budget - 1, tolerance=0.0, logit_norm=short)
    P, Q = balanced_factors(goal + wrong, short)
    path = solver.minimise(TokenObjective(data.Z, data.Y), P, Q).accepted
    dampings = [iterate.damping for iterate in path]
    floor = 2 * excess_floor("stored", problem.whitened_target, point.noise, point.tokens, short)
    errors = (float(np.sum(error**2)) for error in _damped_errors(goal, wrong, dampings, step))
    return {
        "excess": [data.stored(iterate.P, iterate.Q) for iterate in path],
        "predicted": [(error + floor) / data.size for error in errors],
    }


def arrived(row: Row[Point]) -> bool:
    return row.measured["iterations"] is not None


def arrival(row: Row[Point]) -> float:
    return float(row.measured["iterations"] if arrived(row) else row.point.budget)


def _damped_errors(goal: Array, wrong: Array, dampings: list[float], step: float) -> Iterator[Array]:
    """Error of the limit's map after each step, to first order: damping slows the directions of small singular values."""
    left, sizes, right = np.linalg.svd(goal)
    error = left.T @ wrong @ right.T
    for damping in dampings:
        yield error
        weights = sizes / (sizes + damping * sizes[0])
        error = error * (1.0 - step * (weights[:, None] + weights[None, :]))


def _rates(grids: dict[str, tuple[float, ...]], method: str) -> tuple[float, ...]:
    if method not in grids:
        raise ValueError(f"method={method!r} must be one of {', '.join(grids)}")
    return grids[method]


def _solver(point: Point, **settings: Any) -> StructureAwareDescent:
    from whichtoken.training.structure_aware_descent import StructureAwareDescent

    return StructureAwareDescent(
        "covariance" if point.method == "covariance" else "gram",
        step=GRIDS[point.method][0] if point.method in OURS else None,
        iterations=point.budget - 1,
        tolerance=0.0,
        **settings,
    )


def _path(point: Point, solver: Any, objective: Any, whitening: Any, P: Any, Q: Any, lr: float) -> list[Any]:
    """(P, Q, loss) at every gradient evaluation."""
    from whichtoken.training.factor_baselines import run_baseline
    from whichtoken.training.factor_objectives import RawCoordinates

    if point.method in OURS:
        return [(iterate.P, iterate.Q, iterate.loss) for iterate in solver.minimise(objective, P, Q).trace]
    method = point.method.removesuffix("-raw")
    if method == point.method:
        return list(run_baseline(method, objective, P, Q, lr, point.budget))
    A, B = whitening.to_raw(P, Q)
    path = run_baseline(method, RawCoordinates(objective, whitening), A, B, lr, point.budget)
    return [(*whitening.to_whitened(A, B), loss) for A, B, loss in path]
