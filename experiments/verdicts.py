"""All folders' claims on one page: `python -m experiments.verdicts > docs/verdicts.md`."""

from collections import Counter
from pathlib import Path

from experiments.claims import Claim, table
from experiments.store import load

HERE = Path(__file__).parent
HEAD = """# Verdicts

Every published claim that was measured: what it says, what came out, and the one command that measures it
again. The folder of each paper has the figures, how each number was measured, and how to read them. This page
is written by `python -m experiments.verdicts > docs/verdicts.md` from the folders' committed results.
"""


def folders() -> list[Path]:
    """The folders with committed results, in alphabetical order."""
    return sorted(path.parent for path in HERE.glob("*/results"))


def claims(folder: Path) -> list[Claim]:
    """All committed claims of a folder, in the order of its page."""
    page = (folder / "README.md").read_text()
    found = [claim for path in (folder / "results").glob("*.json") for claim in load(folder, path.stem)[0]]
    return sorted(found, key=lambda claim: page.index(table([claim]).splitlines()[-1]))


def row(claim: Claim) -> str:
    """One claim as a row."""
    cells = (
        claim.claim,
        claim.source,
        claim.paper,
        claim.measured,
        f"**{claim.verdict}**",
        f"`{claim.command}`",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The page, as Markdown."""
    parts, counts = [], Counter[str]()
    for folder in folders():
        found = claims(folder)
        counts.update(claim.verdict for claim in found)
        title = (folder / "reading.md").read_text().splitlines()[0].removeprefix("# ")
        parts.append(
            f"## [{title}](../experiments/{folder.name}/README.md)\n\n"
            "| Claim | Source | Paper | Measured | Verdict | Command |\n|---|---|---|---|---|---|\n"
            + "\n".join(map(row, found))
        )
    summary = ", ".join(f"{n} × {verdict}" for verdict, n in counts.most_common())
    return "\n\n".join([f"{HEAD}\n{sum(counts.values())} claims: {summary}.", *parts]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
