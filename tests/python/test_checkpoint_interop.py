"""A checkpoint that the library wrote, opened with the reference implementation of safetensors.

Needs the `resume_tool` of the C++ build, at $DDC_BUILD_DIR/tests/resume_tool; the default build
directory is build/release under the root of the repository.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

REPO_ROOT = Path(__file__).resolve().parents[2]

# Sizes of the network that the tool trains, a LayerNorm transformer of one layer.
VOCABULARY, SEQUENCE, D_MODEL, D_FF, HEADS = 11, 6, 16, 24, 4


def run_tool(*args):
    path = Path(os.environ.get("DDC_BUILD_DIR", REPO_ROOT / "build" / "release"))
    path = path / "tests" / "resume_tool"
    # Not a skip: a missing tool would leave the format untested without a word.
    assert path.is_file(), f"{path} does not exist; build the tests or set DDC_BUILD_DIR"
    result = subprocess.run([path, *args], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Checkpoint:
    def __init__(self, path, mode, steps):
        self.path = path
        self.printed = run_tool(mode, "train", str(steps), "save", path)
        self.tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            self.metadata = file.metadata()
        self.description = json.loads(self.metadata["ddc.optimizer"])

    def part(self, prefix):
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "run.safetensors"
    return Checkpoint(path, "polar,vertical-adam", steps=3)


def digest(tensor):
    """FNV-1a, as the tool computes it."""
    value = 0xCBF29CE484222325
    for byte in tensor.contiguous().reshape(-1).view(torch.uint8).tolist():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:x}"


def model_shapes():
    norms = ["layers.0.attention_norm", "layers.0.mlp_norm", "layers.0.squared_mlp_norm"]
    shapes = {
        "embedding.weight": (VOCABULARY, D_MODEL),
        "positions.weight": (SEQUENCE, D_MODEL),
        "unembedding.weight": (VOCABULARY, D_MODEL),
        "unembedding.bias": (VOCABULARY,),
    }
    for norm in [*norms, "final_norm"]:
        shapes |= {f"{norm}.weight": (D_MODEL,), f"{norm}.bias": (D_MODEL,)}
    for part in ("query", "key", "value", "output"):
        name = f"layers.0.attention.{part}"
        shapes |= {f"{name}.weight": (D_MODEL, D_MODEL), f"{name}.bias": (D_MODEL,)}
    for mlp in ("layers.0.mlp", "layers.0.squared_mlp"):
        shapes |= {f"{mlp}.up.weight": (D_FF, D_MODEL), f"{mlp}.up.bias": (D_FF,)}
        shapes |= {f"{mlp}.down.weight": (D_MODEL, D_FF), f"{mlp}.down.bias": (D_MODEL,)}
    return shapes


def test_every_tensor_has_the_value_that_it_had_in_cpp(checkpoint):
    printed = checkpoint.printed["tensors"]
    assert checkpoint.tensors.keys() == printed.keys()
    for name, tensor in checkpoint.tensors.items():
        assert digest(tensor) == printed[name], name


def test_the_model_is_there_under_its_names(checkpoint):
    model = checkpoint.part("model/")
    assert {name: tuple(tensor.shape) for name, tensor in model.items()} == model_shapes()
    assert {tensor.dtype for tensor in model.values()} == {torch.float32}


def test_every_parameter_has_moments_and_a_step(checkpoint):
    state = checkpoint.part("optimizer/param.")
    shapes = model_shapes()
    expected = {f"{name}.{field}" for name in shapes for field in ("exp_avg", "exp_avg_sq", "step")}
    assert state.keys() == expected
    for name, shape in shapes.items():
        for field in ("exp_avg", "exp_avg_sq"):
            assert tuple(state[f"{name}.{field}"].shape) == shape
            assert state[f"{name}.{field}"].dtype == torch.float32
        assert state[f"{name}.exp_avg_sq"].min() >= 0
        assert state[f"{name}.step"].dtype == torch.int64
        assert state[f"{name}.step"].item() == 3


def test_every_gauge_has_its_place_on_the_orbit(checkpoint):
    gauges = [each["gauge"] for each in checkpoint.description["symmetries"]["gauges"]]
    assert len({gauge["name"] for gauge in gauges}) == len(gauges) > 10
    found = {"rng/cpu"}
    for gauge in gauges:
        state = checkpoint.part(f"optimizer/gauge.{gauge['name']}.")
        flags = {"bound", "known"}
        numbers = {"held", "vertical.first", "vertical.second"}
        if gauge["action"] == "scale":
            numbers |= {"log_unit", "target"}
            assert all(tuple(state[field].shape) == (gauge["channels"],) for field in numbers)
        assert state.keys() == flags | numbers | {"vertical.step"}
        for field in flags:
            assert state[field].dtype == torch.bool
            assert tuple(state[field].shape) == (gauge["channels"],)
        for field in numbers:
            assert state[field].dtype == torch.float64
        assert state["vertical.step"].item() == 3
        found |= {f"optimizer/gauge.{gauge['name']}.{field}" for field in state}
    prefixes = {name.split(".")[0] for name in checkpoint.tensors.keys() - found}
    assert {prefix.split("/")[0] for prefix in prefixes} == {"model", "optimizer"}
    assert {p for p in prefixes if p.startswith("optimizer/")} == {
        "optimizer/param",
        "optimizer/radial",
    }


def test_the_state_of_the_generator_is_there(checkpoint):
    state = checkpoint.tensors["rng/cpu"]
    assert state.dtype == torch.uint8
    # The same format as Python's: torch can go on drawing where the C++ program stopped.
    generator = torch.Generator()
    generator.set_state(state)
    torch.randn(3, generator=generator)


def test_the_metadata_says_what_the_file_is(checkpoint):
    assert checkpoint.metadata.keys() == {"ddc.format", "ddc.optimizer", "note.step"}
    assert checkpoint.metadata["ddc.format"] == "checkpoint-1"
    assert checkpoint.metadata["note.step"] == "3"


def test_the_description_names_groups_options_and_gauges(checkpoint):
    description = checkpoint.description
    assert description["optimizer"] == "DDCAdam"
    assert description["version"] == 2
    embeddings, matrices, vectors = description["groups"]
    shapes = model_shapes()
    names = [name for group in description["groups"] for name in group["params"]]
    assert sorted(names) == sorted(shapes)
    assert embeddings["params"] == ["embedding.weight", "positions.weight"]
    assert all(len(shapes[name]) == 2 for name in matrices["params"])
    assert all(len(shapes[name]) == 1 for name in vectors["params"])
    assert embeddings["options"]["beta1"] == 0.8
    assert matrices["options"]["beta1"] == 0.9
    assert matrices["options"]["weight_decay"] == 0.1
    assert vectors["options"]["weight_decay"] == 0
    rates = [group["options"]["lr"] for group in description["groups"]]
    assert rates == checkpoint.printed["lr"]

    by_name = {each["gauge"]["name"]: each for each in description["symmetries"]["gauges"]}
    each = by_name["layers.0.attention.query.weight:qk_scale"]
    qk, treatment = each["gauge"], each["treatment"]
    assert treatment["coordinates"] == "polar"
    assert treatment["vertical"] == "adam"
    assert qk["channels"] == HEADS
    assert [(leg["tensor"], leg["axis"], leg["exponent"]) for leg in qk["legs"]] == [
        ("layers.0.attention.query.weight", 0, 1),
        ("layers.0.attention.query.bias", 0, 1),
        ("layers.0.attention.key.weight", 0, -1),
        ("layers.0.attention.key.bias", 0, -1),
    ]
    heads = [head for head in range(HEADS) for _ in range(D_MODEL // HEADS)]
    channels = qk["legs"][0]["channel_of"]
    if isinstance(channels, dict):  # [first, step, count] for each run
        channels = [f + k * s for f, s, count in channels["runs"] for k in range(count)]
    assert channels == heads


def test_a_file_that_python_wrote_again_is_resumed(checkpoint, tmp_path):
    rewritten = tmp_path / "rewritten.safetensors"
    save_file(checkpoint.tensors, rewritten, metadata=checkpoint.metadata)
    mode = "polar,vertical-adam"
    assert run_tool(mode, "load", rewritten, "train", "2") == run_tool(
        mode, "load", checkpoint.path, "train", "2"
    )
