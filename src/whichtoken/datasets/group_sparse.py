"""Gaussian groups of variables of which one, or a few, decide the label."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_integer, check_range


class GroupSparse:
    """Samples X of `groups` x `group_dim` normal variables with label sign(sum_k <direction_k, x_(relevant_k)>).

    Reach for it to see whether a method finds the groups of variables that matter, where the truth is known.

    With one relevant group this is the distribution of Zhang, Meng, Cao, arXiv 2504.08638; several relevant groups,
    correlation between groups, variables that groups share and a margin leave its assumptions one at a time.

    Parameters
    ----------
    groups, group_dim : int
        D >= 2 groups of d >= 1 variables.
    relevant : int or sequence of int, default=0
        The group, or groups, that decide the label (from 0).
    direction : array of shape (group_dim,) or (relevant groups, group_dim), optional
        v*, shared by the relevant groups or one row for each; normalized to length one. The first axis by default.
    sigma : float, default=1.0
        Standard deviation of every variable.
    correlation : float, default=0.0
        Correlation in [0, 1) of the same variable in two groups.
    margin : float, default=0.0
        Every sample is moved away from the decision boundary by `margin`: the relevant groups share a shift of y *
        margin along their directions, so that the deciding sum is at least `margin` in size.
    shared : int, default=0
        So many last variables of each group are the first of the next one, in a circle. Without correlation and margin.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import GroupSparse
    >>> X, y = GroupSparse(groups=5, group_dim=2, relevant=3).sample(100, np.random.default_rng(0))
    >>> X.shape, bool((y == np.sign(X[:, 3, 0])).all())
    ((100, 5, 2), True)
    """

    def __init__(
        self,
        groups: int,
        group_dim: int,
        relevant: int | Sequence[int] = 0,
        direction: ArrayLike | None = None,
        sigma: float = 1.0,
        correlation: float = 0.0,
        margin: float = 0.0,
        shared: int = 0,
    ) -> None:
        for field, value, least in (("groups", groups, 2), ("group_dim", group_dim, 1)):
            check_integer(field, value, least)
        check_range("sigma", sigma, 0.0, math.inf)
        check_range("correlation", correlation, 0.0, 1.0, include_low=True)
        check_range("margin", margin, 0.0, math.inf, include_low=True)
        if not np.issubdtype(type(shared), np.integer) or not 0 <= shared < group_dim:
            raise ValueError(
                f"shared={shared} must be a whole number from 0 to {group_dim - 1}, one less than group_dim"
            )
        if shared and (correlation or margin):
            raise ValueError(f"shared={shared} must be 0 where groups have a correlation or a margin")
        self.groups = groups
        self.group_dim = group_dim
        self.relevant = _relevant_groups(relevant, groups)  # (k,)
        self.directions = _unit_directions(direction, len(self.relevant), group_dim)  # (k, group_dim)
        self.sigma = sigma
        self.correlation = correlation
        self.margin = margin
        self.shared = shared

    def sample(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw X of shape (n, groups, group_dim) and y of shape (n,), -1 or +1."""
        X = rng.standard_normal((n, self.groups * (self.group_dim - self.shared)))[:, self.variables]
        if self.correlation:
            common = rng.standard_normal((n, 1, self.group_dim))
            X = np.sqrt(1 - self.correlation) * X + np.sqrt(self.correlation) * common
        X *= self.sigma
        decision = np.einsum("nkd,kd->n", X[:, self.relevant], self.directions)
        y = np.where(decision >= 0, 1, -1)
        X[:, self.relevant] += y[:, None, None] * (self.margin / len(self.relevant)) * self.directions
        return X, y

    @property
    def variables(self) -> NDArray[np.int64]:
        """Which variable stands where, (groups, group_dim): groups that share one have the same number."""
        own = self.group_dim - self.shared
        places = own * np.arange(self.groups)[:, None] + np.arange(self.group_dim)
        return places % (own * self.groups)


def _relevant_groups(relevant: int | Sequence[int], groups: int) -> NDArray[np.int64]:
    indices = np.atleast_1d(np.asarray(relevant))
    whole = indices.size > 0 and np.issubdtype(indices.dtype, np.integer)
    if not whole or indices.min() < 0 or indices.max() >= groups or len(np.unique(indices)) != indices.size:
        raise ValueError(f"relevant={relevant} must be one or several distinct group indices in 0..{groups - 1}")
    return indices


def _unit_directions(direction: ArrayLike | None, count: int, group_dim: int) -> NDArray[np.float64]:
    rows = np.eye(1, group_dim) if direction is None else np.atleast_2d(np.asarray(direction, dtype=float))
    if rows.shape not in {(1, group_dim), (count, group_dim)}:
        raise ValueError(f"direction of shape {rows.shape} must be ({group_dim},) or ({count}, {group_dim})")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths) & (lengths > 0)):
        raise ValueError("direction must be finite and not zero")
    return np.broadcast_to(rows / lengths, (count, group_dim))
