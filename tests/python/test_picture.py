"""The picture of a network with its gauges: a page by itself, in headless Chromium and in notebooks."""

import html
import re
import shutil
import subprocess
import sys
import types

import ddc
import pytest
from playwright.sync_api import expect, sync_playwright
from torch import nn


class Odd(nn.Module):
    """A network with names that could break a page."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.ModuleDict({"</script><b>'&": nn.Linear(6, 3)})


@pytest.fixture(scope="module")
def symmetries():
    model = Odd()
    (out,) = (name for name, _ in model.named_parameters() if "second" in name and "weight" in name)
    rescale = ddc.gauges.relu_rescale(
        model, "first.weight", [out], bias_in="first.bias", name="</script>units"
    )
    rows = ddc.gauges.cross_entropy_shift(model, out, name="rows")
    return ddc.SymmetryGroup.of(model, [rescale, rows])


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


def opened(browser, file, width=1280, scheme="light"):
    """The page, and the list of what it asked for and of what failed in it."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("request", lambda request: request.url.startswith("file:") or wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    return page, wrong


def test_a_gauge_that_is_chosen_shows_what_it_moves(symmetries, chromium, tmp_path):
    file = tmp_path / "picture.html"
    symmetries.show(file, title="Odd")
    page, wrong = opened(chromium, file)
    expect(page.locator("h1")).to_have_text("Odd")
    expect(page.locator("header div")).to_contain_text("2 gauges of dimension 12 on 3 of 4 tensors")
    assert page.locator(".tensor").count() == 4

    # The one that ties the most tensors is shown first: incoming rows and bias, outgoing columns.
    about = page.locator("#about")
    expect(about).to_contain_text("</script>units")
    assert page.locator("i.a0").count() == 2 and page.locator("i.a1").count() == 1
    assert page.locator("#network svg path").count() == 2
    expect(page.locator(".tensor:has(i.a1) b")).to_have_text("×c^-1")

    page.get_by_role("button", name="rows").click()
    expect(about).to_contain_text("R^6, dimension 6")
    assert page.locator(".tensor:not(.dim)").count() == 1

    page.locator(".tensor:not(.dim)").click()
    expect(about).to_contain_text("moved by 2 gauges")
    about.get_by_role("button", name="units").click()
    assert page.locator("i.a0").count() == 2
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(symmetries, chromium, tmp_path, scheme):
    symmetries.show(tmp_path / "picture.html")
    page, wrong = opened(chromium, tmp_path / "picture.html", width=375, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    level = sum(map(int, re.findall(r"\d+", background)[:3]))
    assert (level < 380) == (scheme == "dark")
    assert wrong == []


def test_in_a_notebook_it_is_a_frame_of_its_own(symmetries, chromium, tmp_path):
    (tmp_path / "cell.html").write_text(f"<p>before</p>{symmetries._repr_html_()}<p>after</p>")
    page, wrong = opened(chromium, tmp_path / "cell.html")
    expect(page.locator("p")).to_have_count(2)
    expect(page.frame_locator("iframe").locator("#about")).to_contain_text("relu rescale")
    assert wrong == []


def test_show_prints_displays_or_writes(symmetries, capsys, monkeypatch, tmp_path):
    symmetries.show()
    assert capsys.readouterr().out == f"{symmetries}\n"
    symmetries.show(tmp_path / "a.html", title="A & <b>")
    assert capsys.readouterr().out == ""
    assert "<title>" in (tmp_path / "a.html").read_text()

    shown = []
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    display = types.SimpleNamespace(HTML=lambda text: text, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    symmetries.show(title="A")
    assert capsys.readouterr().out == ""
    assert len(shown) == 1 and 'title="A"' in shown[0]
    assert html.escape("<!doctype html>") in shown[0]


def test_nothing_of_notebooks_is_imported():
    code = (
        "import ddc, sys; assert 'IPython' not in sys.modules and 'playwright' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
