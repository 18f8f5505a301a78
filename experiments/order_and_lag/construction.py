"""The two-layer theorem's construction, set by hand at any order: one head a layer, an MLP between them."""

import numpy as np
import torch
from jaxtyping import Float

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, every_sequence
from mechmarkov.models.constructions.n_grams import k_gram_counter

SHARPNESS = 60.0  # all other histories get e^-60 of the weight of one that matches
EXACT = 1e-11  # of frequencies in float64
CASES = ((1, 2, 11), (2, 2, 11), (3, 2, 11), (4, 2, 11), (1, 3, 7), (2, 3, 7), (2, 4, 6))


def frequencies(
    order: int, n_states: int, length: int
) -> tuple[Float[np.ndarray, "case state"], Float[np.ndarray, "case state"]]:
    """What the model says and the counts, at the end of every sequence whose last history was seen before."""
    tokens = every_sequence(n_states, length)
    model = k_gram_counter(n_states, length, order=order, sharpness=SHARPNESS, dtype=torch.float64)
    with torch.no_grad():
        said = model(tokens)[:, -1].numpy()
    windows = np.lib.stride_tricks.sliding_window_view(tokens.numpy(), order, axis=1)
    seen = (windows[:, :-1] == windows[:, -1:]).all(-1)  # the history that ends before key i + order
    followed = seen[..., None] * np.eye(n_states)[tokens.numpy()[:, order:]]
    there = seen.any(1)
    return said[there], followed[there].sum(1) / seen[there].sum(1, keepdims=True)


@exactly
def construction(quick: bool) -> Measured:
    """The construction against counts, on every sequence."""
    cases = [(order, n, min(length, 6) if quick else length) for order, n, length in CASES]
    found = [frequencies(*case) for case in cases]
    error = max(float(np.abs(said - counts).max()) for said, counts in found)
    sizes = "; ".join(f"order {k} on {n} symbols, length {length}" for k, n, length in cases)
    number = sum(len(said) for said, _ in found)
    finding = Finding(
        "two_layers_represent",
        f"largest difference from the counts {error:.0e}, over {number} sequences",
        holds(error < EXACT),
        f"set by hand in float64, all sequences whose last history was seen before: {sizes}; attention "
        f"logits of {SHARPNESS:g}",
        "computed exactly",
        number=f"off by at most {error:.0e}",
    )
    return Measured([finding])
