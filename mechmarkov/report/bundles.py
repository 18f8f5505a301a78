"""The report's two JavaScript libraries, packed, and the hashes by which its policy admits them."""

import base64
import gzip
import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def plotly_script() -> str:
    """Plotly.js as the text of an inline script, which defines `Plotly`."""
    return inline_script(_package_file("plotly", "package_data/plotly.min.js"))


@cache
def circuitsvis_script() -> str:
    """The CircuitsVis bundle as the text of an inline script, which defines `CircuitsVis`."""
    return inline_script(_package_file("circuitsvis", "dist/cdn/iife.js"))


def inline_script(source: str) -> str:
    r"""JavaScript that can stand between script tags and that the browser reads unchanged.

    A closing tag or the opening of a comment inside a string is broken up by a backslash, which means nothing
    there; line ends become what an HTML parser makes of them; the reference to a source map, which a browser
    would try to load, is dropped.

    >>> inline_script("x = '</script>'")
    "x = '<\\/script>'"
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    source = re.sub(r"^//# sourceMappingURL=.*$", "", source, flags=re.MULTILINE)
    return re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")


@cache
def packed(script: str) -> str:
    """A script as base64 of its gzip, a third of its size; the page unpacks it and its hash admits it."""
    return base64.b64encode(gzip.compress(script.encode(), compresslevel=6, mtime=0)).decode()


@cache
def script_hash(script: str) -> str:
    """The source expression by which a Content-Security-Policy admits exactly this inline script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _package_file(package: str, path: str) -> str:
    # Found without importing: CircuitsVis imports torch, and only the file is wanted.
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed: pip install {package}")
    file = Path(spec.origin).parent / path
    if not file.is_file():
        raise FileNotFoundError(
            f"{package} was installed without {path}, which the report needs: reinstall it"
        )
    return file.read_text(encoding="utf-8")
