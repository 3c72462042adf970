"""Permutations of units and heads, and signs: found, tried, and taken out of distances."""

import copy
import itertools

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
