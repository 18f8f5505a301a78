"""An executed notebook as a Markdown page: text, code, and what each cell showed."""

import html
import json
from pathlib import Path
from typing import Any

SCRIPT = '<script src="plotly.min.js"></script>\n'


def markdown(path: Path) -> str:
    """The page of a notebook; plotly's figures draw themselves with the script that lies next to it.

    Raises:
        ValueError: A cell that raised, or one that was not executed.
    """
    blocks = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
        elif cell["cell_type"] == "code":
            if source and cell["execution_count"] is None:
                raise ValueError(f"{path}: cell {number} was not executed: make notebooks")
            blocks.append(f"```python\n{source}\n```")
            for place, output in enumerate(cell["outputs"]):
                blocks.append(_shown(output, f"figure-{number}-{place}", f"{path}: cell {number}"))
    return "\n\n".join([block for block in blocks if block] + [""])


def _shown(output: dict[str, Any], name: str, where: str) -> str:
    if output["output_type"] == "error":
        raise ValueError(f"{where} raised {output['ename']}")
    if output["output_type"] == "stream":  # what goes to stderr is progress and warnings
        return _text("".join(output["text"])) if output["name"] == "stdout" else ""
    data = output["data"]
    if "application/vnd.plotly.v1+json" in data:
        return _figure(data["application/vnd.plotly.v1+json"], name)
    if "text/html" in data:
        return f'<div class="output">\n{"".join(data["text/html"])}\n</div>'
    return _text("".join(data["text/plain"]))


def _text(text: str) -> str:
    """Verdicts are long lines: they wrap."""
    return f'<pre class="output"><code>{html.escape(text.rstrip())}</code></pre>'


def _figure(figure: dict[str, Any], name: str) -> str:
    parts = [json.dumps(figure[part]).replace("<", "\\u003c") for part in ("data", "layout")]
    draw = f'Plotly.newPlot("{name}", {parts[0]}, {parts[1]}, {{responsive: true}})'
    return f'{SCRIPT}<div id="{name}"></div>\n<script>{draw}</script>'
