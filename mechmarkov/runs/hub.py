"""Runs on the Hugging Face Hub: `hf://owner/name`, and the card that says what a run is."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mechmarkov.safe import folder
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.extras import needed
from mechmarkov.utils.text import markdown, printable, quoted, shown

PREFIX = "hf://"
TIMEOUT = 10.0  # seconds
NAME = r"[\w.-]+/[\w.-]+"
HEAD = """---
library_name: mechmarkov
tags: [mechanistic-interpretability, markov-chains]
---
# {title}

```python
import mechmarkov as mm
run = mm.load("hf://OWNER/NAME")  # or the path of this folder
```

| | |
|---|---|"""
ADDRESS = re.compile(rf"hf://({NAME})(?:@([\w./-]+))?")


@runtime_checkable
class Summarised(Protocol):
    """Has a summary and a picture for a model card, as a `Result` of `mm.probe` has."""

    def summary(self) -> dict[str, Any]:
        """Returns what was measured, as plain data."""

    def picture(self) -> str | None:
        """Returns the text of an SVG, or None where there is nothing to draw."""


def pages(title: str, contents: Mapping[str, str], result: Summarised | None) -> dict[str, str]:
    """Write a model card in Markdown, and the picture in it.

    Args:
        title: Its heading.
        contents: Rows of the table below it.
        result: What the probes found; None leaves it out.

    Returns:
        Texts by file name: `README.md` and, where the result has one, `curve.svg`.

    Raises:
        TypeError: A result without summary or picture.

    Example:
        >>> pages("A circle", {"steps": "0, 10 (2)"}, None)["README.md"].splitlines()[-1]
        '| steps | 0, 10 (2) |'
    """
    if result is not None and not isinstance(result, Summarised):
        raise TypeError(f"result is {shown(result)}, expected what mm.probe returned")
    picture = None if result is None else result.picture()
    lines = [HEAD.format(title=title)]
    lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in contents.items()]
    if picture is not None:
        lines.append(f"\n![Loss over training and of the exact predictors]({folder.PICTURE})")
    summary = {} if result is None else result.summary()
    if summary.get("badge"):
        lines.append(f"\n**{_cell(summary['badge'])}**: {_cell(summary['headline'])}")
    lines += [f"\n**{_cell(warning)}**" for warning in summary.get("warnings", ())]
    for name, outcome in summary.get("probes", {}).items():
        lines.append(
            f"\n## {_cell(name)}\n\n{_cell(outcome['verdict'])}\n\n"
            "| score | value | unit | null |\n|---|---|---|---|"
        )
        for key, score in outcome["scores"].items():
            cells = (key, _number(score["value"]), score["unit"], _null(score.get("null")))
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    drawn = {} if picture is None else {folder.PICTURE: picture}
    return {folder.CARD: "\n".join(lines) + "\n"} | drawn


@needed()
def fetch(address: str) -> Path:
    """Download `hf://owner/name` or `hf://owner/name@revision` from the Hugging Face Hub.

    Returns:
        The folder of the local copy, for `mechmarkov.safe.folder.read`.

    Raises:
        RunFileError: One line, for another address, a file that does not belong, or a repository that cannot
            be had.
    """
    from huggingface_hub import HfApi, snapshot_download  # a second that local files do not need

    match = ADDRESS.fullmatch(address)
    if match is None:
        raise RunFileError(f"path is {shown(address)}, expected hf://owner/name or hf://owner/name@revision")
    name, revision = match.groups()
    with _naming(address, "be had"):
        # One request: `list_repo_files` tries six times, and is 23 seconds without a network.
        found = HfApi().model_info(name, revision=revision, timeout=TIMEOUT).siblings or []
        for file in (one.rfilename for one in found):
            if file not in folder.KNOWN:
                raise RunFileError(f"{address} holds {quoted(file)}, expected only a run's files")
        return Path(snapshot_download(name, revision=revision, allow_patterns=[folder.RUN, folder.WEIGHTS]))


@needed()
def check_name(name: str) -> None:
    """Raise RunFileError unless it names a repository, `owner/name`."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise RunFileError(f"name is {shown(name)}, expected owner/name")


def push(name: str, data: dict[str, Any], files: Mapping[str, str], private: bool) -> str:
    """Upload a run's folder to the Hugging Face Hub; `Run.push_to_hub` calls it.

    Args:
        name: The repository, `owner/name`; it is made if it is not there.
        data: The run as plain values and tensors (`schema.dump`).
        files: The texts of `pages`, in which `OWNER/NAME` becomes the name.
        private: Whether a repository that is made is private.

    Returns:
        The address, `hf://owner/name`.

    Raises:
        RunFileError: One line, for another name, and for what the Hub refuses.
    """
    from huggingface_hub import HfApi

    address = f"{PREFIX}{name}"
    check_name(name)
    with tempfile.TemporaryDirectory() as temporary:
        named = {file: text.replace("OWNER/NAME", name) for file, text in files.items()}
        made = folder.write(Path(temporary) / "run", data, named)
        with _naming(address, "be written"):
            api = HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=made, commit_message="A run of mechmarkov")
    return address


@contextmanager
def _naming(address: str, what: str) -> Iterator[None]:
    """One line for whatever the library raises, which differs by what the network does."""
    try:
        yield
    except RunFileError:
        raise
    except Exception as error:
        why = printable(" ".join(str(error).split()), 200)
        raise RunFileError(f"{address} cannot {what}: {why}") from error


def _number(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _null(null: float | list[float] | None) -> object:
    """Returns a score's null: by chance, or the middle of fresh models and their range."""
    if isinstance(null, list):
        low, middle, high = map(_number, null)
        return f"{middle} ({low} to {high})"
    return "–" if null is None else _number(null)


def _cell(value: object) -> str:
    return markdown(printable(str(value), 500))
