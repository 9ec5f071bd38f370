"""Displays as in scikit-learn: a display holds data, and `plot` draws a figure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from whichtoken.display.figures import COLORS, QUIET
from whichtoken.display.text import visible
from whichtoken.estimators.metrics import Calibration, calibration_of, draw_calibration
from whichtoken.margin import MarginCertificate
from whichtoken.theory.sparse_tokens import Plan, Task, erm
from whichtoken.theory.sparse_tokens.design import LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whichtoken.estimators import Explanation
    from whichtoken.estimators.bags.planning import StudyPlan
    from whichtoken.estimators.groups.selection import GroupPath

# blue and orange as in the pages, which everybody can distinguish, on white and on black
FOR, AGAINST = COLORS[:2]
LONGEST_NAME = 28


class Display(ABC):
    """The base of all displays: `plot` draws the data into given axes or a new figure, and keeps both.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the picture.
    figure_ : matplotlib Figure
        Around it.
    """

    ax_: Axes
    figure_: Figure

    size = (6.0, 4.0)  # of a new figure, in inches, so that its text is readable on a phone

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the figure.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=self.size, layout="constrained")
        ax.grid(visible=True, alpha=0.2)
        ax.spines[["top", "right"]].set_visible(False)
        self._draw(ax)
        self.ax_, self.figure_ = ax, cast("Figure", ax.figure)
        return self

    @abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Fill the axes."""


def legend_above(ax: Axes) -> None:
    """Add a legend above the axes, which never covers the data."""
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3, fontsize="small")


def named(name: object) -> str:
    """A name from data as a label: short, hidden characters visible, and no dollar sign that would start a formula."""
    words = visible(str(name), keep="")
    return (words if len(words) <= LONGEST_NAME else f"{words[: LONGEST_NAME - 1]}…").replace("$", r"\$")


class AttentionDisplay(Display):
    """Where a classifier looks in one sample: the attention to each token, instance or group, colored by its effect.

    Reach for it to show in a notebook or a paper why one document, bag or row gets its label.

    Parameters
    ----------
    names : sequence
        Of the tokens, instances or groups.
    attention : array_like of shape (n,)
        Attention to each of them.
    supports : array_like of shape (n,)
        Contribution of each to `label`.
    label : object
        The predicted label.
    noun : str, default="token"
        What the names are.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the bars, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> from whichtoken.app import AttentionDisplay
    >>> texts = ["a good film", "a bad film", "good fun", "bad acting"] * 5
    >>> model = TextClassifier(random_state=0).fit(texts, ["+", "-", "+", "-"] * 5)
    >>> shown = AttentionDisplay.from_estimator(model, ["a good film"])
    >>> shown.names[0], shown.label, bool(shown.supports[0] > 0)
    ('good', '+', True)
    """

    def __init__(
        self, names: Any, attention: ArrayLike, supports: ArrayLike, *, label: Any, noun: str = "token"
    ) -> None:
        self.names, self.label, self.noun = list(names), label, noun
        self.attention, self.supports = (np.asarray(part, dtype=np.float64) for part in (attention, supports))
        self.size = (6.0, 1.6 + 0.27 * len(self.names))

    @classmethod
    def from_estimator(cls, model: Any, X: Any, *, top: int = 12, ax: Axes | None = None) -> Self:
        """Draw where a fitted classifier looks in the first sample of X.

        Parameters
        ----------
        model : TextClassifier, BagClassifier or GroupClassifier
            Fitted.
        X : samples
            The first one is explained.
        top : int, default=12
            How many tokens, instances or groups.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        return cls.from_explanation(model.explain(X[:1])[0], top=top, ax=ax)

    @classmethod
    def from_explanation(cls, explanation: Explanation, *, top: int = 12, ax: Axes | None = None) -> Self:
        """Draw one of what `explain` returns.

        Parameters
        ----------
        explanation : Explanation
            Of a document, a bag or a row.
        top : int, default=12
            How many tokens, instances or groups: those that add most.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        view = explanation.view()
        reasons = [(r, v) for r, v in zip(explanation.reasons, view.reasons, strict=True) if r.attention is not None][
            :top
        ]
        return cls(
            [shown.cells[0] for _, shown in reasons],
            [reason.attention for reason, _ in reasons],
            [shown.support for _, shown in reasons],
            label=view.label,
            noun=view.headings[0],
        ).plot(ax)

    def _draw(self, ax: Axes) -> None:
        places = np.arange(len(self.names))
        for chosen, color, hatch, label in (
            (self.supports >= 0, FOR, "", f"for {named(self.label)}"),
            (self.supports < 0, AGAINST, "///", "against it"),
        ):
            if chosen.any():
                ax.barh(places[chosen], self.attention[chosen], color=color, alpha=0.85, hatch=hatch, label=label)
        for place, attention, support in zip(places, self.attention, self.supports, strict=True):
            ax.annotate(f" {support:+.2f}", (attention, place), va="center", fontsize="small")
        ax.set_yticks(places, [named(name) for name in self.names])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.margins(x=0.12)
        ax.set(xlabel="share of the attention (numbers: contribution)", ylabel=self.noun, xlim=(0, None))
        legend_above(ax)


class ProbabilityDisplay(Display):
    """Whether probabilities are calibrated: how often predicted labels are right, against their probability.

    Reach for it before you act on probabilities, such as to abstain below one.

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
    >>> from whichtoken.app import ProbabilityDisplay
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
            Probabilities of every class.
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


class ImportanceDisplay(Display):
    """The most important tokens or groups of a classifier, as bars.

    Reach for it to show what a whole model relies on; for one decision, take `AttentionDisplay`.

    Parameters
    ----------
    names : sequence
        Of the tokens or groups, the most important first.
    strengths : array_like of shape (n,)
        Their importance; a negative one is against `label`.
    label : object, optional
        The class that positive bars support; None if the strengths have no sign.
    what : str, default="importance"
        What is measured, for the axis.
    noun : str, default="token"
        What the names are.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the bars, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> from whichtoken.app import ImportanceDisplay
    >>> texts = ["a good film", "a bad film", "good fun", "bad acting"] * 5
    >>> model = TextClassifier(random_state=0).fit(texts, ["+", "-", "+", "-"] * 5)
    >>> shown = ImportanceDisplay.from_estimator(model, top=2)
    >>> sorted(shown.names), shown.ax_.get_ylabel()
    (['bad', 'good'], 'token')
    """

    def __init__(
        self, names: Any, strengths: ArrayLike, *, label: Any = None, what: str = "importance", noun: str = "token"
    ) -> None:
        self.names, self.strengths = list(names), np.asarray(strengths, dtype=np.float64)
        self.label, self.what, self.noun = label, what, noun
        self.size = (6.0, 1.4 + 0.27 * len(self.names))

    @classmethod
    def from_estimator(cls, model: Any, *, label: Any = None, top: int = 15, ax: Axes | None = None) -> Self:
        """Draw the importance of tokens or groups in a fitted `TextClassifier` or `GroupClassifier`.

        Parameters
        ----------
        model : TextClassifier or GroupClassifier
            Fitted.
        label : object, optional
            The class that positive bars support; by default the last one. Not for groups, whose importance has no sign.
        top : int, default=15
            How many.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        check_is_fitted(model)
        if hasattr(model, "token_importance"):
            return cls._of_tokens(model, label, top).plot(ax)
        if not hasattr(model, "group_names_"):
            raise ValueError(
                f"{type(model).__name__} has no importance to show; give a TextClassifier or a GroupClassifier"
            )
        if label is not None:
            raise ValueError(f"label={label!r}: attention to groups is the same for all labels; leave label out")
        order = np.argsort(-model.attention_, kind="stable")[:top]
        names = [model.group_names_[place] for place in order]
        return cls(names, model.attention_[order], what="attention to the group", noun="group").plot(ax)

    @classmethod
    def _of_tokens(cls, model: Any, label: Any, top: int) -> Self:
        classes = model.classes_.tolist()
        label = classes[-1] if label is None else label
        if label not in classes:
            raise ValueError(f"label={label!r} is not one of the classes {', '.join(map(repr, classes))}")
        table = model.token_importance()
        # of two classes, the table has only the second
        side = -1 if len(classes) == 2 and label == classes[0] else 1
        rows = table[table["class"] == (classes[-1] if len(classes) == 2 else label)].head(top)
        strengths = np.exp(rows["selection"] - table["selection"].max()) * rows["value"] * side
        return cls(rows["token"], strengths, label=label, what="value, weighted by attention")

    def _draw(self, ax: Axes) -> None:
        places = np.arange(len(self.names))
        colors = [FOR if strength >= 0 else AGAINST for strength in self.strengths]
        # the hatch distinguishes them without color
        hatches = ["" if strength >= 0 else "///" for strength in self.strengths]
        ax.barh(places, self.strengths, color=colors, alpha=0.85, hatch=hatches)
        ax.axvline(0, color=QUIET, lw=1)
        ax.set_yticks(places, [named(name) for name in self.names])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        side = "" if self.label is None else f" (right: for {named(self.label)}, left: against)"
        ax.set(xlabel=f"{self.what}{side}", ylabel=self.noun)


class GroupPathDisplay(Display):
    """How well a `GroupClassifier` predicts with few and with many groups: the held-out log loss along its path.

    Reach for it to see how many groups are needed, and what fewer or more would cost.

    Parameters
    ----------
    path : GroupPath
        Numbers of groups with their losses.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the path, once `plot` was called.
    figure_ : matplotlib Figure
        Around it.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> from whichtoken.app import GroupPathDisplay
    >>> X = np.random.default_rng(0).standard_normal((200, 6))
    >>> model = GroupClassifier([0, 0, 1, 1, 2, 2], group_map="linear", random_state=0).fit(X, X[:, 2] + X[:, 3] > 0)
    >>> shown = GroupPathDisplay.from_estimator(model)
    >>> shown.path.counts, shown.path.chosen
    ((0, 1, 2, 3), 1)
    """

    def __init__(self, path: GroupPath) -> None:
        self.path = path

    @classmethod
    def from_estimator(cls, model: Any, *, ax: Axes | None = None) -> Self:
        """Draw the path of a fitted `GroupClassifier`.

        Parameters
        ----------
        model : GroupClassifier
            Fitted, with a number of groups that was chosen by validation.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        check_is_fitted(model)
        if getattr(model, "path_", None) is None:
            raise ValueError("the model has no path: its number of groups was given, or too few rows were there to validate")
        return cls(model.path_).plot(ax)

    def _draw(self, ax: Axes) -> None:
        path = self.path
        losses = dict(zip(path.counts, path.losses, strict=True))
        places = np.arange(len(losses))
        ax.errorbar(places, path.losses, path.errors, fmt="o-", capsize=4, color=COLORS[0], label="held-out log loss")
        least = min(losses.values())
        ax.axhline(least, ls=":", color=QUIET, label=f"least, {least:.4f}")
        place = path.counts.index(path.chosen)
        label = f"kept: fewest within one standard error, {path.chosen}"
        ax.plot(place, losses[path.chosen], "D", ms=10, mfc="none", mew=2, color=COLORS[1], label=label)
        ax.set_xticks(places, [str(count) for count in path.counts])
        ax.set(xlabel="number of groups (bars: standard error of the difference to the least)", ylabel="log loss")
        legend_above(ax)


class GroupCurveDisplay(Display):
    """What the columns of a group add to the score of a `GroupClassifier`, each over its range, the others at their averages.

    Reach for it to see how a group acts: lines, or curves where `choice_.group_map` bends them.

    Parameters
    ----------
    curves : mapping of str to pair of arrays
        For each column its values, in units of its range, and what they add.
    group : object
        Name of the group.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the curves, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> from whichtoken.app import GroupCurveDisplay
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> model = GroupClassifier(group_map="splines", n_groups=1, C=1.0, random_state=0).fit(X, X[:, 0] ** 2 > 1)
    >>> shown = GroupCurveDisplay.from_estimator(model, X, 0)
    >>> values, added = shown.curves["0"]
    >>> bool(added[0] > added[50] < added[-1])
    True
    """

    def __init__(self, curves: Mapping[str, tuple[Any, Any]], group: Any) -> None:
        self.curves, self.group = dict(curves), group

    @classmethod
    def from_estimator(cls, model: Any, X: Any, group: Any, *, ax: Axes | None = None) -> Self:
        """Draw one selected group of a fitted `GroupClassifier` of two classes.

        Parameters
        ----------
        model : GroupClassifier
            Fitted.
        X : (n, features)
            Rows whose values give the range of each column, from the 1st to the 99th percentile.
        group : object
            One of `selected_groups_`.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        check_is_fitted(model)
        if group not in model.selected_groups_:
            raise ValueError(f"group={group!r} is not selected; selected: {', '.join(map(str, model.selected_groups_))}")
        if len(model.classes_) != 2:
            raise ValueError(f"curves are those of two classes; this model has {len(model.classes_)}")
        table, curves = model._rows(X), {}
        names = getattr(model, "feature_names_in_", np.arange(table.shape[1]))
        for column in model._parts()[model.selected_groups_.index(group)]:
            values = np.linspace(*np.quantile(table[:, column], [0.01, 0.99]), 101)
            rows = np.tile(model.column_means_, (101, 1))
            rows[:, column] = values
            curves[str(names[column])] = (values, model._terms(rows)[:, 0, column])
        return cls(curves, group).plot(ax)

    def _draw(self, ax: Axes) -> None:
        for place, (name, (values, added)) in enumerate(self.curves.items()):
            span = np.ptp(values) or 1.0
            label = f"{named(name)}, {values[0]:.3g} to {values[-1]:.3g}"
            ax.plot((values - values[0]) / span, added, color=COLORS[place % len(COLORS)], label=label)
        ax.axhline(0, color=QUIET, lw=1)
        ax.set(xlabel=f"columns of {named(self.group)}, from their 1st to their 99th percentile", ylabel="adds to the score")
        legend_above(ax)


class MarginDisplay(Display):
    """The margin of a certificate: the lead of each selected token over every other token, along the direction.

    Reach for it to see which tokens hold a max-margin direction, and how far the others are away.

    Parameters
    ----------
    leads : array_like of shape (m,)
        Score of the selected token minus that of another token, for every pair.
    held : array_like of bool, shape (m,)
        Which pairs are support vectors of the direction.
    margin, bound : float
        The smallest lead, and an upper bound for every direction.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the leads, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken.margin import prompt_svm
    >>> from whichtoken.app import MarginDisplay
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
        ax.plot(places[~held], leads[~held], "o", color=COLORS[0], ms=5, label="other pairs")
        ax.plot(places[held], leads[held], "D", color=COLORS[1], ms=7, label="support pairs")
        ax.axhline(self.margin, color=QUIET, lw=1.5, label=f"margin {self.margin:.4g}, at most {self.bound:.4g}")
        ax.set(xlabel="pairs of a selected and another token, by lead", ylabel="lead of the selected token")
        ax.set_ylim(min(0.0, 1.1 * float(leads.min())), 1.08 * float(leads.max()))
        legend_above(ax)


MODELS = {
    "attention": "attention, samples split",
    "pooled": "mean pooling + linear",
    "vectorized": "linear on all tokens",
}
SHARED = "attention, all samples for both"
CURVE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CURVE_POINTS = 1 << 12
MARKERS = "os^D"


class LearningCurvePlanDisplay(Display):
    """Learning curves of a plan: predicted test errors against the number of labeled sequences.

    Reach for it to show how many labels a study needs.

    Parameters
    ----------
    curves : mapping of str to list of tuples
        For each model (samples, error) or, with an interval, (samples, error, low, high).
    samples : int
        Number of samples of the plan.
    target : float, optional
        Wanted error.
    floor : float, optional
        Error of the best possible classifier.
    measured : tuple, optional
        Cross-validated (samples, error, low, high) of a pilot.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the curves, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken.app import LearningCurvePlanDisplay
    >>> from whichtoken.theory.sparse_tokens import plan
    >>> study = plan(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=200, samples=800)
    >>> shown = LearningCurvePlanDisplay.from_plan(study)
    >>> shown.ax_.get_xlabel(), list(shown.curves)[:2]
    ('labeled sequences', ['attention, all samples for both', 'attention, samples split'])
    """

    def __init__(
        self,
        curves: Mapping[str, Sequence[tuple[float, ...]]],
        *,
        samples: int,
        target: float | None = None,
        floor: float | None = None,
        measured: tuple[float, float, float, float] | None = None,
    ) -> None:
        self.curves = {name: list(points) for name, points in curves.items()}
        self.samples, self.target, self.floor, self.measured = samples, target, floor, measured

    @classmethod
    def from_plan(cls, plan: Plan | StudyPlan, *, ax: Axes | None = None) -> Self:
        """Draw what `plan` or `plan_study` found.

        Parameters
        ----------
        plan : Plan or StudyPlan
            From the theory alone, or from a pilot.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        made = cls._of_theory(plan) if isinstance(plan, Plan) else cls._of_study(plan)
        return made.plot(ax)

    @classmethod
    def _of_theory(cls, plan: Plan) -> Self:
        sizes = [max(4, round(multiple * plan.samples)) for multiple in CURVE_MULTIPLES]
        models = {"shared": SHARED, **MODELS}
        curves = {label: [(n, predicted_error(plan, name, n)) for n in sizes] for name, label in models.items()}
        return cls(curves, samples=plan.samples, target=plan.target_error, floor=plan.bayes_floor)

    @classmethod
    def _of_study(cls, study: StudyPlan) -> Self:
        points = sorted({study.forecast, *study.learning_curve}, key=lambda point: point.samples)
        curve = [(point.samples, point.error, point.low, point.high) for point in points]
        holds = study.fits and study.theory is not None and not study.beats_floor
        return cls(
            {"BagClassifier, 90 % interval": curve},
            samples=study.samples,
            target=study.target_error,
            floor=study.theory.bayes_floor if holds and study.theory is not None else None,
            measured=(study.pilot.trained_on, study.pilot.error, *study.pilot.error_interval),
        )

    def _draw(self, ax: Axes) -> None:
        for place, (name, points) in enumerate(self.curves.items()):
            x, y, *interval = np.array(points, dtype=np.float64).T
            ax.plot(x, y, color=COLORS[place], marker=MARKERS[place % len(MARKERS)], label=name)
            if interval:
                low, high = interval
                ax.fill_between(x, low, high, color=COLORS[place], alpha=0.2, linewidth=0)
        if self.measured is not None:
            size, error, low, high = self.measured
            reach = [[error - low], [high - error]]
            ax.errorbar([size], [error], reach, fmt="s", capsize=4, color=COLORS[1], label="cross-validated pilot")
        if self.floor is not None:
            ax.axhline(self.floor, ls=":", color=QUIET, label="no classifier is better")
        if self.target is not None:
            ax.axhline(self.target, ls="--", color=COLORS[4], label="target")
        ax.axvline(self.samples, ls=":", lw=1, color=QUIET)
        ax.set(xscale="log", xlabel="labeled sequences", ylabel="predicted test error", ylim=(0, None))
        sizes = sorted({int(point[0]) for points in self.curves.values() for point in points})
        ax.set_xticks(sizes, [f"{size}" for size in sizes])
        ax.minorticks_off()
        legend_above(ax)


def predicted_error(plan: Plan, model: str, samples: int) -> float:
    """Predicted test error of a model with more or fewer samples; attention keeps the plan's design."""
    task = Task(plan.length, plan.signal_tokens, plan.strength, plan.prevalence)
    if model in ("attention", "shared"):
        design = plan.design if model == "attention" else plan.shared_design
        return design.error(task, samples / plan.dim, points=CURVE_POINTS)
    ridge = getattr(plan, model).ridge
    return erm(
        model=model, **asdict(task), samples_per_dim=samples / plan.dim, ridge=ridge, loss=LOSS, accuracy=1e-2
    ).test_error


SMALLEST = 1e-16  # a smaller distance is rounding


class TrajectoryDisplay(Display):
    """How training converges: the distance of the direction from its limit, or the loss, step by step.

    Reach for it to see whether a descent has arrived, and at which rate.

    Parameters
    ----------
    steps : array_like of shape (k,)
        Steps, or arc lengths of the path.
    values : array_like of shape (k,)
        Distance or loss at each step.
    ylabel : str
        Label of the y axis.
    xlabel : str, default="step"
        Label of the x axis.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the curve, once `plot` was called.
    figure_ : matplotlib Figure
        Around it.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.flows import linear_descent
    >>> from whichtoken.app import TrajectoryDisplay
    >>> run = linear_descent([[2.0, 0.0], [0.0, 1.0]], np.zeros(2), p=2.0, lr=0.1, steps=500, record=[1, 10, 100, 500])
    >>> shown = TrajectoryDisplay.from_result(run, limit=[1.0, 2.0])
    >>> shown.steps.tolist(), bool(shown.values[-1] < shown.values[0])
    ([1.0, 10.0, 100.0, 500.0], True)
    """

    def __init__(self, steps: ArrayLike, values: ArrayLike, *, ylabel: str, xlabel: str = "step") -> None:
        self.steps, self.values = (np.asarray(part, dtype=np.float64) for part in (steps, values))
        self.xlabel, self.ylabel = xlabel, ylabel

    @classmethod
    def from_result(
        cls, result: Any, *, limit: ArrayLike | MarginCertificate | None = None, ax: Axes | None = None
    ) -> Self:
        """Draw what a descent or a flow of `whichtoken.flows`, or a `StructureAwareDescent`, recorded.

        Parameters
        ----------
        result : DescentResult, LinearResult, ClsPath, FactorDescent or AttentionFit
            A descent needs recorded steps (`record=`).
        limit : array_like or MarginCertificate, optional
            The direction to compare with; by default the last one of the result.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        descent = getattr(result, "descent", result)
        if hasattr(descent, "trace"):
            accepted = descent.accepted
            steps, losses = [iterate.iteration for iterate in accepted], [iterate.loss for iterate in accepted]
            return cls(steps, losses, ylabel="training loss").plot(ax)
        steps, directions, xlabel = _directions(result)
        if len(steps) < 2:
            raise ValueError("the result holds fewer than two recorded steps; pass record= to the descent")
        goal = limit.direction if isinstance(limit, MarginCertificate) else limit
        if limit is not None and goal is None:
            raise ValueError("the certificate has no direction to compare with")
        target, name = (directions[-1], "the last direction") if goal is None else (np.asarray(goal), "the limit")
        distances = [_distance(direction, target) for direction in directions]
        if goal is None:
            steps, distances = steps[:-1], distances[:-1]
        return cls(steps, distances, ylabel=f"distance of the direction from {name}", xlabel=xlabel).plot(ax)

    def _draw(self, ax: Axes) -> None:
        ax.plot(self.steps, np.maximum(self.values, SMALLEST), "o-", color=COLORS[0], ms=4)
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel)
        if (self.values > 0).any():
            ax.set_yscale("log")
        if (self.steps > 0).all() and self.steps.max() > 50 * self.steps.min():
            ax.set_xscale("log")


def _directions(result: Any) -> tuple[list[float], list[Any], str]:
    """Steps and directions of a result, and the name of the steps."""
    if hasattr(result, "arc"):
        # the start has no direction
        return result.arc[1:].tolist(), list(result.positions[1:]), "arc length"
    states = [state.weights if hasattr(state, "decoder") else state for state in (*result.snapshots, result.final)]
    # the last state may be recorded as well
    if len(states) > 1 and states[-2].step >= states[-1].step:
        states.pop()
    return [state.step for state in states], [state.direction for state in states], "step"


def _distance(direction: Any, target: Any) -> float:
    """1 - cosine, without the cancellation near zero."""
    a, b = (np.ravel(part) / np.linalg.norm(part) for part in (direction, target))
    return float(np.sum((a - b) ** 2) / 2)
