"""Whether probabilities are what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.estimators.evaluation_page import draw_calibration
from whichtoken.estimators.metrics import Calibration, calibration_of
from whichtoken.report.displays.base import Display, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ProbabilityDisplay(Display):
    """How often predicted labels are right, against the probability that was given to them.

    Parameters
    ----------
    calibration : Calibration
        Probabilities and frequencies, in bins of equal size.
    name : str, default="predicted labels"
        Of the model, for the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the points, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.report import ProbabilityDisplay
    >>> rng = np.random.default_rng(0)
    >>> chances = rng.random(2000)
    >>> shown = ProbabilityDisplay.from_predictions(rng.random(2000) < chances, np.stack([1 - chances, chances], axis=1))
    >>> shown.calibration.error < 0.05, shown.ax_.get_ylabel()
    (True, 'share that is right')
    """

    size = (5.0, 4.4)

    def __init__(self, calibration: Calibration, *, name: str = "predicted labels") -> None:
        self.calibration, self.name = calibration, name

    @classmethod
    def from_estimator(cls, model: Any, X: Any, y: ArrayLike, *, ax: Axes | None = None) -> Self:
        """Draw the calibration of a fitted classifier on data that it has not seen.

        Parameters
        ----------
        model : classifier
            With `predict_proba` and `classes_`.
        X : samples
            As the classifier takes them.
        y : array_like of shape (n,)
            True labels.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        return cls.from_predictions(y, model.predict_proba(X), classes=model.classes_, name=type(model).__name__, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        probabilities: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        name: str = "predicted labels",
        ax: Axes | None = None,
    ) -> Self:
        """Draw the calibration of probabilities.

        Parameters
        ----------
        y : array_like of shape (n,)
            True labels.
        probabilities : array_like of shape (n, n_classes)
            Of every class.
        classes : array_like of shape (n_classes,), optional
            In the order of the columns; by default the sorted labels of y.
        name : str, default="predicted labels"
            For the legend.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        labels, shares = np.asarray(y), np.asarray(probabilities, dtype=np.float64)
        known = np.unique(labels) if classes is None else np.asarray(classes)
        if shares.shape != (len(labels), len(known)):
            raise ValueError(
                f"probabilities of shape {shares.shape} must have shape ({len(labels)}, {len(known)}): labels, classes"
            )
        right = known[shares.argmax(axis=1)] == labels
        return cls(calibration_of(shares.max(axis=1), right), name=name).plot(ax)

    def _draw(self, ax: Axes) -> None:
        draw_calibration(ax, self.calibration, f"{self.name}, error {self.calibration.error:.3f}")
        legend_above(ax)
