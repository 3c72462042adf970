"""Checkpoints of weights as they are found: a file, a folder, or the index of one in several files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ddc._model import plain_name

INDEX = "model.safetensors.index.json"


def read(path: str) -> dict[str, Tensor]:
    """Tensors of a checkpoint by their plain names.

    Parameters
    ----------
    path : str
        A file of safetensors, the index of several (``model.safetensors.index.json``), or the folder of
        either, as `save_pretrained` writes it.
    """
    found = Path(path)
    if found.is_dir():
        found = _in_folder(found)
    if not found.is_file():
        raise ValueError(f"there is no file '{path}'")
    files = _of_index(found) if found.suffix == ".json" else [found]
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in _tensors(file).items():
            plain = plain_name(name)
            if plain in tensors:
                raise ValueError(f"'{path}' has the tensor '{plain}' twice")
            tensors[plain] = tensor
    return tensors


def _in_folder(folder: Path) -> Path:
    for name in (INDEX, "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ValueError(
            f"'{folder}' has {len(files)} files of safetensors and no {INDEX} that says how they "
            "belong together: name one of them"
        )
    raise ValueError(f"there is no checkpoint in '{folder}': no {INDEX}, and no *.safetensors")


def _of_index(index: Path) -> list[Path]:
    """The files that an index names, each once."""
    try:
        names = json.loads(index.read_text())["weight_map"].values()
        files = [index.parent / name for name in dict.fromkeys(names)]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"'{index}' is no index of a checkpoint: it has no 'weight_map' from tensors to files"
        ) from None
    for file in files:
        if not file.is_file():
            raise ValueError(f"'{index}' names '{file.name}', which is not there")
    return files


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise ValueError(
            "checkpoints are read by the package safetensors, which is not installed"
        ) from None
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"'{file}' is no file of safetensors: {error}") from None


def named_as(
    wanted: Iterable[tuple[str, Sequence[int]]], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors under the names that are wanted, where they differ by one prefix.

    A base model has ``wte.weight`` where the model around it has ``transformer.wte.weight``, and the other
    way round. Of several prefixes the one that finds most tensors of the right shape is taken; what it does
    not find is left to whoever asks for it.
    """
    result = dict(tensors)
    missing = {name: list(shape) for name, shape in wanted if name not in result}

    def fits(name: str, other: str) -> bool:
        return other in tensors and list(tensors[other].shape) == missing[name]

    matches: Counter[tuple[str, str]] = Counter()
    for name in missing:
        parts = name.split(".")
        for k in range(1, len(parts)):
            if fits(name, ".".join(parts[k:])):
                matches[".".join(parts[:k]) + ".", ""] += 1
        for other in tensors:
            if other.endswith("." + name) and fits(name, other):
                matches["", other.removesuffix(name)] += 1
    if not matches:
        return result
    (dropped, added), _ = matches.most_common(1)[0]
    for name in missing:
        other = added + name.removeprefix(dropped)
        if name.startswith(dropped) and fits(name, other):
            result[name] = tensors[other]
    return result
