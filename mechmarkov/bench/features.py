"""Claims about features: directions of a stream, one for each token and each position.

A method is told the stream. It may fit to `case.corrupt`.
"""

import zlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.interventions.belief import streams

NO_FEATURES = "no features are known in this case"
WIDTH = 2  # latents for each dimension of the stream
L1 = 0.03  # penalty of the latents' sum, beside the squared error
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
    true, found = (_units(x - x @ gauge.T @ gauge) for x in (np.concatenate(blocks), claim))
    cosines = np.zeros((len(true), max(len(true), len(found))))
    cosines[:, : len(found)] = true @ found.T
    rows, columns = linear_sum_assignment(-cosines)
    return {"cosine": float(cosines[rows, columns].mean())}


def _units(x: Directions) -> Directions:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(length > np.finfo(np.float32).eps, length, np.inf))


def sparse_autoencoder(case: Case) -> Directions | str:
    """The decoder's directions of a sparse autoencoder with an L1 penalty; of those latents that fire."""
    if case.features is None:
        return NO_FEATURES
    x = _rows(case)
    generator = torch.Generator().manual_seed(zlib.crc32(case.corrupt.numpy().tobytes()))
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
    try:
        import sae_lens
    except ImportError:
        return "sae-lens is not installed; it needs a TransformerLens before 4"
    x = _rows(case)
    torch.manual_seed(zlib.crc32(case.corrupt.numpy().tobytes()))
    config: Any = sae_lens.StandardTrainingSAEConfig
    sae = sae_lens.StandardTrainingSAE(config(d_in=x.shape[1], d_sae=WIDTH * x.shape[1], l1_coefficient=L1))
    settings: Any = {"total_training_samples": len(x) * STEPS, "train_batch_size_samples": len(x)}
    trainer = sae_lens.config.SAETrainerConfig(**settings, lr=RATE, lr_end=RATE)
    sae = sae_lens.SAETrainer(trainer, sae, iter(lambda: x, None)).fit()
    return np.asarray(sae.W_dec.detach().double().numpy())


def _rows(case: Case) -> torch.Tensor:
    """The stream of the features in the corrupt sequences."""
    layer, _ = case.features
    stream = streams(case.model, case.corrupt)[layer]
    return torch.from_numpy(stream.reshape(-1, stream.shape[-1])).float()


def noise(case: Case) -> Directions | str:
    """Random directions, as many as the stream has dimensions."""
    if case.features is None:
        return NO_FEATURES
    random = np.random.default_rng(zlib.crc32(case.clean.numpy().tobytes()))
    width = case.model.config.d_model
    return np.asarray(random.normal(size=(WIDTH * width, width)))


HUBEN = "Huben et al. 2024 (arXiv 2309.08600)"
sae_method = Method("sparse-autoencoder", "features", sparse_autoencoder, HUBEN)
saelens_method = Method("saelens", "features", saelens, f"SAELens's; {HUBEN}")
noise_features = Method("noise-features", "features", noise, "what chance gives")
