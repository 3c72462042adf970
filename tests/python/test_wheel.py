"""The wheel that `make python` built, in a fresh virtual environment."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TORCH = torch.__version__.split("+")[0]

USE = """
import sys
import torch
import ddc
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
def loss(model):
    return model(torch.randn(16, 3)).square().mean()
optimizer = ddc.DDCAdam.from_model(model, loss, lr=1e-2)
loss(model).backward()
optimizer.step()
print(ddc.__file__)
print(optimizer.symmetries.dimension)
"""


@pytest.fixture(scope="module")
def wheel():
    wheels = list((ROOT / "dist").glob("ddc-*.whl"))
    assert len(wheels) == 1, "make python builds it"
    return wheels[0]


def run(*command, timeout=600, **options):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("with_torch", [pytest.param(True, marks=pytest.mark.long), False])
def test_installs_into_a_fresh_environment_and_works(wheel, tmp_path, with_torch):
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(environment))
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", str(wheel)]
    if with_torch:
        # The wheel goes with any torch from 2.10 on by what it says, and with this one by what it is.
        run(*install, f"torch=={TORCH}")
    else:
        run(*install, "--no-deps")
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "torch_of_the_tests.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    where, dimension = run(str(python), "-c", USE, cwd=tmp_path).split()
    assert where.startswith(str(environment))
    assert dimension == "5"
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))\n"
        "    return model, lambda model: model(torch.randn(8, 2)).square().mean()\n"
    )
    table = run(str(python), "-m", "ddc", "audit", "mine:make", cwd=tmp_path)
    assert "relu rescale" in table


def test_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"ddc", next(name for name in top if name.endswith(".dist-info"))}
    assert "ddc/py.typed" in names
    assert "ddc/_C.pyi" in names
    assert sum(name.endswith(".so") for name in names) == 1


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, str(folder), cwd=ROOT)
    (archive,) = folder.glob("ddc-*.tar.gz")
    return archive


def test_sources_have_what_a_build_reads_and_nothing_else(sources):
    with tarfile.open(sources) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"} < set(names)
    folders = {name.split("/")[0] for name in names if "/" in name}
    assert folders == {"cmake", "include", "python", "src"}


@pytest.mark.long
def test_sources_build_by_themselves(sources, tmp_path):
    """Without the extension that `make python` packs: the library is compiled."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    run(*command, "-w", str(tmp_path), str(sources), timeout=3600)
    (wheel,) = tmp_path.glob("ddc-*.whl")
    assert sum(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist()) == 1


def test_importing_ddc_imports_nothing_heavy():
    modules = run(
        sys.executable,
        "-c",
        "import torch, sys; before = set(sys.modules); import ddc; print(*set(sys.modules) - before)",
    ).split()
    others = {name for name in modules if name.split(".")[0] != "ddc"}
    assert not {name.split(".")[0] for name in others} & {"transformers", "numpy", "peft", "scipy"}
