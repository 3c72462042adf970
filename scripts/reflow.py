"""Breaks lines of prose in Markdown that are longer than 120 columns: paragraphs and lists alone.

python scripts/reflow.py           # writes
python scripts/reflow.py --check   # names the lines that are too long, and fails

Comments of C++ (`//`) that are longer are named by both; breaking them is left to their author.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
# Written by programs, which break lines themselves.
GENERATED = (
    "docs/reference/families.md",
    "docs/reference/options.md",
    "docs/results/README.md",
    "docs/results/random_networks.md",
)
SOURCES = ("include", "src", "python", "studies", "tests", "examples", "benchmarks")
COMMENT = re.compile(r"(?:^|\s)//")
ITEM = re.compile(r"\s*(?:(?:[-*+]|\d+\.)\s+)?")
OTHER = ("|", "#", "!", "<", "```")


def pages() -> Iterator[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for page in [*found, *sorted((ROOT / "docs").rglob("*.md"))]:
        if str(page.relative_to(ROOT)) not in GENERATED:
            yield page


def wrapped(lines: list[str], first: str) -> list[str]:
    text = " ".join(line.strip() for line in lines)
    for together in (r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(together, lambda match: match[0].replace(" ", "\0"), text)
    rest = " " * len(first)
    out = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for k in range(1, len(out)):
        # What begins a line must not look like a list, a heading or a quotation.
        if re.match(r"\s*(?:[-+*#>]+|\d+[.)])(?:\s|$)", out[k]):
            before, _, word = out[k - 1].rpartition(" ")
            out[k - 1], out[k] = before, f"{rest}{word} {out[k].lstrip()}"
    return [line.replace("\0", " ") for line in out]


def reflowed(text: str) -> str:
    lines, out, fence, i = text.split("\n"), [], False, 0
    while i < len(lines):
        line = lines[i]
        fence ^= line.lstrip().startswith("```")
        code = line.startswith("    ") and not (out and out[-1].strip())
        if fence or code or not line.strip() or line.lstrip().startswith(OTHER):
            out.append(line)
            i += 1
            continue
        first = ITEM.match(line)[0]  # type: ignore[index]
        block, i = [line[len(first) :]], i + 1
        while i < len(lines) and lines[i].strip() and not lines[i].lstrip().startswith(OTHER):
            if re.match(r"\s*(?:[-*+]|\d+\.)\s+", lines[i]):
                break
            block.append(lines[i])
            i += 1
        whole = [first + block[0], *block[1:]]
        out += wrapped(block, first) if any(len(each) > WIDTH for each in whole) else whole
    return "\n".join(out)


def long_comments(text: str) -> list[int]:
    """Numbers of the lines whose comment ends beyond the width."""
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > WIDTH and COMMENT.search(line)
    ]


def main() -> int:
    wrong = 0
    for source in (file for folder in SOURCES for file in sorted((ROOT / folder).rglob("*"))):
        if source.suffix in (".h", ".cpp"):
            for number in long_comments(source.read_text()):
                wrong += 1
                print(
                    f"{source.relative_to(ROOT)}:{number}: a comment of more than {WIDTH} columns"
                )
    for page in pages():
        text = page.read_text()
        if (new := reflowed(text)) != text:
            wrong += 1
            if "--check" in sys.argv:
                print(f"{page.relative_to(ROOT)}: lines of more than {WIDTH} columns (make format)")
            else:
                page.write_text(new)
    return 1 if wrong and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
