"""whichtoken plan: is a signal detectable, with how much data, and does attention beat a linear model?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from whichtoken.commands.options import check_apart, new_file, new_picture, number, read_file, whole_number
from whichtoken.display.terminal import console, table
from whichtoken.errors import UsageError
from whichtoken.files import write_text

# where the theory's integrals are found in seconds and to some digits
PLANNED = {"--length": (2, 1_000_000), "--strength": (0, 100), "--prevalence": (1e-6, 1 - 1e-6), "--dim": (2, 10**9)}


def plan(
    length: Annotated[int | None, typer.Option(metavar="L", parser=whole_number, help="Tokens in a sequence.")] = None,
    signal_tokens: Annotated[
        int | None, typer.Option(metavar="R", parser=whole_number, help="Tokens that carry the signal.")
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(metavar="THETA", parser=number, help="Signal strength, in standard deviations of the noise."),
    ] = None,
    prevalence: Annotated[
        float | None, typer.Option(metavar="PI", parser=number, help="Share of positive sequences.")
    ] = None,
    dim: Annotated[int | None, typer.Option(metavar="D", parser=whole_number, help="Dimension of a token.")] = None,
    samples: Annotated[
        int | None, typer.Option(metavar="N", parser=whole_number, help="Labelled sequences you can get.")
    ] = None,
    target_error: Annotated[float | None, typer.Option(metavar="E", parser=number, help="Test error you want.")] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=read_file,
            help="Pilot data to estimate the task from: .npz (tokens, labels), .csv, .tsv, .parquet.",
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=new_picture, help="Draw the learning curves as .svg, .png or .pdf."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", callback=new_file, help="Write the plan as JSON.")
    ] = None,
) -> None:
    """Plan a study: is the signal detectable, with how much data, and does attention beat a linear model?

    A power analysis for attention and multiple-instance learning, from exact theory, before anything is trained.

    Examples:

      whichtoken plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 500 --samples 2000

      whichtoken plan --pilot bags.csv --target-error 0.05 --figure curve.png
    """
    from dataclasses import asdict

    check_apart({"--pilot": pilot}, {"--figure": figure, "--json": json_file})
    task = {
        "--length": length, "--signal-tokens": signal_tokens, "--strength": strength, "--prevalence": prevalence,
        "--dim": dim,
    }  # fmt: skip
    if pilot is None:
        _check_task(task, samples, target_error)
    for option, (least, most) in PLANNED.items():
        if (value := task[option]) is not None and not least <= value <= most:
            raise UsageError(f"{option} {value:g} is out of range; give a number from {least:g} to {most:g}")

    from whichtoken.data.bag_files import read_bags
    from whichtoken.report.planning import forecast_rows, protocol, write_figure
    from whichtoken.theory import sparse_tokens

    try:
        planned = sparse_tokens.plan(
            length=length,
            signal_tokens=signal_tokens,
            strength=strength,
            prevalence=prevalence,
            dim=dim,
            samples=samples,
            target_error=target_error,
            pilot=read_bags(pilot) if pilot else None,
        )
    except ValueError as error:
        raise UsageError(_as_options(str(error))) from error
    except ArithmeticError as error:
        raise UsageError("these numbers are too extreme to compute with; choose more moderate ones") from error
    out = console()
    rows = table("model", f"error at {planned.samples}", "error, unlimited", "samples for target", "separable up to")
    for line in forecast_rows(planned):
        rows.add_row(*line)
    out.print(rows)
    print(protocol(planned))
    for warning in planned.warnings:
        out.print(f"[yellow]note[/]: {warning}", highlight=False)
    if figure is not None:
        write_figure(planned, figure)
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(planned), indent=1))


def _check_task(task: Mapping[str, float | None], samples: int | None, target_error: float | None) -> None:
    """Refuse a plan that says too little."""
    missing = [option for option, value in task.items() if value is None]
    if missing:
        raise UsageError(f"plan needs {', '.join(missing)}, or a --pilot FILE to estimate the task from")
    if samples is None and target_error is None:
        raise UsageError("plan needs --samples N (what you can get) or --target-error E (what you want), or both")


def _as_options(sentence: str) -> str:
    """A sentence about arguments of the Python function with the names of the options: signal_tokens=0 is --signal-tokens 0."""
    names = "length|signal_tokens|strength|prevalence|dim|samples|target_error"
    return re.sub(rf"\b({names})=", lambda found: f"--{found[1].replace('_', '-')} ", sentence)
