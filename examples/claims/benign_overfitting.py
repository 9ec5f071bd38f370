"""Two gradient steps fit every training label, flipped ones included, and the test error stays small.

Claim   One attention head, v . (X^T softmax(X p)) from zero, trained for two steps on sequences of which one token carries the
        label and the others are noise, fits all training labels although a tenth of them is flipped, and errs on few new
        sequences, where the signal-to-noise ratio is a constant over sqrt(n): clean sequences attend to the signal, flipped ones
        to a noise token.
Source  Magen, Shang, Xu, Frei, Hu, Vardi, Benign Overfitting in Single-Head Attention (arXiv 2410.07746): abstract and summaries
        were read, the theorem with its step sizes and its constant was not. Data, the two step sizes (a small one for v, a large
        one for p), both constants below and the thresholds of the checks are ours.

A guest: no theory of this package is about it. It was written with `docs/extending.md` alone.

    WHICHTOKEN_EXPERIMENTS=examples/claims whichtoken reproduce guest/benign-overfitting --verbose
    WHICHTOKEN_EXPERIMENTS=examples/claims whichtoken stress guest/benign-overfitting --map ratio,flipped

With two tokens, k = n SNR^2, flips of rate e, small steps of v and S/N = (1 - 2e) k/2, the sums over samples (ours) say: p
turns to the signals if (1 - 2e)^2 k > 2, and a flipped sequence still attends to its own noise if S/N + 1 > (k/2) ((1 - 2e)
S/N - 1). `predict` gives both ends, as sqrt(k). They were derived before the first run; the step of p was then raised from 1
to 10, so that its attention saturates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import Check, Experiment, Grid, Mean, Measured, Predicted, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
TEST = 400  # new sequences
UNREAD: Any = {"kind": "paper-statement", "regime": "unknown"}


@dataclass(frozen=True)
class Point:
    samples: int = 100
    dim: int = 4000
    length: int = 2
    ratio: float = 2.2  # signal-to-noise ratio, norm of a signal over sqrt(dim), times sqrt(samples)
    flipped: float = 0.1  # share of the training labels
    lr_value: float = 0.01
    lr_query: float = 10.0
    steps: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.flipped < 0.5 or self.length < 2:
            raise ValueError(f"flipped={self.flipped} must be from 0 to 0.5, and length={self.length} at least 2")


class BenignOverfitting(Experiment[Point]):
    id = "guest/benign-overfitting"
    presets = {
        "quick": (Grid(seeds=8),),
        "full": (Grid(ratio=[0.5, 1.0, 1.5, 2.0, 2.2, 2.5, 3.0, 4.0], seeds=12),),
        "map": (Grid(seeds=8),),
    }
    ranges = {"ratio": (0.3, 6.0), "flipped": (0.0, 0.4), "dim": (100, 20_000), "samples": (20, 200), "length": (2, 8),
              "lr_query": (0.001, 1000.0), "lr_value": (0.0001, 10.0), "steps": (1, 64)}  # fmt: skip
    expected = {"quick": dict.fromkeys(["benign.train", "benign.test", "benign.clean", "benign.flipped"], "agrees")}
    method_fields = frozenset({"lr_value", "lr_query", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        signals = point.ratio * np.sqrt(point.dim / point.samples) * np.eye(2, point.dim)
        tokens, clean = _sequences(point, signals, point.samples, rng)
        wrong = rng.random(point.samples) < point.flipped
        labels = np.where(wrong, -clean, clean)
        v, p = np.zeros(point.dim), np.zeros(point.dim)
        for _ in range(point.steps):
            weights, attended = _attend(tokens, p)
            pull = labels / (1 + np.exp(labels * (attended @ v))) / point.samples  # minus the slope of the loss
            values = tokens @ v  # (n, T)
            centered = weights * (values - (weights * values).sum(axis=1, keepdims=True))
            v_step, p_step = pull @ attended, np.einsum("n,nt,ntd->d", pull, centered, tokens)
            v, p = v + point.lr_value * v_step, p + point.lr_query * p_step
        weights, attended = _attend(tokens, p)
        new, truth = _sequences(point, signals, TEST, rng)
        return {
            "train_error": float(np.mean(labels * (attended @ v) <= 0)),
            "test_error": float(np.mean(truth * (_attend(new, p)[1] @ v) <= 0)),
            "clean_weight": float(weights[~wrong, 0].mean()),
            "flipped_weight": float(weights[wrong, 0].mean()) if wrong.any() else 0.0,
        }

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        kept = 1 - 2 * point.flipped
        roots = np.roots([kept**2 / 4, -(kept / 2 + 0.5), -1.0])
        return {"from": Predicted(np.sqrt(2) / kept), "to": Predicted(float(np.sqrt(roots.max())))}

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        here = rows.where(ratio=Point.ratio) if len(rows.levels("ratio")) > 1 else rows
        yield at_most("benign.train", "share of training labels that are not fit", bound=0.01, on=here,
                      measured=Mean(here.values("train_error")), **UNREAD)  # fmt: skip
        yield at_most("benign.test", "share of new sequences with a wrong label", bound=0.05, on=here,
                      measured=Mean(here.values("test_error")), **UNREAD)  # fmt: skip
        yield at_least("benign.clean", "clean sequences: weight of the signal", bound=0.75, on=here,
                       measured=Mean(here.values("clean_weight")), **UNREAD)  # fmt: skip
        yield at_most("benign.flipped", "flipped sequences: weight of the signal", bound=0.25, on=here,
                      measured=Mean(here.values("flipped_weight")), **UNREAD)  # fmt: skip

    def draw(self, rows: Rows[Point], figure: "Figure") -> None:
        axes = figure.subplots()
        ratios = sorted(rows.levels("ratio"))
        for name in ("train_error", "test_error", "clean_weight", "flipped_weight"):
            means = [rows.where(ratio=ratio).values(name).mean() for ratio in ratios]
            axes.plot(ratios, means, "o-", label=name.replace("_", " "))
        for end in ("from", "to"):
            if (law := rows.where(ratio=ratios[0]).predicted(end)) is not None:
                axes.axvline(law.value, ls=":", color="grey")
        axes.set(xlabel="signal-to-noise ratio times sqrt(n)")
        axes.legend()


def _sequences(point: Point, signals: Array, number: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Tokens (number, T, d), the first of which is a signal, and labels (number,)."""
    labels = np.where(rng.random(number) < 0.5, 1.0, -1.0)
    tokens = rng.standard_normal((number, point.length, point.dim))
    tokens[:, :, :2] = 0.0  # noise has no part along the signals
    tokens[:, 0] = signals[(labels < 0).astype(int)]
    return tokens, labels


def _attend(tokens: Array, p: Array) -> tuple[Array, Array]:
    """Weights (n, T) and attended tokens (n, d)."""
    scores = tokens @ p
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights, np.einsum("nt,ntd->nd", weights, tokens)
