"""Smaller p, sparser attention weights.

Claim   The effective number of non-zero entries of the max-margin limit falls as p falls to 1, down to that of the l_1
        linear program, and trained matrices are as sparse as their limits.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581) observe sparser weights
        at p = 1.1; the count against p and its linear-program end are measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 0.01  # entries below this fraction of the largest count as zero
NEAR_ONE = 1.05
EXPONENTS = [1.0, NEAR_ONE, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0]


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    p: float = 2.0
    steps: int = 3000


class Sparsity(Experiment[Point]):
    id = "mirror-descent/sparsity"
    version = 2
    presets = {
        # the step from 1.05 to the linear program is decided by hundreds of problems
        "quick": (Grid(p=[p for p in EXPONENTS if p != NEAR_ONE], seeds=(10, 20)),),
        "full": (Grid(p=EXPONENTS, seeds=100), Grid(p=[1.0, NEAR_ONE], seeds=(100, 400))),
    }
    method_fields = frozenset({"p", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionTokens
        from whichtoken.flows.descent import attention_descent
        from whichtoken.margin import key_query_svm

        problem = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        start = 1e-3 * rng.standard_normal((point.dim, point.dim))
        # one selection for every p, so that only the norm changes
        best = key_query_svm(problem.tokens, problem.queries, problem.token_scores.argmax(axis=1), p=point.p)
        measured = _sparsity(best.direction, "limit")
        if point.p > 1:
            # the geometric rule is a hundred times faster for p > 2, where constant steps let W grow as a root only
            rule: Literal["geometric", "normalized"] = "geometric" if point.p > 2 else "normalized"
            lr = 0.01 if point.p > 2 else 1.0
            descent = attention_descent(problem, start, p=point.p, lr=lr, steps=point.steps, rule=rule)
            own = key_query_svm(problem.tokens, problem.queries, descent.selected, p=point.p)
            measured |= _sparsity(descent.final.direction, "trained") | _sparsity(own.direction, "own_limit")
        return measured

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        yield at_least(
            "sparsity.monotone",
            "share of neighbouring exponents at which the larger p has more effective entries",
            bound=0.95,
            measured=Mean(rows.per_seed(_increasing)),
        )
        if NEAR_ONE in rows.levels("p"):
            yield at_most(
                "sparsity.linear-program",
                f"effective entries of the l_{NEAR_ONE:g} limit over those of the linear program",
                bound=1.3,
                measured=Mean(rows.per_seed(lambda repeat: _ratio(repeat, NEAR_ONE, 1.0))),
            )
        yield at_least(
            "sparsity.gain",
            "effective entries of the l_2 limit over those of the l_1.1 limit",
            bound=3.0,
            measured=Mean(rows.per_seed(lambda repeat: _ratio(repeat, 2.0, 1.1))),
        )
        trained = Rows(row for row in rows if row.point.p > 1)
        yield at_most(
            "sparsity.trained",
            "relative difference of effective entries, trained matrix against its limit",
            bound=0.01,
            measured=Mean(trained.per_seed(_mean_difference)),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, name, title in (
            (left, "nonzeros", "Effective entries"),
            (right, "small", f"Share below {SMALL:.0%} of the largest"),
        ):
            for kind, marker in (("limit", "o-"), ("trained", "x")):
                found = [(p, _values(rows, p, f"{kind}_{name}")) for p in sorted(rows.levels("p"))]
                drawn = [(p, values.mean()) for p, values in found if len(values)]
                axes.plot(
                    *zip(*drawn, strict=True), marker, label={"limit": "max-margin limit", "trained": "trained"}[kind]
                )
            axes.set(title=title, xlabel="p", ylim=(0, None))
        left.axhline(rows[0].point.dim ** 2, ls=":", color="grey", lw=1)
        left.legend()


def _sparsity(weights: np.ndarray | None, name: str) -> dict[str, float]:
    from whichtoken.theory.mirror_descent import effective_nonzeros

    if weights is None:
        raise ValueError("the selected tokens cannot be separated: no limit exists")
    magnitudes = np.abs(weights)
    return {
        f"{name}_nonzeros": effective_nonzeros(weights),
        f"{name}_small": float(np.mean(magnitudes < SMALL * magnitudes.max())),
    }


def _values(rows: Rows[Point], p: float, name: str) -> np.ndarray:
    return np.array([row.measured[name] for row in rows.where(p=p) if name in row.measured])


def _increasing(repeat: Rows[Point]) -> float | None:
    ordered = sorted(repeat, key=lambda row: row.point.p)
    counts = np.array([row.measured["limit_nonzeros"] for row in ordered])
    return float(np.mean(np.diff(counts) > 0)) if len(counts) > 1 else None


def _ratio(repeat: Rows[Point], p: float, to: float) -> float | None:
    above, below = _values(repeat, p, "limit_nonzeros"), _values(repeat, to, "limit_nonzeros")
    return float(above[0] / below[0]) if len(above) and len(below) else None


def _mean_difference(repeat: Rows[Point]) -> float | None:
    pairs = [(row.measured["trained_nonzeros"], row.measured["own_limit_nonzeros"]) for row in repeat]
    return float(np.mean([abs(trained / limit - 1) for trained, limit in pairs])) if pairs else None
