"""Model families as they are shipped: their symmetries, and training that is blind to them."""

import copy
import pathlib
import pickle
import sys
from dataclasses import replace

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "python"))

import ddc  # noqa: E402
import families  # noqa: E402
from ddc._precision import Float64  # noqa: E402
from families_support import group_of, model_of  # noqa: E402


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_a_family_trains_the_same_wherever_on_its_orbit_it_starts(family: families.Family) -> None:
    model, group = model_of(family.name), group_of(family.name)

    assert families.found(group) == family.expected
    assert group.residual <= group.tolerance < 1e-11

    loss = families.in_float64(family.loss)
    difference = {
        name: families.difference_of_copies(model, loss, group, optimizer)
        for name, optimizer in families.optimizers(group).items()
    }
    assert max(difference[name] for name in ("DDCAdam", "DDCMuon", "held")) <= 1e-9, difference
    assert difference["AdamW"] > 1e-3

    parameters = sum(tensor.numel() for tensor in model.parameters())
    row = f"| {family.name} | {parameters} | {len(group.gauges)} | {group.dimension} |"
    assert row in (ROOT / "docs" / "reference" / "families.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize("family", families.MORE, ids=lambda family: family.name)
def test_more_families_have_what_the_table_says(family: families.Family) -> None:
    model = families.build(family)
    group = ddc.discover(model, family.loss)

    assert families.found(group) == family.expected
    assert group.residual <= group.tolerance < 1e-11
    difference = {
        name: families.difference_of_copies(
            model, families.in_float64(family.loss), group, families.optimizers(group)[name]
        )
        for name in ("DDCAdam", "DDCMuon", "held")
    }
    assert max(difference.values()) <= 1e-9, difference
    parameters = sum(tensor.numel() for tensor in model.parameters())
    row = f"| {family.name} | {parameters} | {len(group.gauges)} | {group.dimension} |"
    assert row in (ROOT / "docs" / "reference" / "families.md").read_text()


def test_notes_are_broken_into_lines_and_read_back() -> None:
    known = ["A", "B", "C"]
    long = "- **B**: " + "some `words` of a note, " * 20 + "the end.\n"
    rows = {
        "A": ("| A | 1 |\n", ""),
        "B": ("| B | 2 |\n", long),
        "C": ("| C | 3 |\n", "- **C**: 1.\n"),
    }
    text = families.table(rows, known)
    notes = text[text.index("- **B**") :].splitlines()
    assert len(notes) == 6
    assert max(map(len, notes)) <= 120
    assert families.read(text, known) == rows


def test_weights_as_small_as_usual_show_the_same_symmetries() -> None:
    llama = next(family for family in families.FAMILIES if family.name == "Llama")
    make = families.causal("Llama", **families.LLAMA | dict(initializer_range=0.02))
    model = families.build(replace(llama, make=make))

    assert families.found(ddc.discover(model, llama.loss)) == llama.expected


def test_whoever_asks_for_float32_gets_float64() -> None:
    third = torch.tensor([1.0, 2.0], dtype=torch.float64) / 3
    with Float64():
        asked = [
            third.float(),
            third.to(torch.float32),
            third.to("cpu", dtype=torch.float32),
            third.type(torch.float32),
            torch.zeros(2, dtype=torch.float32) + third,
        ]
        probabilities = torch.nn.functional.softmax(third, dim=-1, dtype=torch.float32)

    for answer in asked:
        assert answer.dtype == torch.float64
        assert torch.equal(answer, third)
    assert torch.equal(probabilities, third.softmax(-1))
    assert third.float().dtype == torch.float32


@pytest.mark.parametrize("make", [families.hf_vit, families.timm_vit], ids=["transformers", "timm"])
def test_a_group_of_a_vision_transformer_survives_files_and_copies(make, tmp_path) -> None:
    family = next(family for family in families.FAMILIES if family.make is make)
    model = families.build(family)
    group = ddc.discover(model, family.loss)
    # The class token, or a bias, is one row of a table: an axis in front of all others.
    assert any(axis == -1 for gauge in group.gauges for _, axis, _ in gauge.legs)

    group.save(tmp_path / "group.json")
    assert ddc.SymmetryGroup.load(tmp_path / "group.json", model) == group
    assert pickle.loads(pickle.dumps(group)) == group
    assert copy.deepcopy(group) == group
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=group)
    family.loss(model).backward()
    optimizer.step()
    twin_model, twin = copy.deepcopy((model, optimizer))
    for each, stepped in ((model, optimizer), (twin_model, twin)):
        each.zero_grad()
        torch.manual_seed(0)
        family.loss(each).backward()
        stepped.step()
    for ours, theirs in zip(model.parameters(), twin_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
