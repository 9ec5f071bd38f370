"""Exact gradient of softmax attention regression: ours beside PyTorch's autograd, in time and memory; then training time."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whichtoken.datasets import AttentionRegression
from whichtoken.lab.benchmark import Beside, Measure, cpu_seconds, faster, speed_up
from whichtoken.theory.attention_regression.factor_baselines import run_baseline
from whichtoken.theory.attention_regression.softmax_regression import SoftmaxRegression
from whichtoken.theory.attention_regression.structure_aware_descent import StructureAwareDescent, TokenObjective
from whichtoken.theory.attention_regression.whitening import Whitening

PART = "Training"
QUESTION = "What does the gradient of softmax attention regression cost, in time and memory?"
WHY = {
    "autograd": {
        "win": (
            "The gradient is written out by hand and computed in blocks, so no matrix of all pairs of tokens is ever stored."
        ),
    },
    "scaled_dot_product_attention": {
        "win": "The fused kernel also computes the derivatives of keys and values, which this problem does not need.",
        "even": "Both work in blocks and store no matrix of all pairs of tokens.",
    },
    "Adam": {
        "win": (
            "Descent that is preconditioned by the Gram matrices of its own factors needs a few steps; Adam, at the best of "
            "four rates, needs dozens."
        ),
    },
}

TOKENS, DIM, OUTPUTS = 4000, 32, 4
THREADS = 1
ADAM_RATES = (0.001, 0.003, 0.01, 0.03)


def problem(tokens: int) -> tuple[SoftmaxRegression, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    Z, Y, P, Q = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((tokens, DIM), (tokens, OUTPUTS), (OUTPUTS, DIM), (DIM, DIM))
    )
    return SoftmaxRegression(P, Q / (4 * DIM)), Z, Y


def ours(model: SoftmaxRegression, Z: Tensor, Y: Tensor) -> None:
    model.loss_and_gradient(Z, Y)


def autograd(model: SoftmaxRegression, Z: Tensor, Y: Tensor) -> None:
    means = torch.softmax(Z @ model.key_query @ Z.T, dim=1) @ Z
    ((means @ model.value.T - Y).square().sum() / (2 * len(Z))).backward()  # type: ignore[no-untyped-call]


def fused(model: SoftmaxRegression, Z: Tensor, Y: Tensor) -> None:
    heads = Z[None, None]
    means = scaled_dot_product_attention((Z @ model.key_query)[None, None], heads, heads, scale=1.0)[0, 0]
    ((means @ model.value.T - Y).square().sum() / (2 * len(Z))).backward()  # type: ignore[no-untyped-call]


METHODS: dict[str, Callable[[SoftmaxRegression, Tensor, Tensor], None]] = {
    "ours": ours,
    "autograd": autograd,
    "fused": fused,
}


def peak_megabytes(name: str, tokens: int) -> float:
    """Memory that one gradient adds to a fresh process."""
    program = f"import runpy; runpy.run_path({__file__!r})['report_peak']({name!r}, {tokens})"
    finished = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True)
    return float(finished.stdout)


def report_peak(name: str, tokens: int) -> None:
    torch.set_num_threads(THREADS)
    METHODS[name](*problem(64))  # libraries and thread pools are there from now on
    arguments = problem(tokens)
    before = high_water_mark()
    METHODS[name](*arguments)
    print(high_water_mark() - before)


def high_water_mark() -> float:
    """Peak memory of this process so far in MB; getrusage would include that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure() -> Iterator[Measure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield from gradient_measures()
        yield training_measure()
    finally:
        torch.set_num_threads(threads)


def gradient_measures() -> Iterator[Measure]:
    case = f"loss and gradient, n={TOKENS}, d={DIM}, float64, {THREADS} thread"
    arguments = problem(TOKENS)
    for name, peer, target in (("autograd", "autograd", 1.5),
                               ("fused", "scaled_dot_product_attention", 2.0)):  # fmt: skip
        yield speed_up(case, lambda: ours(*arguments), lambda name=name: METHODS[name](*arguments), peer, target, 5)  # type: ignore[misc]
    mine, theirs, flash = (peak_megabytes(name, TOKENS) for name in METHODS)
    for peer, used, bound in (("autograd", theirs, 0.2), ("scaled_dot_product_attention", flash, 1.5)):
        detail, beside = f"{mine:.0f} MB against {used:.0f} MB", Beside(peer, mine, used, "MB")
        yield Measure(
            case, f"of {peer}'s peak memory", mine / used, bound, at_least=False, detail=detail, beside=beside
        )
    large = peak_megabytes("ours", 20_000)
    yield Measure(f"n=20000, d={DIM}", "MB at the peak", large, 1000, at_least=False)


def training_measure() -> Measure:
    """Seconds from a crude spectral start to 1.2 times the best loss on fresh queries, Adam with its best step size."""
    rng = np.random.default_rng(0)
    data = AttentionRegression(6, tokens=800, covariance=100.0, target=100.0).sample(rng)
    whitening, mean = Whitening.from_tokens(data.tokens), data.labels.mean(axis=0)
    Z, Y = whitening.whiten(data.tokens), data.labels - mean
    tokens, clean = data.draw(400, rng)
    solver = StructureAwareDescent(start_samples=24, iterations=40, tolerance=0.0)
    P, Q = solver.starting_factors(Z, Y)
    objective = TokenObjective(Z, Y)

    def excess(P: np.ndarray, Q: np.ndarray) -> float:
        model = SoftmaxRegression(torch.from_numpy(P), torch.from_numpy(Q))
        outputs = model(torch.from_numpy(whitening.whiten(tokens)), torch.from_numpy(Z)).numpy()
        return float(np.mean((outputs + mean - clean) ** 2))

    def adam(rate: float, budget: int) -> list[float]:
        return [excess(P1, Q1) for P1, Q1, _ in run_baseline("adam", objective, P, Q, rate, budget)]

    paths = {rate: adam(rate, 120) for rate in ADAM_RATES}
    own = [excess(iterate.P, iterate.Q) for iterate in solver.minimize(objective, P, Q).trace]
    goal = 1.2 * min(min(own), *map(min, paths.values()))

    def steps_to_goal(path: list[float]) -> int:
        return next((count for count, value in enumerate(path) if value <= goal), len(path))

    rate = min(paths, key=lambda rate: steps_to_goal(paths[rate]))
    ours_needs, adam_needs = steps_to_goal(own), steps_to_goal(paths[rate])
    short = StructureAwareDescent(start_samples=24, iterations=ours_needs, tolerance=0.0)
    mine = median(cpu_seconds(lambda: short.minimize(objective, P, Q)) for _ in range(5))
    theirs = median(cpu_seconds(lambda: run_baseline("adam", objective, P, Q, rate, adam_needs + 1)) for _ in range(3))
    detail = f"{ours_needs} steps, {mine * 1e3:.3g} ms against {adam_needs} steps, {theirs * 1e3:.4g} ms at lr={rate:g}"
    case = "train to 1.2 floors, n=800, d=6, condition 100"
    return replace(faster(case, mine, theirs, "Adam", 4), detail=detail)
