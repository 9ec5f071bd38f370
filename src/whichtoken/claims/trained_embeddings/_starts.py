"""Where the flow of the <cls> vector starts: random embeddings, one first step, on data with one relevant token each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from whichtoken import datasets
from whichtoken.checks import check_choice
from whichtoken.theory import trained_embeddings

if TYPE_CHECKING:
    from scipy import sparse

    from whichtoken.flows.cls import ClsPath
    from whichtoken.margin import MarginCertificate

Vector = NDArray[np.float64]
STEPS = ("actual", "ideal", "flat", "limit")


@dataclass(frozen=True)
class FlowPoint:
    """Data with one relevant token per sequence and its first step, far below the sizes of the theorem."""

    pairs: int = 32
    length: int = 8
    relevant: int = 4  # of each label
    irrelevant: int = 24
    equal: bool = True  # frequencies of the relevant tokens
    dim: int = 1024
    lr: float = 2000.0  # of the first step
    step: Literal["actual", "ideal", "flat"] = "actual"


@dataclass(frozen=True, eq=False)
class Start:
    """Everything after the first step, and the embeddings before it."""

    data: datasets.TokenCounts
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


def take_first_step(data: datasets.TokenCounts, dim: int, lr: float, step: str, rng: np.random.Generator) -> Start:
    """Random parameters and one step: "actual", "ideal" (without its error), "flat" (ideal, and p orthogonal to v), or "limit".

    In the limit d -> infinity the first three are one, and it is the last: embeddings, p and v orthonormal, whatever `dim` says.
    At d in the thousands p.v times the large first step is not small.
    """
    from whichtoken.theory.trained_embeddings.one_step import first_step, ideal_first_step

    check_choice("step", step, STEPS)
    tokens = data.counts.shape[1]
    if step == "limit":
        # the limit of infinite dimension, in as few coordinates as it needs
        axes = np.eye(tokens + 2)
        E, p, v = axes[:tokens], axes[-2], axes[-1]
    else:
        E, p, v = random_parameters(tokens, dim, rng)
    if step == "flat":
        p = p - (p @ v) * v
    move = first_step if step == "actual" else ideal_first_step
    return Start(data, E, *move(E, p, v, data.counts, data.labels, lr), v)


def draw_start(point: Any, rng: np.random.Generator) -> Start:
    """Data with one relevant token per sequence, and the first step on it."""
    generator = datasets.RelevantTokens(point.length, point.relevant, point.irrelevant, point.equal)
    return take_first_step(generator.sample(point.pairs, rng), point.dim, point.lr, point.step, rng)


def selected_share(path: ClsPath, start: Start) -> dict[int, float]:
    """Share of sequences of each label whose relevant tokens are all selected."""
    from whichtoken.theory.trained_embeddings.lemmas import relevant_selection

    wanted = relevant_selection(start.data.counts, start.data.labels)
    missed = np.asarray((wanted > path.selected).sum(axis=1))
    return {sign: float(np.mean(missed[start.data.labels == sign] == 0)) for sign in (1, -1)}


def constructed_margin(start: Start, relevant: sparse.csr_array) -> float:
    """Margin of the p that Lemma 21 constructs, 2 sum of E_s^0 over the relevant tokens, for their selection."""
    from whichtoken.theory.trained_embeddings.attention import selection_margin

    counts = start.data.counts
    p = 2 * start.initial[trained_embeddings.token_classes(counts, start.data.labels).relevant].sum(axis=0)
    return selection_margin(start.embeddings @ p, counts, relevant)


def selection_limit(embeddings: Vector, counts: Any, selected: Any) -> tuple[Vector, MarginCertificate]:
    """The max-margin direction (d,) of a selection, of unit norm, and its certificate."""
    from whichtoken.margin import selection_svm

    limit = selection_svm(embeddings, counts, selected)
    return limit.require_direction(), limit


def measure_flow(point: Any, path: ClsPath, start: Start) -> tuple[dict[str, Any], Vector, MarginCertificate]:
    """What a flow selects, how it grows and how near it comes to its limit; the limit's direction and certificate."""
    from whichtoken.theory.trained_embeddings.attention import local_optimality, selection_margin

    direction, limit = selection_limit(path.embeddings, path.counts, path.selected)
    counts, labels, values = start.data.counts, start.data.labels, start.embeddings @ start.value
    norms = np.linalg.norm(path.positions, axis=1)
    late = int(np.searchsorted(path.arc, point.arc_length / 10))
    advantage = local_optimality(values, counts, labels, path.selected, path.secondary)
    measured = {
        "selected": min(selected_share(path, start).values()),
        "growth": float((norms[-1] - norms[late]) / (path.arc[-1] - path.arc[late])),
        "cosine": float(path.cosines(direction)[-1]),
        "cosines": path.cosines(direction),
        "arc": path.arc,
        "margin_share": selection_margin(path.scores / norms[-1], counts, path.selected) / limit.margin,
        "advantage": advantage / (point.lr / (4 * len(start.data) * point.length)),
    }
    return measured, direction, limit
