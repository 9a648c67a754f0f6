"""A browser shows the page: nothing fetched, nothing overflowing, nothing hostile run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from report_certificates import HOSTILE, certified, in_error, refuted, timing

from specverify.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
RUNS = {
    "certified": lambda: certified(timing()),
    "refuted": refuted,
    "error": lambda: in_error("raised ValueError: " + "long/" * 60),
    "hostile": lambda: in_error(HOSTILE, HOSTILE),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start chromium, or skip with the reason."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write one report of each kind."""
    found = {}
    for name, make in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        make().write(folder / "certificate.json")
        found[name] = write_report(folder / "certificate.json", folder)[0]
    return found


@pytest.mark.parametrize("name", RUNS)
def test_page_fits_and_is_quiet(browser: Any, pages: dict[str, Path], name: str) -> None:
    """With every test open the page fits phones and desktops in both schemes, asks for nothing and logs nothing."""
    tab = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme="light")
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: said.append(dialog.message))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(pages[name].as_uri())
    tab.locator("#open-all button").click()
    assert tab.evaluate("[...document.querySelectorAll('details')].every(d => d.open)")
    grounds = set()
    for width, scheme in product((390, 1280), ("light", "dark")):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
        assert tab.locator(".badge").is_visible()
        assert tab.locator(".sentence").is_visible()
        grounds.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [pages[name].as_uri()]
    tab.close()


def test_text_in_plots_stays_inside_and_legible(browser: Any, pages: dict[str, Path]) -> None:
    """On a narrow phone no text of a plot is cut off or smaller than 10 pixels."""
    tab = browser.new_page(viewport={"width": 375, "height": 800})
    tab.goto(pages["certified"].as_uri())
    tab.locator("#open-all button").click()
    cut = tab.evaluate(
        """[...document.querySelectorAll('svg text')].filter(t => {
            const a = t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect();
            const size = parseFloat(getComputedStyle(t).fontSize) * b.width / 360;
            return a.left < b.left - 1 || a.right > b.right + 1 || size < 10;
        }).map(t => t.textContent)"""
    )
    assert cut == []
    tab.close()


def test_page_is_readable_without_script(browser: Any, pages: dict[str, Path]) -> None:
    """With scripts off the verdict, the counterexample and every test can be read."""
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pages["refuted"].as_uri())
    assert tab.locator("#example pre").first.is_visible()
    assert tab.locator("#open-all button").count() == 0
    assert tab.locator("summary").first.is_visible()
    context.close()


def test_link_to_a_closed_test_opens_it(browser: Any, pages: dict[str, Path]) -> None:
    """Following the link of the counterexample opens the test it comes from."""
    tab = browser.new_page()
    tab.goto(pages["refuted"].as_uri())
    link = tab.locator("#example a").first
    target = link.get_attribute("href")
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = false; })")
    link.click()
    tab.wait_for_function("id => document.querySelector(id).open", arg=target)
    tab.close()


def test_print_shows_every_test_on_white(browser: Any, pages: dict[str, Path]) -> None:
    """On paper every test is open, nothing runs over the edge, and the ground is white also in the dark scheme."""
    tab = browser.new_page(viewport={"width": 720, "height": 1000}, color_scheme="dark")
    tab.goto(pages["certified"].as_uri())
    tab.emulate_media(media="print", color_scheme="dark")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("[...document.querySelectorAll('details')].every(d => d.open)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 720
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.close()
