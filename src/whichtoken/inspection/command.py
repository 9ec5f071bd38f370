"""What the command line needs beside `inspect`: texts and labels from a user's table."""

from __future__ import annotations

from pathlib import Path

from whichtoken.data.review_files import label_names, text_values
from whichtoken.data.table_files import stream_table
from whichtoken.errors import UsageError


def read_texts(
    path: Path, column: str, label: str | None, most: int, separator: str | None = None
) -> tuple[list[str], list[str] | None]:
    """The first texts of a table, and their labels where a column is named."""
    if most < 1:
        raise UsageError(f"--most {most} must be at least 1")
    texts: list[str] = []
    labels: list[str] = []
    for piece in stream_table(Path(path), [column] if label is None else [column, label], separator=separator):
        rows = piece[: most - len(texts)]
        if label is not None:
            labels += label_names(Path(path), rows[label], label, len(texts))
        texts += text_values(Path(path), rows[column], column, len(texts))
        if len(texts) >= most:
            break
    if not texts:
        raise UsageError(f"{path} has no rows")
    return texts, labels if label is not None else None
