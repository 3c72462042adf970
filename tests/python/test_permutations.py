"""Permutations of units and heads, and signs: found, tried, and taken out of distances."""

import copy
import itertools
import json

import ddc
import pytest
import torch
from ddc.permutations import assignment
from families_support import families, family_of, group_of, model_of, predictions, relative
from torch import Tensor, nn


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_the_assignment_is_the_best_of_all(size: int) -> None:
    for seed in range(10):
        gain = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
        order = assignment(gain)
        best = max(
            sum(float(gain[i, j]) for i, j in enumerate(each))
            for each in itertools.permutations(range(size))
        )
        assert sorted(order.tolist()) == list(range(size))
        assert float(gain[torch.arange(size), order].sum()) == pytest.approx(best)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Qwen3", "ViT", "BERT"])
def test_copies_in_another_order_and_place_are_at_no_distance(name: str) -> None:
    model, group = model_of(name), group_of(name)
    found = ddc.permutations(model, families.in_float64(family_of(name).loss), group)
    # Two layers with units each; heads where there are several that no keys are shared by.
    units = [each for each in found if each.units == 10]
    heads = [each for each in found if each.units == 2]
    assert len(units) == 2
    assert len(heads) == 2

    moved = found.shuffle_(copy.deepcopy(model), seed=3)
    assert relative(predictions(name, moved), predictions(name, model)) < 1e-12
    group.random_element(seed=1, size=0.5).apply_(moved)
    assert group.distance(model, moved) > 1e-2
    assert group.distance(model, moved, permutations=found) < 1e-10
    assert group.difference(model, moved, permutations=found).modulo < 1e-10

    aligned = copy.deepcopy(model)
    group.align_(aligned, to=moved, permutations=found)
    apart = [
        (a - b).norm() / b.norm()
        for a, b in zip(aligned.parameters(), moved.parameters(), strict=True)
    ]
    assert max(apart) < 1e-9
    assert relative(predictions(name, aligned), predictions(name, model)) < 1e-11


def survives(found: ddc.Permutations, group: ddc.SymmetryGroup) -> None:
    """Whether a file has all of it, and it fits what it was found on."""
    again = ddc.Permutations.from_json(found.to_json())
    assert again == found
    again.check(group._core.parameters)
    for key in ("of", "buffer", "indices", "tensor"):
        read = json.loads(found.to_json())
        del read["permutations"][0]["axes"][0][key]
        with pytest.raises(ValueError, match="no permutations"):
            ddc.Permutations.from_json(json.dumps(read))


class Tanh(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)
        )


def loss(model: nn.Module) -> Tensor:
    return (model(torch.randn(32, 5, dtype=torch.float64)) - 1).square().mean()


def test_units_of_an_odd_activation_have_signs() -> None:
    torch.manual_seed(0)
    model = Tanh().double()
    found = ddc.permutations(model, loss)
    assert [(each.units, each.signs) for each in found] == [(7, True), (6, True)]
    group = ddc.discover(model, loss)
    moved = found.shuffle_(copy.deepcopy(model), seed=5)
    x = torch.randn(4, 5, dtype=torch.float64)
    assert torch.allclose(model(x), moved(x), rtol=1e-12)
    assert group.distance(model, moved, permutations=found) < 1e-10
    assert group.distance(model, moved) > 0.1


def test_nothing_is_permuted_that_the_loss_tells_apart() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).double()

    def regression(each: nn.Module) -> Tensor:
        x = torch.randn(16, 4, dtype=torch.float64)
        return (each(x) - x[:, :3]).square().mean()

    assert ddc.permutations(model, regression) == ()


def cnn(affine: bool) -> nn.Module:
    """A convolution that is normed, and one that is flattened; running means of data that are not white."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6, affine=affine),
        nn.Tanh(),
        nn.Conv2d(6, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20, 4),
    ).double()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 1.0 if "weight" in name else 0.3, 0.3)
    with torch.no_grad():
        for _ in range(50):
            model(images())
    return model


def images() -> Tensor:
    return torch.randn(32, 3, 6, 6, dtype=torch.float64) * 2 + 1


def classify(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(images()), torch.randint(4, (32,)))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_running_means_are_permuted_with_their_channels(affine: bool, training: bool) -> None:
    model = cnn(affine).train(training)
    group = ddc.discover(model, classify)
    found = ddc.permutations(model, classify, group)
    # A norm without a shift hands the sign of a channel on to tanh.
    assert sorted((each.units, each.signs) for each in found) == [(5, False), (6, True)]
    assert any(axis.buffer for each in found for axis in each.axes)
    survives(found, group)
    torch.manual_seed(9)
    x = images()

    def outputs(each: nn.Module) -> list[Tensor]:
        copies = [copy.deepcopy(each).train(mode) for mode in (True, False)]
        with torch.no_grad():
            return [of(x).log_softmax(-1) for of in copies]

    moved = found.shuffle_(copy.deepcopy(model), seed=3)
    aligned = copy.deepcopy(model)
    group.align_(aligned, to=moved, permutations=found)
    assert group.distance(model, moved) > 0.1
    assert group.distance(model, moved, permutations=found) < 1e-10
    for mine, shuffled, back in zip(*map(outputs, (model, moved, aligned)), strict=True):
        assert relative(shuffled, mine) < 1e-12
        assert relative(back, mine) < 1e-12
    for name, buffer in aligned.named_buffers():
        assert torch.allclose(buffer.double(), dict(moved.named_buffers())[name].double())


def test_experts_have_an_order_and_each_one_of_its_units() -> None:
    family = next(each for each in families.MORE if each.name == "Mixtral")
    model = families.build(family)
    loss = families.in_float64(family.loss)
    group = ddc.discover(model, loss)
    found = ddc.permutations(model, loss, group)
    # Two layers: heads, experts, and units of every expert.
    experts = model.config.num_local_experts
    assert sorted(each.units for each in found) == sorted(
        [2, 2, experts, experts] + 2 * experts * [6]
    )
    assert any(axis.of for each in found for axis in each.axes)
    survives(found, group)
    last = next(each for each in found if any(axis.of == experts - 1 for axis in each.axes))
    fewer = [(n, (shape[0] - 1, *shape[1:])) for n, shape in group._core.parameters]
    with pytest.raises(ValueError, match=f"of matrix {experts - 1}"):
        ddc.Permutations([last]).check(fewer)

    moved = found.shuffle_(copy.deepcopy(model), seed=3)
    losses = []
    for each in (model, moved):
        torch.manual_seed(1)
        losses.append(loss(each).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert group.distance(model, moved) > 0.1
    assert group.distance(model, moved, permutations=found) < 1e-10
