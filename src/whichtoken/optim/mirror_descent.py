"""l_p mirror descent as a torch optimizer.

On the CPU an entrywise step is one compiled pass over memory with no temporary beyond a cache-sized block (`mirror_step`). Every
entry is computed from itself alone by the same instructions, so the result does not depend on how an array is cut into pieces,
and an image under the power map can be compared with `==`; a digest of each block saves that comparison where nobody else wrote
the weights. Elsewhere a step is made of torch operations on whole lists
(`foreach_mirror_step`); in the Schatten norm, of singular value decompositions (`spectral_mirror_step`).

W are the weights, U = sign(W) |W|^(p-1) the dual variable, G the direction of a step, q = p / (p - 1).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numba import float32, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.optim.optimizer import ParamsT
from torch.utils.weak import WeakTensorKeyDictionary

from whichtoken.errors import UsageError
from whichtoken.optim.checked import CheckedOptimizer, check_dense, check_dtype, check_heads, check_rates, nonfinite

_NORMS = ("entrywise", "schatten")
_PIECE = 2**18  # entries for one call of a compiled kernel: about a millisecond, worth a thread
_BLOCK = 1024  # entries at a time: a block and its scratch space stay in the first-level cache
_PART, _LINE = 128, 64  # entries between requests for the next block; bytes in a line of the cache
_MANTISSA_BITS = np.int32(23)  # of a float32
_SQRT_HALF_BITS = np.float32(math.sqrt(0.5)).view(np.int32)
_INFINITY_BITS = np.uint32(0x7F800000)
_ROUNDER = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the lowest bits
_ZERO, _ONE, _INFINITY, _SMALLEST_NORMAL = (np.float32(value) for value in (0.0, 1.0, math.inf, 2.0**-126))
_LOWEST, _LOW, _HIGHEST = np.float32(-151.0), np.float32(-125.0), np.float32(128.5)  # zero, below normal, infinity
# what is below the smallest normal number is multiplied by a power of two before its bits are read or written
_UP, _UP_BITS, _DOWN, _DOWN_BITS = np.float32(2.0**24), np.float32(24.0), np.float32(2.0**-64), np.int32(64)
_DIGESTS: MutableMapping[Tensor, Any] = (
    WeakTensorKeyDictionary()
)  # by dual variable, so that a loaded or copied optimizer begins without
_LOW_HALF, _HALF_BITS, _GOLDEN = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(0x9E3779B97F4A7C15)


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
        and the step ends with an error.
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
        `schatten` is for matrices, (..., rows, columns): p near 1 goes toward low rank, large p toward equal singular
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
        # the update stands in four forms, to be changed together: p = 2 below, `foreach_mirror_step` (lists of tensors),
        # `mirror_step` (compiled, on a CPU) and `spectral_mirror_step` (matrices)
        p, lr = float(group["p"]), float(group["lr"])
        directions = self._directions(params, group)
        stored = [tensor for param in params for tensor in self.state[param].values() if isinstance(tensor, Tensor)]
        fused = _is_plain_cpu(*params, *directions, *stored) and not (
            p == 2.0 or group["normalized"] or _spectral(group)
        )
        if not fused:
            directions = self._add_momentum(params, directions, group["momentum"])
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
        counts, momentum = [], group["momentum"] if fused else 0.0
        for weights, direction, dual in zip(params, directions, duals, strict=True):
            digests = _digests(dual, p)
            buffer = self._tensor("momentum_buffer", weights) if momentum else direction
            pieces = _map_pieces(
                lambda i, w, g, b, u: mirror_step(w, g, b, u, digests[i // _BLOCK :], p, lr, momentum),  # noqa: B023
                weights, direction, buffer, dual,
            )  # fmt: skip
            counts.append((sum(stayed for stayed, _ in pieces), sum(spoiled for _, spoiled in pieces)))
            increment_version(weights)  # autograd has not seen the kernel write
        return counts

    def _directions(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """G of each tensor before momentum and normalization, rounded as `torch.optim.SGD` rounds it."""
        decay = group["weight_decay"]
        directions = [param.grad for param in params if param.grad is not None]
        if group["maximize"]:
            directions = list(torch._foreach_neg(directions))
        if decay != 0 and group["maximize"]:
            torch._foreach_add_(directions, params, alpha=decay)
        elif decay != 0:
            directions = list(torch._foreach_add(directions, params, alpha=decay))
        return directions

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
    size = sum(_map_pieces(lambda _, values: power_sum(values, q), unit)) ** (1.0 / q) or 1.0
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


def _digests(dual: Tensor, p: float) -> NDArray[np.uint64]:
    """Digests of the blocks of W that the last step wrote; zeros, which no block has, if U or p changed since."""
    now = p, dual._version
    if _DIGESTS.get(dual, (None,))[0] != now:
        _DIGESTS[dual] = now, np.zeros(-(-dual.numel() // _BLOCK), np.uint64)
    digests: NDArray[np.uint64] = _DIGESTS[dual][1]
    return digests


def _map_pieces(kernel: Callable[..., Any], *tensors: Tensor) -> list[Any]:
    """Call a kernel on pieces of tensors of one shape and the place where they start, in as many threads as torch uses.

    The pieces do not depend on the number of threads, so neither do the results.
    """
    arrays = [tensor.detach().view(-1).numpy() for tensor in tensors]
    pieces = [
        (start, *(array[start : start + _PIECE] for array in arrays)) for start in range(0, arrays[0].size, _PIECE)
    ]
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
    """sign(v) |v|^exponent of each tensor."""
    powers = list(torch._foreach_pow(torch._foreach_abs(values), exponent))
    torch._foreach_mul_(powers, torch._foreach_sign(values))
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


# log2(m) = 2 / ln(2) (s + s^3 / 3 + ...) with s = (m - 1) / (m + 1); l_0 + l_1 s^2 + ... is what follows s, over s^3, and
# 2^r = e_0 + e_1 r + ... One name per coefficient, because a loop over them would keep the compiler from vectorizing.
_SLOPE = 2.0 / math.log(2.0)
_SLOPE_HIGH = np.float32(_SLOPE)
_SLOPE_LOW = np.float32(_SLOPE - float(_SLOPE_HIGH))
_L0, _L1, _L2, _L3 = _fit(lambda z: _SLOPE * (np.arctanh(np.sqrt(z)) / np.sqrt(z) - 1) / z, (1e-4, 0.0295), 3)
_E0, _E1, _E2, _E3, _E4, _E5, _E6 = _fit(np.exp2, (-0.5, 0.5), 6)


def _type_fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return a(a, b, c), lambda context, builder, signature, values: builder.fma(*values)


_fma: Any = intrinsic(_type_fma)


def _type_prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index], which need not exist."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = builder.gep(context.make_array(array)(context, builder, values[0]).data, [values[1]])
        llvm: Any = cgutils  # which has no types
        number = llvm.ir.IntType(32)
        kind = llvm.ir.FunctionType(llvm.ir.VoidType(), [place.type, number, number, number])
        call = llvm.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [place, number(0), number(3), number(1)])  # to be read, for every cache, data
        return context.get_dummy_value()

    return types.none(array, index), generate


_prefetch: Any = intrinsic(_type_prefetch)


def _signed_powers(values: Any, exponent: float, out: Any) -> None:
    """out = sign(v) |v|^exponent; in float64, multiplications and a root where they suffice."""
    doubled = round(2.0 * exponent)
    if abs(2.0 * exponent - doubled) > 1e-12 * doubled or doubled >= 64:  # 1 / (1.1 - 1) is 10 up to rounding
        for j in range(values.size):
            out[j] = math.copysign(abs(values[j]) ** exponent, values[j])
    else:
        for j in range(values.size):
            size = abs(values[j])
            power = math.sqrt(size) if doubled % 2 else 1.0
            for bit in range(1, 6):
                power *= size if doubled >> bit & 1 else 1.0
                size *= size
            out[j] = math.copysign(power, values[j])


def _single_powers(values: Any, exponent: float, out: Any) -> None:
    for j in range(values.size):
        out[j] = _single_power(values[j], exponent)


@overload(_signed_powers)
def _signed_powers_of(values: Any, exponent: float, out: Any) -> Any:
    return _single_powers if values.dtype == float32 else _signed_powers


@njit(forceinline=True, error_model="numpy")
def _single_power(value: Any, exponent: float) -> Any:
    """In float32, with an error of at most two units in the last place.

    |v| = 2^k m with m between sqrt(1/2) and sqrt(2). The power multiplies errors of the logarithm by up to 150, so it is
    carried as a sum of two numbers, `high` + `low`; what an operation rounds away is found by a fused multiply-add.
    """
    factor = np.float32(exponent)
    factor_low = np.float32(exponent - factor)
    size = np.float32(abs(value))
    below = size < _SMALLEST_NORMAL
    bits = np.float32(size * _UP if below else size).view(np.int32)
    binade = np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
    m = np.int32(bits - np.int32(binade << _MANTISSA_BITS)).view(np.float32)
    k = np.float32(binade)
    k = k - _UP_BITS if below else k
    over, under = m - _ONE, m + _ONE
    inverse = _ONE / under
    s = over * inverse
    s_low = _fma(-s, m - (under - _ONE), _fma(-s, under, over)) * inverse
    z = s * s
    log = s * _SLOPE_HIGH
    low = _fma(s_low, _SLOPE_HIGH, _fma(s, _SLOPE_LOW, _fma(s, _SLOPE_HIGH, -log)))
    low = _fma(s * z, _fma(_fma(_fma(_L3, z, _L2), z, _L1), z, _L0), low)
    high = k + log
    low += log - (high - k)
    target = factor * high
    target_low = _fma(factor_low, high, _fma(factor, low, _fma(factor, high, -target)))
    total = target + target_low
    rounded = np.float32(total + _ROUNDER)
    r = (target - (rounded - _ROUNDER)) + target_low
    power = _fma(_fma(_fma(_fma(_fma(_fma(_E6, r, _E5), r, _E4), r, _E3), r, _E2), r, _E1), r, _E0)
    below = total < _LOW
    shift = np.int32(rounded.view(np.int32) + _DOWN_BITS) if below else rounded.view(np.int32)
    scaled = np.uint32(np.float32(power).view(np.int32) + np.int32(shift << _MANTISSA_BITS))
    power = np.uint32(min(scaled, _INFINITY_BITS)).view(np.float32) * (_DOWN if below else _ONE)
    power = _INFINITY if total > _HIGHEST else power
    power = _ZERO if total < _LOWEST else power
    power = power if _ZERO < size < _INFINITY else size  # 0, infinity and NaN are their own powers
    return math.copysign(power, value)


@njit(cache=True, nogil=True, error_model="numpy")
def mirror_step(
    weights: NDArray[Any],
    gradient: NDArray[Any],
    buffer: NDArray[Any],
    dual: NDArray[Any],
    digests: NDArray[np.uint64],
    p: float,
    lr: float,
    momentum: float,
) -> tuple[int, int]:
    """G <- momentum * G + gradient, U <- U - lr * G, W <- sign(U) |U|^(1/(p-1)), in place.

    Where W is not the image of U, U is first derived from W. An entry whose U or W would leave the range of the dtype stays
    as it was.

    Parameters
    ----------
    weights, gradient, buffer, dual : (n,)
        Contiguous, all float32 or all float64. `buffer` holds G if there is momentum and is not used otherwise.
    digests : (blocks,)
        One number for every `_BLOCK` entries, zeros to begin with: in a block whose W still has the digest that the last
        call wrote here, W is the image of U. U must not have changed since then.
    p, lr, momentum
        Exponent of the geometry, step size and how much of the last G goes into the next.

    Returns
    -------
    tuple of int
        How many entries stayed, and in how many a finite W became infinite or NaN because the direction is.
    """
    image, moved = np.empty(_BLOCK, dual.dtype), np.empty(_BLOCK, dual.dtype)
    rate, keep = dual.dtype.type(lr), dual.dtype.type(momentum)
    infinity, tiny = dual.dtype.type(math.inf), np.finfo(dual.dtype).tiny
    exponent, stayed, spoiled = 1.0 / (p - 1.0), 0, 0
    for number in range(-(-dual.size // _BLOCK)):
        block = slice(number * _BLOCK, (number + 1) * _BLOCK)
        w, g, u, start = weights[block], gradient[block], dual[block], dual[block]
        if momentum != 0.0:
            last, g = g, buffer[block]
            for j in range(g.size):
                g[j] = keep * g[j] + last[j]
        if _digest(w) != digests[number]:
            start = moved[: u.size]
            _signed_powers(u, exponent, image)
            _signed_powers(w, p - 1.0, moved)
            for j in range(u.size):
                # below the smallest normal number devices and operations round differently
                underflow = abs(w[j]) < tiny and abs(image[j]) < tiny
                moved[j] = u[j] if image[j] == w[j] or underflow else moved[j]
        finite = True
        for begin in range(0, u.size, _PART):
            for k in range(block.stop + begin, block.stop + begin + _PART, _LINE // dual.itemsize):
                for array in (weights, gradient, buffer, dual):
                    _prefetch(array, k)  # of the next block, so that memory is read while powers are computed
            part = slice(begin, begin + _PART)
            after, result, slope, before = moved[: u.size][part], image[: u.size][part], g[part], start[part]
            for j in range(after.size):
                after[j] = before[j] - rate * slope[j]
            _signed_powers(after, exponent, result)
            for j in range(after.size):
                finite &= abs(result[j]) < infinity
        if finite:
            for j in range(u.size):
                w[j], u[j] = image[j], moved[j]
            digests[number] = _digest(w)
            continue
        digests[number] = 0
        for j in range(u.size):
            arrived = abs(image[j]) < infinity
            before, given = abs(w[j]) < infinity, abs(g[j]) < infinity
            stayed += before and given and not arrived
            spoiled += before and not given and not arrived
            if arrived or not before or not given:
                w[j], u[j] = image[j], moved[j]
    return stayed, spoiled


@njit(cache=True, nogil=True, error_model="numpy")
def _digest(values: Any) -> Any:
    """A number that changes with any entry, but for one chance in 2^32; never zero.

    Products of the halves of 64-bit words: a sum of the words alone would miss a change of all signs.
    """
    halves = values.view(np.uint32)
    words, total = halves[: halves.size // 2 * 2].view(np.uint64), np.uint64(halves[-1])
    for j in range(words.size):
        word = words[j] + np.uint64(j) * _GOLDEN
        total += (word & _LOW_HALF) * (word >> _HALF_BITS)
    return max(total, np.uint64(1))


@njit(cache=True, nogil=True, error_model="numpy")
def power_sum(values: NDArray[Any], exponent: float) -> float:
    """Sum of |v|^exponent in float64, values of shape (n,)."""
    powers, total = np.empty(_BLOCK, values.dtype), 0.0
    for start in range(0, values.size, _BLOCK):
        v = values[start : start + _BLOCK]
        _signed_powers(v, exponent, powers)
        for j in range(v.size):
            total += np.float64(abs(powers[j]))
    return total
