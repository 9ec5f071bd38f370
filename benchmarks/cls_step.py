"""One AdamW step of `<cls>` attention on documents: counts and one fused pass, beside PyTorch on padded ids.

Batches of 128 documents, 2048 dimensions. Peers: the obvious code (Embedding, autograd, torch.optim.AdamW) and the best torch
variant found (both products in one bmm, fused AdamW). IMDB, where it is here, in random batches and sorted by length, which
spares the peers their padding. One thread for all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whichtoken.claims.trained_embeddings._reviews import missing_reviews, review_counts
from whichtoken.datasets import LevelTokens, TokenCounts
from whichtoken.lab.benchmark import Beside, Measure, cpu_seconds, faster
from whichtoken.theory.trained_embeddings.cls_model import ClsAttention, count_matrix
from whichtoken.theory.trained_embeddings.cls_training import ClsAdamW, adamw_rule, batch_schedule, update_rows
from whichtoken.theory.trained_embeddings.training_loop import TrainingPlan

from ._padded_ids import ClsAttentionModule, padded_ids

PART = "Training"
QUESTION = "How long does a step of `<cls>` attention take on real documents?"
WHY = {
    "PyTorch in float32": {
        "even": (
            "Both round to single precision; they take sums, and the updates of tokens that a batch does not contain, in a "
            "different order."
        ),
        "loss": (
            "Both round to single precision; they take sums, and the updates of tokens that a batch does not contain, in a "
            "different order."
        ),
        "win": (
            "Both round to single precision; they take sums, and the updates of tokens that a batch does not contain, in a "
            "different order."
        ),
    },
    "PyTorch on padded ids": {
        "win": (
            "whichtoken reduces a document to its distinct tokens with two numbers each, and touches a row of the embedding "
            "only when a batch contains its token; padded ids send every position and every dimension through autograd."
        ),
    },
    "the best PyTorch variant": {
        "win": (
            "The same reason: a single product and a fused optimizer save passes over memory, but the padding and the "
            "untouched rows remain."
        ),
    },
}

BATCH, DIM = 128, 2048
PLAN = TrainingPlan(lr=1e-3)
WARM = 1000  # steps behind us: the early ones, replayed singly, are a negligible part of a run
RESET_PEAK = Path("/proc/self/clear_refs")  # writing 5 there forgets the peak so far


class OneProduct(ClsAttentionModule):
    """Scores and values of all places by one batched product."""

    def forward(self, ids: Tensor) -> Tensor:
        both = torch.stack([self.cls, self.value], dim=1).expand(len(ids), -1, -1)  # (batch, d, 2)
        projected = torch.bmm(self.embedding(ids.clamp(min=0)), both)  # (batch, T, 2)
        scores = projected[..., 0].masked_fill(ids < 0, -torch.inf)
        return (torch.softmax(scores, dim=1) * projected[..., 1]).sum(dim=1)


def measure() -> Iterator[Measure]:
    """Yield ratios, memory, bandwidth and the error of a trajectory."""
    levels = LevelTokens().sample(4000, np.random.default_rng(0))
    case = f"K-level T=256 |S|={levels.counts.shape[1]}"
    yield from _ratios(case, levels, np.random.default_rng(0).permutation(4000), (150, 90))
    yield from _memory(case, "levels")
    yield _trajectory(levels)
    if reason := missing_reviews("imdb"):
        print(f"IMDB is not measured: {reason}", file=sys.stderr)
        return
    reviews = review_counts("imdb")
    case = f"IMDB |S|={reviews.counts.shape[1]}"
    yield from _ratios(case, reviews, np.random.default_rng(0).permutation(len(reviews)), (150, 90))
    yield from _ratios(f"{case}, sorted by length", reviews, _length_sorted(reviews), (45, 30))
    yield from _memory(case, "imdb")
    yield _bandwidth(case, reviews)


def _ratios(
    case: str, data: TokenCounts, order: NDArray[np.int64], targets: tuple[float, float], repeats: int = 3
) -> Iterator[Measure]:
    """Ours (a whole epoch in this order, per step) beside both peers on evenly spaced batches, alternating."""
    engine = _engine(data)
    steps = -(-len(order) // BATCH)
    batches = [order[i * BATCH : (i + 1) * BATCH] for i in np.linspace(0, len(order) // BATCH - 1, repeats).astype(int)]
    peers = [_peer(ClsAttentionModule), _peer(OneProduct, fused=True)]
    models = [peer(data, batches[0]) for peer in peers]
    engine.epoch(order, PLAN.lr)  # compilation
    ours, theirs = [], [[], []]  # type: ignore[var-annotated]
    for batch in batches:
        ours.append(cpu_seconds(lambda: engine.epoch(order, PLAN.lr)) / steps)
        for times, step in zip(theirs, models, strict=True):
            times.append(cpu_seconds(lambda: step(batch)))  # noqa: B023
    # torch's batches differ in length, so their mean is what an epoch costs
    for name, times, target in zip(("PyTorch on padded ids", "the best PyTorch variant"), theirs, targets, strict=True):
        yield faster(case, median(ours), float(np.mean(times)), name, target)


def _peer(kind: type[ClsAttentionModule], fused: bool = False) -> Callable[..., Callable[..., None]]:
    def prepare(data: TokenCounts, first: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], None]:
        module = kind(ClsAttention.start(data.counts.shape[1], DIM, np.random.default_rng(0)))
        module.value.requires_grad_(False)
        optimizer = torch.optim.AdamW([module.embedding.weight, module.cls], lr=PLAN.lr, weight_decay=1e-8, fused=fused)

        def step(rows: NDArray[np.int64]) -> None:
            optimizer.zero_grad()
            module.loss(padded_ids(data.counts, rows), torch.from_numpy(data.labels[rows])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        step(first[:4])  # the optimizer's state is made in its first step
        return step

    return prepare


def _engine(data: TokenCounts) -> ClsAdamW:
    model = ClsAttention.start(data.counts.shape[1], DIM, np.random.default_rng(0))
    engine = ClsAdamW(model, count_matrix(data.counts, data.counts.shape[1]), data.labels, PLAN)
    engine.steps += WARM
    return engine


def _length_sorted(data: TokenCounts) -> NDArray[np.int64]:
    """Batches of documents of similar length, the batches in random order."""
    sorted_rows = np.argsort(data.lengths, kind="stable")
    whole = sorted_rows[: len(sorted_rows) // BATCH * BATCH].reshape(-1, BATCH)
    return np.asarray(np.random.default_rng(0).permutation(whole).ravel())


def _bandwidth(case: str, data: TokenCounts) -> Measure:
    """Bytes of embeddings and running means that the fused pass moves per second, over a plain sweep of three arrays.

    What binds it is seen beside. A coordinate costs 24 bytes of memory, a root and a quotient. The same pass over sixteen rows
    that stay in the cache has only the arithmetic left; over all rows as they lie in memory, nothing is scattered; over
    the rows of the batches in random instead of ascending order, they are scattered most.
    """
    engine, order = _engine(data), np.random.default_rng(0).permutation(len(data))
    documents, vocabulary = engine.documents, data.counts.shape[1]
    schedule = batch_schedule(documents.indptr, documents.indices, vocabulary, order, BATCH)
    steps = len(schedule.starts) - 1
    rule = adamw_rule(WARM, steps, PLAN.lr, PLAN.weight_decay, PLAN.betas, PLAN.eps, np.float32)
    embeddings, cls, value = engine.moments
    along, none, table = np.full(vocabulary, 1e-6), np.zeros(vocabulary, dtype=np.int32), np.empty((1, 7))

    batches = [schedule.tokens[first:last] for first, last in pairwise(schedule.bounds)]
    shuffled = [np.random.default_rng(0).permutation(tokens) for tokens in batches]
    in_order = [np.arange(vocabulary, dtype=np.int32)] * 8
    in_cache = [np.tile(np.arange(16, dtype=np.int32), vocabulary // 16)] * 8

    def passes(batches: list[NDArray[np.int32]] = batches) -> None:
        for step, tokens in enumerate(batches):
            update_rows(
                embeddings, tokens, none, along, along, value.parameter, cls.parameter,
                value.parameter, cls.parameter, table, rule, step, np.empty(vocabulary), np.empty(vocabulary),
            )  # fmt: skip

    def rate(batches: list[NDArray[np.int32]]) -> float:
        return 24 * sum(map(len, batches)) * DIM / cpu_seconds(lambda: passes(batches))

    # a pass reads and writes E, m, v (24 bytes a coordinate); an epoch also reads E for the gradient of p and, in rows that
    # the batch before did not touch, for the score
    passed = 24 * len(schedule.tokens)
    whole = passed + 4 * len(schedule.tokens) + 4 * int(schedule.unseen.sum()) + 24 * int((schedule.before > 0).sum())
    arrays = [np.ones((vocabulary, DIM), dtype=np.float32) for _ in range(3)]
    passes()
    engine.epoch(order, PLAN.lr)
    _sweep(*arrays)
    speeds = []
    for _ in range(3):
        kernel = rate(batches)
        epoch = whole * DIM / cpu_seconds(lambda: engine.epoch(order, PLAN.lr))
        sweep = 6 * arrays[0].nbytes / min(cpu_seconds(lambda: _sweep(*arrays)) for _ in range(10))
        speeds.append((kernel / sweep, kernel, epoch, sweep, rate(shuffled), rate(in_order), rate(in_cache)))
    share, *rates = sorted(speeds)[1]
    return Measure(
        case, "share of the measured read-modify-write bandwidth, fused pass", share, 0.85,
        detail="{:.1f} GB/s (whole epoch {:.1f}) of {:.1f} GB/s; rows of a batch in random order {:.1f}, all rows in order "
        "{:.1f}, rows in the cache {:.1f}".format(*(speed / 1e9 for speed in rates)),
    )  # fmt: skip


@numba.njit(parallel=True, fastmath=True)
def _sweep(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> None:
    keep = np.float32(0.999)
    for i in numba.prange(a.shape[0]):
        for j in range(a.shape[1]):
            a[i, j] = a[i, j] * keep + b[i, j]
            b[i, j] *= keep
            c[i, j] *= keep


def _trajectory(data: TokenCounts, dim: int = 256, steps: int = 300) -> Measure:
    """Distance of float32 runs from float64 torch after 300 steps, relative to the way traveled: ours over torch's."""
    start = ClsAttention.start(data.counts.shape[1], dim, np.random.default_rng(1))
    orders = [np.random.default_rng(epoch).permutation(len(data)) for epoch in range(-(-steps * BATCH // len(data)))]
    model = ClsAttention(start.embeddings.copy(), start.cls.copy(), start.value.copy())
    engine = ClsAdamW(model, count_matrix(data.counts, data.counts.shape[1]), data.labels, PLAN)
    for order in orders:
        engine.epoch(order, PLAN.lr)
    exact, single = (_torch_run(start, data, orders, kind) for kind in (torch.float64, torch.float32))
    traveled = np.linalg.norm(exact - start.embeddings)
    ours, theirs = (float(np.linalg.norm(end - exact) / traveled) for end in (model.embeddings, single))
    return Measure(
        f"K-level, d={dim}, {len(orders)} epochs of {-(-len(data) // BATCH)} steps",
        "distance from float64 torch, ours over float32 torch's", ours / theirs, 1.5, at_least=False,
        detail=f"{ours:.2g} against {theirs:.2g}",
        beside=Beside("PyTorch in float32", ours, theirs, "distance from float64"),
    )  # fmt: skip


def _torch_run(
    start: ClsAttention, data: TokenCounts, orders: list[NDArray[np.int64]], kind: torch.dtype
) -> NDArray[np.float64]:
    E, p = (torch.tensor(array, dtype=kind).requires_grad_() for array in (start.embeddings, start.cls))
    v, labels = torch.tensor(start.value, dtype=kind), torch.tensor(data.labels, dtype=kind)
    logs = torch.log(torch.tensor(data.counts.toarray(), dtype=kind))
    optimizer = torch.optim.AdamW([E, p], lr=PLAN.lr, weight_decay=PLAN.weight_decay)
    for order in orders:
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            outputs = torch.softmax(E @ p + logs[rows], dim=1) @ (E @ v)
            optimizer.zero_grad()
            torch.nn.functional.softplus(-labels[rows] * outputs).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return E.detach().double().numpy()


def _memory(case: str, data: str) -> Iterator[Measure]:
    """Memory that a fresh process needs at its peak for a model and one step, beyond the data; where the system tells."""
    if not RESET_PEAK.exists():
        return
    here = Path(__file__)
    # -P and the folder above, last: the benchmark `inspect` must not stand in for Python's module
    program = (
        f"import sys; sys.path.append({str(here.parents[1])!r}); from {here.parent.name}.{here.stem} import one_step; "
    )
    ours, theirs = (
        int(subprocess.check_output([sys.executable, "-P", "-c", f"{program}print(one_step({data!r}, {what!r}))"]))
        for what in ("ours", "torch")
    )
    yield Measure(
        case,
        "peak memory of a step over PyTorch's",
        ours / theirs,
        0.2,
        at_least=False,
        detail=f"{ours / 1e6:.0f} MB against {theirs / 1e6:.0f} MB",
        beside=Beside("PyTorch on padded ids", ours / 1e6, theirs / 1e6, "MB"),
    )


def one_step(name: str, what: str) -> int:
    """Peak bytes of this process during the start and a step, beyond what it held before."""
    data = LevelTokens().sample(4000, np.random.default_rng(0)) if name == "levels" else review_counts("imdb")
    rows = np.random.default_rng(0).permutation(len(data))[:BATCH]
    before = _status("VmRSS")
    RESET_PEAK.write_text("5")
    if what == "ours":
        _engine(data).epoch(rows, PLAN.lr)
    else:
        _peer(ClsAttentionModule)(data, rows)(rows)
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))
