"""mechmarkov: what a small transformer learned from Markov data, where it lives and why it is stuck.

    import mechmarkov as mm
    run = mm.load("run.pt")
    result = mm.probe(run)
    result.report("report.html")

Names are loaded when they are first used, so that `import mechmarkov` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "sources": [
        "Binary",
        "Chain",
        "ChainMixture",
        "Circle",
        "DirichletChains",
        "DoublyStochastic",
        "FruitQuestions",
        "Graph",
        "HiddenMarkov",
        "LaggedChain",
        "OrderK",
        "SelectiveLag",
        "Source",
        "Stationary",
        "Switch",
        "TriggerBigram",
        "source_from_data",
    ],
    "models": ["DecoderConfig", "HookedDecoder"],
    "training": ["Objective", "Recipe", "load_recipe"],
    "runs": ["Run", "example", "examples", "load", "train"],
    "runs.fleet": ["Diverged", "train_members"],
    "training.fleet": ["Member"],
    "probing.attention_edits": ["attend", "limit_window"],
    "probing.interventions": ["ablate", "ablate_path"],
    "probing.token_edits": ["shuffle_context", "swap_parent"],
    "sweeps": ["Cluster", "Sweep", "load_sweep", "sweep"],
    "report.compare": ["compare"],
    "probing": ["Figure", "Outcome", "Probe", "Result", "Score", "Subject", "probe"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "show"])

if TYPE_CHECKING:
    from mechmarkov import show
    from mechmarkov.models import DecoderConfig, HookedDecoder
    from mechmarkov.probing import Figure, Outcome, Probe, Result, Score, Subject, probe
    from mechmarkov.probing.attention_edits import attend, limit_window
    from mechmarkov.probing.interventions import ablate, ablate_path
    from mechmarkov.probing.token_edits import shuffle_context, swap_parent
    from mechmarkov.report.compare import compare
    from mechmarkov.runs import Run, example, examples, load, train
    from mechmarkov.runs.fleet import Diverged, train_members
    from mechmarkov.sources import (
        Binary,
        Chain,
        ChainMixture,
        Circle,
        DirichletChains,
        DoublyStochastic,
        FruitQuestions,
        Graph,
        HiddenMarkov,
        LaggedChain,
        OrderK,
        SelectiveLag,
        Source,
        Stationary,
        Switch,
        TriggerBigram,
        source_from_data,
    )
    from mechmarkov.sweeps import Cluster, Sweep, load_sweep, sweep
    from mechmarkov.training import Objective, Recipe, load_recipe
    from mechmarkov.training.fleet import Member


def __getattr__(name: str) -> Any:
    if name == "show":  # a module of its own: `mm.show.attention(run)`
        return import_module("mechmarkov.show")
    if name not in _HOME:
        raise AttributeError(f"module 'mechmarkov' has no attribute {name!r}")
    return getattr(import_module(f"mechmarkov.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
