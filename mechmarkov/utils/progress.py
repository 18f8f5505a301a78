"""Progress bars, where somebody is there to see them; several processes share one."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawArray
from typing import Any

from tqdm import tqdm

Told = bool | Callable[[int, int], None] | None


@contextmanager
def progress_bar(total: int, unit: str) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, for `with`: yields the function that is told the name of each thing that is done.

    Example:
        >>> with progress_bar(2, "probe") as done:
        ...     done("attention")
        ...     done("induction")
    """
    tqdm.monitor_interval = 0  # no thread of its own, because processes may be copied meanwhile
    with tqdm(total=total, disable=None, leave=False, unit=unit) as bar:

        def progress(name: str) -> None:
            bar.set_description(name)
            bar.update()

        yield progress


def watched() -> bool:
    """Returns whether stderr is a terminal, or the process is the kernel of a notebook.

    Bars are text in both, so that they show in Jupyter and in VS Code without widgets.
    """
    if sys.stderr.isatty():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Progress:
    """Counts the steps of parts that work at the same time, and tells a bar or a function.

    Args:
        name: What the bar is called.
        parts: How many parts there are: processes or threads.
        steps: How many steps these take together.
        told: Whether to draw a bar, by default where somebody sees it; or a function of the steps done and
            the steps in all.
        at_each_step: Whether it is told at every step; else when `tell` is called.
        aim: What the loss is compared with, in words; empty where nothing is known.

    Example:
        >>> progress = Progress("both", parts=2, steps=5, told=print, at_each_step=True)
        >>> progress.step(0, 1)
        1 5
        >>> progress.step(1, 3)
        4 5
    """

    def __init__(
        self, name: str, parts: int, steps: int, told: Told, *, at_each_step: bool, aim: str = ""
    ) -> None:
        self._done: Any = RawArray("q", max(1, parts))
        self._losses: Any = RawArray("d", [math.nan] * max(1, parts))
        self._aim = aim
        self._steps, self._told, self._at_each_step = steps, 0, at_each_step
        self._callback = told if callable(told) else None
        shown = watched() if told is None else told is True
        self._bar = tqdm(total=steps, desc=name, delay=2.0, disable=not shown)
        self.shows_loss = shown  # else nobody asks for it, which a GPU would have to wait for

    def loss(self, part: int, value: float) -> None:
        """Note the loss of a part's members, on average."""
        self._losses[part] = value

    def step(self, part: int, done: int) -> None:
        """Note that a part has taken `done` steps."""
        self._done[part] = done
        if self._at_each_step:
            self.tell()

    def tell(self) -> None:
        """Say how many steps are done."""
        before, self._told = self._told, sum(self._done)
        if known := [loss for loss in self._losses if not math.isnan(loss)]:
            self._bar.set_postfix_str(f"loss {sum(known) / len(known):.4g}{self._aim}", refresh=False)
        self._bar.update(self._told - before)
        if self._callback is not None and self._told > before:
            self._callback(self._told, self._steps)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()
