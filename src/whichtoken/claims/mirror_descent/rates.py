"""How fast mirror descent on attention finds its direction.

Claim   The divergence from the max-margin limit falls poly-logarithmically in time under plain steps, and as a power of
        the number of steps, k**-2 for p <= 2 and k**(-2/(p-1)) above, under normalized ones; a linear classifier on the
        same constraints is no faster, and the loss does not matter.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581): a rate comparable to that
        of gradient descent in simpler models (abstract), poly-logarithmic for plain steps (excerpt). The exponent of that bound
        is recalled, not read; all measured exponents, and the rates of normalized steps, are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken import flows
from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Axes, Figure, label_axes
from whichtoken.claims._problems import ProblemSize, draw_problem, key_query_limit
from whichtoken.claims._runs import group_by, resampled_runs, rows_where
from whichtoken.lab import Measured, Predicted, Resampled, Rows
from whichtoken.theory import mirror_descent

WINDOW = 20  # the divergence jitters near the limit: the end of a decade is a mean over this many steps
EARLY = 6  # exponents of plain steps are fitted after a sixth of the logarithmic time
LONG = 5000  # longer runs measure exponents, shorter ones what a user reaches
RECIPES = {("normalized", 2.0): 1e-4, ("geometric", 3.0): 2.5e-4}  # divergence that a user should reach with few steps
# Plain steps live on a logarithmic clock. At the times that are reached, pilots gave -1.07 for p = 1.5, and for p = 3 a linear
# classifier that is steeper by 0.07.
TOLERANCES = {("flow", 1.5): 0.12, ("flow", 3.0): 0.15}
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(ProblemSize):
    p: float = 2.0
    rule: Literal["normalized", "geometric", "flow"] = "normalized"  # flow: plain steps, to times like exp(600)
    lr: float = 1.0
    steps: int = 1000
    loss: Literal["logistic", "exponential", "linear"] = "logistic"


class Rates(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:

        problem, start = draw_problem(point, rng, 1e-3)
        options: Any = {
            "p": point.p, "lr": point.lr, "steps": point.steps, "rule": point.rule, "loss": point.loss,
            "record": _recorded_steps(point),
        }  # fmt: skip
        attention = flows.attention_descent(problem, start, **options)
        limit, _ = key_query_limit(problem, attention.selected, point.p)
        linear = flows.linear_descent(_constraints(problem, attention.selected), start, **options)
        measured: dict[str, Any] = {"settled": 20 * attention.last_change <= point.steps}
        for name, snapshots in (("attention", attention.snapshots), ("linear", linear.snapshots)):
            divergence = np.array(
                [mirror_descent.directional_divergence(limit, state.direction, point.p) for state in snapshots]
            )
            steps = np.array([state.step for state in snapshots])
            log_times = np.array([state.log_time for state in snapshots])
            measured |= {
                f"{name}_divergence": divergence[-1],
                f"{name}_exponent": _exponent(point, steps, log_times, divergence),
                f"{name}_curve": divergence,
                f"{name}_clock": log_times if point.rule == "flow" else steps,
            }
        return measured

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        """Exponent in steps, or for plain steps in the logarithm of time, and that of the bound of the source."""
        if point.rule != "flow":
            return {"exponent": Predicted(-mirror_descent.divergence_rate(point.p))}
        return {
            "exponent": Predicted(-mirror_descent.plain_divergence_rate(point.p)),
            "bound": Predicted(-mirror_descent.proven_divergence_rate(point.p)),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        long, short = (rows_where(rows, holds) for holds in (_is_long, lambda point: not _is_long(point)))
        for (rule, p), trained in sorted(group_by(long, "rule", "p"), key=lambda group: group[0]):
            runs = Rows(row for row in trained if row.measured["settled"])
            found, linear = runs.values("attention_exponent"), runs.values("linear_exponent")
            exponent, difference = (
                (TABLE.plain, TABLE.plain_linear) if rule == "flow" else (TABLE.normalized, TABLE.normalized_linear)
            )
            options: Any = {"on": trained, "tolerance": TOLERANCES.get((rule, p))}
            code, words = f"p{p:g}", f"p = {p:g}, {len(runs)} of {len(trained)} runs"
            expected, bound = runs.predicted("exponent"), runs.predicted("bound")
            yield exponent.part(code, words, found, value=expected.value if expected else None, **options)
            yield difference.part(code, words, found - linear, **options)
            if bound:
                yield TABLE.bound.part(code, words, found, on=trained, value=bound.value)
        for (rule, p), recipe in RECIPES.items():
            if runs := short.where(rule=rule, p=p, loss="logistic"):
                words = f"p = {p:g}, {runs[0].point.steps} {rule} steps of {runs[0].point.lr:g}"
                reached = resampled_runs(runs, "attention_divergence", failed=1.0)
                yield TABLE.recipe.part(f"p{p:g}", words, reached, on=runs, value=recipe)
        yield TABLE.settled(resampled_runs(long, "settled", statistic=np.mean), on=long)
        losses = short.where(rule="normalized")
        yield TABLE.loss(Resampled(losses.per_seed(_change_by_loss), np.median), on=losses)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        long = Rows(row for row in rows if row.point.steps > LONG) or rows
        _draw_curves(long.where(rule="normalized"), left)
        label_axes(left, "Normalized steps", "number of steps k", "median divergence from the limit", log="xy")
        _draw_curves(long.where(rule="flow"), right)
        label_axes(right, "Plain steps, far out", "logarithm of the time, log t", log="xy")


def _is_long(point: Point) -> bool:
    return point.steps > LONG


def _recorded_steps(point: Point) -> NDArray[np.int64]:
    """Steps for a curve and, close together, for the means at the ends of the last two decades."""
    ends = np.linspace(0.8, 1.0, WINDOW)
    spread = [np.geomspace(min(10, point.steps), point.steps, 40), ends * point.steps, ends * point.steps / 10]
    return np.unique(np.concatenate(spread).astype(np.int64))


def _constraints(problem: Any, selected: NDArray[np.int64]) -> NDArray[np.float64]:
    """(x_selected - x_t) z^T for every unselected token, (m, d, d): the samples of the linear classifier."""
    lead = np.take_along_axis(problem.tokens, selected[:, None, None], axis=1) - problem.tokens  # (n, T, d)
    unselected = np.arange(lead.shape[1]) != selected[:, None]  # (n, T)
    rows: NDArray[np.float64] = np.einsum("ntd,ne->ntde", lead, problem.queries)[unselected]
    return rows


def _exponent(point: Point, steps: Any, log_times: Any, divergence: Any) -> float:
    if point.rule == "flow":
        late = log_times > log_times[-1] / EARLY
        return float(np.polyfit(np.log(log_times[late]), np.log(divergence[late]), 1)[0])
    last = steps >= 0.8 * point.steps
    before = (steps >= 0.08 * point.steps) & (steps <= 0.1 * point.steps)
    return float(np.log10(divergence[last].mean() / divergence[before].mean()))


def _change_by_loss(repeat: Rows[Point]) -> float | None:
    by_loss = {row.point.loss: row.measured["attention_divergence"] for row in repeat}
    others = [value for loss, value in by_loss.items() if loss != "logistic"]
    if "logistic" not in by_loss or not others:
        return None
    return float(np.mean([abs(value / by_loss["logistic"] - 1.0) for value in others]))


def _draw_curves(rows: Rows[Point], axes: Axes) -> None:
    for p in sorted(rows.levels("p")):
        runs = rows.where(p=p)
        clock, curve, linear_clock, linear_curve = (
            np.median(runs.values(name), axis=0)
            for name in ("attention_clock", "attention_curve", "linear_clock", "linear_curve")
        )
        shown = clock > 1
        (line,) = axes.plot(clock[shown], curve[shown], label=f"p = {p:g}")
        axes.plot(linear_clock[shown], linear_curve[shown], color=line.get_color(), ls=":")
    axes.plot([], [], color="grey", ls=":", label="linear classifier")
    axes.legend()
