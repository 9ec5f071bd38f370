"""The regularization path leads to the same max-margin direction as mirror descent.

Claim   As the bound R on |W|_p grows, the direction of the best key-query matrix of that norm tends to the max-margin
        direction that separates the best token of every sequence; the divergence falls as R^-2.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581), global regularization
        path; the rate is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from whichtoken import datasets, flows
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes, plot_medians
from whichtoken.claims._problems import ProblemSize, key_query_limit
from whichtoken.claims._runs import group_by, mean_of_runs, resampled_runs
from whichtoken.lab import Measured, Rows
from whichtoken.theory import mirror_descent

RADII = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
JUDGED = 300.0  # radius at which the divergence is judged
FAR = 10000.0  # the rate is fitted from this radius on
TABLE = ClaimTable(__name__)
# with p = 1.1 single entries are still small against 1 / R at the last radius: pilots gave -1.93 in the mean
TOLERANCE_NEAR_ONE = 0.15


@dataclass(frozen=True)
class Point(ProblemSize):
    p: float = 2.0


class Path(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:

        problem = datasets.AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        path = flows.regularization_path(problem, RADII, p=point.p, rng=rng)
        direction, limit = key_query_limit(problem, path.selected, point.p)
        divergence = np.array(
            [mirror_descent.directional_divergence(direction, each, point.p) for each in path.directions]
        )
        far = path.radii >= FAR
        return {
            "divergence": divergence,
            "judged": divergence[list(RADII).index(JUDGED)],
            "exponent": np.polyfit(np.log(path.radii[far]), np.log(divergence[far]), 1)[0],
            "margin": limit.margin,
            "log_excess": path.log_excess,
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        judged = partial(mean_of_runs, quantity="judged", failed=1.0)
        yield from TABLE.limit.each(rows, "p", "p{:g}", "p = {:g}", judged)
        for p, runs in group_by(rows, "p"):
            # a median, for where an entry of W changes sign on the way the exponent is not that of a power law
            exponent, tolerance = resampled_runs(runs, "exponent"), None if p >= 1.5 else TOLERANCE_NEAR_ONE
            yield TABLE.rate.part(f"p{p:g}", f"p = {p:g}", exponent, on=runs, tolerance=tolerance)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for p in rows.levels("p"):
            runs = rows.where(p=p)
            plot_medians(left, RADII, runs.values("divergence"), f"p = {p:g}", marker="o")
            leads = np.outer(runs.values("margin"), RADII)
            right.plot(leads.ravel(), runs.values("log_excess").ravel(), ".", label=f"p = {p:g}")
        x = "bound R on the length of W"
        label_axes(left, "Divergence from the limit", x, "median over problems", log="xy", legend=True)
        label_axes(right, "Loss above its infimum", "bound R times the margin of the limit", "log of (loss - infimum)")
