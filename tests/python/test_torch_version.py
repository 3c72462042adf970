"""The extension is refused with a torch that it was not built with, in words that help."""

import subprocess
import sys

import pytest
import torch

BUILT_WITH = torch.__version__.split("+")[0]
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."


def import_ddc(preparation=""):
    """What `import ddc` raises in a process of its own, and nothing if it succeeds."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, torch\n{preparation}\n"
            "try:\n    import ddc\nexcept ImportError as error:\n    print(error)",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("build", ["", "+cpu", "+cu130"])
def test_the_torch_it_was_built_with(build):
    assert import_ddc(f"torch.__version__ = '{BUILT_WITH}{build}'") == ""


@pytest.mark.parametrize("other", ["2.9.1", "2.9.1+cpu", f"{BUILT_WITH}.1", f"{BUILT_WITH}a0+git1"])
def test_another_torch(other):
    message = import_ddc(f"torch.__version__ = '{other}'")
    assert f"cannot be used with torch {other}: it was built with torch {BUILT_WITH}." in message
    assert REBUILD in message


def test_an_extension_that_cannot_be_loaded():
    # What is missing in a torch of another version shows before the extension can say its own.
    message = import_ddc("sys.modules['ddc._C'] = None")
    assert f"cannot be used with torch {torch.__version__}" in message
    assert REBUILD in message
