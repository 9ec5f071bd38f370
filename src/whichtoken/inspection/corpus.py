"""The picks of every head over many texts: a batch at a time, with a few numbers kept per text and head."""

from __future__ import annotations

import copy
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from whichtoken.display.shown import Shown
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.reading import Reading
from whichtoken.inspection.sites import anatomy, find_decoder
from whichtoken.inspection.why import SINK
from whichtoken.progress import progress_lines
from whichtoken.reading import reason

BATCH, TOKENS = 16, 2048  # texts, and tokens, that are read at a time
UNLIMITED = 1 << 20  # tokens of a text
MEMORY = 4 << 30  # bytes that one batch may need
KEPT = ("token", "runner_up", "gap", "weight", "entropy", "largest_logit")  # of the picks of a batch


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
    batch: int = BATCH,
) -> CorpusPicks:
    """Run the texts through the model and keep what each head picked, which is no special token."""
    encoded, truncated = encode(tokenizer, texts, longest_text(model, tokenizer))
    found: list[dict[str, NDArray[Any]]] = []
    sinks: list[list[Counter[int]]] = []
    rows: list[int] = []
    for some, probe in run_texts(model, tokenizer, encoded, batch):
        sinks = sinks or [[Counter() for _ in probe.reading(i).heads] for i in range(len(probe.names))]
        found.append(_batch_picks(probe, queries, sinks))
        rows += some
    place = np.argsort(rows)
    joined = {name: np.concatenate([part[name] for part in found])[place] for name in found[0]}
    ids = [np.asarray(text, dtype=np.int32) for text in encoded]
    return CorpusPicks(**joined, ids=ids, sink_names=sinks, truncated=truncated)


def run_texts(
    model: nn.Module, tokenizer: Any, encoded: Sequence[Sequence[int]], batch: int, what: str = "texts"
) -> Iterator[tuple[list[int], AttentionProbe]]:
    """Run texts that are tokens, at most `batch` at a time; yields the numbers of each batch, and the probe that read it."""
    _check_ids(model, tokenizer, encoded)
    batches = _batches([len(ids) for ids in encoded], batch)
    check_memory(model, max(map(len, encoded)), len(batches[-1]))
    done = 0
    with (
        AttentionProbe(model, special_tokens=tokenizer) as probe,
        progress_lines(lambda: f"{done} of {len(encoded)} {what}"),
    ):
        for rows in batches:
            _run(model, pad(tokenizer, [encoded[i] for i in rows]))
            yield rows, probe
            done += len(rows)


def text_model(model: Any) -> Any:
    """The model, or its encoder where it has a decoder as well: that one reads other tokens than the text."""
    return model if find_decoder(model) is None else model.get_encoder()


def _batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Texts of one length together, so that there is little padding; fewer at a time where they are long."""
    batches: list[list[int]] = [[]]
    for text in np.argsort(lengths, kind="stable").tolist():
        size = len(batches[-1])
        if size == most or (size and (size + 1) * lengths[text] > TOKENS):
            batches.append([])
        batches[-1].append(text)
    return batches


def _batch_picks(probe: AttentionProbe, queries: str, sinks: list[list[Counter[int]]]) -> dict[str, NDArray[Any]]:
    layers: list[dict[str, Tensor]] = []
    for layer in range(len(probe.names)):
        picks = probe.picks(layer, queries, special=False)
        # the mass on special tokens is that of the head as it is
        mass = probe.picks(layer, queries).special_mass
        reading = probe.reading(layer)
        flags = reading.received() > SINK
        if reading.tokens is not None:
            for text, head, key in flags.nonzero().tolist():
                sinks[layer][head][int(reading.tokens[text, key])] += 1
        values = {name: getattr(picks, name) for name in KEPT}
        values["special_mass"] = torch.zeros_like(picks.gap) if mass is None else mass
        weights = probe.selected(layer, queries).weights()[:, :, 0]
        if layers and layers[0]["token"].shape != picks.token.shape[:2]:
            kind, counts = type(probe.model).__name__, (layers[0]["token"].shape[1], picks.token.shape[1])
            raise UsageError(
                f"layers of {kind} have {counts[0]} and {counts[1]} heads: a map needs as many in each; use AttentionProbe"
            )
        added = {"sink_share": (weights * flags).sum(-1), "contribution": _added_norm(probe, layer, picks._reading)}
        layers.append({name: value[:, :, 0] for name, value in values.items()} | added)
    kinds = {"token": np.int32, "runner_up": np.int32}
    return {
        name: np.stack([part[name].numpy() for part in layers], 1).astype(kinds.get(name, np.float32))
        for name in layers[0]
    }


def _added_norm(probe: AttentionProbe, layer: int, reading: Reading) -> Tensor:
    """Norm of what each head adds to the residual stream: (batch, heads)."""
    added = reading.output()[:, :, 0]  # (batch, heads, dim)
    # without an output projection the head's own output is the next best
    with suppress(UsageError):
        matrix = anatomy(probe.model, probe.site(layer)).output_weight(*added.shape[1:])
        added = torch.einsum("bhd,hdw->bhw", added, matrix.to(added.dtype)).detach()
    norm: Tensor = torch.linalg.vector_norm(added, dim=-1)
    return norm


def check_texts(texts: Iterable[str]) -> list[str]:
    """The texts, if they are strings that are not empty."""
    if isinstance(texts, str):
        raise UsageError("texts is one string; give a list of texts")
    texts = list(texts)
    if not texts:
        raise UsageError("no texts were given; give at least one")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {i + 1} is {reprlib.repr(text)}, not a string")
        if not text.strip():
            raise UsageError(f"text {i + 1} is empty; leave empty texts out")
    return texts


def encode(tokenizer: Any, texts: Iterable[str], longest: int) -> tuple[list[list[int]], int]:
    """Ids of the texts, cut to the length of the model, and how many were cut."""
    texts = check_texts(texts)
    try:
        whole = tokenizer(texts, truncation=False, verbose=False)["input_ids"]
        cut = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
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
    if not hasattr(model, "get_input_embeddings") or not hasattr(model, "main_input_name"):
        return  # not a model of transformers
    known = None
    with suppress(NotImplementedError):  # models of texts and pictures have several
        known = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if known is None:
        return
    for i, ids in enumerate(encoded):
        if (worst := max(ids)) >= known:
            raise UsageError(
                f"text {i + 1} has the token '{visible(str(tokenizer.convert_ids_to_tokens(worst))[:60])}' (id {worst}), the"
                f" model knows ids 0 to {known - 1}; give the model's own tokenizer"
            )
    if (padding := _padding_id(tokenizer)) >= known:
        raise UsageError(
            f"the tokenizer pads with id {padding}, the model knows ids 0 to {known - 1}; give the model's own tokenizer"
        )


@torch.no_grad()
def _run(model: Any, inputs: dict[str, Tensor]) -> None:
    """Run a batch; what the model does not read is one sentence."""
    wanted = getattr(model, "main_input_name", "input_ids")
    if wanted != "input_ids":
        raise UsageError(f"{type(model).__name__} reads {wanted}, not texts; give a model of texts")
    try:
        model(**inputs)
    except UsageError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{type(model).__name__} cannot read texts alone: {reason(error)}") from error


def _padding_id(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0)


def pad(tokenizer: Any, encoded: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """A batch: ids and mask, padded on the right."""
    texts = [torch.tensor(text) for text in encoded]
    ids = pad_sequence(texts, batch_first=True, padding_value=_padding_id(tokenizer))
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def longest_text(model: Any, tokenizer: Any) -> int:
    """The largest number of tokens that the positions of a model and its tokenizer allow."""
    config = getattr(model, "config", None)
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    # RoBERTa and others count their positions from the padding id on
    counted = [
        len(table.weight) - 1 - table.padding_idx
        for name, table in model.named_modules()
        if "position" in name and isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    every = (*limits, *counted, getattr(tokenizer, "model_max_length", None))
    # a tokenizer that knows no limit says 1e30
    return min((limit for limit in every if isinstance(limit, int) and 0 < limit < UNLIMITED), default=UNLIMITED)


def check_memory(model: Any, tokens: int, batch: int) -> None:
    """Refuse a batch that needs too much memory, by an estimate."""
    config = getattr(model, "config", None)
    names = ("num_attention_heads", "hidden_size", "num_hidden_layers")
    heads, width, depth = (getattr(config, name, 0) or 0 for name in names)
    needed = 4 * batch * tokens * (8 * width * (depth + 2) + 2 * heads * tokens)
    if needed > MEMORY:
        raise UsageError(
            f"a batch of {batch} texts of {tokens} tokens needs about {needed / 2**30:.1f} GiB; "
            "choose a smaller batch or shorter texts"
        )


def shuffle_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model with the entries of every weight matrix in random order: what a head does by chance."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return other
