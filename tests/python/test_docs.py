"""What README, CONTRIBUTING and docs say can be done: links, targets of make, commands, code."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from ddc.__main__ import _parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def commands(page: Path) -> list[list[str]]:
    """Lines of blocks without a language, and what stands in the text as `make X`, as words."""
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    lines += re.findall(r"`((?:make|build/release/cli/ddc|python -m ddc) [^`]+)`", page.read_text())
    result = []
    for line in lines:
        if re.match(r"(make|build/release/cli/ddc|python -m ddc|python|scripts/)", line):
            result.append(shlex.split(line, comments=True))
    return result


@every_page
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@every_page
def test_code_in_python_is_python(page):
    for code in blocks(page, "python"):
        ast.parse(code)


def test_targets_of_make_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [words for page in PAGES for words in commands(page) if words[0] == "make"]
    assert len(named) > 10
    for words in named:
        assert words[1] in targets, words


def test_scripts_that_are_named_are_there():
    for page in PAGES:
        for words in commands(page):
            for word in words[:2]:
                if re.match(r"(scripts|benchmarks|examples)/", word):
                    assert (ROOT / word).is_file(), words


def test_commands_in_python_are_parsed():
    seen = 0
    for page in PAGES:
        for words in commands(page):
            if words[:3] == ["python", "-m", "ddc"]:
                seen += 1
                _parser().parse_args([re.sub(r"[\[\]]", "", word) for word in words[3:]])
    assert seen > 1


def test_the_public_surface_stays_small():
    assert len(list((ROOT / "include" / "ddc").rglob("*.h"))) <= 40
