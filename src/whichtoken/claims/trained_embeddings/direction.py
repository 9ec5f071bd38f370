"""After the first step, the <cls> vector goes to a max-margin direction, also far below the sizes of the theorem.

Claim   With embeddings fixed after one step, the gradient flow of p diverges, selects every relevant token, and its direction
        tends to the max-margin direction of the tokens it selects.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Theorem 5; on
        the way the inequality of Lemma 9 and the dominant term of Lemma 17. The sizes are ours: a first step of 2000 and 1024
        dimensions, where the theorem asks for a million and 10^111. What it says is judged in `trained-embeddings/theorem`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes, plot_medians
from whichtoken.claims._runs import every_run, rows_where, share_of_runs
from whichtoken.claims.trained_embeddings._starts import FlowPoint, draw_start, measure_flow
from whichtoken.lab import Every, Mean, Measured, Row, Rows, Worst

THIN = 6  # sums over pairs of tokens are computed at every sixth recorded position
TABLE = ClaimTable(__name__)
CASES = TABLE.tables["cases"]


@dataclass(frozen=True)
class Point(FlowPoint):
    arc_length: float = 300.0


class ClsDirection(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.cls import cls_flow
        from whichtoken.theory.trained_embeddings.attention import dominant_share
        from whichtoken.theory.trained_embeddings.lemmas import unique_selection

        start = draw_start(point, rng)
        path = cls_flow(*start.arguments, arc_length=point.arc_length)
        measured, direction, _ = measure_flow(point, path, start)
        counts, labels, values = start.data.counts, start.data.labels, start.embeddings @ start.value
        norms = np.linalg.norm(path.positions, axis=1)
        towards_limit = path.directions @ direction
        outwards = np.einsum("kd,kd->k", path.directions, path.positions) / norms
        best = start.embeddings @ direction
        dominant = [
            dominant_share(start.embeddings @ position, values, counts, labels, best)
            for position in path.positions[::-THIN][::-1]
        ]
        return {
            **measured,
            "only_relevant": path.selected.nnz == len(start.data) and measured["selected"] == 1.0,
            "unique": unique_selection(*start.arguments).holds,
            "increment": float(path.increment_cosines(direction)[-1]),
            "increments": path.increment_cosines(direction),
            "convergence": towards_limit / outwards,  # Lemma 9 asks for at least 1 - epsilon
            "dominant_arc": path.arc[::-THIN][::-1],
            "dominant": dominant,  # Lemma 17
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        cases = {case: runs for case, runs in _cases(rows).items() if runs or runs.failed}
        if not cases:
            return
        one = cases.pop("one-irrelevant", None)
        for case, runs in cases.items():
            yield from _judge_case(case, runs)
        if one is not None:
            yield TABLE.loses(share_of_runs(one, _complete), on=one)
        if not rows:
            return
        complete = _complete_runs(rows)
        yield TABLE.norm(_smallest(rows, "growth"))
        yield TABLE.local_optimality(_smallest(complete, "advantage"), on=complete)
        # our condition for the relevant-only selection: what holds under it
        proven = Rows(row for row in rows if row.measured["unique"])
        yield TABLE.unique(Every(proven.values("only_relevant")), on=proven)
        yield TABLE.lemma_9(Worst(min(row.measured["convergence"][-1] for row in rows)))
        yield TABLE.lemma_17(rows.seed_means(lambda row: abs(1.0 - float(row.measured["dominant"][-1]))))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        titles = {"cosines": "The <cls> vector and its limit", "increments": "Its last step and the limit"}
        for axes, (name, title) in zip((left, middle), titles.items(), strict=True):
            _plot_distance(axes, rows, name, "arc", title, "1 - cosine of the two, median")
        title = "Gradient not from pairs (Lemma 17)"
        _plot_distance(right, rows, "dominant", "dominant_arc", title, "share of the gradient, median")
        left.legend()


def _cases(rows: Rows[Point]) -> dict[str, Rows[Point]]:
    one = rows_where(rows, lambda point: point.irrelevant == 1)
    more = rows_where(rows, lambda point: point.irrelevant != 1)
    return {
        "equal": more.where(step="actual", equal=True),
        "unequal": more.where(step="actual", equal=False),
        "ideal": more.where(step="ideal"),
        "one-irrelevant": one.where(step="actual"),
        "one-irrelevant-ideal": one.where(step="ideal"),
    }


def _complete(row: Row[Point]) -> bool:
    return bool(row.measured["selected"] == 1.0)


def _complete_runs(rows: Rows[Point]) -> Rows[Point]:
    return Rows(filter(_complete, rows))


def _judge_case(case: str, runs: Rows[Point]) -> Checks:
    """What is selected, and where p turns."""
    complete = _complete_runs(runs)
    words: dict[str, Any] = {"case": case, "words": CASES[case]}
    slow = case == "unequal"
    yield TABLE.selects(every_run(runs, _complete), on=runs, **words)
    if not complete:
        yield TABLE.limit([], on=runs, **words)
        return
    yield TABLE.only_relevant(Every(complete.values("only_relevant")), on=complete, **words)
    yield TABLE.limit(complete.values("cosine"), on=complete, value=0.99 if slow else None, **words)
    yield TABLE.increment(complete.values("increment"), on=complete, **words)
    yield TABLE.margin(complete.values("margin_share"), on=complete, value=0.75 if slow else None, **words)


def _smallest(rows: Rows[Point], name: str) -> Worst | Mean:
    return Worst(rows.values(name).min()) if rows else Mean([])


def _kind(point: Point) -> str:
    frequencies = CASES["equal"] if point.equal else CASES["unequal"]
    data = CASES["one-irrelevant"] if point.irrelevant == 1 else frequencies
    return data if point.step == "actual" else f"{data}, {point.step}"


def _plot_distance(axes: Any, rows: Rows[Point], name: str, along: str, title: str, y: str) -> None:
    """How far a curve is from 1 on the way, for each kind of run."""
    for kind in dict.fromkeys(_kind(row.point) for row in rows):
        runs = Rows(row for row in rows if _kind(row.point) == kind)
        away = np.abs(1 - runs.values(name))
        arc = np.array(runs[0].measured[along])[-away.shape[1] :]
        plot_medians(axes, arc[1:], np.maximum(away, 1e-16)[:, 1:], kind)
    label_axes(axes, title, "way of the vector so far (arc length)", y, log="xy")
