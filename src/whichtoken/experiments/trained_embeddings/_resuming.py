"""A training that goes on inside a point: a killed run finds its last epochs again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from whichtoken.training.loop import Safeguards

VARIABLE = "WHICHTOKEN_CHECKPOINTS"
LONG = 20  # epochs from which on a point keeps checkpoints
PARTS = 100  # at most so many are written


@contextmanager
def resuming(point: Any, rng: np.random.Generator, held_out: tuple[Any, Any] | None = None) -> Iterator[Safeguards]:
    """Safeguards for the training of a point with `epochs`: long ones keep a checkpoint until they are through.

    The file lies in the folder named by WHICHTOKEN_CHECKPOINTS, or in the user's cache, and is named by the point and the state
    of its generator, so that the same repeat of the same point finds it and no other does.
    """
    from whichtoken.training.loop import Safeguards

    if point.epochs < LONG:
        yield Safeguards(held_out=held_out)
        return
    identity = json.dumps([asdict(point), rng.bit_generator.state], sort_keys=True, default=str)
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.safetensors"
    yield Safeguards(held_out=held_out, checkpoint=path, checkpoint_every=max(1, point.epochs // PARTS))
    path.unlink(missing_ok=True)


def _folder() -> Path:
    chosen = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return Path(chosen) if chosen else cache / "whichtoken" / "checkpoints"
