"""Does training end where the theory says, and how fast: compiled log-domain descent beside a PyTorch autograd loop.

Six sequences of eight tokens in ten dimensions, gradient descent (p = 2) with 3000 normalized steps of size one from a
small random start. The peer is the textbook model: softmax, autograd, gradient over its norm (plus the machine epsilon,
without which it ends in 0/0), update in place.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from whichtoken.datasets import AttentionProblem, AttentionTokens
from whichtoken.flows.descent import attention_descent
from whichtoken.lab.benchmark import Beside, Measure, speed_up
from whichtoken.margin import key_query_svm

PART = "Training"
QUESTION = "Does a run end where the theory says, and how long does it take?"
WHY = {
    "a PyTorch autograd loop": {
        "win": (
            "Steps are compiled, and gradients are computed as differences to the winning token in the log domain. Once a "
            "token wins, the textbook formula is nothing but rounding error, and its run drifts off the path to the limit."
        ),
    },
}

CASE = "n=6 T=8 d=10, 3000 normalized steps"
PEER = "a PyTorch autograd loop"
STEPS = 3_000
SEEDS = range(1, 21)

Matrix = NDArray[np.float64]


def measure() -> Iterator[Measure]:
    """Yield the cosine to the certified limit, the peer's as detail, and the ratio of the speeds."""
    cases = [_case(seed) for seed in SEEDS]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small are slower with more
    try:
        ours, peer = (
            float(np.mean([_cosine_to_limit(problem, descend(problem, start)) for problem, start in cases]))
            for descend in (_descend, _autograd_descent)
        )
        what = "mean cosine to the certified limit, 20 seeds"
        detail, beside = (
            f"{ours:.6f}, autograd loop {peer:.6f}",
            Beside(PEER, 1 - ours, 1 - peer, "1 - cosine to the limit"),
        )
        yield Measure(CASE, what, ours, target=0.9999, detail=detail, beside=beside)
        problem, start = cases[0]
        yield speed_up(
            CASE,
            lambda: _descend(problem, start),
            lambda: _autograd_descent(problem, start),
            PEER,
            target=20.0,
        )
    finally:
        torch.set_num_threads(threads)


def _case(seed: int) -> tuple[AttentionProblem, Matrix]:
    rng = np.random.default_rng(seed)
    return AttentionTokens().sample(rng), 1e-3 * rng.standard_normal((10, 10))


def _descend(problem: AttentionProblem, start: Matrix) -> Matrix:
    return attention_descent(problem, start, p=2.0, lr=1.0, steps=STEPS).final.direction


def _autograd_descent(problem: AttentionProblem, start: Matrix) -> Matrix:
    tokens, queries = torch.from_numpy(problem.tokens), torch.from_numpy(problem.queries)
    token_scores = torch.from_numpy(problem.token_scores)
    weight = torch.tensor(start, requires_grad=True)
    epsilon = torch.finfo(weight.dtype).eps
    for _ in range(STEPS):
        scores = (tokens @ (queries @ weight.T)[:, :, None]).squeeze(-1)
        margins = (torch.softmax(scores, dim=-1) * token_scores).sum(dim=-1)
        (gradient,) = torch.autograd.grad(torch.nn.functional.softplus(-margins).mean(), weight)
        with torch.no_grad():
            weight -= gradient / (gradient.norm() + epsilon)
    return weight.detach().numpy()


def _cosine_to_limit(problem: AttentionProblem, weights: Matrix) -> float:
    scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
    limit = key_query_svm(problem.tokens, problem.queries, scores.argmax(axis=1), p=2.0)
    if limit.direction is None:
        raise RuntimeError("no direction separates the selected tokens")
    return float(np.sum(limit.direction * weights) / np.linalg.norm(weights))
