"""A gradient scaler for each member of a stack, with `torch.amp.GradScaler`'s rule.

In float16 small gradients vanish and large ones are infinite. The loss is multiplied before the backward pass
and gradients are divided after it; a member whose gradients overflowed leaves the step out and halves its
factor, and one that has not for a while doubles it.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

START, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000  # torch's defaults


class StackScaler:
    """One factor a member; see the module."""

    def __init__(self, n_models: int, device: torch.device) -> None:
        self.factor: Float[Tensor, " stack"] = torch.full((n_models,), START, device=device)
        self._since_growth = torch.zeros(n_models, device=device)

    def unscale(
        self, gradients: Float[Tensor, "stack number"]
    ) -> tuple[Float[Tensor, "stack number"], Bool[Tensor, " stack"]]:
        """Gradients of the losses themselves, and which members' are finite; factors move on."""
        gradients = gradients / self.factor[:, None].to(gradients.dtype)
        finite = gradients.isfinite().all(1)
        since = torch.where(finite, self._since_growth + 1, 0)
        grows = since >= INTERVAL
        self.factor = torch.where(finite, self.factor, self.factor * BACKOFF)
        self.factor = torch.where(grows, self.factor * GROWTH, self.factor)
        self._since_growth = torch.where(grows, 0, since)
        return gradients, finite

    def state(self) -> dict[str, Tensor]:
        """What it remembers, on the CPU."""
        return {"factor": self.factor.cpu().clone(), "since_growth": self._since_growth.cpu().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo `state`."""
        device = self.factor.device
        self.factor = state["factor"].to(device).clone()
        self._since_growth = state["since_growth"].to(device).clone()
