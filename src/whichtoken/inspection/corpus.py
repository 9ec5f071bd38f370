"""The picks of every head over many texts, in bounded memory: a batch at a time, a few numbers per text and head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.data.reading import reason
from whichtoken.display.shown import Shown
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.inspection.anatomy import anatomy
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.reading import Reading
from whichtoken.inspection.sinks import sinks

BATCH = 16
TRUST = 1e-3  # largest difference between the model's attention output and the recomputed one
MEMORY = 4 << 30  # bytes that one batch may need


@dataclass(frozen=True, eq=False)
class CorpusPicks(Shown):
    """For each text, layer and head: what one query (the first or the last token) picked."""

    token: NDArray[np.int32]  # (texts, layers, heads): position of the pick; -1: nothing to pick
    runner_up: NDArray[np.int32]
    gap: NDArray[np.float32]
    weight: NDArray[np.float32]
    entropy: NDArray[np.float32]
    special_mass: NDArray[np.float32]
    sink_share: NDArray[np.float32]  # attention of the query on the head's sinks
    contribution: NDArray[np.float32]  # norm of what the head adds to the residual stream for the query
    largest_logit: NDArray[np.float32]
    ids: list[NDArray[np.int32]]  # tokens of each text
    sink_names: list[list[Counter[int]]]  # by layer and head: how often a token id was a sink
    truncated: int  # texts that were longer than the model


def corpus_picks(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    queries: str = "cls",
    special: bool = True,
    batch: int = BATCH,
) -> CorpusPicks:
    """Run the texts through the model and keep what each head picked."""
    longest = longest_text(model, tokenizer)
    encoded, truncated = encode(tokenizer, texts, longest)
    _check_ids(model, tokenizer, encoded)
    check_memory(model, max(map(len, encoded)), batch)
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in FIELDS}
    names: list[list[Counter[int]]] = []
    order = np.argsort([len(ids) for ids in encoded], kind="stable")  # texts of one length together: little padding
    with AttentionProbe(model, special=tokenizer) as probe, torch.no_grad():
        for rows in np.array_split(order, max(1, -(-len(order) // batch))):
            inputs = pad(tokenizer, [encoded[i] for i in rows])
            if not names:
                _first_run(model, inputs)
                _check_readings(probe)
                names = [[Counter() for _ in probe.reading(i).heads] for i in range(len(probe.names))]
            else:
                model(**inputs)
            for name, values in _batch_picks(probe, queries, special, names).items():
                found[name].append(values)
    place = np.argsort(order, kind="stable")
    joined = {name: np.concatenate(values)[place] for name, values in found.items()}
    return CorpusPicks(
        **joined, ids=[np.asarray(ids, dtype=np.int32) for ids in encoded], sink_names=names, truncated=truncated
    )


FIELDS = (
    "token",
    "runner_up",
    "gap",
    "weight",
    "entropy",
    "special_mass",
    "sink_share",
    "contribution",
    "largest_logit",
)


def _batch_picks(
    probe: AttentionProbe, queries: str, special: bool, names: list[list[Counter[int]]]
) -> dict[str, NDArray[Any]]:
    layers: dict[str, list[NDArray[Any]]] = {name: [] for name in FIELDS}
    for layer in range(len(probe.names)):
        reading = probe.reading(layer)
        picks = probe.picks(layer, queries, special=special)
        flags = sinks(reading)
        _count(flags, probe.tokens, names[layer])
        narrow = picks._reading
        weights = probe._narrowed(reading, queries).weights()[:, :, 0]
        mass = torch.zeros_like(picks.gap) if picks.special_mass is None else picks.special_mass
        if not special:  # the mass on special tokens is that of the head as it is
            mass = probe.picks(layer, queries).special_mass  # type: ignore[assignment]
        values = {
            "token": picks.token, "runner_up": picks.runner_up, "gap": picks.gap, "weight": picks.weight,
            "entropy": picks.entropy, "special_mass": mass, "largest_logit": picks.largest_logit,
        }  # fmt: skip
        for name, value in values.items():
            layers[name].append(value[:, :, 0].numpy())
        layers["sink_share"].append((weights * flags).sum(-1).numpy())
        layers["contribution"].append(_written(probe, layer, narrow))
    kinds = {"token": np.int32, "runner_up": np.int32}
    return {name: np.stack(values, 1).astype(kinds.get(name, np.float32)) for name, values in layers.items()}


def _written(probe: AttentionProbe, layer: int, reading: Reading) -> NDArray[Any]:
    """Norm of what each head adds to the residual stream: (batch, heads)."""
    context = reading.output()[:, :, 0]  # (batch, heads, dim)
    site = next(site for site in probe.sites if layer in site.layers)
    try:
        matrix = anatomy(probe.model, site).output_weight(context.shape[1])
    except UsageError:  # no output projection was found: the head's own output is the next best
        return np.asarray(torch.linalg.vector_norm(context, dim=-1))
    written = torch.einsum("bhd,hdw->bhw", context, matrix.to(context.dtype))
    return np.asarray(torch.linalg.vector_norm(written.detach(), dim=-1))


def _count(flags: Tensor, tokens: Tensor | None, names: list[Counter[int]]) -> None:
    if tokens is None or tokens.shape[1] != flags.shape[2]:
        return
    for text, head, key in flags.nonzero().tolist():
        names[head][int(tokens[text, key])] += 1


def encode(tokenizer: Any, texts: Sequence[str], longest: int) -> tuple[list[list[int]], int]:
    """Ids of the texts, cut to the length of the model, and how many were cut."""
    if not len(texts):
        raise UsageError("no texts were given; give at least one")
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"text {i + 1} is empty; leave empty texts out")
    try:
        whole = tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        cut = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is not an Exception
        raise UsageError(f"the tokenizer fails on these texts: {reason(error)}") from error
    for i, ids in enumerate(cut):
        if not len(ids):
            raise UsageError(f"text {i + 1} has no tokens; leave it out")
    return cut, sum(len(a) > len(b) for a, b in zip(whole, cut, strict=True))


def _check_ids(model: Any, tokenizer: Any, encoded: Sequence[Sequence[int]]) -> None:
    """Refuse tokens that the model has no embedding for."""
    known = getattr(model.get_input_embeddings(), "num_embeddings", None) if _is_of_transformers(model) else None
    if known is None:
        return
    for i, ids in enumerate(encoded):
        if (worst := max(ids)) >= known:
            raise UsageError(
                f"text {i + 1} has the token '{visible(str(tokenizer.convert_ids_to_tokens(worst))[:60])}' (id {worst}), the"
                f" model knows ids 0 to {known - 1}; give the model's own tokenizer"
            )
    if (filler := _filler(tokenizer)) >= known:
        raise UsageError(
            f"the tokenizer fills up with id {filler}, the model knows ids 0 to {known - 1}; give the model's own tokenizer"
        )


def _is_of_transformers(model: Any) -> bool:
    return hasattr(model, "get_input_embeddings") and hasattr(model, "main_input_name")


def _first_run(model: Any, inputs: dict[str, Tensor]) -> None:
    """The first batch, where a model shows whether it reads texts."""
    wanted = getattr(model, "main_input_name", "input_ids")
    if wanted != "input_ids":
        raise UsageError(f"{type(model).__name__} reads {wanted}, not texts; give a model of texts")
    try:
        model(**inputs)
    except UsageError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{type(model).__name__} cannot read texts alone: {reason(error)}") from error


def _filler(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0)


def pad(tokenizer: Any, encoded: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """A batch: ids and mask, padded on the right."""
    longest = max(map(len, encoded))
    ids = torch.full((len(encoded), longest), _filler(tokenizer))
    mask = torch.zeros_like(ids)
    for row, text in enumerate(encoded):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def longest_text(model: Any, tokenizer: Any) -> int:
    """Tokens that a model takes: what its positions and its tokenizer allow."""
    config = getattr(model, "config", None)
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    known = [
        limit
        for limit in (*limits, getattr(tokenizer, "model_max_length", None))
        if isinstance(limit, int) and limit > 0
    ]
    longest = min(known, default=512)
    # RoBERTa counts its positions from the padding id on
    return longest - 2 if getattr(config, "model_type", "") == "roberta" and longest in limits else longest


def check_memory(model: Any, tokens: int, batch: int) -> None:
    """Estimate what one batch needs, before it is run."""
    config = getattr(model, "config", None)
    heads, width, depth = (
        getattr(config, name, 0) or 0 for name in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    needed = 4 * batch * tokens * (8 * width * (depth + 2) + 2 * heads * tokens)
    if needed > MEMORY:
        raise UsageError(
            f"a batch of {batch} texts of {tokens} tokens needs about {needed / 2**30:.1f} GiB; "
            "choose a smaller batch or shorter texts"
        )


def _check_readings(probe: AttentionProbe) -> None:
    layers = [layer for layer in range(len(probe.names)) if probe.reading(layer).context is not None]
    worst = float(np.max([probe.error(layer) for layer in layers], initial=0.0))  # nan if one is
    half = next(probe.model.parameters()).dtype in (torch.float16, torch.bfloat16)
    if not worst <= (0.05 if half else TRUST):
        raise UsageError(
            f"the attention of {type(probe.model).__name__} is not what was recomputed (relative difference {worst:.2g}); "
            "describe its attention module with a subclass of whichtoken.inspection.Adapter: see docs/inspect.md"
        )
