"""Model families as they are shipped: all symmetries found, and training that does not depend on them."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "python"))

pytest.importorskip("transformers")
import ddc  # noqa: E402
import families  # noqa: E402


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_a_family_trains_the_same_wherever_on_its_orbit_it_starts(family: families.Family) -> None:
    model = families.build(family)
    group = ddc.discover(model, family.loss)

    assert families.found(group) == family.expected
    assert group.residual <= group.tolerance < 1e-11

    loss = families.in_float64(family.loss)
    difference = {
        name: families.difference_of_copies(model, loss, group, optimizer)
        for name, optimizer in families.optimizers(group).items()
    }
    assert difference["DDCAdam"] < 1e-9
    assert difference["DDCMuon"] < 1e-9
    assert difference["AdamW"] > 1e-3

    parameters = sum(tensor.numel() for tensor in model.parameters())
    row = f"| {family.name} | {parameters} | {len(group.gauges)} | {group.dimension} |"
    assert row in (ROOT / "docs" / "families.md").read_text()
