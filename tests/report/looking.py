"""What the tests look for on a page: text that is cut or covered, and what axe-core objects to."""

import json

from selenium_axe_python import Axe
from window import Browser

# Texts that are cut off by their frame, and boxes that are wider than they show and are not meant to scroll.
CUT = r"""
  const found = [], wide = document.documentElement.clientWidth;
  const say = (e) => `${e.tagName} ${e.className} in ${e.closest("[id]")?.id}: ${e.textContent.trim()}`;
  const seen = (e) => e.checkVisibility() && !e.closest(".unseen, .wide, .panel");
  for (const e of document.querySelectorAll("body, body *:not(svg *)"))
    if (seen(e) && getComputedStyle(e).display !== "inline" && e.scrollWidth > e.clientWidth + 1
        && e.clientWidth && !e.querySelector(".panel")) found.push(`scrolls: ${say(e)}`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || e.closest("script, style, noscript, option") || !seen(e)) continue;
    range.selectNodeContents(texts.currentNode);
    const box = range.getBoundingClientRect(), svg = e.closest("svg.main-svg")?.getBoundingClientRect();
    const frame = svg ?? { left: 0, right: wide, top: -Infinity, bottom: Infinity };
    if (box.width && (box.left < frame.left - 2 || box.right > frame.right + 2
        || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)) found.push(`is cut: ${say(e)}`);
  }
  return found;
"""

# Words in tables that are broken over several lines, because their column is too narrow.
BROKEN = r"""
  const found = [], range = document.createRange();
  for (const cell of document.querySelectorAll("th, td")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (cell.checkVisibility() && texts.nextNode()) {
      const text = texts.currentNode;
      if (!text.parentElement.checkVisibility() || text.parentElement.closest("[popover]")) continue;
      for (const word of text.data.matchAll(/(?<!\S)[\p{L}.,:()]{3,14}(?!\S)/gu)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
          found.push(`${word[0]} is broken in ${cell.closest("[id]")?.id}: ${cell.textContent.trim()}`);
      }
    }
  }
  return found;
"""

# Labels of the circuit, and labels along one axis, that lie on each other.
COVERED = r"""
  const found = [];
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  for (const plot of document.querySelectorAll(".js-plotly-plot"))
    for (const of of [".annotation-text-g", ".xtick text, .xtitle", ".ytick text, .ytitle", ".legendtext"]) {
      // The box of a slanted label is larger than its text.
      const upright = [...plot.querySelectorAll(of)].filter(
        (e) => e.textContent && !/rotate\((?!0|-?90)/.test(e.getAttribute("transform")));
      const labels = upright.map((e) => [e.textContent, e.getBoundingClientRect()]);
      labels.forEach(([text, box], i) => labels.slice(0, i).forEach(([other, its]) => {
        if (overlap(box, its)) found.push(`${plot.closest("figure").id}: ${text} on ${other}`);
      }));
    }
  return found;
"""


def violations(browser: Browser, **options: object) -> list[str]:
    """What axe-core calls serious or critical."""
    # What is inside a picture with a name of its own is nothing to a screen reader, and much to look through.
    Axe(browser.driver).inject()
    browser.js("document.querySelectorAll('.main-svg').forEach((svg) => svg.replaceChildren())")
    found = Axe(browser.driver).run(options=json.dumps({"resultTypes": ["violations"], **options}))
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def assert_nothing_is_wrong(browser: Browser, width: int) -> None:
    """That a page scrolls only down and cuts nothing, and that neither axe-core nor the console complains."""
    assert browser.js("return document.documentElement.scrollWidth") <= width
    cut = browser.js(CUT)
    assert cut == [], cut
    broken = browser.js(BROKEN)
    assert broken == [], broken
    assert violations(browser) == []
    assert browser.said() == []
