"""A claim of a paper, what was measured, and the verdict; and the table made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import plotly.graph_objects as go
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


@dataclass(frozen=True)
class Measured:
    """What one measurement gives: its claims, and the figures that show them, by file name."""

    claims: Sequence[Claim]
    figures: Mapping[str, go.Figure] = field(default_factory=dict)


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
    # A bar would end the cell: conditionals are written with it.
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [head, ["---"] * len(head), *rows]]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)
