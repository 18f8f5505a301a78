"""`--open` hands the page that was written to a browser."""

import webbrowser
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from mechmarkov.cli import main

SWEEP = """
name = "small"
recipe = "binary-p02-q03-untied"
seeds = 1
[set]
steps = 2
"model.n_ctx" = 8
checkpoints = []
[grid]
"source.p" = [0.2, 0.3]
"""


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """The addresses that a browser was given: a program that notes them."""
    browser, told = tmp_path / "browser", tmp_path / "opened.txt"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {told}\n')
    browser.chmod(0o755)
    monkeypatch.setattr(webbrowser, "_tryorder", ["browser"])
    own = webbrowser.GenericBrowser([str(browser), "%s"])
    monkeypatch.setattr(webbrowser, "_browsers", {"browser": [None, own]})
    monkeypatch.chdir(tmp_path)
    return lambda: told.read_text().split()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (["probe", "--example", "trap", "--probes", "attention", "--sequences", "8"], "report.html"),
        (["tokens", "--tokens", "0 1 2 0", "--example", "induction"], ".html"),
        (["bench", "--methods", "noise-nodes", "--cases", "direct", "--seeds", "1"], "bench.html"),
        (["sweep", "small.toml"], "phase.html"),
    ],
    ids=["probe", "tokens", "bench", "sweep"],
)
def test_the_page_is_opened(words, page, opened, capsys):
    Path("small.toml").write_text(SWEEP)
    main([*words, "--open"])
    (address,) = opened()
    assert address.endswith(page)
    assert Path(url2pathname(urlsplit(address).path)).read_text("utf-8").startswith("<!")


def test_the_page_of_an_index_is_opened(opened, capsys):
    main(["probe", "--example", "trap", "--probes", "attention", "--sequences", "8", "--out", "runs/trap"])
    main(["index", "runs", "--open"])
    assert opened() == [Path("runs/index.html").resolve().as_uri()]


def test_without_a_browser_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    monkeypatch.chdir(tmp_path)
    main(["probe", "--example", "trap", "--probes", "attention", "--sequences", "8", "--open"])
    assert "warning: no browser was found to open report/report.html" in capsys.readouterr().err
