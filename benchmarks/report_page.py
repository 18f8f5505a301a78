"""A report in headless Chromium: script time of a slider event, first paint, size, printed pages.

    python -m benchmarks.report_page [--runs walk,trap,induction] [--repeats 3]

A slider event is one `input` event on the first screen: `performance.now()` around the handler and the layout
that it makes necessary, at every step down and up again; then the same with the panel of the last head open,
which draws one or two figures more. Chromium and chromedriver are those of the tests.
"""

import argparse
import base64
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import mechmarkov as mm

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,800")
EVENT = """
  const slider = document.getElementById("step"), done = arguments[1];
  slider.value = arguments[0];
  const began = performance.now();
  slider.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  const handled = performance.now() - began;
  requestAnimationFrame(() => setTimeout(() => done(handled)));
"""


def window() -> webdriver.Chrome:
    """A headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def first_paint(driver: webdriver.Chrome, page: Path) -> float:
    """Milliseconds from the navigation to the first contentful paint."""
    driver.get(page.as_uri())
    time.sleep(2)
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(driver.execute_script(f"return {paint}"))


def slider_events(driver: webdriver.Chrome) -> list[float]:
    """Milliseconds of each event, for each step down and up again."""
    last = int(driver.execute_script("return document.getElementById('step').max"))
    taken = []
    for step in [*range(last - 1, -1, -1), *range(1, last + 1)]:
        taken.append(driver.execute_async_script(EVENT, step))
        time.sleep(0.1)
    return taken


def printed_pages(driver: webdriver.Chrome) -> int:
    """Pages of the PDF on A4."""
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"]
    return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(pdf)))


def said(taken: list[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(taken):.0f} ({min(taken):.0f} to {max(taken):.0f})"


def row(name: str, page: Path, repeats: int) -> str:
    """A row of the table for one report."""
    driver = window()
    driver.set_script_timeout(60)
    paints = [first_paint(driver, page) for _ in range(repeats)]
    time.sleep(5)  # figures that are drawn while idle
    first_screen = slider_events(driver)
    driver.execute_script("[...document.querySelectorAll('button.head')].at(-1)?.click()")
    time.sleep(2)
    with_panel = slider_events(driver)
    driver.execute_script("document.querySelector('.inside:not([hidden]) .close')?.click()")
    pages = printed_pages(driver)
    driver.quit()
    return (
        f"| {name} | {said(first_screen)} | {said(with_panel)} | {statistics.median(paints):.0f} "
        f"| {page.stat().st_size / 1e6:.1f} | {pages} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default="walk,trap,induction", help="bundled runs or report files")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("| report | slider event, ms | with a head's panel | first paint, ms | MB | printed pages |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.runs.split(","):
            page = Path(name)
            if not name.endswith(".html"):
                page = mm.probe(mm.example(name), steps="all").report(Path(folder) / f"{name}.html")
            print(row(page.stem, page.resolve(), options.repeats), flush=True)
