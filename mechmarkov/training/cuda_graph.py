"""A training step as one CUDA graph: one launch for a hundred, which take longer than what they compute.

The first steps run as they are, so that libraries prepare themselves. Then one is recorded, and all further
steps are replays of it, on the same memory.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Results = dict[str, Tensor]

STEPS_BEFORE = 3
SYNCHRONISES = "called a synchronizing CUDA operation"  # torch's words, from `set_sync_debug_mode`


class StepAsGraph:
    """Calls a function of tensors, from the fourth time on by replaying what it launched.

    The function changes tensors in place and returns others; it neither waits for the GPU nor copies from the
    host. One that does is called as it is, and a warning says so. It is handed over at each call: a reference
    to a method would keep its object's GPU memory until Python collects cycles.
    """

    def __init__(self) -> None:
        self._steps, self._waits = 0, False
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._results: Results = {}

    def __call__(self, function: Callable[..., Results], *inputs: Tensor) -> Results:
        """Returns what the function returns; a replay overwrites it."""
        if self._waits:
            return function(*inputs)
        if not self._inputs:
            self._inputs = tuple(given.clone() for given in inputs)
        for buffer, given in zip(self._inputs, inputs, strict=True):
            buffer.copy_(given)
        if self._steps < STEPS_BEFORE:
            self._steps += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                results = self._watched(function) if self._steps == STEPS_BEFORE else function(*self._inputs)
            torch.cuda.current_stream().wait_stream(self._stream)
            return results
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._results = function(*self._inputs)
        self._graph.replay()
        return self._results

    def _watched(self, function: Callable[..., Results]) -> Results:
        """Run as it is, to see whether it waits: recording that fails, and leaves CUDA unusable."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                results = function(*self._inputs)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        waits = [each for each in caught if SYNCHRONISES in str(each.message)]
        if waits:
            self._waits = True
            warnings.warn(
                f"a training step waits for the GPU ({waits[0].filename}:{waits[0].lineno}), so that it is "
                "not recorded as a CUDA graph: it takes several times as long",
                stacklevel=2,
            )
        return results
