"""The d-dimensional model of the paper behind the text classifier: embeddings are trained, their scores are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.estimators.text.validation import Choice, best_temperature
from whichtoken.estimators.text.values import TextRecipe
from whichtoken.training.cls_training import start_cls, train_cls
from whichtoken.training.plan import TrainingPlan
from whichtoken.training.score_descent import Scores

BATCH = 128  # of the paper


def embedding_scores(counts: Any, labels: NDArray[np.int64], dim: int, epochs: int, rng: np.random.Generator) -> Scores:
    """Selection scores E_s.p and values E_s.v after AdamW with the paper's settings, its drops scaled to `epochs`."""
    model = start_cls(counts.shape[1], dim, rng)
    drops = tuple(sorted({max(1, epochs // 2), max(1, 3 * epochs // 4)}))
    train_cls(model, counts, 2 * labels - 1, TrainingPlan(epochs=epochs, batch_size=BATCH, drops=drops), rng)
    selection, values = model.scores()
    return Scores(selection[:, None], values[:, None, None], np.zeros(1))


def fit_embeddings(
    counts: Any, labels: NDArray[np.int64], splits: list[Any], dim: int, epochs: int, rng: np.random.Generator
) -> tuple[Scores, Choice]:
    """The model, and the temperature of its probabilities from one more fit without held-out documents."""
    temperature = 1.0
    if splits:
        fit, held = splits[0]
        outputs = embedding_scores(counts[fit], labels[fit], dim, epochs, rng).outputs(counts[held])
        temperature = best_temperature(outputs, labels[held], np.ones(len(held)))
    unridged = TextRecipe(np.inf, "logistic", 0.0, attention_step=True)
    return embedding_scores(counts, labels, dim, epochs, rng), Choice.of(unridged, temperature)
