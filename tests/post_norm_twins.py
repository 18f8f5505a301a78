"""Models with norms behind their sums that compute what a model without norms does: the answers are known."""

from typing import Any

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder

SMALL = 1e-3  # a stream this small has a norm with eps = 1 that changes nothing but one part in a million
WRITES = ("W_E", "W_pos", "b_V", "b_O", "b_in", "b_out")
READS = ("W_Q", "W_K", "W_U")


def twin_of(model: HookedDecoder, **fields: Any) -> HookedDecoder:
    """The same model with a stream a thousandth as large, and RMS norms with `eps = 1` behind its sums.

    Args:
        model: A model without norms.
        fields: Other fields of its config, such as `norm_first`.
    """
    own = model.config.model_dump(exclude={"norm_first", "final_norm"})
    norms = {"normalization_type": "RMSPre", "eps": 1.0, "norm_first": False}
    twin = HookedDecoder(DecoderConfig(**{**own, **norms, **fields}))
    weights = model.state_dict()
    for name in weights:
        leaf = name.rsplit(".", 1)[-1]
        weights[name] = weights[name] * (SMALL if leaf in WRITES else 1 / SMALL if leaf in READS else 1.0)
    twin.load_state_dict(weights)
    return twin


def run_of(model: HookedDecoder, run: mm.Run | None = None, **rest: Any) -> mm.Run:
    """A model as a run, on the data of another or of `source=`."""
    given = {"source": run.source, "objective": run.objective} if run else {}
    return mm.Run.from_model(model, **given, **rest)
