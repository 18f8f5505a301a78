"""Claims about features: directions of a stream, one for each token and each position.

A method is told the stream. It may fit to `case.tuning`.
"""

from importlib import import_module
from importlib.util import find_spec
from itertools import repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from mechmarkov.bench.case import Case, seed_of
from mechmarkov.bench.method import Method
from mechmarkov.interventions.belief import streams

NO_FEATURES = "no features are known in this case"
WIDTH = 2  # latents for each dimension of the stream
L1 = 0.03  # penalty of the latents' sum, besides the squared error
STEPS, RATE = 400, 2e-2
Directions = Float[np.ndarray, "feature d_model"]


def score_features(case: Case, claim: Directions | str) -> dict[str, float]:
    """`cosine` of true features with the claimed ones, each paired with one, as well as can be.

    What all features of a block share is a gauge: a constant can move from the tokens' to the positions'. So
    the blocks' means are projected out of both. Without that, features less their mean would still have a
    cosine of √(1 - 1/K).
    """
    if case.features is None or isinstance(claim, str):
        return {}
    _, blocks = case.features
    gauge = np.linalg.svd(np.stack([block.mean(0) for block in blocks]), full_matrices=False)[2]
    true, claimed = (_units(x - x @ gauge.T @ gauge) for x in (np.concatenate(blocks), claim))
    cosines = np.zeros((len(true), max(len(true), len(claimed))))
    cosines[:, : len(claimed)] = true @ claimed.T
    rows, columns = linear_sum_assignment(-cosines)
    return {"cosine": float(cosines[rows, columns].mean())}


def _units(x: Directions) -> Directions:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(length > np.finfo(np.float32).eps, length, np.inf))


def sparse_autoencoder(case: Case) -> Directions | str:
    """The decoder's directions of a sparse autoencoder with an L1 penalty; of those latents that fire."""
    if case.features is None:
        return NO_FEATURES
    x = _rows(case, case.features[0])
    generator = torch.Generator().manual_seed(seed_of(case.others.clean))
    start = torch.randn(WIDTH * x.shape[1], x.shape[1], generator=generator)
    decoder, encoder = torch.nn.functional.normalize(start, dim=1), start.T / start.norm(dim=1)
    weights = [decoder, encoder.clone(), torch.zeros(len(start)), x.mean(0)]
    with torch.enable_grad():
        for weight in weights:
            weight.requires_grad_()
        optimiser = torch.optim.Adam(weights, lr=RATE)
        for _ in range(STEPS):
            decoder, encoder, bias, centre = weights
            units = torch.nn.functional.normalize(decoder, dim=1)
            latents = ((x - centre) @ encoder + bias).relu()
            loss = ((latents @ units + centre - x) ** 2).sum(-1).mean() + L1 * latents.sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return np.asarray(units[latents.max(0).values > 0].detach().double().numpy())


def saelens(case: Case) -> Directions | str:
    """The decoder's directions of SAELens's standard autoencoder."""
    if case.features is None:
        return NO_FEATURES
    if find_spec("sae_lens") is None:
        return "sae-lens is not installed; it needs a TransformerLens before 4"
    sae_lens: Any = import_module("sae_lens")
    x = _rows(case, case.features[0])
    torch.manual_seed(seed_of(case.others.clean))
    config = sae_lens.StandardTrainingSAEConfig(d_in=x.shape[1], d_sae=WIDTH * x.shape[1], l1_coefficient=L1)
    batches = {"total_training_samples": len(x) * STEPS, "train_batch_size_samples": len(x)}
    settings = sae_lens.config.SAETrainerConfig(**batches, lr=RATE, lr_end=RATE)
    sae = sae_lens.StandardTrainingSAE(config)
    sae = sae_lens.SAETrainer(settings, sae, repeat(x)).fit()
    return np.asarray(sae.W_dec.detach().double().numpy())


def _rows(case: Case, layer: int) -> torch.Tensor:
    """The stream after a block in the sequences to tune on."""
    stream = streams(case.model, case.others.clean)[layer]
    return torch.from_numpy(stream.reshape(-1, stream.shape[-1])).float()


def noise(case: Case) -> Directions | str:
    """Random directions, as many as the stream has dimensions."""
    if case.features is None:
        return NO_FEATURES
    random = np.random.default_rng(seed_of(case.clean))
    width = case.model.config.d_model
    return np.asarray(random.normal(size=(WIDTH * width, width)))


HUBEN = "Huben et al. 2024 (arXiv 2309.08600)"
sae_method = Method("sparse-autoencoder", "features", sparse_autoencoder, HUBEN, tunes="the autoencoder")
saelens_method = Method("saelens", "features", saelens, f"SAELens's; {HUBEN}", tunes="the autoencoder")
noise_features = Method("noise-features", "features", noise, "what chance gives")
