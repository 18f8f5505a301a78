"""All folders' claims on one page: `python -m experiments.verdicts > docs/verdicts.md`."""

from collections import Counter
from importlib import import_module
from pathlib import Path

from experiments.harness import Study, load, rows

HERE = Path(__file__).parent
HEAD = """# Verdicts

Every published claim that was measured: what it says, what came out, and the one command that measures it
again. The folder of each paper has the figures, how each number was measured, and how to read them. This page
is written by `python -m experiments.verdicts > docs/verdicts.md` from the folders' committed results.
"""


def studies() -> list[Study]:
    """All studies, in alphabetical order of their folders."""
    folders = sorted(path.parent.name for path in HERE.glob("*/__main__.py"))
    return [import_module(f"experiments.{name}.__main__").STUDY for name in folders]


def page() -> str:
    """The page, as Markdown."""
    head = ("Claim", "Source", "Paper", "Measured", "Verdict", "Command")
    sections, counts = [], Counter[str]()
    for study in studies():
        found = [claim for name in study.names for claim in load(study.folder, name)[0]]
        counts.update(claim.verdict for claim in found)
        title = (study.folder / "reading.md").read_text().splitlines()[0].removeprefix("# ")
        cells = [
            (c.claim, c.source, c.paper, c.measured, f"**{c.verdict}**", f"`{c.command}`") for c in found
        ]
        sections.append(f"## [{title}](../experiments/{study.folder.name}/README.md)\n\n{rows(head, cells)}")
    summary = ", ".join(f"{n} × {verdict}" for verdict, n in counts.most_common())
    return "\n\n".join([f"{HEAD}\n{sum(counts.values())} claims: {summary}.", *sections]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
