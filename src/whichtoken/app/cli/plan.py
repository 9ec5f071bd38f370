"""whichtoken plan: is a signal detectable, with how much data, and does attention beat a linear model?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from whichtoken.app.cli import options
from whichtoken.display.terminal import console, printable, say, suggest, table
from whichtoken.errors import UsageError
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.estimators.bags.planning import StudyPlan
    from whichtoken.tables import TableForm
    from whichtoken.theory.sparse_tokens import Plan

# where the integrals of the theory can be computed in seconds and with some accuracy
RANGES = {"length": (2, 1_000_000), "strength": (0, 100), "prevalence": (1e-6, 1 - 1e-6), "dim": (2, 10**9)}
OF_BAGS = ("--bag", "--feature", "--files")
READING = {"bag": "bag", "label": "label", "drop_missing": False}  # defaults of the options on how to read a table


def plan(
    length: Annotated[int | None, options.whole("L", "Number of tokens in a sequence.")] = None,
    signal_tokens: Annotated[int | None, options.whole("R", "Number of tokens that carry the signal.")] = None,
    strength: Annotated[
        float | None, options.real("THETA", "Signal strength, in standard deviations of the noise.")
    ] = None,
    prevalence: Annotated[float | None, options.real("PI", "Share of positive sequences.")] = None,
    dim: Annotated[int | None, options.whole("D", "Dimension of a token.")] = None,
    samples: Annotated[int | None, options.whole("N", "Number of labeled sequences you can get.")] = None,
    target_error: Annotated[float | None, options.real("E", "Test error you want.")] = None,
    pilot: Annotated[
        Path | None,
        options.input_file(
            "Labeled pilot: any table that `fit bags` reads, .npz (tokens, labels), or texts with --text.",
            check=options.read_table_or_text,
        ),
    ] = None,
    text: Annotated[str | None, options.column_name("Column with the texts, if the pilot holds texts.")] = None,
    bag: Annotated[str, options.column_name("Column of the pilot with the bag of each row.")] = "bag",
    label: Annotated[str, options.column_name("Column of the pilot with the labels.")] = "label",
    feature: Annotated[
        list[str] | None, options.column_name("Feature column of the pilot (repeatable); default: all other columns.")
    ] = None,
    files: options.BagFileColumn = None,
    drop_missing: options.DropMissing = False,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
    figure: Annotated[
        Path | None, options.new_output("Draw the learning curves as .svg, .png or .pdf.", check=options.new_picture)
    ] = None,
    json_file: Annotated[Path | None, options.new_output("Write the plan as JSON.", "--json")] = None,
) -> None:
    """Plan a study: is the signal detectable, with how much data, and does attention beat a linear model?

    A power analysis for attention and multiple-instance learning, from the theory of sparse tokens or from a pilot.

    A pilot of bags has two classes. It is cross-validated, which may show that the theory does not hold for it.

    Missing values in a pilot are filled with the median, and columns of texts become columns of 0 and 1.

    Examples:

      whichtoken plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 500 --samples 2000

      whichtoken plan --pilot bags.csv --target-error 0.05 --figure curve.png

      whichtoken plan --pilot reviews.csv --text review --label sentiment --target-error 0.1
    """
    options.require_distinct_paths({"--pilot": pilot}, {"--figure": figure, "--json": json_file})
    given = {
        "length": length, "signal_tokens": signal_tokens, "strength": strength, "prevalence": prevalence, "dim": dim
    }  # fmt: skip
    form: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
    reading = {
        "text": text,
        "bag": bag,
        "label": label,
        "features": feature or None,
        "files": files,
        "drop_missing": drop_missing,
        **form,
    }
    changed = [
        f"--{name.replace('features', 'feature').replace('_', '-')}"
        for name, value in reading.items() if value != READING.get(name)
    ]  # fmt: skip
    if pilot is None:
        if missing := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]:
            raise UsageError(f"plan needs {', '.join(missing)}, or a --pilot FILE to estimate the task from")
        if samples is None and target_error is None:
            raise UsageError("plan needs --samples N (what you can get) or --target-error E (what you want), or both")
        for option in changed:
            raise UsageError(f"{option} says how a pilot is read; give a --pilot FILE or leave it out")
    elif pilot.suffix.lower() == ".npz":
        for option in changed:
            raise UsageError(f"{option} is for tables; leave it out for {pilot}")
    else:
        options.check_form(pilot, form)
        if text is not None and (others := [option for option in changed if option in OF_BAGS]):
            raise UsageError(f"{others[0]} is for pilots of bags; leave it or --text out")
    for name, (least, most) in RANGES.items():
        if (value := given[name]) is not None and not least <= value <= most:
            raise UsageError(f"{{{name}}} is out of range; give a number from {least:,} to {most:,}", **{name: value})

    wanted = {"samples": samples, "target_error": target_error}
    from whichtoken.app.pages.planning import planning_errors, write_figure

    with planning_errors():
        planned: Any = _from_theory(given, wanted) if pilot is None else _from_pilot(pilot, reading, given, wanted)
    if figure is not None:
        write_figure(planned, figure)
    if json_file is not None:
        write_text(json_file, json.dumps(asdict(planned), indent=1))


def _from_theory(given: dict[str, Any], wanted: dict[str, Any]) -> Plan:
    """Plan from numbers alone, and print the plan."""
    from whichtoken.app.pages.planning import answer, protocol
    from whichtoken.theory import sparse_tokens

    planned = sparse_tokens.plan(**given, **wanted)
    say(answer(planned))
    _print_forecasts(planned)
    say(protocol(planned))
    _print_notes(planned.warnings)
    suggest("whichtoken plan --pilot FILE  (estimate these numbers from labeled data)")
    return planned


def _from_pilot(pilot: Path, reading: dict[str, Any], given: dict[str, Any], wanted: dict[str, Any]) -> StudyPlan:
    """Plan from a pilot, and print the plan: first whether the theory holds for the pilot."""
    from whichtoken.app.pages.planning import study_lines
    from whichtoken.app.readers import read_bags, read_labeled_texts
    from whichtoken.estimators import plan_study

    text, features = reading.pop("text"), None
    data: list[Any]
    if text is not None:
        form = {name: reading[name] for name in ("drop_missing", "separator", "encoding", "rows")}
        *data, notes = read_labeled_texts(pilot, text, reading["label"], **form)
    else:
        found = read_bags(pilot, **reading)
        data, notes, features = [found.bags, found.labels], [*found.notes], found.features
    study = plan_study(pilot=(data[0], data[1]), features=features, **given, **wanted)
    study = replace(study, notes=(*notes, *study.notes))
    for line in study_lines(study):
        say(line)
    if study.theory is not None and study.fits:
        _print_forecasts(study.theory, "The theory alone, for data that follow it exactly")
    _print_notes(study.notes)
    suggest(f"whichtoken fit {'bags' if study.unit == 'bags' else 'text'} FILE --model FOLDER")
    return study


def _print_forecasts(planned: Plan, title: str | None = None) -> None:
    from whichtoken.app.pages.planning import forecast_headings, forecast_rows

    lines = forecast_rows(planned)
    filled = [place for place, cells in enumerate(zip(*lines, strict=True)) if any(cells)]
    headings = forecast_headings(planned)
    rows = table(*(headings[place] for place in filled), title=title)
    for line in lines:
        rows.add_row(*(line[place] for place in filled))
    console().print(rows)


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        console().print(printable("note", "yellow") + printable(f": {note}"), highlight=False)
