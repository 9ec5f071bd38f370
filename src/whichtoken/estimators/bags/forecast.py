"""The error of a classifier with more bags than a pilot has: cross-validated errors, carried on by a family of curves.

Curves come from the theory of sparse tokens, over the tasks that the pilot allows, or, where that theory does not fit, from
the power laws c + (e - c) (n / m)^-b that learning curves usually follow. Either family is weighed by how well each curve
explains the cross-validated errors of the pilot at several sizes; intervals are quantiles of the weighted curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy
from scipy.stats import binom
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from whichtoken.data.bags import Bags
from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.learning_curve import CurveLaw
from whichtoken.theory.sparse_tokens.pilot import FOLDS as STRENGTH_FOLDS

Array = NDArray[np.float64]

SHARES = (0.25, 0.45, 0.8)  # of the pilot that are trained on
FOLDS, REPEATS = 5, 2
DRAWS = 20_000
LEVEL = 0.9
DISCREPANCY = 0.2  # of the theory's log-odds, as simulated, with the tails of Student's t with 4 degrees of freedom
RUN_TO_RUN = 0.1  # deviation of the log-odds of the error between training runs, as simulated
EXPONENT = (math.log(0.6), 0.5)  # of power laws: mean and deviation of its logarithm
RULED_OUT = (
    0.05  # a chance below which the cross-validation contradicts the theory: to doubt it wrongly only costs width
)


@dataclass(frozen=True)
class CurvePoint(Shown):
    """Predicted error of `BagClassifier` with so many bags, and its 90 % interval."""

    samples: int
    error: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class CrossValidated:
    """Errors of the pilot's bags with training sets of several sizes, the largest last."""

    sizes: Array  # (k,)
    wrong: Array  # (k, n): in which share of the repeats each bag got the wrong label

    @property
    def errors(self) -> Array:
        """Mean error at each size, (k,)."""
        return np.asarray(self.wrong.mean(axis=1))

    @property
    def bags(self) -> int:
        """Bags of the pilot."""
        return int(self.wrong.shape[1])

    def level(self, errors: Array) -> Array:
        """Log-likelihood of true errors (draws,) at the largest size: binomial."""
        safe, wrong = np.clip(errors, 1e-6, 1 - 1e-6), float(self.errors[-1]) * self.bags
        return np.asarray(xlogy(wrong, safe) + xlog1py(self.bags - wrong, -safe))

    def decline(self, errors: Array) -> Array:
        """Log-likelihood of true errors (draws, k) by how much worse the smaller sizes are: Gaussian."""
        total = np.zeros(len(errors))
        for k in range(len(self.sizes) - 1):
            difference = self.wrong[k] - self.wrong[-1]
            variance = (difference.var() + 1 / self.bags) / self.bags
            misfit = difference.mean() - (errors[:, k] - errors[:, -1])
            total -= misfit**2 / (2 * variance) / (len(self.sizes) - 1)  # they share bags: together one observation
        return total


def cross_validated(model: Any, bags: Bags, codes: NDArray[np.intp], seed: int) -> CrossValidated:
    """Train on parts of the pilot and try on bags that were left out; each bag is tried as often at every size."""
    fewest = int(np.bincount(codes).min())
    folds = min(FOLDS, fewest)
    if folds < 2:
        raise ValueError(f"a pilot needs at least two bags of each class; one class has {fewest}")
    wrong = np.zeros((len(SHARES), len(codes)))
    sizes = np.zeros(len(SHARES))
    for repeat in range(REPEATS):
        rng = np.random.default_rng([seed, repeat])
        for inside, outside in StratifiedKFold(folds, shuffle=True, random_state=repeat).split(codes, codes):
            order, test = _nested(inside, codes, rng), bags.subset(outside)
            for k, share in enumerate(SHARES):
                rows = order[: max(4, min(len(order), round(share * len(codes))))]
                fitted = clone(model).fit(bags.subset(rows), codes[rows])
                wrong[k, outside] += (fitted.predict(test) != codes[outside]) / REPEATS
                sizes[k] += len(rows) / (REPEATS * folds)
    return CrossValidated(sizes, wrong)


def theory_curves(laws: Sequence[CurveLaw], rng: np.random.Generator) -> Array:
    """Errors (DRAWS, k) of curves that the theory allows, at the sizes that the laws are for."""
    weights = np.array([law.weight for law in laws])
    chosen = rng.choice(len(laws), DRAWS, p=weights / weights.sum())
    centres, strength, prevalence = (
        np.stack([getattr(law, name) for law in laws])[chosen]
        for name in ("centres", "strength_steps", "prevalence_steps")
    )
    log_odds = centres + rng.standard_t(STRENGTH_FOLDS - 1, (DRAWS, 1)) * strength
    log_odds += rng.standard_normal((DRAWS, 1)) * prevalence + DISCREPANCY * rng.standard_t(4, (DRAWS, 1))
    return np.asarray(expit(log_odds))


def power_curves(measured: CrossValidated, samples: Array, trivial: float, rng: np.random.Generator) -> Array:
    """Errors (DRAWS, k) of power laws at these sizes, with any error at the pilot's largest size and any limit below it."""
    # the error at the largest size is drawn as the binomial law allows it, so only the decline is left to weigh
    wrong = measured.errors[-1] * measured.bags
    now = np.minimum(rng.beta(wrong + 0.5, measured.bags - wrong + 0.5, (DRAWS, 1)), max(trivial, 0.5))
    exponents = np.exp(EXPONENT[0] + EXPONENT[1] * rng.standard_normal((DRAWS, 1)))
    limits = now * rng.uniform(0, 1, (DRAWS, 1))
    errors: Array = limits + (now - limits) * (samples / measured.sizes[-1]) ** -exponents
    return np.minimum(errors, max(trivial, 0.5))


def chance(errors: Array, measured: CrossValidated) -> float:
    """How likely so extreme a cross-validated error is, two-sided, if one of these errors (draws,) is the true one."""
    wrong = round(float(measured.errors[-1]) * measured.bags)
    below = float(binom.cdf(wrong, measured.bags, errors).mean())
    above = float(binom.sf(wrong - 1, measured.bags, errors).mean())
    return min(1.0, 2 * min(below, above))


def curve_points(errors: Array, weights: Array, samples: Sequence[int], rng: np.random.Generator) -> list[CurvePoint]:
    """Median and interval of the error of one training run at each size, of curves (draws, k) with these weights (draws,)."""
    once = expit(_logit(errors) + RUN_TO_RUN * rng.standard_normal(errors.shape))
    tail = (1 - LEVEL) / 2
    points = []
    for column, size in zip(once.T, samples, strict=True):
        low, middle, high = _quantiles(column, weights, (tail, 0.5, 1 - tail))
        points.append(CurvePoint(int(size), middle, low, high))
    return points


def normalised(logs: Array) -> Array:
    """Weights (draws,) that sum to one."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _nested(inside: NDArray[np.intp], codes: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
    """Rows in an order of which every beginning has about the same share of each class."""
    place = np.empty(len(inside))
    for code in np.unique(codes[inside]):
        members = np.flatnonzero(codes[inside] == code)
        place[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return inside[np.argsort(place, kind="stable")]


def _logit(errors: Array) -> Array:
    safe = np.clip(errors, 1e-9, 1 - 1e-9)
    return np.asarray(np.log(safe) - np.log1p(-safe))


def _quantiles(values: Array, weights: Array, levels: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return [
        float(values[order][min(np.searchsorted(reached, level * reached[-1]), len(order) - 1)]) for level in levels
    ]
