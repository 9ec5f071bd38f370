"""The limit problem of an optimizer: where it takes the key-query matrix of a user's own layer, with a certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.extras import needed_by
from whichtoken.margin import MarginCertificate, key_query_svm

if TYPE_CHECKING:
    import torch

_ATTENTION = "Tarzanagh, Li, Thrampoulidis, Oymak, Transformers as Support Vector Machines, arXiv 2308.16898"
_NUCLEAR = f"{_ATTENTION}; Sheen, Chen, Wang, Zhou, arXiv 2403.08699"
_HOMOGENEOUS = "Gronich, Vardi, arXiv 2602.16340, for homogeneous networks; measured on attention in optimizers/margins"
_EPSILON = (
    "Wang, Meng, Chen, Liu, arXiv 2012.06244, RMSProp on homogeneous networks; measured on attention in optimizers/adam"
)
_MIRROR = "Julistiono, Tarzanagh, Azizan, arXiv 2410.14581"
_CONSTRAINED = {
    "AdamW": "Xie, Li, arXiv 2404.04454: to a stationary point among matrices with entries up to 1 / weight_decay",
    "Muon": "Chen, Li, Liu, arXiv 2506.15054: to a stationary point among matrices of spectral norm up to 1 / weight_decay",
}


@dataclass(frozen=True)
class Geometry:
    """A norm whose margin an optimizer maximizes, and who says so; or, with norm None, why none is known."""

    norm: Literal["entrywise", "schatten"] | None
    p: float
    statement: str
    source: str = ""
    # by how much an average of gradients falls a step, in logarithms, once gradients are gone
    forgets: float = math.inf


@dataclass(frozen=True, eq=False)
class LimitProblem(Shown):
    """Where an optimizer takes the direction of W, as far as it is known.

    Attributes
    ----------
    norm, p
        W tends to the direction of the best margin in this norm: "entrywise" or "schatten" (of singular values), exponent p.
        None and nan where no such norm is known.
    certificate
        That direction and its margin between two bounds, from `key_query_svm`; None where no norm is known.
    statement
        One sentence: what the limit is and under which conditions, or why none is known.
    source
        Who proves it, and for what.
    pace
        lr times the margin, over what the optimizer's averages of gradients forget in a step. Below 1, steps of constant size
        reach the limit; above, they miss it or take very long, and the step size has to decay (`optimizers/momentum`,
        `optimizers/adam`). 0 without averages that matter, nan where no norm is known.
    """

    norm: Literal["entrywise", "schatten"] | None
    p: float
    certificate: MarginCertificate | None
    statement: str
    source: str
    pace: float

    def _headline(self) -> str:
        return self.statement


def limit_problem(
    optimizer: torch.optim.Optimizer,
    tokens: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike,
    selected: Sequence[Any] | ArrayLike,
    *,
    factored: bool | None = None,
) -> LimitProblem:
    """The certified max-margin problem to which a torch optimizer takes the key-query weights, or why none is known.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer as it trains the layer: SGD, Adam, AdamW, RMSprop, Muon or `whichtoken.optim.MirrorDescent`. All groups
        of parameters must have the same options, up to lr.
    tokens, queries, selected : as in `key_query_svm`
        The sequences, one query for each, and the tokens that attention selects.
    factored : bool, optional
        Whether keys and queries are trained as two matrices, W = K Q^T. By default True if the optimizer holds more than one
        matrix.

    Returns
    -------
    LimitProblem
        The norm and its certificate, or the reason in `statement`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from whichtoken.flows import limit_problem
    >>> tokens, queries = np.eye(3)[None], np.ones((1, 3))
    >>> optimizer = torch.optim.SGD([torch.zeros(3, 3)], lr=0.1)
    >>> limit_problem(optimizer, tokens, queries, [0]).statement
    'SGD takes W to the largest margin in the Frobenius norm'
    """
    with needed_by("limit_problem"):
        import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"optimizer={optimizer!r} must be an instance of a torch optimizer, as in torch.optim.Adam(...)"
        )
    matrices = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"] if p.ndim == 2]
    if factored is None:
        factored = len(matrices) > 1
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if not min(rates) > 0:
        raise UsageError(f"lr={min(rates):g} of this optimizer must be positive: without steps there is no limit")
    found = _geometry(type(optimizer).__name__, _options(optimizer), factored)
    if found.norm is None:
        return LimitProblem(None, math.nan, None, found.statement, found.source, math.nan)
    certificate = key_query_svm(tokens, queries, selected, p=found.p, norm=found.norm)
    direction = certificate.direction
    if matrices and not factored and direction is not None and sorted(matrices[0]) != sorted(direction.shape):
        raise UsageError(
            f"the optimizer trains a matrix of shape {matrices[0]}, but these tokens and queries are scored by one of shape "
            f"{direction.shape}"
        )
    pace = max(rates) * certificate.margin / found.forgets
    return LimitProblem(found.norm, found.p, certificate, found.statement, found.source, pace)


def _options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Options of the optimizer without its parameters; all groups must have the same, up to lr."""
    groups = [
        {k: v for k, v in group.items() if k not in {"params", "param_names", "lr"}} for group in optimizer.param_groups
    ]
    if any(group != groups[0] for group in groups):
        raise UsageError(
            "the groups of this optimizer have different options; pass one that holds the key-query weights alone"
        )
    return groups[0]


def _geometry(name: str, options: dict[str, Any], factored: bool) -> Geometry:
    if options.get("maximize"):
        return _unknown(
            f"{name} with maximize=True ascends: attention then learns to avoid the best tokens, which no theory covers"
        )
    decay = float(options.get("weight_decay", 0.0))
    if decay > 0.0:
        decoupled = name in _CONSTRAINED or bool(options.get("decoupled_weight_decay"))
        return _unknown(
            f"{name} with weight_decay={decay:g} keeps W bounded, so that it converges to a matrix and not in direction to a "
            "largest margin; set weight_decay=0 for a limit problem",
            _CONSTRAINED.get(name, "") if decoupled else "",
        )
    if factored and name != "SGD":
        return _unknown(
            f"for {name} on keys and queries apart no limit is known; that of SGD is, and for W itself those of others"
        )
    if factored:
        statement = "SGD on keys and queries apart takes W = K Q^T to the largest margin in the nuclear norm"
        return Geometry("schatten", 1.0, statement, _NUCLEAR)
    known = {"SGD": _sgd, "Adam": _adam, "AdamW": _adam, "RMSprop": _rmsprop, "Muon": _muon, "MirrorDescent": _mirror}
    if name not in known:
        return _unknown(f"for {name} no limit is known; known are those of {', '.join(known)}")
    return known[name](name, options)


def _unknown(statement: str, source: str = "") -> Geometry:
    return Geometry(None, math.nan, statement, source)


def _sgd(name: str, options: dict[str, Any]) -> Geometry:
    return Geometry("entrywise", 2.0, "SGD takes W to the largest margin in the Frobenius norm", _ATTENTION)


def _adam(name: str, options: dict[str, Any]) -> Geometry:
    if options.get("amsgrad"):
        return _unknown(
            f"{name} with amsgrad=True never forgets its first gradients, and its limit depends on them: none is known"
        )
    return _adaptive(name, options, *options["betas"])


def _rmsprop(name: str, options: dict[str, Any]) -> Geometry:
    if options["momentum"] or options["centered"]:
        return _unknown(
            "for RMSprop with momentum or centered=True no limit is known; without them it is Adam with betas=(0, alpha)"
        )
    return _adaptive(name, options, 0.0, options["alpha"])


def _adaptive(name: str, options: dict[str, Any], beta1: float, beta2: float) -> Geometry:
    eps, forgets = float(options["eps"]), min(_forgetting(beta1), _forgetting(beta2) / 2.0)
    if eps > 0.0:
        statement = (
            f"{name} with eps={eps:g} takes W to the largest margin in the Frobenius norm once gradients are far below eps, and "
            "towards that of the largest entry until then"
        )
        return Geometry("entrywise", 2.0, statement, _EPSILON)
    statement = (
        f"{name} with eps=0 takes W to the largest margin of the largest entry if the step size decays, or is small enough for "
        "its averages (`pace` below 1)"
    )
    return Geometry("entrywise", math.inf, statement, _HOMOGENEOUS, forgets)


def _muon(name: str, options: dict[str, Any]) -> Geometry:
    statement = (
        "Muon with exact polar factors takes W to the largest margin in the spectral norm; the uneven singular values of its "
        f"{options['ns_steps']} iterations, and gradients below eps={options['eps']:g}, keep it short of that"
    )
    return Geometry("schatten", math.inf, statement, _HOMOGENEOUS, _forgetting(options["momentum"]))


def _forgetting(share: float) -> float:
    return math.log(1.0 / share) if share > 0.0 else math.inf


def _mirror(name: str, options: dict[str, Any]) -> Geometry:
    p, norm = float(options["p"]), options.get("norm", "entrywise")
    if options.get("heads", 1) > 1:
        return _unknown(
            f"MirrorDescent with heads={options['heads']} trains a matrix for each head, and each has a limit of its own; ask "
            "for one head with an optimizer of its matrix alone"
        )
    kind = "Schatten norm" if norm == "schatten" else "entrywise norm"
    return Geometry(norm, p, f"MirrorDescent takes W to the largest margin in the {kind} with p={p:g}", _MIRROR)
