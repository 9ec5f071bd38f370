"""Labelled bags of vectors from a file: tables as `fit bags` reads them, or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from whichtoken.data.array_files import read_arrays
from whichtoken.data.bag_tables import BagTable, read_bag_table
from whichtoken.data.bags import as_bags
from whichtoken.data.reading import check_fits, readable, shown
from whichtoken.data.table_files import LARGEST, TableForm
from whichtoken.errors import UsageError

TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".json", ".gz")
KINDS = ".npz (arrays tokens and labels), .csv, .tsv, .parquet or .jsonl, also with .gz (one instance per row)"


def read_bags(
    path: Path,
    bag: str = "bag",
    label: str = "label",
    features: Sequence[str] | None = None,
    *,
    drop_missing: bool = False,
    **form: Unpack[TableForm],
) -> BagTable:
    """Bags of any lengths with their labels.

    Parameters
    ----------
    path : .npz, .csv, .tsv, .parquet or .jsonl
        Arrays `tokens` (bags, instances, features) and `labels` (bags,), or a table with one instance per row.
    bag, label, features, drop_missing, form
        Of a table, see `read_bag_table`.
    """
    match path.suffix.lower():
        case ".npz":
            return _from_arrays(path)
        case kind if kind in TABLES:
            return read_bag_table(path, bag, label, features, drop_missing=drop_missing, **form)
        case _:
            raise UsageError(f"{shown(path)}: bags must be {KINDS}")


def _from_arrays(path: Path) -> BagTable:
    arrays = read_arrays(path, ["tokens", "labels"])
    with readable(path, "bags"):
        check_fits(path, 8 * arrays["tokens"].size, "array 'tokens'")
        tokens, labels = arrays["tokens"].astype(np.float64), arrays["labels"]
    if tokens.ndim != 3 or labels.shape != tokens.shape[:1]:
        raise UsageError(
            f"{shown(path)}: tokens of shape {tokens.shape} and labels of shape {labels.shape} must be"
            " (bags, tokens, features) and (bags,)"
        )
    if not (np.abs(tokens) <= LARGEST).all():
        raise UsageError(f"{shown(path)}: tokens must be finite and below {LARGEST:g} in size")
    with readable(path, "bags"):
        bags = as_bags(tokens)
    names = tuple(f"feature {place + 1}" for place in range(bags.dim))
    return BagTable(bags, np.arange(1, len(labels) + 1), labels, names)
