"""One fresh-batch step of gradient descent on the group transformer: one compiled pass beside a PyTorch autograd step.

The peer is the textbook model: tokens [x_j; p_j] written out, softmax of Z^T W Z, backward through the graph. 2000
samples, one thread for both; the batch is drawn beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from whichtoken.datasets import GroupSparse
from whichtoken.lab.benchmark import Measure, speed_up
from whichtoken.theory.group_sparse.descent import xavier_start
from whichtoken.theory.group_sparse.transformer import GroupTransformer

PART = "Training"
QUESTION = "How long does a step of the group transformer take?"
WHY = {
    "PyTorch autograd": {
        "win": (
            "One compiled pass computes loss and gradient without writing out the tokens or a graph; the fewer groups, the "
            "less there is to save."
        ),
    },
}

BATCH, LR = 2000, 1e-3
SIZES = ((8, 32, 2.0, 4), (4, 8, 2.0, 40))  # group_dim, groups, target, steps


class Textbook(GroupTransformer):
    """The same parameters, trained through the graph of the formulas as they are written."""

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        Z = torch.cat([X, self.encodings.expand(len(X), -1, -1)], dim=2).mT  # (batch, d + D, groups)
        S = torch.softmax(Z.mT @ self.W @ Z, dim=1)
        output = torch.bmm((self.v @ Z)[:, None], S).sum(dim=(1, 2))
        return torch.nn.functional.softplus(-y * output).mean()


def measure() -> Iterator[Measure]:
    """Yield the ratio of the speeds and the largest relative difference of the gradients, for each size."""
    for group_dim, groups, target, steps in SIZES:
        case = f"B={BATCH} d={group_dim} D={groups}, {steps} steps"
        rng = np.random.default_rng(0)
        X, y = (torch.from_numpy(values) for values in GroupSparse(groups, group_dim).sample(BATCH, rng))
        ours, peer = (_started(kind(group_dim, groups)) for kind in (GroupTransformer, Textbook))
        yield Measure(case, "relative difference of the gradients", _difference(ours, peer, X, y), 1e-9, at_least=False)
        yield speed_up(
            case, _steps(ours, X, y, steps), _steps(peer, X, y, steps), "PyTorch autograd", target=target, repeats=7
        )


def _started(model: GroupTransformer) -> GroupTransformer:
    xavier_start(model, np.random.default_rng(1), scale=0.3)  # every block of W and v takes part
    return model


def _steps(model: GroupTransformer, X: Tensor, y: Tensor, count: int) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def steps() -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model.loss(X, y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return steps


def _difference(ours: GroupTransformer, peer: GroupTransformer, X: Tensor, y: Tensor) -> float:
    gradients = [torch.autograd.grad(model.loss(X, y), (model.W, model.v)) for model in (ours, peer)]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(*gradients, strict=True))
