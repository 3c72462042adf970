"""The command line tool `ddc` of the C++ build, at $DDC_BUILD_DIR/cli/ddc; the default build directory is
build/release under the root of the repository."""

import os
import signal
import subprocess
from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[3]
FAILURE, USAGE, INTERRUPTED = 1, 2, 130


def tool():
    path = Path(os.environ.get("DDC_BUILD_DIR", REPO_ROOT / "build" / "release")) / "cli" / "ddc"
    # Not a skip: a missing tool would leave the command line untested without a word.
    assert path.is_file(), f"{path} does not exist; build it or set DDC_BUILD_DIR"
    return path


def default_signals():
    """For `preexec_fn`: the tool ignores signals that its parent ignores, as nohup and "&" in scripts do."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


def ddc(*arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [tool(), *map(str, arguments)]
    return subprocess.run(command, text=True, timeout=600, check=False, **options)
