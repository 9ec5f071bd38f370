"""A plan as a table for the terminal, as sentences for a protocol, and as a figure of the learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from whichtoken.app.displays import MODELS, SHARED, LearningCurvePlanDisplay
from whichtoken.errors import UsageError
from whichtoken.files import replacing
from whichtoken.theory.sparse_tokens import Plan
from whichtoken.theory.sparse_tokens.design import LEARNING_RATE, LOSS, Design, SharedDesign

if TYPE_CHECKING:
    from whichtoken.estimators.bags.planning import StudyPlan

WAYS = {"reuse": SHARED, "bag_classifier": "BagClassifier"}
RECOMMENDED = {"split": "attention", "reuse": "reuse", "BagClassifier": "bag_classifier"}  # fields of a plan


def forecast_headings(plan: Plan) -> list[str]:
    """The headings of the columns of `forecast_rows`."""
    return ["model", f"error at {plan.samples}", "error, unlimited", "samples for target", "separable up to"]


def forecast_rows(plan: Plan) -> list[list[str]]:
    """A line per model: predicted error, error with unlimited data, samples for the target, separable up to.

    Samples are those of the whole study, even where attention uses part of them for its query. Attention has a line for each
    way to train it; with unlimited data, all of them have the same error.
    """
    lines = []
    for name, label in WAYS.items():
        way, limit = getattr(plan, name), plan.attention.unlimited_error
        needed = "" if plan.target_error is None else f"{way.samples_needed or 'never'}"
        lines.append([label, _shown(way.error), _shown(limit), needed, ""])
    for name, label in MODELS.items():
        forecast = getattr(plan, name)
        needed = "" if plan.target_error is None else f"{forecast.samples_needed or 'never'}"
        # it is not known more accurately
        separable = float(f"{forecast.capacity:.2g}")
        lines.append([label, _shown(forecast.error), _shown(forecast.unlimited_error), needed, f"{separable:.0f}"])
    return lines


def protocol(plan: Plan) -> str:
    """The plan in sentences that can be pasted into a study protocol."""
    one = plan.signal_tokens == 1
    carry = f"{plan.signal_tokens} token{'' if one else 's'} of a positive sequence {'carries' if one else 'carry'}"
    sentences = [
        f"Each of {plan.samples} sequences has {plan.length} tokens in {plan.dim} dimensions; {carry} a signal of"
        f" {plan.strength:.3g} noise standard deviations, and {100 * plan.prevalence:.3g} % of the sequences are positive.",
        _training(plan),
        f"Predicted test error: {_shown(plan.bag_classifier.error)} for BagClassifier, {_shown(plan.reuse.error)} for two-step"
        f" attention on all samples, {_shown(plan.attention.error)} with the samples split, {_shown(plan.pooled.error)} for mean"
        f" pooling and {_shown(plan.vectorized.error)} for a linear model on all tokens; {_floor(plan)},"
        f" no linear one better than {plan.linear_oracle:.3g}.",
    ]
    needed = getattr(plan, RECOMMENDED[plan.recommended]).samples_needed
    if plan.target_error is not None and needed is not None:
        split = plan.attention.samples_needed
        otherwise = f", {split} with the samples split" if split and plan.recommended != "split" else ""
        sentences.append(f"A test error of {plan.target_error:g} needs {needed} sequences this way{otherwise}.")
    return "\n".join(sentences)


def _training(plan: Plan) -> str:
    """How to train, as recommended."""
    if plan.recommended == "BagClassifier":
        return f"Recommended: BagClassifier, trained on all {plan.samples} sequences; it chooses its own settings."
    shared, design = plan.shared_design, plan.design
    chosen = shared if plan.recommended == "reuse" else design
    query = plan.samples if plan.recommended == "reuse" else round(design.query_share * plan.samples)
    rest = "the same sequences" if plan.recommended == "reuse" else f"the remaining {plan.samples - query}"
    return (
        f"Recommended: attention, trained with two gradient steps of size {_steps(chosen)} on {query} sequences, on readout and"
        f" bias, then on the query (predicted cosine with the signal {chosen.alignment:.3f}), inverse temperature"
        f" {chosen.inverse_temperature:.2f}{', bias at the log-odds of the prevalence' if chosen.bias_correction else ''}, and a"
        f" {LOSS} readout of ridge {chosen.ridge:g} on {rest}."
    )


@contextmanager
def planning_errors() -> Iterator[None]:
    """Turn errors about the numbers of a plan into errors that a user can put right."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    except ArithmeticError as error:
        raise UsageError("these numbers are too extreme to compute with; choose more moderate ones") from error


def study_lines(study: StudyPlan) -> list[str]:
    """A plan from a pilot in sentences: whether the theory holds, what was measured, the forecast, and what the theory says."""
    pilot = study.pilot
    low, high = pilot.error_interval
    lengths = f"{pilot.shortest}" if pilot.shortest == pilot.longest else f"{pilot.shortest} to {pilot.longest}"
    lines = []
    if pilot.too_few:
        lines.append(
            f"This pilot is too small to plan from: one class has only {pilot.fewest} bags. The following is a guess."
        )
    if study.contradictions:
        lines.append("The theory of sparse tokens does not hold for this pilot:")
        lines += [f"  {sentence}" for sentence in study.contradictions]
        lines.append("So the forecast extrapolates the learning curve that the pilot itself shows.")
    elif study.theory is None:
        lines.append(
            "The theory of sparse tokens could not be applied, so the forecast extrapolates the pilot's learning curve."
        )
    else:
        lines.append(
            "The theory of sparse tokens agrees with the cross-validation of this pilot, and makes the forecast more accurate."
        )
    lines.append(
        f"Pilot: {pilot.bags} bags of {lengths} instances with {pilot.dim} features,"
        f" {100 * pilot.prevalence:.3g} % of them '{pilot.classes[1]}'. Cross-validated error of BagClassifier with"
        f" {pilot.trained_on} bags: {pilot.error:.3g} (90 % interval {low:.3g} to {high:.3g}); a constant answer:"
        f" {pilot.constant_error:.3g}."
    )
    if len(study.maps) > 1:
        lines.append("By map of the instances:")
        for one in study.maps:
            needed = (
                "" if study.target_error is None else f"; bags for the target: {one.samples_needed or 'not in sight'}"
            )
            lines.append(
                f"  {one.instance_map}: cross-validated error {one.pilot_error:.3g}, with {one.limit.samples} bags"
                f" {one.limit.error:.3g} ({one.limit.low:.3g} to {one.limit.high:.3g}){needed}"
            )
    lines.append(f"Forecast for BagClassifier(instance_map='{study.instance_map}') on more data like this pilot:")
    lines += [
        f"  with {point.samples} bags, an error of {point.error:.3g} (90 % interval {point.low:.3g} to {point.high:.3g})"
        for point in dict.fromkeys([study.forecast, *study.learning_curve])
    ]
    return [*lines, study.recommendation, *([] if study.theory is None else [_theory_line(study, study.theory)])]


def _theory_line(study: StudyPlan, theory: Plan) -> str:
    """The prediction of the theory; if the theory does not hold, only for comparison."""
    task = (
        f"{theory.signal_tokens} of {theory.length} tokens of a positive sequence with a signal of {theory.strength:.3g} noise"
        " standard deviations"
    )
    if study.fits and (better := study.beats_floor):
        return (
            f"Task by the theory: {task}. The error of the {better} lies below the {theory.bayes_floor:.3g} that this estimated"
            " task allows, though within its uncertainty; so no limit is claimed."
        )
    if study.fits:
        return f"Task by the theory: {task}; {_floor(theory)}, no linear one better than {theory.linear_oracle:.3g}."
    return (
        f"For comparison only, the theory's model nearest to this pilot ({task}) would have an error of"
        f" {_shown(theory.attention.error)} with {theory.samples} bags; it is not a limit for these data."
    )


def _shown(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{error:.3g}"


def _steps(design: Design | SharedDesign) -> str:
    rate = design.learning_rate
    return f"{LEARNING_RATE:g}" if rate == LEARNING_RATE else f"{LEARNING_RATE:g} ({rate:g} for the readout)"


def _floor(plan: Plan) -> str:
    """The error of the best classifier, with two standard errors if they change the digits that are shown."""
    floor, doubt = plan.bayes_floor, 2 * plan.bayes_floor_error
    # the simulation did not see the rare errors of a strong signal
    if doubt >= floor > 0:
        return f"the best possible classifier may reach any error below {floor + doubt:.1g}, as far as is known"
    taken = f" (give or take {doubt:.1g})" if doubt > 5e-3 * floor else ""
    return f"no classifier can do better than {floor:.3g}{taken}"


def write_figure(plan: Plan | StudyPlan, path: Path) -> None:
    """Draw the learning curves into a file; its ending decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    LearningCurvePlanDisplay.from_plan(plan, ax=figure.subplots())
    with replacing(path) as fresh:
        try:
            figure.savefig(fresh)
        except ValueError as error:
            raise UsageError(f"--figure {path} cannot be written: {error}") from error
