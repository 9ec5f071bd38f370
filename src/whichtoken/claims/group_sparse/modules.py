"""A residual connection loses the selection to routing by content; a network and an RMS norm keep it.

Claim   Beside one attention layer, a readout network and an RMS norm keep attention and value aligned as in the theorem. With a
        residual connection the irrelevant groups cannot be masked, so the loss goes on: with 8 groups W_12 and v_2 grow
        together and the label goes by routing, or a network reads the positions by itself; with 4 groups the group is selected
        all the same. The mean that a layer norm subtracts mixes positions into the variables, for which v_2 makes up. While only
        v_1 and W_22, the blocks of the theorem, are trained, attention selects.
Source  Open question 2 of Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification
        (arXiv 2504.08638, conclusion), which states nothing; the answer is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.checks import check_choice
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, quantity_bars
from whichtoken.claims._runs import Array, group_by, pairs, rows_where
from whichtoken.claims.group_sparse._training import TEST_SAMPLES, GroupSizes, random_problem
from whichtoken.lab import Measured, Row, Rows

NONE, RESIDUAL, NETWORK, LAYER, RMS = "none", "residual", "network", "layer-norm", "rms-norm"
PARTS = (
    NONE, NETWORK, RMS, f"{RMS}+{NETWORK}", LAYER, f"{LAYER}+{NETWORK}", RESIDUAL, f"{RESIDUAL}+{NETWORK}", f"{RESIDUAL}+{RMS}",
    f"{RESIDUAL}+{LAYER}", f"{RESIDUAL}+{RMS}+{NETWORK}", f"{RESIDUAL}+{LAYER}+{NETWORK}",
)  # fmt: skip
LOST = (RESIDUAL, f"{RESIDUAL}+{NETWORK}")
TERMS = ((RESIDUAL, "no v_2"), (RESIDUAL, "no W_12"), (f"{RESIDUAL}+{NETWORK}", "no v_2"))
FEW, MANY = 4, 8  # groups
TABLE = ClaimTable(__name__)
FROZEN = TABLE.tables["frozen"]


@dataclass(frozen=True)
class Point(GroupSizes):
    parts: str = NONE  # joined by +
    trained: str = "all"
    optimizer: str = "sgd"
    lr: float = 0.03
    steps: int = 1000
    batch: int = 100


class Modules(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.claims.group_sparse._layers import BLOCKS, LayeredTransformer
        from whichtoken.theory.group_sparse.descent import descend_on_batches, fresh_batches

        check_choice("parts", point.parts, PARTS)
        check_choice("trained", point.trained, FROZEN)
        trained = set(BLOCKS) - set(FROZEN[point.trained])
        data = random_problem(point.groups, point.group_dim, rng)
        sample, start = rng.spawn(2)
        parts = point.parts.split("+")
        model = LayeredTransformer(point.group_dim, point.groups, parts=parts, trained=trained, rng=start)
        descent = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[point.optimizer](model.parameters(), lr=point.lr)
        descend_on_batches(model, fresh_batches(data, point.batch, rng), descent, point.steps)
        return model.measure(data, TEST_SAMPLES, sample)

    def judge(self, rows: Rows[Point]) -> Checks:
        descent, adam = rows.where(optimizer="sgd"), rows.where(optimizer="adam")
        every = descent.where(trained="all")
        for (parts, groups), runs in group_by(every, "parts", "groups"):
            label, words = f"{parts}.D{groups}", f"{_words(parts)}, {groups} groups"
            if RESIDUAL not in parts:
                yield TABLE.keeps.part(label, words, runs.values("attention"), on=runs)
                yield TABLE.value.part(label, words, runs.values("value_cosine"), on=runs)
            elif parts in LOST:
                selects = TABLE.few_keep if groups == FEW else TABLE.loses
                yield selects.part(label, words, runs.values("attention"), on=runs)
        for beside in ("", f"+{NETWORK}"):
            eight = every.where(groups=MANY)
            two, failed = (
                [row for row in part if row.point.parts in (LAYER + beside, RMS + beside)]
                for part in (eight, eight.failed)
            )
            both = Rows(two, failed)
            more = np.subtract(*pairs(both, "position_share", {"parts": LAYER + beside}, {"parts": RMS + beside}))
            yield TABLE.position.part(LAYER + beside, _words(LAYER + beside), more, on=both)
        for parts, runs in group_by(descent.where(trained="theorem"), "parts"):
            yield TABLE.theorem.part(parts, _words(parts), runs.values("attention"), on=runs)
        for (parts, trained), runs in group_by(descent, "parts", "trained"):
            if trained.startswith("no "):
                both = rows_where(descent, lambda point, parts=parts: point.parts == parts and point.groups == MANY)  # type: ignore[misc]
                change = np.subtract(*pairs(both, "attention", {"trained": trained}, {"trained": "all"}))
                criterion = TABLE.term if (parts, trained) in TERMS else TABLE.idle
                yield criterion.part(
                    f"{parts}.{trained.removeprefix('no ')}", f"{_words(parts)}, {trained}", change, on=runs
                )
        masked = descent.where(parts=RESIDUAL, trained="no v_2")
        yield TABLE.reach(np.array([row.measured["accuracy"] / _possible(row) for row in masked]), on=masked)
        for parts, runs in group_by(rows_where(adam, lambda point: RESIDUAL in point.parts), "parts"):
            change = np.subtract(*pairs(runs, "attention", {"trained": "all"}, {"trained": "theorem"}))
            yield TABLE.adam.part(parts, _words(parts), change, on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantities = {
            "attention on the relevant group": "attention",
            "share of the value on the positions": "position_share",
            "accuracy": "accuracy",
        }
        rows = rows.where(groups=8, optimizer="sgd")
        panels = figure.subplots(2, 1, squeeze=False).ravel()
        for axes, trained, title in zip(panels, ("all", "theorem"), ("All blocks", "v_1 and W_22 alone"), strict=True):
            bars = {
                _words(parts).replace(" + ", "\n"): runs
                for parts, runs in group_by(rows.where(trained=trained), "parts")
            }
            if bars:
                quantity_bars(axes, bars, quantities)
            axes.set_title(title)


def _words(parts: str) -> str:
    return (
        "the model of the theory"
        if parts == NONE
        else parts.replace("-", " ").replace("+", " + ").replace("rms", "RMS")
    )


def _possible(row: Row[Point]) -> Array:
    """Accuracy of v_1 along v* where each group is read once by itself and D times its attention through the others."""
    groups, attention = row.point.groups, row.measured["attention"]
    signal, noise = 1 + groups * attention, 1 + groups * (1 - attention) / (groups - 1)
    return np.asarray(0.5 + np.arctan(signal / (noise * np.sqrt(groups - 1))) / np.pi)
