"""A plan as people read it: a table for the terminal, lines for a protocol, a picture of the learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whichtoken.theory.sparse_tokens import Plan

MODELS = {"attention": "attention", "pooled": "mean pooling + linear", "vectorized": "linear on all tokens"}
CURVE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def forecast_rows(plan: Plan) -> list[list[str]]:
    """A line per model: predicted error, error with unlimited data, samples for the target, separable up to."""
    lines = []
    for name, label in MODELS.items():
        forecast = getattr(plan, name)
        needed = "" if plan.target_error is None else f"{forecast.samples_needed or 'never'}"
        lines.append(
            [label, f"{forecast.error:.4f}", f"{forecast.unlimited_error:.4f}", needed, f"{forecast.capacity:.0f}"]
        )
    return lines


def protocol(plan: Plan) -> str:
    """The plan in sentences that can be pasted into a study protocol."""
    design = plan.design
    query = round(design.query_share * plan.samples)
    sentences = [
        f"Each of {plan.samples} sequences has {plan.length} tokens in {plan.dim} dimensions; {plan.signal_tokens} tokens of a"
        f" positive sequence carry a signal of {plan.strength:.3g} noise standard deviations, and {plan.prevalence:.0%} of the"
        " sequences are positive.",
        f"Attention is trained with two gradient steps on {query} sequences for the query"
        f" (predicted cosine with the signal {design.alignment:.3f}), inverse temperature {design.inverse_temperature:.2f}"
        f"{', bias at the log-odds of the prevalence' if design.bias_correction else ''}, and a ridge-penalised logistic"
        f" read-out on the remaining {plan.samples - query}.",
        f"Predicted test error: {plan.attention.error:.3f} for attention, {plan.pooled.error:.3f} for mean pooling and"
        f" {plan.vectorized.error:.3f} for a linear model on all tokens; no classifier can do better than"
        f" {plan.bayes_floor:.3f}, no linear one better than {plan.linear_oracle:.3f}.",
    ]
    if plan.target_error is not None and plan.attention.samples_needed is not None:
        sentences.append(
            f"A test error of {plan.target_error:g} needs {plan.attention.samples_needed} sequences with attention."
        )
    sentences += [
        f"With {point.samples} sequences the predicted error is {point.error:.3f} (95 % interval {point.low:.3f} to"
        f" {point.high:.3f})."
        for point in plan.learning_curve
    ]
    return "\n".join(sentences)


def write_figure(plan: Plan, path: Path) -> None:
    """Draw the learning curves into a file; its ending says in which format."""
    import matplotlib
    from matplotlib.figure import Figure

    from whichtoken.errors import UsageError

    with matplotlib.rc_context(
        {"axes.spines.right": False, "axes.spines.top": False, "axes.grid": True, "grid.alpha": 0.2}
    ):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        _draw(plan, figure)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"--figure {path} cannot be written: {error}") from error


def _draw(plan: Plan, figure: Figure) -> None:
    axes = figure.subplots()
    samples = [max(4, round(multiple * plan.samples)) for multiple in CURVE_MULTIPLES]
    for name, label in MODELS.items():
        axes.plot(samples, [_error(plan, name, n) for n in samples], "o-", label=label)
    if plan.learning_curve:
        x = [point.samples for point in plan.learning_curve]
        centre = np.array([point.error for point in plan.learning_curve])
        reach = [centre - [p.low for p in plan.learning_curve], [p.high for p in plan.learning_curve] - centre]
        axes.errorbar(x, centre, reach, fmt="none", ecolor="C0", capsize=4)
    axes.axhline(plan.bayes_floor, ls=":", color="grey", label="no classifier is better")
    if plan.target_error is not None:
        axes.axhline(plan.target_error, ls="--", color="C3", label="target")
    axes.axvline(plan.samples, ls=":", lw=1, color="grey")
    axes.set(xscale="log", xlabel="labelled sequences", ylabel="predicted test error", ylim=(0, None))
    axes.legend()


def _error(plan: Plan, model: str, samples: int) -> float:
    from whichtoken.theory import sparse_tokens

    attention: dict[str, Any] = {}
    share = 1.0
    if model == "attention":
        # the plan's split and temperature; the query's alignment follows the samples
        query = sparse_tokens.two_steps(
            length=plan.length, signal_tokens=plan.signal_tokens, strength=plan.strength, prevalence=plan.prevalence,
            samples_per_dim=plan.design.query_share * samples / plan.dim, lr_readout=0.5, lr_bias=0.5, lr_query=0.5,
            bias_correction=plan.design.bias_correction,
        )  # fmt: skip
        share = 1 - plan.design.query_share
        attention = {"alignment": query.alignment, "inverse_temperature": plan.design.inverse_temperature}
    return sparse_tokens.erm(
        model=model, length=plan.length, signal_tokens=plan.signal_tokens, strength=plan.strength,
        prevalence=plan.prevalence, samples_per_dim=share * samples / plan.dim, ridge=1e-2, loss="logistic",
        accuracy=1e-2, **attention,
    ).test_error  # fmt: skip
