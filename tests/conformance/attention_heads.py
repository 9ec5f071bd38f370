"""Everything that computes softmax attention, each behind the same small door: scores and values in, outputs and slopes out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from benchmarks._padded_ids import ClsAttentionModule, padded_ids
from scipy import sparse

from whichtoken.attention import RaggedArray, pool_gradient, softmax_pool
from whichtoken.attention.losses import compiled_log_slope
from whichtoken.estimators.bags.data import LabeledBags, linear_map, no_scaling
from whichtoken.estimators.bags.training import Pooling, Score, loss_and_gradient
from whichtoken.estimators.text.explanation import _attention
from whichtoken.flows.attention_kernels import weight_gradient
from whichtoken.flows.cls import token_pull
from whichtoken.theory.sparse_tokens.two_step import attention_features
from whichtoken.theory.trained_embeddings import attend
from whichtoken.theory.trained_embeddings.cls_model import ClsAttention
from whichtoken.theory.trained_embeddings.score_descent import ScoreDescent
from whichtoken.theory.trained_embeddings.score_descent_kernels import BETA1


class Case(NamedTuple):
    scores: np.ndarray  # (N,)
    values: np.ndarray  # (N,)
    starts: np.ndarray  # (n + 1,)
    amounts: np.ndarray | None  # (N,)
    labels: np.ndarray  # (n,), -1 or +1
    upstream: np.ndarray  # (n,), slopes in the outputs for rows whose loss is `given`

    @property
    def counts(self) -> sparse.csr_array:
        """A vocabulary with one entry per place."""
        data = np.ones(len(self.scores), dtype=np.int32) if self.amounts is None else self.amounts.astype(np.int32)
        indices, indptr = np.arange(len(data), dtype=np.int32), self.starts.astype(np.int32)
        return sparse.csr_array((data, indices, indptr), shape=(len(self.labels), len(data)))

    @property
    def vectors(self) -> np.ndarray:
        """Tokens (N, 2 + N): score, value, and a coordinate of its own in which the slopes of a token can be read off."""
        return np.column_stack([self.scores, self.values, np.eye(len(self.scores), dtype=self.scores.dtype)])

    @property
    def padded(self) -> np.ndarray:
        """Vectors of sequences of one length, (n, T, 2 + N)."""
        return self.vectors.reshape(len(self.labels), -1, 2 + len(self.scores))

    def sums(self, numbers: np.ndarray) -> np.ndarray:
        """Sum over the places of each sequence, (n,)."""
        return np.bincount(
            np.repeat(np.arange(len(self.labels)), np.diff(self.starts)), numbers, minlength=len(self.labels)
        )


class Found(NamedTuple):
    outputs: Any  # (n,)
    scores: Any = None  # (N,), slopes of the loss; None: the head gives none
    values: Any = None  # (N,)


@dataclass(frozen=True)
class Head:
    name: str
    run: Callable[[Case], Found]
    loss: str = "given"  # what the slopes are of: <upstream, outputs>, or the mean logistic or linear loss
    amounts: bool = True  # knows how often a token occurs
    ragged: bool = True  # takes sequences of different lengths
    empty: bool = True  # takes sequences without tokens
    single: bool = False  # computes in single precision, too
    fails: dict[str, str] = field(default_factory=dict)  # test -> why

    def marks(self, test: str) -> tuple[Any, ...]:
        return (pytest.mark.xfail(reason=self.fails[test]),) if test in self.fails else ()


def core(case):
    arguments = case.scores, case.values, case.starts, case.amounts
    slopes = pool_gradient(case.upstream, *arguments)
    return Found(softmax_pool(*arguments).outputs, slopes.scores, slopes.values)


def core_log_weights(case):
    log_weights = softmax_pool(case.scores, case.values, case.starts, case.amounts).log_weights
    weights = np.exp(log_weights.astype(np.float64))
    return Found(case.sums(weights * case.values), None, weights * np.repeat(case.upstream, np.diff(case.starts)))


def core_on_a_vocabulary(case):
    """Entries in another order than the places, and some that never occur."""
    order = np.random.default_rng(0).permutation(len(case.scores) + 3)
    tokens = order[: len(case.scores)].astype(np.int32)
    scores, values = (np.full(len(order), part.max(initial=0.0) + 5.0, dtype=part.dtype) for part in case[:2])
    scores[tokens], values[tokens] = case.scores, case.values
    slopes = pool_gradient(case.upstream, scores, values, case.starts, case.amounts, tokens=tokens)
    outputs = softmax_pool(scores, values, case.starts, case.amounts, tokens=tokens).outputs
    return Found(outputs, slopes.scores[tokens], slopes.values[tokens])


def several_queries(case):
    """The second of three queries and the second of three values."""
    scores, values = (np.stack([part + 7.0, part, -part], axis=1).astype(part.dtype) for part in case[:2])
    upstream = np.zeros((len(case.labels), 3, 3))
    upstream[:, 1, 1] = case.upstream
    slopes = pool_gradient(upstream, scores, values, case.starts, case.amounts)
    outputs = softmax_pool(scores, values, case.starts, case.amounts).outputs
    return Found(outputs[:, 1, 1], slopes.scores[:, 1], slopes.values[:, 1])


def theory(case):
    attended = attend(case.scores, case.values, case.counts, case.labels)
    along_value, along_cls = attended.gradients()
    return Found(attended.outputs, along_cls, along_value)


def cls_attention(case):
    model = ClsAttention(np.stack([case.scores, case.values], axis=1), *np.eye(2, dtype=case.scores.dtype))
    slopes = model.gradient(case.counts, case.labels)
    return Found(model.decision(case.counts), slopes.along_cls, slopes.along_value)


def cls_flow(case):
    counts = case.counts
    pull, log_scale, _ = token_pull(
        case.scores, case.values, counts.indptr, counts.indices, np.log(counts.data), case.labels.astype(np.float64)
    )
    return Found(None, np.exp(log_scale) * pull)


def cls_module(case):
    module = ClsAttentionModule(ClsAttention(np.stack([case.scores, case.values], axis=1), *np.eye(2)))
    ids = padded_ids(case.counts)
    module.loss(ids, torch.tensor(case.labels)).backward()
    return Found(module(ids).detach().numpy(), *module.embedding.weight.grad.numpy().T)


def score_descent(case):
    """The first running mean of Adam is a tenth of the slope."""
    descent = ScoreDescent(len(case.scores), 0.0, 0.0, np.random.default_rng(0))
    descent.selection[:, 0], descent.values[:, 0, 0] = case.scores, case.values
    amounts, n = case.counts.astype(np.float64), len(case.labels)
    outputs = descent.scores.outputs(amounts)[:, 0]
    descent.epoch(amounts, (case.labels[:, None] + 1) / 2, np.ones(n), n)
    return Found(outputs, *(moments[0].ravel() / (1 - BETA1) for moments in descent._moments[:2]))


def text_explanation(case):
    model = SimpleNamespace(
        _amounts=lambda counts: counts,
        selection_=case.scores[:, None],
        values_=case.values[:, None, None],
        intercept_=np.zeros(1),
        _decision_bias=np.zeros(1),
        log_null_=-np.inf,
    )
    attention, contributions = _attention(model, case.counts, np.zeros(len(case.labels), dtype=int))
    return Found(case.sums(contributions), None, attention * np.repeat(case.upstream, np.diff(case.starts)))


def bag_gradient(case):
    bags = RaggedArray(case.starts, case.vectors)
    data = LabeledBags(bags, case.labels.astype(float), np.ones(len(case.labels)))
    both = np.eye(2, bags.dim)
    _, gradient, _ = loss_and_gradient(data, both, 0.0, no_scaling(bags.dim))
    return Found(Score(linear_map(bags.dim), Pooling(both[:1], both[1:], np.zeros(1)))(bags), *gradient[:, 2:])


def bag_weights(case):
    bags, query = RaggedArray(case.starts, case.vectors), np.eye(1, 2 + len(case.scores))
    weights = Score(linear_map(bags.dim), Pooling(query, query, np.zeros(1))).attention(bags)[:, 0]
    return Found(case.sums(weights * case.values), None, weights * np.repeat(case.upstream, np.diff(case.starts)))


def two_step_query(case):
    query, readout = np.eye(2, 2 + len(case.scores))
    features, _ = attention_features([(case.padded, case.labels)], query)
    return Found(features @ readout)


def attention_kernels(case):
    tokens, n, dim = case.padded, len(case.labels), 2 + len(case.scores)
    queries, labels = np.tile(np.eye(1, dim), (n, 1)), case.labels.astype(float)
    attention, log_slopes, selected = np.empty(tokens.shape[:2]), np.empty(n), np.zeros(n, dtype=np.int64)
    descent, log_scale = weight_gradient(
        tokens, queries, labels[:, None] * tokens[:, :, 1], 0.0, np.diag(queries[0]), 0.0,
        compiled_log_slope("linear"), selected, attention, log_slopes,
    )  # fmt: skip
    slopes = -np.exp(log_scale) * descent.reshape(dim, dim)[2:, 0]
    return Found((attention * tokens[:, :, 1]).sum(axis=1), slopes)


TEXTBOOK = "written out as it stands in the paper, for comparison: g_t - f is rounding once a token wins"

HEADS = (
    Head("core", core, single=True),
    Head("core: log-weights", core_log_weights, single=True),
    Head("core: vocabulary", core_on_a_vocabulary, single=True),
    Head("core: several queries and values", several_queries, single=True),
    Head("theory.attend", theory, loss="logistic"),
    Head("ClsAttention", cls_attention, loss="logistic", single=True),
    Head("ClsAttentionModule", cls_module, loss="logistic", fails={"test_saturated": TEXTBOOK}),
    Head("cls_flow", cls_flow, loss="logistic"),
    Head("ScoreDescent", score_descent, loss="logistic"),
    Head("text explanation", text_explanation),
    Head("bags", bag_gradient, loss="logistic", amounts=False, empty=False, single=True),
    Head("bags: weights", bag_weights, amounts=False, empty=False),
    Head("two-step query", two_step_query, amounts=False, ragged=False, empty=False),
    Head("attention descent", attention_kernels, loss="linear", amounts=False, ragged=False, empty=False),
)
