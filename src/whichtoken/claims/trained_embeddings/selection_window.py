"""Between small and large first steps lies a window in which attention settles on the wrong tokens.

Claim   The flow of p selects every relevant token after a small and after a large first step, but not after a medium one:
        there it selects the right token in all sequences of one label and in none of the other.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, proof of Lemma
        14: nothing is lost if the loss after the first step is below 1/(2n), or rather below what a lost token costs. What
        happens above is measured here; which label is lost follows from the first move of p along v (ours).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims._runs import share_of_runs
from whichtoken.claims.trained_embeddings._starts import FlowPoint, draw_start, selected_share
from whichtoken.lab import Every, Measured, Rows, Share

SMALL, MIDDLE, LARGE, SAFE = 100.0, 300.0, 2000.0, 8000.0
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(FlowPoint):
    arc_length: float = 100.0


class SelectionWindow(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.cls import cls_flow
        from whichtoken.theory.trained_embeddings.lemmas import loss_limit, lost_label

        start = draw_start(point, rng)
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        share = selected_share(path, start)
        scores, values = start.embeddings @ start.cls, start.embeddings @ start.value
        counts, labels = start.data.counts, start.data.labels
        p, means = path.positions[-1], path.scores
        classes = start.data.counts.shape[1] - point.irrelevant
        return {
            "positive": share[1],
            "negative": share[-1],
            "complete": min(share.values()) == 1.0,
            "one_label": sorted(share.values()) == [0.0, 1.0],
            "first_loss": float(np.exp(path.log_losses[0])),
            "loss_limit": loss_limit(values, counts, labels),
            "lost": int(min(share, key=lambda sign: share[sign])),
            "predicted_lost": lost_label(scores, values, counts, labels),
            "cosine_with_value": float(p @ start.value / np.linalg.norm(p)),
            "mean_scores": [
                float(means[: point.relevant].mean()),
                float(means[point.relevant : classes].mean()),
                float(means[classes:].mean()),
            ],
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        actual = rows.where(step="actual")
        small, middle, large = (actual.where(lr=lr) for lr in (SMALL, MIDDLE, LARGE))
        yield TABLE.outside(share_of_runs(small, "complete"), on=small, name="small", lr=SMALL)
        yield TABLE.inside(share_of_runs(middle, "complete"), on=middle)
        yield TABLE.outside(share_of_runs(large, "complete"), on=large, name="large", lr=LARGE)
        failed = Rows(row for row in rows if not row.measured["complete"])
        known = Rows(row for row in failed if row.measured["one_label"])
        astray = failed.where(lr=MIDDLE)
        yield TABLE.one_label(Share(failed.values("one_label")), on=failed)
        yield TABLE.which_label(Share(known.values("lost") == known.values("predicted_lost")), on=known)
        yield TABLE.along_value(np.abs(astray.values("cosine_with_value")), on=astray)
        safe = Rows(row for row in rows if row.measured["first_loss"] < row.measured["loss_limit"])
        yield TABLE.loss_condition(Every(safe.values("complete")), on=safe)
        largest = rows.where(step="flat", lr=SAFE)
        yield TABLE.loss_safe(Share(largest.values("first_loss") < largest.values("loss_limit")), on=largest)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        """Whether most runs select every relevant token after this first step."""
        yield TABLE.outside(share_of_runs(rows, "complete"), on=rows, name="selects", lr=rows[0].point.lr)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for step in rows.levels("step"):
            runs = rows.where(step=step)
            plot_means(left, runs, "lr", "complete", "o-", step)
            plot_means(right, runs, "lr", "first_loss", "o-", step)
        right.axhline(rows[0].measured["loss_limit"], ls=":", color="grey", label="cost of a lost token")
        label_axes(left, "Every relevant token selected", "first step", "share of runs", log="x", legend=True)
        label_axes(right, "Loss after the first step", "first step", log="xy", legend=True)
