"""Trained embeddings sort tokens by what they say about the label.

Claim   After training, E.v of a token rises with its posterior difference and E.p with the modulus, on tokens of eight levels
        of importance. Its sign is right for clear tokens if the labels balance: with a mean label m every irrelevant token has
        m times its frequency as signed frequency, and as it is 21 times more frequent than a relevant one, a coin's surplus of
        a few per cent moves E.v of all of them to one side.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Figure 2 and
        equations (33)-(37); the remark on labels is ours. How many sequences there are, and whether their labels balance, is
        not said there: `--preset paper` has 4000, with labels by a coin and balanced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken import datasets
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure
from whichtoken.claims._runs import group_by
from whichtoken.claims.trained_embeddings import _reviews as corpus
from whichtoken.lab import Exact, Measured, Rows, pooled
from whichtoken.lab.verdicts import Regime
from whichtoken.theory import trained_embeddings

CLEAR = 0.25  # levels up to this noise must get the right sign
HELD_OUT = 2000
VALUES = {False: "fixed", True: "trained"}
LABELS = {False: "coin", True: "balanced"}
PAPER_DIM = 2048
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    sequences: int = 4000
    length: int = 256
    dim: int = 2048
    epochs: int = 196
    drop: int = 100  # epoch before which lr falls to a tenth
    lr: float = 1e-4
    weight_decay: float = 1e-4
    train_value: bool = False
    balanced: bool = False  # drop the surplus of the more frequent label, about 50 of 4000 sequences


class Levels(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.trained_embeddings.attention import posterior_difference

        law = datasets.LevelTokens(length=point.length)
        data, held_out = law.sample(point.sequences, rng), law.sample(HELD_OUT, rng)
        data = _drop_surplus(data) if point.balanced else data
        model = trained_embeddings.start_cls(law.size, point.dim, rng)
        plan = trained_embeddings.TrainingPlan(
            lr=point.lr,
            epochs=point.epochs,
            weight_decay=point.weight_decay,
            drops=(point.drop,),
            train_value=point.train_value,
        )
        with corpus.training_guards(point, rng) as guards:
            trained_embeddings.train_cls(model, data.counts, data.labels, plan, rng, guards=guards)
        scores, values = model.scores()
        posterior = posterior_difference(data.counts, data.labels)
        right = np.sign(values) == np.sign(law.token_classes)
        members = [law.token_levels == level for level in range(len(law.noise) + 1)]
        return {
            "held_out_accuracy": float(np.mean(model.decision(held_out.counts) * held_out.labels > 0)),
            "mean_label": float(data.labels.mean()),
            "irrelevant_value": float(values[members[0]].mean()),
            "signs": [float(right[tokens].mean()) for tokens in members[1:]],
            "selection": [float(scores[tokens].mean()) for tokens in members],
            **corpus.token_importance(posterior, scores, values, rng),
        }

    def judge(self, rows: Rows[Point]) -> Checks:

        for trained, value in VALUES.items():
            arms = [
                (f"{value}.{LABELS[balanced]}", f"v {value}, labels {'balanced' if balanced else 'by a coin'}", runs)
                for balanced, runs in group_by(rows.where(train_value=trained), "balanced")
            ]
            if not arms:
                continue
            regime, words = _regime(arms[0][2]), f"eight levels, v {value}"
            yield corpus.judge_figure("levels", value, f"{words}: E.v and E.p show what a token says", arms, regime)
            # runs that failed are seen above
            for name, criterion, says, of in (
                (
                    "order",
                    TABLE.order,
                    "E.p rises with every level",
                    lambda row: np.diff(row.measured["selection"]).min(),
                ),
                ("signs", TABLE.signs, "E.v separates clear tokens", lambda row: _clear_share(row.measured["signs"])),
            ):
                parts = [criterion(list(map(of, runs)), on=runs, case=case, about=about) for case, about, runs in arms]
                yield pooled(f"levels.{name}.{value}", f"{words}: {says}", parts, kind=criterion.kind, regime=regime)
        if rows:
            law = datasets.LevelTokens()
            frequencies = law.probabilities(1) + law.probabilities(-1)
            yield TABLE.equal_frequency(Exact(frequencies[-1] / frequencies[0]))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        kinds = list(dict.fromkeys((row.point.balanced, row.point.train_value) for row in rows))
        panels = figure.subplots(len(kinds), 2, squeeze=False)
        for (balanced, trained), (left, right) in zip(kinds, panels, strict=True):
            runs = rows.where(balanced=balanced, train_value=trained)
            corpus.draw_importance(runs[0], left, right, f"v {VALUES[trained]}, labels: {LABELS[balanced]}")


def _regime(runs: Rows[Point]) -> Regime:
    """The paper trains v, and does not say on how many sequences."""
    points = [row.point for row in (*runs, *runs.failed)]
    if not all(point.train_value for point in points):
        return "beyond-hypotheses"
    return "unknown" if all(point.dim >= PAPER_DIM for point in points) else "smaller-than-stated"


def _drop_surplus(data: datasets.TokenCounts) -> datasets.TokenCounts:
    """As many sequences of one label as of the other: the last ones of the more frequent label are left out."""
    sides = [np.flatnonzero(data.labels == label) for label in (-1, 1)]
    size = min(map(len, sides))
    return data.subset(np.sort(np.concatenate([side[:size] for side in sides])))


def _clear_share(signs: list[float]) -> float:

    law = datasets.LevelTokens()
    clear = np.array(law.noise) <= CLEAR
    return float(np.average(np.array(signs)[clear], weights=np.array(law.sizes)[clear]))
