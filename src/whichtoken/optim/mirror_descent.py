"""l_p mirror descent as a torch optimiser."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.optim.optimizer import ParamsT

from whichtoken.errors import UsageError
from whichtoken.optim.checked import CheckedOptimizer, check_heads, check_rates, nonfinite
from whichtoken.optim.foreach_mirror import foreach_mirror_step, foreach_signed_power
from whichtoken.optim.mirror_kernels import mirror_step, power_sum
from whichtoken.optim.parameter_checks import check_dense, check_dtype
from whichtoken.optim.spectral_mirror import spectral_mirror_step, stacked, unit_directions, unstacked

_NORMS = ("entrywise", "schatten")
_PIECE = 2**18  # entries for one call of a compiled kernel: about a millisecond, worth a thread


class MirrorDescent(CheckedOptimizer):
    """Mirror descent with the potential (1/p) sum |W|^p over the entries of W, or over its singular values.

    G <- gradient + weight_decay * W, then G <- momentum * (previous G) + G, then G <- G / |G|_q if normalized
    U <- U - lr * G
    W <- sign(U) |U|^(1/(p-1))

    The dual variable U = sign(W) |W|^(p-1) is the state: in float32 with p near 1, W = U^(1/(p-1)) is zero long before U
    is, and a U derived from W in every step would never leave zero. U is kept wherever W still is its image and derived
    anew where it is not, so that clamping, pruning or loading weights between steps has its effect on the entries it
    changed, and on no others. For p = 2, U is W and the steps are those of `torch.optim.SGD`.

    With `norm="schatten"` the powers are those of singular values: W = A s B^T has U = A s^(p-1) B^T. There a change from
    outside concerns the whole matrix, and a step costs a singular value decomposition.

    Algorithm of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581. On the CPU an entrywise step is one compiled pass;
    elsewhere it is made of torch operations on all tensors of a group together. Matrices of one shape are decomposed
    together.

    Parameters
    ----------
    params : iterable of tensors or dicts
        Tensors, named tensors or groups of them as dicts, each with its own options if needed (a small p for the key
        and query weights alone, say). float32 or float64.
    lr : float or Tensor
        Step size of U; a number or a tensor of one entry.
    p : float, default=2.0
        Exponent of the geometry, above 1. The nearer to 1, the sparser the weights, and the smaller lr has to be: a
        dual entry of 100 is a weight of 10^20 at p = 1.1. What would leave the range of the dtype stays where it is,
        and the step ends with an error. 1/(p-1) integer or half-integer (p = 1.1, 1.25, 1.5, 3) is the fastest.
    normalized : bool, default=False
        Divide the G of each tensor by its own dual norm, q = p / (p - 1), so that every step has length lr.
    momentum, weight_decay : float
        As in `torch.optim.SGD`. `OneCycleLR` and `CyclicLR` with their defaults switch momentum on, which makes steps
        up to twenty times as long: pass them cycle_momentum=False or a smaller max_lr.
    maximize : bool, default=False
        As in `torch.optim.SGD`.
    error_if_nonfinite : bool, default=False
        Refuse to step, naming the parameters, if a gradient holds NaN or infinity. Otherwise such a step is made, as in
        torch, with a warning for p other than 2; matrices with `norm="schatten"` always refuse it.
    norm : {"entrywise", "schatten"}, default="entrywise"
        `schatten` is for matrices, (..., rows, columns): p near 1 goes towards low rank, large p towards equal singular
        values. In the limit attention then maximises its margin in that norm
        (`margin.key_query_svm` with the same p and norm).
    heads : int, default=1
        With `norm="schatten"`, split the rows into so many matrices, each with singular values and a norm of its own.

    Examples
    --------
    >>> import torch
    >>> from whichtoken.optim import MirrorDescent
    >>> weights = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = MirrorDescent([weights], lr=0.1, p=2.0)
    >>> weights.square().sum().backward()
    >>> optimizer.step()
    >>> [round(entry, 4) for entry in weights.tolist()]  # p = 2 is gradient descent
    [0.8, -1.6]
    """

    later_options: ClassVar[dict[str, Any]] = {
        "normalized": False,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "maximize": False,
        "error_if_nonfinite": False,
        "norm": "entrywise",
        "heads": 1,
    }

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        p: float = 2.0,
        normalized: bool = False,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        error_if_nonfinite: bool = False,
        norm: Literal["entrywise", "schatten"] = "entrywise",
        heads: int = 1,
    ) -> None:
        defaults = {
            "lr": lr,
            "p": p,
            "normalized": normalized,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "error_if_nonfinite": error_if_nonfinite,
            "norm": norm,
            "heads": heads,
        }
        super().__init__(params, defaults)

    def _check_options(self, options: dict[str, Any]) -> None:
        check_rates(options, "momentum", "weight_decay")
        check_heads(options)
        if not 1.0 < options["p"] < math.inf:
            raise ValueError(f"Invalid p value: {options['p']}, must be finite and greater than 1")
        if options["norm"] not in _NORMS:
            raise ValueError(f"Invalid norm value: {options['norm']!r}, must be one of {', '.join(_NORMS)}")
        if options["heads"] > 1 and options["norm"] == "entrywise":
            raise ValueError(
                f"Invalid heads value: {options['heads']}, must be 1 unless norm='schatten', where heads matter"
            )

    def _check_group(self, number: int) -> None:
        group = self.param_groups[number]
        for index, param in enumerate(group["params"]):
            _check_range(group, self._name(number, index), param)
            _check_shape(group, self._name(number, index), param)

    def _move_all(self) -> None:
        lost = [
            self._sentence(number, param, *counts)
            for number, group in enumerate(self.param_groups)
            for params in _batches(group["params"], alone=group["norm"] == "entrywise")
            for param, counts in zip(params, self._move(params, group), strict=True)
            if any(counts)
        ]
        if lost:
            _complain(lost)

    def _check_gradients(self, number: int) -> None:
        group, refused = self.param_groups[number], []
        strict = group["error_if_nonfinite"] or _spectral(group)
        for index, param in enumerate(group["params"]):
            if param.grad is None or param.numel() == 0:
                continue
            name = self._name(number, index)
            check_dtype("MirrorDescent", name, param)
            check_dense("MirrorDescent", name, param.grad)
            _check_range(group, name, param)
            _check_shape(group, name, param)
            if _spectral(group) and nonfinite(param):
                raise ValueError(
                    f"Parameter {name} holds NaN or infinity, so nothing was moved; singular values need finite entries"
                )
            if strict and nonfinite(param.grad):
                refused.append(name)
        if refused:
            advice = (
                "singular values need finite entries"
                if _spectral(group)
                else "to step anyway, set error_if_nonfinite=False"
            )
            raise ValueError(
                f"The gradient of parameter {', '.join(refused)} is non-finite, so nothing was moved; {advice}"
            )

    def _sentence(self, number: int, param: Tensor, stayed: int, spoiled: int) -> tuple[bool, str]:
        """Whether it is an error, and what happened to the entries that a step could not move or has spoiled."""
        group = self.param_groups[number]
        index = next(index for index, other in enumerate(group["params"]) if other is param)
        name = self._name(number, index)
        if not stayed:
            return False, (
                f"The gradient of parameter {name} is non-finite, and now so is the weight of {_entries(spoiled)}; a smaller "
                "lr may prevent it, and error_if_nonfinite=True stops before such a step"
            )
        momentum = f", momentum={group['momentum']:.4g}" if group["momentum"] else ""
        return True, (
            f"{_entries(stayed)} of parameter {name} would leave the range of {param.dtype} at p={group['p']}, "
            f"lr={float(group['lr']):.4g}{momentum} and did not move; lower lr or momentum (OneCycleLR and CyclicLR set "
            "both), clip the gradients or set normalized=True, or choose p nearer to 2"
        )

    def _move(self, params: list[Tensor], group: dict[str, Any]) -> list[tuple[int, int]]:
        """Move tensors that belong together; for each, how many entries stayed and how many are non-finite now."""
        p, lr = float(group["p"]), float(group["lr"])
        directions = self._directions(params, group)
        if group["normalized"] and group["norm"] == "schatten":
            directions = unstacked(unit_directions(stacked(directions, group["heads"]), p / (p - 1.0)), params)
        elif group["normalized"]:
            directions = _normalized(directions, p / (p - 1.0))
        if not _spectral(group):
            self._forget(params, "image", "geometry")
        if p == 2.0:
            self._forget(params, "dual")
            torch._foreach_add_(params, directions, alpha=-lr)
            return [(0, 0)] * len(params)
        if _spectral(group):
            return self._move_matrices(params, directions, group)
        duals = [self._tensor("dual", param) for param in params]
        if not _compiled(*params, *directions, *duals):
            return foreach_mirror_step(params, directions, duals, p, lr)
        counts = []
        for weights, direction, dual in zip(params, directions, duals, strict=True):
            pieces = _in_pieces(lambda w, g, u: mirror_step(w, g, u, p, lr), weights, direction, dual)
            counts.append((sum(stayed for stayed, _ in pieces), sum(spoiled for _, spoiled in pieces)))
            increment_version(weights)  # autograd has not seen the kernel write
        return counts

    def _directions(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """G of each tensor before normalisation, rounded as `torch.optim.SGD` rounds it."""
        decay = group["weight_decay"]
        directions = [param.grad for param in params if param.grad is not None]
        if group["maximize"]:
            directions = list(torch._foreach_neg(directions))
        if decay != 0 and group["maximize"]:
            torch._foreach_add_(directions, params, alpha=decay)
        elif decay != 0:
            directions = list(torch._foreach_add(directions, params, alpha=decay))
        return self._with_momentum(params, directions, group["momentum"])

    def _move_matrices(
        self, params: list[Tensor], directions: list[Tensor], group: dict[str, Any]
    ) -> list[tuple[int, int]]:
        """The same for matrices of one shape.

        To see whether W still is the image of U would take another decomposition, so the image is kept as well.
        """
        p, heads = float(group["p"]), group["heads"]
        self._forget([param for param in params if self.state[param].get("geometry") != (p, heads)], "dual", "image")
        for param in params:
            self.state[param]["geometry"] = p, heads
        duals, images = ([self._tensor(name, param) for param in params] for name in ("dual", "image"))
        weights, direction, dual, image = (stacked(kind, heads) for kind in (params, directions, duals, images))
        weights, dual, stayed = spectral_mirror_step(weights, direction, dual, image, p, float(group["lr"]))
        moved = unstacked(weights, params)
        torch._foreach_copy_(duals, unstacked(dual, params))
        torch._foreach_copy_(images, moved)
        torch._foreach_copy_(params, moved)
        each = params[0].numel() * len(params) // len(stayed)
        return [(int(flags.sum()) * each, 0) for flags in stayed.chunk(len(params))]

    def _forget(self, params: list[Tensor], *names: str) -> None:
        for param in params:
            for name in names:
                self.state.get(param, {}).pop(name, None)

    def _tensor(self, name: str, param: Tensor) -> Tensor:
        """A stored tensor; a zero one to begin with, of which W is not the image, so that the step derives U from W."""
        state = self.state[param]
        tensor = state[name].to(param) if name in state else torch.zeros_like(param)
        if tensor.shape != param.shape:
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} does not fit a parameter of shape {tuple(param.shape)}"
            )
        state[name] = tensor
        return tensor


def _spectral(group: dict[str, Any]) -> bool:
    """Whether steps decompose matrices; for p = 2 both norms have the same."""
    return bool(group["norm"] == "schatten" and group["p"] != 2.0)


def _check_shape(options: dict[str, Any], name: str, param: Tensor) -> None:
    """Refuse what has no singular values, or no such heads."""
    if options["norm"] != "schatten" or param.numel() == 0:
        return
    if param.dim() < 2:
        raise ValueError(
            f"norm='schatten' is for matrices, but parameter {name} has shape {tuple(param.shape)}; put it into a group "
            "with norm='entrywise'"
        )
    if param.shape[-2] % options["heads"]:
        raise ValueError(
            f"Parameter {name} of shape {tuple(param.shape)} cannot be split into heads={options['heads']}"
        )


def _check_range(options: dict[str, Any], name: str, param: Tensor) -> None:
    """Refuse an exponent whose maps the dtype cannot hold: |w|^(p-1) at 2 or 1/2, or its inverse to two digits."""
    p, limits = float(options["p"]), torch.finfo(param.dtype)
    least, most = 1 + 100 * limits.eps, 1 - math.log2(limits.tiny)
    if not least <= p <= most:
        raise ValueError(
            f"Invalid p value: {p}, must lie between 1 + {least - 1:.2g} and {most:.0f} in {param.dtype}, the dtype of "
            f"parameter {name}; {'use float64 or ' if param.dtype == torch.float32 else ''}choose p nearer to 2"
        )


def _complain(sentences: list[tuple[bool, str]]) -> None:
    """Errors first, after all parameters have had their step."""
    is_error, sentence = max(sentences, key=lambda item: item[0])
    if is_error:
        raise UsageError(sentence)
    warnings.warn(sentence, RuntimeWarning, stacklevel=6)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _batches(params: Sequence[Tensor], alone: bool) -> list[list[Tensor]]:
    """Tensors that move together: all of one device and dtype, but single ones on the CPU, to save temporary memory.

    Matrices that do not stay alone have one shape.
    """
    batches: dict[Any, list[Tensor]] = {}
    for index, param in enumerate(params):
        if param.grad is not None and param.numel() > 0:
            with_others = (index if param.device.type == "cpu" else None) if alone else param.shape
            batches.setdefault((param.device, param.dtype, with_others), []).append(param)
    return list(batches.values())


def _normalized(directions: list[Tensor], q: float) -> list[Tensor]:
    """Each tensor over its l_q norm, a zero one as it is.

    The largest entry is divided out first: neither its powers nor the norm itself need to fit into the dtype.
    """
    if _compiled(*directions):
        return [_unit(direction, q) for direction in directions]
    peaks = [torch.where(peak == 0, 1.0, peak) for peak in torch._foreach_norm(directions, math.inf)]
    units = list(torch._foreach_div(directions, peaks))
    sums = [power.sum(dtype=torch.float64) for power in foreach_signed_power(torch._foreach_abs(units), q)]
    torch._foreach_div_(units, [torch.where(total == 0, 1.0, total ** (1.0 / q)).to(units[0]) for total in sums])
    return units


def _unit(direction: Tensor, q: float) -> Tensor:
    peak = torch.linalg.vector_norm(direction, math.inf).item() or 1.0
    unit = direction / peak
    size = sum(_in_pieces(lambda values: power_sum(values, q), unit)) ** (1.0 / q) or 1.0
    return unit.div_(size)


def _compiled(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these tensors in place."""
    return all(
        type(tensor) in (Tensor, Parameter)  # subclasses, say of distributed training, may keep their numbers elsewhere
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_neg()
        for tensor in tensors
    )


def _in_pieces(kernel: Callable[..., Any], *tensors: Tensor) -> list[Any]:
    """Call a kernel on pieces of tensors of one shape, in as many threads as torch uses.

    The pieces do not depend on the number of threads, so neither do the results.
    """
    arrays = [tensor.detach().view(-1).numpy() for tensor in tensors]
    pieces = [[array[start : start + _PIECE] for array in arrays] for start in range(0, arrays[0].size, _PIECE)]
    threads = min(torch.get_num_threads(), len(pieces))
    if threads == 1:
        return [kernel(*piece) for piece in pieces]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda piece: kernel(*piece), pieces))
