"""A model with names of its own, brought in, and what its tests share."""

from pathlib import Path

import torch
from own_names import Own, Shape, given_of, names_of

import mechmarkov as mm

CIRCLE = '{"kind": "circle", "n_states": 5, "p": 0.3}'
PAGE = Path(__file__).parents[2] / "docs" / "my-model-has-names-of-its-own.md"


def sequences(shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(shape.n_states, (4, shape.n_positions), generator=generator)


def brought(shape: Shape, names: dict | None = None, given: dict | None = None, seed: int = 0) -> mm.Run:
    return mm.Run.from_model(
        Own(shape, seed),
        source=mm.Circle(n_states=shape.n_states, p=0.3),
        names=names_of(shape) if names is None else names,
        given=given_of(shape) if given is None else given,
    )
