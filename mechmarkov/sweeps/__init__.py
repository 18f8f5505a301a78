"""Many recipes at once: a grid or a list of points, here or on a cluster, and one table of what came out."""

from mechmarkov.catalogue import sweeps
from mechmarkov.sweeps.engines import Cluster
from mechmarkov.sweeps.run import Swept, sweep
from mechmarkov.sweeps.spec import Phase, Sweep, SweepError, load_sweep
from mechmarkov.utils.modules import make_callable

__all__ = ["Cluster", "Phase", "Sweep", "SweepError", "Swept", "load_sweep", "sweep"]

make_callable(__name__, sweeps)
