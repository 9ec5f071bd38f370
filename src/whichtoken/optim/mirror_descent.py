"""l_p mirror descent as a torch optimiser."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.optim.optimizer import Optimizer, ParamsT

from whichtoken.errors import UsageError
from whichtoken.optim.mirror_kernels import mirror_step, power_sum
from whichtoken.optim.parameter_checks import check_dense, check_dtype

_OPTIONS: dict[str, Any] = {
    "normalized": False,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "maximize": False,
    "error_if_nonfinite": False,
}
_PIECE = 2**18  # entries for one call of a compiled kernel: about a millisecond, worth a thread


class MirrorDescent(Optimizer):
    """Mirror descent with the potential (1/p) sum |W|^p, entry by entry.

    G <- gradient + weight_decay * W, then G <- momentum * (previous G) + G, then G <- G / |G|_q if normalized
    U <- U - lr * G
    W <- sign(U) |U|^(1/(p-1))

    The dual variable U = sign(W) |W|^(p-1) is the state: in float32 with p near 1, W = U^(1/(p-1)) is zero long before U
    is, and a U derived from W in every step would never leave zero. U is kept wherever W still is its image and derived
    anew where it is not, so that clamping, pruning or loading weights between steps has its effect on the entries it
    changed, and on no others. For p = 2, U is W and the steps are those of `torch.optim.SGD`.

    Algorithm of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581. On the CPU a step is one compiled pass; elsewhere it is
    made of torch operations on all tensors of a group together.

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
        torch, with a warning for p other than 2.

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
    ) -> None:
        defaults = {
            "lr": lr,
            "p": p,
            "normalized": normalized,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "error_if_nonfinite": error_if_nonfinite,
        }
        _check_options(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own options."""
        super().add_param_group(param_group)
        try:
            _check_options(self.param_groups[-1])
            for index, param in enumerate(self.param_groups[-1]["params"]):
                check_dtype("MirrorDescent", self._name(-1, index), param)
                _check_range(self.param_groups[-1], self._name(-1, index), param)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for option, default in _OPTIONS.items():
                group.setdefault(option, default)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; `closure`, if given, evaluates the loss once before that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number in range(len(self.param_groups)):  # all checks come before the first move
            self._check_gradients(number)
        lost = [
            self._sentence(number, param, *counts)
            for number, group in enumerate(self.param_groups)
            for params in _batches(group["params"])
            for param, counts in zip(params, self._move(params, group), strict=True)
            if any(counts)
        ]
        if lost:
            _complain(lost)
        return loss

    def _name(self, group: int, index: int) -> str:
        names = self.param_groups[group].get("param_names")
        return names[index] if names else f"{index} of group {group % len(self.param_groups)}"

    def _check_gradients(self, number: int) -> None:
        group, nonfinite = self.param_groups[number], []
        for index, param in enumerate(group["params"]):
            if param.grad is None or param.numel() == 0:
                continue
            check_dtype("MirrorDescent", self._name(number, index), param)
            _check_range(group, self._name(number, index), param)
            check_dense("MirrorDescent", self._name(number, index), param.grad)
            if group["error_if_nonfinite"] and not torch.linalg.vector_norm(param.grad, math.inf).isfinite():
                nonfinite.append(self._name(number, index))
        if nonfinite:
            raise ValueError(
                f"The gradient of parameter {', '.join(nonfinite)} is non-finite, so nothing was moved; to step anyway, "
                "set error_if_nonfinite=False"
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
        if group["normalized"]:
            directions = _normalized(directions, p / (p - 1.0))
        if p == 2.0:
            for param in params:
                self.state.get(param, {}).pop("dual", None)
            torch._foreach_add_(params, directions, alpha=-lr)
            return [(0, 0)] * len(params)
        duals = [self._dual(param) for param in params]
        if not _compiled(*params, *directions, *duals):
            return _foreach_mirror_step(params, directions, duals, p, lr)
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
        if group["momentum"] == 0:
            return directions
        for param in params:
            if "momentum_buffer" not in self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        buffers: list[Tensor] = [self.state[param]["momentum_buffer"] for param in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, directions)
        return buffers

    def _dual(self, param: Tensor) -> Tensor:
        """The stored dual variable; a zero one to begin with, which the step replaces because W is not its image."""
        state = self.state[param]
        dual = state["dual"].to(param) if "dual" in state else torch.zeros_like(param)
        if dual.shape != param.shape:
            raise ValueError(
                f"dual of shape {tuple(dual.shape)} does not fit a parameter of shape {tuple(param.shape)}"
            )
        state["dual"] = dual
        return dual


def _check_options(options: dict[str, Any]) -> None:
    lr, p = options["lr"], options["p"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0.0 <= float(lr) < math.inf:
        raise ValueError(f"Invalid learning rate: {lr}, must be finite and not negative")
    if not 1.0 < p < math.inf:
        raise ValueError(f"Invalid p value: {p}, must be finite and greater than 1")
    for option in ("momentum", "weight_decay"):
        if not 0.0 <= options[option] < math.inf:
            raise ValueError(f"Invalid {option} value: {options[option]}, must be finite and not negative")


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
    warnings.warn(sentence, RuntimeWarning, stacklevel=5)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _batches(params: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors that move together: all of one device and dtype, but single ones on the CPU, to save temporary memory."""
    batches: dict[Any, list[Tensor]] = {}
    for index, param in enumerate(params):
        if param.grad is not None and param.numel() > 0:
            alone = index if param.device.type == "cpu" else None
            batches.setdefault((param.device, param.dtype, alone), []).append(param)
    return list(batches.values())


def _normalized(directions: list[Tensor], q: float) -> list[Tensor]:
    """Each tensor over its l_q norm, a zero one as it is.

    The largest entry is divided out first: neither its powers nor the norm itself need to fit into the dtype.
    """
    if _compiled(*directions):
        return [_unit(direction, q) for direction in directions]
    peaks = [torch.where(peak == 0, 1.0, peak) for peak in torch._foreach_norm(directions, math.inf)]
    units = list(torch._foreach_div(directions, peaks))
    sums = [power.sum(dtype=torch.float64) for power in _foreach_signed_power(torch._foreach_abs(units), q)]
    torch._foreach_div_(units, [torch.where(total == 0, 1.0, total ** (1.0 / q)).to(units[0]) for total in sums])
    return units


def _unit(direction: Tensor, q: float) -> Tensor:
    peak = torch.linalg.vector_norm(direction, math.inf).item() or 1.0
    unit = direction / peak
    size = sum(_in_pieces(lambda values: power_sum(values, q), unit)) ** (1.0 / q) or 1.0
    return unit.div_(size)


def _foreach_mirror_step(
    weights: list[Tensor], directions: list[Tensor], duals: list[Tensor], p: float, lr: float
) -> list[tuple[int, int]]:
    """What `mirror_kernels.mirror_step` does, in torch operations on whole lists."""
    images = _foreach_signed_power(duals, 1 / (p - 1))
    starts = duals
    if not torch.stack([(image == weight).all() for image, weight in zip(images, weights, strict=True)]).all():
        starts = []
        for dual, new, image, weight in zip(duals, _foreach_signed_power(weights, p - 1), images, weights, strict=True):
            tiny = torch.finfo(image.dtype).tiny
            underflow = (weight.abs() < tiny) & (image.abs() < tiny)
            starts.append(torch.where((image == weight) | underflow, dual, new))
    moved = list(torch._foreach_add(starts, directions, alpha=-lr))
    images = _foreach_signed_power(moved, 1 / (p - 1))
    counts = [(0, 0)] * len(weights)
    if not torch.stack([image.isfinite().all() for image in images]).all():
        for index, (image, weight, given) in enumerate(zip(images, weights, directions, strict=True)):
            lost, given_finite = weight.isfinite() & ~image.isfinite(), given.isfinite()
            stay = lost & given_finite
            counts[index] = int(stay.sum()), int((lost & ~given_finite).sum())
            images[index] = torch.where(stay, weight, image)
            moved[index] = torch.where(stay, duals[index], moved[index])
    torch._foreach_copy_(duals, moved)
    torch._foreach_copy_(weights, images)
    return counts


def _foreach_signed_power(values: list[Tensor] | tuple[Tensor, ...], exponent: float) -> list[Tensor]:
    """sign(v) |v|^exponent of each tensor; multiplications and a root where they suffice."""
    powers, factors = list(torch._foreach_sign(values)), list(torch._foreach_abs(values))
    doubled = round(2 * exponent)
    if math.isclose(2 * exponent, doubled, rel_tol=1e-12):
        if doubled % 2 == 1:
            torch._foreach_mul_(powers, torch._foreach_sqrt(factors))
        whole = doubled // 2
        while whole > 0:
            if whole % 2 == 1:
                torch._foreach_mul_(powers, factors)
            whole //= 2
            if whole > 0:
                torch._foreach_mul_(factors, factors)
    else:
        torch._foreach_pow_(factors, exponent)
        torch._foreach_mul_(powers, factors)
    return powers


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
