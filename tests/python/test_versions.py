"""Files that earlier versions wrote, of the network of optim_support (`data`, by write_versions.py)."""

from pathlib import Path

import ddc
import pytest
import torch
from optim_support import group, network
from write_versions import OPTIMIZERS, train

DATA = Path(__file__).parent / "data"


def saved(kind: str, version: str = "0.1.0") -> dict:
    return torch.load(DATA / f"{kind}_{version}.pt", weights_only=True)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_symmetry_file_is_read(version):
    old = ddc.SymmetryGroup.load(DATA / f"symmetries_{version}.json", network())
    assert [g.gauge for g in old.gauges] == [g.gauge for g in group().gauges]


def test_a_symmetry_file_of_0_1_0_with_a_treatment_says_what_to_do(tmp_path):
    text = (DATA / "symmetries_0.1.0.json").read_text()
    changed = text.replace('"vertical": "frozen"', '"vertical": "adam"', 1)
    assert changed != text
    with pytest.raises(RuntimeError, match="vertical of its treatment.*take it out of the file"):
        ddc.SymmetryGroup.from_json(changed)


def test_a_state_dict_of_ddc_adam_0_1_0_is_loaded_and_training_goes_on_as_it_did():
    old = saved("ddc_adam")
    model = network()
    optimizer = ddc.DDCAdam(
        model.named_parameters(), symmetries=group(), lr=1e-2, placement="in_place"
    )
    model.load_state_dict(old["model"])
    optimizer.load_state_dict(old["optimizer"])
    train(model, optimizer, range(3, 6))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, old["later"][name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_dict_of_0_2_0_is_loaded_and_training_goes_on_as_it_did(kind):
    old = saved(kind, "0.2.0")
    model = network()
    optimizer = OPTIMIZERS[kind](model.named_parameters(), symmetries=group(), lr=1e-2)
    model.load_state_dict(old["model"])
    optimizer.load_state_dict(old["optimizer"])
    train(model, optimizer, range(3, 6))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, old["later"][name], rtol=1e-12, atol=1e-14)


def test_a_state_dict_of_0_1_0_needs_the_treatment_that_0_1_0_had():
    for treatment in ({}, {"coordinates": "standard", "placement": "in_place"}):
        optimizer = ddc.DDCAdam(network().named_parameters(), symmetries=group(), **treatment)
        with pytest.raises(ValueError, match='written by ddc 0.1.*with placement="in_place"'):
            optimizer.load_state_dict(saved("ddc_adam")["optimizer"])


def test_a_state_dict_of_ddc_muon_0_1_0_says_what_to_do():
    optimizer = ddc.DDCMuon(network().named_parameters(), symmetries=group())
    with pytest.raises(ValueError, match="DDCMuon of ddc 0.1.*start a new optimizer"):
        optimizer.load_state_dict(saved("ddc_muon")["optimizer"])
