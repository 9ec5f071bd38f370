"""The limit problem of an optimizer: where it takes the key-query matrix of a user's own layer, with a certificate."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.extras import needed_by
from whichtoken.margin import MarginCertificate, key_query_svm

if TYPE_CHECKING:
    import torch

CASES: dict[str, Any] = tomllib.loads((files(__package__) / "limits.toml").read_text(encoding="utf-8"))


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
    found, forgets = _limit_of(type(optimizer).__name__, _options(optimizer), factored)
    if found.norm is None:
        return found
    certificate = key_query_svm(tokens, queries, selected, p=found.p, norm=found.norm)
    direction = certificate.direction
    if matrices and not factored and direction is not None and sorted(matrices[0]) != sorted(direction.shape):
        raise UsageError(
            f"the optimizer trains a matrix of shape {matrices[0]}, but these tokens and queries are scored by one of shape "
            f"{direction.shape}"
        )
    return replace(found, certificate=certificate, pace=max(rates) * certificate.margin / forgets)


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


def _limit_of(name: str, options: dict[str, Any], factored: bool) -> tuple[LimitProblem, float]:
    """What is known of an optimizer, and by how much its averages fall a step, in logarithms, once gradients are gone."""
    words = {**options, "name": name}
    if options.get("maximize"):
        return _case("ascent", words), math.inf
    if float(options.get("weight_decay", 0.0)) > 0.0:
        source = CASES["decay"]["sources"].get(name, "")
        return _case("decay", words, source=source), math.inf
    if factored:
        return _case("keys_and_queries" if name == "SGD" else "factors", words), math.inf
    match name:
        case "SGD":
            return _case("sgd", words), math.inf
        case "Adam" | "AdamW" if options.get("amsgrad"):
            return _case("amsgrad", words), math.inf
        case "RMSprop" if options["momentum"] or options["centered"]:
            return _case("rmsprop", words), math.inf
        case "Adam" | "AdamW" | "RMSprop" if options["eps"] > 0.0:
            return _case("epsilon", words), math.inf
        case "Adam" | "AdamW" | "RMSprop":
            first, second = options.get("betas") or (0.0, options["alpha"])
            return _case("adaptive", words), min(_forgetting_rate(first), _forgetting_rate(second) / 2.0)
        case "Muon":
            return _case("muon", words), _forgetting_rate(options["momentum"])
        case "MirrorDescent" if options.get("heads", 1) > 1:
            return _case("heads", words), math.inf
        case "MirrorDescent":
            kind = "Schatten" if options["norm"] == "schatten" else "entrywise"
            return _case("mirror", {**words, "kind": kind}, norm=options["norm"], p=float(options["p"])), math.inf
    return _case("other", words), math.inf


def _case(case: str, words: dict[str, Any], **more: Any) -> LimitProblem:
    known = {"norm": None, "p": math.nan, "source": "", **CASES[case], **more}
    statement = known["statement"].format(**words)
    return LimitProblem(known["norm"], known["p"], None, statement, known["source"], math.nan)


def _forgetting_rate(share: float) -> float:
    return math.log(1.0 / share) if share > 0.0 else math.inf
