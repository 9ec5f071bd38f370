"""The steps of the proofs, one by one, where they are stated.

Claim   At a random start the attention weights, outputs and slopes are within d^(-1/4) of uniform, zero and one half, and the
        gradient of p is at most 8 d^(-1/4); the first step moves embeddings within the span of v and p; the max-margin problem
        has one solution; late in training pairs of first and second tokens dominate at an exponential rate.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, appendices D.1 and
        D.2, Lemmas 3 and 17, equation (27).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken import datasets, flows
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import every_run
from whichtoken.claims.trained_embeddings import _starts as starts
from whichtoken.lab import Measured, Rows, Worst
from whichtoken.theory import trained_embeddings

TABLE = ClaimTable(__name__)
D_1 = TABLE.tables["start"]  # what is bounded over its bound
SIZES = 2.0 ** np.arange(9)  # |p| at which pairs are compared


@dataclass(frozen=True)
class Point:
    pairs: int = 8
    length: int = 4
    relevant: int = 2
    irrelevant: int = 6
    dim: int = 4096  # more than D.1 asks for: (2 log(|S|^2 / 0.05))^2 is 265
    lr: float = 100.0
    arc_length: float = 100.0


class ProofSteps(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.trained_embeddings.one_step import first_step

        law = datasets.RelevantTokens(point.length, point.relevant, point.irrelevant)
        data = law.sample(point.pairs, rng)
        E, p, v = starts.random_parameters(law.size, point.dim, rng)
        moved, cls = first_step(E, p, v, data.counts, data.labels, point.lr)
        start = starts.Start(data, E, moved, cls, v)
        path = flows.cls_flow(*start.arguments, arc_length=point.arc_length)
        basis = np.linalg.qr(np.stack([v, p], axis=1))[0]
        step = moved - E
        outputs = [
            trained_embeddings.attend(moved @ position, moved @ v, data.counts, data.labels).outputs * data.labels
            for position in path.positions[::10]
        ]
        slopes = -np.logaddexp(0.0, np.array(outputs))  # log g
        return {
            **_start_ratios(E, p, v, data, point),
            "off_span": float(np.linalg.norm(step - step @ basis @ basis.T) / np.linalg.norm(step)),
            "full_rank": int(np.linalg.matrix_rank(E)) == law.size,
            "slope_ratio": float(np.ptp(slopes, axis=1).max() - np.logaddexp(0.0, point.lr)),
            "solutions_apart": _solutions_apart(start, path, rng),
            "over_bound": _late_pairs(start, path.positions[-1], point),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        if not rows:
            return
        for name, what in D_1.items():
            yield TABLE.bound(Worst(rows.values(name).max()), name=name.replace("_", "-"), what=what)
        yield TABLE.span(Worst(rows.values("off_span").max()))
        yield TABLE.full_rank(every_run(rows, "full_rank"))
        yield TABLE.unique(Worst(rows.values("solutions_apart").max()))
        yield TABLE.late_pairs(Worst(rows.values("over_bound").max()))
        yield TABLE.slopes(Worst(rows.values("slope_ratio").max()))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for name, what in D_1.items():
            axes.plot([row.point.dim for row in rows], rows.values(name), "o", alpha=0.5, label=what)
        label_axes(axes, "Inequalities at the start", "dim", "what is bounded over its bound", log="xy", legend=True)


def _start_ratios(E: starts.Vector, p: starts.Vector, v: starts.Vector, data: Any, point: Point) -> dict[str, float]:
    """The inequalities of D.1, each as what is bounded over its bound."""
    seen, small = trained_embeddings.attend(E @ p, E @ v, data.counts, data.labels), point.dim**-0.25
    weights = np.exp(seen.log_weights) / data.counts.data  # of one occurrence
    slopes = 1 / (1 + np.exp(data.labels * seen.outputs))
    _, along_cls = seen.gradients()
    return {
        "weights": float(np.abs(point.length * weights - 1).max() / (4 * small)),
        "outputs": float(np.abs(seen.outputs).max() / (2 * small)),
        "slopes": float(np.abs(slopes - 0.5).max() / small),
        "cls_gradient": float(np.linalg.norm(along_cls @ E) / (8 * small)),
    }


def _solutions_apart(start: starts.Start, path: Any, rng: np.random.Generator) -> float:
    """Distance of the unit solutions of (9) for tokens in two orders; sequences are reversed, too."""
    direction, _ = starts.selection_limit(start.embeddings, path.counts, path.selected)
    order = rng.permutation(len(start.embeddings))
    counts, selected = (array[::-1][:, order].tocsr() for array in (path.counts, path.selected))
    other, _ = starts.selection_limit(start.embeddings[order], counts, selected)
    return float(np.linalg.norm(direction - other))


def _late_pairs(start: starts.Start, position: starts.Vector, point: Point) -> float:
    """By how much the bound of Lemma 17 is exceeded, in logarithms, for p = R p-bar and p-hat = p-bar, the last direction.

    The constants are those of the proof: |B1| + |B2| <= (T + T^2) C3 C4 exp(-tau_1 R) B0.
    """
    from whichtoken.theory.trained_embeddings.attention import dominant_share

    E, data = start.embeddings, start.data
    values, scores = E @ start.value, E @ position / np.linalg.norm(position)
    gaps, advantages = [], []
    for x, label in enumerate(data.labels):
        tokens = data.counts.indices[data.counts.indptr[x] : data.counts.indptr[x + 1]]
        ranked = tokens[np.argsort(-scores[tokens])]
        gaps.append(-np.diff(scores[ranked])[:2])
        advantages.append(label * (values[ranked[0]] - values[ranked[1]]))
    gap, margin, advantage = min(map(min, gaps)), min(each[0] for each in gaps), min(advantages)
    shares = [dominant_share(size * scores, values, data.counts, data.labels, scores, tie=0.0) for size in SIZES]
    rests = np.abs(1 / np.array(shares) - 1)
    longest = np.linalg.norm(E, axis=1).max()
    constant = (point.length + point.length**2) * (2 * longest / margin) * (2 * point.length * longest / advantage)
    return float((np.log(np.maximum(rests, 1e-300)) - np.log(constant) + gap * SIZES).max())
