"""Lays out the pages of the guide in a folder: `python docs/guide/pages.py build/guide/pages`.

The folder has the repository's own layout, so that a relative link leads to the same place in both. Pages are
the Markdown files below and what they link to; tutorials come as they were executed by `make notebooks`,
reports and their glossary from `build/gallery`.
`python docs/guide/pages.py --finish SITE` takes out what the finished site would load from a network, and
looks for links that lead nowhere.
"""

import os
import re
import shutil
import sys
import tomllib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import plotly
from executed import markdown

from mechmarkov.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")
FOLDERS = {"docs": "**/*.md", "experiments": "*/README.md"}
# Wide tables have the room of the list of headings, too.
WIDE = ("verdicts", "systems", "our-questions", "our-derivations", "beside-the-papers", "coverage")
WITHOUT_HEADINGS = "---\nhide:\n  - toc\n---\n\n"
# Zensical's search without a server asks a network for what `search.js` does.
FROM_A_NETWORK = re.compile(r'<script src="https?://[^>]*></script>')
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def main(folder: Path) -> None:
    """Write all pages anew."""
    shutil.rmtree(folder, ignore_errors=True)
    found = [path for name, pattern in FOLDERS.items() for path in sorted((ROOT / name).glob(pattern))]
    for path in [*(ROOT / page for page in PAGES), *found]:
        _write(folder, path, path.read_text())
    for tutorial in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        notebook = ROOT / "build" / "notebooks" / "tutorials" / f"{tutorial.stem}.ipynb"
        _write(folder, tutorial.with_suffix(".md"), markdown(notebook))
    _write(folder, ROOT / "docs" / "command-line.md", command_line())
    (folder / "docs" / "guide").mkdir()
    for name in ("style.css", "search.js", "filter.js"):
        shutil.copy(Path(__file__).parent / name, folder / "docs" / "guide")
    shutil.copytree(
        ROOT / "build" / "gallery", folder / "docs" / "gallery", ignore=shutil.ignore_patterns("*.md")
    )
    for page in sorted((ROOT / "build" / "gallery").glob("*.md")):
        _write(folder, ROOT / "docs" / "gallery" / page.name, page.read_text())
    plotly_js = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    shutil.copy(plotly_js, folder / "docs" / "tutorials" / "plotly.min.js")


@cache
def _readers() -> dict[str, str]:
    return tomllib.loads((Path(__file__).parent / "readers.toml").read_text())


def reader_of(page: Path) -> str:
    """For whom a page is.

    Raises:
        KeyError: `readers.toml` has neither the page nor a folder of it.
    """
    named = [str(place) for place in (page, *page.parents) if str(place) in _readers()]
    if not named:
        raise KeyError(f"docs/guide/readers.toml says of {page} not for whom it is")
    return _readers()[named[0]]


def command_line() -> str:
    """The help of every command as one page."""
    blocks = ["# On the command line\n\nWhat `mechmarkov --help` and `mechmarkov COMMAND --help` print.\n"]
    for name, command in cli.commands.items():
        inner = command.commands if isinstance(command, click.Group) else {}
        parts = {f"{name} {word}": part for word, part in inner.items()}
        for words, found in {name: command, **parts}.items():
            context = click.Context(found, info_name=f"mechmarkov {words}", max_content_width=100)
            blocks.append(f"## {words}\n\n```text\n{found.get_help(context)}\n```\n")
    return "\n".join(blocks)


def _write(folder: Path, path: Path, text: str) -> None:
    """A page at its place in the repository; files that it links to come along."""
    for link in LINK.findall(text):
        parts = urlsplit(link)
        target = path.parent / unquote(parts.path)
        if not parts.scheme and target.is_file() and target.suffix != ".md" and not _is_tutorial(target):
            copy = folder / target.resolve().relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, copy)
    page = folder / path.relative_to(ROOT)
    page.parent.mkdir(parents=True, exist_ok=True)
    text = LINK.sub(lambda match: _as_page(path.parent, match[1]), text)
    title, _, rest = text.partition("\n")
    front = WITHOUT_HEADINGS if path.stem in WIDE else ""
    page.write_text(f"{front}{title}\n\n*For {reader_of(page.relative_to(folder))}.*\n{rest}")


def _as_page(folder: Path, link: str) -> str:
    """A link to a tutorial leads to its page."""
    return f"{link.removesuffix('.py')}.md" if _is_tutorial(folder / link) else link


def _is_tutorial(path: Path) -> bool:
    return path.suffix == ".py" and path.resolve().parent == ROOT / "docs" / "tutorials"


class _Links(HTMLParser):
    """Where a page leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


def take_out_network(site: Path) -> None:
    """Take scripts of other hosts out of all pages: nothing is loaded from a network."""
    for page in site.rglob("*.html"):
        page.write_text(FROM_A_NETWORK.sub("", page.read_text()))


def check(site: Path) -> list[str]:
    """Links of a site's pages to files it does not have; Zensical looks only at links to pages."""
    missing = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # its links are from the root of a server
            continue
        links = _Links()
        links.feed(page.read_text())
        for link in links.found:
            parts = urlsplit(link)
            inside = not parts.scheme and not parts.netloc and parts.path
            if inside and not os.path.isfile(page.parent / unquote(parts.path)):
                missing.append(f"{page.relative_to(site)}: {link}")
    return missing


if __name__ == "__main__":
    if sys.argv[1] == "--finish":
        take_out_network(Path(sys.argv[2]))
        broken = check(Path(sys.argv[2]))
        sys.exit("\n".join(["links that lead nowhere:", *broken]) if broken else 0)
    main(Path(sys.argv[1]))
