"""Hooks of MkDocs: pages for headers and for sources that the documentation links to.

A link from a page to a file outside of docs/ leads to a page that shows the file; that of a public header has
its documentation. So the site is complete by itself, and a link to a file that is not there fails the build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "include"
HEADERS = "reference/headers"
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
LANGUAGES = {".py": "python", ".h": "cpp", ".cpp": "cpp", ".sh": "bash", ".txt": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from sources."""
    headers = sorted(INCLUDE.rglob("*.h"), key=lambda header: (header.parent, header.name))
    pages = {page_of(header): header_page(header) for header in headers}
    pages[f"{HEADERS}/index.md"] = header_index(headers)
    for file in files.documentation_pages():
        for _, target, _ in LINK.findall(Path(file.abs_src_path or "").read_text()):
            source = outside(file.src_uri, target)
            if source and source.exists() and page_of(source) not in pages:
                pages[page_of(source)] = source_page(source)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside of docs/ at their pages."""

    def inside(match: re.Match[str]) -> str:
        source = outside(page.file.src_uri, match[2])
        if source is None:
            return match[0]
        target = os.path.relpath(page_of(source), os.path.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{target}{match[3]}"

    return LINK.sub(inside, markdown)


def outside(page: str, target: str) -> Path | None:
    """The file that a link of a page leads to, if it is one of the repository outside of docs/."""
    if "://" in target or target.startswith("/") or page.startswith((HEADERS, "sources/")):
        return None
    path = Path(os.path.normpath(ROOT / "docs" / os.path.dirname(page) / target))
    return None if path.is_relative_to(ROOT / "docs") else path


def page_of(source: Path) -> str:
    """Where the page of a source file, or of a folder, is in the site."""
    if source.is_relative_to(INCLUDE / "ddc") and source.suffix == ".h":
        return f"{HEADERS}/{source.relative_to(INCLUDE / 'ddc').with_suffix('.md')}"
    return f"sources/{source.relative_to(ROOT)}.md"


def source_page(source: Path) -> str:
    name = source.relative_to(ROOT)
    if source.is_dir():
        entries = "\n".join(f"- `{entry.name}`" for entry in sorted(source.iterdir()))
        return f"# {name}\n\n{entries}\n"
    text = source.read_text()
    if source.suffix == ".md":
        text = LINK.sub(lambda match: match[0] if "://" in match[2] else "](#)", text)
        return text
    return f"# {name}\n\n```{LANGUAGES.get(source.suffix, 'text')}\n{text}```\n"


# ---- Headers ----------------------------------------------------------------------------------------


def header_index(headers: list[Path]) -> str:
    lines = ["# C++ headers", "", "What `ddc::ddc` installs, made from the headers themselves."]
    folder = None
    for header in headers:
        name = header.relative_to(INCLUDE)
        if name.parent != folder:
            folder = name.parent
            lines += ["", f"## {folder}", ""]
        declared = [f"`{label}`" for label, _, _ in declarations(header.read_text()) if label]
        page = name.relative_to("ddc").with_suffix(".md")
        lines.append(f"- [`{name.name}`]({page}): {', '.join(dict.fromkeys(declared))}")
    return "\n".join(lines) + "\n"


def header_page(header: Path) -> str:
    """A header as a page: its introduction, and every declaration with its comment."""
    name = header.relative_to(INCLUDE)
    text = header.read_text()
    lines = [f"# {name}", "", f"```cpp\n#include <{name}>\n```", ""]
    for block in re.findall(r"(?:^// .*\n(?://.*\n)*)", text.split("\nnamespace ddc")[0], re.M):
        lines += [as_markdown(re.sub(r"^// ?", "", block, flags=re.M), deeper=1), ""]
    for label, comment, code in declarations(text):
        if label:
            lines += [f"## {label}", ""]
        if comment:
            lines += [as_markdown(comment, deeper=2), ""]
        lines += [f"```cpp\n{code}\n```", ""]
    return "\n".join(lines)


def as_markdown(comment: str, deeper: int) -> str:
    """A comment with its headings put deeper and its text kept as text."""
    result = []
    for line in comment.splitlines():
        if line.startswith("#"):
            line = "#" * deeper + line
        elif not line.startswith("    ") and "`" not in line:
            line = re.sub(r"([<>_]|(?<!\*)\*(?![\w*])(?<!\w\*))", r"\\\1", line)
        result.append(line)
    return "\n".join(result)


def declarations(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, comment and code of what a header declares in namespace ddc."""
    _, _, body = text.partition("\nnamespace ddc")
    body = body[body.find("{") + 1 : body.rfind("}  // namespace ddc")]
    chunk: list[str] = []
    depth = 0
    for line in [*body.splitlines(), ""]:
        before = chunk and not chunk[-1].startswith("//")
        if depth == 0 and (not line or before and (line.startswith("//") or chunk[-1] == "};")):
            if chunk:
                yield from declaration(chunk)
            chunk = []
        if not line and depth == 0:
            continue
        code = line.split("//")[0]
        depth += code.count("{") - code.count("}") + code.count("(") - code.count(")")
        chunk.append(line)


def declaration(chunk: list[str]) -> Iterator[tuple[str, str, str]]:
    count = next((i for i, line in enumerate(chunk) if not line.startswith("//")), len(chunk))
    comment = "\n".join(re.sub(r"^//[/!]? ?", "", line) for line in chunk[:count])
    code = "\n".join(chunk[count:])
    if code:
        yield name_of(code), comment, code


def name_of(code: str) -> str:
    """The name that a declaration declares, or nothing for what is no more than plumbing."""
    if code.startswith(("inline constexpr std::array EnumNames", "template <>")):
        return ""
    plumbing = r"^(?:(?:class|struct) \w+;|template <.*>)$|^requires\(.*?\)\)? (?=const|\w+ )"
    code = re.sub(plumbing, "", code, flags=re.M)
    if found := re.search(
        r"^(?:struct|class|enum class|using|concept|namespace) (\w+)", code, re.M
    ):
        return found[1]
    if found := re.search(r"(\w+|operator\W+)\(", code):
        return found[1]
    found = re.search(r"(\w+)\s*(?:=|;|\{)", code)
    return found[1] if found else ""
