"""Which parts of a paper have a row, and why the others have none: `experiments/coverage/PAPER.toml`."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.claims import Claim
from experiments.claims_table import rows
from experiments.statements import papers

FOLDER = Path(__file__).parent / "coverage"


@dataclass(frozen=True)
class Item:
    """A part of a paper, such as "lemma C.7", with its rows, or the reason why there is none."""

    name: str
    rows: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Coverage:
    """What of one paper is covered.

    Attributes:
        paper: Its key.
        text: Whether its text was read.
        because: Why not.
        inventory: Names of all its parts by kind, where the text was read.
        items: Parts with their rows or reasons.
    """

    paper: str
    text: bool
    because: str
    inventory: Mapping[str, Sequence[str]]
    items: tuple[Item, ...]


def coverage() -> dict[str, Coverage]:
    """What there is, by paper."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        data = tomllib.loads(path.read_text())
        items = tuple(
            Item(item["name"], tuple(item.get("rows", ())), item.get("reason", "")) for item in data["item"]
        )
        inventory, because = data.get("inventory", {}), data.get("because", "")
        found[data["paper"]] = Coverage(data["paper"], data["text"], because, inventory, items)
    return found


def missing(one: Coverage, claims: Sequence[Claim]) -> list[str]:
    """What is wrong with a paper's coverage, in words; nothing where all is well."""
    wrong = []
    known = {claim.identifier for claim in claims}
    names = [item.name for item in one.items]
    for kind, numbers in one.inventory.items():
        for number in numbers:
            if not any(name.split(",")[0].split(" (")[0] == f"{kind} {number}" for name in names):
                wrong.append(f"{kind} {number} is not there")
    for item in one.items:
        if bool(item.rows) == bool(item.reason):
            wrong.append(f"{item.name} has rows and a reason, or neither")
        wrong += [f"{item.name}: there is no row {row}" for row in item.rows if row not in known]
    listed = {row for item in one.items for row in item.rows}
    for claim in claims:
        of_paper = claim.statement.kind == "paper" and claim.statement.about == one.paper
        if of_paper and claim.identifier not in listed:
            wrong.append(f"row {claim.identifier} is of no part")
    if one.text == bool(one.because):
        wrong.append("text and because: one of them says whether the text was read, the other why not")
    return wrong


def page(places: Mapping[str, str]) -> str:
    """The page of what is covered, as Markdown.

    Args:
        places: The page on which each row stands.
    """
    parts = [
        "# What is covered\n\nOf each paper that this project set out from: its parts, and their rows in "
        "[the verdicts](verdicts.md), or why there is none."
    ]
    for key, one in coverage().items():
        cells = [
            (item.name, item.reason or ", ".join(f"[{row}]({places[row]}#{row})" for row in item.rows))
            for item in one.items
        ]
        told = "Read in full." if one.text else one.because
        parts.append(f"## {papers()[key].short}\n\n{told}\n\n{rows(('Part', 'Rows, or why none'), cells)}")
    return "\n\n".join(parts) + "\n"
