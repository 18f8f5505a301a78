"""A figure as a picture for a page, drawn by Chromium."""

import subprocess
import sys
from pathlib import Path

import plotly.graph_objects as go

SECONDS, TRIES = 60, 3
DRAW = """
import sys, plotly.io
plotly.io.from_json(sys.stdin.read()).write_image(sys.argv[1], width=900, height=420)
"""


def draw(figure: go.Figure, path: Path) -> None:
    """Write the figure as SVG, as wide as a page.

    Now and then kaleido waits for its browser for ever (plotly/Kaleido#441), in threads that the end of a
    process waits for. So a process of its own draws, and after a minute another.

    Raises:
        RuntimeError: There is no Chrome or Chromium, it fails, or it gave no picture three times.
    """
    for _ in range(TRIES):
        command = [sys.executable, "-c", DRAW, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as drawing:
            try:
                _, said = drawing.communicate(figure.to_json(), timeout=SECONDS)
            except subprocess.TimeoutExpired:
                drawing.kill()
                continue
        if drawing.returncode:
            raise RuntimeError(said.strip())
        return
    raise RuntimeError(f"Chromium gave no picture in {SECONDS} s, {TRIES} times")
