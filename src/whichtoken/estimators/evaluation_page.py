"""Scores as HTML: beside the baselines, by class, as a confusion table, and a figure of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.display.figures import COLOURS, QUIET, svg
from whichtoken.display.html import page, text
from whichtoken.estimators.metrics import Calibration, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = (
    "body{font:16px/1.6 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "th,td{text-align:left;padding:0 1em 0 0}svg{max-width:100%;height:auto}"
)
SCORES = ("accuracy", "log_loss", "auc")
SHARES = ("precision", "recall")  # of a class that was tested
MOST_CLASSES = 30  # a larger confusion table says nothing to the eye


def evaluation_page(title: str, report: Mapping[str, Any]) -> str:
    """A page that needs nothing else, from a `FitReport` as a dictionary."""
    return page(title, f"<h1>{text(title)}</h1>{evaluation_html(report)}", STYLE)


def evaluation_html(report: Mapping[str, Any]) -> str:
    """Tables and figure of a `FitReport` as a dictionary."""
    details = report["details"]
    models = [report[name] for name in ("ours", "baseline", "majority") if report[name] is not None]
    parts = [
        f"<p>{text(report['test'])} rows, judged by {text(report['judged_by'])}; 95 % intervals.</p>",
        rows_html(["model", *(name.replace("_", " ") for name in SCORES)], [_line(model) for model in models]),
        "<h3>By class</h3>",
        rows_html(
            ["class", "rows", "precision", "recall", "F1"],
            [
                [
                    str(one["label"]),
                    str(one["rows"]),
                    *(f"{one[name]:.3f}" if one["rows"] else "" for name in SHARES),
                    _f1(one),
                ]
                for one in details["classes"]
            ],
        ),
    ]
    names = [str(one["label"]) for one in details["classes"]]
    if len(names) <= MOST_CLASSES:
        lines = [[name, *map(str, row)] for name, row in zip(names, details["confusion"], strict=True)]
        parts += ["<h3>True label (rows) and predicted label (columns)</h3>", rows_html(["", *names], lines)]
    calibration = details["calibration"]
    parts += [
        f"<h3>Calibration</h3><p>Error of the probabilities {calibration['error']:.3f}, beyond what chance gives.</p>",
        svg(partial(_calibration_figure, calibration=Calibration(**calibration)), "calibration", 5.0, 4.2),
        "<h3>Where it abstains</h3>",
        rows_html(
            ["least probability", "share answered", "accuracy on these"],
            [[f"{least:g}", f"{share:.3f}", f"{right:.3f}"] for least, share, right in details["coverage"]],
        ),
    ]
    if report["notes"]:
        parts.append("".join(f"<p>{text(note)}</p>" for note in report["notes"]))
    return "\n".join(parts)


def rows_html(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of texts."""
    head = "".join(f"<th>{text(name)}</th>" for name in headings)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def draw_calibration(axes: Axes, calibration: Calibration, name: str) -> None:
    """How often predicted labels are right, with 95 % intervals, against their probability; on the diagonal both are alike."""
    said, right = calibration.probability, calibration.right
    ends = np.array([wilson(share, count) for share, count in zip(right, calibration.rows, strict=True)])
    axes.plot([0, 1], [0, 1], ls="--", lw=1, color=QUIET, label="exactly right")
    reach = np.abs(ends.T - np.array(right))
    axes.errorbar(said, right, reach, fmt="o-", capsize=3, color=COLOURS[0], label=name)
    least = max(0.0, min([*said, *ends[:, 0]]) - 0.03)
    axes.set(
        xlabel="probability of the predicted label", ylabel="share that is right", xlim=(least, 1.02), ylim=(least, 1.02)
    )  # fmt: skip


def _calibration_figure(figure: Figure, calibration: Calibration) -> None:
    axes = figure.subplots()
    draw_calibration(axes, calibration, "predicted labels")
    axes.legend()


def _line(model: Mapping[str, Any]) -> list[str]:
    numbers = []
    for name in SCORES:
        low, high = model["intervals"].get(name, (None, None))
        numbers.append("" if model[name] is None else f"{model[name]:.4f} ({low:.4f} to {high:.4f})")
    return [model["name"], *numbers]


def _f1(one: Mapping[str, Any]) -> str:
    if not one["rows"]:
        return "not tested"
    low, high = one["f1_interval"]
    return f"{one['f1']:.3f} ({low:.3f} to {high:.3f})"
