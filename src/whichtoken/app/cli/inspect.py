"""whichtoken inspect: which token each head of a transformer picks, how confidently, and whether it matters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whichtoken.app.cli.options import (
    Separator,
    new_file,
    positive_number,
    read_file,
    require_distinct_paths,
    whole_number,
)
from whichtoken.files import write_text


def inspect(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL_FOLDER", help="Folder of the model, with config.json, weights and tokenizer."),
    ],
    texts: Annotated[
        Path, typer.Option(metavar="FILE", callback=read_file, help="Table of texts: .csv, .tsv, .parquet or .jsonl.")
    ],
    column: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the texts.")] = "text",
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with labels, to compare with the picks.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="L", parser=whole_number, help="Layer to show in detail, counted from 0.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="H", parser=whole_number, help="Head to show in detail, counted from 0.")
    ] = None,
    most: Annotated[
        int, typer.Option(metavar="N", parser=positive_number, help="Largest number of texts to read.")
    ] = 500,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=new_file, help="Write the result as an HTML page.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", callback=new_file, help="Write every number as JSON.")
    ] = None,
    separator: Separator = None,
) -> None:
    """Show which token each head of a transformer picks, how confidently, and whether it matters.

    Nothing in the model folder is executed, and nothing is downloaded.

    Example: whichtoken inspect my-model --texts reviews.csv --column text --label label --html page.html
    """
    import json

    from whichtoken.datasets.review_files import read_texts
    from whichtoken.inspection.loading import check_folder, load_tokenizer, load_transformer, quiet

    require_distinct_paths({"--texts": texts}, {"--html": html, "--json": json_file})
    check_folder(model)
    found, labels = read_texts(texts, column, label, most, separator)
    with quiet():
        tokenizer, loaded = load_tokenizer(model, found), load_transformer(model)
    # imports torch: only after the arguments were checked
    from whichtoken.inspection import inspect as inspect_transformer

    result = inspect_transformer(loaded, found, tokenizer, labels=labels, layer=layer, head=head)
    if html is not None:
        result.to_html(html)
    if json_file is not None:
        write_text(json_file, json.dumps(result.as_json(), ensure_ascii=False, indent=1))
    for line in result.summary():
        print(line)
