"""Progress bars, where somebody is there to see them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


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
