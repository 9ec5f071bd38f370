"""Structure-aware steps on attention factors as a torch optimizer (experimental).

Factors F of a product L F R, gradients G, directions D; S is the covariance of the tokens, lam the damping, W_O, W_V, W_K and W_Q
the factors of an attention head, of which W_K stands transposed in the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import matmul
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from whichtoken.optim.checked import CheckedOptimizer, check_dense, check_heads, check_rates, nonfinite

Bases = Sequence[Tensor | None]
_KEY = 2  # place of W_K, which stands transposed in the product
_TENSORS = {"attention": 4, "fused": 2, "pair": 2}  # of one chain
_NAMES = {"attention": ("W_O", "W_V", "W_K", "W_Q"), "fused": ("out_proj.weight", "in_proj_weight"), "pair": ("B", "A")}
# a step on one long context never moves a product by a quarter; a layer of torch has short ones, and heads that add up
_TRUST = {"attention": 0.25, "fused": 0.1, "pair": 0.25}


class StructureAware(CheckedOptimizer):
    """Gradient steps on a product of matrices, each preconditioned by the factors to its left and right.

    For every factor F of the product L F R, with gradient G, damped Gram matrices and lam = damping * largest eigenvalue:
    D <- (L^T L + lam)^(-1) G (R S R^T + lam)^(-1), then D <- momentum * (previous D) + D
    F <- F - lr * D

    On a long context of tokens with covariance S a head computes the map W_O W_V S W_K^T W_Q (times the factor of its
    logits), a LoRA-like pair computes B A. Near the solution of a regression on that map k square factors shrink the loss
    by (1 - k lr)^2 in every step, whatever the condition numbers: lr = 1/k is a full step.

    **Experimental.** The step is derived for one attention layer with squared loss and large batches (after Goel,
    Soltanolkotabi, Bartlett, arXiv 2603.01514), where five steps do more than ten of Adam. It is not for language
    models: tried on a small character model, it brought no reliable gain over SGD, and AdamW alone with 1.5 times the steps
    ended lower.

    Parameters
    ----------
    params : iterable of tensors or dicts
        Chains one after the other, all of them matrices, or groups of chains as dicts, each with its own options if
        needed. float32 or float64. Other parameters of the model belong to another optimizer.
    lr : float or Tensor, default=0.25
        Step size, at most 1/k for k factors; with `keep_norm` a step size for gradients.
    structure : {"attention", "fused", "pair"}, default="attention"
        What a chain is. `attention`: W_O (out, r), W_V (r, d), W_K (s, d), W_Q (s, d). `fused`: `out_proj.weight` and
        `in_proj_weight` of an `nn.MultiheadAttention`. `pair`: B (out, r) and A (r, d).
    heads : int, default=1
        Number of heads into which W_O is split by columns and the others by rows; each is a chain of its own.
    damping : float, default=0.01
        Damping of the Gram matrices, relative to their largest eigenvalue. Above 0, because they are singular where the
        tokens are wider than a head.
    covariance : Tensor, optional
        S (d, d) of the tokens that enter the layer; the identity if None. The tensor is read in every step, so that a
        running mean may be kept in it.
    logit_factor : float, optional
        By which q.k is multiplied before the softmax: head_dim^(-1/2) in most models, and the default in `fused`.
    keep_norm : bool, default=False
        Give D the Euclidean norm of G, head by head, so that step sizes are those of gradient descent.
    momentum : float, default=0.0
        As in `torch.optim.SGD`.
    trust : float, optional
        Largest change of a head's map in one step, relative to its Euclidean norm on white tokens; longer steps are
        shortened, so that a loss for which lr is too large falls more slowly where it would diverge. 0.25 by default,
        0.1 in `fused`; math.inf for any change. Does not apply to the first step from a map of zero, nor with
        `keep_norm`.
    maximize : bool, default=False
        As in `torch.optim.SGD`.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.optim import StructureAware
    >>> _ = torch.manual_seed(0)
    >>> B, A = (torch.nn.Parameter(torch.randn(4, 4, dtype=torch.float64)) for _ in range(2))
    >>> target = torch.diag(torch.tensor([1.0, 0.1, 0.1, 0.01], dtype=torch.float64))
    >>> optimizer = StructureAware([B, A], lr=0.5, structure="pair")
    >>> def loss():
    ...     optimizer.zero_grad()
    ...     value = 0.5 * (B @ A - target).square().sum()
    ...     value.backward()
    ...     return value
    >>> losses = [optimizer.step(loss).item() for _ in range(30)]
    >>> losses[-1] < 0.01 * losses[0]
    True
    """

    later_options: ClassVar[dict[str, Any]] = {"trust": None}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.25,
        structure: Literal["attention", "fused", "pair"] = "attention",
        heads: int = 1,
        damping: float = 1e-2,
        covariance: Tensor | None = None,
        logit_factor: float | None = None,
        keep_norm: bool = False,
        momentum: float = 0.0,
        *,
        trust: float | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr, "structure": structure, "heads": heads, "damping": damping, "covariance": covariance,
            "logit_factor": logit_factor, "keep_norm": keep_norm, "momentum": momentum, "trust": trust, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a stored state; a covariance stays the tensor it is, which may be a running mean, with the stored entries."""
        followed = [group["covariance"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, tensor in zip(self.param_groups, followed, strict=True):
            stored = group.get("covariance")
            if tensor is not None and stored is not None and tensor.shape == stored.shape:
                group["covariance"] = tensor.copy_(stored)

    def _move_all(self) -> None:
        for group in self.param_groups:
            for chain in _chains(group):
                self._move(chain, group)

    @torch.no_grad()
    def precondition_gradients(self) -> None:
        """Replace every gradient G by D and move nothing: for another optimizer to step on.

        >>> adamw.register_step_pre_hook(lambda *_: aware.precondition_gradients())  # doctest: +SKIP
        """
        for number in range(len(self.param_groups)):
            self._check_gradients(number)
        for group in self.param_groups:
            for chain in _chains(group):
                for param, direction in zip(chain, _directions(chain, group), strict=True):
                    if param.grad is not None:
                        param.grad.copy_(direction)

    def _check_options(self, options: dict[str, Any]) -> None:
        covariance = options["covariance"]
        check_rates(options, "momentum")
        check_heads(options)
        if options["structure"] not in _TENSORS:
            raise ValueError(f"Invalid structure value: {options['structure']!r}, must be one of {', '.join(_TENSORS)}")
        for option in ("damping", "logit_factor"):
            if options[option] is not None and not 0.0 < options[option] < math.inf:
                raise ValueError(f"Invalid {option} value: {options[option]}, must be finite and positive")
        if options["trust"] is not None and not options["trust"] > 0.0:
            raise ValueError(f"Invalid trust value: {options['trust']}, must be positive")
        if options["structure"] == "pair" and options["logit_factor"] is not None:
            raise ValueError("Invalid structure value: 'pair' has no logits, logit_factor must be None")
        if covariance is None:
            return
        if not isinstance(covariance, Tensor) or covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
            shape = tuple(covariance.shape) if isinstance(covariance, Tensor) else type(covariance).__name__
            raise ValueError(f"Invalid covariance value: {shape}, must be a square matrix as a tensor")
        matrix = covariance.detach().double()
        if not torch.allclose(matrix, matrix.T, rtol=0.0, atol=1e-6 * float(matrix.abs().max())):
            raise ValueError("Invalid covariance value: it is not symmetric")
        covariance_root(matrix)

    def _check_group(self, number: int) -> None:
        group = self.param_groups[number]
        size, count = _TENSORS[group["structure"]], sum(param.numel() > 0 for param in group["params"])
        if count % size:
            expected = ", ".join(_NAMES[group["structure"]])
            raise ValueError(
                f"structure={group['structure']!r} takes chains of {size} tensors ({expected}), got {count} in a group"
            )
        for chain in _chains(group, moving=False):
            _check_chain(chain, group)

    def _check_gradients(self, number: int) -> None:
        for index, param in enumerate(self.param_groups[number]["params"]):
            if param.grad is None or param.numel() == 0:
                continue
            name = self._name(number, index)
            check_dense("StructureAware", name, param.grad)
            if nonfinite(param.grad):
                raise ValueError(f"The gradient of parameter {name} is non-finite, so nothing was moved")

    def _move(self, chain: list[Tensor], group: dict[str, Any]) -> None:
        steps = zip(chain, _directions(chain, group, lr=float(group["lr"])), strict=True)
        moving = [(param, direction) for param, direction in steps if param.grad is not None]
        params = [param for param, _ in moving]
        directions = self._add_momentum(params, [direction for _, direction in moving], group["momentum"])
        torch._foreach_add_(params, directions, alpha=-float(group["lr"]))


def _chains(group: dict[str, Any], moving: bool = True) -> Iterator[list[Tensor]]:
    """The tensors of each chain, those without entries left out; only chains with a gradient if `moving`."""
    params, size = [param for param in group["params"] if param.numel() > 0], _TENSORS[group["structure"]]
    for start in range(0, len(params), size):
        chain = params[start : start + size]
        if not moving or any(param.grad is not None for param in chain):
            yield chain


def _directions(chain: Sequence[Tensor], group: dict[str, Any], lr: float = 0.0) -> list[Tensor]:
    """D of every tensor of a chain, before momentum, within the trust that a step of size lr is given."""
    gradients = [torch.zeros_like(param) if param.grad is None else param.grad for param in chain]
    factors, pulls = _split_tensors(chain, group), _split_tensors(gradients, group)
    bases = _bases(factors, group)
    steps = precondition(factors, pulls, bases, group["damping"])
    if group["keep_norm"]:
        # each step at the Euclidean norm of its gradient, head by head
        sizes = [[torch.linalg.matrix_norm(tensor, keepdim=True) for tensor in kind] for kind in (pulls, steps)]
        shares = (torch.where(norm > 0.0, wanted / norm, 0.0) for wanted, norm in zip(*sizes, strict=True))
        steps = [step * share for step, share in zip(steps, shares, strict=True)]
    elif lr > 0.0:
        steps = limit_to_trust(factors, steps, bases, (group["trust"] or _TRUST[group["structure"]]) / lr)
    directions = [step.to(param.dtype) for param, step in zip(chain, _join_tensors(steps, group), strict=True)]
    return [-direction for direction in directions] if group["maximize"] else directions


def _split_tensors(tensors: Sequence[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """Factors (heads, rows, columns) in float64: Gram matrices square the condition number, too much for float32."""
    factors = _split_heads(_unfuse(*tensors) if group["structure"] == "fused" else tensors, group["heads"])
    # one layout in memory for all, so that steps do not depend on that of the parameters
    return [factor.to(torch.float64).contiguous() for factor in factors]


def _join_tensors(factors: Sequence[Tensor], group: dict[str, Any]) -> list[Tensor]:
    joined = _join_heads(factors)
    return _fuse(joined) if group["structure"] == "fused" else joined


def _unfuse(output: Tensor, stacked: Tensor) -> list[Tensor]:
    """Views W_O, W_V, W_K, W_Q of `out_proj.weight` (out, r) and `in_proj_weight` (3 r, d) of an `nn.MultiheadAttention`."""
    query, key, value = stacked.chunk(3)
    return [output, value, key, query]


def _fuse(factors: Sequence[Tensor]) -> list[Tensor]:
    """Back from W_O, W_V, W_K, W_Q to output and stacked input projections."""
    output, value, key, query = factors
    return [output, torch.cat([query, key, value])]


def _split_heads(factors: Sequence[Tensor], heads: int) -> list[Tensor]:
    """W_O (out, h r) as (h, out, r), the factors behind it (h r, d) as (h, r, d)."""
    output, *inputs = factors
    return [
        output.reshape(len(output), heads, -1).movedim(1, 0),
        *(factor.reshape(heads, -1, factor.shape[1]) for factor in inputs),
    ]


def _join_heads(factors: Sequence[Tensor]) -> list[Tensor]:
    """Back from factors with a leading axis of heads."""
    output, *inputs = factors
    return [output.movedim(0, 1).flatten(1), *(factor.flatten(0, 1) for factor in inputs)]


def _bases(factors: Sequence[Tensor], group: dict[str, Any]) -> Bases:
    """T for each of the factors, such that the W T multiply to the map of white tokens; None for the identity.

    A root of S stands on the token side of every factor but the first. The factor of the logits goes with the last one.
    """
    (rows, dim), covariance, logit_factor = factors[-1].shape[-2:], group["covariance"], group["logit_factor"]
    if logit_factor is None:
        logit_factor = rows**-0.5 if group["structure"] == "fused" else 1.0
    if covariance is None and logit_factor == 1.0:
        return [None] * len(factors)
    root = torch.eye(dim, dtype=torch.float64, device=factors[0].device)
    if covariance is not None:
        root = covariance_root(covariance.to(root))
    return [None, *[root] * (len(factors) - 2), logit_factor * root]


def _check_chain(chain: Sequence[Tensor], group: dict[str, Any]) -> None:
    names = _NAMES[group["structure"]]
    shapes = ", ".join(f"{name} {tuple(param.shape)}" for name, param in zip(names, chain, strict=True))
    if any(param.ndim != 2 for param in chain):
        raise ValueError(f"{shapes}: factors must be matrices")
    output, *inputs = chain
    rows, dim = output.shape[1], inputs[-1].shape[1]
    fits = inputs[0].shape[0] == (3 * rows if group["structure"] == "fused" else rows)
    if group["structure"] == "attention":
        fits = fits and inputs[1].shape == inputs[2].shape and inputs[0].shape[1] == dim
    if not fits:
        wanted = {
            "attention": "(out, r), (r, d), (s, d), (s, d)",
            "fused": "(out, r), (3 r, d)",
            "pair": "(out, r), (r, d)",
        }[group["structure"]]
        raise ValueError(f"{shapes} do not chain, shapes must be {wanted}")
    if rows % group["heads"] or (group["structure"] == "attention" and inputs[2].shape[0] % group["heads"]):
        raise ValueError(f"{shapes} cannot be split into heads={group['heads']}")
    if group["covariance"] is not None and group["covariance"].shape != (dim, dim):
        raise ValueError(
            f"covariance of shape {tuple(group['covariance'].shape)} must have shape {(dim, dim)} for {shapes}"
        )


def covariance_root(covariance: Tensor) -> Tensor:
    """Cholesky's root: steps do not depend on which root it is."""
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(covariance)
    # rounding may lift a zero eigenvalue to where the decomposition succeeds
    if failed.item() or not root.diagonal().min() ** 2 > 1e-13 * covariance.diagonal().max():
        raise ValueError("covariance is singular or indefinite, all its eigenvalues must be positive")
    return root


def precondition(factors: Sequence[Tensor], gradients: Sequence[Tensor], bases: Bases, damping: float) -> list[Tensor]:
    """Directions D of the factors W."""
    inverses = [None if basis is None else torch.linalg.inv(basis) for basis in bases]
    transposed = [None if inverse is None else inverse.mT for inverse in inverses]
    product, pulls = _transpose_key(_multiply(factors, bases)), _transpose_key(_multiply(gradients, transposed))
    return _multiply(_transpose_key(precondition_by_grams(product, pulls, damping)), inverses)


def precondition_by_grams(factors: Sequence[Tensor], gradients: Sequence[Tensor], damping: float) -> list[Tensor]:
    """(L^T L + lam)^(-1) G (R R^T + lam)^(-1) for each factor F (..., a, b) of a product L F R.

    Without damping this is L^+ E R^+ where G = L^T E R^T: the least step that moves the product by E, as far as F can.
    """
    lefts: list[Tensor | None] = [None]  # L^T L, None where nothing stands left
    for factor in factors[:-1]:
        lefts.append(_gram(factor.mT, lefts[-1]))
    rights: list[Tensor | None] = [None]  # R R^T, from the last factor to the first
    for factor in reversed(factors[1:]):
        rights.append(_gram(factor, rights[-1]))
    steps = []
    for left, gradient, right in zip(lefts, gradients, reversed(rights), strict=True):
        step = gradient if left is None else _damped_inverse(left, damping) @ gradient
        steps.append(step if right is None else step @ _damped_inverse(right, damping))
    return steps


def limit_to_trust(factors: Sequence[Tensor], steps: Sequence[Tensor], bases: Bases, trust: float) -> list[Tensor]:
    """Steps shortened, head by head, until together they move the product by no more than `trust` of its Euclidean norm.

    The norms are those on white tokens, which depend on neither the coordinates of the tokens nor the share of each factor. A
    product of zero, as at the start of a LoRA pair, has no norm to compare with and is left alone.
    """
    chain, moves = _transpose_key(_multiply(factors, bases)), _transpose_key(_multiply(steps, bases))
    size = torch.linalg.matrix_norm(reduce(matmul, chain), keepdim=True)
    replaced = [reduce(matmul, [*chain[:i], move, *chain[i + 1 :]]) for i, move in enumerate(moves)]
    moved = sum(torch.linalg.matrix_norm(product, keepdim=True) for product in replaced)
    scale = torch.where((size > 0.0) & (moved > trust * size), trust * size / moved, 1.0)
    return [step * scale for step in steps]


def _gram(factor: Tensor, inner: Tensor | None) -> Tensor:
    return factor @ factor.mT if inner is None else factor @ inner @ factor.mT


def _damped_inverse(gram: Tensor, damping: float) -> Tensor:
    """Zero for a zero matrix: the gradient that it multiplies is zero as well, as in the first step on a LoRA pair."""
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0.0)
    damped = values + damping * values[..., -1:]
    inverse = torch.where(damped > 0.0, 1.0 / damped, 0.0)
    result: Tensor = (vectors * inverse.unsqueeze(-2)) @ vectors.mT
    return result


def _multiply(factors: Sequence[Tensor], bases: Bases) -> list[Tensor]:
    return [factor if basis is None else factor @ basis for factor, basis in zip(factors, bases, strict=True)]


def _transpose_key(factors: Sequence[Tensor]) -> list[Tensor]:
    return [factor.mT if index == _KEY else factor for index, factor in enumerate(factors)]
