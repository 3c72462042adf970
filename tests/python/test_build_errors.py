"""A build without what it needs stops with a sentence, and a plain one needs little."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def configure(folder, *definitions):
    result = subprocess.run(
        [
            "cmake",
            *("-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja", "-DDDC_BUILD_PYTHON=ON"),
            *(f"-DDDC_{part}=OFF" for part in ("BUILD_EXAMPLES", "BUILD_TESTS", "STUDIES")),
            *definitions,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode != 0
    return " ".join(result.stderr.split())


def torch_of(folder, version):
    """What CMake sees of a torch of some version."""
    folder.mkdir()
    (folder / "TorchConfig.cmake").write_text("add_library(torch INTERFACE)\n")
    (folder / "TorchConfigVersion.cmake").write_text(
        f'set(PACKAGE_VERSION "{version}")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n'
    )
    return folder


@pytest.mark.parametrize("python", ["ON", "OFF"])
def test_a_torch_that_is_too_old(tmp_path, python):
    folder = torch_of(tmp_path / "torch", "2.9.1")
    message = configure(tmp_path, f"-DTorch_DIR={folder}", f"-DDDC_BUILD_PYTHON={python}")
    assert f"ddc needs torch 2.10 or newer, found 2.9.1 in {folder}" in message
    assert "pip install --upgrade 'torch>=2.10'" in message


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0", "3.0.0"])
def test_a_torch_that_is_new_enough(tmp_path, version):
    folder = torch_of(tmp_path / "torch", version)  # has no libraries, at which the extension stops
    message = configure(tmp_path, f"-DTorch_DIR={folder}")
    assert "ddc needs torch" not in message
    assert "DDC_TORCH_PYTHON" in message


def test_a_torch_with_cuda_does_not_ask_for_nvcc(tmp_path):
    folder = torch_of(tmp_path / "torch", "2.15.0")
    guard = "if(NOT TARGET torch::cudart)\n  message(FATAL_ERROR [[cannot find CUDA]])\nendif()\n"
    config = folder / "TorchConfig.cmake"
    config.write_text(guard + config.read_text())  # as torch's own file does when it has CUDA
    assert "cannot find CUDA" not in configure(tmp_path, f"-DTorch_DIR={folder}")


def test_no_torch(tmp_path):
    message = configure(tmp_path, f"-DDDC_PYTHON={tmp_path}/nowhere")
    assert "install torch 2.10 or newer into the Python" in message


def test_a_plain_build_needs_nothing_of_the_studies(tmp_path):
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja"]
    here = [f"-DDDC_PYTHON={sys.executable}", "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"]

    plain = subprocess.run([*command, *here], capture_output=True, text=True, timeout=300)
    assert plain.returncode == 0, plain.stderr
    assert "cli/ddc" not in (tmp_path / "build.ninja").read_text()

    studies = [*command, *here, "-DDDC_STUDIES=ON"]
    with_studies = subprocess.run(studies, capture_output=True, text=True, timeout=300)
    assert with_studies.returncode != 0
    assert "CLI11" in with_studies.stderr
