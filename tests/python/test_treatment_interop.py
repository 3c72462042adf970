"""Every treatment from Python and from C++ by the same name: the same weights, bit for bit.

Needs the `treatment_tool` of the C++ build, at $DDC_BUILD_DIR/tests/treatment_tool; the default build
directory is build/release under the root of the repository.
"""

import os
import subprocess
from pathlib import Path

import ddc
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_treatments import VALUES, block, block_loss

ROOT = Path(__file__).resolve().parents[2]
TOOL = (
    Path(os.environ.get("DDC_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "treatment_tool"
)
STEPS = 4

CASES = [("DDCAdam", name, value) for name, values in VALUES.items() for value in values]
CASES += [(rule, "coordinates", "standard") for rule in ("DDCSgd", "DDCShampoo", "DDCSoap")]


@pytest.fixture(scope="module")
def symmetries() -> ddc.SymmetryGroup:
    return ddc.discover(block(), block_loss, head_sizes=[4])


@pytest.mark.parametrize(("rule", "option", "value"), CASES)
def test_a_treatment_gives_the_same_weights_in_both_languages(
    tmp_path, symmetries, rule, option, value
):
    model = block()
    symmetries.save(tmp_path / "symmetries.json")
    tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    optimizer = getattr(ddc, rule)(
        model.named_parameters(), symmetries=symmetries, **{option: value}
    )
    for step in range(STEPS):
        torch.manual_seed(step)
        model.zero_grad()
        block_loss(model).backward()
        for name, parameter in model.named_parameters():
            # The order in memory decides the last bit of sums, and a file does not keep it.
            parameter.grad = parameter.grad.contiguous()
            tensors[f"{step}/{name}"] = parameter.grad.clone()
        optimizer.step()
    save_file(tensors, tmp_path / "in.safetensors")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    subprocess.run(
        [TOOL, tmp_path / "symmetries.json", tmp_path / "in.safetensors",
         tmp_path / "out.safetensors", rule, f"{option}={text}"],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    theirs = load_file(tmp_path / "out.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), theirs[name]), name
