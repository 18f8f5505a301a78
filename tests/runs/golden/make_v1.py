"""Writes v1.pt, a run file of format version 1. It was run once, when version 1 was new; the file stays.

    python tests/runs/golden/make_v1.py

Every number is a function of its place (`numbers`), so that a test knows them without this script's help.
"""

from pathlib import Path

import torch

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.runs import Run
from mechmarkov.sources import Circle


def numbers(*shape: int, start: int) -> torch.Tensor:
    """The dyadic numbers `((7 i + start) mod 61 - 30) / 32`, exact in float32."""
    count = torch.Size(shape).numel()
    return (((7 * torch.arange(count) + start) % 61 - 30) / 32).view(shape)


def main() -> None:
    config = DecoderConfig(
        n_layers=1,
        d_model=4,
        n_ctx=5,
        d_head=3,
        n_heads=2,
        d_vocab=4,
        d_vocab_out=3,
        d_mlp=6,
        act_fn="relu",
        normalization_type="LN",
    )
    steps = torch.tensor([0, 8, 64])
    states = {
        name: numbers(1 if name.endswith("b_O") else len(steps), *value.shape, start=index)
        for index, (name, value) in enumerate(sorted(HookedDecoder(config).state_dict().items()))
    }
    Run(
        config=config,
        source=Circle(n_states=3, p=0.25),
        objective=Objective(kind="normalised_log", eps=0.05, read="last", query=True),
        trainable={"blocks.0.attn.W_V": [[0, 2], [1, 4], [0, 3]], "unembed.W_U": None},
        recipe={"name": "golden", "steps": 64, "betas": [0.9, 0.999], "notes": {"ü": None, "yes": True}},
        seed=11,
        steps=steps,
        states=states,
        metrics={"loss": {"step": torch.arange(0, 65, 16), "value": numbers(5, start=40)}},
        provenance={"mechmarkov": "0.1.0", "device": "cpu", "wall_seconds": 0.5},
    ).save(Path(__file__).with_name("v1.pt"))


if __name__ == "__main__":
    main()
