"""A model and its tokenizer from a folder on this machine; nothing in the folder is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from whichtoken.display.text import visible
from whichtoken.errors import UsageError

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # in the order of preference
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")


def load_transformer(folder: str | Path, *, classifier: bool | None = None, **options: Any) -> Any:
    """The transformers model in a folder, in evaluation mode.

    Code in the folder stays where it is (`trust_remote_code=False`), safetensors are preferred, and pickled weights are
    read as weights only. With its own head if it is a classifier or a language model, otherwise the bare encoder.

    Parameters
    ----------
    folder : str or Path
        A folder as `save_pretrained` writes it.
    classifier : bool, optional
        Whether to load it with a classification head; by default as the folder says.
    **options : any
        Passed on to `from_pretrained`.

    Returns
    -------
    transformers.PreTrainedModel
        Ready to run.

    Examples
    --------
    >>> from whichtoken.inspection import load_transformer
    >>> model = load_transformer("my-model")
    >>> model.training
    False
    """
    folder = Path(folder)
    config = _config(folder)
    if not any(list(folder.glob(pattern)) for pattern in WEIGHTS):
        raise UsageError(f"{folder} has no weights; expected model.safetensors or pytorch_model.bin")
    name = (
        _class_name(config)
        if classifier is None
        else "AutoModelForSequenceClassification"
        if classifier
        else "AutoModel"
    )
    safe = bool(list(folder.glob(WEIGHTS[0])))
    try:
        with without_bars():
            model = getattr(transformers_package(), name).from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, use_safetensors=safe,
                **({} if safe else {"weights_only": True}), **options,
            )  # fmt: skip
    except UsageError:
        raise
    except Exception as error:  # broken files speak through many kinds of errors
        raise UsageError(f"{folder} cannot be loaded: {_first_sentence(error)}") from error
    return model.eval()


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer in a folder.

    Parameters
    ----------
    folder : str or Path
        A folder as `save_pretrained` writes it.

    Returns
    -------
    transformers.PreTrainedTokenizerBase
        Its tokenizer.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer
    >>> load_tokenizer("my-model")("a good film")["input_ids"]
    [2, 8, 4, 6, 3]
    """
    folder = Path(folder)
    check_folder(folder)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UsageError(f"{folder} has no tokenizer; copy tokenizer.json (or vocab.txt) of the model into it")
    try:
        return transformers_package().AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the tokenizer in {folder} cannot be loaded: {_first_sentence(error)}") from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Without transformers' progress bars: a folder on this machine loads in a moment."""
    logging = transformers_package().utils.logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports, which are not for the reader of a result."""
    logging = transformers_package().utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_bars():
            yield
    finally:
        logging.set_verbosity(level)


def transformers_package() -> Any:
    """The transformers package, or the sentence how to get it."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise UsageError("models of Hugging Face need transformers: pip install 'whichtoken[transformers]'") from error


def check_folder(folder: Path) -> None:
    """Refuse what is no folder, before anything heavy is imported."""
    if not os.path.isdir(folder):  # unlike Path.is_dir, also answers for a name that is too long
        raise UsageError(f"{folder} is not a folder; give the folder with config.json, the weights and the tokenizer")


def _config(folder: Path) -> dict[str, Any]:
    check_folder(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder} has no config.json; give the folder that a model was saved to") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{folder / 'config.json'} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise UsageError(f"{folder / 'config.json'} names no model_type; give the folder that a model was saved to")
    return config


def _class_name(config: dict[str, Any]) -> str:
    kinds = " ".join(config.get("architectures") or [])
    if "SequenceClassification" in kinds:
        return "AutoModelForSequenceClassification"
    return "AutoModelForCausalLM" if "CausalLM" in kinds or "LMHead" in kinds else "AutoModel"


def _first_sentence(error: Exception) -> str:
    text = " ".join(visible(str(error)).split())
    return text.split(". ")[0][:200] or type(error).__name__
