"""How a result shows itself in a notebook: compact HTML without scripts."""

from mechmarkov.probing.results import Outcome, Result
from mechmarkov.report.html import environment


def fragment(result: Result) -> str:
    """Returns a result as compact HTML: verdicts, scores and their nulls.

    It holds no script and no stylesheet, so that it shows the same in Jupyter, in VS Code and in a notebook
    that is not trusted. Everything that came from the result is escaped.
    """
    return _fragment(
        title=str(result.run.get("title", "")),
        outcomes=result.outcomes,
        skipped=result.skipped,
        failed=result.failed,
    )


def outcome_fragment(outcome: Outcome) -> str:
    """Returns one probe's outcome as compact HTML, like `fragment`."""
    return _fragment(title="", outcomes={outcome.probe.name: outcome}, skipped={}, failed={})


def _fragment(**content: object) -> str:
    page: str = environment().get_template("fragment.html.j2").render(**content)
    return page
