"""All that the first screen shows: a headline a step, the figures under it and a panel for each head."""

from dataclasses import dataclass

import numpy as np

from mechmarkov.probing.outcome import Findings
from mechmarkov.report.cards import FigureCard, figure_card
from mechmarkov.report.first_screen.circuit import circuit_figures
from mechmarkov.report.first_screen.curve import learning_curve
from mechmarkov.report.first_screen.head_panels import HeadPanel, head_panels
from mechmarkov.report.first_screen.headline import Headline, at_step, headline
from mechmarkov.report.symlog import symlog


@dataclass(frozen=True)
class FirstScreen:
    """Headlines, one a shown step; large figures; panels, one a head."""

    headlines: list[Headline]
    hero: list[FigureCard]
    panels: list[HeadPanel]


def first_screen(result: Findings) -> FirstScreen:
    """The first screen of a result: at each of its steps, or at its only one."""
    states = [at_step(result, i) for i in range(len(result.steps))] or [at_step(result, -1)]
    several = len(states) > 1
    curve = learning_curve(result)
    places = symlog(np.array([float(step) for step in result.steps if several])).tolist()
    hero = [figure_card("figure-curve", curve, marks=places)] if curve else []
    drawn = list(circuit_figures(dict(enumerate(states))).values())
    if drawn:
        everywhere = several and len(drawn) == len(states)
        hero.append(figure_card("figure-circuit", drawn[-1], drawn if everywhere else ()))
    return FirstScreen([headline(now) for now in states], hero, head_panels(states))
