"""Files that earlier versions wrote, of the network of optim_support (`data`, by write_versions.py)."""

import json
import shutil
import subprocess
from pathlib import Path

import ddc
import pytest
import torch
from optim_support import group, network
from write_versions import BUILD, OPTIMIZERS, made, train

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


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "hold"])
def test_a_state_dict_of_0_2_0_is_loaded_and_training_goes_on_as_it_did(kind):
    old = saved(kind, "0.2.0")
    model = network()
    optimizer = made(kind, model)
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


def test_an_element_of_0_2_0_is_read_and_does_what_it_did():
    element = ddc.Element.load(DATA / "element_0.2.0.pt", group())
    model = network()
    group().random_element(1, 0.5).apply_(model)
    placed = group().canonicalize_(model)
    for (name, part), (own_name, own) in zip(element.parts, placed.parts, strict=True):
        assert name == own_name
        torch.testing.assert_close(part, own, rtol=1e-9, atol=1e-11)


def test_an_element_of_a_later_version_is_refused_by_its_number(tmp_path):
    written = torch.load(DATA / "element_0.2.0.pt", weights_only=True)
    for change, message in (
        ({"format": "ddc element 2"}, "in format 2, this version of ddc reads format 1"),
        ({"format": "ddc elephant 1"}, "is no file of an element"),
        ({"format": 1}, "is no file of an element"),
    ):
        torch.save({**written, **change}, tmp_path / "element.pt")
        with pytest.raises(ValueError, match=message):
            ddc.Element.load(tmp_path / "element.pt", group())
    del written["parts"]
    torch.save(written, tmp_path / "element.pt")
    with pytest.raises(ValueError, match="an element without its 'parts'"):
        ddc.Element.load(tmp_path / "element.pt", group())


def test_a_checkpoint_of_the_library_of_0_2_0_is_gone_on_with():
    def tool(*arguments: object) -> dict:
        command = [BUILD / "tests" / "resume_tool", "default", *map(str, arguments)]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    path = DATA / "checkpoint_0.2.0.safetensors"
    assert tool("load", path)["step"] == 3
    assert tool("load", path, "train", 2)["step"] == 5


def test_a_run_of_0_2_0_is_gone_on_with(tmp_path):
    folder = shutil.copytree(DATA / "run_0.2.0", tmp_path / "run")
    before = (folder / "metrics.jsonl").read_text()
    command = [BUILD / "cli" / "ddc", "run", "--resume", folder, "--steps", "8", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    after = (folder / "metrics.jsonl").read_text()
    assert after.startswith(before)
    assert [json.loads(line)["step"] for line in after.splitlines()][-1] == 8
