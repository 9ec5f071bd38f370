"""Where its conditions hold, joint training ends in both max-margin problems.

Claim   If the selected tokens can be separated and classified, all of them support the decoder and none of a sequence scores
        higher than the selected one, then key-query matrix and decoder, trained together, both end in their own max-margin
        directions, whatever the ratio of their norms. Where a sequence does not support the decoder, W often ends elsewhere,
        unless the decoder grows much more slowly.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581), abstract: under conditions the
        joint optimization converges to the respective hard-margin solutions. The conditions were not read: these are ours
        (`joint_conditions`), and a user can check them on data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._problems import cosine, decoder_limit, draw_problem, key_query_limit, share_of_repeats
from whichtoken.claims._runs import group_by
from whichtoken.lab import Measured, Row, Rows

NEAR = 0.999  # smallest cosine at which a limit counts as reached
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    sequences: int = 3
    length: int = 5
    dim: int = 8
    p: float = 2.0
    lr: float = 1.0
    lr_decoder: float = 3.0
    steps: int = 10000


class JointConvergence(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import joint_descent
        from whichtoken.theory.mirror_descent import joint_conditions

        drawn, start = draw_problem(point, rng, 0.0)
        problem = replace(drawn, decoder=np.zeros(point.dim))
        descent = joint_descent(
            problem, start, p=point.p, lr=point.lr, lr_decoder=point.lr_decoder, steps=point.steps
        )  # fmt: skip
        found = joint_conditions(problem.tokens, problem.queries, problem.labels, descent.selected, point.p)
        weights, _ = key_query_limit(problem, descent.selected, point.p)
        decoder, _, _ = decoder_limit(problem, descent.selected, point.p)
        return {
            "hold": found.hold,
            "supports": found.every_sequence_supports,
            "ratio": descent.final.ratio,
            "cosine_weights": cosine(weights, descent.final.weights.direction),
            "cosine_decoder": cosine(decoder, descent.final.decoder.direction),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        for (p, lr, lr_decoder), runs in group_by(rows, "p", "lr", "lr_decoder"):
            label, words = f"p{p:g}.v{lr_decoder:g}", f"p = {p:g}, steps of {lr:g} and {lr_decoder:g}"
            for criterion, holds in ((TABLE.both, True), (TABLE.hold, None), (TABLE.missing, False)):
                if holds is None:
                    yield TABLE.hold.part(label, words, share_of_repeats(runs.seed_means("hold")), on=runs)
                # with a decoder that stays small the limit of W is that of all sequences, whether they support it or not
                elif holds or lr_decoder >= lr:
                    group = Rows(row for row in runs if row.measured["hold"] == holds)
                    near = share_of_repeats(group.seed_means(_reaches_both))
                    yield criterion.part(label, f"{words}, {len(group)} of {len(runs)} runs", near, on=runs)
        supported = Rows(row for row in rows if row.measured["supports"])
        yield TABLE.support(share_of_repeats(supported.seed_means(_reaches_both)), on=rows)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        """The conclusion under its conditions, and without them."""
        for criterion, runs in ((TABLE.both, Rows(row for row in rows if row.measured["hold"])), (TABLE.anyhow, rows)):
            yield criterion(share_of_repeats(runs.seed_means(_reaches_both)), on=runs)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for held, marker, label in ((True, "o", "all conditions hold"), (False, "x", "not all hold")):
            if runs := Rows(row for row in rows if row.measured["hold"] == held):
                distance = [max(1 - least_cosine(row.measured), 1e-12) for row in runs]
                axes.plot(runs.values("ratio"), distance, marker, ms=4, alpha=0.6, label=label)
        x, y = "length of the decoder over that of W", "1 - cosine to the limit, W or v"
        label_axes(axes, "Distance from both max-margin limits", x, y, log="xy", legend=True)


def _reaches_both(row: Row[Point]) -> bool:
    return least_cosine(row.measured) >= NEAR


def least_cosine(measured: Measured) -> float:
    """The smaller of the cosines of W and v to their limits."""
    return float(min(measured["cosine_weights"], measured["cosine_decoder"]))
