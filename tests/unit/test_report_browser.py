"""The report as a real browser shows it: on a wide screen and on a phone, light, dark and printed."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instinct_fleet.capacity import record
from instinct_fleet.model import Point, to_json
from instinct_fleet.report import render

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed for this Python")
DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    not (DRIVER and BROWSER), reason="no chromium and chromedriver here; `make unit` as root installs them"
)
CONCURRENCIES = (1, 4, 16, 32, 64, 128)
SCREENS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    # A test runs as root in a container, where there is no sandbox to have; the rest keeps it from calling home.
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    points = [
        Point(
            c, float(c), 500, 0, 10.0 * min(c, 32), 100.0 * min(c, 32), 5.0 * c, 9.0 * c, 24.0, 26.0, 700.0 + c, 12345.0
        )
        for c in CONCURRENCIES
    ]
    capacity = record(points, ttft_slo_ms=900.0, instance="node1/a", key="k")
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render({"capacity": to_json(capacity), "title": "Load test", "settings": {"model": "m" * 200}}))
    return path.as_uri()


def show(browser: Any, page: str, width: int, scheme: str) -> None:
    mobile = width < 500
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page)


def colours(browser: Any) -> tuple[int, int]:
    """Return the brightness (0 to 765) of the page's background and of its text."""
    script = (
        "const style = getComputedStyle(document.body);"
        "return [style.backgroundColor, style.color].map(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))"
    )
    background, text = browser.execute_script(script)
    return background, text


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_it_fits_the_screen_without_an_error_or_a_request(browser: Any, page: str, width: int, scheme: str) -> None:
    show(browser, page, width, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    if width >= 1280:
        wide = "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert browser.execute_script(wide) == 0, "a table that has to be moved sideways"
    # Nothing but the file itself was loaded.
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    background, text = colours(browser)
    assert abs(background - text) > 300, "text and page are too alike to read"
    assert (background > text) == (scheme == "light")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_charts_that_show_have_every_point(browser: Any, page: str, width: int, scheme: str) -> None:
    show(browser, page, width, scheme)
    script = (
        "return [...document.querySelectorAll('svg')].filter(s => s.getClientRects().length).map(s => ["
        "s.getBoundingClientRect().width,"
        "[...s.querySelectorAll('[id*=\"points\"]')].map(g => g.querySelectorAll('use').length)])"
    )
    shown = browser.execute_script(script)
    assert len(shown) == 4, "one size of each chart"
    for drawn, _points in shown:
        assert 250 < drawn <= width
    counted = [count for _drawn, groups in shown for count in groups if count]
    assert counted
    assert set(counted) == {len(CONCURRENCIES)}


def test_it_prints_on_white(browser: Any, page: str) -> None:
    show(browser, page, 1280, "light")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    background, text = colours(browser)
    assert background > text
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000, f"{len(printed)} bytes: the charts are missing ({sys.platform})"
