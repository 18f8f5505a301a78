"""Whether to draw progress bars: somebody has to be there to see them."""

import sys


def watched() -> bool:
    """Whether stderr is a terminal, or the process is the kernel of a notebook.

    Bars are text in both, so that they show in Jupyter and in VS Code without widgets.
    """
    if sys.stderr.isatty():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
