"""Scenes of the dynamics pages: each trains a small model and emits, step by step, what is measured and what theory predicts.

A scene gets its checked parameters and a function `emit`: first `start` (what will be shown, and theory's curve), then one
`frame` after another. `lines` are numbers against the step, `map` a table of shares from 0 to 1, `bars` a row of numbers.

The process of a scene is `python -m whichtoken.app.workbench.scenes SCENE JSON`; it prints one line of JSON per event.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.app.workbench.settings import Parameter
from whichtoken.errors import UsageError, in_one_line
from whichtoken.extras import needed_by

Emit = Callable[[str, dict[str, Any]], None]
Array = NDArray[np.float64]
FRAMES = 60
LEAST = 1e-30  # a smaller loss is rounding


@dataclass(frozen=True)
class Scene:
    """A training to watch."""

    id: str
    title: str
    sentence: str
    theory: str  # what the dashed line is, and where it differs from what is measured
    parameters: tuple[Parameter, ...]
    play: Callable[[Mapping[str, Any], Emit], None]

    def read(self, given: Mapping[str, str]) -> dict[str, Any]:
        """All parameters, from an address."""
        return {parameter.name: parameter.read(given.get(parameter.name)) for parameter in self.parameters}


def _groups(parameters: Mapping[str, Any], emit: Emit) -> None:
    """A one-layer transformer finds the group that matters; theory: its symmetric population map."""
    import torch

    from whichtoken.datasets import GroupSparse
    from whichtoken.theory.group_sparse import symmetric_map
    from whichtoken.theory.group_sparse.descent import fresh_batches, gradient_descent
    from whichtoken.theory.group_sparse.transformer import GroupTransformer

    groups, steps, lr = (parameters[name] for name in ("groups", "steps", "lr"))
    relevant = parameters["relevant"] - 1
    if relevant >= groups:
        raise UsageError(f"relevant {relevant + 1} must be one of the {groups} groups")
    rng = np.random.default_rng(parameters["seed"])
    law = symmetric_map(groups=groups, group_dim=4, lr=lr, steps=steps, rng=np.random.default_rng(0), samples=200)
    every = max(1, steps // FRAMES)
    shown = np.arange(0, steps + 1, every)
    names = [f"group {k + 1}" for k in range(groups)]
    emit("start", {
        "x": "step", "y": "attention on the relevant group", "lines": ["measured"], "theory": _curve(shown, law.attention[shown]),
        "map": {"rows": names, "columns": names, "what": "Columns attend to rows. The relevant row fills up."},
    })  # fmt: skip
    data = GroupSparse(groups, 4, relevant, rng.standard_normal(4))
    model = GroupTransformer(4, groups)
    X = torch.from_numpy(data.sample(500, rng)[0])

    def observe(step: int) -> None:
        with torch.no_grad():
            seen = model.attention(X).mean(dim=0).numpy()  # (key, query)
        emit("frame", {"step": step, "lines": [float(seen[relevant].mean())], "map": np.round(seen, 4).tolist()})

    gradient_descent(model, fresh_batches(data, parameters["batch"], rng), steps, lr, observe=observe, every=every)


# the norm whose max-margin direction each optimizer converges to
LIMITS = {
    "mirror": None, "gd": (2.0, "entrywise"), "normalized-gd": (2.0, "entrywise"), "sign": (np.inf, "entrywise"),
    "adam": (np.inf, "entrywise"), "coordinate": (1.0, "entrywise"), "muon": (np.inf, "schatten"),
}  # fmt: skip


def _direction(parameters: Mapping[str, Any], emit: Emit) -> None:
    """The key-query matrix turns to a certified max-margin direction that depends on the optimizer's geometry."""
    from whichtoken.attention import pool_weights
    from whichtoken.datasets import AttentionTokens
    from whichtoken.flows import attention_descent
    from whichtoken.margin import key_query_svm

    rng = np.random.default_rng(parameters["seed"])
    length, dim = parameters["length"], parameters["dim"]
    problem = AttentionTokens(6, length, dim).sample(rng)
    steps, optimizer = parameters["steps"], parameters["optimizer"]
    p, norm = LIMITS[optimizer] or (parameters["p"], "entrywise")
    shown = np.unique(np.geomspace(1, steps, FRAMES).astype(int))
    options = {"lr": parameters["lr"], "record": shown.tolist()}
    options |= {"p": parameters["p"]} if optimizer == "mirror" else {}
    start = 1e-3 * rng.standard_normal((dim, dim))
    run = attention_descent(problem, start, optimizer, steps=steps, **options)
    limit = key_query_svm(problem.tokens, problem.queries, run.selected, p=p, norm=norm)
    plain = key_query_svm(problem.tokens, problem.queries, run.selected)
    if limit.direction is None:
        raise UsageError(
            "the selected tokens cannot be separated, so there is no limit; try another seed or a larger dim"
        )
    both = (limit,) if (p, norm) == (2.0, "entrywise") else (limit, plain)
    name = f"its own limit ({'spectral norm' if norm == 'schatten' else f'l_{p:g}'})"
    emit("start", {
        "x": "step", "y": "cosine with the limit", "log": True, "lines": [name, "the l_2 limit"][: len(both)],
        "theory": _curve(shown, np.ones(len(shown))),
        "map": {"rows": [f"sequence {k + 1}" for k in range(6)], "columns": [f"token {k + 1}" for k in range(length)],
                "what": f"Attention of each sequence. Certified limit: duality gap {limit.gap:.1e}, margin {limit.margin:.4g}."},
    })  # fmt: skip
    starts = np.arange(7) * length
    for state in run.snapshots:
        weights = np.exp(min(state.log_norm, 300.0)) * state.direction
        scores = np.einsum("ntd,de,ne->nt", problem.tokens, weights, problem.queries)
        seen = pool_weights(scores.ravel(), starts).reshape(scores.shape)
        cosines = [_cosine(state.direction, other.direction) for other in both]
        emit("frame", {"step": int(state.step), "lines": cosines, "map": np.round(seen, 4).tolist()})


def _levels(parameters: Mapping[str, Any], emit: Emit) -> None:
    """Gradient descent writes the importance of a token into its embedding; theory: the posterior difference."""
    from whichtoken.datasets import LevelTokens
    from whichtoken.theory.trained_embeddings.attention import posterior_difference
    from whichtoken.theory.trained_embeddings.cls_training import start_cls, train_cls
    from whichtoken.theory.trained_embeddings.training_loop import TrainingPlan

    rng = np.random.default_rng(parameters["seed"])
    law = LevelTokens(length=parameters["length"], set_sizes=[8] * 8, irrelevant=64, share=0.3)
    data = law.sample(parameters["sequences"], rng)
    model = start_cls(law.size, parameters["dim"], rng)
    truth = posterior_difference(data.counts, data.labels)
    order = np.argsort(law.noise)
    levels = [law.token_levels == level + 1 for level in order]
    signs = np.sign(law.token_classes)

    def by_level(scores: Array) -> list[float]:
        return [float(np.mean((signs * scores)[tokens])) for tokens in levels]

    wanted = by_level(truth)
    emit("start", {
        "x": "step", "y": "correlation with the posterior difference", "lines": ["value scores", "selection scores"],
        "theory": None,
        "bars": {"labels": [float(law.noise[level]) for level in order], "x": "noise of the token's level",
                 "y": "score, as a share of the largest", "theory": [value / max(wanted) for value in wanted],
                 "name": "value score by level", "theory_name": "posterior difference"},
    })  # fmt: skip
    plan = TrainingPlan(optimizer="gd", lr=parameters["lr"], epochs=1, drops=())
    every = max(1, parameters["steps"] // FRAMES)
    for step in range(parameters["steps"] + 1):
        if step % every == 0:
            scores, values = model.scores()
            seen = by_level(values)
            largest = max(map(abs, seen)) or 1.0
            lines = [float(np.corrcoef(values, truth)[0, 1]), float(np.corrcoef(scores, np.abs(truth))[0, 1])]
            emit("frame", {"step": step, "lines": lines, "bars": [value / largest for value in seen]})
        train_cls(model, data.counts, data.labels, plan, rng)


def _factors(parameters: Mapping[str, Any], emit: Emit) -> None:
    """With many tokens, structure-aware descent has the same rate for every conditioning; Adam does not."""
    from whichtoken.datasets import AttentionRegression
    from whichtoken.theory.attention_regression import gram_rate
    from whichtoken.theory.attention_regression.factor_baselines import run_baseline
    from whichtoken.theory.attention_regression.structure_aware_descent import (
        PopulationObjective,
        RawCoordinates,
        StructureAwareDescent,
    )
    from whichtoken.theory.attention_regression.whitening import Whitening

    rng, steps = np.random.default_rng(parameters["seed"]), parameters["steps"]
    dim, condition = parameters["dim"], parameters["condition"]
    problem = AttentionRegression(dim, tokens=20 * dim, covariance=condition, target=condition, noise=0.0).sample(rng)
    whitening = Whitening.from_covariance(problem.covariance)
    objective = PopulationObjective(problem.whitened_target)
    solver = StructureAwareDescent(
        "gram", step=parameters["step"], iterations=steps, tolerance=0.0, center=False, start="moment", backtrack=False
    )  # fmt: skip
    P, Q = solver.starting_factors(whitening.whiten(problem.tokens), problem.labels)
    ours = [iterate.loss for iterate in solver.minimize(objective, P, Q).trace]
    raw = RawCoordinates(objective, whitening)
    adam = [found[2] for found in run_baseline("adam", raw, *whitening.to_raw(P, Q), parameters["adam_lr"], steps + 1)]
    rate = gram_rate([1.0], parameters["step"])
    law = ours[0] * rate ** np.arange(steps + 1.0)
    emit("start", {
        "x": "step", "y": "loss, as a power of ten", "lines": ["structure-aware", "Adam"],
        "theory": _curve(np.arange(steps + 1), np.log10(np.maximum(law, LEAST))),
    })  # fmt: skip
    for step in range(steps + 1):
        losses = [max(curve[min(step, len(curve) - 1)], LEAST) for curve in (ours, adam)]
        emit("frame", {"step": step, "lines": np.log10(losses).tolist()})


def _curve(steps: Any, values: Any) -> dict[str, list[float]]:
    return {"x": [int(step) for step in steps], "y": [float(value) for value in values]}


def _cosine(one: Array, two: Array | None) -> float | None:
    if two is None:
        return None
    return float(np.vdot(one, two) / (np.linalg.norm(one) * np.linalg.norm(two)))


PLAYS = {"groups": _groups, "direction": _direction, "levels": _levels, "factors": _factors}
SCENES = {
    id: Scene(id, play=PLAYS[id], **{**scene, "parameters": tuple(Parameter(**one) for one in scene["parameters"])})
    for id, scene in tomllib.loads((files(__package__) / "scenes.toml").read_text(encoding="utf-8")).items()
}


def print_event(kind: str, data: dict[str, Any]) -> None:
    """Print one line for the server."""
    print(json.dumps([kind, data], allow_nan=False), flush=True)


def play(id: str, parameters: dict[str, Any]) -> None:
    """Play a scene to its end; an error becomes an event as well."""
    try:
        with warnings.catch_warnings(record=True) as caught, needed_by("this training"):
            warnings.simplefilter("always")
            SCENES[id].play(parameters, print_event)
        notes = [str(one.message) for one in caught if type(one.message).__module__.startswith("whichtoken")]
        print_event("end", {"notes": notes})
    except BrokenPipeError:
        # the server has closed the pipe: nobody watches
        os._exit(0)
    except Exception as error:
        print_event("fault", {"error": in_one_line(error)})


if __name__ == "__main__":
    play(sys.argv[1], json.loads(sys.argv[2]))
