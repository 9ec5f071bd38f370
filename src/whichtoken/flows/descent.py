"""Descent of the key-query matrix of an attention head whose decoder stays as it is, by any of a dozen optimisers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.attention.losses import Loss
from whichtoken.checks import check_choice
from whichtoken.data.attention_tokens import AttentionProblem, MulticlassProblem
from whichtoken.flows.joint import run_descent
from whichtoken.flows.mirror_steps import DescentState, Rule
from whichtoken.flows.selecting import Selecting
from whichtoken.flows.steps import optimizer_settings
from whichtoken.flows.steps.schatten import SchattenMirror
from whichtoken.flows.steps.settings import Settings
from whichtoken.flows.trajectory import OptimizerDescent, StepSizes, follow_optimizer


@dataclass(frozen=True, eq=False)
class DescentResult(Selecting):
    """Where the descent went and which tokens it selects."""

    final: DescentState
    snapshots: tuple[DescentState, ...]  # one per recorded step, in ascending order
    selected: NDArray[np.int64]  # (n,), the token of highest attention score in the final state
    last_change: int  # the first step from which on the selected tokens stayed the same

    @property
    def _steps(self) -> int:
        return self.final.step


@overload
def attention_descent(  # type: ignore[overload-overlap]
    problem: AttentionProblem,
    start: ArrayLike,
    optimizer: Literal["mirror"] = ...,
    *,
    lr: float,
    steps: int,
    p: float | None = ...,
    rule: Rule = ...,
    norm: Literal["entrywise"] = ...,
    loss: Loss = ...,
    record: Iterable[int] = ...,
) -> DescentResult: ...


@overload
def attention_descent(
    problem: AttentionProblem | MulticlassProblem,
    start: ArrayLike | Sequence[ArrayLike],
    optimizer: str = ...,
    *,
    lr: float,
    steps: int,
    p: float | None = ...,
    loss: Loss = ...,
    record: Iterable[int] = ...,
    **options: Any,
) -> OptimizerDescent: ...


def attention_descent(
    problem: AttentionProblem | MulticlassProblem,
    start: ArrayLike | Sequence[ArrayLike],
    optimizer: str = "mirror",
    *,
    lr: float,
    steps: int,
    p: float | None = None,
    loss: Loss = "logistic",
    record: Iterable[int] = (),
    **options: Any,
) -> DescentResult | OptimizerDescent:
    """Minimise the mean loss over the key-query matrix W of an attention head whose decoder stays as it is.

    Parameters
    ----------
    problem : AttentionProblem or MulticlassProblem
        Tokens (n, T, d), queries (n, d), labels (n,) and decoder (d,), or one decoder per class.
    start : array_like of shape (d, d) or (h, d, d), or a list of factors
        Initial W, zero is allowed; one for each of h heads whose outputs are averaged; or matrices whose product is W, [K, Q.T],
        which are then what is trained (`balanced_chain` makes them from W).
    optimizer : str, default="mirror"
        `mirror` or one of `whichtoken.flows.steps.OPTIMIZERS`: gd, normalized-gd, sign, coordinate, adam, adamw,
        lion, muon, shampoo, soap. Its options are keyword arguments, with the names and meanings of torch.optim where it has
        them.
    lr, steps : float and int
        Step size and number of steps.
    p : float, optional
        Exponent of the geometry of `mirror`, above 1; 2, the default, is gradient descent with normalised steps (`rule`).
    loss : str or callable, default="logistic"
        l(m) of the label margin m: log(1 + exp(-m)), exp(-m) or -m by name, or a function that gives log |l'(m)|.
    record : iterable of int, default=()
        Step numbers between 0 (the start) and `steps` whose states are kept.
    **options : options of the optimiser
        norm : "entrywise" or "schatten", of `mirror`: U <- U - step * G, W = sign(U) |U|^(1/(p-1)), of entries (Julistiono,
        Tarzanagh, Azizan, arXiv 2410.14581) or of singular values.
        rule : of `mirror`. `plain` steps are lr * G; `normalized` ones, the default, lr * G / |G|_q; `geometric` ones
        max(1, |U|_q) times that, a fast warm start whose error floors at O(lr). `flow` follows dU/dt = -G, to times like
        exp(400), in Euler steps along which attention scores change by about lr.
        lr_power : step k has size lr * k^-lr_power (not for entrywise `mirror`).
        heads : "each" or "whole", whether optimisers of matrices see every head or all heads stacked.

    Returns
    -------
    DescentResult or OptimizerDescent
        The final state, the tokens that are selected, and the recorded states.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import AttentionTokens
    >>> from whichtoken.flows import attention_descent
    >>> from whichtoken.margin import key_query_svm
    >>> rng = np.random.default_rng(0)
    >>> problem = AttentionTokens().sample(rng)
    >>> run = attention_descent(problem, 1e-3 * rng.standard_normal((10, 10)), p=2.0, lr=1.0, steps=3000)
    >>> limit = key_query_svm(problem.tokens, problem.queries, run.selected)
    >>> float(np.vdot(run.final.direction, limit.direction)) > 0.99  # where theory says that it goes
    True
    >>> run = attention_descent(problem, np.zeros((10, 10)), "adam", lr=0.01, steps=100, betas=(0.9, 0.99), eps=0.0)
    >>> run.final.direction.shape
    (10, 10)
    """
    if optimizer == "mirror" and options.get("norm", "entrywise") == "entrywise":
        return _mirror_descent(problem, start, p=p, lr=lr, steps=steps, loss=loss, record=record, **options)
    common = {"heads": options.pop("heads")} if "heads" in options else {}
    sizes = StepSizes(lr, options.pop("lr_power", 0.0))
    if optimizer == "mirror":
        check_choice("norm", options.pop("norm"), ("entrywise", "schatten"))
        settings: Settings = SchattenMirror(p=2.0 if p is None else p, **_known(options, ("rule",)))
    else:
        if p is not None:
            raise ValueError(f"p={p} is the geometry of optimizer='mirror', {optimizer} has its own")
        settings = optimizer_settings(optimizer, options)
    return follow_optimizer(problem, start, settings, sizes=sizes, steps=steps, loss=loss, record=record, **common)


def _mirror_descent(
    problem: AttentionProblem | MulticlassProblem, start: Any, *, p: float | None, **options: Any
) -> DescentResult:
    if not isinstance(problem, AttentionProblem):
        raise ValueError(
            "mirror descent of entries is for labels -1 and +1; choose norm='schatten' for several classes"
        )
    options.pop("norm", None)
    known = {"rule": "normalized", **_known(options, ("lr", "steps", "loss", "record", "rule"))}
    found = run_descent(problem, start, p=2.0 if p is None else p, lr_decoder=0.0, **known)
    snapshots = tuple(state.weights for state in found.snapshots)
    return DescentResult(found.final.weights, snapshots, found.selected, found.last_change)


def _known(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    if unknown := sorted(set(options) - set(names)):
        raise ValueError(f"mirror has no option {unknown[0]!r} in this norm; it has p, norm, rule")
    return options
