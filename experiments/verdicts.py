"""Pages and data of all claims: `python -m experiments.verdicts` writes them into `docs/`."""

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from experiments.claims import EXACT, THEIRS, Claim, Verdict
from experiments.claims_file import as_data, as_text, schema
from experiments.claims_table import details, rows, table
from experiments.corrections import corrections
from experiments.coverage import page as coverage_page
from experiments.harness import Study
from experiments.statements import Kind, Paper, papers

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
HEAD = HERE / "head_of_verdicts.md"
OWN: dict[Kind, tuple[str, str, str]] = {
    "question": (
        "our-questions.md",
        "Our questions",
        "What no paper states and we asked all the same, of the papers' models and ours.",
    ),
    "derived": (
        "our-derivations.md",
        "Our derivations",
        "What we derived about the papers' models, and checked.",
    ),
}
COLUMNS: dict[str, Callable[[Claim], bool]] = {
    "holds": lambda claim: claim.verdict == "holds",
    "corrected": lambda claim: claim.verdict == "holds with a correction",
    "refuted": lambda claim: claim.verdict == "does not hold",
    "not found": lambda claim: claim.verdict == "not found in training",
    "undecided": lambda claim: claim.verdict == "undecided",
    "not testable": lambda claim: claim.verdict == "not testable here",
    "exact, or at the paper's setting": lambda claim: claim.finding.evidence in (*EXACT, THEIRS),
}


def studies() -> list[Study]:
    """All studies, in alphabetical order of their folders."""
    folders = sorted(path.parent.name for path in HERE.glob("*/__main__.py"))
    return [import_module(f"experiments.{name}.__main__").STUDY for name in folders]


def committed() -> list[Claim]:
    """The claims of all studies."""
    return [claim for study in studies() for claim in study.committed()]


def by_paper(claims: Sequence[Claim], kind: Kind) -> dict[Paper, list[Claim]]:
    """The claims of one kind by paper, in the order of `papers.toml`."""
    found = {paper: [c for c in claims if c.statement.paper == paper] for paper in papers().values()}
    chosen = {paper: [c for c in own if c.statement.kind == kind] for paper, own in found.items()}
    return {paper: own for paper, own in chosen.items() if own}


def verdicts(claims: Sequence[Claim]) -> str:
    """The page of the papers' claims: a table of them all, and one of each."""
    groups = by_paper(claims, "paper")
    cells = [
        [
            f"[{paper.short}](#{paper.key})",
            *(str(sum(map(test, own))) for test in COLUMNS.values()),
            paper.had,
        ]
        for paper, own in groups.items()
    ]
    overview = rows(("Paper", *COLUMNS, "read"), cells)
    sections = [_section(paper, own) for paper, own in groups.items()]
    return "\n\n".join([HEAD.read_text() + "\n" + overview, *sections]) + "\n"


def _section(paper: Paper, claims: Sequence[Claim]) -> str:
    link = f"[{paper.doi}](https://doi.org/{paper.doi})" if paper.doi else paper.venue
    studies = dict.fromkeys(claim.study for claim in claims)
    folders = ", ".join(f"[{name}](../experiments/{name}/README.md)" for name in studies)
    intro = (
        f"{', '.join(paper.authors)}. *{paper.title}*. {paper.venue}. {link}. Figures and reading: {folders}."
    )
    return f'<a id="{paper.key}"></a>\n\n## {paper.short}\n\n{intro}\n\n{table(claims)}\n\n{details(claims)}'


def own(claims: Sequence[Claim], kind: Kind) -> str:
    """The page of our questions, or of our derivations."""
    _, title, told = OWN[kind]
    groups = by_paper(claims, kind)
    counts: Counter[Verdict] = Counter(claim.verdict for found in groups.values() for claim in found)
    summary = ", ".join(f"{n} × {verdict}" for verdict, n in counts.most_common())
    sections = [
        f"## On {paper.short}\n\n{table(found)}\n\n{details(found)}" for paper, found in groups.items()
    ]
    head = f"# {title}\n\n{told} How to read a row: see [the verdicts](verdicts.md).\n\n{summary}."
    return "\n\n".join([head, *sections]) + "\n"


def place(claim: Claim) -> str:
    """The page on which a claim stands."""
    kind = claim.statement.kind
    return OWN[kind][0] if kind in OWN else "verdicts.md"


def files() -> dict[str, str]:
    """What stands in `docs/`, by file name."""
    claims = committed()
    pages = {OWN[kind][0]: own(claims, kind) for kind in OWN}
    return {
        "verdicts.md": verdicts(claims),
        "corrections.md": corrections(claims),
        "claims.json": as_text(as_data(claims)),
        "claims.schema.json": as_text(schema()),
        "coverage.md": coverage_page({claim.identifier: place(claim) for claim in claims}),
        **pages,
    }


if __name__ == "__main__":
    for name, text in files().items():
        (DOCS / name).write_text(text)
