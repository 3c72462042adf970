"""Our C++ safetensors reader and writer against the reference implementation in Python.

Needs the `safetensors_tool` of the C++ build, at $DDC_BUILD_DIR/tests/safetensors_tool; the default
build directory is build/release under the root of the repository.
"""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

REPO_ROOT = Path(__file__).resolve().parents[2]

# The names of torch's dtypes in C++.
CPP_DTYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}


@pytest.fixture(scope="session")
def tool():
    path = Path(os.environ.get("DDC_BUILD_DIR", REPO_ROOT / "build" / "release"))
    path = path / "tests" / "safetensors_tool"
    # Not a skip: a missing tool would leave the format untested without a word.
    assert path.is_file(), f"{path} does not exist; build the tests or set DDC_BUILD_DIR"

    def run(*args):
        return subprocess.run([path, *args], capture_output=True, text=True, timeout=60)

    return run


def read_with_tool(tool, path):
    result = tool("read", path)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def raw_bytes(tensor):
    # Through uint8, because numpy has no bfloat16.
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_bitwise_equal(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert raw_bytes(actual) == raw_bytes(expected)


def known_tensors():
    """What `safetensors_tool write` saves."""
    return {
        "bool": torch.tensor([True, False, True]),
        "f64": torch.arange(6, dtype=torch.float64).view(2, 3) / 4,
        "i8": torch.arange(-2, 3, dtype=torch.int8),
        "f32": torch.tensor([-0.0, 1.5, math.inf, math.nan, 1e-40]),
        "f16": torch.tensor([0.5, -2.0, 65504.0], dtype=torch.float16),
        "bf16": torch.tensor([0.5, -2.0, 3.0e38], dtype=torch.bfloat16),
        "u8": torch.tensor([0, 127, 255], dtype=torch.uint8),
        "i64": torch.tensor([-(2**63), -1, 2**63 - 1]),
        "i32": torch.arange(4, dtype=torch.int32).view(1, 2, 2, 1),
        "i16": torch.tensor([-32768, 32767], dtype=torch.int16),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "transposed": torch.arange(6, dtype=torch.int32).view(2, 3).t(),
        '層 "quoted"': torch.ones(1),
    }


KNOWN_METADATA = {"format": "pt", "note": 'a "quote", a \\, a\nline and ünïcode'}


def test_python_reads_what_cpp_wrote(tool, tmp_path):
    path = tmp_path / "cpp.safetensors"
    result = tool("write", path)
    assert result.returncode == 0, result.stderr

    loaded = load_file(path)
    expected = known_tensors()
    assert loaded.keys() == expected.keys()
    for name in expected:
        assert_bitwise_equal(loaded[name], expected[name])
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == KNOWN_METADATA


def test_python_numpy_reads_what_cpp_wrote(tool, tmp_path):
    path = tmp_path / "cpp.safetensors"
    assert tool("write", path).returncode == 0
    expected = known_tensors()
    with safe_open(path, framework="numpy") as file:
        for name in expected.keys() - {"bf16"}:
            array = file.get_tensor(name)
            assert array.shape == tuple(expected[name].shape)
            assert array.tobytes() == raw_bytes(expected[name])


def test_cpp_reads_what_python_wrote(tool, tmp_path):
    path = tmp_path / "python.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in known_tensors().items()}
    save_file(tensors, path, metadata=KNOWN_METADATA)

    loaded = read_with_tool(tool, path)
    assert loaded["metadata"] == KNOWN_METADATA
    assert sorted(entry["name"] for entry in loaded["tensors"]) == sorted(tensors)
    for entry in loaded["tensors"]:
        expected = tensors[entry["name"]]
        assert entry["dtype"] == CPP_DTYPES[expected.dtype]
        assert entry["shape"] == list(expected.shape)
        assert bytes.fromhex(entry["data"]) == raw_bytes(expected)


def test_random_bits_of_every_dtype_go_from_python_to_cpp(tool, tmp_path):
    path = tmp_path / "random.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for dtype, name in CPP_DTYPES.items():
        high = 2 if dtype == torch.bool else 256
        bits = torch.randint(high, (7, 16), dtype=torch.uint8, generator=generator)
        tensors[name] = bits.view(dtype)
    save_file(tensors, path)

    for entry in read_with_tool(tool, path)["tensors"]:
        assert entry["dtype"] == entry["name"]
        assert bytes.fromhex(entry["data"]) == raw_bytes(tensors[entry["name"]])


def test_a_python_file_without_tensors_and_metadata_is_read(tool, tmp_path):
    path = tmp_path / "empty.safetensors"
    save_file({}, path)
    assert read_with_tool(tool, path) == {"metadata": {}, "tensors": []}


@pytest.mark.parametrize("legacy", [False, True])
def test_cpp_rejects_a_pt_file_by_name(tool, tmp_path, legacy):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=not legacy)
    result = tool("read", path)
    assert result.returncode == 1
    assert str(path) in result.stderr
    assert "not a safetensors file" in result.stderr
    assert ("pickle" if legacy else "zip") in result.stderr


def test_cpp_rejects_a_dtype_it_does_not_know(tool, tmp_path):
    path = tmp_path / "float8.safetensors"
    save_file({"w": torch.ones(4).to(torch.float8_e4m3fn)}, path)
    result = tool("read", path)
    assert result.returncode == 1
    assert '"w"' in result.stderr and "F8_E4M3" in result.stderr


def test_both_reject_every_truncation(tool, tmp_path):
    path = tmp_path / "whole.safetensors"
    save_file({"w": torch.arange(5)}, path)
    whole = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in (0, 7, 8, 9, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(SafetensorError):
            load_file(cut)
        result = tool("read", cut)
        assert result.returncode == 1
        assert str(cut) in result.stderr
