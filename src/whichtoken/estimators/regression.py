"""Linear regression by one softmax self-attention layer, trained by structure-aware gradient descent."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.utils import check_array, check_random_state
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, validate_data

from whichtoken.checks import check_count, check_integer, check_range
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators.common import FittedSummary
from whichtoken.estimators.model_folder import OpenedFolder, load_model, save_model
from whichtoken.processes import safe_children
from whichtoken.theory.attention_regression.structure_aware_descent import (
    AttentionFit,
    FactorDescent,
    Iterate,
    StructureAwareDescent,
)
from whichtoken.theory.attention_regression.whitening import Whitening

Array = NDArray[np.float64]
Split = tuple[NDArray[np.intp], NDArray[np.intp]]  # rows to train on and rows to try

KIND = "attention-regressor"
MATERIAL = 0.01  # squared relative error of the map on another context from which on a warning is given
UNLIKELY = 10.0  # times the error that as many tokens of the right covariance have on average
LOGIT_NORMS = (0.03, 0.1, 0.3)  # what a validation compares: the larger, the further from a linear map


@dataclass(frozen=True)
class RegressionChoice(Shown):
    """What a fit chose: damping and length of the logits, with the held-out errors where some were compared."""

    alpha: float  # of the last step
    logit_norm: float
    losses: dict[float, float]  # held-out mean square error by logit_norm; empty without `cv`


@dataclass(kw_only=True, eq=False, repr=False)
class AttentionRegressor(FittedSummary, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression by one softmax attention head, trained at a geometric rate whatever the conditioning.

    Reach for it to study, probe or distill an attention layer; it approaches least squares and does not beat it. A label is
    predicted as A times the attention mean of the context: the training tokens, unless `predict` is given others.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        Damping of the preconditioners, relative to their largest eigenvalue; "auto" is the noise level of the fit.
    cv : int, optional
        Folds of a validation that chooses `logit_norm` among 0.03, 0.1 and 0.3. None: the rule of the solver, 0.3 for
        centered tokens and 0.75 otherwise.
    preconditioner, step, balance, logit_norm, logit_cap, center, start, start_samples, backtrack : as in `StructureAwareDescent`
        How the factors are trained; see `whichtoken.theory.attention_regression.StructureAwareDescent`.
    max_iter, tol : int and float
        At most this many steps; training ends when three of them lower the loss by less than `tol`, relative.
    device : str, default="cpu"
        Where attention is computed, in torch's spelling.
    n_jobs : int, optional
        Processes of the validation.
    verbose : int, default=0
        1: a line for every step on standard error.
    random_state : int, RandomState, Generator or None, optional
        Seed for a random start and for the cut into folds.

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
    choice_ : RegressionChoice
    fit_ : AttentionFit
        With `fit_.descent.trace`, every iterate; of a loaded model the last one.
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import AttentionRegressor
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> model = AttentionRegressor().fit(X, X @ [1.0, -2.0, 0.5])
    >>> bool(model.score(X, X @ [1.0, -2.0, 0.5]) > 0.99)
    True
    """

    alpha: float | Literal["auto"] = "auto"
    cv: int | None = None
    preconditioner: Literal["gram", "covariance"] = "gram"
    step: float | None = None
    balance: Literal["exact", "penalty", "none"] | None = None
    logit_norm: float | None = None
    logit_cap: float = 0.5
    center: bool = True
    start: Literal["spectral", "moment", "random"] = "spectral"
    start_samples: int | None = None
    backtrack: bool = True
    max_iter: int = 20
    tol: float = 1e-4
    device: str = "cpu"
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on tokens X (n, d) and labels y (n,) or (n, outputs)."""
        tokens, labels = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        targets = labels.reshape(len(labels), -1)
        solver = self._solver()
        rng = self.random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(check_random_state(rng).randint(2**31))
        losses = {} if self.cv is None else self._held_out_errors(solver, tokens, targets, int(rng.integers(2**31)))
        if losses:
            solver = replace(solver, logit_norm=min(losses, key=losses.__getitem__))
        self.fit_ = solver.fit(tokens, targets, rng, device=self.device, observe=_report_step if self.verbose else None)
        if self.fit_.descent.status == "diverged":
            warnings.warn(f"training diverged: {self.fit_.descent.message}", ConvergenceWarning, stacklevel=2)
        final = self.fit_.descent.final
        self.choice_ = RegressionChoice(final.damping, final.logit_norm, losses)
        self.n_iter_ = len(self.fit_.descent.trace) - 1
        self._set_layer(labels.ndim)
        return self

    def predict(self, X: ArrayLike, context: ArrayLike | None = None) -> Array:
        """Outputs (m,) or (m, outputs) of queries X (m, d), which attend to the training tokens or to `context` (n, d).

        A context has to have the covariance of the training tokens: the layer multiplies by it. One that clearly has another
        gives a `UserWarning`.
        """
        check_is_fitted(self)
        queries = validate_data(self, X, dtype=np.float64, reset=False)
        tokens: Array | None = None if context is None else check_array(context, dtype=np.float64, input_name="context")
        outputs = self.fit_.predict(queries, tokens)
        if tokens is not None:
            self._warn_of_mismatch(tokens)
        return outputs[:, 0] if self.coef_.ndim == 1 else outputs

    def _warn_of_mismatch(self, context: Array) -> None:
        error, expected = self.fit_.context_mismatch(context)
        if error > max(MATERIAL, UNLIKELY * expected):
            moments = "covariance" if self.fit_.center else "mean or covariance"
            warnings.warn(
                f"context has another {moments} than the training tokens, which puts these predictions off by about"
                f" {100 * math.sqrt(error):.0f} % of their spread; use tokens from where the training tokens come from, or"
                " leave context out",
                UserWarning,
                stacklevel=3,
            )

    def save(self, folder: str | Path) -> None:
        """Write a model folder: safetensors and JSON. The training tokens, which are the context, travel with it."""
        check_is_fitted(self)
        descent, whitening = self.fit_.descent, self.fit_.whitening
        fitted = {
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "outputs": self.coef_.ndim,
            "choice": {**asdict(self.choice_), "losses": [list(pair) for pair in self.choice_.losses.items()]},
            "status": descent.status,
            "message": descent.message,
            "n_iter": self.n_iter_,
        }
        tensors = {
            "context": self.context_, "label_mean": self.fit_.label_mean, "P": descent.final.P, "Q": descent.final.Q,
            "mean": whitening.mean, "root": whitening.root, "inverse_root": whitening.inverse_root,
            "loss": np.array([descent.final.loss]),
        }  # fmt: skip
        save_model(folder, KIND, {"settings": stored.storable(self.get_params()), "fitted": fitted}, tensors)

    @classmethod
    def load(cls, folder: str | Path | OpenedFolder) -> Self:
        """The regressor that `save` wrote; executes no code."""
        _, parameters, tensors = load_model(folder, KIND)
        from whichtoken.estimators.schemas import RegressorFitted, model_of

        with stored.stored_fields(folder):
            model, fitted = model_of(cls, RegressorFitted, parameters)
            model._solver()
            model._set_fitted(fitted, tensors)
        return model  # type: ignore[no-any-return]

    def _solver(self) -> StructureAwareDescent:
        """The solver with these settings, which it checks."""
        number: Any = self.alpha
        if number != "auto" and not (isinstance(number, int | float | np.number) and 0 <= number < np.inf):
            raise ValueError(f"alpha={number!r} must be 'auto' or a number that is not negative")
        check_integer("max_iter", self.max_iter, 0)
        check_range("tol", self.tol, 0.0, np.inf, include_low=True)
        if self.cv is not None:
            check_count("cv", self.cv, 2)
        known = StructureAwareDescent.__dataclass_fields__
        own = {name: value for name, value in self.get_params().items() if name in known}
        damping: Any = "adaptive" if isinstance(self.alpha, str) else self.alpha
        return StructureAwareDescent(**own, damping=damping, iterations=self.max_iter, tolerance=self.tol)

    def _held_out_errors(
        self, solver: StructureAwareDescent, tokens: Array, labels: Array, seed: int
    ) -> dict[float, float]:
        """Held-out mean square errors by length of the logits."""
        assert self.cv is not None
        folds = list(KFold(min(self.cv, len(tokens)), shuffle=True, random_state=seed).split(tokens))
        norms = LOGIT_NORMS if self.logit_norm is None else (self.logit_norm,)
        with safe_children():
            errors = Parallel(n_jobs=self.n_jobs)(
                delayed(_held_out_error)(replace(solver, logit_norm=norm), tokens, labels, split, seed)
                for norm in norms
                for split in folds
            )
        return dict(zip(norms, np.reshape(errors, (len(norms), -1)).mean(axis=1).tolist(), strict=True))

    def _set_layer(self, dimensions: int) -> None:
        """The layer in raw coordinates, and the linear map that it is; labels had so many dimensions."""
        self.value_, self.key_query_, self.context_ = self.fit_.value, self.fit_.key_query, self.fit_.context
        centered = self.context_ - self.fit_.whitening.mean
        linear_map = self.value_ @ (centered.T @ centered / len(centered)) @ self.key_query_.T
        intercept = self.fit_.label_mean - linear_map @ self.fit_.whitening.mean
        self.coef_: Array = linear_map[0] if dimensions == 1 else linear_map
        self.intercept_: Any = intercept[0] if dimensions == 1 else intercept

    def _set_fitted(self, fitted: Any, tensors: dict[str, NDArray[Any]]) -> None:
        """The stored layer, if its parts fit together."""
        dim, dimensions = self.n_features_in_, fitted.outputs
        outputs, count = tensors["P"].shape[0], tensors["context"].shape[0]
        if (dimensions == 1 and outputs != 1) or count < 2:
            raise UsageError(f"'outputs' is {dimensions} with {outputs} outputs and {count} tokens")
        square = (dim, dim)
        shapes = {
            "context": (count, dim), "label_mean": (outputs,), "P": (outputs, dim), "Q": square, "mean": (dim,),
            "root": square, "inverse_root": square, "loss": (1,),
        }  # fmt: skip
        context, label_mean, P, Q, mean, root, inverse_root, loss = stored.arrays(tensors, shapes)
        if np.abs(root @ inverse_root - np.eye(dim)).max() > 1e-3:
            raise UsageError("array 'inverse_root' is not the inverse of 'root'")
        self.choice_ = RegressionChoice(fitted.choice.alpha, fitted.choice.logit_norm, dict(fitted.choice.losses))
        self.n_iter_ = fitted.n_iter
        final = Iterate(
            self.n_iter_, P, Q, float(loss[0]), np.zeros_like(P), np.zeros_like(Q), 0.0, self.choice_.alpha, True
        )
        whitening = Whitening(mean, root, inverse_root)
        descent = FactorDescent(final, (final,), fitted.status, fitted.message)
        self.fit_ = AttentionFit(*whitening.to_raw(P, Q), context, whitening, label_mean, self.center, descent)
        self._set_layer(dimensions)


def _held_out_error(solver: StructureAwareDescent, tokens: Array, labels: Array, split: Split, seed: int) -> float:
    inside, outside = split
    fit = solver.fit(tokens[inside], labels[inside], np.random.default_rng(seed))
    return float(np.mean((fit.predict(tokens[outside]) - labels[outside]) ** 2))


def _report_step(iterate: Iterate) -> None:
    print(f"step {iterate.iteration}: loss {iterate.loss:.6g}", file=sys.stderr)
