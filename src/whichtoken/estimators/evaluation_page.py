"""Scores as HTML: beside the baselines, by class, as a confusion table, and a figure of the calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.display.figures import COLOURS, QUIET
from whichtoken.display.html import page, text
from whichtoken.estimators.metrics import Calibration, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        calibration_svg(Calibration(**calibration)),
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
    low, high = _ends(calibration)
    axes.plot([0, 1], [0, 1], ls="--", lw=1, color=QUIET, label="exactly right")
    reach = [[share - end for share, end in zip(right, low, strict=True)],
             [end - share for share, end in zip(right, high, strict=True)]]  # fmt: skip
    axes.errorbar(said, right, np.abs(reach), fmt="o-", capsize=3, color=COLOURS[0], label=name)
    least = _least(calibration)
    axes.set(
        xlabel="probability of the predicted label", ylabel="share that is right", xlim=(least, 1.02), ylim=(least, 1.02)
    )  # fmt: skip


def calibration_svg(calibration: Calibration) -> str:
    """The same figure for a page, written as it is: a library that draws anything takes longer to load than a fit."""
    least, left, top, side = _least(calibration), 46.0, 8.0, 260.0

    def x(value: float) -> str:
        return f"{left + side * (value - least) / (1.02 - least):.1f}"

    def y(value: float) -> str:
        return f"{top + side * (1.02 - value) / (1.02 - least):.1f}"

    step = 0.1 if least > 0.4 else 0.2
    ticks = [number * step for number in range(math.ceil(least / step - 1e-9), round(1 / step) + 1)]
    bottom = top + side
    lines = [f'<path d="M{left} {top}V{bottom}H{left + side}" fill="none" stroke="currentColor"/>']
    for tick in ticks:
        lines.append(f'<text x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{tick:.1f}</text>')
        lines.append(
            f'<text x="{left - 6}" y="{y(tick)}" text-anchor="end" dominant-baseline="middle">{tick:.1f}</text>'
        )
    diagonal = f"M{x(least)} {y(least)}L{x(1)} {y(1)}"
    lines.append(f'<path d="{diagonal}" stroke="{QUIET}" stroke-dasharray="5 3"/>')
    points = list(zip(calibration.probability, calibration.right, *_ends(calibration), strict=True))
    joined = " ".join(f"{x(said)},{y(right)}" for said, right, _, _ in points)
    lines.append(f'<polyline points="{joined}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.5"/>')
    for said, right, low, high in points:
        lines.append(f'<path d="M{x(said)} {y(low)}V{y(high)}" stroke="{COLOURS[0]}"/>')
        lines.append(f'<circle cx="{x(said)}" cy="{y(right)}" r="3.2" fill="{COLOURS[0]}"/>')
    middle = left + side / 2
    lines.append(f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">probability of the predicted label</text>')
    lines.append(
        f'<text transform="translate(12 {top + side / 2}) rotate(-90)" text-anchor="middle">share that is right</text>'
    )
    lines.append(f'<text x="{middle}" y="{bottom + 52}" text-anchor="middle">dashed: exactly right; bars: 95 %</text>')
    return (
        f'<svg viewBox="0 0 {left + side + 8} {bottom + 60}" width="420" font-size="11" fill="currentColor" role="img" '
        f'aria-label="Share of right labels against their probability">{"".join(lines)}</svg>'
    )


def _ends(calibration: Calibration) -> tuple[list[float], list[float]]:
    """Low and high ends of the intervals of the shares that are right."""
    ends = [wilson(share, count) for share, count in zip(calibration.right, calibration.rows, strict=True)]
    return [low for low, _ in ends], [high for _, high in ends]


def _least(calibration: Calibration) -> float:
    """Where both axes begin."""
    return max(0.0, min([*calibration.probability, *_ends(calibration)[0]]) - 0.03)


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
