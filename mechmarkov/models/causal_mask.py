"""Which keys a query may attend to."""

import torch
from jaxtyping import Bool
from torch import Tensor


def causal_mask(
    n_queries: int, n_keys: int, window: int | None, device: torch.device
) -> Bool[Tensor, "query key"]:
    """True where one of the last `n_queries` positions may attend to a key: not ahead, at most `window` back.

    Example:
        >>> causal_mask(2, 3, window=1, device=torch.device("cpu")).int().tolist()
        [[1, 1, 0], [0, 1, 1]]
    """
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril_(n_keys - n_queries)
    return seen if window is None else seen.triu_(n_keys - n_queries - window)
