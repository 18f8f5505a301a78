"""What sources that draw a chain for every sequence have in common."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from mechmarkov.sources.base.source import WithHidden, check_request
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.paths import sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, Streams
from mechmarkov.utils.lazy_torch import Tensor, torch

TINY = np.finfo(np.float64).tiny
Chains = Float64[Tensor, "batch state_from state_to"]  # transition matrices, one a sequence


class FreshChains(WithHidden):
    """Every sequence is a path of a chain of its own, started in its stationary law unless said otherwise."""

    redraws: ClassVar[bool] = True

    def sample_chains(self, batch: int, *, generator: Numbers, device: Device = "cpu") -> Chains:
        """Draw only transition matrices; for a higher order, kernels with a row a history."""
        check_request(batch, 1, generator, device)
        return self._chains(batch, generator, device)

    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Chains]:
        """Draw sequences and the chains behind them; see `Source.sample`."""
        check_request(batch, length, generator, device)
        P = self._chains(batch, generator, device)
        return self._paths(P, length, generator), P

    @abstractmethod
    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        """Draw transition matrices, each with one closed class unless `_starts` says where to start."""

    def _starts(self, P: Chains) -> Float64[Tensor, "batch state"]:
        return law.eliminate(P)

    def _paths(self, P: Chains, length: int, generator: Numbers) -> Sequences:
        return sample_paths(P, self._starts(P), len(P), length, generator)


def uniform_starts(P: Chains) -> Float64[Tensor, "batch state"]:
    """The uniform law `[batch, state]` for each of the chains `[batch, state_from, state_to]`."""
    return torch.full_like(P[:, 0], 1 / P.shape[-1])


def dirichlet_rows(
    shape: tuple[int, ...], concentration: float, generator: Numbers, device: Device
) -> Float64[Tensor, "*rows state"]:
    """Independent draws from a symmetric Dirichlet law, every entry above zero.

    Args:
        shape: The shape of the draws, the last axis the states.
        concentration: The concentration of every entry; however small.
        generator: The only source of randomness.
        device: Where the generator lives.

    Example:
        >>> rows = dirichlet_rows((2, 3), 0.1, torch.Generator().manual_seed(0), "cpu")
        >>> rows.shape, bool((rows.sum(-1) - 1).abs().max() < 1e-12)
        (torch.Size([2, 3]), True)
    """
    if isinstance(generator, Streams):
        return generator.log_gamma(shape, concentration).softmax(-1).clamp_min(TINY)
    a = torch.full(shape, concentration, dtype=torch.float64, device=device)
    # A Gamma(a) variable is a Gamma(a + 1) variable times U^(1/a). Near a = 0 it underflows, so its
    # logarithm is drawn; torch.distributions knows no generators, and this is the sampler behind them.
    log_gamma = torch._standard_gamma(a + 1, generator=generator).log()
    minus_log_u = torch.empty_like(log_gamma).exponential_(generator=generator)
    minus_log_u -= minus_log_u.amin(-1, keepdim=True)  # the row's scale cancels; now no row is all 0
    # What underflows stays just possible, so that there is one closed class.
    return (log_gamma - minus_log_u / a).softmax(-1).clamp_min(TINY)
