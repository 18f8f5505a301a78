"""Cases that authors' code was run on, as it wants them: two heads and an MLP in each layer."""

from collections.abc import Callable

import numpy as np
import torch

import mechmarkov as mm
from mechmarkov.bench import CASES as OURS
from mechmarkov.bench.case import Case, case_of, seed_of
from mechmarkov.models import HookedDecoder
from mechmarkov.models.config import DecoderConfig


def random_weights() -> Case:
    """Two layers with LayerNorm and GELU, whose weights are drawn."""
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "d_mlp": 16, "n_ctx": 6, "d_vocab": 3}
    model = HookedDecoder(DecoderConfig(**sizes, act_fn="gelu", normalization_type="LN")).double()
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.from_numpy(rng.normal(scale=0.5, size=tuple(weight.shape))))
    source = mm.Chain([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
    return case_of("random weights", "Which edges have an effect?", model, source, seed=0)


CASES: dict[str, Callable[[], Case]] = {
    "trigram": lambda: OURS["trigram"](0),
    "random weights": random_weights,
}


def random_claims(case: Case) -> dict[str, float]:
    """A number for each edge, none of which ties."""
    rng = np.random.default_rng(seed_of(case.clean))
    return dict(zip(case.edges, rng.normal(size=len(case.edges)).tolist(), strict=True))
