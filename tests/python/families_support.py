"""Small models of transformers and timm with their symmetries, found once per run of the tests."""

from __future__ import annotations

import copy
import fcntl
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ddc
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))

import families  # noqa: E402

NAMES = [family.name for family in families.FAMILIES]


def family_of(name: str) -> families.Family:
    return next(family for family in families.FAMILIES if family.name == name)


@functools.cache
def _found(name: str) -> tuple[nn.Module, ddc.SymmetryGroup]:
    family = family_of(name)
    model = families.build(family)
    folder = os.environ.get("DDC_SHARED_FOLDER")
    if folder is None:
        return model, ddc.discover(model, family.loss)
    # One of the processes that run the tests searches; the others wait, and read what it has found.
    file = Path(folder) / f"{name.replace(' ', '_')}.json"
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            ddc.discover(model, family.loss).save(file)
    return model, ddc.SymmetryGroup.load(file, model)


def group_of(name: str) -> ddc.SymmetryGroup:
    return _found(name)[1]


def model_of(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return copy.deepcopy(_found(name)[0]).to(dtype)


def loss_of(name: str, model: nn.Module, seed: int) -> Tensor:
    """The loss on a batch; in float64 throughout if the model is."""
    family = family_of(name)
    dtype = next(model.parameters()).dtype
    loss = families.in_float64(family.loss) if dtype == torch.float64 else family.loss
    torch.manual_seed(seed)
    with _inputs_as(model, dtype):
        return loss(model)


@contextmanager
def _inputs_as(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Images come in float64."""

    def cast(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs
        )

    with model.register_forward_pre_hook(cast):
        yield


def predictions(name: str, model: nn.Module, seed: int = 5) -> Tensor:
    """Logarithms of probabilities on a batch. (Logits may move by a constant.)"""
    outputs: list[Any] = []
    with (
        torch.no_grad(),
        model.register_forward_hook(lambda _module, _inputs, output: outputs.append(output)),
    ):
        loss_of(name, model, seed)
    return getattr(outputs[0], "logits", outputs[0]).double().log_softmax(-1)


def apart(first: nn.Module, second: nn.Module) -> float:
    """The largest difference of a tensor, relative to its norm.

    Or to a thousandth of the largest norm: some tensors are empty at the canonical place.
    """
    with torch.no_grad():
        largest = max(tensor.norm() for tensor in second.parameters())
        pairs = zip(first.parameters(), second.parameters(), strict=True)
        return max(
            ((a - b).norm() / torch.maximum(b.norm(), largest / 1000)).item() for a, b in pairs
        )


def relative(first: Tensor, second: Tensor) -> float:
    return ((first - second).abs().max() / second.abs().max()).item()
