"""A large constant learning rate makes the attention on the other groups exponentially small.

Claim   Two updates from zero open a gap of (lr sigma)^2 (D + 1)^2/(8 pi D) between the scores: where lr times sigma is large
        enough that this stays, the attention on the other groups is exponentially small in D, with W_11 frozen and, for small
        sigma, with all blocks trained. Between those rates and the small ones, at which it falls as a power, selection fails.
        On sampled batches the rates that give the exponential do so, with v_2 small in the end, in a third of the runs.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638),
        Theorem 3.2: attention on the relevant group of at least 1 - exp(-Theta(D)). Its condition on the learning rate was not
        read; the law of two steps and the diagram are derived here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions
from whichtoken.claims._figures import Axes, Figure
from whichtoken.claims._runs import group_by, rows_where
from whichtoken.claims.group_sparse._training import TEST_SAMPLES, GroupSizes, exact, random_problem
from whichtoken.extras import is_installed, lacks
from whichtoken.lab import Exact, Measured, Predicted, Row, Rows
from whichtoken.theory import group_sparse

LARGE = 4.0  # from here on the gap of two steps stays for every number of groups
EXPONENT = 0.4  # 1 - S below exp(-EXPONENT D) counts as exponential
STEADY = 0.1  # |v_2| over |v_1| up to which v_2 counts as small


@dataclass(frozen=True)
class Point(GroupSizes):
    groups: int = 16
    sigma: float = 0.5
    rate: float = LARGE  # lr times sigma
    steps: int = 100
    # map: exact, W_11 frozen; all-blocks: symmetry-reduced; mirrored: real model on pairs X, -X; plain: on plain fresh batches
    method: Literal["map", "all-blocks", "mirrored", "plain"] = "map"
    batch: int = 1000

    @property
    def lr(self) -> float:
        return self.rate / self.sigma


TABLE = ClaimTable(__name__)


class LearningRate(Claim[Point], table=TABLE):
    def absent(self, point: Point) -> str:
        return "" if point.method in ("map", "all-blocks") or is_installed("torch") else lacks("torch")

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.method == "map":
            return _exact_map(point)
        return _all_blocks(point, rng) if point.method == "all-blocks" else _train(point, rng)

    def predict(self, point: Point) -> Predictions:

        law = group_sparse.first_two_updates(groups=point.groups, lr=point.lr, sigma=point.sigma)
        log_leakage = -np.logaddexp(0.0, law.gap - np.log(point.groups - 1))
        return {"log_leakage": Predicted(log_leakage), "gap": Predicted(law.gap), "content": Predicted(law.content)}

    def judge(self, rows: Rows[Point]) -> Checks:
        on_map, blocks = rows.where(method="map"), rows.where(method="all-blocks", sigma=0.5)
        long = rows_where(
            on_map, lambda point: point.rate >= LARGE and point.steps == round(point.groups**3 / point.lr)
        )
        large = rows_where(blocks, lambda point: point.rate >= LARGE)
        for model, words, runs in (
            ("frozen", "W_11 frozen, after D^3/lr steps", long),
            ("all-blocks", "all blocks trained, sigma = 0.5", large),
        ):
            for rate, some in group_by(runs, "rate"):
                where = f"lr sigma = {rate:g}, D = {_sizes(some)}"
                yield TABLE.exponential.part(
                    f"rate{rate:g}", where, _doubling_ratio(some), on=some, model=model, words=words
                )
        log_leakage = partial(exact, name="log_leakage")
        yield from TABLE.locked.each(
            rows_where(long, lambda point: point.groups > 8), "rate groups", "rate{:g}.D{}", "lr sigma = {:g}, D = {}",
            log_leakage, predicted="log_leakage", relative=0.1,
        )  # fmt: skip
        lost = rows_where(on_map, lambda point: point.rate == 1 and point.groups >= 64)
        yield from TABLE.lost.each(lost, "groups sigma", "D{}.sigma{:g}", "sigma = {1:g}, D = {0}", log_leakage)
        two = rows_where(rows, lambda point: point.method == "mirrored" and point.steps == 2)
        for criterion, name, relative in ((TABLE.gap, "gap", 0.05), (TABLE.content, "content", 0.1)):
            words = "{} groups, mirrored batch"
            yield from criterion.each(two, "groups", "D{}", words, name, predicted=name, relative=relative)
        sampled = rows_where(
            rows, lambda point: point.method in ("mirrored", "plain") and point.steps > 2 and point.rate >= 2
        )
        # runs of one repeat share their data
        yield TABLE.both(sampled.seed_means(_exponential_and_steady), on=sampled)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        """The phase of the exact map: whether the attention on the other groups is exponentially small."""
        found = Exact(rows[0].measured["log_leakage"] / rows[0].point.groups)
        yield TABLE.phase(found, on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        # with 8 groups a power law looks like an exponential
        maps = rows_where(rows, lambda point: point.sigma == 0.5 and point.groups > 8)
        sampled = rows_where(rows, lambda point: point.steps > 2)
        panels = {
            "Exact map, W_11 frozen": maps.where(method="map"),
            "All blocks trained": maps.where(method="all-blocks"),
            "Real model, mirrored batches": sampled.where(method="mirrored"),
            "Real model, plain batches": sampled.where(method="plain"),
        }
        panels = {title: runs for title, runs in panels.items() if runs} or {"Exact map, W_11 frozen": rows}
        columns = 1 + (len(panels) > 1)
        grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
        for axes, (title, runs) in zip(grid, panels.items(), strict=False):
            _draw_phases(axes, runs)
            axes.set_title(title)
        grid[-1].legend(loc="upper left", fontsize=8)


def _exact_map(point: Point) -> Measured:

    path = group_sparse.population_map(groups=point.groups, lr=point.lr, steps=point.steps, sigma=point.sigma)
    # from the gap: the attention itself underflows
    return {"log_leakage": -np.logaddexp(0.0, path.gap[-1] - np.log(point.groups - 1)), "loss": path.loss[-1]}


def _all_blocks(point: Point, rng: np.random.Generator) -> Measured:

    fields = {name: getattr(point, name) for name in ("groups", "group_dim", "lr", "steps", "sigma")}
    path = group_sparse.symmetric_map(**fields, rng=rng, samples=point.batch)
    late = slice(point.steps // 2, None)
    return {
        # of a typical step: single samples with a large content score dominate the mean over steps
        "log_leakage": np.log(path.leakage[late]).mean(),
        "loss": path.loss[late].mean(),
        "content": path.along[-1],
    }


def _train(point: Point, rng: np.random.Generator) -> Measured:
    import torch

    from whichtoken.theory.group_sparse.descent import descend_on_batches, fresh_batches

    data = random_problem(point.groups, point.group_dim, rng, sigma=point.sigma)
    relevant, direction = int(data.relevant[0]), torch.from_numpy(data.directions[0])
    X, y = map(torch.from_numpy, data.sample(TEST_SAMPLES // 2, rng))
    model = group_sparse.GroupTransformer(point.group_dim, point.groups)
    batches = fresh_batches(data, point.batch, rng, antithetic=point.method == "mirrored")
    optimizer = torch.optim.SGD(model.parameters(), lr=point.lr)
    # beyond the bound of `gradient_descent` on purpose
    descend_on_batches(model, batches, optimizer, 2)
    others = [group for group in range(point.groups) if group != relevant]
    with torch.no_grad():
        W_11, *_, W_22 = model.blocks()
        scores = model.encodings @ W_22 @ model.encodings.T  # (key, query)
        early = {
            "gap": float((scores[relevant] - scores[others].mean(dim=0)).mean()),
            "content": float(direction @ W_11 @ direction),
        }
    descend_on_batches(model, batches, optimizer, point.steps - 2)
    with torch.no_grad():
        v_1, v_2 = model.value_blocks()
        return {
            **early,
            # the weights of the others, as 1 - S has no digits left
            "log_leakage": float(model.attention(X)[:, others].sum(dim=1).mean().log()),
            "stray": float(v_2.norm() / v_1.norm()),
            "loss": float(model.loss(X, y)),
            "accuracy": float((y * model(X) > 0).double().mean()),
        }


def _sizes(runs: Rows[Point]) -> str:
    return ", ".join(map(str, sorted(runs.levels("groups"))))


def _doubling_ratio(runs: Rows[Point]) -> Any:
    """log(1 - S) at the largest number of groups over that at half as many, of each repeat; exact where there is one."""

    def ratio(repeat: Rows[Point]) -> float | None:
        found = {row.point.groups: row.measured["log_leakage"] for row in repeat}
        largest = max(found)
        return found[largest] / found[largest // 2] if largest // 2 in found else None

    found = runs.per_seed(ratio)
    return Exact(found[0]) if all(row.point.method == "map" for row in runs) and len(found) else found


def _exponential(row: Row[Point]) -> bool:
    return bool(row.measured["log_leakage"] < -EXPONENT * row.point.groups)


def _exponential_and_steady(row: Row[Point]) -> bool:
    return bool(_exponential(row) and row.measured["stray"] < STEADY)


PHASES = ("exponential: 1 - S < exp(-0.4 D)", "selected: 1 - S < 1/2", "lost")


def _phase(runs: Rows[Point]) -> int:
    """Of most of the runs."""
    shares = [np.mean([_exponential(row) for row in runs]), np.mean(runs.values("log_leakage") < np.log(0.5))]
    return 0 if shares[0] > 0.5 else 1 if shares[1] > 0.5 else 2


def _draw_phases(axes: Axes, rows: Rows[Point]) -> None:

    places: list[list[tuple[float, int]]] = [[] for _ in PHASES]
    for (rate, groups), runs in group_by(rows, "rate", "groups"):
        if runs:
            places[_phase(runs)].append((rate, groups))
    for label, mark, found in zip(PHASES, ("C0o", "C2s", "C3x"), places, strict=True):
        axes.plot([rate for rate, _ in found], [groups for _, groups in found], mark, ms=9, label=label)
    sizes = np.unique(np.geomspace(12, 160, 40).astype(int))
    borders = []
    for size in sizes:
        for rate in np.geomspace(0.5, 16, 200):
            law = group_sparse.first_two_updates(groups=int(size), lr=rate / 0.5, sigma=0.5)
            if law.gap > np.log(size) and law.next_fall < 0.1 * law.gap:
                borders.append(rate)
                break
    axes.plot(borders, sizes, "k--", label="two steps: the gap stays to the right")
    axes.set(xscale="log", yscale="log", xlabel="learning rate times sigma", ylabel="groups D")
    axes.set_yticks([8, 16, 32, 64, 128], ["8", "16", "32", "64", "128"])
    axes.set_xticks(sorted(set(rows.levels("rate"))), [f"{rate:g}" for rate in sorted(set(rows.levels("rate")))])
    axes.minorticks_off()
