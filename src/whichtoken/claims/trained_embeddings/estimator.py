"""The text classifier writes signed frequencies into its values.

Claim   Under a strong ridge the values of `TextClassifier` are proportional to the signed frequencies of the tokens, as one
        gradient step writes them into embeddings; at the ridge that its validation chooses they still have their signs.
Source  The law of one step: Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important
        Tokens, Lemma 2; that a strongly penalized optimum is a single step from zero is elementary, the estimator ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.claims._checks import Above, Checks, Equals
from whichtoken.claims._figures import Figure, label_axes, points_with_errors
from whichtoken.claims._runs import share_of_runs
from whichtoken.lab import Experiment, Grid, Measured, Rows

STRONG = 1e-3  # C of a strong ridge
CLEAR = 3.0  # standard errors above which a signed frequency has a sign
FREQUENCIES = Equals(
    "estimator.frequencies", 1.0, f"cosine of values and signed frequencies, C = {STRONG:g}", tolerance=0.01
)
SIGNS = Above(
    "estimator.signs", 0.95, f"C chosen: share of tokens {CLEAR:g} standard errors from zero with the right sign"
)
CLEAR_TOKENS = Above("estimator.clear", 0.5, f"share of runs that have a token {CLEAR:g} standard errors from zero")


@dataclass(frozen=True)
class Point:
    sequences: int = 1000
    length: int = 64


class TextClassifierFrequencies(Experiment[Point]):
    id = "trained-embeddings/estimator"
    version = 4
    spot = Point(sequences=100, length=16)
    presets = {
        "quick": (Grid(seeds=8),),
        "full": (Grid(sequences=[1000, 4000], seeds=10),),
    }

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken import TextClassifier
        from whichtoken.datasets import LevelTokens
        from whichtoken.theory.trained_embeddings import signed_frequency

        # the same number of each label, so that the bias is zero
        drawn = LevelTokens(length=point.length).sample(2 * point.sequences, rng)
        rows = np.concatenate([np.flatnonzero(drawn.labels == sign)[: point.sequences // 2] for sign in (-1, 1)])
        counts, labels = drawn.counts[rows], drawn.labels[rows]
        frequency = signed_frequency(counts, labels)
        seed = int(rng.integers(2**31))
        plain: dict[str, Any] = {"sublinear_tf": False, "use_idf": False, "attention_C": 1e-8, "random_state": seed}
        strong = TextClassifier(C=STRONG, **plain).fit(counts, labels)
        chosen = TextClassifier(random_state=seed).fit(counts, labels)
        # standard error for a token that is independent of the label, from its share of all tokens
        shares = np.asarray(counts.sum(axis=0)).ravel() / counts.sum()
        error = np.sqrt(np.maximum(shares, 1e-300) / (point.sequences * point.length))
        clear = np.abs(frequency) > CLEAR * error
        values = strong.values_[:, 0, 0]
        right = np.sign(chosen.values_[clear, 0, 0]) == np.sign(frequency[clear])
        return {
            "cosine": float(frequency @ values / np.linalg.norm(frequency) / np.linalg.norm(values)),
            "signs": float(right.mean()) if clear.any() else None,
            "clear": int(clear.sum()),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        yield FREQUENCIES(rows.values("cosine"))
        yield SIGNS([row.measured["signs"] for row in rows if row.measured["clear"]])
        yield CLEAR_TOKENS(share_of_runs(rows, lambda row: row.measured["clear"] > 0))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        points_with_errors(axes, rows, "sequences", "cosine", f"cosine, C = {STRONG:g}")
        with_tokens = Rows(row for row in rows if row.measured["clear"])
        points_with_errors(axes, with_tokens, "sequences", "signs", "right signs, C chosen")
        title = "Values of the text classifier and signed frequencies"
        label_axes(axes, title, "training sequences", ylim=(0, 1.05), legend=True)
