"""All folders' claims on one page: `python -m experiments.verdicts > docs/verdicts.md`."""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from experiments.claims import Claim, Kind
from experiments.claims_table import table
from experiments.harness import Study

HERE = Path(__file__).parent
HEAD = """# Verdicts

Every claim that was measured, and what came out. The folder of each paper has the words that are tested, both
settings, what differs between them, the figures, and the command that measures a claim again.

How to read a row:

- **Evidence.** ●●● is exact: a derivation or counterexample, in float64. ●● is training at the paper's
  own setting. ● is training at another, mostly smaller one.
- *Holds*, *holds with a correction* and *does not hold* are said of papers and of our derivations. A claim of
  a paper does not hold where a derivation or a counterexample says so, or 16 seeds at its own setting.
- *Not found in training*: our runs, at another setting or with fewer seeds, do not show it. That is not a
  refutation.
- *Our question*: no paper states it.
- *Undecided*: the 95 % interval (Wilson) of the count of runs includes one half. Three runs of three are
  undecided. Four of four decide, as a fair coin does in one of eight draws, and five of five, as in one of
  sixteen. With six runs and more a coin decides in at most one of twelve.
- *Not testable here*: the reason is in the folder.

This page is written by `python -m experiments.verdicts > docs/verdicts.md` from the committed results.
"""
NAMES: dict[Kind, str] = {
    "paper": "claims of papers",
    "derived": "derivations",
    "question": "questions of ours",
}


def studies() -> list[Study]:
    """All studies, in alphabetical order of their folders."""
    folders = sorted(path.parent.name for path in HERE.glob("*/__main__.py"))
    return [import_module(f"experiments.{name}.__main__").STUDY for name in folders]


def summary(claims: Sequence[Claim]) -> str:
    """How many of each kind came out how."""
    lines = []
    for kind, name in NAMES.items():
        counts = Counter(claim.verdict for claim in claims if claim.statement.kind == kind)
        told = ", ".join(f"{n} × {verdict}" for verdict, n in counts.most_common())
        lines.append(f"- {sum(counts.values())} {name}: {told}.")
    return "\n".join(lines)


def page() -> str:
    """The page, as Markdown."""
    sections, everything = [], []
    for study in studies():
        claims = study.committed()
        everything += claims
        title = (study.folder / "reading.md").read_text().splitlines()[0].removeprefix("# ")
        sections.append(f"## [{title}](../experiments/{study.folder.name}/README.md)\n\n{table(claims)}")
    return "\n\n".join([f"{HEAD}\n{summary(everything)}", *sections]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
