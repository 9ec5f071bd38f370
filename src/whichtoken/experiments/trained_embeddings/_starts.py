"""Where the flow of the <cls> vector starts: random embeddings, one first step, on data with one relevant token each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse

    from whichtoken.data import TokenCounts
    from whichtoken.flows.cls import ClsPath

Vector = NDArray[np.float64]
STEPS = ("actual", "ideal", "flat", "limit")


class Sizes(Protocol):
    """Fields of a point that describe data and first step."""

    @property
    def pairs(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def relevant(self) -> int: ...
    @property
    def irrelevant(self) -> int: ...
    @property
    def equal(self) -> bool: ...
    @property
    def dim(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def step(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Start:
    """Everything after the first step, and the embeddings before it."""

    data: TokenCounts
    initial: Vector  # (|S|, d)
    embeddings: Vector  # (|S|, d)
    cls: Vector  # (d,)
    value: Vector  # (d,)

    @property
    def arguments(self) -> tuple[Vector, Vector, Vector, Any, Any]:
        """In the order in which the flow and the theory take them."""
        return self.embeddings, self.cls, self.value, self.data.counts, self.data.labels


def random_parameters(tokens: int, dim: int, rng: np.random.Generator) -> tuple[Vector, Vector, Vector]:
    """E_s and p from N(0, I/d), v a random unit vector."""
    E, p, v = (rng.standard_normal(shape) / np.sqrt(dim) for shape in ((tokens, dim), dim, dim))
    return E, p, v / np.linalg.norm(v)


def orthonormal_parameters(tokens: int) -> tuple[Vector, Vector, Vector]:
    """The limit of infinite dimension, in as few coordinates as it needs."""
    axes = np.eye(tokens + 2)
    return axes[:tokens], axes[-2], axes[-1]


def first_step_on(data: TokenCounts, dim: int, lr: float, step: str, rng: np.random.Generator) -> Start:
    """Random parameters and one step: "actual", "ideal" (without its error), "flat" (ideal, and p orthogonal to v), or "limit".

    In the limit d -> infinity the first three are one, and it is the last: embeddings, p and v orthonormal, whatever `dim` says.
    At d in the thousands p.v times the large first step is not small.
    """
    from whichtoken.theory.trained_embeddings import first_step, ideal_first_step

    if step not in STEPS:
        raise ValueError(f"step={step!r} must be one of {', '.join(STEPS)}")
    E, p, v = (
        orthonormal_parameters(data.counts.shape[1])
        if step == "limit"
        else random_parameters(data.counts.shape[1], dim, rng)
    )
    if step == "flat":
        p = p - (p @ v) * v
    move = first_step if step == "actual" else ideal_first_step
    return Start(data, E, *move(E, p, v, data.counts, data.labels, lr), v)


def start_of(point: Sizes, rng: np.random.Generator) -> Start:
    """Data with one relevant token per sequence, and the first step on it."""
    from whichtoken.data import RelevantTokens

    generator = RelevantTokens(point.length, point.relevant, point.irrelevant, point.equal)
    return first_step_on(generator.sample(point.pairs, rng), point.dim, point.lr, point.step, rng)


def selected_share(path: ClsPath, start: Start) -> dict[int, float]:
    """Share of sequences of each label whose relevant tokens are all selected."""
    from whichtoken.theory.trained_embeddings import relevant_selection

    wanted = relevant_selection(start.data.counts, start.data.labels)
    missed = np.asarray((wanted > path.selected).sum(axis=1))
    return {sign: float(np.mean(missed[start.data.labels == sign] == 0)) for sign in (1, -1)}


def constructed_margin(start: Start, relevant: sparse.csr_array) -> float:
    """Margin of the p that Lemma 21 constructs, 2 sum of E_s^0 over the relevant tokens, for their selection."""
    from whichtoken.theory.trained_embeddings import selection_margin, token_classes

    counts = start.data.counts
    p = 2 * start.initial[token_classes(counts, start.data.labels).relevant].sum(axis=0)
    return selection_margin(start.embeddings @ p, counts, relevant)


class MarginLimit(NamedTuple):
    """A certified max-margin direction."""

    direction: Vector  # (d,), unit norm
    margin: float
    gap: float
    pairs: NDArray[np.int64]  # (m, 2) selected and unselected token of each constraint
    support: NDArray[np.int64]  # constraints with a multiplier


def limit_of(embeddings: Vector, counts: Any, selected: Any) -> MarginLimit:
    """The max-margin direction of a selection."""
    from whichtoken.margin import selection_svm

    certificate = selection_svm(embeddings, counts, selected)
    if certificate.direction is None:
        raise ValueError("the selected tokens cannot be separated: no limit exists")
    return MarginLimit(
        certificate.direction, certificate.margin, certificate.gap, certificate.pairs, certificate.support
    )
