"""What README, CONTRIBUTING and docs say can be done: links, targets of make, commands, code."""

import ast
import re
import shlex
from pathlib import Path

import pages
import pytest
import torch
import yaml
from ddc.__main__ import _parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


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


# ---- Code -----------------------------------------------------------------------------------------

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

group = ddc.discover(model, loss, batches=batches)
"""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


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
    named: set[str] = set()

    def walk(entry):
        if isinstance(entry, str):
            named.add(entry)
        else:
            for inside in entry.values() if isinstance(entry, dict) else entry:
                walk(inside)

    walk(config["nav"])
    pages_there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert pages_there | {"reference/headers/index.md"} == named


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
