"""Deeper attention with several heads reads tuples of tokens, and classifies by their statistics; one layer cannot.

Claim   Where only k tokens in a row tell the label, or only the token that followed the last one before, the output of deep
        models with several heads follows the summed log-odds of these tuples: two layers for pairs, three for triples and for
        induction. Earlier layers attend to the other tokens of a tuple, and form an induction head; one layer does neither.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens (arXiv 2505.17282),
        concluding remarks, a conjecture without sizes; generators, model and thresholds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims._runs import group_by, pairs, rows_where
from whichtoken.lab import Measured, Rows

HELD_OUT = 4000
NEEDED = {"pairs": (2, 2), "triples": (3, 4), "induction": (3, 2)}  # layers, and heads, that are expected to do
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    task: Literal["pairs", "triples", "induction"] = "pairs"
    layers: int = 2  # the last is the <cls> query
    heads: int = 4
    dim: int = 32
    certainty: float = 0.9  # of the label, given one clear tuple
    steps: int = 1200  # of Adam, each on fresh sequences
    batch: int = 128
    lr: float = 3e-3


class Tuples(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        import torch

        from whichtoken.claims.trained_embeddings._tuples import AdjacentTuples, DeepAttention, Induction

        k = {"pairs": 2, "triples": 3}.get(point.task)
        law = AdjacentTuples(k, point.certainty) if k else Induction(point.certainty)
        sizes = {"dim": point.dim, "heads": point.heads, "layers": point.layers}
        model = DeepAttention(law.kinds, law.length, **sizes, rng=rng.spawn(1)[0])
        optimizer = torch.optim.Adam(model.parameters(), point.lr, fused=True)
        for _ in range(point.steps):
            ids, labels, _ = law.sample(point.batch, rng)
            loss = torch.nn.functional.softplus(-torch.from_numpy(labels) * model(torch.from_numpy(ids))).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        ids, labels, statistics = law.sample(HELD_OUT, rng)
        with torch.no_grad():
            outputs, weights = model.attend(torch.from_numpy(ids))
        decided = statistics != 0  # where the tuples say nothing, no rule is better than another
        model_right, best = (np.mean((found * labels > 0)[decided]) for found in (outputs.numpy(), statistics))
        return {
            "correlation": float(np.corrcoef(outputs.numpy(), statistics)[0, 1]),
            "lost": float(best - model_right),
            **law.structure(torch.from_numpy(ids), weights),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        sizes = "layers heads", "L{}.h{}", "{} layers, {} heads"
        for task, runs in group_by(rows, "task"):
            needed, several = NEEDED[task]
            others = rows_where(runs, lambda point: point.dim != Point.dim)
            yield from TABLE.width.each(others, "dim", "d{}", "{} dimensions", "correlation", task=task)
            runs = runs.where(dim=Point.dim)
            for layers, some in ((needed - 1, TABLE.shallow), (needed, TABLE.follows), (needed + 1, TABLE.follows)):
                same = rows_where(runs.where(layers=layers), lambda point, several=several: point.heads >= several)  # type: ignore[misc]
                if layers > 1:
                    yield from some.each(same, *sizes, "correlation", task=task)
                if layers >= needed:
                    yield from TABLE.accuracy.each(same, *sizes, "lost", task=task)
                    for criterion in (TABLE.within, TABLE.before, TABLE.after):
                        name = criterion.code.split(".")[1]
                        known = Rows((row for row in same if name in row.measured), same.failed)
                        yield from criterion.each(known, *sizes, name, task=task)
            yield from TABLE.one_layer.each(runs.where(layers=1), "task", "{}", "{}", "correlation")
            enough = runs.where(layers=needed)
            if {1, most := max(enough.levels("heads"), default=1)} <= set(enough.levels("heads")) and most > 1:
                gain = np.subtract(*pairs(enough, "correlation", {"heads": most}, {"heads": 1}))
                yield TABLE.heads(gain, on=enough, task=task)
                yield TABLE.one_head(enough.where(heads=1).values("correlation"), on=enough.where(heads=1), task=task)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield TABLE.mostly(rows.values("correlation"), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        *each, last = figure.subplots(1, len(NEEDED) + 1)
        for axes, (task, (needed, _)) in zip(each, NEEDED.items(), strict=True):
            for heads, runs in group_by(rows.where(task=task, dim=Point.dim), "heads"):
                plot_means(axes, runs, "layers", "correlation", f"C{heads}o-", f"{heads} heads")
            label_axes(axes, task, "layers", "correlation with the tuples", ylim=(0, 1.05), legend=bool(axes.lines))
            plot_means(last, rows.where(task=task, layers=needed, heads=Point.heads), "dim", "correlation", "o-", task)
        label_axes(last, "enough layers", "dimensions", log="x", ylim=(0, 1.05), legend=bool(last.lines))
