"""A real Chromium for the report's tests: headless, without a network, with all that it says recorded."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_examples import hostile_result, moving_result, walk_result
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from window import Browser

from mechmarkov.report.html import write

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an ordinary result; rendered once, as those below are."""
    return write(walk_result(), tmp_path_factory.mktemp("report") / "walk.html")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(hostile_result(), tmp_path_factory.mktemp("report") / "hostile.html")


@pytest.fixture(scope="session")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(moving_result(), tmp_path_factory.mktemp("report") / "moving.html")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.fail(
            "the browser tests need Chromium: apt-get install chromium chromium-driver", pytrace=False
        )
    os.environ["SE_OFFLINE"] = "true"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    driver.set_script_timeout(120)  # axe-core on a busy machine
    yield Browser(driver)
    driver.quit()
