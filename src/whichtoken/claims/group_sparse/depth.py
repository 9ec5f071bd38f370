"""Residuals, normalization, a readout network, a second layer: which keep the selection.

Claim   LayerNorm and a readout network leave the selection of the relevant group in place; a residual connection lets the
        model classify without it, and in two layers no single layer need show it.
Source  Open questions of Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification
        (arXiv 2504.08638, conclusion); the answers at this size are measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.checks import check_choice
from whichtoken.claims._checks import Above, AtLeast, AtMost, Checks, pool_parts
from whichtoken.claims._figures import Figure, quantity_bars
from whichtoken.claims._runs import group_by, pairs, rows_where, share_of_runs
from whichtoken.claims.group_sparse._training import TEST_SAMPLES, GroupSizes, random_problem
from whichtoken.lab import Experiment, Grid, Measured, Rows

PARTS: dict[str, dict[str, Any]] = {
    "theory": {},
    "factored": {"key_dim": 12},
    "residual": {"residual": True},
    "layer norm": {"layer_norm": True},
    "network": {"hidden": 32},
    "residual, layer norm, network": {"residual": True, "layer_norm": True, "hidden": 32},
    "two layers": {"layers": 2},
    "two layers, residual": {"layers": 2, "residual": True},
    "two layers, all": {"layers": 2, "residual": True, "layer_norm": True, "hidden": 32},
}
KEEPS = ("layer norm", "two layers")
BYPASSES = ("residual", "network", "residual, layer norm, network", "two layers, residual", "two layers, all")
SELECTED = 0.6  # attention from input to output from which on the group counts as selected

ACCURACY = Above("depth.accuracy", 0.9, "accuracy, whatever the mechanism")
SELECTS = Above("depth.selects", SELECTED, "attention on the relevant group from input to output")
FACTORED = Above("depth.factored", 0.5, "keys and queries apart: share of runs that select the relevant group")
KEPT = AtLeast(
    "depth.kept",
    0.0,
    "attention on the relevant group minus that of the model of the theory on the same data",
    regime="beyond-hypotheses",
)
BYPASSED = AtMost(
    "depth.bypassed",
    0.0,
    "attention on the relevant group minus that of the model of the theory on the same data, as accuracy does without it",
    regime="beyond-hypotheses",
)


@dataclass(frozen=True)
class Point(GroupSizes):
    parts: str = "theory"
    lr: float = 0.01  # of Adam
    steps: int = 400
    batch: int = 100


class Depth(Experiment[Point]):
    id = "group-sparse/depth"
    version = 2
    needs = "torch"
    spot = Point(groups=4, steps=50, batch=50)
    presets = {
        "quick": (Grid(parts=["theory", "residual", "layer norm"], steps=300, seeds=4),),
        "full": (
            Grid(parts=[parts for parts in PARTS if parts != "factored"], steps=1000, batch=150, seeds=(6, 12)),
            Grid(parts="factored", steps=1000, batch=150, seeds=(10, 40)),  # each run ends in one of two ways
        ),
    }
    method_fields = frozenset({"parts", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.claims.group_sparse._transformer_variants import GroupTransformerProbe
        from whichtoken.theory.group_sparse.descent import descend_on_batches, fresh_batches

        check_choice("parts", point.parts, PARTS)
        data = random_problem(point.groups, point.group_dim, rng)
        start = torch.Generator().manual_seed(int(rng.integers(2**31)))
        model = GroupTransformerProbe(point.group_dim, point.groups, **PARTS[point.parts], generator=start)
        optimizer = torch.optim.Adam(model.parameters(), lr=point.lr)
        descend_on_batches(model, fresh_batches(data, point.batch, rng), optimizer, point.steps)
        X, y = map(torch.from_numpy, data.sample(TEST_SAMPLES, rng))
        relevant = int(data.relevant[0])
        with torch.no_grad():
            layers = model.attention(X)[:, :, relevant].mean(dim=(1, 2))
            return {
                "accuracy": float((y * model(X) > 0).double().mean()),
                "attention": float(layers.max()),
                "layers": layers.numpy(),
                "rollout": float(model.rollout(X)[:, relevant].mean()),
            }

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        by_parts = list(group_by(rows, "parts"))
        for parts, runs in by_parts:
            yield ACCURACY.part(_label(parts), _words(parts), runs.values("accuracy"), on=runs)
            if parts in ("theory", *KEEPS):
                yield SELECTS.part(_label(parts), _words(parts), runs.values("rollout"), on=runs)
        for criterion, chosen in ((KEPT, KEEPS), (BYPASSED, BYPASSES)):
            for parts, _ in by_parts:
                if parts in chosen:
                    both = rows_where(rows, lambda point, parts=parts: point.parts in (parts, "theory"))  # type: ignore[misc]
                    change = np.subtract(*pairs(rows, "rollout", {"parts": parts}, {"parts": "theory"}))
                    yield criterion.part(_label(parts), _words(parts), change, on=both)
        factored = rows.where(parts="factored")
        yield FACTORED(share_of_runs(factored, lambda row: row.measured["rollout"] > SELECTED), on=factored)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantity_bars(
            figure.subplots(),
            {
                _words(parts).replace(", ", ",\n").replace("model of", "model\nof"): runs
                for parts, runs in group_by(rows, "parts")
            },
            {
                "accuracy": "accuracy",
                "attention on the relevant group, best layer": "attention",
                "from input to output": "rollout",
            },
        )


def _words(parts: str) -> str:
    return "the model of the theory" if parts == "theory" else parts


def _label(parts: str) -> str:
    return parts.replace(", ", "-").replace(" ", "-")
