"""Claims in Markdown: a row of a table each, with one number, and what stands behind it folded away."""

import html
from collections.abc import Sequence

from experiments.claims import Claim, Finding

LONGEST_ROW = 300  # characters, so that a row can be read
HEAD = ("Claim", "Where", "Measured", "Verdict", "Evidence", "Read")


def rows(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table. A bar would end a cell, and conditionals are written with it."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in [head, ["---"] * len(head), *cells]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table: what is said, what was found, and how strong the evidence is."""
    return rows(HEAD, [_row(claim) for claim in claims])


def _row(claim: Claim) -> tuple[str, ...]:
    return (
        f"[{claim.text}](#{claim.identifier})",
        claim.statement.where,
        claim.finding.gist,
        f"**{claim.verdict}**",
        claim.strength,
        claim.statement.read,
    )


def _measured(finding: Finding) -> str:
    """What was measured, with the sampling error of its nats."""
    if not finding.error or "nats" not in finding.measured:
        return finding.measured
    return f"{finding.measured} (standard error {finding.error})"


def details(claims: Sequence[Claim]) -> str:
    """Words, settings and commands of the claims, folded away under their names, which rows lead to."""
    return "\n\n".join(map(_detail, claims))


def _detail(claim: Claim) -> str:
    said, found = claim.statement, claim.finding
    lines = {
        "Words": f"{said.words} ({said.paper.short}, {said.where}; read: {said.read})",
        "Stated": said.stated,
        "Measured": _measured(found),
        "Paper's setting": said.paper_setting,
        "Our setting": found.our_setting,
        "Trained on": found.data,
        "What differs": said.differs,
        "Evidence": found.evidence + (f" ({found.proof})" if found.proof else ""),
        "What holds instead": said.equation if said.kind == "paper" and claim.verdict != "holds" else "",
        "A defender would answer": said.defence,
        "Measure again": f"`{claim.command}`",
    }
    shown = "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)
    name, told = claim.identifier, html.escape(claim.text)
    summary = f"<summary>{told}: {claim.verdict}</summary>"
    return f'<details id="{name}" markdown="1">{summary}\n\n{shown}\n\n</details>'
