"""What discovery finds does not depend on the units that inputs, weights and losses are measured in."""

from __future__ import annotations

from collections import Counter

import ddc
import pytest
import torch
from torch import Tensor, nn


def rescales(group: ddc.SymmetryGroup) -> list[tuple[str, int]]:
    """Kinds and numbers of legs of all rescales; a bias is a leg of its own."""
    return [(gauge.kind, len(gauge.legs)) for gauge in group.gauges if "rescale" in gauge.kind]


def perceptron(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [(6, 10), (10, 9), (9, 3)]
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).to(dtype)


def data(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(32, 6, dtype=dtype), torch.randint(3, (32,))


DECADES = [1e-6, 1e-3, 30.0, 1e4, 1e6]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("what", ["inputs", "weights", "loss", "column"])
def test_a_perceptron_has_its_rescales_in_any_units(what: str, dtype: torch.dtype) -> None:
    missed = {}
    for size in DECADES:
        model = perceptron(dtype)
        if what == "weights":
            with torch.no_grad():
                model[0].weight.mul_(size)

        def loss(model: nn.Module, size: float = size) -> Tensor:
            inputs, targets = data(dtype)
            if what == "inputs":
                inputs = inputs * size
            if what == "column":
                inputs = torch.cat([inputs[:, :1] * size, inputs[:, 1:]], 1)
            value = nn.functional.cross_entropy(model(inputs), targets)
            return value * size**3 if what == "loss" else value

        found = rescales(ddc.discover(model, loss))
        if found != [("relu rescale", 3)] * 2:
            missed[size] = found

    assert missed == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_images_of_bytes_need_not_be_normalised(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)
    ).to(dtype)

    def loss(model: nn.Module) -> Tensor:
        pixels = torch.randint(256, (32, 1, 4, 4)).to(dtype)
        return nn.functional.cross_entropy(model(pixels), torch.randint(3, (32,)))

    assert rescales(ddc.discover(model, loss)) == [("relu rescale", 3)] * 2


def test_heads_that_attend_alike_are_told_apart_in_float32() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=512,
        n_embd=128,
        n_layer=4,
        n_head=4,
        n_positions=32,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()

    def loss(model: nn.Module) -> Tensor:
        tokens = torch.randint(512, (8, 33))
        logits = model(input_ids=tokens[:, :-1]).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    found = Counter(f"{gauge.kind} {gauge.group}" for gauge in ddc.discover(model, loss).gauges)
    assert found["VO linear GL(32)^4"] == 4
    assert found["QK linear GL(32)^4"] == 4


def test_two_gauges_at_one_tensor_are_both_kept() -> None:
    torch.manual_seed(0)
    sizes = [4, 5, 6]
    model = nn.ParameterList(
        [nn.Parameter(torch.randn(size, 3, dtype=torch.float64)) for size in sizes]
    )

    def loss(model: nn.Module) -> Tensor:
        inputs = torch.randn(64, *sizes, dtype=torch.float64)
        outputs = torch.einsum("nijk,ir,jr,kr->n", inputs, *model)
        return (outputs - torch.randn(64, dtype=torch.float64)).square().mean()

    group = ddc.discover(model, loss, completeness=True)
    assert [gauge.name for gauge in group.gauges] == ["0:rescale", "0:rescale.2"]
    assert group.completeness is not None
    assert (group.completeness.explained, round(group.completeness.kernel)) == (6, 6)


class Depthwise(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=4, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=4, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 3, 1),
        )


class Bilinear(nn.Module):
    """A gated layer without an activation: each side may be scaled against what reads the product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(5, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.first(x) * self.second(x))


class Triple(nn.Module):
    """AdaLoRA's factors: two matrices and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(3, 6))
        self.between = nn.Parameter(torch.randn(3, 1))
        self.outer = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ (self.inner * self.between).T @ self.outer.T)


class Modulated(nn.Module):
    """Adaptive norms: scale and shift of two of them are made by one layer from a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Linear(4, 12, bias=False)
        self.up, self.inner, self.out = nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift, gate, late = self.condition(x[:, :4]).chunk(4, -1)
        hidden = torch.relu(self.up(x[:, 4:]) * scale + shift)
        return self.out(torch.relu(self.inner(hidden) * gate + late))


@pytest.mark.parametrize(
    ("make", "shape", "rescales_of"),
    [
        (Depthwise, (32, 2, 4, 4), 3),
        (Bilinear, (64, 5), 2),
        (Triple, (64, 6), 2),
        (Modulated, (64, 9), 2),
    ],
    ids=["depthwise", "bilinear", "AdaLoRA", "adaptive norms"],
)
def test_gauges_that_begin_at_one_tensor_have_names_of_their_own(make, shape, rescales_of) -> None:
    torch.manual_seed(0)
    model = make().double()

    def loss(model: nn.Module) -> Tensor:
        outputs = model(torch.randn(shape, dtype=torch.float64))
        return (outputs - torch.randn(outputs.shape, dtype=torch.float64)).square().mean()

    group = ddc.discover(model, loss)
    assert len(rescales(group)) == rescales_of
    names = [gauge.name for gauge in group.gauges]
    assert len(set(names)) == len(names)
    assert not [each for each in group.refusals if "two gauges are called" in each.reason]
