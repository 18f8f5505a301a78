"""Edelman et al., the evolution of statistical induction heads (NeurIPS 2024): phases, heads, the data."""

from pathlib import Path

from experiments.harness import Study
from experiments.induction_heads.appendix_runs import lags, one_layer_longer, with_mlps
from experiments.induction_heads.constructions import constructions
from experiments.induction_heads.depths import depths
from experiments.induction_heads.further import add_one, equal_tokens, positions, posterior
from experiments.induction_heads.lemmas import lemmas
from experiments.induction_heads.minimal_claims import minimal_model
from experiments.induction_heads.minimal_exact import minimal_exact
from experiments.induction_heads.more_seeds import even_chains, rapid_drop
from experiments.induction_heads.phases import phases
from experiments.induction_heads.proofs import proofs
from experiments.induction_heads.public_claims import public_settings
from experiments.induction_heads.rotary import rotary
from experiments.induction_heads.three_grams import three_grams
from experiments.induction_heads.variants import unigrams
from experiments.induction_heads.without_unigrams import without_unigrams

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [
        phases,
        rapid_drop,
        public_settings,
        depths,
        one_layer_longer,
        with_mlps,
        three_grams,
        unigrams,
        even_chains,
        without_unigrams,
        minimal_model,
        minimal_exact,
        lags,
        constructions,
        proofs,
        lemmas,
        add_one,
        posterior,
        equal_tokens,
        positions,
        rotary,
    ],
)

if __name__ == "__main__":
    STUDY.main()
