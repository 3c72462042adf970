"""The code of the documentation runs, and prints what the pages say."""

import os
import re
import subprocess
import sys

import pages
import pytest
import torch
from test_docs import ROOT, blocks, named

# Pages that are programs of their own: all of their code runs, and prints what they say.
PROGRAMS = sorted([*(ROOT / "docs/tutorials").glob("*.md"), *(ROOT / "docs/howto").glob("*.md")])
PROGRAMS = [page for page in PROGRAMS if page.stem not in ("cpp", "experiments")]
PROGRAMS.append(ROOT / "README.md")
# Pages whose code is parts of a program, with what comes before them.
PARTS = [
    ROOT / "docs" / name for name in ("reference/python.md", "explanation/geometry.md", "paper.md")
]
BEFORE = """
import ddc, torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
params = list(model.named_parameters())
batches = [(torch.randn(24, 3).double(), torch.randint(3, (24,))) for _ in range(4)]
loader = batches

def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)

symmetries = ddc.discover(model, loss, batches=batches)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state, seed = torch.get_default_dtype(), torch.random.get_rng_state()
    yield tmp_path
    torch.set_default_dtype(state)
    torch.random.set_rng_state(seed)


@pytest.mark.parametrize("page", PROGRAMS, ids=named)
def test_a_page_prints_what_it_says(page, folder):
    shown = 0
    for block in pages.run(page, folder):
        if block.shown is None:
            assert block.printed == "", block.code
        else:
            shown += 1
            assert pages.alike(block.shown, block.printed), block.printed
    assert shown > 0


def test_the_commands_of_the_page_on_cpp_run(tmp_path):
    """In a clone that has its library: all but compiling, which the test `install.consumer` does."""
    page = ROOT / "docs" / "howto" / "cpp.md"
    clone, project = tmp_path / "clone", tmp_path / "project"
    (clone / "build").mkdir(parents=True)
    project.mkdir()
    build = os.environ.get("DDC_BUILD_DIR", ROOT / "build" / "release")
    (clone / "build" / "release").symlink_to(build)
    (clone / ".venv").symlink_to(sys.prefix)
    install, use = blocks(page, "sh")
    for title, code in re.findall(
        r'^```\w+ title="([^"\n]*)"\n(.*?)^```', page.read_text(), re.M | re.S
    ):
        (project / title).write_text(code)

    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    install = install.replace("make library\n", "")
    use = use[: use.index("cmake --build")]
    script = f"set -e; cd {clone}\n{install}\ncd {project}\n{use}"
    ran = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (clone / "out/ddc/include/ddc/version.h").is_file()
    assert (project / "build/CMakeCache.txt").is_file()


@pytest.mark.parametrize("page", PARTS, ids=named)
def test_the_code_of_a_page_runs(page, folder):
    names = {}
    pages.run_python(BEFORE, "before", names)
    ran = [pages.run_python(code, named(page), names) for code in blocks(page, "python")]
    assert ran


def test_numbers_are_compared():
    assert pages.alike("loss 0.123 of 5\n", "loss  0.124 of 5\n")
    assert pages.alike("residual 3e-16\n", "residual 8e-15\n")
    for other in ("loss 0.2 of 5", "loss 0.123 of 6", "cost 0.123 of 5", "loss 0.123", ""):
        assert not pages.alike("loss 0.123 of 5\n", other)
