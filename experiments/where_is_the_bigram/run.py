"""What is measured: how a model comes to hold the bigram and the induction head, and in which parts."""

from collections.abc import Callable

from experiments.claims import Measured
from experiments.where_is_the_bigram.births import births
from experiments.where_is_the_bigram.data import outputs, triggers
from experiments.where_is_the_bigram.freezing import freezing
from experiments.where_is_the_bigram.homes import homes
from experiments.where_is_the_bigram.layers import layers
from experiments.where_is_the_bigram.ranks import ranks
from experiments.where_is_the_bigram.steps import first_step

MEASUREMENTS: dict[str, Callable[[bool], Measured]] = {
    "births": births,
    "freezing": freezing,
    "first_step": first_step,
    "triggers": triggers,
    "outputs": outputs,
    "layers": layers,
    "ranks": ranks,
    "homes": homes,
}
