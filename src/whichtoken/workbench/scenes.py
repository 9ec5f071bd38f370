"""Training to watch: each scene trains something small and tells, step by step, what it sees and what theory says.

A scene gets its checked numbers and a function to tell news with: first `start` (what will be shown, and theory's curve), then
one `frame` after another. `lines` are numbers against the step, `map` a table of shares from 0 to 1, `bars` a row of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.errors import UsageError

Tell = Callable[[str, dict[str, Any]], None]
Array = NDArray[np.float64]
FRAMES = 60
LEAST = 1e-30  # loss that is rounding


@dataclass(frozen=True)
class Knob:
    """A number or a choice that the user may change."""

    name: str
    default: Any
    least: float = 0.0
    most: float = 0.0
    choices: tuple[str, ...] = ()
    doc: str = ""

    def read(self, text: str | None) -> Any:
        """The value in an address."""
        if text is None or not text.strip():
            return self.default
        if self.choices:
            if text not in self.choices:
                raise UsageError(f"{self.name} '{text[:40]}' is not known; choose one of {', '.join(self.choices)}")
            return text
        try:
            value = type(self.default)(text)
        except ValueError:
            value = None
        if value is None or not self.least <= value <= self.most:
            raise UsageError(
                f"{self.name} '{text[:40]}' is not accepted; give a number from {self.least:g} to {self.most:g}"
            )
        return value


@dataclass(frozen=True)
class Scene:
    """Something to watch."""

    id: str
    title: str
    sentence: str
    knobs: tuple[Knob, ...]
    play: Callable[[Mapping[str, Any], Tell], None]

    def read(self, given: Mapping[str, str]) -> dict[str, Any]:
        """All numbers, from an address."""
        return {knob.name: knob.read(given.get(knob.name)) for knob in self.knobs}


def _groups(knobs: Mapping[str, Any], tell: Tell) -> None:
    """A one-layer transformer finds the group that matters; theory: its symmetric population map."""
    import torch

    from whichtoken.data import GroupSparse
    from whichtoken.models.group_transformer import GroupTransformer
    from whichtoken.theory.group_sparse import symmetric_map
    from whichtoken.training.group_descent import fresh_batches, gradient_descent

    groups, steps, lr, relevant = knobs["groups"], knobs["steps"], knobs["lr"], knobs["relevant"] - 1
    if relevant >= groups:
        raise UsageError(f"relevant {relevant + 1} must be one of the {groups} groups")
    rng = np.random.default_rng(knobs["seed"])
    law = symmetric_map(
        groups=groups, group_dim=4, lr=lr, steps=steps, rng=np.random.default_rng(0), samples=200
    )  # fmt: skip
    every = max(1, steps // FRAMES)
    shown = np.arange(0, steps + 1, every)
    names = [f"group {k + 1}" for k in range(groups)]
    tell("start", {
        "x": "step", "y": "attention on the relevant group", "lines": ["measured"], "theory": _curve(shown, law.attention[shown]),
        "map": {"rows": names, "columns": names, "what": "Rows are attended to, columns ask. The relevant row fills."},
    })  # fmt: skip
    data = GroupSparse(groups, 4, relevant, rng.standard_normal(4))
    model = GroupTransformer(4, groups)
    X = torch.from_numpy(data.sample(500, rng)[0])

    def observe(step: int) -> None:
        with torch.no_grad():
            seen = model.attention(X).mean(dim=0).numpy()  # (key, query)
        tell("frame", {"step": step, "lines": [float(seen[relevant].mean())], "map": _rounded(seen)})

    gradient_descent(model, fresh_batches(data, knobs["batch"], rng), steps, lr, observe=observe, every=every)


LIMITS = {  # which norm's margin an optimiser goes to
    "mirror": None, "gd": (2.0, "entrywise"), "normalized-gd": (2.0, "entrywise"), "sign": (np.inf, "entrywise"),
    "adam": (np.inf, "entrywise"), "coordinate": (1.0, "entrywise"), "muon": (np.inf, "schatten"),
}  # fmt: skip


def _direction(knobs: Mapping[str, Any], tell: Tell) -> None:
    """The key-query matrix turns to a certified max-margin direction, which the geometry of the optimiser chooses."""
    from whichtoken.attention import pool_weights
    from whichtoken.data import AttentionTokens
    from whichtoken.flows import attention_descent
    from whichtoken.margin import key_query_svm

    rng = np.random.default_rng(knobs["seed"])
    problem = AttentionTokens(6, knobs["length"], knobs["dim"]).sample(rng)
    steps, optimizer = knobs["steps"], knobs["optimizer"]
    p, norm = LIMITS[optimizer] or (knobs["p"], "entrywise")
    shown = np.unique(np.geomspace(1, steps, FRAMES).astype(int))
    options = {"p": knobs["p"]} if optimizer == "mirror" else {}
    start = 1e-3 * rng.standard_normal((knobs["dim"], knobs["dim"]))
    run = attention_descent(problem, start, optimizer, lr=knobs["lr"], steps=steps, record=shown.tolist(), **options)
    limit = key_query_svm(problem.tokens, problem.queries, run.selected, p=p, norm=norm)
    plain = key_query_svm(problem.tokens, problem.queries, run.selected)
    if limit.direction is None:
        raise UsageError(
            "the selected tokens cannot be separated, so there is no limit; try another seed or a larger dim"
        )
    both = (limit,) if (p, norm) == (2.0, "entrywise") else (limit, plain)
    name = f"its own limit ({'spectral norm' if norm == 'schatten' else f'l_{p:g}'})"
    tell("start", {
        "x": "step", "y": "cosine with the limit", "log": True, "lines": [name, "the l_2 limit"][: len(both)],
        "theory": _curve(shown, np.ones(len(shown))),
        "map": {"rows": [f"sequence {k + 1}" for k in range(6)], "columns": [f"token {k + 1}" for k in range(knobs["length"])],
                "what": f"Attention of each sequence. Certified limit: duality gap {limit.gap:.1e}, margin {limit.margin:.4g}."},
    })  # fmt: skip
    starts = np.arange(7) * knobs["length"]
    for state in run.snapshots:
        weights = np.exp(min(state.log_norm, 300.0)) * state.direction
        scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
        seen = pool_weights(scores.ravel(), starts).reshape(scores.shape)
        cosines = [_cosine(state.direction, other.direction) for other in both]
        tell("frame", {"step": int(state.step), "lines": cosines, "map": _rounded(seen)})


def _levels(knobs: Mapping[str, Any], tell: Tell) -> None:
    """Gradient descent writes the importance of a token into its embedding; theory: the posterior difference."""
    from whichtoken.data import LevelTokens
    from whichtoken.theory.trained_embeddings import posterior_difference
    from whichtoken.training.cls_training import start_cls, train_cls
    from whichtoken.training.plan import TrainingPlan

    rng = np.random.default_rng(knobs["seed"])
    law = LevelTokens(length=knobs["length"], set_sizes=[8] * 8, irrelevant=64, share=0.3)
    data = law.sample(knobs["sequences"], rng)
    model = start_cls(law.size, knobs["dim"], rng)
    truth = posterior_difference(data.counts, data.labels)
    order = np.argsort(law.noise)
    levels = [law.token_levels == level + 1 for level in order]
    signs = np.sign(law.token_classes)

    def by_level(scores: Array) -> list[float]:
        return [float(np.mean((signs * scores)[tokens])) for tokens in levels]

    wanted = by_level(truth)
    tell("start", {
        "x": "step", "y": "correlation with the posterior difference", "lines": ["value scores", "selection scores"],
        "theory": None,
        "bars": {"labels": [float(law.noise[level]) for level in order], "x": "noise of the token's level",
                 "y": "score, as a share of the largest", "theory": [value / max(wanted) for value in wanted],
                 "name": "value score by level", "theory_name": "posterior difference"},
    })  # fmt: skip
    plan = TrainingPlan(optimizer="gd", lr=knobs["lr"], epochs=1, drops=())
    every = max(1, knobs["steps"] // FRAMES)
    for step in range(knobs["steps"] + 1):
        if step % every == 0:
            scores, values = model.scores()
            seen = by_level(values)
            largest = max(map(abs, seen)) or 1.0
            lines = [float(np.corrcoef(values, truth)[0, 1]), float(np.corrcoef(scores, np.abs(truth))[0, 1])]
            tell("frame", {"step": step, "lines": lines, "bars": [value / largest for value in seen]})
        train_cls(model, data.counts, data.labels, plan, rng)


def _factors(knobs: Mapping[str, Any], tell: Tell) -> None:
    """In the limit of many tokens structure-aware descent keeps its rate whatever the conditioning; Adam does not."""
    from whichtoken.data import AttentionRegression
    from whichtoken.models.whitening import Whitening
    from whichtoken.theory.attention_regression import gram_rate
    from whichtoken.training.factor_baselines import run_baseline
    from whichtoken.training.factor_objectives import PopulationObjective, RawCoordinates
    from whichtoken.training.structure_aware_descent import StructureAwareDescent

    rng, steps = np.random.default_rng(knobs["seed"]), knobs["steps"]
    problem = AttentionRegression(
        knobs["dim"], tokens=20 * knobs["dim"], covariance=knobs["condition"], target=knobs["condition"], noise=0.0
    ).sample(rng)  # fmt: skip
    whitening = Whitening.from_covariance(problem.covariance)
    objective = PopulationObjective(problem.whitened_target)
    solver = StructureAwareDescent(
        "gram", step=knobs["step"], iterations=steps, tolerance=0.0, center=False, start="moment", backtrack=False
    )  # fmt: skip
    P, Q = solver.starting_factors(whitening.whiten(problem.tokens), problem.labels)
    ours = [iterate.loss for iterate in solver.minimise(objective, P, Q).trace]
    raw = RawCoordinates(objective, whitening)
    adam = [found[2] for found in run_baseline("adam", raw, *whitening.to_raw(P, Q), knobs["adam_lr"], steps + 1)]
    rate = gram_rate([1.0], knobs["step"])
    law = ours[0] * rate ** np.arange(steps + 1.0)
    tell("start", {
        "x": "step", "y": "loss, as a power of ten", "lines": ["structure-aware", "Adam"],
        "theory": _curve(np.arange(steps + 1), np.log10(np.maximum(law, LEAST))),
    })  # fmt: skip
    for step in range(steps + 1):
        losses = [max(curve[min(step, len(curve) - 1)], LEAST) for curve in (ours, adam)]
        tell("frame", {"step": step, "lines": np.log10(losses).tolist()})


def _curve(steps: Any, values: Any) -> dict[str, list[float]]:
    return {"x": [int(step) for step in steps], "y": [float(value) for value in values]}


def _rounded(table: Array) -> list[list[float]]:
    rounded: list[list[float]] = np.round(table, 4).tolist()
    return rounded


def _cosine(one: Array, two: Array | None) -> float | None:
    if two is None:
        return None
    return float(np.vdot(one, two) / (np.linalg.norm(one) * np.linalg.norm(two)))


SEED = Knob("seed", 0, 0, 9999, doc="another seed, other data")
SCENES = {
    scene.id: scene
    for scene in (
        Scene(
            "groups", "Attention finds the group that matters",
            "A transformer sees groups of variables, of which one decides the label. Watch its attention map.",
            (Knob("groups", 8, 2, 24, doc="of four variables"),
             Knob("relevant", 3, 1, 24, doc="the one that decides"),
             Knob("lr", 0.05, 0.001, 0.5, doc="learning rate"), Knob("steps", 600, 20, 5000),
             Knob("batch", 300, 20, 2000), SEED),
            _groups,
        ),
        Scene(
            "direction", "The optimiser chooses where training ends",
            "The key-query matrix grows without bound, and turns to a max-margin direction, which comes with a certificate.",
            (Knob("optimizer", "mirror", choices=tuple(LIMITS)), Knob("p", 2.0, 1.05, 8.0, doc="geometry of mirror descent"),
             Knob("lr", 0.1, 1e-4, 10.0), Knob("steps", 2000, 10, 50_000), Knob("length", 8, 2, 20),
             Knob("dim", 10, 2, 40), SEED),
            _direction,
        ),
        Scene(
            "levels", "Training writes importance into embeddings",
            "Tokens come in levels, from clean to noisy. Watch the value scores of the levels grow.",
            (Knob("sequences", 800, 50, 5000), Knob("length", 64, 8, 256), Knob("dim", 256, 16, 1024),
             Knob("lr", 20.0, 0.01, 1000.0), Knob("steps", 120, 5, 1000), SEED),
            _levels,
        ),
        Scene(
            "factors", "With many tokens a geometric rate, whatever the conditioning",
            "Attention factors are trained with structure-aware steps and with Adam. Raise the condition number.",
            (Knob("condition", 100.0, 1.0, 10_000.0, doc="of the target and of the tokens"), Knob("dim", 8, 2, 24),
             Knob("step", 0.25, 0.05, 0.5, doc="of structure-aware descent"), Knob("adam_lr", 0.03, 1e-4, 1.0),
             Knob("steps", 60, 5, 500), SEED),
            _factors,
        ),
    )
}  # fmt: skip
