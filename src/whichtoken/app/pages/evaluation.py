"""Scores on the terminal: beside the baselines, by class, and the effect of abstaining."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from whichtoken.display.terminal import console, printable, say, table
from whichtoken.display.text import pluralize, visible

if TYPE_CHECKING:
    from whichtoken.app.evaluation import FitReport
    from whichtoken.estimators.metrics import Metrics

MOST_CLASSES = 12  # a wider confusion table does not fit into a terminal


def print_evaluation(report: FitReport) -> None:
    """Print the evaluation, as `fit` and `evaluate` do."""
    out, details = console(), report.details
    say(_rows(report))
    scores = table("model", "accuracy", "log loss", "AUC", "seconds")
    for metrics in (report.ours, report.baseline, report.majority):
        if metrics is not None:
            scores.add_row(metrics.name, *(_interval(metrics, name) for name in ("accuracy", "log_loss", "auc")),
                           f"{metrics.seconds:.1f}" if metrics.seconds else "")  # fmt: skip
    out.print(scores)
    classes = table("class", "rows", "precision", "recall", "F1", *_probability_columns(report))
    for one, row in zip(details.classes, details.confusion, strict=True):
        low, high = one.f1_interval
        numbers = [
            str(one.rows),
            f"{one.precision:.3f}" if one.rows else "",
            f"{one.recall:.3f}" if one.rows else "",
            f"{one.f1:.3f} ({low:.3f} to {high:.3f})" if one.rows else "not tested",
        ]
        confused = map(str, row) if len(details.classes) <= MOST_CLASSES else ()
        classes.add_row(printable(one.label), *numbers, *confused)
    out.print(classes)
    for sentence in (*_confidence(report), *report.notes):
        say(sentence)


def _rows(report: FitReport) -> str:
    """How many rows were tested, and how."""
    if report.folds is None:
        trained = f"{report.training} for training, " if report.training else ""
        return f"{trained}{report.test} for the test: {report.judged_by}"
    tested = "" if report.test == report.training else f", {report.test} of them tested"
    return f"{pluralize(report.training, 'row')}{tested}, {report.judged_by}; the saved model is trained on all of them"


def _interval(metrics: Metrics, name: str) -> str:
    if getattr(metrics, name) is None:
        return ""
    low, high = metrics.intervals[name]
    return f"{getattr(metrics, name):.3f} ({low:.3f} to {high:.3f})"


def _probability_columns(report: FitReport) -> list[str]:
    names = [visible(str(one.label)) for one in report.details.classes]
    return [f"predicted {name}" for name in names] if len(names) <= MOST_CLASSES else []


def _confidence(report: FitReport) -> Iterator[str]:
    """How far the probabilities can be trusted, and the accuracy without uncertain labels, if there are some."""
    error = f"{report.details.calibration.error:.3f}"
    far = "no more than chance explains" if error == "0.000" else f"by about {error} more than chance explains"
    bins = report.details.calibration
    squares = [n * q * (1 - q) / max(1, n - 1) for n, q in zip(bins.rows, bins.right, strict=True)]
    chance = (sum(squares) / sum(bins.rows)) ** 0.5
    yield (
        f"calibration error {error}: the probabilities differ from the observed frequencies {far}; with"
        f" {pluralize(report.test, 'row')} chance explains {chance:.3f}"
    )
    sure = [(least, share, right) for least, share, right in report.details.coverage if share < 1]
    if sure:
        least, share, right = min(sure, key=lambda entry: abs(entry[1] - 0.8))
        yield f"with --abstain-below {least:g} it answers {share:.0%} of the rows, {right:.1%} of them correctly"
