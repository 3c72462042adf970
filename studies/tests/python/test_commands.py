"""The commands of the tool `ddc` that README, CONTRIBUTING and docs show."""

import os
import re
import subprocess

import pytest
from cli_support import REPO_ROOT, ddc, tool
from test_docs import PAGES, commands, named, shell

# Lines that build or install are checked by tests/python/test_docs.py.
OTHERS = ("make", "export", "source", "pip", "python", "cmake", "torch=$($DDC/.venv/bin/python")
PROGRAMS = [page for page in PAGES if any(words[0] == "ddc" for words in shell(page))]


def test_commands_have_the_options_that_are_shown():
    helps: dict[str, str] = {}
    seen = 0
    for page in PAGES:
        for words in commands(page):
            if words[0] != "ddc":
                continue
            command = words[1]
            if command not in helps:
                shown = ddc(command, "--help")
                assert shown.returncode == 0, words
                helps[command] = shown.stdout
            for word in words[2:]:
                if word.startswith("--"):
                    seen += 1
                    assert re.search(rf"{word.split('=')[0]}\b", helps[command]), words
    assert seen > 5


def test_there_are_pages_with_commands():
    assert [page.stem for page in PROGRAMS] == ["discovery", "geometry", "experiments"]


@pytest.mark.parametrize("page", PROGRAMS, ids=named)
def test_the_commands_of_a_page_run(page, tmp_path):
    """One after the other, in one folder: runs with two steps, experiments without their runs."""
    (tmp_path / "docs").symlink_to(REPO_ROOT / "docs")
    env = {**os.environ, "PATH": f"{tool().parent}{os.pathsep}{os.environ['PATH']}"}
    for words in shell(page):
        if words[0] in OTHERS:
            continue
        ran = subprocess.run(
            short(words), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
        )
        assert ran.returncode == 0, f"{words}\n{ran.stdout}{ran.stderr}"
        assert ran.stdout or words[0] != "ddc", words


def test_commands_that_list_something_run():
    lists = {
        tuple(words) for page in PAGES for words in commands(page) if words[:2] == ["ddc", "list"]
    }
    ran = [ddc(*words[1:]) for words in lists if not any(word.isupper() for word in words)]
    assert len(ran) > 2
    assert all(each.returncode == 0 and each.stdout for each in ran)


def short(words: list[str]) -> list[str]:
    if words[:2] == ["ddc", "run"]:
        kept = list(words)
        if "--steps" in kept:
            at = kept.index("--steps")
            del kept[at : at + 2]
        return [*kept, "--steps", "2"]
    if words[:2] == ["ddc", "experiment"]:
        return [*words, "--evaluate"]
    return words
