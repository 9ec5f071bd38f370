"""Trajectories of optimizers on one attention head: compiled log-domain steps beside a torch loop in float64.

Six sequences of eight tokens in ten dimensions, 1000 steps from a small random start. The peer is what a user would write: the
textbook model, autograd, and torch.optim (exact polar factors, sign descent: a line of torch each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whichtoken.datasets import AttentionProblem, AttentionTokens
from whichtoken.flows.descent import attention_descent
from whichtoken.lab.benchmark import Measure, speed_up

PART = "Training"
QUESTION = "How long do a thousand steps of each optimizer take on one head?"
WHY = {
    "a torch loop": {
        "win": (
            "On matrices of ten by ten, the arithmetic takes less time than the Python and autograd calls around it; "
            "whichtoken compiles many steps into one call."
        ),
    },
}

STEPS = 1_000
Stepper = Callable[[torch.Tensor], Callable[[], Any]]


def measure() -> Iterator[Measure]:
    """Yield the ratio of the speeds of each optimizer."""
    rng = np.random.default_rng(1)
    problem, start = AttentionTokens().sample(rng), 1e-3 * rng.standard_normal((10, 10))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small are slower with more
    try:
        for label, name, options, peer in CASES:
            ours = partial(attention_descent, problem, start, name, steps=STEPS, **options)
            theirs = partial(_torch_loop, problem, start, peer)
            yield speed_up(f"{label}, n=6 T=8 d=10", ours, theirs, "a torch loop", target=20.0)
    finally:
        torch.set_num_threads(threads)


def _torch_loop(problem: AttentionProblem, start: NDArray[np.float64], stepper: Stepper) -> NDArray[np.float64]:
    tokens, queries = torch.from_numpy(problem.tokens), torch.from_numpy(problem.queries)
    token_scores = torch.from_numpy(problem.token_scores)
    weight = torch.tensor(start, requires_grad=True)
    step = stepper(weight)
    for _ in range(STEPS):
        weight.grad = None
        scores = (tokens @ (queries @ weight.T)[:, :, None]).squeeze(-1)
        margins = (torch.softmax(scores, dim=-1) * token_scores).sum(dim=-1)
        torch.nn.functional.softplus(-margins).mean().backward()  # type: ignore[no-untyped-call]
        step()
    return weight.detach().numpy()


def _of_torch(optimizer: Any, **options: Any) -> Stepper:
    return lambda weight: optimizer([weight], **options).step


def _along(direction: Callable[[torch.Tensor], torch.Tensor], lr: float) -> Stepper:
    def stepper(weight: torch.Tensor) -> Callable[[], Any]:
        def step() -> None:
            with torch.no_grad():
                assert weight.grad is not None
                weight.sub_(direction(weight.grad), alpha=lr)

        return step

    return stepper


def _polar(gradient: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(gradient)
    factor: torch.Tensor = left @ right
    return factor


CASES: list[tuple[str, str, dict[str, Any], Stepper]] = [
    ("gradient descent", "gd", {"lr": 1.0}, _of_torch(torch.optim.SGD, lr=1.0)),
    ("sign", "sign", {"lr": 0.02}, _along(torch.sign, 0.02)),
    ("Adam", "adam", {"lr": 0.02}, _of_torch(torch.optim.Adam, lr=0.02)),
    (
        "Muon (Newton-Schulz)",
        "muon",
        {"lr": 0.1, "method": "newton-schulz"},
        _of_torch(torch.optim.Muon, lr=0.1, weight_decay=0.0),
    ),
    ("Muon (exact)", "muon", {"lr": 0.1, "momentum": 0.0}, _along(_polar, 0.1)),
]
