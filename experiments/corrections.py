"""The page of corrections: what of the papers does not stand as printed, each with all that bears it."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from experiments.claims import Claim, Verdict
from experiments.statements import papers

SECTIONS: dict[Verdict, tuple[str, str]] = {
    "does not hold": (
        "Does not hold as printed",
        "An exact counterexample or a proof; or the paper's own setting, with at least 16 seeds.",
    ),
    "holds with a correction": (
        "Holds with a correction",
        "The statement stands once its words are changed as given.",
    ),
    "not found in training": (
        "Not found in our training",
        "Not a refutation: another setting, too few seeds, or a threshold of ours.",
    ),
}
HEAD = Path(__file__).parent / "head_of_corrections.md"
TAIL = Path(__file__).parent / "withdrawn.md"


def corrections(claims: Sequence[Claim]) -> str:
    """The page, as Markdown."""
    parts, order = [HEAD.read_text().strip()], list(papers())
    first: dict[tuple[str, str], int] = {}
    for i, claim in enumerate(claims):
        first.setdefault(_key(claim), i)
    for verdict, (title, told) in SECTIONS.items():
        of_papers = [c for c in claims if c.verdict == verdict and c.statement.kind == "paper"]
        of_papers.sort(key=lambda c: (order.index(c.statement.about), first[_key(c)]))
        parts.append(f"## {title}\n\n{told}")
        for _, entries in groupby(of_papers, key=_key):
            parts.append(_entry(list(entries)))
    return "\n\n".join([*parts, TAIL.read_text().strip()]) + "\n"


def _key(claim: Claim) -> tuple[str, str]:
    """What all cases of one statement share."""
    return claim.study, claim.finding.key


def _entry(claims: Sequence[Claim]) -> str:
    """One statement, with all its cases that came out so."""
    said = claims[0].statement
    rows = " · ".join(
        f"[{c.finding.case or 'row'}](verdicts.md#{c.identifier}): {c.finding.gist}" for c in claims
    )
    lines = {
        "Words": said.words,
        "Instead": said.equation,
        "Measured": rows,
        "Fails at": said.fails_at,
        "A defender": said.defence,
        "Again": f"`{claims[0].command}`",
    }
    shown = "\n".join(f"- *{name}:* {text}" for name, text in lines.items() if text)
    return f"### {said.claim}\n\n{said.paper.short}, {said.where}.\n\n{shown}"
