"""Group transformers with several layers and with the parts that the theory leaves out, and their map reduced by symmetry.

Rotations about v*, permutations of the irrelevant groups and X -> -X leave, for every step of gradient descent from zero on the
population, v = (alpha v*, 0) and in every layer W_12 = W_21 = 0, W_11 = along v* v*^T + across (I - v* v*^T), and scores
P^T W_22 P that take five values: 1 + 7 L numbers for L layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import layer_norm, logsigmoid, softmax

from whichtoken.theory.group_sparse import positional_block
from whichtoken.theory.group_sparse.encodings import positional_encodings
from whichtoken.theory.group_sparse.symmetric import orbits

if TYPE_CHECKING:
    from whichtoken.datasets import GroupSparse

Array = NDArray[np.float64]
HIDDEN = 16  # ReLU units of a network
NETWORK_START = 0.1  # times Xavier's numbers: at zero a network has no gradient
BLOCKS = ("W_11", "W_12", "W_21", "W_22", "v_1", "v_2")


class LayeredTransformer(torch.nn.Module):
    """f(Z) = sum_j read(z_j) of tokens z_j = [x_j; p_j] after L times z_j <- sum_i S_ij z_i, from zero or `start` times Xavier.

    One layer without parts is `GroupTransformer`. With `residual` the attended tokens are added to the tokens, a norm is taken
    of the tokens before each layer, and a `network` of `HIDDEN` ReLU units reads instead of the vector v. Blocks that are not
    among the `trained` ones stay zero. Encodings that are made a parameter are trained too.
    """

    def __init__(
        self, group_dim: int, groups: int, layers: int = 1, *, parts: Collection[str] = (),
        trained: Collection[str] = BLOCKS, start: float = 0.0, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        super().__init__()
        self.group_dim, self.parts = group_dim, parts
        self.encodings = torch.from_numpy(positional_encodings("sine", groups))
        network, width = "network" in parts, group_dim + groups
        first = NETWORK_START if network else start
        positions = (torch.arange(width) >= group_dim).long()
        blocks = torch.tensor([[f"W_{i}{j}" in trained for j in (1, 2)] for i in (1, 2)])
        kept = blocks[positions][:, positions], torch.tensor(["v_1" in trained, "v_2" in trained])[positions]
        self.W = _parameter((layers, width, width), start, rng, kept[0])
        self.v = _parameter((HIDDEN if network else 1, width), first, rng, kept[1])
        self.second = _parameter((1, HIDDEN), NETWORK_START, rng) if network else None

    def forward(self, X: Tensor) -> Tensor:
        """Scores (batch,) of X (batch, groups, group_dim)."""
        return self.read(self.attend(X)[0]).sum(dim=1)

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        """Mean logistic loss; y (batch,) is -1 or +1."""
        return -logsigmoid(y * self(X)).mean()

    def read(self, tokens: Tensor) -> Tensor:
        """What each token adds to the score."""
        read = tokens @ self.v.T
        return (read if self.second is None else torch.relu(read) @ self.second.T)[..., 0]

    def attend(self, X: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Tokens after the last layer, and the weights (batch, key, query) of every layer."""
        tokens = torch.cat([X, self.encodings.expand(len(X), -1, -1)], dim=2)  # (batch, groups, width)
        weights = []
        for W in self.W:
            seen = tokens
            if "layer-norm" in self.parts:
                seen = layer_norm(tokens, tokens.shape[-1:])
            elif "rms-norm" in self.parts:
                seen = tokens * torch.rsqrt(tokens.square().mean(dim=-1, keepdim=True) + 1e-5)
            weights.append(softmax(seen @ (W @ seen.mT), dim=1))
            attended = weights[-1].mT @ seen
            tokens = tokens + attended if "residual" in self.parts else attended
        return tokens, weights

    def measure(self, data: GroupSparse, samples: int, rng: np.random.Generator) -> dict[str, Any]:
        """What is selected, by which layer, and where the value is carried: v, or the mean gradient of a network."""
        X, y = map(torch.from_numpy, data.sample(samples, rng))
        relevant, direction = int(data.relevant[0]), data.directions[0]
        tokens, weights = self.attend(X)
        read = self.read(tokens)
        value = torch.autograd.grad(read.sum(), tokens)[0].mean(dim=(0, 1)).numpy()
        value_1, W_22 = value[: self.group_dim], self.W.detach()[0, self.group_dim :, self.group_dim :].numpy()
        predicted = positional_block(self.encodings.numpy(), relevant, gap=1.0)
        return {
            "accuracy": float((y * read.detach().sum(dim=1) > 0).double().mean()),
            "layers": [float(S.detach()[:, relevant].mean()) for S in weights],
            "attention": float(through_layers(weights).detach()[:, relevant].mean()),
            "alpha": float(np.linalg.norm(value_1)),
            "value_cosine": float(value_1 @ direction / np.linalg.norm(value_1)),
            "position_share": float(np.linalg.norm(value[self.group_dim :]) / np.linalg.norm(value)),
            "position_cosine": float((W_22 * predicted).sum() / np.linalg.norm(W_22) / np.linalg.norm(predicted)),
        }


def _parameter(shape: tuple[int, ...], start: float, rng: np.random.Generator, kept: Any = True) -> torch.nn.Parameter:
    """Xavier's numbers times `start`, with zeros that stay where it is not kept."""
    numbers = start * np.sqrt(6 / sum(shape[-2:])) * rng.uniform(-1, 1, size=shape)
    parameter = torch.nn.Parameter(torch.from_numpy(numbers) * kept)
    parameter.register_hook(lambda gradient: gradient * kept)  # type: ignore[no-untyped-call]
    return parameter


def through_layers(weights: Iterable[Tensor]) -> Tensor:
    """Weights from the input to the output tokens, where there is no residual connection."""
    total, *others = weights
    for S in others:
        total = total @ S
    return total


@dataclass(frozen=True)
class LayeredPath:
    """State of the reduced map, before the first update and after each; arrays with an entry for each of these."""

    alpha: Array  # length of v_1 along v*
    content: Array  # (.., layers, 2): W_11 along v* and across it
    position: Array  # (.., layers, 5): scores by position, in the order of `SymmetricTrajectory`
    layers: Array  # (.., layers): mean attention on the relevant group
    attention: Array  # the same from input to output


def layered_map(batches: Iterable[Array], *, layers: int, lr: float, content: bool = True) -> LayeredPath:
    """Gradient descent on the 1 + 7 L numbers: one state for each batch, an update between two of them.

    Parameters
    ----------
    batches : samples (n, groups, group_dim) whose first group is the relevant one, with v* along the first axis.
    content : False freezes W_11.
    """
    numbers = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in ((), (layers, 2), (layers, 5))]
    alpha, inner, outer = numbers
    descent = torch.optim.SGD(numbers if content else [alpha, outer], lr=lr)
    states: list[Any] = []
    for batch in batches:
        X = torch.from_numpy(batch)
        _, groups, group_dim = X.shape
        norm2, orbit = (groups + 1) / 2, torch.from_numpy(orbits(groups))
        if states:
            descent.step()
        u, across = X[:, :, 0], X[:, :, 1:]
        along_pairs, across_pairs = u[:, :, None] * u[:, None, :], across @ across.mT
        total, weights = torch.eye(groups, dtype=torch.float64), []
        for (a, b), position in zip(inner, outer, strict=True):
            pairs = a * along_pairs + b * across_pairs + norm2 * position[orbit]  # of the tokens of the input
            weights.append(softmax(total.mT @ pairs @ total, dim=1))
            total = total @ weights[-1]
        loss = -logsigmoid(alpha * (total.sum(dim=2) * u).sum(dim=1) * u[:, 0].sign()).mean()
        descent.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # a number stands for so many entries of v, of W_11 and of W_22 in an orthonormal basis
        sizes = torch.ones(()), torch.tensor([1, max(group_dim - 1, 1)]), torch.bincount(orbit.ravel())
        for parameter, size in zip(numbers, sizes, strict=True):
            if parameter.grad is not None:
                parameter.grad /= size
        received = [float(S.detach()[:, 0].mean()) for S in (*weights, total)]
        found = (values.detach().numpy().copy() for values in (alpha, inner, norm2 * outer))
        states.append((*found, received[:-1], received[-1]))
    return LayeredPath(*map(np.array, zip(*states, strict=True)))
