"""A hidden layer under the attention: phi(x) = relu(W^T z + c), all of it trained together by quasi-Newton steps.

score = sum_h <w_h, Phi^T softmax(Phi q_h)> + b. What is minimised is the mean logistic loss plus (ridge/2) |all but b|^2. The
ridge and the number of steps are chosen by cross-validation, which looks in on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from whichtoken.attention import pool_gradient, pool_outputs
from whichtoken.data.bags import Bags, LabelledBags
from whichtoken.estimators.bags.attention import Pooling, Score
from whichtoken.estimators.bags.maps import InstanceMap, Scaling, instance_scaling
from whichtoken.memory import require_memory
from whichtoken.training.quasi_newton import quasi_newton

Array = NDArray[np.float64]

HIDDEN = 64
TOLERANCE = 1e-6
SMALL = 0.1  # of queries and readouts at the start


@dataclass(frozen=True, eq=False)
class _Layers:
    """Parts of one long vector of parameters, all of them views."""

    weights: Array  # (d, m)
    offsets: Array  # (m,)
    both: Array  # (2h, m): queries, then readouts
    bias: Array  # (1,)

    @classmethod
    def of(cls, packed: Array, dim: int, queries: int) -> _Layers:
        ends = np.cumsum([dim * HIDDEN, HIDDEN, 2 * queries * HIDDEN])
        weights, offsets, both, bias = np.split(packed, ends)
        return cls(weights.reshape(dim, HIDDEN), offsets, both.reshape(2 * queries, HIDDEN), bias)


class Network:
    """One network on one training set, trained step by step."""

    def __init__(self, data: LabelledBags, queries: int, ridge: float, seed: int) -> None:
        self.data, self.queries, self.ridge, self.taken = data, queries, ridge, 0
        self.scaling = instance_scaling(data.bags, data.weights)
        self.scaled = _scaled(data.bags, self.scaling)
        dim, rng = data.bags.dim, np.random.default_rng(seed)
        self.packed = np.zeros(dim * HIDDEN + HIDDEN + 2 * queries * HIDDEN + 1)
        start = _Layers.of(self.packed, dim, queries)
        start.weights[:] = rng.standard_normal(start.weights.shape) * np.sqrt(2 / dim)
        start.offsets[:] = rng.standard_normal(HIDDEN) / 2
        start.both[:] = SMALL * rng.standard_normal(start.both.shape)

    def after(self, steps: int) -> Score:
        """The score after so many steps in all; never fewer than before."""
        self.packed = quasi_newton(self._objective, self.packed, steps - self.taken, TOLERANCE)
        self.taken = steps
        layers = _Layers.of(self.packed, self.data.bags.dim, self.queries)
        seen = InstanceMap("network", self.scaling, layers.weights.copy(), layers.offsets.copy())
        queries, readouts = layers.both[: self.queries].copy(), layers.both[self.queries :].copy()
        return Score(seen, Pooling.shared(queries, readouts, float(layers.bias[0])))

    def _objective(self, packed: Array) -> tuple[float, Array]:
        layers = _Layers.of(packed, self.data.bags.dim, self.queries)
        starts, signs, shares = self.data.bags.starts, self.data.signs, self.data.shares
        both = layers.both.astype(np.float32)
        hidden = self.scaled @ layers.weights.astype(np.float32)  # (total, m)
        hidden += layers.offsets.astype(np.float32)
        np.maximum(hidden, 0, out=hidden)
        columns = np.asarray(both @ hidden.T, dtype=np.float64)  # (2h, total)
        pairs = [(columns[h], columns[self.queries + h]) for h in range(self.queries)]
        margins = signs * (np.sum([pool_outputs(*pair, starts) for pair in pairs], axis=0) + layers.bias)
        upstream = -signs * shares * expit(-margins)
        pulled = [pool_gradient(upstream, *pair, starts) for pair in pairs]
        slopes = np.stack([*(part.scores for part in pulled), *(part.values for part in pulled)])  # (2h, total)
        slopes = slopes.astype(np.float32)
        below = slopes.T @ both
        below *= hidden > 0
        gradient = np.concatenate(
            [(self.scaled.T @ below).ravel(), below.sum(axis=0), (slopes @ hidden).ravel(), [upstream.sum()]]
        )
        gradient[:-1] += self.ridge * packed[:-1]
        loss = shares @ np.logaddexp(0, -margins) + self.ridge / 2 * packed[:-1] @ packed[:-1]
        return float(loss), gradient


def _scaled(bags: Bags, scaling: Scaling) -> NDArray[np.float32]:
    """Standardised instances; the products with them take most of the time, and half as long in single precision."""
    require_memory(5 * bags.tokens.size * 4, "instance_map='network'", "use instance_map='linear' or fewer instances")
    return np.asarray((bags.tokens - scaling.mean) / scaling.scale, dtype=np.float32)
