"""Structure-aware steps outside their theory: from one attention head to a small character model.

Claim   With preconditioned attention factors one head is nearer to the truth after 5 steps than with Adam after 20, and a
        character transformer has a validation loss lower by 0.02 nats than with AdamW or SGD alone, each at its best step size.
Source  The preconditioner generalizes that of Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514) to four factors; nobody claims
        that it helps a language model: this is a test, and no gain is a result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken.checks import check_choice
from whichtoken.claims._checks import Below, Checks, pool_parts
from whichtoken.claims._figures import Axes, Figure, legend, points_with_errors
from whichtoken.claims._runs import Array, group_by, rows_where
from whichtoken.claims.attention_regression._training import sample_problem
from whichtoken.lab import Experiment, Grid, Measured, Rows
from whichtoken.theory.attention_regression.predictions import LOGIT_BOUND

if TYPE_CHECKING:
    import torch

    from whichtoken.claims.attention_regression._character_model import CharacterTransformer
    from whichtoken.theory.attention_regression.whitening import Whitening

BASES = {"adamw": "AdamW", "sgd": "SGD with momentum"}
VARIANTS = {
    "pairs": "Gram matrices of the two pairs",
    "whitened": "whitened inputs and no Gram matrices",
    "chain": "whitened inputs and Gram matrices of the chain",
}
HEADS = {"chain": "structure-aware", "adam": "Adam"}  # of one head
RATES = {
    "quick": {"adam": [0.003, 0.01, 0.03]},
    "full": {"adamw": [0.02, 0.04, 0.08, 0.16], "sgd": [0.2, 0.4, 0.8, 1.6], "adam": [0.003, 0.01, 0.03, 0.1]},
}
GAIN = 0.02  # nats; less would not be worth another optimizer
STEPS = 5  # of structure-aware descent on one head, against four times as many of Adam
VALIDATION = 128  # sequences
STRONG = 1e6  # damping that leaves nothing of a Gram matrix
ALONE = Below(
    "transformer.{base}", -GAIN, "{words} with our preconditioners: validation loss minus that of {words} alone, each tuned",
)  # fmt: skip
LONGER = Below(
    "transformer.steps", 0.0, "AdamW with the chain: validation loss minus that of AdamW alone with 1.5 times the steps"
)
LOGITS = Below(
    "transformer.logits",
    LOGIT_BOUND,
    "median whitened logit norm of the heads of AdamW; the finite-context theory ends at 0.707",
)
HEAD = Below(
    "transformer.head", 1.0, f"one head: error after {STEPS} steps over that of the best Adam after {4 * STEPS}"
)


@dataclass(frozen=True)
class Point:
    task: Literal["characters", "head"] = "characters"  # one head: squared loss, all tokens in every step
    method: str = "adamw"  # adamw or sgd, alone or with -pairs, -whitened or -chain; for a head adam or chain
    lr: float = 0.02
    steps: int = 150
    width: int = 32  # of a token
    context: int = 32  # number of tokens
    heads: int = 4
    layers: int = 2
    batch: int = 16
    text: int = 20_000  # characters to train on
    condition: float = 1.0  # of target and covariance of the head


def character_grids(preset: str, methods: list[str], seeds: int, **sizes: Any) -> list[Grid]:
    """Every method on the step sizes of its base."""
    rates = RATES[preset]
    return [Grid(method=method, lr=rates[method.partition("-")[0]], seeds=seeds, **sizes) for method in methods]


def head_grids(preset: str, conditions: list[float], seeds: int, **sizes: Any) -> list[Grid]:
    """A step size of 1/4, which is a full step on four factors, and Adam on its grid."""
    rates, sizes = RATES[preset]["adam"], {"task": "head", "condition": conditions, **sizes}
    return [
        Grid(method="chain", lr=0.25, steps=STEPS, seeds=seeds, **sizes),
        Grid(method="adam", lr=rates, steps=4 * STEPS, seeds=seeds, **sizes),
    ]


class Transformer(Experiment[Point]):
    id = "attention-regression/transformer"
    version = 3
    needs = "torch"
    spot = Point(steps=4, width=8, context=8, heads=2, layers=1, batch=4, text=2000)
    presets = {
        "quick": tuple(head_grids("quick", [1.0, 100.0], 8, width=6, context=200)),
        "full": (
            *character_grids(
                "full", ["adamw", "adamw-pairs", "adamw-whitened", "adamw-chain", "sgd", "sgd-pairs", "sgd-chain"], 5
            ),
            *character_grids("full", ["adamw"], 5, steps=225),
            *head_grids("full", [1.0, 100.0], 10, width=6, context=400),
        ),
    }  # fmt: skip
    method_fields = frozenset({"method", "lr", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        return _train_head(point, rng) if point.task == "head" else _train_characters(point, rng)

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        text, heads = rows.where(task="characters"), rows.where(task="head")
        shortest = text.where(steps=min(text.levels("steps"), default=0))
        longer = rows_where(text.where(method="adamw"), lambda point: point.steps > min(text.levels("steps")))
        for base, words in BASES.items():
            for variant, kind in VARIANTS.items():
                if runs := shortest.where(method=f"{base}-{variant}"):
                    both = rows_where(shortest, lambda p, m=(base, f"{base}-{variant}"): p.method in m)  # type: ignore[misc]
                    gain = _differences(runs, shortest.where(method=base))
                    yield ALONE.part(variant, f"{words} with {kind}", gain, on=both, base=base, words=words)
        if longer:
            chain = shortest.where(method="adamw-chain")
            both = Rows([*chain, *longer], [*chain.failed, *longer.failed])
            yield LONGER(_differences(chain, longer), on=both)
        if adamw := shortest.where(method="adamw"):
            yield LOGITS(_best_rows(adamw).values("logit_peak"), on=adamw)
        yield from HEAD.each(
            heads, "condition", "k{:g}", "condition numbers {:g}", lambda runs: runs.per_seed(_ratio_to_adam)
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_characters(rows.where(task="characters"), left)
        _draw_head(rows.where(task="head"), right)


def _train_characters(point: Point, rng: np.random.Generator) -> Measured:
    import torch
    from torch.nn.functional import cross_entropy

    from whichtoken.claims.attention_regression._character_model import CharacterText, CharacterTransformer

    source = CharacterText()
    text, other = source.sample(point.text, rng), source.sample(VALIDATION * (point.context + 1), rng)
    validation = torch.from_numpy(other.reshape(VALIDATION, -1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        model = CharacterTransformer(len(source.alphabet), point.context, point.width, point.heads, point.layers)

    def loss(codes: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(codes[:, :-1]).flatten(0, 1), codes[:, 1:].flatten())

    optimizers = _optimizers(model, point)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, partial(_schedule, steps=point.steps)) for each in optimizers]
    places = np.arange(point.context + 1)
    for _ in range(point.steps):
        starts = rng.integers(len(text) - point.context, size=(point.batch, 1))
        model.zero_grad()
        loss(torch.from_numpy(text[starts + places])).backward()  # type: ignore[no-untyped-call]
        if not torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).isfinite():
            # as good as guessing: a number that JSON and a mean can hold
            return {"loss": math.log(len(source.alphabet)), "diverged": True, "logit_peak": None, "imbalance": None}
        for optimizer in optimizers:
            optimizer.step()
        for schedule in schedules:
            schedule.step()
    model.eval()
    with torch.no_grad():
        final = min(loss(validation).item(), math.log(len(source.alphabet)))
    return {"loss": final, "diverged": False, **_diagnostics(model, validation[:, :-1])}


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up over a tenth of the steps, then a cosine down to a tenth.

    Without the warm-up AdamW fails at 0.08 (2.2 nats), next to its best step size, and would be an unfair rival.
    """
    return min(10 * (step + 1) / steps, 0.55 + 0.45 * math.cos(math.pi * step / steps))


def _optimizers(model: CharacterTransformer, point: Point) -> list[torch.optim.Optimizer]:
    """The optimizer of all parameters, or two of them, or one behind another that prepares its gradients."""
    from torch.optim import SGD, AdamW

    from whichtoken.claims.attention_regression._character_model import InputCovariance
    from whichtoken.optim import StructureAware

    base, _, variant = point.method.partition("-")
    if base not in BASES or (variant and variant not in VARIANTS):
        raise ValueError(f"method={point.method!r} must be adamw or sgd, alone or with -pairs, -whitened or -chain")
    if not variant:
        whole = list(model.parameters())
        return [AdamW(whole, point.lr) if base == "adamw" else SGD(whole, point.lr, momentum=0.9)]
    layers = model.attentions()
    chains = [[layer.out_proj.weight, layer.in_proj_weight] for layer in layers]
    moments = [None if variant == "pairs" else InputCovariance(layer).matrix for layer in layers]
    aware = StructureAware(
        [{"params": chain, "covariance": moment} for chain, moment in zip(chains, moments, strict=True)],
        point.lr,
        structure="fused",
        coupling="pairs" if variant == "pairs" else "chain",
        heads=point.heads,
        damping=STRONG if variant == "whitened" else 1e-2,
        keep_norm=True,
        momentum=0.9,
    )
    if base == "adamw":
        adamw = AdamW(model.parameters(), point.lr)
        adamw.register_step_pre_hook(lambda *_: aware.precondition_gradients())
        return [adamw]
    factors = {id(param) for chain in chains for param in chain}
    rest = [param for param in model.parameters() if id(param) not in factors]
    return [SGD(rest, point.lr, momentum=0.9), aware]


def _diagnostics(model: CharacterTransformer, codes: torch.Tensor) -> dict[str, float]:
    """Median whitened logit norm and imbalance of the heads, on the inputs that these codes give them."""
    import torch

    from whichtoken.theory.attention_regression.diagnostics import attention_diagnostics

    inputs: list[torch.Tensor] = []
    for layer in model.attentions():
        layer.register_forward_pre_hook(lambda _, tokens: inputs.append(tokens[0].flatten(0, 1).double()))
    with torch.no_grad():
        model(codes)
    heads: list[Any] = []
    for layer, tokens in zip(model.attentions(), inputs, strict=True):
        # normalized tokens fill one dimension less than they have
        covariance = torch.cov(tokens.T) + 1e-6 * torch.eye(tokens.shape[1])
        heads += attention_diagnostics(layer, codes.shape[1], covariance)
    return {name: float(np.median([getattr(head, name) for head in heads])) for name in ("logit_peak", "imbalance")}


def _train_head(point: Point, rng: np.random.Generator) -> Measured:
    """Relative squared error of the long-context map after every step on the four factors."""
    import torch

    from whichtoken.optim import StructureAware
    from whichtoken.theory.attention_regression.whitening import Whitening

    check_choice("method", point.method, HEADS)
    problem = sample_problem(point, rng, dim=point.width, tokens=point.context, noise=0.05)
    whitening = Whitening.from_tokens(problem.tokens)
    tokens = torch.tensor(problem.tokens - whitening.mean)  # (n, d)
    labels = torch.tensor(problem.labels - problem.labels.mean(axis=0))
    root, target = torch.tensor(whitening.root), torch.tensor(problem.target)
    factors = [torch.tensor(factor, requires_grad=True) for factor in _wrong_factors(problem.target, whitening, rng)]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(factors, point.lr)
    if point.method == "chain":
        optimizer = StructureAware(factors, point.lr, covariance=root @ root)
    errors = []
    for _ in range(point.steps):
        output, value, key, query = factors
        attention = torch.softmax(tokens @ query.T @ key @ tokens.T, dim=1)  # (n, n)
        loss = (attention @ tokens @ (output @ value).T - labels).square().sum() / (2 * len(tokens))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            limit = output @ value @ root @ root @ key.T @ query
            errors.append(float(((limit - target) @ root).square().sum() / (target @ root).square().sum()))
    return {"errors": errors, "loss": errors[-1]}


def _wrong_factors(target: Array, whitening: Whitening, rng: np.random.Generator) -> list[Array]:
    """W_O, W_V, W_K, W_Q, balanced and with small logits, of a map that is 20 % away from the target."""
    goal = target @ whitening.root
    error = rng.standard_normal(goal.shape)
    left, sizes, right = np.linalg.svd(goal + 0.2 * np.linalg.norm(goal) / np.linalg.norm(error) * error)
    share = np.diag(sizes**0.25)
    scale = math.sqrt(0.3 / np.linalg.norm(share @ share))  # |W_K^T W_Q|_F = 0.3, as in the two-factor solver
    inputs = [share / scale, share * scale, share * scale @ right]
    return [left @ share / scale, *(factor @ whitening.inverse_root for factor in inputs)]


def _words(method: str) -> str:
    base, _, variant = method.partition("-")
    return f"{BASES[base]} with {VARIANTS[variant]}" if variant else f"{BASES[base]} alone"


def _best_rate(runs: Rows[Point]) -> float:
    """The step size of least mean loss, of one method."""
    best: float = min(runs.levels("lr"), key=lambda lr: float(runs.where(lr=lr).values("loss").mean()))
    return best


def _best_rows(runs: Rows[Point]) -> Rows[Point]:
    return runs.where(lr=_best_rate(runs))


def _differences(ours: Rows[Point], theirs: Rows[Point]) -> list[float]:
    """Loss of one method minus that of another for every seed that both have, each at the step size best on average."""
    if not ours or not theirs:
        return []
    known = {row.seed: row.measured["loss"] for row in _best_rows(theirs)}
    return [row.measured["loss"] - known[row.seed] for row in _best_rows(ours) if row.seed in known]


def _ratio_to_adam(repeat: Rows[Point]) -> float | None:
    ours, theirs = repeat.where(method="chain"), repeat.where(method="adam")
    return float(ours[0].measured["loss"] / theirs.values("loss").min()) if ours and theirs else None


def _draw_characters(rows: Rows[Point], axes: Axes) -> None:
    for steps, of_length in group_by(rows, "steps"):
        for method, runs in group_by(of_length, "method"):
            finite = Rows(row for row in runs if not row.measured["diverged"])
            label = f"{_words(method)}, {steps} steps"
            points_with_errors(axes, finite, "lr", "loss", label, ls="-", lw=1, ms=4)
    axes.set(xscale="log", xlabel="step size", title="Characters: validation loss, in nats")
    legend(axes, fontsize=8)


def _draw_head(rows: Rows[Point], axes: Axes) -> None:
    for index, (k, of_condition) in enumerate(group_by(rows, "condition")):
        for method, style in (("chain", "-"), ("adam", "--")):
            runs = of_condition.where(method=method)
            curves = [np.median(list(some.values("errors")), axis=0) for _, some in group_by(runs, "lr")]
            if curves:
                best = min(curves, key=lambda curve: float(curve[-1]))
                label = f"{HEADS[method]}, condition numbers {k:g}"
                axes.plot(range(1, len(best) + 1), best, style, color=f"C{index}", label=label)
    axes.set(yscale="log", xlabel="step", title="One head: median error of the map")
    legend(axes, fontsize=8)
