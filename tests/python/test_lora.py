"""Adapters of `peft` on a pretrained model: each pair's gauge is found, and DDCAdam respects it."""

import sys
from copy import deepcopy
from pathlib import Path

import ddc
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
from fine_tune import gap, load_batches, load_model, train
from lora import add_adapters

TARGETS = ["query", "value", "intermediate.dense"]


def adapted(zero: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    return add_adapters(load_model(layers=1, dtype=torch.float64), 2, TARGETS, zero)


@pytest.fixture(scope="module")
def batches():
    return load_batches(size=4, length=8, seed=0)


@pytest.fixture(scope="module")
def group(batches):
    """As found where `peft` starts, with B = 0."""
    return ddc.discover(adapted(zero=True), ddc.huggingface.loss_fn(batches))


def test_every_pair_has_its_linear_group(group):
    pairs = {
        (name, name.replace("lora_A", "lora_B"))
        for name, _ in adapted(zero=True).named_parameters()
        if "lora_A" in name
    }
    assert len(pairs) == len(TARGETS)
    found = [gauge for gauge in group.gauges if gauge.group == "GL(2)"]
    assert {tuple(sorted(tensor for tensor, _, _ in gauge.legs)) for gauge in found} == pairs
    assert all(gauge.dimension == 4 for gauge in found)


def test_what_is_found_at_zero_is_a_symmetry_elsewhere(group, batches):
    verdict = group.verify(adapted(zero=False), ddc.huggingface.loss_fn(batches))
    assert verdict.passed
    assert verdict.residual < 1e-12


@pytest.mark.parametrize("zero", [True, False])
def test_two_factorings_of_one_adapter_train_alike(group, batches, zero):
    model = adapted(zero)
    moved = group.random_element(seed=1).apply_(deepcopy(model))

    def both(make):
        return (train(deepcopy(copy), make, batches[:15]) for copy in (model, moved))

    lr = 1e-2
    assert gap(*both(lambda m: ddc.DDCAdam(m.named_parameters(), symmetries=group, lr=lr))) < 1e-9
    assert gap(*both(lambda m: torch.optim.AdamW(m.parameters(), lr=lr))) > 1e-3
