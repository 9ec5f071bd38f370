"""Structure-aware descent for softmax attention regression: with many tokens a geometric rate, whatever the conditioning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from whichtoken.checks import check_choice
from whichtoken.display.shown import Shown
from whichtoken.extras import needed_by
from whichtoken.theory.attention_regression import balanced_factors, population_loss
from whichtoken.theory.attention_regression.predictions import LOGIT_BOUND
from whichtoken.theory.attention_regression.whitening import Whitening

Array = NDArray[np.float64]
Found = tuple[float, Array, Array]


class FactorObjective(Protocol):
    """A loss of two factors, with its gradients."""

    @property
    def samples(self) -> float:
        """Number of training pairs behind the loss; infinite for a population."""

    def __call__(self, P: Array, Q: Array) -> Found:
        """Loss, gradient in P, gradient in Q."""


class PopulationObjective:
    """1/2 |P Q^T - Y|_F^2, the limit of infinitely many tokens; `target` is Y (outputs, d)."""

    samples = math.inf

    def __init__(self, target: Array) -> None:
        self.target = target

    def __call__(self, P: Array, Q: Array) -> Found:
        return population_loss(P, Q, self.target)


class TokenObjective:
    """(1/2n) sum_i |P h_i - y_i|^2 on tokens (n, d), which are the context as well, and labels (n, outputs).

    Parameters
    ----------
    device
        Where the n^2 attention weights are computed; the factors stay on the CPU.
    """

    def __init__(self, tokens: Array, labels: Array, device: str = "cpu") -> None:
        with needed_by("attention regression"):
            import torch

        self.samples: float = len(tokens)
        self.tokens = torch.as_tensor(tokens, dtype=torch.float64, device=device)
        self.labels = torch.as_tensor(labels, dtype=torch.float64, device=device)

    def __call__(self, P: Array, Q: Array) -> Found:
        import torch

        from whichtoken.theory.attention_regression.softmax_regression import regression_loss_and_gradient

        value, key_query = (torch.as_tensor(x, device=self.tokens.device) for x in (P, Q))
        found = regression_loss_and_gradient(value, key_query, self.tokens, self.labels)
        return found.loss, found.value.cpu().numpy(), found.key_query.cpu().numpy()


class RawCoordinates:
    """An objective of (P, Q) as a function of the raw factors A = P S^(-1/2) and B = S^(-1/2) Q S^(-1/2)."""

    def __init__(self, objective: FactorObjective, whitening: Whitening) -> None:
        self.objective, self.whitening, self.samples = objective, whitening, objective.samples

    def __call__(self, P: Array, Q: Array) -> Found:
        """Loss and gradients at A, B, which take the places of P and Q."""
        loss, P_gradient, Q_gradient = self.objective(*self.whitening.to_whitened(P, Q))
        root = self.whitening.root
        return loss, P_gradient @ root, root @ Q_gradient @ root


Pair = tuple[Array, Array]

_NEGLIGIBLE = 1e-14  # eigenvalues of a Gram matrix below this share of the largest are rounding


def gram_step(P: Array, Q: Array, P_gradient: Array, Q_gradient: Array, step: float, damping: float) -> Pair:
    """P - eta dP (Q^T Q + delta |Q|_op^2)^(-1) and Q - eta dQ (P^T P + delta |P|_op^2)^(-1), both with the old factors.

    Block Gauss-Newton for the limit: with delta = 0 the error of the map shrinks by 1 - 2 eta in every direction.
    """
    return P - step * P_gradient @ _damped_inverse(Q, damping), Q - step * Q_gradient @ _damped_inverse(P, damping)


def covariance_step(P: Array, Q: Array, P_gradient: Array, Q_gradient: Array, step: float, penalty: float) -> Pair:
    """Gradient descent in whitened coordinates on loss + penalty * balance_penalty, by eta / (|P|_op^2 + |Q|_op^2).

    The factors are first brought to equal norms, where this step size is the right one.
    """
    scale = math.sqrt(float(np.linalg.norm(P) / np.linalg.norm(Q)))
    P, Q, P_gradient, Q_gradient = P / scale, Q * scale, P_gradient * scale, Q_gradient / scale
    if penalty:
        _, P_pull, Q_pull = balance_penalty(P, Q)
        P_gradient, Q_gradient = P_gradient + penalty * P_pull, Q_gradient + penalty * Q_pull
    length = step / float(linalg.svdvals(P)[0] ** 2 + linalg.svdvals(Q)[0] ** 2)
    return (P - length * P_gradient) * scale, (Q - length * Q_gradient) / scale


def balance_penalty(P: Array, Q: Array) -> tuple[float, Array, Array]:
    """1/4 |P^T P / tau - tau Q^T Q|_F^2 with tau = |P|_F/|Q|_F, and its gradients in P and Q.

    The same for (cP, Q/c), and zero exactly for balanced factors.
    """
    first, second = float(np.linalg.norm(P)), float(np.linalg.norm(Q))
    tau = first / second
    P_gram, Q_gram = P.T @ P, Q.T @ Q
    gap = P_gram / tau - tau * Q_gram
    by_tau = -(float(np.sum(P_gram**2)) / tau**2 - tau**2 * float(np.sum(Q_gram**2))) / (2.0 * tau)
    P_gradient = P @ gap / tau + by_tau / (first * second) * P
    Q_gradient = -tau * Q @ gap - by_tau * tau / second**2 * Q
    return 0.25 * float(np.sum(gap**2)), P_gradient, Q_gradient


def balance_exactly(P: Array, Q: Array) -> Pair:
    """The balanced pair of the same map P Q^T and the same |P|_F/|Q|_F that is nearest to (P, Q)."""
    scale = math.sqrt(float(np.linalg.norm(P) / np.linalg.norm(Q)))
    P_balanced, Q_balanced = balanced_factors(P @ Q.T)
    left, _, right = linalg.svd(P_balanced.T @ P / scale + Q_balanced.T @ Q * scale)
    rotation = left @ right
    return P_balanced @ rotation * scale, Q_balanced @ rotation / scale


def rescale_logits(P: Array, Q: Array, logit_norm: float, logit_cap: float) -> Pair:
    """The pair (P/c, cQ) with |Q|_F = logit_norm, or less where |Q|_op would exceed logit_cap."""
    scale = min(logit_norm / float(np.linalg.norm(Q)), logit_cap / float(linalg.svdvals(Q)[0]))
    return P / scale, Q * scale


def noise_damping(loss: float, outputs: int, dim: int, samples: float, map_norm: float) -> float:
    """Relative size of the noise in an estimate of the map from n pairs: sqrt(2F/m) (sqrt d + sqrt m) / (sqrt n |P Q^T|_op).

    Directions of the map weaker than this cannot be estimated, and undamped Gram matrices would amplify their noise.
    """
    return math.sqrt(2.0 * loss / outputs) * (math.sqrt(dim) + math.sqrt(outputs)) / (math.sqrt(samples) * map_norm)


def _damped_inverse(factor: Array, damping: float) -> Array:
    """(F^T F + delta |F|_op^2)^(-1); with delta = 0 the pseudo-inverse."""
    values, vectors = linalg.eigh(factor.T @ factor)
    damped = np.maximum(values, 0.0) + damping * values[-1]
    inverse = np.where(damped > _NEGLIGIBLE * values[-1], 1.0 / np.maximum(damped, _NEGLIGIBLE * values[-1]), 0.0)
    return np.asarray((vectors * inverse) @ vectors.T)


Observer = Callable[["Iterate"], None]

RISE = 1.001  # factor by which an accepted step may raise the loss
PATIENCE = 3  # accepted steps without progress before the end
SMALLEST_STEP = 2.0**-20  # share of the full step below which backtracking gives up
DIVERGED = 1e3  # times the first loss


@dataclass(frozen=True, eq=False)
class Iterate(Shown):
    """One evaluation of loss and gradients, and every quantity that steers the descent."""

    iteration: int
    P: Array  # (outputs, d)
    Q: Array  # (d, d)
    loss: float
    P_gradient: Array
    Q_gradient: Array
    step: float  # that led here
    damping: float  # of the next step
    accepted: bool  # False: the next step starts again from the iterate before

    @property
    def logit_norm(self) -> float:
        """|Q|_F, the root mean square of the logits of two independent tokens."""
        return float(np.linalg.norm(self.Q))


@dataclass(frozen=True, eq=False)
class FactorDescent(Shown):
    """A run: where it ended, why, and every iterate."""

    final: Iterate  # the last accepted one; after divergence the one of least loss
    trace: tuple[Iterate, ...]  # from the start, rejected ones included
    status: Literal["converged", "iterations", "diverged"]
    message: str

    @property
    def accepted(self) -> list[Iterate]:
        """The iterates that the descent went through."""
        return [iterate for iterate in self.trace if iterate.accepted]

    def _headline(self) -> str:
        return f"{self.status} after {len(self.trace) - 1} steps, loss {self.final.loss:.6g}" + (
            f": {self.message}" if self.message else ""
        )


@dataclass(frozen=True, eq=False)
class AttentionFit(Shown):
    """A trained layer in raw coordinates, with its context."""

    value: Array  # (outputs, d): A
    key_query: Array  # (d, d): B
    context: Array  # (n, d), the training tokens
    whitening: Whitening
    label_mean: Array  # (outputs,)
    center: bool
    descent: FactorDescent = field(repr=False)

    def predict(self, queries: ArrayLike, context: ArrayLike | None = None) -> Array:
        """Outputs (m, outputs) of queries (m, d) attending to the training tokens or to another context (n, d).

        A centered layer subtracts from the context its own mean, and from the queries that of the training tokens.
        """
        with needed_by("attention regression"):
            import torch

            from whichtoken.theory.attention_regression.softmax_regression import SoftmaxRegression

        points = np.asarray(self.context if context is None else context, dtype=np.float64)
        if points.ndim != 2 or points.shape[1:] != self.whitening.mean.shape or len(points) == 0:
            raise ValueError(f"context of shape {points.shape} must have shape (n, {len(self.whitening.mean)})")
        if self.center:
            points = points - points.mean(axis=0)
        model = SoftmaxRegression(torch.from_numpy(self.descent.final.P), torch.from_numpy(self.descent.final.Q))
        inverse_root = self.whitening.inverse_root
        outputs = model(torch.from_numpy(self.whitening.whiten(queries)), torch.from_numpy(points @ inverse_root))
        return np.asarray(self.label_mean + outputs.numpy())

    def context_mismatch(self, context: ArrayLike) -> tuple[float, float]:
        """How far the layer's linear map on a context (n, d) is from that on the training tokens, and how far n more would be.

        Squared, relative to the size of the map. On a long context of covariance C, in whitened coordinates, the layer computes
        P C Q^T z in place of P Q^T z; without centering it also adds P times the mean of the context.
        """
        P, Q = self.descent.final.P, self.descent.final.Q
        moments = []
        for tokens in (np.asarray(context, dtype=np.float64), self.context):
            points = tokens @ self.whitening.inverse_root
            moments.append((points.mean(axis=0), np.cov(points.T, bias=True).reshape(len(Q), len(Q))))
        (mean, covariance), (own_mean, own_covariance) = moments
        size, of_values = float(np.sum((P @ Q.T) ** 2)), float(np.sum(P**2))
        if size == 0.0:
            return 0.0, 0.0
        error = float(np.sum((P @ (covariance - own_covariance) @ Q.T) ** 2))
        # n times the mean of |P (C - I) Q^T|_F^2 for n Gaussian tokens
        expected = of_values * float(np.sum(Q**2)) + size
        if not self.center:
            error += float(np.sum((P @ (mean - own_mean)) ** 2))
            expected += of_values
        return error / size, expected / size / len(np.asarray(context))


@dataclass(frozen=True)
class StructureAwareDescent(Shown):
    """Preconditioned descent on value and key-query matrix of one attention layer (arXiv 2603.01514).

    In whitened coordinates, P = A S^(1/2) and Q = S^(1/2) B S^(1/2): a spectral start from the least-squares map, steps
    preconditioned by the Gram matrix of the other factor and damped at the noise level, then exact balancing and a
    rescaling that keeps the logits small. Every part can be switched.

    Parameters
    ----------
    preconditioner : {"gram", "covariance"}, default="gram"
        `gram`: the rate does not depend on the condition number; `covariance`: whitening alone, the rate does.
    step : float, optional
        Dimensionless; 0.5 for `gram` and 1.0 for `covariance` by default.
    damping : float or {"adaptive"}, default="adaptive"
        Damping of the Gram matrices, relative to their largest eigenvalue; `adaptive` is the noise level.
    balance : {"exact", "penalty", "none"}, optional
        `exact`, `penalty` (with `covariance` only) or `none`; by default `exact` for `gram`, `penalty` for
        `covariance`.
    penalty : float, default=0.25
        Weight of the scale-invariant balance penalty.
    rescale, logit_norm, logit_cap : bool, float, float
        After every step |Q|_F is set to `logit_norm`, or less where |Q|_op would exceed `logit_cap`. By default 0.3 for
        centered tokens and 0.75 otherwise; 0.1 suits heavy-tailed tokens.
    center : bool, default=True
        Subtract the means of tokens and labels.
    start, start_samples : str and int
        `spectral` (least squares), `moment` (raw cross moment) or `random`, from the first `start_samples` pairs.
    backtrack : bool, default=True
        Reject a step that raises the loss by more than 0.1 %, halve the step, let it grow again by 1.5.
    iterations, tolerance : int and float
        At most this many steps; training ends when three steps lower the loss by less than `tolerance`, relative.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import AttentionRegression
    >>> from whichtoken.theory.attention_regression import StructureAwareDescent
    >>> data = AttentionRegression(dim=3, tokens=400, noise=0.0).sample(np.random.default_rng(0))
    >>> fit = StructureAwareDescent(iterations=10).fit(data.tokens, data.labels)
    >>> bool(np.mean((fit.predict(data.tokens) - data.labels) ** 2) < 0.1 * np.mean(data.labels**2))
    True
    """

    preconditioner: Literal["gram", "covariance"] = "gram"
    step: float | None = None
    damping: float | Literal["adaptive"] = "adaptive"
    balance: Literal["exact", "penalty", "none"] | None = None
    penalty: float = 0.25
    rescale: bool = True
    logit_norm: float | None = None
    logit_cap: float = 0.5
    center: bool = True
    start: Literal["spectral", "moment", "random"] = "spectral"
    start_samples: int | None = None
    backtrack: bool = True
    iterations: int = 20
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_choice("preconditioner", self.preconditioner, ("gram", "covariance"))
        check_choice("start", self.start, ("spectral", "moment", "random"))
        if self.balance is not None:
            check_choice("balance", self.balance, ("exact", "penalty", "none"))
        if self.preconditioner == "gram" and self.balance == "penalty":
            raise ValueError("balance='penalty' diverges under preconditioner='gram'; use 'exact' or 'none'")
        if isinstance(self.damping, str) and self.damping != "adaptive":
            raise ValueError(f"damping={self.damping!r} must be 'adaptive' or a number")
        if not 0.0 < self.logit_cap < LOGIT_BOUND:
            raise ValueError(f"logit_cap={self.logit_cap} must lie in (0, 0.7071): beyond, attention saturates")
        for name, least in (("step", 1e-12), ("logit_norm", 1e-12), ("start_samples", 1), ("penalty", 0), ("damping", 0),
                            ("iterations", 0), ("tolerance", 0)):  # fmt: skip
            number = getattr(self, name)
            if number not in (None, "adaptive") and not least <= number < math.inf:
                raise ValueError(f"{name}={number} must be finite and {'positive' if least else 'not negative'}")
            if name in ("iterations", "start_samples") and not isinstance(number, Integral | None):
                raise ValueError(f"{name}={number} must be an integer")

    def fit(
        self,
        tokens: ArrayLike,
        labels: ArrayLike,
        rng: np.random.Generator | None = None,
        factors: tuple[ArrayLike, ArrayLike] | None = None,
        observe: Observer | None = None,
        device: str = "cpu",
    ) -> AttentionFit:
        """Train on tokens (n, d) and labels (n, outputs).

        Parameters
        ----------
        rng
            Of a random start.
        factors
            Whitened P and Q to start from instead; P may be zero.
        observe
            Called with every iterate as it is found.
        device
            Where attention is computed, in torch's spelling.
        """
        X, Y = np.asarray(tokens, dtype=np.float64), np.asarray(labels, dtype=np.float64)
        whitening = Whitening.from_tokens(X, self.center)
        if Y.ndim != 2 or len(Y) != len(X) or not np.isfinite(Y).all():
            raise ValueError(f"labels of shape {Y.shape} must be a finite matrix of shape ({len(X)}, outputs)")
        label_mean = Y.mean(axis=0) if self.center else np.zeros(Y.shape[1])
        Z, Y = whitening.whiten(X), Y - label_mean
        P, Q = (np.asarray(factor, dtype=np.float64) for factor in factors or self.starting_factors(Z, Y, rng))
        (_, dim), outputs = Z.shape, Y.shape[1]
        if P.shape != (outputs, dim) or Q.shape != (dim, dim):
            wanted = f"{(outputs, dim)} and {(dim, dim)}"
            raise ValueError(f"factors of shapes {P.shape} and {Q.shape} must have shapes {wanted}")
        if not (np.isfinite(P).all() and np.isfinite(Q).all() and Q.any()):
            raise ValueError("factors P and Q must be finite, and Q must not be zero")
        descent = self.minimize(TokenObjective(Z, Y, device), P, Q, observe)
        value, key_query = whitening.to_raw(descent.final.P, descent.final.Q)
        return AttentionFit(value, key_query, X, whitening, label_mean, self.center, descent)

    def starting_factors(self, Z: Array, Y: Array, rng: np.random.Generator | None = None) -> tuple[Array, Array]:
        """P and Q from whitened tokens (n, d) and labels (n, outputs)."""
        Z, Y = Z[: self.start_samples], Y[: self.start_samples]
        dim, outputs = Z.shape[1], Y.shape[1]
        if self.start == "random":
            generator = np.random.default_rng() if rng is None else rng
            P, Q = (0.5 / math.sqrt(dim) * generator.standard_normal((rows, dim)) for rows in (outputs, dim))
        else:
            linear_map = linalg.lstsq(Z, Y)[0].T if self.start == "spectral" else Y.T @ Z / len(Z)
            if not linear_map.any():
                return np.zeros((outputs, dim)), np.eye(dim) * self._logit_norm / math.sqrt(dim)
            P, Q = balanced_factors(linear_map)
        return rescale_logits(P, Q, self._logit_norm, self.logit_cap) if self.rescale else (P, Q)

    def minimize(
        self, objective: FactorObjective, P: Array, Q: Array, observe: Observer | None = None
    ) -> FactorDescent:
        """Descend from whitened factors on any objective."""
        full_step = step = self._full_step
        current = self._evaluate(objective, P, Q, 0, step)
        trace, losses = [current], [current.loss]
        if observe:
            observe(current)
        for iteration in range(1, self.iterations + 1):
            if current.loss == 0.0 or not (current.P_gradient.any() or current.Q_gradient.any()):
                return FactorDescent(current, tuple(trace), "converged", "the gradient vanishes")
            found = self._evaluate(objective, *self._move(current, step), iteration, step)
            limit = RISE * current.loss if self.backtrack else DIVERGED * losses[0]
            accepted = found.loss <= limit  # False for nan as well
            found = replace(found, accepted=bool(accepted))
            trace.append(found)
            if observe:
                observe(found)
            if accepted:
                current, step = found, min(full_step, 1.5 * step)
                losses.append(found.loss)
                gain = 1.0 - losses[-1] / losses[-1 - PATIENCE] if len(losses) > PATIENCE else math.inf
                # without backtracking the loss may rise; neither that nor a rest above the start is an end
                if 1.0 - RISE**PATIENCE <= gain < self.tolerance and not self._has_risen(losses):
                    message = f"{PATIENCE} steps lowered the loss by less than {self.tolerance:g}"
                    return FactorDescent(current, tuple(trace), "converged", message)
            elif not self.backtrack:
                return _divergence(trace)
            elif step < SMALLEST_STEP * full_step:
                return FactorDescent(current, tuple(trace), "converged", "no smaller step lowers the loss")
            else:
                step /= 2.0
        if self._has_risen(losses):
            return _divergence(trace)
        return FactorDescent(current, tuple(trace), "iterations", f"{self.iterations} iterations done")

    def _evaluate(self, objective: FactorObjective, P: Array, Q: Array, iteration: int, step: float) -> Iterate:
        loss, P_gradient, Q_gradient = objective(P, Q)
        damping = 0.0 if self.damping == "adaptive" else self.damping
        if self.damping == "adaptive" and math.isfinite(loss) and P.any():
            outputs, dim = P.shape
            damping = noise_damping(loss, outputs, dim, objective.samples, float(linalg.svdvals(P @ Q.T)[0]))
        return Iterate(iteration, P, Q, loss, P_gradient, Q_gradient, step, damping, accepted=True)

    def _move(self, at: Iterate, step: float) -> tuple[Array, Array]:
        if not at.P.any():  # Q has no gradient yet, and a Gram matrix of zeros would be no preconditioner
            P, Q = at.P - step * at.P_gradient @ linalg.pinvh(at.Q.T @ at.Q), at.Q
        elif self.preconditioner == "gram":
            P, Q = gram_step(at.P, at.Q, at.P_gradient, at.Q_gradient, step, at.damping)
        else:
            penalty = self.penalty if self.balance in (None, "penalty") else 0.0
            P, Q = covariance_step(at.P, at.Q, at.P_gradient, at.Q_gradient, step, penalty)
        if self.balance == "exact" or (self.balance is None and self.preconditioner == "gram"):
            P, Q = balance_exactly(P, Q)
        return rescale_logits(P, Q, self._logit_norm, self.logit_cap) if self.rescale else (P, Q)

    def _has_risen(self, losses: list[float]) -> bool:
        return not self.backtrack and losses[-1] > RISE * losses[0]

    @property
    def _full_step(self) -> float:
        return self.step if self.step is not None else 0.5 if self.preconditioner == "gram" else 1.0

    @property
    def _logit_norm(self) -> float:
        return self.logit_norm if self.logit_norm is not None else 0.3 if self.center else 0.75


def _divergence(trace: list[Iterate]) -> FactorDescent:
    best = min((iterate for iterate in trace if iterate.accepted), key=lambda iterate: iterate.loss)
    last = trace[-1]
    message = f"loss {last.loss:.3g} at iteration {last.iteration}; the iterate of least loss is returned"
    return FactorDescent(best, tuple(trace), "diverged", message)
