"""Print a page of `ddc report` as PNG, with headless Chromium.

    print_report.py REPORT.html OUT.png [--width 1280] [--height 900] [--dark]

Without --height, the whole page. Needs Debian's chromium and the package playwright.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Error, sync_playwright


def print_report(report, out, *, width, height, dark):
    with sync_playwright() as playwright:
        # Root, as in containers, has no sandbox; the page is our own and loads nothing.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": width, "height": height or 900},
            color_scheme="dark" if dark else "light",
        )
        page.goto(report.resolve().as_uri())
        # An index has no charts to wait for.
        if page.locator("#data").count():
            page.wait_for_selector('[data-charts="drawn"]')
        page.screenshot(path=out, full_page=height is None)
        browser.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, help="in pixels; the whole page by default")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    if shutil.which("chromium") is None:
        sys.exit("print_report.py: no chromium; install it (Debian: apt-get install chromium)")
    if not options.report.is_file():
        sys.exit(f"print_report.py: there is no file {options.report}")
    try:
        print_report(
            options.report,
            options.out,
            width=options.width,
            height=options.height,
            dark=options.dark,
        )
    except Error as error:
        sys.exit(f"print_report.py: {error}")


if __name__ == "__main__":
    main()
