"""An exact measurement draws no random number, whoever draws it; only a marked one may call itself exact."""

import random

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.claims import Finding
from experiments.exactness import RandomNumberError, exactly, no_random_numbers
from experiments.harness import Measured, Study, trained

DRAWS = {
    "torch": lambda: torch.randn(3),
    "torch, in place": lambda: torch.empty(3).uniform_(),
    "torch, own generator": lambda: torch.randint(0, 2, (3,), generator=torch.Generator().manual_seed(0)),
    "torch, permutation": lambda: torch.randperm(4),
    "torch, multinomial": lambda: torch.ones(3).multinomial(1),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(3), 0.5),
    "numpy": lambda: np.random.default_rng(0).normal(),
    "numpy, global": np.random.rand,
    "python": random.random,
    "samples of a source": lambda: mm.Binary(p=0.2, q=0.3).sample(4, 4, generator=torch.Generator()),
}
FINDING = Finding("it", "1", "for", "ours", "computed exactly")
STATEMENT = (
    '[paper.a]\nabout = "shi2025"\nread = "text"\npaper_setting = "theirs"\ndiffers = "ours"\n'
    '[it]\npaper = "a"\nclaim = "it is so"\nwhere = "theorem 1"\nwords = "own: it is so"\n'
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "claims.toml").write_text(STATEMENT)
    return tmp_path


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_way_to_draw_is_noticed(folder, draw):
    @exactly
    def measure(quick):
        draw()
        return Measured([FINDING])

    with pytest.raises(RandomNumberError):
        Study(folder, "", [measure]).measure("measure", quick=True)


def test_what_draws_nothing_is_let_through(folder):
    @exactly
    def measure(quick):
        torch.linalg.eigh(torch.eye(3))
        torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 2))
        return Measured([FINDING])

    assert Study(folder, "", [measure]).measure("measure", quick=True).findings == [FINDING]


def test_an_unmarked_measurement_is_not_exact(folder):
    def measure(quick):
        return Measured([FINDING])

    with pytest.raises(ValueError, match="exact"):
        Study(folder, "", [measure]).measure("measure", quick=True)


def test_training_on_samples_is_not_exact():
    recipe = mm.load_recipe("walk-k6-half").with_set(["steps=1", "checkpoints=[1]", "data.n_train=8"])
    with no_random_numbers(), pytest.raises(RandomNumberError, match="trains on samples"):
        trained([recipe], [0])


def test_the_generators_are_as_before():
    with pytest.raises(RandomNumberError), no_random_numbers():
        np.random.default_rng(0)
    assert np.random.default_rng(0).integers(10) >= 0
    assert torch.rand(1) >= 0
