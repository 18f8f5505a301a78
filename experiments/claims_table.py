"""Claims in Markdown: a row of a table each, and what stands behind it folded away."""

import html
from collections.abc import Sequence

from experiments.claims import Claim, Finding


def rows(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table. A bar would end a cell, and conditionals are written with it."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in [head, ["---"] * len(head), *cells]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table: what is said, what was found, and how strong the evidence is."""
    head = ("Claim", "Source", "Stated", "Measured", "Verdict", "Evidence")
    cells = [
        (
            c.text,
            f"{c.statement.source}, {c.statement.where}",
            c.statement.stated,
            _measured(c.finding),
            f"**{c.verdict}**",
            c.strength,
        )
        for c in claims
    ]
    return rows(head, cells)


def _measured(finding: Finding) -> str:
    """What was measured, with the sampling error of its nats."""
    if not finding.error or "nats" not in finding.measured:
        return finding.measured
    return f"{finding.measured} (standard error {finding.error})"


def details(claims: Sequence[Claim]) -> str:
    """Words, settings and commands of the claims, folded away under their names."""
    return "\n\n".join(map(_detail, claims))


def _detail(claim: Claim) -> str:
    said, found = claim.statement, claim.finding
    lines = {
        "Words": f"{said.words} (read: {said.read})",
        "Paper's setting": said.paper_setting,
        "Our setting": found.our_setting,
        "Trained on": found.data,
        "Standard error of means": found.error,
        "What differs": said.differs,
        "A defender would answer": said.defence,
        "Measure again": f"`{claim.command}`",
    }
    shown = "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)
    return f"<details><summary>{html.escape(claim.text)}: {claim.verdict}</summary>\n\n{shown}\n\n</details>"
