"""A claim of a paper, what was measured, and the verdict; and the table made of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from scipy.stats import binomtest

Verdict = Literal["holds", "holds with a correction", "does not hold", "not testable here"]


@dataclass(frozen=True)
class Claim:
    """One row of a table.

    Attributes:
        name: How `--only` asks for it.
        claim: What is claimed, in one sentence.
        source: Paper and figure or theorem.
        paper: The paper's value.
        measured: The measured value, with its interval.
        verdict: Decided by code, never typed in.
        how: How it was measured.
        command: What measures it again.
    """

    name: str
    claim: str
    source: str
    paper: str
    measured: str
    verdict: Verdict
    how: str
    command: str


def wilson(hits: int, n: int) -> tuple[float, float, float]:
    """A frequency with its 95 % Wilson interval: (low, value, high)."""
    interval = binomtest(hits, n).proportion_ci(method="wilson")
    return float(interval.low), hits / n, float(interval.high)


def table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    head = ("Claim", "Source", "Paper", "Measured", "Verdict", "How measured", "Command")
    rows = [
        (c.claim, c.source, c.paper, c.measured, f"**{c.verdict}**", c.how, f"`{c.command}`") for c in claims
    ]
    lines = ["| " + " | ".join(row) + " |" for row in [head, tuple("---" for _ in head), *rows]]
    return "\n".join(lines)


def write(folder: Path, claims: Sequence[Claim], readme: str) -> None:
    """Write `results.json` and put the table into `README.md` where `readme` says `{table}`."""
    data = [asdict(claim) for claim in claims]
    (folder / "results.json").write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    (folder / "README.md").write_text(readme.replace("{table}", table(claims)))
