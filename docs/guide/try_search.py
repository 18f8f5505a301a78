"""Searches the finished guide in a browser, from a folder and over HTTP: `python try_search.py SITE`."""

import os
import shutil
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

# What somebody types, and the page that answers; it must be among the first results.
QUESTIONS = {
    "how do I train my own": "docs/recipes.html",
    "my model is stuck": "docs/questions.html",
    "induction": "docs/tutorials/watch_an_induction_head_form.html",
    "how to compare two runs": "docs/questions.html",
    "RecipeError": "AGENTS.html",
    "completion": "docs/questions.html",
    "null": "docs/how-to-read-a-report.html",
    "nanoGPT": "docs/record-your-own-training.html",
}
FIRST = 5
SECONDS = 20
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--window-size=1280,900",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
RESULTS = """
return [...document.querySelectorAll('*')].filter(e => e.shadowRoot).concat([{shadowRoot: document}])
  .flatMap(e => [...e.shadowRoot.querySelectorAll('a[href]')])
  .filter(a => a.closest('ol')).map(a => a.href)
"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


def main(site: Path) -> None:
    """Ask every question, and end with an error where an answer is not found."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = started()
    try:
        for base in (site.as_uri(), f"http://127.0.0.1:{server.server_port}"):
            for question, page in QUESTIONS.items():
                ask(browser, base, question, page)
    finally:
        browser.quit()
        server.shutdown()


def started() -> webdriver.Chrome:
    """A Chromium without a network."""
    os.environ["SE_OFFLINE"] = "true"
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def ask(browser: webdriver.Chrome, base: str, question: str, page: str) -> None:
    """Type a question into the search; raise unless its page is among the first results."""
    browser.get(f"{base}/index.html")
    wait = WebDriverWait(browser, SECONDS)
    wait.until(lambda _: browser.find_element(By.CSS_SELECTOR, ".md-search__button")).click()
    wait.until(lambda _: browser.switch_to.active_element.tag_name != "body")  # the field is there
    for letter in question:  # as fast as a hand: the list is drawn anew at each
        browser.switch_to.active_element.send_keys(letter)
        time.sleep(0.05)
    try:
        wait.until(lambda _: any(link.startswith(f"{base}/{page}") for link in first(browser)))
    except TimeoutException:
        raise ValueError(f"{base}: {question!r} leads to {first(browser)}, expected {page}") from None


def first(browser: webdriver.Chrome) -> list[str]:
    """The pages that the first results lead to."""
    links: list[str] = browser.execute_script(RESULTS)
    return links[:FIRST]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
