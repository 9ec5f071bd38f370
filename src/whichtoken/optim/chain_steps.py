"""One step on the factors of a product of matrices: Gram preconditioning in coordinates where the tokens are white.

Factors carry a leading axis of heads. An attention chain is W_O, W_V, W_K, W_Q and multiplies to W_O W_V S W_K^T W_Q, a pair
is B, A and multiplies to B A. Generalises the two-factor steps of `factor_steps`; Goel, Soltanolkotabi, Bartlett,
arXiv 2603.01514, name the parts, the formulas are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Bases = Sequence[Tensor | None]
_KEY = 2  # place of W_K, which stands transposed in the product


def token_bases(count: int, dim: int, covariance: Tensor | None, logit_factor: float, device: torch.device) -> Bases:
    """T for each of `count` factors, such that the W T multiply to the map of white tokens; None for the identity.

    A root of S stands on the token side of every factor but the first. The factor of the logits goes with the last one.
    """
    if covariance is None and logit_factor == 1.0:
        return [None] * count
    root = torch.eye(dim, dtype=torch.float64, device=device)
    if covariance is not None:
        root = covariance_root(covariance.to(root))
    return [None, *[root] * (count - 2), logit_factor * root]


def covariance_root(covariance: Tensor) -> Tensor:
    """Cholesky's root: steps do not depend on which root it is."""
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(covariance)
    # rounding may lift a zero eigenvalue to where the decomposition succeeds
    if failed.item() or not root.diagonal().min() ** 2 > 1e-13 * covariance.diagonal().max():
        raise ValueError("covariance is singular or indefinite, all its eigenvalues must be positive")
    return root


def preconditioned(
    factors: Sequence[Tensor], gradients: Sequence[Tensor], bases: Bases, damping: float, length: int
) -> list[Tensor]:
    """Directions D of the factors W, of which every `length` in a row are taken for a product of their own."""
    inverses = [None if basis is None else torch.linalg.inv(basis) for basis in bases]
    transposed = [None if inverse is None else inverse.mT for inverse in inverses]
    product, pulls = _turned(_times(factors, bases)), _turned(_times(gradients, transposed))
    links = [slice(start, start + length) for start in range(0, len(factors), length)]
    steps = [step for link in links for step in gram_preconditioned(product[link], pulls[link], damping)]
    return _times(_turned(steps), inverses)


def gram_preconditioned(factors: Sequence[Tensor], gradients: Sequence[Tensor], damping: float) -> list[Tensor]:
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


def with_norms_of(gradients: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
    """Each step at the Euclidean norm of its gradient, head by head."""
    found = []
    for gradient, step in zip(gradients, steps, strict=True):
        wanted, norm = (torch.linalg.matrix_norm(tensor, keepdim=True) for tensor in (gradient, step))
        found.append(step * torch.where(norm > 0.0, wanted / norm, 0.0))
    return found


def within_trust(
    factors: Sequence[Tensor], steps: Sequence[Tensor], bases: Bases, length: int, trust: float
) -> list[Tensor]:
    """Steps shortened, head by head, until together they move no product by more than `trust` of its Euclidean norm.

    The norms are those on white tokens, which depend on neither the coordinates of the tokens nor the share of each factor. A
    product of zero, as at the start of a LoRA pair, has no norm to compare with and is left alone.
    """
    chain, moves = _turned(_times(factors, bases)), _turned(_times(steps, bases))
    found = []
    for start in range(0, len(chain), length):
        link, change = chain[start : start + length], moves[start : start + length]
        size = torch.linalg.matrix_norm(_product(link), keepdim=True)
        replaced = [_product([*link[:i], change[i], *link[i + 1 :]]) for i in range(len(link))]
        moved = sum(torch.linalg.matrix_norm(product, keepdim=True) for product in replaced)
        scale = torch.where((size > 0.0) & (moved > trust * size), trust * size / moved, 1.0)
        found += [step * scale for step in steps[start : start + length]]
    return found


def logit_rescaling(factors: Sequence[Tensor], bases: Bases, cap: float) -> Tensor:
    """c (heads, 1, 1) by which W_K, W_Q are to be multiplied and W_O, W_V divided, so that the logits keep below the cap."""
    _, _, key, query = _times(factors, bases)
    sizes = torch.linalg.matrix_norm(key.mT @ query, ord=2, keepdim=True)
    return torch.where(sizes > cap, cap / sizes, 1.0).sqrt()


def _product(factors: Sequence[Tensor]) -> Tensor:
    result = factors[0]
    for factor in factors[1:]:
        result = result @ factor
    return result


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


def _times(factors: Sequence[Tensor], bases: Bases) -> list[Tensor]:
    return [factor if basis is None else factor @ basis for factor, basis in zip(factors, bases, strict=True)]


def _turned(factors: Sequence[Tensor]) -> list[Tensor]:
    return [factor.mT if index == _KEY else factor for index, factor in enumerate(factors)]
