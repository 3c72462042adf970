"""Parts of scripts that are too long to be run: which Pythons they find, what they type, what they write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script, *arguments, **variables):
    return subprocess.run(
        [ROOT / "scripts" / script, *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_wheels_are_built_for_inactive_pythons_of_pyenv_too(tmp_path):
    there = tmp_path / "root/versions/3.98.1/bin/python3.98"
    program(tmp_path / "bin/pyenv", f"echo {tmp_path}/root")
    program(tmp_path / "bin/python3.98", "exit 127")  # a shim of a version that is not active
    program(there, f'exec {sys.executable} "$@"')
    path = f"{tmp_path}/bin:{os.environ['PATH']}"

    ran = run("wheelhouse.sh", "--list", PATH=path, PYTHONS="3.98 3.99")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"wheelhouse: 3.98: {there}", "wheelhouse: 3.99: not here"]


MAKES = {"python": "demo", "cpp": "library", "cli": "build"}


@pytest.mark.parametrize("name", MAKES)
def test_a_first_result_is_what_a_user_types_in_a_home_of_its_own(name, tmp_path):
    clone, home, bin_ = (tmp_path / part for part in ("clone", "home", "bin"))
    for tool in ("make", "cmake"):
        program(bin_ / tool, f'echo {tool} "$@" in $HOME, cache ${{CCACHE_DISABLE:-on}} >> typed')
    program(clone / ".venv/bin/python", "echo TORCH")
    program(clone / "out/consumer/consumer", "echo consumed")
    program(clone / "build/release/cli/ddc", 'echo ddc "$@"')
    home.mkdir()

    path = f"{bin_}:{os.environ['PATH']}"
    ran = run("first_result.sh", "--in-clone", name, clone, home, PATH=path, PYTHONPATH="/none")
    assert ran.returncode == 0, ran.stderr
    typed = (clone / "typed").read_text().splitlines()
    assert typed[0] == f"make {MAKES[name]} in {home}, cache 1"
    assert ran.stdout == {"python": "", "cpp": "consumed\n", "cli": "ddc audit ln_relu\n"}[name]
    if name == "cpp":
        assert f"-DCMAKE_PREFIX_PATH={clone}/out/ddc;TORCH" in typed[2]


@pytest.mark.parametrize("name", MAKES)
def test_a_path_that_fails_has_no_first_result(name, tmp_path):
    program(tmp_path / "bin/make", "exit 3")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    assert run("first_result.sh", "--in-clone", name, tmp_path, tmp_path, PATH=path).returncode == 3


def test_the_page_of_first_results():
    row = run("first_result.sh", "--row", "cli", "187", "exact").stdout
    assert row.endswith("| 3 min 07 s | `exact` |\n")
    page = run("first_result.sh", "--page", row.strip()).stdout
    assert page.startswith("# The first minutes\n") and row in page
    assert all(len(line) <= 120 for line in page.splitlines() if not line.startswith("|"))
    assert run("first_result.sh", "nothing").returncode == 2
