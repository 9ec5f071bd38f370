"""What of the max-margin limit survives when an assumption is dropped?

Claim   The flow of p selects every relevant token and turns to the max-margin direction of its selection also with two
        relevant tokens per sequence, irrelevant tokens of chance frequency, gradient descent, other starts, a trained
        key-query matrix, and fewer dimensions than tokens.
Source  Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens, Theorem 5, which
        covers none of these; what holds without its assumptions is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken import datasets, flows
from whichtoken.checks import check_choice
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import every_run, group_by, share_of_runs
from whichtoken.claims.trained_embeddings._starts import Start, Vector, selection_limit, take_first_step
from whichtoken.lab import Measured, Rows
from whichtoken.theory import trained_embeddings

if TYPE_CHECKING:
    from whichtoken.flows.cls import ClsPath

TABLE = ClaimTable(__name__)
WORDS = TABLE.tables["dropped"]
KEPT = ("nothing", "descent", "key-query")  # the data and the start of the theorem, which speaks of every run
LOST = ("start-along-value",)
SAME = ("descent", "key-query")  # of which the paper says that nothing changes
TURNS = 0.999  # least cosine of the last increment and the max-margin direction


@dataclass(frozen=True)
class Point:
    dropped: str = "nothing"
    pairs: int = 32
    length: int = 8
    relevant: int = 4
    irrelevant: int = 24
    dim: int = 1024
    lr: float = 2000.0
    arc_length: float = 300.0
    start_norm: float = 10.0  # norm of p where a start is changed
    descent_lr: float = 0.01  # larger steps oscillate along v, where the first step has stretched the embeddings
    descent_steps: int = 20_000


class Assumptions(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:

        start = _start(point, rng)
        path = _path(point, start)
        measured: dict[str, Any] = {"selected": _selected_share(path, start), "arc": float(path.arc[-1])}
        if point.dropped == "descent":
            flow = flows.cls_flow(*start.arguments, arc_length=float(path.arc[-1]))
            measured["flow_cosine"] = float(flow.cosines(path.positions[-1])[-1])
        try:
            direction, _ = selection_limit(start.embeddings, start.data.counts, path.selected)
        except ValueError:
            return measured | {"separable": False}
        return measured | {
            "separable": True,
            "cosine": float(path.cosines(direction)[-1]),
            "increment": float(path.increment_cosines(direction)[-1]),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        for name, runs in sorted(group_by(rows, "dropped"), key=lambda group: group[0] in SAME):
            yield from _judge_dropped(name, runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        names = rows.levels("dropped")
        for place, name in enumerate(names):
            runs = rows.where(dropped=name)
            left.plot(runs.values("selected"), np.full(len(runs), place), "o", alpha=0.5)
            found = [1 - row.measured["increment"] for row in runs if row.measured["separable"]]
            right.plot(np.maximum(found, 1e-16), np.full(len(found), place), "o", alpha=0.5)
        left.set_yticks(range(len(names)), [WORDS[name] for name in names])
        label_axes(left, "Sequences with a relevant token selected", "share of them in a run", xlim=(-0.03, 1.03))
        label_axes(right, "Last step and max-margin direction", "1 - cosine of the two", log="x")


def _judge_dropped(name: str, runs: Rows[Point]) -> Checks:
    """Whether relevant tokens are selected, and where p turns."""
    words: dict[str, Any] = {"name": name, "words": WORDS[name], "on": runs}
    if name in SAME:
        words["within"] = TABLE.same
    every = name in KEPT
    share = every_run if every else share_of_runs
    criterion = TABLE.selects_all if every else TABLE.loses if name in LOST else TABLE.selects
    yield criterion(share(runs, lambda row: row.measured["selected"] == 1.0), **words)
    # descent is too slow to come near its limit: |p| grows as the logarithm of the steps
    if name == "descent":
        yield TABLE.follows(runs.values("flow_cosine"), **words)
        return
    turns = share(runs, lambda row: row.measured["separable"] and row.measured["increment"] >= TURNS)
    yield TABLE.limit(turns, value=1.0 if every else None, **words)


def _start(point: Point, rng: np.random.Generator) -> Start:
    """The usual data and first step, except for what is dropped."""
    check_choice("dropped", point.dropped, WORDS)
    generator = datasets.RelevantTokens(
        point.length,
        point.relevant,
        point.irrelevant,
        relevant_per_sequence=2 if point.dropped == "two-relevant" else 1,
        paired=point.dropped != "chance-frequency",
    )
    start = take_first_step(generator.sample(point.pairs, rng), point.dim, point.lr, "actual", rng)
    if point.dropped not in ("start-norm", "start-along-value"):
        return start
    towards: Vector = start.cls if point.dropped == "start-norm" else start.value
    cls = point.start_norm * towards / np.linalg.norm(towards)
    return Start(start.data, start.initial, start.embeddings, cls, start.value)


def _path(point: Point, start: Start) -> ClsPath:
    from whichtoken.flows.cls import cls_descent, key_query_flow

    if point.dropped == "descent":
        return cls_descent(*start.arguments, lr=point.descent_lr, steps=point.descent_steps)
    flow = key_query_flow if point.dropped == "key-query" else flows.cls_flow
    return flow(*start.arguments, arc_length=point.arc_length)


def _selected_share(path: ClsPath, start: Start) -> float:
    """Share of sequences whose largest score is that of a relevant token."""
    relevant = trained_embeddings.token_classes(start.data.counts, start.data.labels).relevant
    first = trained_embeddings.selection_sets(path.scores, start.data.counts, tie=0.0).astype(np.int64)
    return float(np.mean(first @ relevant.astype(np.int64) > 0))
