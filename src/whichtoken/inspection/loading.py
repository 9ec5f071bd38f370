"""A model and its tokenizer from a folder on this machine; nothing in the folder is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from whichtoken.data.reading import check_regular, read_json, read_text, shown
from whichtoken.data.tokenizer_process import encode_texts
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.extras import require
from whichtoken.inspection.model_weights import check_loaded, read_weights, weight_files

TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
DTYPES = (None, "auto", "float64", "float32", "float16", "bfloat16")
LARGEST_CONFIG = 1 << 22  # bytes; 20 000 labels take one million
MOST_VALUES = 100_000  # of a configuration, each of which is copied many times
FEW = 1000  # layers or labels that are built in a moment, whatever the weights are
SLACK = 10**7  # numbers of a model that need not be in its weights: masks and positions that are computed
# what a folder must not decide: which code computes, which files are read, in what form the results come
NOT_FROM_THE_FOLDER = re.compile(
    r"auto_map|_?(attn|experts)_implementation\w*|transformers_weights|\w*(kernel|fusion|distributed)_config|_name_or_path"
    r"|_commit_hash|output_\w+|(use_)?return_dict|torchscript"
)
REPEATED = re.compile(r"layer|block|expert|depth|stage|group|codebook|stack")  # what a number builds many of
PROBES = ("A good film, isn't it?", " ", "a" * 200)


def load_transformer(folder: str | Path, *, classifier: bool | None = None, **options: Any) -> Any:
    """The transformers model in a folder, in evaluation mode.

    Only `config.json` and the weights are read, and nothing is executed: code in the folder stays where it is, safetensors
    are preferred, and pickled weights are read as weights only. How attention is computed is never taken from the folder.
    Weights that are missing, too many, of another shape or not finite are refused by name; those of heads that the task does
    not use are named in a warning. With its own head if it is a classifier or a language model, otherwise the bare encoder.

    Parameters
    ----------
    folder : str or Path
        A folder as `save_pretrained` writes it.
    classifier : bool, optional
        Whether to load it with a classification head, a new one if the folder has none; by default as the folder says.
    **options : any
        Fields of the configuration, or passed on to `from_pretrained`.

    Returns
    -------
    transformers.PreTrainedModel
        Ready to run.

    Raises
    ------
    UsageError
        If the folder is incomplete, damaged, or of a kind that is not read.

    Examples
    --------
    >>> from whichtoken.inspection import load_transformer
    >>> model = load_transformer("my-model")
    >>> model.training
    False
    """
    folder = Path(folder)
    described = _config(folder)
    files = weight_files(folder)
    with _in_a_sentence(folder, f"{shown(folder)} cannot be loaded"):
        weights = read_weights(folder, files)
        rows = max((max(array.shape, default=0) for array in weights.values()), default=0)
        _check_repeats(folder / "config.json", described, max(FEW, len(weights)), max(FEW, rows))
        config = _as_config(described, options)
        with quiet():  # what it would report of the weights is said below
            sketch = _sketch(config, _class_name(described, classifier))
            _check_size(folder, sketch, weights)
            chosen = {"attn_implementation": sketch.config._attn_implementation} | options
            model, found = type(sketch).from_pretrained(
                None, config=config, state_dict=dict(weights), output_loading_info=True, ignore_mismatched_sizes=True,
                **chosen,
            )  # fmt: skip
        check_loaded(folder, model, found, new_head=bool(classifier))
    return model.eval()


def load_tokenizer(folder: str | Path, texts: Sequence[str] = PROBES) -> Any:
    """The tokenizer in a folder.

    A `tokenizer.json` is first tried on some texts in a process of its own, with limits of time and memory.

    Parameters
    ----------
    folder : str or Path
        A folder as `save_pretrained` writes it.
    texts : sequence of str, optional
        What it is tried on: best the texts that it is for.

    Returns
    -------
    transformers.PreTrainedTokenizerBase
        Its tokenizer.

    Raises
    ------
    UsageError
        If there is none, it is damaged, or it fails on the texts.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer
    >>> load_tokenizer("my-model")("a good film")["input_ids"]
    [2, 8, 4, 6, 3]
    """
    folder = Path(folder)
    check_folder(folder)
    _check_files(folder)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UsageError(f"{shown(folder)} has no tokenizer; copy tokenizer.json (or vocab.txt) of the model into it")
    if (folder / "config.json").exists():  # it is read with the tokenizer
        _check_repeats(folder / "config.json", _config(folder))
    with _in_a_sentence(folder, f"the tokenizer in {shown(folder)} cannot be loaded"):
        if (folder / TOKENIZERS[0]).is_file():
            list(encode_texts(read_text(folder / TOKENIZERS[0], "JSON"), [list(map(str, texts))], special=True))
        return transformers_package().AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )


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
    """The transformers package, which does not ask for torch itself, or the sentence how to get both."""
    for package in ("transformers", "torch"):
        require(package, "a model of Hugging Face")
    return import_module("transformers")


def check_folder(folder: Path) -> None:
    """Refuse what is no folder, before anything heavy is imported."""
    if not os.path.isdir(folder):  # unlike Path.is_dir, also answers for a name that is too long
        raise UsageError(
            f"{shown(folder)} is not a folder; give the folder with config.json, the weights and the tokenizer"
        )


def _check_files(folder: Path) -> None:
    """Refuse pipes, devices and links to them: whoever opens one waits for ever."""
    for file in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        if not os.path.isdir(file) and not os.path.isfile(file):
            raise UsageError(f"{shown(file)} is not a regular file; a model folder holds nothing else")
        if file.suffix == ".json" and file.name != TOKENIZERS[0] and file.stat().st_size > LARGEST_CONFIG:
            raise UsageError(
                f"{shown(file)} is larger than {LARGEST_CONFIG >> 20} MB, too large for a model's settings"
            )


def _config(folder: Path) -> dict[str, Any]:
    """What config.json says, without what is not for a folder to say."""
    check_folder(folder)
    file = folder / "config.json"
    if not file.exists():
        raise UsageError(f"{shown(folder)} has no config.json; give the folder that a model was saved to")
    check_regular(file)
    if file.stat().st_size > LARGEST_CONFIG:
        raise UsageError(f"{shown(file)} is larger than {LARGEST_CONFIG >> 20} MB, too large for a model's settings")
    config = read_json(file)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"{shown(file)} names no model_type; give the folder that a model was saved to")
    kinds = config.get("architectures")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise UsageError(f"{shown(file)}: 'architectures' must be a list of names, not {_value(kinds)}")
    if _values(config) > MOST_VALUES:
        raise UsageError(f"{shown(file)} has more than {MOST_VALUES} values, too many for a model's settings")
    if "adapter_config.json" in os.listdir(folder):
        raise UsageError(f"{shown(folder)} holds an adapter; merge it into its model and save that")
    return _cleaned(file, config)


def _cleaned(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name in ("quantization_config", "compression_config") and value:
            raise UsageError(
                f"{shown(file)} describes a quantized model, which is not read; save it without quantization"
            )
        if name in ("dtype", "torch_dtype") and not (isinstance(value, str | None) and value in DTYPES):
            raise UsageError(f"{shown(file)}: '{name}' is {_value(value)}; known are {', '.join(map(str, DTYPES[2:]))}")
        if "backbone" in name and value:
            raise UsageError(
                f"{shown(file)} names another model ('{visible(name)}'); give one that reads texts by itself"
            )
        if not NOT_FROM_THE_FOLDER.fullmatch(name):
            kept[name] = _cleaned(file, value) if isinstance(value, dict) else value
    return kept


def _values(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inside))


def _value(value: Any) -> str:
    return visible(repr(value)[:60])


def _check_repeats(file: Path, config: Mapping[str, Any], most: int = MOST_VALUES, labels: int = MOST_VALUES) -> None:
    """Refuse numbers of layers and labels that no weights are there for, before as many objects are built."""
    for name, value in config.items():
        limit = labels if isinstance(value, dict) or name == "num_labels" else most
        if isinstance(value, dict):
            number: float = len(value)
            _check_repeats(file, value, most, labels)
        elif isinstance(value, int | float) and (name == "num_labels" or REPEATED.search(name)):
            number = value
        else:
            continue
        if number > limit:
            raise UsageError(
                f"{shown(file)} has {_value(number)} for '{shown(name)}', more than its weights can be for"
            )


def _as_config(described: Mapping[str, Any], options: dict[str, Any]) -> Any:
    """The configuration; takes those options that are fields of it, as `from_pretrained` does."""
    package = transformers_package()
    known = package.CONFIG_MAPPING
    kind = described["model_type"]
    if kind not in known:
        raise UsageError(f"model_type '{shown(kind[:60])}' is not known to transformers {package.__version__}")
    config = known[kind].from_dict(dict(described))
    for name in [name for name in options if name not in ("attn_implementation", "dtype") and hasattr(config, name)]:
        setattr(config, name, options.pop(name))
    return config


def _sketch(config: Any, name: str) -> Any:
    """The model without numbers; with the attention that transformers chooses, for the folder says nothing of it."""
    import torch

    with torch.device("meta"):
        return getattr(transformers_package(), name).from_config(config, trust_remote_code=False)


def _check_size(folder: Path, sketch: Any, weights: Mapping[str, Any]) -> None:
    wanted = sum(array.numel() for array in [*sketch.parameters(), *sketch.buffers()])
    there = sum(array.numel() for array in weights.values())
    if wanted > 2 * there + SLACK:
        raise UsageError(f"config.json describes a model of {wanted:.3g} numbers, its weights have {there:.3g}")


def _class_name(config: Mapping[str, Any], classifier: bool | None) -> str:
    kinds = " ".join(config.get("architectures") or [])
    if classifier or (classifier is None and "SequenceClassification" in kinds):
        return "AutoModelForSequenceClassification"
    causal = classifier is None and ("CausalLM" in kinds or "LMHead" in kinds)
    return "AutoModelForCausalLM" if causal else "AutoModel"


@contextmanager
def _offline() -> Iterator[None]:
    """Let no library ask the network: a configuration can name other models, which transformers would look up."""
    transformers_package()
    constants = import_module("huggingface_hub.constants")
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before  # type: ignore[attr-defined]


@contextmanager
def _in_a_sentence(folder: Path, what: str) -> Iterator[None]:
    """Whatever goes wrong in the block is one sentence: broken files speak through many kinds of errors, panics included."""
    try:
        with _offline():
            yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except UsageError as error:
        if shown(folder) in str(error):
            raise
        raise UsageError(f"{what}: {error}") from error
    except BaseException as error:
        raise UsageError(f"{what}: {_first_sentence(error)}") from error


def _first_sentence(error: BaseException) -> str:
    text = " ".join(visible(str(error)).split())
    return text.split(". ")[0][:200] or type(error).__name__
