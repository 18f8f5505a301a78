"""How far the stacks of a training are, and the sign by which all of them end early; processes share both."""

import math
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any

from tqdm import tqdm

from mechmarkov.utils.progress import watched

Told = bool | Callable[[int, int], None] | None


class Progress:
    """Counts the steps of every stack, and tells a bar or a function.

    Args:
        name: What the bar is called.
        stacks: How many stacks.
        steps: How many steps these take together.
        told: Whether to draw a bar, by default where somebody sees it; or a function of the steps done and
            the steps in all.
        at_each_step: Whether it is told at every step; else when `tell` is called.
        aim: What the loss is compared with, in words; empty where nothing is known.
    """

    def __init__(
        self, name: str, stacks: int, steps: int, told: Told, *, at_each_step: bool, aim: str = ""
    ) -> None:
        self._done: Any = RawArray("q", max(1, stacks))
        self._losses: Any = RawArray("d", [math.nan] * max(1, stacks))
        self._aim = aim
        self._steps, self._told, self._at_each_step = steps, 0, at_each_step
        self._callback = told if callable(told) else None
        shown = watched() if told is None else told is True
        self._bar = tqdm(total=steps, desc=name, delay=2.0, disable=not shown)
        self.shows_loss = shown  # else nobody asks for it, which a GPU would have to wait for

    def loss(self, stack: int, value: float) -> None:
        """The loss of a stack's members, on average, is that now."""
        self._losses[stack] = value

    def step(self, stack: int, done: int) -> None:
        """A stack has taken that many steps."""
        self._done[stack] = done
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


class _StoppedError(Exception):
    """Another stack failed."""


class Stop:
    """Lets every stack end at its next step, once one has failed."""

    def __init__(self) -> None:
        self._sign: Any = RawValue("b", 0)

    def set(self) -> None:
        """Give the sign."""
        self._sign.value = 1

    def check(self) -> None:
        """Raise where the sign was given."""
        if self._sign.value:
            raise _StoppedError
