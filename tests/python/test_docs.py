"""What README, CONTRIBUTING and docs say can be done: links, targets of make, commands, code."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from ddc.__main__ import _parser

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def blocks(page: Path, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def shell(page: Path) -> list[list[str]]:
    """Commands in the shell blocks of a page, as words."""
    code = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [part for line in code.splitlines() for part in line.split(" && ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def commands(page: Path) -> list[list[str]]:
    """Commands in the shell blocks of a page, and those that stand in its text, as words."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    inline = re.findall(r"`((?:make|ddc|python -m ddc) [^`]+)`", text)
    return shell(page) + [shlex.split(part) for line in inline for part in line.split(" && ")]


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
            # `python -m ddc audit` alone is a name, in a sentence.
            if words[:3] == ["python", "-m", "ddc"] and len(words) > 4:
                seen += 1
                _parser().parse_args([re.sub(r"[\[\]]", "", word) for word in words[3:]])
    assert seen > 1


@every_page
def test_every_block_has_a_language(page):
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert all(fences[::2]), "a block without a language"
    assert not any(fences[1::2])


def check(words: list[str], page: Path) -> None:
    """Fail unless this line of a shell is run by a test, or can be seen to work."""
    text = page.read_text()
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["ddc", command, *_]:  # its options, and quick ones as a whole: studies/tests/python
            assert (ROOT / "studies" / "cli" / f"{command}.cpp").is_file()
        case ["python", "-m", "ddc", *arguments]:
            _parser().parse_args(arguments)
        case ["python", script, *arguments]:
            code = (ROOT / script).read_text()
            assert all(option in code for option in arguments if option.startswith("--"))
        case ["pip", "install", *arguments]:
            check_pip(arguments)
        case ["torchrun", *_, script]:  # run by test_pages.py
            assert f'title="{script}"' in text
        case ["cmake", *_] if page.stem == "cpp":  # run by test_pages.py
            pass
        case ["build/consumer"]:
            assert "add_executable(consumer " in text
        case ["export", "PATH=$PWD/build/release/cli:$PATH"]:
            folder = re.search(
                r'RUNTIME_OUTPUT_DIRECTORY "\$\{PROJECT_BINARY_DIR\}/(.*)"',
                (ROOT / "studies" / "cli" / "CMakeLists.txt").read_text(),
            )
            assert folder is not None and folder[1] == "cli"
        case ["export", "DDC=$PWD"] | ["torch=$($DDC/.venv/bin/python", "-c", *_]:
            assert page.stem == "cpp"  # run by test_pages.py
        case ["source", ".venv/bin/activate"]:
            assert "-m venv .venv" in (ROOT / "scripts" / "setup.sh").read_text()
        case ["mkdir", "-p", folder]:
            assert folder.startswith("out/")
        case ["tar", "-C", folder, "-xf", archive]:
            assert f"mkdir -p {folder}" in text
            assert (ROOT / archive).is_file()
        case _:
            pytest.fail(f"{page.name}: nothing runs or checks '{' '.join(words)}'")


def check_pip(arguments: list[str]) -> None:
    """What is installed must be this folder, what its build needs, or torch; options must be pip's."""
    help_ = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True
    )
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    known = {re.split(r"[<>=]", name)[0]: name for name in needed}
    for argument in arguments:
        if argument.startswith("--"):
            assert re.search(rf"{argument}\b", help_.stdout), argument
        elif "==" in argument:
            assert known[argument.split("==")[0]] == argument
        else:
            assert argument in (".", "ddc", "wheelhouse", "cmake", "ninja", *known), argument


@every_page
def test_every_line_of_a_shell_is_run_or_checked(page):
    for words in shell(page):
        check(words, page)


@pytest.mark.parametrize(
    "line", ["make nothing", "ddc nothing", "pip install nothing", "python nothing.py", "rm -rf /"]
)
def test_a_line_of_a_shell_that_does_not_work_is_seen(line):
    with pytest.raises((AssertionError, FileNotFoundError, pytest.fail.Exception)):
        check(line.split(), ROOT / "README.md")


@every_page
def test_a_page_that_uses_the_tool_says_how_it_is_built(page):
    for words in commands(page):
        if words[0] == "ddc":
            text = page.read_text()
            by_itself = "Generated by `ddc report" in text
            assert "build/release/cli" in text or "howto/experiments.md" in text or by_itself, words


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


def test_versions_agree():
    header = (ROOT / "include" / "ddc" / "version.h").read_text()
    (version,) = re.findall(r'kVersion = "(.*)"', header)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\S+)(?: - (\S+))?$", changes, re.MULTILINE)[0]
    assert newest == (version, str(cited["date-released"]))
    assert cited["version"] == version


def test_pages_that_the_changelog_names_are_there():
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    paths = re.findall(
        r"\b((?:docs|benchmarks|examples|scripts|studies|tests)/[\w/.]+\.\w+)", newest
    )
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).is_file() or path == "benchmarks/step_cost.py", path  # replaced


@every_page
def test_lines_of_prose_are_not_longer_than_120_columns(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for line in text.splitlines():
        no_prose = line.lstrip().startswith(("|", "#", "!", "<"))
        assert len(line) <= 120 or no_prose or page.parts[-2:] == ("results", "README.md"), line


def test_the_public_surface_stays_small():
    assert len(list((ROOT / "include" / "ddc").rglob("*.h"))) <= 40


def test_the_readme_is_one_screen_to_a_decision():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    script = blocks(ROOT / "README.md", "python")[0]
    assert len(script.splitlines()) <= 12
