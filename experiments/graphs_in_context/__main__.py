"""Walks on a graph that is named anew in every sequence: what is inferred, and how its nodes lie."""

from pathlib import Path

from experiments.graphs_in_context.endpoints import endpoints
from experiments.graphs_in_context.geometry import geometry
from experiments.graphs_in_context.walks import walks
from experiments.harness import Study

STUDY = Study(Path(__file__).parent, __doc__, [walks, geometry, endpoints])

if __name__ == "__main__":
    STUDY.main()
