"""When key-query matrix and decoder, trained together, end in their own max-margin problems: conditions to check on data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.display.shown import Shown
from whichtoken.margin import key_query_svm
from whichtoken.margin.key_query import decoder_svm

SUPPORT = 1e-6  # relative excess of a label margin up to which a sequence supports the decoder


@dataclass(frozen=True, eq=False)
class JointConditions(Shown):
    """Which conditions hold for the selected tokens of a problem.

    Attributes
    ----------
    separable : bool
        Some key-query matrix scores every selected token above the others of its sequence.
    classifiable : bool
        Some decoder classifies the selected tokens.
    every_sequence_supports : bool
        All selected tokens have the least label margin under that decoder of max margin. Otherwise the sequences with a larger
        one ask W for less, by how much depends on the ratio of the norms (`joint_limit`).
    best_tokens : bool
        Under that decoder no token of a sequence scores higher than the selected one: attention that leaves it loses margin.
    label_margins : array of shape (n,) or None
        y_i v.x_i under the decoder of unit l_p norm; None if there is none.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.mirror_descent import joint_conditions
    >>> tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]])  # two sequences of two tokens
    >>> found = joint_conditions(tokens, tokens[:, 1], labels=[1, -1], selected=[0, 0])
    >>> found.classifiable
    True
    """

    separable: bool
    classifiable: bool
    every_sequence_supports: bool
    best_tokens: bool
    label_margins: NDArray[np.float64] | None

    @property
    def hold(self) -> bool:
        """Whether all of them do: W then ends in the max-margin problem of all sequences, whatever the ratio of the norms."""
        return self.separable and self.classifiable and self.every_sequence_supports and self.best_tokens

    def _headline(self) -> str:
        return "all conditions of joint convergence hold" if self.hold else f"missing: {', '.join(self._failures())}"

    def _facts(self) -> Mapping[str, object]:
        return {name.replace("_", " "): name not in self._failures() for name in _CONDITIONS}

    def _failures(self) -> list[str]:
        return [name for name in _CONDITIONS if not getattr(self, name)]


_CONDITIONS = ("separable", "classifiable", "every_sequence_supports", "best_tokens")


def joint_conditions(
    tokens: ArrayLike, queries: ArrayLike, labels: ArrayLike, selected: ArrayLike, p: float = 2.0
) -> JointConditions:
    """Check on data whether joint l_p mirror descent that selects these tokens ends in both max-margin problems.

    Reach for it before you compare a trained pair (W, v) with `key_query_svm` and a linear classifier: where all conditions
    hold both limits are theirs; where a sequence does not support the decoder, compare W with `joint_limit` instead. The source
    (arXiv 2410.14581, abstract) states such conditions; this form of them is ours.

    Parameters
    ----------
    tokens : array_like of shape (n, T, d)
        Tokens of each sequence.
    queries : array_like of shape (n, d)
        Query of each sequence.
    labels : array_like of shape (n,)
        -1 or +1.
    selected : array_like of shape (n,)
        Token index of each sequence, such as `joint_descent(...).selected`.
    p : float, default=2.0
        Exponent of the geometry.

    Returns
    -------
    JointConditions
        Which conditions hold; `hold` if all do.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.mirror_descent import joint_conditions
    >>> tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
    >>> found = joint_conditions(tokens, tokens[:, 0], labels=[1, -1], selected=[0, 0])
    >>> found.hold, found.label_margins.tolist()
    (True, [1.0, 1.0])
    """
    x, y, alpha = np.asarray(tokens, dtype=np.float64), np.asarray(labels), np.asarray(selected, dtype=np.intp)
    if x.ndim != 3 or y.shape != x.shape[:1] or alpha.shape != y.shape:
        raise ValueError(
            f"tokens {x.shape}, labels {y.shape} and selected {alpha.shape} must have shapes (n, T, d), (n,) and (n,)"
        )
    if not np.isin(y, (-1, 1)).all():
        raise ValueError(f"labels must be -1 or +1, they hold {sorted(set(y.tolist()) - {-1, 1})}")
    separable = key_query_svm(x, queries, alpha, p=p).direction is not None
    certificate, chosen = decoder_svm(x, y, alpha, p)
    if (decoder := certificate.direction) is None:
        return JointConditions(separable, False, False, False, None)
    margins: NDArray[np.float64] = chosen @ decoder
    supports = bool(np.all(margins - margins.min() <= SUPPORT * margins.max()))
    best = bool(np.all(y[:, None] * (x @ decoder) <= margins[:, None] * (1 + SUPPORT)))
    return JointConditions(separable, True, supports, best, margins)
