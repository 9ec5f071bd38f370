"""How well trained embeddings show the importance of tokens: the two scatter plots of the paper, as numbers and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whichtoken.lab import Row

DRAWN = 1500  # tokens kept for the figure


def importance_shown(
    posterior: NDArray[np.float64], scores: NDArray[np.float64], values: NDArray[np.float64], rng: np.random.Generator
) -> dict[str, Any]:
    """Correlations of E.v with the posterior difference and of E.p with its modulus, and tokens to draw.

    Parameters
    ----------
    posterior : (vocabulary,), equation (37); nan for tokens that do not occur, which are left out.
    scores, values : (vocabulary,), E.p and E.v.
    """
    from scipy.stats import spearmanr

    seen = np.flatnonzero(np.isfinite(posterior))
    posterior, scores, values = posterior[seen], scores[seen], values[seen]
    drawn = rng.permutation(len(seen))[:DRAWN]
    return {
        "pearson_value": float(np.corrcoef(posterior, values)[0, 1]),
        "pearson_selection": float(np.corrcoef(np.abs(posterior), scores)[0, 1]),
        "spearman_value": float(spearmanr(posterior, values).statistic),
        "spearman_selection": float(spearmanr(np.abs(posterior), scores).statistic),
        "posterior": [round(float(x), 4) for x in posterior[drawn]],
        "scores": [round(float(x), 4) for x in scores[drawn]],
        "values": [round(float(x), 4) for x in values[drawn]],
    }


def draw_importance(row: Row[Any], left: Axes, right: Axes, title: str) -> None:
    """Selection score and value of tokens against their posterior difference, as in Figures 1 to 4."""
    for axes, name, label in ((left, "scores", "attention score, E·p"), (right, "values", "vote for a label, E·v")):
        axes.plot(row.measured["posterior"], row.measured[name], ".", ms=2, alpha=0.4)
        axes.set(xlabel="what the token really says about the label", ylabel=label, xticks=(-1, -0.5, 0, 0.5, 1))
    left.set_title(title)
    right.set_title(title)
