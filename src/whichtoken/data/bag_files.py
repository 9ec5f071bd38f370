"""Labelled bags of vectors from a file: what a pilot study leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.array_files import read_arrays
from whichtoken.data.reading import readable, shown
from whichtoken.data.table_files import LARGEST, numbers, read_table
from whichtoken.errors import UsageError

TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".json", ".gz")
KINDS = ".npz (arrays tokens and labels), .csv, .tsv, .parquet or .jsonl (columns bag, label, then one per feature)"


def read_bags(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens (n, L, d) and labels (n,) of a file.

    Tables hold one token per row: a column `bag` that says which bag it belongs to, a column `label` that is the same for
    all tokens of a bag, and numeric feature columns. All bags must have the same number of tokens.
    """
    match path.suffix.lower():
        case ".npz":
            return _from_arrays(path)
        case kind if kind in TABLES:
            return _from_table(path)
        case _:
            raise UsageError(f"{shown(path)}: a pilot file must be {KINDS}")


def _from_arrays(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    arrays = read_arrays(path, ["tokens", "labels"])
    with readable(path, "bags"):
        tokens, labels = (arrays[name].astype(np.float64) for name in ("tokens", "labels"))
    if tokens.ndim != 3 or labels.shape != tokens.shape[:1]:
        raise UsageError(
            f"{shown(path)}: tokens of shape {tokens.shape} and labels of shape {labels.shape} must be"
            " (bags, tokens, features) and (bags,)"
        )
    if not (np.abs(tokens) <= LARGEST).all():
        raise UsageError(f"{shown(path)}: tokens must be finite and below {LARGEST:g} in size")
    return tokens, labels


def _from_table(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    import pandas as pd

    name, table = shown(path), read_table(path)
    for column in ("bag", "label"):
        if column not in table:
            raise UsageError(f"{name} has no column '{column}'; columns: {', '.join(map(shown, table.columns[:12]))}")
        if empty := int((table[column].isna() | (table[column] == "")).sum()):
            raise UsageError(
                f"{name}: column '{column}' is empty in {empty} of {len(table)} rows; every token needs it"
            )
    features = [column for column in table.columns if column not in ("bag", "label")]
    if not features:
        raise UsageError(f"{name} has no feature columns besides 'bag' and 'label'")
    values = numbers(path, table, features)
    if constant := [shown(features[place]) for place in np.flatnonzero((values == values[0]).all(axis=0))]:
        raise UsageError(f"{name}: every token has the same value in {', '.join(constant)}; leave constant columns out")
    labels = numbers(path, table, ["label"], "labels")[:, 0]
    codes, bags = pd.factorize(table["bag"].astype(str))
    sizes = np.bincount(codes)
    if sizes.min() != sizes.max():
        raise UsageError(f"{name}: bags have {sizes.min()} to {sizes.max()} tokens; all must have the same number")
    order = np.argsort(codes, kind="stable").reshape(len(bags), -1)
    mixed = (labels[order] != labels[order[:, :1]]).any(axis=1)
    if mixed.any():
        raise UsageError(f"{name}: bag {shown(bags[mixed.argmax()])} has several labels; a bag must have one")
    return values[order], labels[order[:, 0]]
