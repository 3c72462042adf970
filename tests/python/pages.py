"""Pages of the documentation as programs: their code is run, and what it prints is compared.

A block of Python runs in the names of the blocks before it, in a folder of the page's own; a block with a
title is written to a file of that name there. A block of sh is commands; those that install something are
not run. A block of text right after either is what was printed.

    python tests/python/pages.py docs/tutorials/train.md ...   # writes what is printed into the pages
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^```(\w*)(?: title=\"(.*?)\")?\n(.*?)^```\n(\n```text\n(.*?)^```\n)?", re.M | re.S
)


class Ran(NamedTuple):
    """A block of a page: its code, what the page shows as printed, what was printed, and where it goes."""

    code: str
    shown: str | None
    printed: str
    span: tuple[int, int]


def run(page: Path, folder: Path) -> Iterator[Ran]:
    """Run the blocks of a page one after the other, in a folder."""
    text = page.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in FENCE.finditer(text):
        language, title, code, _, shown = block.groups()
        if title:
            (folder / title).write_text(code)
            continue
        if language == "python":
            printed = run_python(code, f"{page.relative_to(ROOT)}", names)
        elif language == "sh":
            printed = "".join(run_command(line, folder) for line in commands(code))
        else:
            continue
        yield Ran(code, shown, printed, block.span(5))


def run_python(code: str, name: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), names)
    return out.getvalue()


def commands(code: str) -> list[str]:
    lines = code.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.split("#")[0].strip() and line.split()[0] != "pip"]


def run_command(line: str, folder: Path) -> str:
    """Run a line of a shell with this Python, and the tools beside it, in front of all others."""
    words = shlex.split(line, comments=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def alike(shown: str, printed: str) -> bool:
    """The same words, and the same numbers but for last digits, rounding and what is divided by it."""
    varies = re.compile(r"\bgap \S+|\btook \S+ ms each, \S+ %")
    shown, printed = (varies.sub("", text) for text in (shown, printed))
    pairs = [(a.split(), b.split()) for a, b in zip(lines(shown), lines(printed), strict=False)]
    return len(lines(shown)) == len(lines(printed)) and all(
        len(a) == len(b) and all(map(same, a, b)) for a, b in pairs
    )


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip(" -")]


NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+")


def same(a: str, b: str) -> bool:
    first, second = NUMBER.findall(a), NUMBER.findall(b)
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    for x, y in ((float(x), float(y)) for x, y in zip(first, second, strict=True)):
        rounding = max(abs(x), abs(y)) < 1e-6
        if not rounding and abs(x - y) > 0.05 * max(abs(x), abs(y)):
            return False
    return True


def main(pages: list[str]) -> None:
    for page in (Path(name).resolve() for name in pages):
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            ran = list(run(page, Path(folder)))
        for block in reversed(ran):
            if block.shown is not None:
                start, end = block.span
                printed = "\n".join(line.rstrip() for line in block.printed.splitlines())
                text = text[:start] + printed + "\n" + text[end:]
            elif block.printed:
                print(f"{page.name}: printed and not shown:\n{block.printed}")
        page.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
