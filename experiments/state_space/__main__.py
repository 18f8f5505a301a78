"""Bondaschi et al., how Mamba in-context learns Markov chains: window and order, MambaZero, by hand."""

from pathlib import Path

from experiments.harness import Study
from experiments.state_space.authors_sizes import authors_sizes
from experiments.state_space.construction import construction
from experiments.state_space.models import parts
from experiments.state_space.proofs import proofs
from experiments.state_space.section_f import section_f
from experiments.state_space.windows import windows

STUDY = Study(
    Path(__file__).parent, __doc__, [construction, proofs, windows, authors_sizes, section_f, parts]
)

if __name__ == "__main__":
    STUDY.main()
