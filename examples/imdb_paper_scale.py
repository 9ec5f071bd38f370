"""The paper's IMDB run to the letter: 50 000 reviews, 500 epochs, batches of 128, 2048 dimensions, AdamW, all trained.

    python examples/imdb_paper_scale.py IMDB VOCABULARY --out DIR [--threads N]

IMDB is the published folder, its tar.gz, the CSV or Parquet; VOCABULARY a BERT vocab.txt. Interrupt it whenever you like:
the same command goes on from the last checkpoint. It ends with the loss curve and the two scatter plots of Figure 3.
Without files it rehearses in seconds: synthetic reviews, 64 dimensions, 5 epochs.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from whichtoken.datasets import Reviews, TextPipeline, prepare, read_imdb, synthetic_reviews
from whichtoken.theory.trained_embeddings import Safeguards, TrainingPlan, start_cls, train_cls
from whichtoken.theory.trained_embeddings.attention import posterior_difference


def main() -> None:
    """Prepare, train, summarize, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("imdb", type=Path, nargs="?")
    parser.add_argument("vocabulary", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("imdb-paper-scale"))
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    rng = np.random.default_rng(0)
    if options.imdb:
        reviews, dim, plan = read_imdb(options.imdb), 2048, TrainingPlan(train_value=True)  # the rest is the default
    else:
        reviews, dim, plan = Reviews(*synthetic_reviews(2000, rng)), 64, TrainingPlan(train_value=True, epochs=5)
    pipeline = TextPipeline(word_pieces=options.vocabulary)
    data = prepare(reviews.texts, reviews.labels, pipeline)
    model = start_cls(data.counts.shape[1], dim, rng)
    guards = Safeguards(checkpoint=options.out / "checkpoint.safetensors", checkpoint_every=5)
    history = train_cls(model, data.counts, data.labels, plan, rng, threads=options.threads, guards=guards)

    posterior = posterior_difference(data.counts, data.labels)
    scores, values = model.scores()
    outputs = model.decision(data.counts)
    summary = {
        "epochs": len(history.losses),
        "minutes": history.seconds / 60,
        "cpu_minutes": history.cpu_seconds / 60,
        "loss": model.loss(data.counts, data.labels),
        "accuracy": float(np.mean(outputs * data.labels > 0)),
        "pearson_value": float(np.corrcoef(posterior, values)[0, 1]),
        "pearson_selection": float(np.corrcoef(np.abs(posterior), scores)[0, 1]),
        "losses": history.losses,
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1))
    print({name: value for name, value in summary.items() if name != "losses"})
    draw(options.out, posterior, scores, values, history.losses)


def draw(folder: Path, posterior: np.ndarray, scores: np.ndarray, values: np.ndarray, losses: list[float]) -> None:
    """The loss curve, and selection score and value of every token against its posterior difference."""
    curve = Figure(figsize=(7, 3), layout="constrained")
    axes = curve.subplots()
    axes.plot(np.arange(1, len(losses) + 1), losses)
    axes.set(xlabel="epoch", ylabel="mean loss of the batches", yscale="log")
    curve.savefig(folder / "imdb_paper_scale_loss.svg", metadata={"Date": None})
    scatter = Figure(figsize=(9, 4), layout="constrained")
    for axes, numbers, label in zip(scatter.subplots(1, 2), (scores, values), ("E.p", "E.v"), strict=True):
        axes.scatter(posterior, numbers, s=3, alpha=0.4, linewidths=0)
        axes.set(xlabel="posterior difference", ylabel=label, xticks=(-1, -0.5, 0, 0.5, 1))
    scatter.savefig(folder / "imdb_paper_scale_tokens.png", dpi=110)


if __name__ == "__main__":
    main()
