"""The page of an experiment's report, in headless Chromium: that the charts are really drawn, on a phone
and in the dark too, and that nothing is asked of the network.

Needs the `report_tool` of the C++ build, at $DDC_BUILD_DIR/studies/tests/report_tool (by default that is
build/release under the root of the repository), and Debian's chromium.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

REPO_ROOT = Path(__file__).resolve().parents[3]
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 812}
ARMS = ["AdamW", "DDCAdam", "</script><b>Muon & co</b>"]
SEEDS = [42, 142, 242]
STEPS = list(range(0, 4000, 50))


def curves(title, series, **fields):
    return {"title": title, "x": "step", "y": "loss", "log_y": False, "series": series, **fields}


def every_run(y_of):
    return [
        {"arm": arm, "seed": seed, "x": STEPS, "y": [y_of(a, s, step) for step in STEPS]}
        for a, arm in enumerate(ARMS)
        for s, seed in enumerate(SEEDS)
    ]


def panel(arm, scale):
    z = [[scale * (i + 1) / (j + 1) for j in range(3)] for i in range(3)]
    return {"arm": arm, "x": ["3e-4", "1e-3", "3e-3"], "y": ["0.5", "1", "2"], "z": z}


def some_result(**fields):
    claims = [
        {
            "what": f"claim {i} on the drift at lr 1e-3",
            "paper": "0.11 ± 0.02",
            "measured": "0.10",
            "deviation": 0.09,
            "outcome": outcome,
            "note": "A long note on what was found out about it. " * 8,
        }
        for i, outcome in enumerate(["reproduced", "better", "not reproduced", "not run"] * 2)
    ]
    panels = [panel(arm, 1000 * (k + 1)) for k, arm in enumerate(["A", "B", "C", "D"])]
    panels[0]["z"][2][0] = None
    return {
        "name": "some_experiment",
        "title": "Some experiment of a title that is long enough for several lines on a phone",
        "question": "Does it?",
        "answer": "It does.",
        "command": "ddc experiment some_experiment " + "--set key=value " * 12,
        "quick": True,
        "missing": ["a_run_of_a_long_name_without_any_place_to_break_it_" * 2],
        "seeds": SEEDS,
        "threads": 1,
        "versions": {"ddc": "0.1.0", "torch": "2.13.0", "compiler": "GCC 12.2.0"},
        "table": {
            "columns": [f"column {i}" for i in range(14)],
            "rows": [[arm, *["1.25e-3"] * 13] for arm in ARMS],
        },
        "claims": claims,
        "curves": [
            curves("Loss", every_run(lambda a, s, t: (a + 1) * (s + 1) / (t + 1)), log_y=True),
            curves("Accuracy", every_run(lambda a, s, t: t / 4000 / (a + s + 1))),
        ],
        "heat_maps": [
            {"title": "Steps", "x": "lr", "y": "wd", "z": "steps to 0.9", "panels": panels}
        ],
        **fields,
    }


def write_reports(directory):
    tool = Path(os.environ.get("DDC_BUILD_DIR", REPO_ROOT / "build" / "release"))
    tool = tool / "studies" / "tests" / "report_tool"
    # Not a skip: a missing tool would leave the pages untested without a word.
    assert tool.is_file(), f"{tool} does not exist; build the tests or set DDC_BUILD_DIR"
    result = subprocess.run([tool, directory], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return [Path(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    assert chromium, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a page. In the end it must have asked for nothing but itself, and had nothing to complain of."""
    contexts, complaints, requests = [], [], []

    def visit(path, **options):
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        page = context.new_page()
        # Against hanging for ever, not a limit: the page is large, and the machine may be busy.
        page.set_default_timeout(300_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        visit.allowed.add(path.as_uri())
        return page

    visit.allowed = set()
    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith(("data:", "blob:"))} == visit.allowed


@pytest.fixture
def report(visit, tmp_path):
    """Opens the report on a result, and waits for its charts."""

    def report(result=None, **options):
        (tmp_path / "result.json").write_text(json.dumps(result or some_result()))
        [path] = write_reports(tmp_path)
        page = visit(path, **options)
        page.wait_for_selector('[data-charts="drawn"]')
        return page

    return report


def overflow(page):
    # Not innerWidth: a phone zooms out until all that sticks out fits in.
    return page.evaluate("document.documentElement.scrollWidth") - page.viewport_size["width"]


def drawn_lines(figure):
    """How many lines of a chart have at least two points."""
    return figure.locator(".scatterlayer path.js-line").evaluate_all(
        "paths => paths.filter((path) => /^M.*L/.test(path.getAttribute('d') ?? '')).length"
    )


def colours(page):
    background = "(element) => getComputedStyle(element).backgroundColor"
    return (
        page.locator("body").evaluate(background),
        page.locator(".plot .main-svg").first.evaluate(background),
        page.locator(".curves .js-line").last.evaluate("(e) => getComputedStyle(e).stroke"),
    )


def test_every_curve_is_drawn_with_a_median_and_a_band_for_each_arm(report):
    page = report()
    figures = page.locator("figure.curves").all()
    assert len(figures) == 2
    for figure in figures:
        assert drawn_lines(figure) == len(ARMS) * len(SEEDS) + len(ARMS)
        bands = figure.locator(".scatterlayer .js-fill")
        assert bands.count() == len(ARMS)
        for band in bands.all():
            box = band.bounding_box()
            assert box["width"] > 100 and box["height"] > 10


def test_the_median_and_the_band_are_over_the_steps_that_all_seeds_have(report):
    series = [
        {"arm": "A", "seed": 1, "x": [0, 1, 2, 3], "y": [5, 1, None, 7]},
        {"arm": "A", "seed": 2, "x": [0, 1, 2, 3, 4], "y": [1, 2, 3, 9, 5]},
        {"arm": "A", "seed": 3, "x": [0, 2, 3], "y": [2, 3, 8]},
        {"arm": "alone", "seed": 1, "x": [0, 1], "y": [1, 2]},
    ]
    page = report(some_result(curves=[curves("Loss", series)]))
    band, *_, median, alone = page.locator(".curves .plot").evaluate(
        "plot => plot.data.map(({x, y}) => ({x, y}))"
    )
    assert median == {"x": [0, 2, 3], "y": [2, None, 8]}
    assert alone == {"x": [0, 1], "y": [1, 2]}
    assert band == {"x": [0, 0, None, 3, 3], "y": [5, 1, None, 9, 7]}


def test_the_axis_is_logarithmic_where_the_curves_say_so(report):
    page = report()
    types = page.locator(".curves .plot").evaluate_all(
        "plots => plots.map((p) => p._fullLayout.yaxis.type)"
    )
    assert types == ["log", "linear"]


def test_an_arm_that_a_log_axis_cannot_show_is_named(report):
    zero = curves("Drift", every_run(lambda a, s, t: 0 if a == 1 else 1 + t), log_y=True)
    page = report(some_result(curves=[zero]))
    expect(page.locator(".chart-note")).to_have_text(
        "Not drawn: DDCAdam (no value above zero, which a log axis needs)."
    )


def test_the_legend_hides_and_shows_a_whole_arm(report):
    page = report()
    figure = page.locator("figure.curves").first
    button = figure.get_by_role("button", name="DDCAdam")
    all_lines = drawn_lines(figure)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    page.wait_for_selector('[data-charts="drawn"]')
    assert drawn_lines(figure) == all_lines - len(SEEDS) - 1
    assert figure.locator(".js-fill").count() == len(ARMS) - 1
    button.press("Enter")
    page.wait_for_selector('[data-charts="drawn"]')
    assert drawn_lines(figure) == all_lines


def test_heat_maps_have_one_scale_and_write_their_values(report):
    page = report()
    panels = page.locator(".panels .plot")
    assert panels.count() == 4
    for index, plot in enumerate(panels.all()):
        assert plot.locator(".heatmaplayer image").count() == 1
        texts = plot.locator(".annotation-text").all_inner_texts()
        assert len(texts) == (8 if index == 0 else 9)
    assert panels.nth(1).locator(".annotation-text").first.text_content() == "2,000"
    ranges = panels.evaluate_all("plots => plots.map(({data: [{zmin, zmax}]}) => [zmin, zmax])")
    assert ranges == [[1000 / 3, 12000]] * 4
    tops = {round(plot.bounding_box()["y"]) for plot in panels.all()}
    assert len(tops) == 1


def test_an_empty_cell_is_grey(report):
    page = report()
    plot = page.locator(".panels .plot").first
    # The picture of the cells is transparent there, and what is behind it is grey.
    opacity = plot.evaluate(
        """async (plot) => {
          const picture = new Image();
          picture.src = plot.querySelector(".heatmaplayer image").getAttribute("href");
          await picture.decode();
          const canvas = document.createElement("canvas");
          [canvas.width, canvas.height] = [picture.width, picture.height];
          const pen = canvas.getContext("2d");
          pen.drawImage(picture, 0, 0);
          const { data, width, height } = pen.getImageData(0, 0, picture.width, picture.height);
          const middle = (cell, size) => Math.floor((cell + .5) * size / 3);
          const at = (column, row) => data[4 * (middle(row, height) * width + middle(column, width)) + 3];
          return [at(0, 0), at(1, 0), at(0, 1)];
        }"""
    )
    assert opacity == [0, 255, 255]
    assert plot.locator(".bglayer .bg").evaluate("(e) => getComputedStyle(e).fill") == (
        "rgb(195, 200, 206)"
    )


def test_a_heat_map_keeps_settings_without_any_value(report):
    z = [[None, None, None], [None, 10, 20], [None, 30, None]]
    empty = {"arm": "A", "x": ["3e-4", "1e-3", "3e-3"], "y": ["0.5", "1", "2"], "z": z}
    panels = [empty, {**empty, "z": [[None] * 3] * 3}]
    heat_map = {"title": "Steps", "x": "lr", "y": "wd", "z": "steps", "panels": panels}
    page = report(some_result(heat_maps=[heat_map]))
    for plot in page.locator(".panels .plot").all():
        assert plot.locator(".xtick").all_text_contents() == empty["x"]
        assert plot.locator(".ytick").all_text_contents() == empty["y"]
    plot = page.locator(".panels .plot").first
    ticks = {
        tick.text_content(): tick.bounding_box() for tick in plot.locator(".xtick, .ytick").all()
    }
    for number in plot.locator(".annotation-text").all():
        box = number.bounding_box()
        x, y = {"10": ("1e-3", "1"), "20": ("3e-3", "1"), "30": ("1e-3", "2")}[
            number.text_content()
        ]
        assert abs(box["x"] + box["width"] / 2 - ticks[x]["x"] - ticks[x]["width"] / 2) < 3
        assert abs(box["y"] + box["height"] / 2 - ticks[y]["y"] - ticks[y]["height"] / 2) < 6
    image = plot.locator(".heatmaplayer image").bounding_box()
    right, top = ticks["3e-3"], ticks["2"]
    assert image["x"] < ticks["1e-3"]["x"] and right["x"] < image["x"] + image["width"]
    assert image["y"] <= top["y"]


def test_the_dark_has_other_colours_also_when_it_comes_later(report):
    page = report(color_scheme="light")
    light = colours(page)
    # The browser tells the page of the change with its next frame: "drawn" is of the light until then.
    page.evaluate("delete document.documentElement.dataset.charts")
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector('[data-charts="drawn"]')
    dark = colours(page)
    assert all(before != after for before, after in zip(light, dark, strict=True))
    assert colours(report(color_scheme="dark")) == dark


def test_paper_is_light(report):
    light = colours(report(color_scheme="light"))
    page = report(color_scheme="dark")
    dark = colours(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_selector('[data-charts="drawn"]')
    assert colours(page) == light
    widths = page.locator(".plot").evaluate_all("plots => plots.map((p) => p._fullLayout.width)")
    assert max(widths) <= 640
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_selector('[data-charts="drawn"]')
    assert colours(page) == dark


def test_a_phone_need_not_scroll_sideways(report):
    page = report(viewport=PHONE, is_mobile=True, has_touch=True)
    assert overflow(page) <= 0
    box = page.locator(".scroll:has(.results)")
    assert box.evaluate("(box) => box.scrollWidth > box.clientWidth")
    assert page.locator(".scroll:has(.claims)").evaluate("(b) => b.scrollWidth <= b.clientWidth")
    for plot in page.locator(".plot").all():
        assert plot.locator(".main-svg").first.bounding_box()["width"] <= PHONE["width"]
    lefts = {round(plot.bounding_box()["x"]) for plot in page.locator(".panels .plot").all()}
    assert len(lefts) == 1


def test_the_charts_follow_the_width_of_the_window(report):
    page = report()
    page.set_viewport_size(PHONE)
    for plot in page.locator(".plot").all():
        width = plot.evaluate("(plot) => plot.clientWidth")
        expect(plot.locator(".main-svg").first).to_have_attribute("width", str(width))
    assert overflow(page) <= 0


def test_names_of_arms_are_text(report):
    page = report()
    figure = page.locator("figure.curves").first
    assert figure.locator(".legend button").all_inner_texts() == ARMS
    assert page.locator(".results tbody th").all_inner_texts() == ARMS
    assert page.locator("main b").count() == 0


def test_without_scripts_the_tables_are_there(visit, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(some_result()))
    [path] = write_reports(tmp_path)
    page = visit(path, java_script_enabled=False)
    # Its text, because Chromium hides the element as long as scripts are off by emulation only.
    assert "The charts are drawn by JavaScript" in page.locator("noscript").text_content()
    expect(page.locator(".claims tbody tr")).to_have_count(8)
    expect(page.get_by_text("This is the quick version")).to_be_visible()


def test_the_index_leads_to_every_report(visit, tmp_path):
    for name in ["b", "a"]:
        result = some_result(name=name, title=f"Experiment {name}")
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    *reports, index = write_reports(tmp_path)
    page = visit(index, viewport=PHONE)
    assert overflow(page) <= 0
    links = page.locator(".index a")
    assert links.all_inner_texts() == ["Experiment a", "Experiment b"]
    visit.allowed.add(reports[1].as_uri())
    links.nth(1).click()
    expect(page.locator("h1")).to_have_text("Experiment b")


def print_report(*arguments):
    command = [sys.executable, REPO_ROOT / "studies" / "print_report.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_report_is_printed_as_a_picture_of_the_size_asked_for(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(some_result()))
    [path] = write_reports(tmp_path)
    pictures = []
    for dark in [[], ["--dark"]]:
        out = tmp_path / "report.png"
        result = print_report(path, out, "--width", 800, "--height", 600, *dark)
        assert result.returncode == 0, result.stderr
        pictures.append(out.read_bytes())
    for picture in pictures:
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == (800, 600)
    assert pictures[0] != pictures[1]


def test_printing_says_that_there_is_no_report(tmp_path):
    result = print_report(tmp_path / "absent.html", tmp_path / "out.png")
    assert result.returncode == 1
    assert result.stderr.startswith("print_report.py: there is no file ")
    assert not (tmp_path / "out.png").exists()
