"""l_p mirror descent as a torch optimizer.

On the CPU an entrywise step is one compiled pass over memory with no temporary beyond a cache-sized block (`mirror_step`). Every
entry is computed from itself alone by the same instructions, so the result does not depend on how an array is cut into pieces,
and an image under the power map can be compared with `==`. Elsewhere a step is made of torch operations on whole lists
(`foreach_mirror_step`); in the Schatten norm, of singular value decompositions (`spectral_mirror_step`).

W are the weights, U = sign(W) |W|^(p-1) the dual variable, G the direction of a step, q = p / (p - 1).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numba import njit
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.optim.optimizer import ParamsT

from whichtoken.errors import UsageError
from whichtoken.optim.checked import CheckedOptimizer, check_dense, check_dtype, check_heads, check_rates, nonfinite

_NORMS = ("entrywise", "schatten")
_PIECE = 2**18  # entries for one call of a compiled kernel: about a millisecond, worth a thread
_BLOCK = 1024  # entries at a time: a block and its scratch space stay in the first-level cache
_MANTISSA_BITS = np.int32(23)  # of a float32
_EXPONENT_BIAS = np.int32(127)
_SQRT_HALF_BITS = np.float32(math.sqrt(0.5)).view(np.int32)
_ROUNDER = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the lowest bits
_ONE, _INFINITY, _SMALLEST_NORMAL = np.float32(1.0), np.float32(math.inf), np.float32(2.0**-126)
_LOWEST, _HIGHEST = np.float32(-127.0), np.float32(128.0)  # these powers of two are stored as zero and infinity


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
        values. In the limit attention then maximizes its margin in that norm
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
        "normalized": False, "momentum": 0.0, "weight_decay": 0.0, "maximize": False, "error_if_nonfinite": False,
        "norm": "entrywise", "heads": 1,
    }  # fmt: skip

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
            "lr": lr, "p": p, "normalized": normalized, "momentum": momentum, "weight_decay": weight_decay,
            "maximize": maximize, "error_if_nonfinite": error_if_nonfinite, "norm": norm, "heads": heads,
        }  # fmt: skip
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
            _report(lost)

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
            advice = "to step anyway, set error_if_nonfinite=False"
            if _spectral(group):
                advice = "singular values need finite entries"
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
            directions = unstack_heads(unit_directions(stack_heads(directions, group["heads"]), p / (p - 1.0)), params)
        elif group["normalized"]:
            directions = _normalize(directions, p / (p - 1.0))
        if not _spectral(group):
            self._forget(params, "image", "geometry")
        if p == 2.0:
            self._forget(params, "dual")
            torch._foreach_add_(params, directions, alpha=-lr)
            return [(0, 0)] * len(params)
        if _spectral(group):
            return self._move_matrices(params, directions, group)
        duals = [self._tensor("dual", param) for param in params]
        if not _is_plain_cpu(*params, *directions, *duals):
            return foreach_mirror_step(params, directions, duals, p, lr)
        counts = []
        for weights, direction, dual in zip(params, directions, duals, strict=True):
            pieces = _map_pieces(lambda w, g, u: mirror_step(w, g, u, p, lr), weights, direction, dual)
            counts.append((sum(stayed for stayed, _ in pieces), sum(spoiled for _, spoiled in pieces)))
            increment_version(weights)  # autograd has not seen the kernel write
        return counts

    def _directions(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """G of each tensor before normalization, rounded as `torch.optim.SGD` rounds it."""
        decay = group["weight_decay"]
        directions = [param.grad for param in params if param.grad is not None]
        if group["maximize"]:
            directions = list(torch._foreach_neg(directions))
        if decay != 0 and group["maximize"]:
            torch._foreach_add_(directions, params, alpha=decay)
        elif decay != 0:
            directions = list(torch._foreach_add(directions, params, alpha=decay))
        return self._add_momentum(params, directions, group["momentum"])

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
        weights, direction, dual, image = (stack_heads(kind, heads) for kind in (params, directions, duals, images))
        weights, dual, stayed = spectral_mirror_step(weights, direction, dual, image, p, float(group["lr"]))
        moved = unstack_heads(weights, params)
        torch._foreach_copy_(duals, unstack_heads(dual, params))
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


def _report(sentences: list[tuple[bool, str]]) -> None:
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


def _normalize(directions: list[Tensor], q: float) -> list[Tensor]:
    """Each tensor over its l_q norm, a zero one as it is.

    The largest entry is divided out first: neither its powers nor the norm itself need to fit into the dtype.
    """
    if _is_plain_cpu(*directions):
        return [_unit(direction, q) for direction in directions]
    peaks = [torch.where(peak == 0, 1.0, peak) for peak in torch._foreach_norm(directions, math.inf)]
    units = list(torch._foreach_div(directions, peaks))
    sums = [power.sum(dtype=torch.float64) for power in foreach_signed_power(torch._foreach_abs(units), q)]
    torch._foreach_div_(units, [torch.where(total == 0, 1.0, total ** (1.0 / q)).to(units[0]) for total in sums])
    return units


def _unit(direction: Tensor, q: float) -> Tensor:
    peak = torch.linalg.vector_norm(direction, math.inf).item() or 1.0
    unit = direction / peak
    size = sum(_map_pieces(lambda values: power_sum(values, q), unit)) ** (1.0 / q) or 1.0
    return unit.div_(size)


def _is_plain_cpu(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these tensors in place."""
    return all(
        type(tensor) in (Tensor, Parameter)  # subclasses, say of distributed training, may keep their numbers elsewhere
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_neg()
        for tensor in tensors
    )


def _map_pieces(kernel: Callable[..., Any], *tensors: Tensor) -> list[Any]:
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


def matched_lr(weights: Tensor | Iterable[Tensor], lr: float, p: float) -> float:
    """The step size at which `MirrorDescent` with exponent p moves a typical weight as far as p = 2 does with `lr`.

    A dual step of size eta g moves a weight w by eta g |w|^(2-p) / (p-1), to first order; at the root mean square s of the
    weights this equals the step lr g of gradient descent for eta = lr (p-1) s^(p-2). So p can be changed alone, and runs
    with different p can be compared.

    Parameters
    ----------
    weights : tensor or tensors
        What the optimizer will train, at its start.
    lr : float
        Step size that suits plain gradient descent.
    p : float
        Exponent of the geometry, above 1.

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from whichtoken.optim import matched_lr
    >>> weights = torch.full((4, 4), 0.1)
    >>> matched_lr(weights, lr=0.3, p=2.0)
    0.3
    >>> round(matched_lr(weights, lr=0.3, p=1.1), 4)
    0.2383
    """
    if not 1 < p < math.inf:
        raise UsageError(f"p={p} must be a finite number above 1")
    if not 0 < lr < math.inf:
        raise UsageError(f"lr={lr} must be a positive number")
    tensors = [weights] if isinstance(weights, Tensor) else list(weights)
    count = sum(tensor.numel() for tensor in tensors)
    if not count:
        raise UsageError("weights must hold at least one number")
    square = sum(float(torch.sum(tensor.detach().double() ** 2)) for tensor in tensors) / count
    if not 0 < square < math.inf:
        raise UsageError("weights must be finite and not all zero: their typical size sets the step")
    return lr if p == 2 else lr * (p - 1) * math.sqrt(square) ** (p - 2)


def foreach_mirror_step(
    weights: list[Tensor], directions: list[Tensor], duals: list[Tensor], p: float, lr: float
) -> list[tuple[int, int]]:
    """What `mirror_step` does, in torch operations on whole lists."""
    images = foreach_signed_power(duals, 1 / (p - 1))
    starts = duals
    if not torch.stack([(image == weight).all() for image, weight in zip(images, weights, strict=True)]).all():
        starts = []
        for dual, new, image, weight in zip(duals, foreach_signed_power(weights, p - 1), images, weights, strict=True):
            tiny = torch.finfo(image.dtype).tiny
            underflow = (weight.abs() < tiny) & (image.abs() < tiny)
            starts.append(torch.where((image == weight) | underflow, dual, new))
    moved = list(torch._foreach_add(starts, directions, alpha=-lr))
    images = foreach_signed_power(moved, 1 / (p - 1))
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


def foreach_signed_power(values: list[Tensor] | tuple[Tensor, ...], exponent: float) -> list[Tensor]:
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


def stack_heads(tensors: Sequence[Tensor], heads: int) -> Tensor:
    """All heads of all tensors, which have one shape, (tensors * ... * heads, rows / heads, columns)."""
    rows, columns = tensors[0].shape[-2:]
    return torch.cat([tensor.reshape(-1, rows // heads, columns) for tensor in tensors])


def unstack_heads(matrices: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The heads back in the shapes of their tensors."""
    pieces = matrices.chunk(len(tensors))
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def spectral_power(matrices: Tensor, exponent: float) -> Tensor:
    """The same singular vectors, with singular values raised to a power."""
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    powers: Tensor = (left * values.pow(exponent).unsqueeze(-2)) @ right
    return powers


def unit_directions(matrices: Tensor, q: float) -> Tensor:
    """Each matrix over its Schatten-q norm, a zero one as it is; the largest entry is divided out first."""
    peaks = torch.linalg.vector_norm(matrices, torch.inf, dim=(-2, -1), keepdim=True)
    units = matrices / torch.where(peaks == 0, 1.0, peaks)
    sizes = torch.linalg.vector_norm(torch.linalg.svdvals(units), q, dim=-1)[..., None, None]
    return units / torch.where(sizes == 0, 1.0, sizes)


def spectral_mirror_step(
    weights: Tensor, direction: Tensor, dual: Tensor, image: Tensor, p: float, lr: float
) -> tuple[Tensor, Tensor, Tensor]:
    """U <- U - lr * direction and the W that belongs to it, for matrices (k, rows, columns).

    Where W is not `image`, what the last step made it, U is first derived from W. A matrix that would leave the range of
    the dtype stays as it was.

    Returns
    -------
    tuple of Tensor
        W, U, and which matrices stayed, (k,).
    """
    changed = (weights != image).any(dim=-1).any(dim=-1)
    start = dual
    if changed.any():
        start = dual.clone()
        start[changed] = spectral_power(weights[changed], p - 1)
    moved = start - lr * direction
    stayed = ~torch.isfinite(moved).flatten(1).all(dim=1)
    moved[stayed] = 0.0  # singular values of what is not finite do not exist
    result = spectral_power(moved, 1 / (p - 1))
    stayed |= ~torch.isfinite(result).flatten(1).all(dim=1)
    kept = stayed[:, None, None]
    return torch.where(kept, weights, result), torch.where(kept, start, moved), stayed


def _fit(function: Callable[[Any], Any], interval: tuple[float, float], degree: int) -> Iterator[np.float32]:
    """Coefficients of the polynomial through the Chebyshev points, ascending."""
    fitted = Chebyshev.interpolate(function, degree, interval).convert(kind=Polynomial, domain=(-1, 1), window=(-1, 1))
    return (np.float32(coefficient) for coefficient in fitted.coef)


# log2(m) = s (l_0 + l_1 s^2 + ...) with s = (m - 1) / (m + 1), and 2^r = e_0 + e_1 r + ..., both to 3e-9. One name per
# coefficient, because a loop over them would keep the compiler from vectorizing over the entries.
_L0, _L1, _L2, _L3 = _fit(lambda z: 2.0 / math.log(2.0) * np.arctanh(np.sqrt(z)) / np.sqrt(z), (1e-12, 0.0295), 3)
_E0, _E1, _E2, _E3, _E4, _E5, _E6 = _fit(np.exp2, (-0.5, 0.5), 6)


@njit(cache=True, nogil=True, error_model="numpy")
def mirror_step(
    weights: NDArray[Any], direction: NDArray[Any], dual: NDArray[Any], p: float, lr: float
) -> tuple[int, int]:
    """U <- U - lr * direction, W <- sign(U) |U|^(1/(p-1)), in place.

    Where W is not the image of U, U is first derived from W. An entry whose U or W would leave the range of the dtype stays
    as it was.

    Parameters
    ----------
    weights, direction, dual : (n,)
        Contiguous, all float32 or all float64.
    p, lr
        Exponent of the geometry and step size.

    Returns
    -------
    tuple of int
        How many entries stayed, and in how many a finite W became infinite or NaN because the direction is.
    """
    block = min(_BLOCK, dual.size)
    image, preimage, scratch = np.empty(block, dual.dtype), np.empty(block, dual.dtype), np.empty(block, dual.dtype)
    rate, tiny, zero = dual.dtype.type(lr), np.finfo(dual.dtype).tiny, dual.dtype.type(0.0)
    stayed, spoiled = 0, 0
    for start in range(0, dual.size, _BLOCK):
        w, g, u = weights[start : start + _BLOCK], direction[start : start + _BLOCK], dual[start : start + _BLOCK]
        _signed_power(u, 1.0 / (p - 1.0), image, scratch)
        changed = 0
        for j in range(u.size):
            changed += image[j] != w[j]
            preimage[j] = u[j]
        if changed > 0:
            _signed_power(w, p - 1.0, preimage, scratch)
            for j in range(u.size):
                # below the smallest normal number devices and operations round differently
                underflow = abs(w[j]) < tiny and abs(image[j]) < tiny
                preimage[j] = u[j] if image[j] == w[j] or underflow else preimage[j]
        for j in range(u.size):
            preimage[j] -= rate * g[j]
        _signed_power(preimage, 1.0 / (p - 1.0), image, scratch)
        lost = 0
        for j in range(u.size):
            lost += image[j] - image[j] != zero  # infinite or NaN
        if lost == 0:
            for j in range(u.size):
                w[j], u[j] = image[j], preimage[j]
        else:
            for j in range(u.size):
                finite = image[j] - image[j] == zero
                before, given = w[j] - w[j] == zero, g[j] - g[j] == zero
                stayed += before and given and not finite
                spoiled += before and not given and not finite
                if finite or not before or not given:
                    w[j], u[j] = image[j], preimage[j]
    return stayed, spoiled


@njit(cache=True, nogil=True, error_model="numpy")
def power_sum(values: NDArray[Any], exponent: float) -> float:
    """Sum of |v|^exponent in float64, values of shape (n,)."""
    block = min(_BLOCK, values.size)
    powers, scratch = np.empty(block, values.dtype), np.empty(block, values.dtype)
    total = 0.0
    for start in range(0, values.size, _BLOCK):
        v = values[start : start + _BLOCK]
        _signed_power(v, exponent, powers, scratch)
        for j in range(v.size):
            total += np.float64(abs(powers[j]))
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _signed_power(values: Any, exponent: float, out: Any, scratch: Any) -> None:
    """out = sign(v) |v|^exponent; multiplications and a root where they suffice."""
    doubled = round(2.0 * exponent)
    if abs(2.0 * exponent - doubled) <= 1e-12 * doubled:  # 1 / (1.1 - 1) is 10 up to rounding
        _repeated_squaring(values, doubled, out, scratch)
    elif values.itemsize == 4:
        _vectorized_power(values, exponent, out)
    else:
        for j in range(values.size):
            out[j] = math.copysign(abs(values[j]) ** exponent, values[j])


@njit(cache=True, nogil=True, error_model="numpy")
def _repeated_squaring(values: Any, doubled: int, out: Any, scratch: Any) -> None:
    """out = sign(v) |v|^(doubled / 2)."""
    one = out.dtype.type(1.0)
    for j in range(values.size):
        scratch[j] = abs(values[j])
        out[j] = one if values[j] >= 0 else -one
    if doubled % 2 == 1:
        for j in range(values.size):
            out[j] *= math.sqrt(scratch[j])
    whole = doubled // 2
    while whole > 0:
        if whole % 2 == 1:
            for j in range(values.size):
                out[j] *= scratch[j]
        whole //= 2
        if whole > 0:
            for j in range(values.size):
                scratch[j] *= scratch[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _vectorized_power(values: Any, exponent: float, out: Any) -> None:
    """out = sign(v) |v|^exponent for float32, eight entries at a time; relative error about (1 + exponent) 2^-24.

    |v| = 2^k m with m between sqrt(1/2) and sqrt(2). The exponent is split into `high` + `low` so that high * k is exact:
    otherwise its rounding error would be multiplied by log2 of the result.
    """
    mantissa, scale = math.frexp(exponent)
    high = np.float32(math.ldexp(round(math.ldexp(mantissa, 15)), scale - 15))
    low, full = np.float32(exponent - high), np.float32(exponent)
    for j in range(values.size):
        size = np.float32(abs(values[j]))
        bits = size.view(np.int32)
        binade = np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
        m = np.int32(bits - np.int32(binade << _MANTISSA_BITS)).view(np.float32)
        k = np.float32(binade)
        s = (m - _ONE) / (m + _ONE)
        z = s * s
        log = s * (((_L3 * z + _L2) * z + _L1) * z + _L0)
        target = full * (k + log)
        target = target if target > _LOWEST else _LOWEST
        target = target if target < _HIGHEST else _HIGHEST
        rounded = np.float32(target + _ROUNDER)
        r = (high * k - (rounded - _ROUNDER)) + (low * k + full * log)
        power = (((((_E6 * r + _E5) * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
        power *= np.int32((rounded.view(np.int32) + _EXPONENT_BIAS) << _MANTISSA_BITS).view(np.float32)
        # 0, infinity and NaN are their own powers; so are, as good as zero, numbers too small for the bits to be read
        power = power if _SMALLEST_NORMAL <= size < _INFINITY else size
        out[j] = power if values[j] >= 0 else -power
