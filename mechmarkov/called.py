"""`python -m mechmarkov.called …`: a command that ends with its caller, who holds the other end of its input.

A server that is killed cannot end what it started, and a training would go on for nobody.
"""

import os
import runpy
from threading import Thread


def _end_with_caller() -> None:
    while os.read(0, 1):  # not `sys.stdin`: a thread that reads it holds a lock that the end of Python needs
        pass
    os._exit(1)


if __name__ == "__main__":
    Thread(target=_end_with_caller, daemon=True).start()
    runpy.run_module("mechmarkov", run_name="__main__")
