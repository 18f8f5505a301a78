"""mechmarkov: what a small transformer learned from Markov data, where it lives and why it is stuck.

    import mechmarkov as mm
    run = mm.load("run.pt")
    result = mm.probe(run)
    result.report("report.html")

Names are loaded when they are first used, so that `import mechmarkov` costs nothing.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mechmarkov.utils.shadowed import explaining

__version__ = "0.1.0"

_HOMES = {
    "catalogue": ["examples", "methods", "recipes"],
    "sources": [
        *("Binary", "Chain", "Circle", "DirichletChains", "Graph", "HiddenMarkov", "LaggedChain"),
        *("Observed", "OrderK"),
    ],
    "models": ["DecoderConfig", "HookedDecoder"],
    "models.compatibility": ["compat"],
    "training": ["Objective", "Recipe", "load_recipe", "train"],
    "runs": ["Run", "example", "load"],
    "runs.import_run": ["import_run"],
    "interventions.attention": ["limit_window", "override_attention"],
    "interventions.ablate": ["ablate", "ablate_path"],
    "interventions.attribution": ["attribution_patching"],
    "interventions.belief": ["force_belief"],
    "interventions.tokens": ["shuffle_context", "swap_parent"],
    "sweeps": ["Cluster", "Sweep", "load_sweep", "sweep"],
    "report.compare": ["write_comparison"],
    "probe_run": ["probe"],
    "own_tokens": ["tokens"],
    "recorder": ["Recorder"],
    "probing": ["Claim", "Probe", "Score", "Subject"],
    "result": ["Result"],
}
# `mm.show.attention(run)`, `mm.sources.Switch`; `mm.probes()` and `mm.sweeps()` list what there is.
_MODULES = ("bench", "models", "probes", "probing", "show", "sources", "sweeps", "training")
if TYPE_CHECKING:  # `as` makes a name one that is exported
    from mechmarkov import bench as bench
    from mechmarkov import models as models
    from mechmarkov import probes as probes
    from mechmarkov import probing as probing
    from mechmarkov import show as show
    from mechmarkov import sources as sources
    from mechmarkov import sweeps as sweeps
    from mechmarkov import training as training
    from mechmarkov.catalogue import examples as examples
    from mechmarkov.catalogue import methods as methods
    from mechmarkov.catalogue import recipes as recipes
    from mechmarkov.interventions.ablate import ablate as ablate
    from mechmarkov.interventions.ablate import ablate_path as ablate_path
    from mechmarkov.interventions.attention import limit_window as limit_window
    from mechmarkov.interventions.attention import override_attention as override_attention
    from mechmarkov.interventions.attribution import attribution_patching as attribution_patching
    from mechmarkov.interventions.belief import force_belief as force_belief
    from mechmarkov.interventions.tokens import shuffle_context as shuffle_context
    from mechmarkov.interventions.tokens import swap_parent as swap_parent
    from mechmarkov.models.compatibility import compat as compat
    from mechmarkov.models.config import DecoderConfig as DecoderConfig
    from mechmarkov.models.decoder import HookedDecoder as HookedDecoder
    from mechmarkov.own_tokens import tokens as tokens
    from mechmarkov.probe_run import probe as probe
    from mechmarkov.probing import Claim as Claim
    from mechmarkov.probing import Probe as Probe
    from mechmarkov.probing import Score as Score
    from mechmarkov.probing import Subject as Subject
    from mechmarkov.recorder import Recorder as Recorder
    from mechmarkov.report.compare import write_comparison as write_comparison
    from mechmarkov.result import Result as Result
    from mechmarkov.runs.import_run import import_run as import_run
    from mechmarkov.runs.loading import example as example
    from mechmarkov.runs.loading import load as load
    from mechmarkov.runs.run import Run as Run
    from mechmarkov.sources import Binary as Binary
    from mechmarkov.sources import Chain as Chain
    from mechmarkov.sources import Circle as Circle
    from mechmarkov.sources import DirichletChains as DirichletChains
    from mechmarkov.sources import Graph as Graph
    from mechmarkov.sources import HiddenMarkov as HiddenMarkov
    from mechmarkov.sources import LaggedChain as LaggedChain
    from mechmarkov.sources import Observed as Observed
    from mechmarkov.sources import OrderK as OrderK
    from mechmarkov.sweeps import Cluster as Cluster
    from mechmarkov.sweeps import Sweep as Sweep
    from mechmarkov.sweeps import load_sweep as load_sweep
    from mechmarkov.sweeps import sweep as sweep
    from mechmarkov.training import Objective as Objective
    from mechmarkov.training import Recipe as Recipe
    from mechmarkov.training import load_recipe as load_recipe
    from mechmarkov.training import train as train


@cache
def _homes() -> dict[str, str]:
    """The module of each public name."""
    return {name: f"mechmarkov.{room}" for room, names in _HOMES.items() for name in names}


# Where code that was written before 0.1.0 finds its names.
_RENAMED = {
    "attend": "override_attention",
    "compare": "write_comparison",
    "force_state": "force_belief",
    **{name: f"models.{name}" for name in ("initialise",)},
    **{name: f"probing.{name}" for name in ("Condition", "Figure", "Outcome", "Tile", "Where")},
    **{name: f"training.{name}" for name in ("Diverged", "Member", "train_members")},
}


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'mechmarkov' has no attribute {name!r}")
    with explaining():
        if name in _MODULES:
            return import_module(f"mechmarkov.{name}")
        if name == "__all__":
            return sorted([*_homes(), *_MODULES])
        if name in _homes():
            return getattr(import_module(_homes()[name]), name)
        now = _RENAMED.get(name)
        if now is None and name[0].isupper() and hasattr(import_module("mechmarkov.sources"), name):
            now = f"sources.{name}"
    from mechmarkov.utils.text import did_you_mean  # what is imported at the top is seen as mm's

    hint = did_you_mean(name, __dir__()) if now is None else f": it is mm.{now}"
    raise AttributeError(f"module 'mechmarkov' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return __getattr__("__all__")
