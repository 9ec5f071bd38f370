"""Labelled bags of vectors from a file: what a pilot study leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whichtoken.errors import UsageError

KINDS = ".npz (arrays tokens and labels), .csv, .tsv or .parquet (columns bag, label, then one per feature)"


def read_bags(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens (n, L, d) and labels (n,) of a file.

    Tables hold one token per row: a column `bag` that says which bag it belongs to, a column `label` that is the same for
    all tokens of a bag, and numeric feature columns. All bags must have the same number of tokens.
    """
    if not path.is_file():
        raise UsageError(f"{path} is not there")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                missing = {"tokens", "labels"} - set(arrays)
                if missing:
                    raise UsageError(f"{path} has no array '{missing.pop()}'; arrays: {', '.join(arrays)}")
                return np.asarray(arrays["tokens"], dtype=np.float64), np.asarray(arrays["labels"], dtype=np.float64)
        return _from_table(path)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} cannot be read as {path.suffix or 'a pilot file'}: {error}") from error


def _from_table(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    import pandas as pd

    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": pd.read_csv,
        ".tsv": lambda file: pd.read_csv(file, sep="\t"),
        ".parquet": pd.read_parquet,
    }
    if path.suffix not in readers:
        raise UsageError(f"{path}: a pilot file must be {KINDS}")
    table = readers[path.suffix](path)
    if table.empty:
        raise UsageError(f"{path} has no rows")
    for column in ("bag", "label"):
        if column not in table:
            raise UsageError(f"{path} has no column '{column}'; columns: {', '.join(map(str, table.columns))}")
        if empty := int(table[column].isna().sum()):
            raise UsageError(
                f"{path}: column '{column}' is empty in {empty} of {len(table)} rows; every token needs it"
            )
    features = table.drop(columns=["bag", "label"])
    if features.columns.empty:
        raise UsageError(f"{path} has no feature columns beside 'bag' and 'label'")
    words = features.select_dtypes(exclude="number").columns
    if len(words):
        raise UsageError(f"{path}: column '{words[0]}' is not numeric; features must be numbers")
    constant = [str(name) for name in features.columns if features[name].nunique(dropna=False) == 1]
    if constant:
        raise UsageError(f"{path}: every token has the same value in {', '.join(constant)}; leave constant columns out")
    table = table.sort_values("bag", kind="stable")
    bags = table.groupby("bag", sort=True)
    sizes = bags.size()
    if sizes.nunique() != 1:
        raise UsageError(f"{path}: bags have {sizes.min()} to {sizes.max()} tokens; all must have the same number")
    if (bags["label"].nunique() != 1).any():
        raise UsageError(f"{path}: bag {bags['label'].nunique().idxmax()} has several labels; a bag has one")
    tokens = table[features.columns].to_numpy(dtype=np.float64).reshape(len(sizes), int(sizes.iloc[0]), -1)
    return tokens, bags["label"].first().to_numpy(dtype=np.float64)
