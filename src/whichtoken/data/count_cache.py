"""Token counts in a file, so that texts are prepared once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from whichtoken.data.array_files import read_arrays
from whichtoken.data.reading import readable
from whichtoken.data.token_counts import TokenCounts
from whichtoken.errors import UsageError
from whichtoken.files import replacing


def cached_counts(path: Path, compute: Callable[[], TokenCounts], *inputs: Any) -> TokenCounts:
    """The counts in `path` if they were made from the same inputs; otherwise computed, and written there."""
    fingerprint = _fingerprint(inputs)
    if path.is_file():
        stored, made_from = read_counts(path)
        if made_from == fingerprint:
            return stored
    data = compute()
    save_counts(path, data, fingerprint)
    return data


def save_counts(path: Path, data: TokenCounts, fingerprint: str = "") -> None:
    """Write counts as .npz; a file is there only once it is whole."""
    arrays: dict[str, Any] = {
        "data": data.counts.data,
        "indices": data.counts.indices,
        "indptr": data.counts.indptr,
        "shape": np.array(data.counts.shape),
        "labels": data.labels,
        "fingerprint": np.array(fingerprint),
    }
    if data.vocabulary is not None:
        arrays["vocabulary"] = np.frombuffer("\n".join(data.vocabulary).encode(), np.uint8)
    with replacing(path) as fresh, fresh.open("wb") as file:
        np.savez(file, **arrays)


def read_counts(path: Path) -> tuple[TokenCounts, str]:
    """What `save_counts` wrote: the counts, and the fingerprint of what they were made from."""
    try:
        arrays = read_arrays(path, ["data", "indices", "indptr", "shape", "labels", "fingerprint"], ["vocabulary"])
        with readable(path, "token counts"):
            parts = (arrays["data"], arrays["indices"], arrays["indptr"])
            counts = sparse.csr_array(parts, shape=tuple(arrays["shape"]))
            counts.check_format(full_check=True)
            names = bytes(arrays["vocabulary"]).decode().split("\n") if "vocabulary" in arrays else None
            vocabulary = None if names is None else tuple(names)
            return TokenCounts(counts, arrays["labels"], vocabulary), str(arrays["fingerprint"])
    except UsageError as error:
        raise UsageError(f"{error}; delete it and prepare the texts again") from error


def _fingerprint(inputs: tuple[Any, ...]) -> str:
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, list | tuple):
            for item in value:
                text = str(item).encode(errors="surrogatepass")
                digest.update(b"%d:" % len(text) + text)
        else:
            digest.update((repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value)).encode())
    return digest.hexdigest()
