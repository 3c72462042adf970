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


def _lion(gradient, state, step, lr, betas):
    update = state["exp_avg"].lerp(gradient, 1 - betas[0]).sign_()
    state["exp_avg"].lerp_(gradient, 1 - betas[1])
    return update.mul_(-lr)


Lion = ddc.lifted(
    _lion, init=lambda p: {"exp_avg": torch.zeros_like(p)}, name="Lion", lr=1e-4, betas=(0.9, 0.99)
)


@dataclass(frozen=True)
class Case:
    """An optimizer, with a group or without one; or one of torch's under `hold`."""

    kind: Any
    grouped: bool
    without: tuple[str, ...] = ()
    place: str | None = None
    held: bool = False

    def __str__(self) -> str:
        name = self.kind.__name__ + ("-held" if self.held else "-group" if self.grouped else "")
        return f"{name}-{self.place}" if self.place else name

    @property
    def moment(self) -> str | None:
        """What the average of gradients is called in the state, if there is one by default."""
        if self.kind is ddc.DDCSgd:
            return None
        return "momentum_buffer" if issubclass(self.kind, ddc.DDCMuon) else "exp_avg"

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
        if self.held:
            optimizer = self.kind(params, **options)
            ddc.hold(optimizer, self.group)
            return optimizer
        if self.place:
            options["placement"] = self.place
        if self.grouped:
            options["symmetries"] = self.group
        return self.kind(params, **options)


CASES = [Case(kind, grouped) for kind in (ddc.DDCAdam, ddc.DDCMuon) for grouped in (False, True)]
CASES.append(CASES[1].in_place())
MORE = [
    Case(kind, grouped)
    for kind in (ddc.DDCSgd, ddc.DDCShampoo, ddc.DDCSoap, Lion)
    for grouped in (False, True)
]
MORE.append(Case(ddc.Muon, False))
HELD = [Case(kind, True, held=True) for kind in (torch.optim.AdamW, torch.optim.SGD)]
# One of a kind of code: a rule in C++ and one in Python. The others are left to `make test-long`.
_SHORT = ("DDCSgd-group", "Lion")


def with_marks(case: Case) -> Any:
    marks = [pytest.mark.long] if case in MORE and str(case) not in _SHORT else []
    return pytest.param(case, id=str(case), marks=marks)


EVERY = [*CASES, *MORE]
every_case = pytest.mark.parametrize("case", [with_marks(c) for c in EVERY])
every_case_and_hold = pytest.mark.parametrize("case", [with_marks(c) for c in (*EVERY, *HELD)])
every_kind = pytest.mark.parametrize("kind", [ddc.DDCAdam, ddc.DDCMuon])
grouped_case = pytest.mark.parametrize("case", [with_marks(case) for case in EVERY if case.grouped])


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
