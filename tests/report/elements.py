"""The texts of a page's elements, by tag and class."""

from html.parser import HTMLParser

VOID = ("meta", "br", "input", "rect", "line", "circle", "img", "link", "hr")


class _Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, str, list[str]]] = []
        self.closed: list[tuple[str, str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class") or "", []))

    def handle_endtag(self, tag: str) -> None:
        while self.open and tag in [name for name, *_ in self.open]:
            name, css, texts = self.open.pop()
            self.closed.append((name, css, " ".join("".join(texts).split())))
            if name == tag:
                return

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] in ("script", "style"):
            return
        for *_, texts in self.open:
            texts.append(data)


def texts(page: str, tag: str, css: str = "") -> list[str]:
    """Returns the texts of the elements of a tag and a class, in the order in which they end.

    >>> texts('<p class="a">x <b>y</b></p><p>z</p>', "p", "a")
    ['x y']
    """
    return [
        text for name, own, text in _Elements(page).closed if name == tag and (not css or css in own.split())
    ]
