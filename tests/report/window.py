"""A Chromium window and the questions that the tests ask of it."""

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait


@dataclass
class Browser:
    """A Chromium window and the questions that the tests ask of it."""

    driver: webdriver.Chrome

    def open(self, path: Path, width: int = 1280, scheme: str = "light", address: str = "") -> None:
        self.driver.get("about:blank")
        self.said(), self.requests()  # what the last page left behind
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.scheme(scheme)
        self.driver.get(path.as_uri() + address)
        # A busy driver may take the end of the blank page for that of this one, whose script has not yet run.
        loaded = "return location.href !== 'about:blank' && document.readyState === 'complete'"
        self.wait(loaded, "the page is not loaded")

    def scheme(self, name: str) -> None:
        """Light or dark, as the reader's system says."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, what: str) -> None:
        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(script), what
        )

    def draw_all(self) -> list[str]:
        """Unfolds all, scrolls to every figure and returns their ids once each says that it is drawn."""
        self.js("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
        ids: list[str] = self.js(
            "return [...document.querySelectorAll('figure')]"
            ".filter((f) => !f.closest('[hidden]')).map((f) => f.id)"
        )
        for figure in ids:
            # Again until it is drawn: figures above it that are drawn meanwhile push it down.
            self.wait(
                f"document.getElementById('{figure}').scrollIntoView({{behavior: 'instant'}});"
                f"return !!document.querySelector('#{figure} .drawing.drawn')",
                f"{figure} is not drawn",
            )
        self.wait(
            "return [...document.querySelectorAll('[data-kind=attention] .drawing')]"
            ".filter((d) => !d.closest('[hidden]')).every((d) => d.querySelector('canvas')?.width > 100)",
            "CircuitsVis has drawn no canvas",
        )
        return ids

    def printed_pages(self, width: float, height: float) -> int:
        """Prints to PDF, on paper of a size in inches, and counts the pages."""
        paper = {"paperWidth": width, "paperHeight": height}
        pdf = base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", paper)["data"])
        return len(re.findall(rb"/Type\s*/Page\b", pdf))

    def said(self) -> list[str]:
        """Returns what the console holds since it was last asked, errors and warnings and all else."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Returns the addresses asked for since the last call that are not part of a page itself."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        urls = [p["request"]["url"] for p in sent]
        return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]
