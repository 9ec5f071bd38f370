"""Residuals, normalisation, a read-out network, a second layer: which keep the selection.

Claim   LayerNorm and a read-out network leave the selection of the relevant group in place; a residual connection lets the
        model classify without it, and in two layers no single layer need show it.
Source  Open questions of Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification
        (arXiv 2504.08638, conclusion); the answers at this size are measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.experiments.group_sparse._training import TEST_SAMPLES, random_problem
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Point:
    groups: int = 8
    group_dim: int = 4
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
        "quick": (Grid(parts=["theory", "residual", "layer norm"], steps=300, seeds=(4, 8)),),
        "full": (Grid(parts=list(PARTS), steps=1000, batch=150, seeds=(5, 10)),),
    }
    method_fields = frozenset({"parts", "lr", "steps", "batch"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.models.group_probe import GroupTransformerProbe
        from whichtoken.training.group_descent import descend_on_batches, fresh_batches

        if point.parts not in PARTS:
            raise ValueError(f"parts={point.parts!r} must be one of {', '.join(PARTS)}")
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

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for parts in rows.levels("parts"):
            runs = rows.where(parts=parts)
            yield at_least(
                f"depth.accuracy.{_code(parts)}",
                f"{_words(parts)}: accuracy",
                bound=0.9,
                measured=Mean(runs.values("accuracy")),
            )
            if parts in ("residual", "two layers, residual"):
                yield at_most(
                    f"depth.bypassed.{_code(parts)}",
                    f"{_words(parts)}: attention on the relevant group from input to output, as accuracy does without it",
                    bound=0.7,
                    measured=Mean(runs.values("rollout")),
                )
            else:
                yield at_least(
                    f"depth.selects.{_code(parts)}",
                    f"{_words(parts)}: attention on the relevant group from input to output",
                    bound=0.6,
                    measured=Mean(runs.values("rollout")),
                )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        from whichtoken.display.figures import grouped_bars

        names = rows.levels("parts")
        quantities = {
            "accuracy": "accuracy",
            "attention on the relevant group, best layer": "attention",
            "from input to output": "rollout",
        }
        samples = {
            label: [rows.where(parts=name).values(quantity) for name in names] for label, quantity in quantities.items()
        }
        grouped_bars(
            figure.subplots(),
            [_words(name).replace(", ", ",\n").replace("model of", "model\nof") for name in names],
            samples,
        )


def _words(parts: str) -> str:
    return "the model of the theory" if parts == "theory" else parts


def _code(parts: str) -> str:
    return parts.replace(", ", "-").replace(" ", "-")
