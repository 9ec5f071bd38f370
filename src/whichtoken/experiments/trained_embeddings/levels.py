"""Trained embeddings sort tokens by what they say of the label.

Claim   After training, E.v of a token is proportional to its posterior difference and E.p to the modulus, on tokens of
        eight levels of importance, with v fixed and with v trained.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Figure 2 and
        equations (33)-(37); the bounds on the correlations are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.trained_embeddings.importance import draw_importance, importance
from whichtoken.lab import Claim, Exact, Experiment, Grid, Mean, Measured, Rows, agreement, at_least

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLEAR = 0.25  # levels up to this noise must get the right sign
HELD_OUT = 2000
KINDS = {False: "fixed", True: "trained"}


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


class Levels(Experiment[Point]):
    id = "trained-embeddings/levels"
    presets = {
        "quick": (Grid(dim=128, lr=1e-3, epochs=60, drop=40, train_value=[False, True], seeds=5),),
        "full": (Grid(train_value=[False, True], seeds=8),),
    }
    method_fields = frozenset({"dim", "epochs", "drop", "lr", "weight_decay", "train_value"})
    expected = {
        "quick": {
            "levels.value.fixed": "agrees",
            "levels.selection.fixed": "agrees",
            "levels.signs.fixed": "inconclusive",
            "levels.value.trained": "agrees",
            "levels.selection.trained": "agrees",
            "levels.signs.trained": "inconclusive",
            "levels.set-sizes": "disagrees",
            "levels.equal-frequency": "disagrees",
        },
        "full": {
            "levels.value.fixed": "agrees",
            "levels.selection.fixed": "agrees",
            "levels.signs.fixed": "inconclusive",
            "levels.value.trained": "inconclusive",
            "levels.selection.trained": "agrees",
            "levels.signs.trained": "inconclusive",
            "levels.set-sizes": "disagrees",
            "levels.equal-frequency": "disagrees",
        },
    }

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import LevelTokens
        from whichtoken.optim.cls_training import start_cls, train_cls
        from whichtoken.optim.training_plan import TrainingPlan
        from whichtoken.theory.trained_embeddings import posterior_difference

        law = LevelTokens(length=point.length)
        data, held_out = law.sample(point.sequences, rng), law.sample(HELD_OUT, rng)
        model = start_cls(law.size, point.dim, rng)
        plan = TrainingPlan(
            lr=point.lr,
            epochs=point.epochs,
            weight_decay=point.weight_decay,
            drops=(point.drop,),
            train_value=point.train_value,
        )
        train_cls(model, data.counts, data.labels, plan, rng)
        scores, values = model.scores()
        right = np.sign(values) == law.token_classes
        levels = np.arange(len(law.noise) + 1)
        return {
            "loss": model.loss(data.counts, data.labels),
            "held_out_accuracy": float(np.mean(model.decision(held_out.counts) * held_out.labels > 0)),
            "signs": [float(right[law.token_levels == level].mean()) for level in levels[1:]],
            "selection": [float(scores[law.token_levels == level].mean()) for level in levels],
            **importance(posterior_difference(data.counts, data.labels), scores, values, rng),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        from whichtoken.data.level_tokens import PAPER_NOISE, LevelTokens

        clear = np.array(PAPER_NOISE) <= CLEAR
        for trained, name in KINDS.items():
            runs = rows.where(train_value=trained)
            yield at_least(
                f"levels.value.{name}",
                f"v {name}: correlation of E.v with the posterior difference",
                bound=0.88,
                measured=Mean(runs.values("pearson_value")),
            )
            yield at_least(
                f"levels.selection.{name}",
                f"v {name}: correlation of E.p with the modulus of the posterior difference",
                bound=0.84,
                measured=Mean(runs.values("pearson_selection")),
            )
            yield at_least(
                f"levels.signs.{name}",
                f"v {name}: share of tokens with noise up to {CLEAR} whose E.v has the right sign",
                bound=1.0,
                measured=Mean([_clear_share(row.measured["signs"], clear) for row in runs]),
            )
        if not rows:
            return
        law = LevelTokens()
        yield agreement(
            "levels.set-sizes",
            "vocabulary of the paper's set sizes 4 + 2^(k-1) with 964 irrelevant tokens",
            theory=2048,
            measured=Exact(LevelTokens(set_sizes=[4 + 2 ** (k - 1) for k in range(1, 9)]).size),
            tolerance=0,
        )
        frequencies = law.probabilities(1) + law.probabilities(-1)
        yield agreement(
            "levels.equal-frequency",
            "frequency of an irrelevant token over that of a relevant one, said to be equal",
            theory=1.0,
            measured=Exact(frequencies[-1] / frequencies[0]),
            tolerance=0.01,
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        kinds = [trained for trained in KINDS if rows.where(train_value=trained)]
        for trained, (left, right) in zip(kinds, figure.subplots(len(kinds), 2, squeeze=False), strict=True):
            draw_importance(rows.where(train_value=trained)[0], left, right, f"v {KINDS[trained]}")


def _clear_share(signs: list[float], clear: np.ndarray) -> float:
    from whichtoken.data import LevelTokens

    sizes = np.array(LevelTokens().sizes)
    return float(np.average(np.array(signs)[clear], weights=sizes[clear]))
