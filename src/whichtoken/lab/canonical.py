"""Canonical JSON, which keys the ledger and seeds the random streams."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The value with numpy scalars, arrays, tuples and mappings converted to JSON types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return value


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces, shortest floats that read back exactly; raises ValueError on NaN and infinity."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


# Raise it when tolerances were set after looking at rows, so that the record uses draws that nobody has seen.
DRAW = 2


def random_stream(experiment: str, seed: int, problem: Mapping[str, Any], draw: int = DRAW) -> np.random.Generator:
    """The generator of one repeat of one problem.

    It depends only on its arguments: not on the worker, the order of the points, or the method fields, so that methods are
    compared on the same data.
    """
    text = canonical_json({"experiment": experiment, "seed": seed, "problem": problem, "draw": draw})
    entropy = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return np.random.default_rng(np.random.SeedSequence(entropy))
