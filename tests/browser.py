"""A headless Chromium that is already there, and what it makes of a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip

SCRIPT = Path(__file__).with_name("browser.js").read_text(encoding="utf-8")


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """A fresh one that notes its console and every request."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))  # named: it fetches no other
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: webdriver.Chrome, page: Path, width: int, scheme: str, height: int = 900) -> None:
    """Open a file at this width, in a light or dark scheme."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get(page.as_uri())


def ask(driver: webdriver.Chrome, question: str) -> Any:
    """What a function of browser.js says of the open page."""
    return driver.execute_script(f"{SCRIPT}\nreturn {question}();")


def requests(driver: webdriver.Chrome, page: Path) -> set[str]:
    """Addresses that this page asked for; the browser's own start page asks for many."""
    events: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in driver.get_log("performance")
    ]
    asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return {one["request"]["url"] for one in asked if one["documentURL"] == page.as_uri()}
