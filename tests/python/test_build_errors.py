"""A build without the torch that the package is made for stops with a sentence."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def configure(folder, *definitions):
    result = subprocess.run(
        [
            "cmake",
            *("-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja", "-DDDC_BUILD_PYTHON=ON"),
            *(f"-DDDC_BUILD_{part}=OFF" for part in ("TESTBEDS", "EXAMPLES", "CLI", "TESTS")),
            *definitions,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode != 0
    return " ".join(result.stderr.split())


@pytest.fixture
def other_torch(tmp_path):
    """What CMake sees of a torch of another version."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "TorchConfig.cmake").write_text("add_library(torch INTERFACE)\n")
    (folder / "TorchConfigVersion.cmake").write_text(
        'set(PACKAGE_VERSION "2.12.1")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n'
    )
    return folder


def test_another_torch(tmp_path, other_torch):
    message = configure(tmp_path, f"-DTorch_DIR={other_torch}")
    assert "ddc's Python package is built for torch 2.13.0, found 2.12.1" in message
    assert "pip install torch==2.13.0" in message


def test_no_torch(tmp_path):
    message = configure(tmp_path, f"-DDDC_PYTHON={tmp_path}/nowhere")
    assert "install torch 2.13.0 into the Python" in message
