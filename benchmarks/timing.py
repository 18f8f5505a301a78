"""Alternatives timed in turn, A B A B …: medians and ratios, so that a drifting machine drifts for all."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

README = Path(__file__).parent / "README.md"


def report(title: str, alternatives: Mapping[str, Callable[[], object]], repeats: int) -> None:
    """Time each alternative `repeats` times after one warm-up each, and print them beside the first."""
    for run in alternatives.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, run in alternatives.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    first = next(iter(alternatives))
    print(title)
    for name, taken in seconds.items():
        ratios = [taken[i] / seconds[first][i] for i in range(repeats)]
        spread = f"{min(taken):.3f} - {max(taken):.3f}"
        print(f"  {statistics.median(taken):8.3f} s  ({spread})  {statistics.median(ratios):6.2f} x  {name}")


def device_name(device: str) -> str:
    """What a device is called in a table."""
    return torch.cuda.get_device_name() if device == "cuda" else "the processor"


def between(page: str, begin: str, end: str, text: str) -> str:
    """Returns a page with a text between two marks; a ValueError if it does not have each of them once."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def write_table(name: str, lines: list[str]) -> None:
    """Put lines between the markers of a name in the README."""
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    README.write_text(between(README.read_text(), *marks, "\n".join(lines)))
