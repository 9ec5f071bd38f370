"""Scores on the terminal: beside the baselines, by class, and the effect of abstaining."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.display.terminal import WIDTH, console, printable, say, table
from whichtoken.display.text import pluralize, visible
from whichtoken.estimators.metrics import scores_in

if TYPE_CHECKING:
    from whichtoken.app.evaluation import FitReport
    from whichtoken.estimators.metrics import Details, Metrics

MOST_CLASSES = 12  # a wider confusion table does not fit into a terminal


def print_evaluation(report: FitReport) -> None:
    """Print the evaluation, as `fit` and `evaluate` do."""
    out = console()
    # on a narrow terminal an interval stands below its number
    gap = " " if out.width >= WIDTH else "\n"
    say(_rows(report))
    known = scores_in(asdict(report.ours))
    for title, models in (("model", (report.ours, report.baseline, report.majority)), ("label", report.labels)):
        scores = table(title, *known.values(), "seconds", numbers=True)
        for metrics in models:
            if metrics is not None:
                scores.add_row(printable(metrics.name), *(_interval(metrics, name, gap) for name in known),
                               f"{metrics.seconds:.1f}" if metrics.seconds else "")  # fmt: skip
        if models:
            out.print(scores)
    if report.details is not None:
        _print_classes(report, report.details, gap)
    for sentence in report.notes:
        say(sentence)
    if report.training and report.folds is None:
        others = f"not from the {report.test} of the test; with --folds 5 it learns from all"
        say(f"the saved model learned from {pluralize(report.training, 'row')}, {others}")


def _print_classes(report: FitReport, details: Details, gap: str) -> None:
    """Print scores of each class, and what the probabilities are worth."""
    out = console()
    for between, said in ((gap, "predicted "), (gap, "predicted\n"), ("\n", "as\n"), (gap, None)):
        classes = _class_table(details, between, _labels(details, said))
        if out.measure(classes, options=out.options.update(max_width=10_000)).maximum <= out.width:
            break
    out.print(classes)
    if said is None:
        say("the table of true and predicted labels does not fit here; --json FILE has it")
    for sentence in _confidence(details, report.test):
        say(sentence)


def _class_table(details: Details, gap: str, names: list[str]) -> Any:
    """Scores of each class, with how often its rows get each of the labels that are named."""
    classes = table("class", "rows", "precision", "recall", "F1", *names, numbers=True)
    for one, row in zip(details.classes, details.confusion, strict=True):
        low, high = one.f1_interval
        shown = [f"{one.precision:.3f}", f"{one.recall:.3f}", f"{one.f1:.3f}{gap}({low:.3f} to {high:.3f})"]
        numbers = shown if one.rows else ["", "", "not tested"]
        classes.add_row(printable(one.label), str(one.rows), *numbers, *map(str, row[: len(names)]))
    return classes


def _rows(report: FitReport) -> str:
    """How many rows were tested, and how."""
    if report.folds is None:
        trained = f"{report.training} for training, " if report.training else ""
        return f"{trained}{report.test} for the test: {report.judged_by}"
    tested = "" if report.test == report.training else f", {report.test} of them tested"
    return f"{pluralize(report.training, 'row')}{tested}, {report.judged_by}; the saved model is trained on all of them"


def _interval(metrics: Metrics, name: str, gap: str) -> str:
    if getattr(metrics, name) is None:
        return ""
    low, high = metrics.intervals[name]
    form = ".4g" if name == "rmse" else ".3f"  # in the unit of the number
    return f"{getattr(metrics, name):{form}}{gap}({low:{form}} to {high:{form}})"


def _labels(details: Details, said: str | None) -> list[str]:
    """Headings for the predicted labels; none without a word to begin them, or of too many classes."""
    names = [f"{said}{visible(str(one.label))}" for one in details.classes]
    return names if said is not None and len(names) <= MOST_CLASSES else []


def _confidence(details: Details, test: int) -> Iterator[str]:
    """How far the probabilities can be trusted, and the accuracy without uncertain labels, if there are some."""
    bins = details.calibration
    n, p, q = map(np.array, (bins.rows, bins.probability, bins.right))
    squares = (p - q) ** 2, q * (1 - q) / np.maximum(1, n - 1)
    apart, chance = (np.average(square, weights=n) ** 0.5 for square in squares)
    yield (
        f"calibration error {bins.error:.3f}: probabilities and observed frequencies lie {apart:.2f} apart; chance alone gives"
        f" {chance:.2f} with {pluralize(test, 'row')}"
        + ("; test on more rows to know how well they agree" if chance > max(bins.error, 0.1) else "")
    )
    sure = [(least, share, right) for least, share, right in details.coverage if share < 1]
    if sure:
        least, share, right = min(sure, key=lambda entry: abs(entry[1] - 0.8))
        answered = round(share * test)
        yield (
            f"with --abstain-below {least:g} it answers {share:.0%} of the rows ({answered} of {test}), {right:.1%} of"
            f" them correctly ({round(right * answered)})"
        )
