"""What is measured of Makkuva et al. (2025): the landscape, who stays at it, and why."""

from collections.abc import Callable

from experiments.claims import Measured
from experiments.unigram_trap.data import order_two, tokens
from experiments.unigram_trap.landscape import many_states, points
from experiments.unigram_trap.models import depth, paths, precision
from experiments.unigram_trap.training import leaving, phase

MEASUREMENTS: dict[str, Callable[[bool], Measured]] = {
    "points": points,
    "many_states": many_states,
    "phase": phase,
    "leaving": leaving,
    "paths": paths,
    "depth": depth,
    "precision": precision,
    "order_two": order_two,
    "tokens": tokens,
}
