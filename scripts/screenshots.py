"""Pictures of pages of the site in headless Chromium: wide and as a phone shows them, light and dark.

Fails if a page asks the network for anything, if a script of it fails, or if it is wider than the screen.

python scripts/screenshots.py out/site out/screenshots
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PAGES = (
    "index.html",
    "tutorials/train.html",
    "tutorials/audit.html",
    "explanation/symmetry.html",
    "explanation/construction.html",
    "explanation/figures/audit.html",
    "reference/api.html",
    "reference/headers/gauge/gauge.html",
    "reference/families.html",
    "results/index.html",
    "glossary.html",
)
SIZES = {"wide": (1280, 900), "phone": (375, 812)}


def main(site: Path, target: Path) -> int:
    target.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page = context.new_page()
                page.on("request", lambda r: r.url.startswith("http") and wrong.append(r.url))
                page.on("pageerror", lambda error, page=page: wrong.append(f"{page.url}: {error}"))
                for name in PAGES:
                    page.goto((site / name).resolve().as_uri())
                    page.wait_for_timeout(200)
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    if wide > width:
                        wrong.append(f"{name} is {wide} pixels wide on a screen of {width}")
                    file = f"{name.removesuffix('.html').replace('/', '-')}-{size}-{scheme}.png"
                    page.screenshot(path=target / file)
        browser.close()
    print("\n".join(wrong) or f"{len(PAGES) * 4} pictures in {target}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
