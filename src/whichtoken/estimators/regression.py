"""Linear regression by one softmax self-attention layer, trained by structure-aware gradient descent."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from whichtoken.training.structure_aware_descent import StructureAwareDescent

Array = NDArray[np.float64]


class AttentionRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """One attention head that predicts a label as A times the attention mean of its context.

    The training tokens are the context unless `predict` is given another. It approaches least squares and does not beat
    it: use it to study, probe or distil an attention layer.

    Parameters
    ----------
    preconditioner, step, damping, balance, logit_norm, logit_cap, center, start, start_samples, backtrack
        As for `whichtoken.training.structure_aware_descent.StructureAwareDescent`.
    max_iter, tol
        At most so many steps; the end when three of them lower the loss by less than `tol`, relative.
    device
        Where attention is computed, in torch's spelling.
    random_state
        Seed, `RandomState` or `Generator` of a random start.

    Attributes
    ----------
    value_ : (n_outputs, n_features)
        A.
    key_query_ : (n_features, n_features)
        B: token x_j gets a weight proportional to exp(x @ B @ x_j).
    coef_ : (n_outputs, n_features) or (n_features,)
        The linear map that the layer is on its training context, up to O(1/n).
    intercept_ : (n_outputs,) or float
    context_ : (n_samples, n_features)
        The training tokens.
    fit_ : AttentionFit
        With `fit_.descent.trace`, every iterate.
    n_iter_ : int
    """

    def __init__(
        self,
        *,
        preconditioner: Literal["gram", "covariance"] = "gram",
        step: float | None = None,
        damping: float | Literal["adaptive"] = "adaptive",
        balance: Literal["exact", "penalty", "none"] | None = None,
        logit_norm: float | None = None,
        logit_cap: float = 0.5,
        center: bool = True,
        start: Literal["spectral", "moment", "random"] = "spectral",
        start_samples: int | None = None,
        backtrack: bool = True,
        max_iter: int = 20,
        tol: float = 1e-4,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.preconditioner = preconditioner
        self.step = step
        self.damping = damping
        self.balance = balance
        self.logit_norm = logit_norm
        self.logit_cap = logit_cap
        self.center = center
        self.start = start
        self.start_samples = start_samples
        self.backtrack = backtrack
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on tokens X (n, d) and labels y (n,) or (n, outputs)."""
        tokens, labels = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        solver = StructureAwareDescent(
            preconditioner=self.preconditioner,
            step=self.step,
            damping=self.damping,
            balance=self.balance,
            logit_norm=self.logit_norm,
            logit_cap=self.logit_cap,
            center=self.center,
            start=self.start,
            start_samples=self.start_samples,
            backtrack=self.backtrack,
            iterations=self.max_iter,
            tolerance=self.tol,
        )
        rng = self.random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(check_random_state(rng).randint(2**31))
        self.fit_ = solver.fit(tokens, labels.reshape(len(labels), -1), rng, device=self.device)
        if self.fit_.descent.status == "diverged":
            warnings.warn(f"training diverged: {self.fit_.descent.message}", ConvergenceWarning, stacklevel=2)
        self.value_, self.key_query_, self.context_ = self.fit_.value, self.fit_.key_query, self.fit_.context
        centred = self.context_ - self.fit_.whitening.mean
        linear_map = self.value_ @ (centred.T @ centred / len(centred)) @ self.key_query_.T
        intercept = self.fit_.label_mean - linear_map @ self.fit_.whitening.mean
        self.coef_: Array = linear_map[0] if labels.ndim == 1 else linear_map
        self.intercept_: Any = intercept[0] if labels.ndim == 1 else intercept
        self.n_iter_ = len(self.fit_.descent.trace) - 1
        return self

    def predict(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """Outputs (m,) or (m, outputs) of queries X (m, d), which attend to the training tokens or to `context` (n, d)."""
        check_is_fitted(self)
        queries = validate_data(self, X, dtype=np.float64, reset=False)
        if context is not None:
            context = check_array(context, dtype=np.float64, input_name="context")
        outputs = self.fit_.predict(queries, context)
        return outputs[:, 0] if self.coef_.ndim == 1 else outputs
