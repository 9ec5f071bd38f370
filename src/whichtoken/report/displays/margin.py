"""Where the selected tokens lead, and which rivals hold the best direction in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.display.figures import COLOURS, QUIET
from whichtoken.margin import MarginCertificate
from whichtoken.report.displays.base import Display, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class MarginDisplay(Display):
    """The lead of each selected token over every other one, along a direction of the best margin.

    Parameters
    ----------
    leads : array_like of shape (m,)
        Score of the selected token less that of another one, for every pair.
    held : array_like of bool, shape (m,)
        Which pairs hold the direction in place.
    margin, bound : float
        The smallest lead, and what no direction can exceed.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the leads, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken.margin import prompt_svm
    >>> from whichtoken.report import MarginDisplay
    >>> tokens = [[[2.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]], [[3.0, 3.0], [0.0, 0.0]]]
    >>> limit = prompt_svm(tokens, selected=[0, 0, 0])
    >>> shown = MarginDisplay.from_certificate(limit, tokens, selected=[0, 0, 0])
    >>> shown.leads.round(3).tolist(), shown.held.tolist()
    ([1.414, 1.414, 4.243], [True, True, False])
    """

    def __init__(self, leads: ArrayLike, held: ArrayLike, *, margin: float, bound: float) -> None:
        self.leads, self.held = np.asarray(leads, dtype=np.float64), np.asarray(held, dtype=bool)
        self.margin, self.bound = margin, bound

    @classmethod
    def from_certificate(
        cls,
        certificate: MarginCertificate,
        tokens: Any,
        selected: Any,
        *,
        queries: ArrayLike | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw what `prompt_svm` or `key_query_svm` found.

        Parameters
        ----------
        certificate : MarginCertificate
            With a direction.
        tokens : array_like of shape (n, T, d), or list of (T_i, d)
            As they were given to the solver.
        selected : sequence of int or of index sets
            As they were given to the solver.
        queries : array_like of shape (n, d), optional
            For `key_query_svm`.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        direction = certificate.direction
        if direction is None:
            raise ValueError(f"the certificate is {certificate.status} and has no direction to draw")
        if (direction.ndim == 2) != (queries is not None):
            raise ValueError("give queries with a certificate of key_query_svm, and none with one of prompt_svm")
        along = [direction] * len(tokens) if queries is None else [direction @ query for query in np.asarray(queries)]
        scores = [np.asarray(part, dtype=np.float64) @ score for part, score in zip(tokens, along, strict=True)]
        first = [int(np.min(chosen)) for chosen in selected]
        leads = [scores[i][first[i]] - scores[i][t] for i, t in certificate.pairs]
        held = np.isin(np.arange(len(leads)), certificate.support)
        return cls(leads, held, margin=certificate.margin, bound=certificate.dual_bound).plot(ax)

    def _draw(self, ax: Axes) -> None:
        order = np.argsort(self.leads, kind="stable")
        places, leads, held = np.arange(1, len(order) + 1), self.leads[order], self.held[order]
        ax.plot(places[~held], leads[~held], "o", color=COLOURS[0], ms=5, label="other pairs")
        ax.plot(places[held], leads[held], "D", color=COLOURS[1], ms=7, label="pairs that hold the direction")
        ax.axhline(self.margin, color=QUIET, lw=1.5, label=f"margin {self.margin:.4g}, at most {self.bound:.4g}")
        ax.set(xlabel="pairs of a selected and another token, by lead", ylabel="lead of the selected token")
        ax.set_ylim(min(0.0, 1.1 * float(leads.min())), 1.08 * float(leads.max()))
        legend_above(ax)
