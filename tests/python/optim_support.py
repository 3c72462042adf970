"""A small network with symmetries of every kind, and the optimizers to train it with."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass, replace
from typing import Any

import ddc
import pytest
import torch
from torch import Tensor, nn


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """Linear pair, ReLU rescaling, shifts of the logits."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 3, bias=False), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).double() / 2)
    return model.to(dtype)


def loss(model: nn.Module) -> Tensor:
    """On a batch from torch's generator."""
    dtype = next(model.parameters()).dtype
    inputs, labels = torch.randn(16, 4), torch.randint(3, (16,))
    return nn.functional.cross_entropy(model(inputs.to(dtype)), labels)


def loss_on(model: nn.Module, batch: int) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(1000 + batch)
        return loss(model)


@functools.cache
def group() -> ddc.SymmetryGroup:
    found = ddc.discover(network(), loss)
    assert sorted(gauge.kind for gauge in found.gauges) == [
        "CE bias shift",
        "CE row shift",
        "linear pair",
        "relu rescale",
    ]
    return found


@dataclass(frozen=True)
class Case:
    """An optimizer, with a group or without one."""

    kind: type[ddc.Lifted]
    grouped: bool
    without: tuple[str, ...] = ()
    place: str | None = None

    def __str__(self) -> str:
        name = self.kind.__name__ + ("-group" if self.grouped else "")
        return f"{name}-{self.place}" if self.place else name

    @property
    def placed(self) -> bool:
        """Weights of 32 or 64 bits are at their canonical place."""
        return self.grouped and self.place != "in_place"

    @property
    def group(self) -> ddc.SymmetryGroup | None:
        return group().without(*self.without) if self.grouped else None

    def light(self) -> Case:
        """For many steps: without the gauge that takes most of their time."""
        return replace(self, without=("linear pair",))

    def in_place(self) -> Case:
        return replace(self, place="in_place") if self.grouped else self

    def make(self, model_or_params: Any, **options: Any) -> Any:
        params = model_or_params
        if isinstance(params, nn.Module):
            params = params.named_parameters()
        if self.place:
            options["placement"] = self.place
        return self.kind(params, symmetries=self.group, **options)


CASES = [Case(kind, grouped) for kind in (ddc.DDCAdam, ddc.DDCMuon) for grouped in (False, True)]
CASES.append(CASES[1].in_place())
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", [ddc.DDCAdam, ddc.DDCMuon])
grouped_case = pytest.mark.parametrize("case", [c for c in CASES if c.grouped], ids=str)


def backward(model: nn.Module, batch: int) -> Tensor:
    """Gradients of the loss on a batch, in place of those that were there."""
    model.zero_grad()
    value = loss_on(model, batch)
    value.backward()
    return value.detach()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: range) -> None:
    for batch in batches:
        backward(model, batch)
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, types and all; of state dicts and what they are made of."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def saved_and_read(state: Any) -> Any:
    """What a checkpoint gives back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
