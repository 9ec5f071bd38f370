"""How well a score separates right picks from wrong ones, when it is known which were right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError

REPEATS = 1000
FOLDS = 5


@dataclass(frozen=True, eq=False)
class RiskCoverage(Shown):
    """Error among the most confident picks, for every share of picks that is kept."""

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


class PickConfidence:
    """Test whether a score of the picks, such as the gap, says which of them are right.

    Reach for it when you know the right pick of some queries and want to trust a score on others. It gives the AUROC with an
    interval, the error among the most confident picks, and calibrated probabilities, all of which respect that picks of one
    document belong together. It refuses scores that are not numbers, and picks that are all right or all wrong.

    >>> from whichtoken.inspection import PickConfidence
    >>> confidence = PickConfidence(score=[0.1, 0.2, 0.8, 0.9], right=[False, True, True, True])
    >>> confidence.auroc, confidence.risk(coverage=0.5)
    (1.0, 0.0)

    Parameters
    ----------
    score : array_like of shape (n,)
        Larger is more confident: gap, radius or weight of each pick.
    right : array_like of bool of shape (n,)
        Whether the pick was the right one.
    groups : array_like of shape (n,), optional
        Document of each pick. Picks of one document are not independent: intervals are over documents, and calibration
        never sees the document that it is used on.

    Examples
    --------
    >>> confidence.auroc_interval(level=0.9)
    (1.0, 1.0)
    """

    def __init__(self, score: ArrayLike, right: ArrayLike, groups: ArrayLike | None = None) -> None:
        self.score = np.asarray(score, dtype=float).ravel()
        self.right = np.asarray(right).ravel()
        self.groups = np.arange(len(self.score)) if groups is None else np.asarray(groups).ravel()
        if not len(self.score) == len(self.right) == len(self.groups):
            raise UsageError(
                "score, right and groups must be equally long; "
                f"they have {len(self.score)}, {len(self.right)} and {len(self.groups)}"
            )
        if not set(np.unique(self.right)) <= {0, 1}:
            raise UsageError("right must say of each pick whether it was right: True or False")
        self.right = self.right.astype(bool)
        if np.isnan(self.score).any():
            raise UsageError("score holds NaN; leave those picks out")
        if self.right.all() or not self.right.any():
            raise UsageError("every pick is right, or every pick is wrong: there is nothing to compare")

    @cached_property
    def auroc(self) -> float:
        """How often a right pick has a larger score than a wrong one; ties count half."""
        return _auroc(self.score, self.right)

    def auroc_interval(self, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
        """Interval of the AUROC: bootstrap over documents."""
        return _interval([_auroc(self.score[rows], self.right[rows]) for rows in self._resamples(seed)], level)

    def auroc_difference(self, other: PickConfidence, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
        """Interval of this AUROC minus that of another score of the same picks: bootstrap over the same documents."""
        if not np.array_equal(self.right, other.right):
            raise UsageError("two scores can only be compared on the same picks")
        differences = [
            _auroc(self.score[rows], self.right[rows]) - _auroc(other.score[rows], self.right[rows])
            for rows in self._resamples(seed)
        ]
        return _interval(differences, level)

    def risk(self, coverage: float) -> float:
        """Share of wrong picks among the most confident `coverage` of all; picks of equal score count in proportion."""
        if not 0 < coverage <= 1:
            raise UsageError(f"coverage={coverage} must be above 0 and at most 1")
        kept = np.append(0.0, self.curve.coverage)
        # as a share of all picks: within a tie it grows linearly
        wrong = kept * np.append(0.0, self.curve.risk)
        return float(np.interp(coverage, kept, wrong) / coverage)

    @cached_property
    def curve(self) -> RiskCoverage:
        """Error against the share of picks kept, the most confident ones first."""
        values, inverse, counts = np.unique(-self.score, return_inverse=True, return_counts=True)
        wrong = np.bincount(inverse, weights=~self.right, minlength=len(values))
        kept = np.cumsum(counts)
        return RiskCoverage(kept / len(self.score), np.cumsum(wrong) / kept)

    def probabilities(self, folds: int = FOLDS) -> NDArray[np.float64]:
        """Probability that each pick is right: isotonic in the score, fitted on other documents."""
        from sklearn.isotonic import IsotonicRegression
        from sklearn.model_selection import GroupKFold, cross_val_predict

        documents = len(np.unique(self.groups))
        if documents < 2:
            raise UsageError("calibration needs at least two documents: it is fitted on some and used on others")
        fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        finite = np.nan_to_num(self.score, posinf=1e30, neginf=-1e30)[:, None]
        parts = GroupKFold(min(folds, documents))
        return np.asarray(cross_val_predict(fitted, finite, self.right.astype(float), groups=self.groups, cv=parts))

    def calibration_error(self, bins: int = 10) -> float:
        """Mean distance between calibrated probability and share of right picks, in bins of equal size."""
        probability = self.probabilities()
        parts = np.array_split(np.argsort(probability, kind="stable"), bins)
        sizes = [len(part) / len(probability) for part in parts if len(part)]
        errors = [abs(probability[part].mean() - self.right[part].mean()) for part in parts if len(part)]
        return float(np.dot(sizes, errors))

    def _resamples(self, seed: int) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng(seed)
        _, inverse, counts = np.unique(self.groups, return_inverse=True, return_counts=True)
        members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
        draws = (
            np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))]) for _ in range(REPEATS)
        )
        return [rows for rows in draws if 0 < self.right[rows].sum() < len(rows)]


def _auroc(score: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    from scipy.stats import mannwhitneyu

    # not by scikit-learn, which refuses an infinite gap
    pairs = right.sum() * (~right).sum()
    return float(mannwhitneyu(score[right], score[~right], method="asymptotic").statistic / pairs)


def _interval(values: list[float], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
