"""Random decoders, sequences for them, and when two outputs are the same."""

import torch
from probing_cases import SHAPES, config_of, randomise

from mechmarkov.models import HookedDecoder

ALL = sorted(SHAPES)
LONG = sorted(shape for shape in SHAPES if SHAPES[shape].get("n_ctx", 7) > 3)


def decoder_of(shape: str, seed: int = 0, n_models: int | None = None, **changes) -> HookedDecoder:
    return randomise(HookedDecoder(config_of(shape, **changes), n_models), seed)


def tokens_of(model: HookedDecoder, batch: int = 6, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, (batch, model.config.n_ctx), generator=generator)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)
