"""What all claims of this folder share: their source, their command, and the colours of their figures."""

from collections.abc import Mapping

import plotly.graph_objects as go
from plotly.colors import qualitative

from experiments.claims import Claim, Verdict, wilson
from experiments.unigram_trap.fates import Fate

PAPER = "Makkuva et al. 2025 (arXiv 2402.04161)"
COLOURS = qualitative.Safe
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "cross", "triangle-up")


def claim(
    name: str,
    text: str,
    measured: str,
    verdict: Verdict,
    how: str,
    *,
    source: str = PAPER,
    paper: str = "no number given",
) -> Claim:
    """A claim with the command that measures it again."""
    return Claim(
        name, text, source, paper, measured, verdict, how, f"python -m experiments.unigram_trap --only {name}"
    )


def drawn(title: str, x: str, y: str) -> go.Figure:
    """An empty figure with its title and axes."""
    return go.Figure().update_layout(
        template="plotly_white", title=title, xaxis_title=x, yaxis_title=y, margin={"t": 60, "r": 20}
    )


def share_bars(title: str, x: str, groups: Mapping[str, Mapping[str, Fate]]) -> go.Figure:
    """Shares of stuck runs as bars with Wilson's 95 % intervals, a colour and a pattern a group."""
    figure = drawn(title, x, "share of runs stuck at the unigram").update_yaxes(range=[0, 1.05])
    for number, (name, ends) in enumerate(groups.items()):
        found = [wilson(end.stuck, end.n) for end in ends.values()]
        figure.add_bar(
            x=list(ends),
            y=[share for _, share, _ in found],
            name=name,
            showlegend=len(groups) > 1,
            marker={"color": COLOURS[number], "pattern": {"shape": ("", "/", ".", "x", "-")[number]}},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - share for _, share, high in found],
                "arrayminus": [share - low for low, share, _ in found],
            },
        )
    return figure.update_xaxes(type="category")
