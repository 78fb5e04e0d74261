"""report.html in a real browser: phone and desktop, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, DRIVER, ask, browser, requests, show
from made_up import made_up
from made_up_whole import whole_report
from test_html import HOSTILE, SECTIONS

from evaluation.html import write_html
from evaluation.schema import Report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no Chromium with its driver on the path: apt-get install chromium chromium-driver",
    ),
]

LOOKS = [(width, scheme) for width in (360, 1440) for scheme in ("light", "dark")]
READABLE = 4.5  # WCAG AA


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    crowded = whole_report().model_dump(mode="json")
    crowded["arms"]["an-arm-with-a-name-that-never-breaks-" * 3] = crowded["arms"]["learned"]
    crowded["strips"][0]["cycles"][0]["tokens"] = [HOSTILE, "x" * 300]
    crowded["machine"]["cpu"] = "y" * 200
    reports = {
        "whole": whole_report(),
        "small": made_up(8, plain=10, fixed=15, weaker=14, learned=18),
        "crowded": Report.model_validate(crowded),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, report in reports.items():
        write_html(folder / name, report)
    return {name: folder / name / "report.html" for name in reports}


@pytest.mark.parametrize("name", ["whole", "small", "crowded"])
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_fits_asks_for_nothing_and_can_be_read(
    driver: Any, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    show(driver, pages[name], width, scheme)
    assert ask(driver, "stickingOut") == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.get_log("browser") == []
    assert requests(driver, pages[name]) - {"data:,"} == {pages[name].as_uri()}
    contrasts = ask(driver, "contrasts")
    assert len(contrasts) > 50
    faint = [row for row in contrasts if row[1] < READABLE]
    assert not faint, faint[:5]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_section_is_seen_with_its_drawings(
    driver: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    show(driver, pages["whole"], width, scheme)
    sizes = ask(driver, "sizes")
    for name in SECTIONS:
        assert sizes[name][0] > 300, name
        assert sizes[name][1] > 60, name
    assert ask(driver, "flatDrawings") == []


def test_dark_is_dark_and_paper_has_no_links_to_click(driver: Any, pages: dict[str, Path]) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        show(driver, pages["whole"], 1440, scheme)
        grounds[scheme] = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert grounds == {"light": "rgb(251, 251, 249)", "dark": "rgb(20, 23, 26)"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script("return document.querySelector('nav').checkVisibility()") is False
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_what_scrolls_can_be_reached_by_keyboard(driver: Any, pages: dict[str, Path]) -> None:
    show(driver, pages["whole"], 360, "light")
    boxes, unreached = ask(driver, "scrolling")
    assert len(boxes) > 3
    assert unreached == []
