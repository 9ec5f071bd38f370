"""whichtoken explain: which tokens, instances or groups decided, and what would change the label."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from whichtoken.app.cli import options
from whichtoken.display.terminal import console, printable, say, table
from whichtoken.display.text import pluralize, visible
from whichtoken.errors import UsageError
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.estimators import Explanation
    from whichtoken.tables import TableForm

MOST_PRINTED = 3  # explanations of a table
EXAMPLES = 5  # rows or bags of a file that a page offers
MOST_CHARACTERS = 400  # of each of several explanations
STRONGEST = 3  # reasons of each of several bags or rows, in one line


def explain(
    model: options.ModelFolder,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Text to explain, in quotes.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=options.read_table_or_text,
            help="Text file to explain, or a table: a file, a folder or a pattern of files, or -.",
        ),
    ] = None,
    column: options.Column = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
    html: Annotated[Path | None, options.new_output("Write an HTML page with colored words.")] = None,
    json_file: Annotated[
        Path | None,
        options.new_output(
            "Write every number as JSON; in a folder, as one file of JSON lines for each input file.",
            "--json",
            check=options.new_file_or_folder,
        ),
    ] = None,
    engine: options.DaskScheduler = None,
    explainer: options.ExplainerPage = None,
    min_df: options.PageMinDf = None,
    redact: options.PageRedact = None,
    most_words: options.PageMostWords = None,
) -> None:
    """Show which tokens, instances or groups of columns decided, and what would change the label or the number.

    The contributions are exact: they add up to the decision, and nothing is sampled.

    Examples:

      whichtoken explain reviews-model "A wonderful film with a terrible end."

      whichtoken explain cells-model --file cells.csv

      whichtoken explain molecules-model --file molecules.csv --bag molecule

      whichtoken explain reviews-model --explainer page.html
    """
    from whichtoken.app.applying import remembered_roles
    from whichtoken.app.cli.models import answer_by_file
    from whichtoken.app.pages.explanations import MOST_ON_A_PAGE, as_html
    from whichtoken.app.partitions import by_file, explain_file
    from whichtoken.reading import read_text

    outputs = {"--html": html, "--json": json_file, "--explainer": explainer}
    options.require_distinct_paths({"--file": file, "--redact": redact}, outputs)
    page = options.page_options(explainer, min_df, redact, most_words)
    if explainer is not None:
        from whichtoken.app.cli.models import first_examples, is_whole_text, write_explainer
        from whichtoken.app.fitting import texts_of_table
        from whichtoken.estimators.model_folder import read_folder

        form: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
        _check_text(text)
        examples: Any = () if text is None else [text]
        texts = None
        if (opened := read_folder(model)).kind.startswith("text-"):
            if file is not None and is_whole_text(file):
                examples = [*examples, read_text(file)]
            elif file is not None:
                texts = texts_of_table(file, column or remembered_roles(opened).get("text", "text"), form)
        elif given := [f"--{name.replace('_', '-')}" for name in page]:
            raise UsageError(f"{given[0]} is about the words of a page; {model} does not read texts, so leave it out")
        elif file is not None:
            examples = first_examples(model, file, EXAMPLES, column, **form)
        elif text is not None:
            raise UsageError(f"{model} does not read texts; offer rows of a table in the page by --file FILE")
        write_explainer(model, explainer, examples, texts, page)
        if (text is None and file is None) or not (html or json_file):
            return
    if file is not None and (engine is not None or by_file(file, json_file)):
        reading: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
        answer_by_file(explain_file, model, file, column, reading, {}, json_file, engine, ".jsonl")
        return
    explanations = explain_data(model, text, file, column, separator=separator, encoding=encoding, rows=rows)
    count = pluralize(sum(item is not None for item in explanations), "explanation")
    if html is not None:
        write_text(html, as_html(explanations))
        shown = f"the first {MOST_ON_A_PAGE} of {count}" if len(explanations) > MOST_ON_A_PAGE else count
        say(f"wrote {shown} to {html}" + ("; --json FILE has them all" if shown != count else ""))
    if json_file is not None:
        every = [item and item.as_json() for item in explanations]
        write_text(json_file, json.dumps(every, ensure_ascii=False, indent=1))
        say(f"wrote {count} to {json_file}")
    if html is None and json_file is None:
        _print_explanations(explanations)


def _check_text(text: str | None) -> None:
    """Refuse what is no text to explain: nothing, or the name of a file."""
    if text is not None and not text.strip():
        raise UsageError("the text is empty; give one with words in it")
    is_file = False
    # a text may be too long for a path, or contain a character that no path has
    with suppress(OSError, ValueError):
        is_file = text is not None and Path(text).is_file()
    if is_file:
        raise UsageError(f"{text} is a file; to explain its content, write --file {text}")


def explain_data(
    folder: Path, text: str | None, file: Path | None, column: str | None = None, **form: Unpack[TableForm]
) -> Sequence[Explanation | None]:
    """Why a text, or the rows of a file, get their labels."""
    from whichtoken.app.applying import apply_to_table, check_reads_texts, explain_all, target_of
    from whichtoken.app.cli.models import check_options, is_whole_text
    from whichtoken.estimators.model_folder import load_to_answer, read_folder
    from whichtoken.reading import read_text

    if (file is None) == (text is None):
        raise UsageError("give either a TEXT or --file FILE")
    _check_text(text)
    if file is None and (column is not None or any(form.values())):
        raise UsageError(
            "--text, --bag, --separator, --encoding and --rows say how to read a table; give it as --file FILE"
        )
    opened = read_folder(folder)
    model = load_to_answer(opened)
    target_of(opened, model)
    if not opened.kind.startswith("text-") and file is None:
        raise UsageError(
            f"{folder} holds a {opened.kind}, which explains the rows of a table; give --file FILE and no TEXT"
        )
    if file is not None:
        check_options(opened, file, column, form)
    if opened.kind.startswith("text-") and (file is None or is_whole_text(file)):
        check_reads_texts(opened, model)
        if model.columns is not None:
            raise UsageError(f"{folder} also reads {', '.join(model.columns)}; give a table as --file FILE")
        return explain_all(model, [text if file is None else read_text(file)])
    assert file is not None
    return apply_to_table(opened, model, file, column, **form).explain()


def _print_explanations(explanations: Sequence[Explanation | None]) -> None:
    """Print one explanation in full, or the first few of several in short."""
    from whichtoken.app.pages.explanations import color_words, reason_lines

    screen, single = console(), len(explanations) == 1
    for number, item in enumerate(explanations[:MOST_PRINTED], 1):
        if item is None:
            screen.print(f"document {number}: no text, no label\n", style="bold")
            continue
        decision = item.view() if single else item.view(number)
        screen.print(decision.summary(), highlight=False, markup=False, style="bold")
        words = color_words(decision)
        if single:
            screen.print(words)
            rows = table(*map(visible, decision.headings))
            for line in reason_lines(decision):
                rows.add_row(*map(printable, line))
            screen.print(rows)
        else:
            screen.print(words if len(words) <= MOST_CHARACTERS else words[:MOST_CHARACTERS].append(" ..."))
            if decision.kind != "document":  # the color of a number says less than that of a word
                parts = ", ".join(f"{line[0]} {line[-1]}" for line in reason_lines(decision, STRONGEST))
                screen.print(printable(f"{decision.headings[-1]}, by {decision.headings[0]}: {parts}"), highlight=False)
            screen.print()
    left = len(explanations) - MOST_PRINTED
    if left > 0:
        say(f"and {left} more; --html FILE shows them all, --json FILE has every number")
