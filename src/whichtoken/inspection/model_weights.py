"""The weights of a model folder: read as arrays and nothing else, and compared with what the model needs."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from whichtoken.data.reading import check_fits, check_regular, read_json, readable, reason, shown
from whichtoken.errors import UsageError

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order of preference
HEADS = re.compile(r"cls|head|classif|predict|pooler|score|output|vocab_|embed_out|logit")
COMPUTED = re.compile(r"(.*\.)?(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias)")


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights, all of them in the folder itself."""
    for name in WEIGHTS:
        if (folder / name).exists() or (folder / name).is_symlink():
            return [_own(folder, name)]
        index = folder / f"{name}.index.json"
        if index.exists() or index.is_symlink():
            described = read_json(index)
            places = described.get("weight_map") if isinstance(described, dict) else None
            if not isinstance(places, dict) or not places or not all(isinstance(part, str) for part in places.values()):
                raise UsageError(f"{shown(index)} has no 'weight_map' with the file of each array")
            return [_own(folder, part) for part in sorted(set(places.values()))]
    raise UsageError(f"{shown(folder)} has no weights; expected model.safetensors or pytorch_model.bin")


def _own(folder: Path, name: str) -> Path:
    if Path(name).name != name or name in ("", ".", ".."):
        raise UsageError(f"{shown(folder)}: its index names '{shown(name)}'; weights lie in the folder itself")
    check_regular(folder / name)
    return folder / name


def read_weights(folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Every array by its name."""
    import torch
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in files:
        with readable(file, "weights"):
            check_fits(file, 2 * _unpacked(file))
            try:
                part = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
            except UnpicklingError as error:  # torch's own text tells how to execute it
                raise ValueError("it holds more than arrays, or is damaged") from error
            if not isinstance(part, dict) or not all(isinstance(array, torch.Tensor) for array in part.values()):
                raise ValueError("it holds something else than arrays")
        if twice := set(found) & set(part):
            raise UsageError(f"{shown(folder)} has '{shown(min(twice))}' in two files")
        found |= {str(name): array for name, array in part.items()}
    if not found:
        raise UsageError(f"{shown(folder)} has no weights: {shown(files[0].name)} holds no arrays")
    for name, array in found.items():
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise UsageError(f"{shown(folder)}: array '{shown(name)}' holds numbers that are not finite")
    return found


def _unpacked(file: Path) -> int:
    if file.suffix == ".bin" and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            return sum(member.file_size for member in archive.infolist())
    return file.stat().st_size


def check_loaded(folder: Path, model: Any, found: Mapping[str, Any], *, new_head: bool) -> None:
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
                f"weights are {what}: {_some(names)}; its config.json and its weights do not belong together"
            )
    if found.get("error_msgs"):
        raise UsageError(reason(ValueError(found["error_msgs"][0])))
    if heads:
        warnings.warn(f"{shown(folder)} has weights that are not used here: {_some(sorted(heads))}", stacklevel=3)
    if bare and spare:
        import torch

        named = dict(model.named_parameters())
        with torch.no_grad():
            for short in spare:
                named[own[short]].zero_()
        warnings.warn(
            f"{shown(folder)} has no weights for a part that is not used: {_some(sorted(spare))}", stacklevel=3
        )


def _some(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(shown(name[:100]) for name in names[:3]) + (f" and {rest} more" if rest > 0 else "")
