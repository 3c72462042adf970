"""What README, CONTRIBUTING and docs say can be done: links, targets of make, commands, code."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from ddc.__main__ import _parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def blocks(page: Path, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
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


# ---- C++ ------------------------------------------------------------------------------------------


def compiled_sources() -> str:
    """All that the build compiles and the tests run, without indentation."""
    files = [*(ROOT / "tests").rglob("*.cpp"), *(ROOT / "examples").glob("*.cpp")]
    files += [*(ROOT / "tests/consumer").glob("CMakeLists.txt")]
    return "\n".join(flat(file.read_text()) for file in files)


def flat(code: str) -> str:
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.is_relative_to(ROOT / "docs")], ids=named
)
def test_code_in_cpp_is_that_of_a_file_that_is_compiled(page):
    text = page.read_text()
    fences = re.findall(r"^```(?:cpp|cmake)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    sources = compiled_sources() if fences else ""
    for code in fences:
        assert flat(code) in sources, code


# ---- The site -------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation():
    class Loader(yaml.SafeLoader):
        pass

    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed: set[str] = set()

    def walk(entry):
        if isinstance(entry, str):
            listed.add(entry)
        else:
            for inside in entry.values() if isinstance(entry, dict) else entry:
                walk(inside)

    walk(config["nav"])
    pages_there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert pages_there | {"reference/headers/index.md"} == listed


@every_page
def test_anchors_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
        if "://" not in target:
            there = (page.parent / target if target else page).read_text()
            headings = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
            assert anchor in slugs, (target, anchor)


def test_the_public_surface_stays_small():
    assert len(list((ROOT / "include" / "ddc").rglob("*.h"))) <= 40


def test_the_readme_is_one_screen_to_a_decision():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    script = blocks(ROOT / "README.md", "python")[0]
    assert len(script.splitlines()) <= 12
