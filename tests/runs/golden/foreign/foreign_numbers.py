"""What the scripts that wrote the foreign golden files share: weights, tokens, and the logits they gave."""

from pathlib import Path

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
K, LENGTH = 5, 7


def draw(model: nn.Module) -> nn.Module:
    """Every parameter drawn, so that none can be lost unseen; norm weights stay near one."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.4 * torch.randn(parameter.shape, generator=generator)
            is_norm = "ln" in name and name.endswith(("w", "weight"))
            parameter.copy_(1 + noise if is_norm else noise)
    return model.eval()


def tokens(d_vocab: int = K) -> Tensor:
    """Sequences `[batch, position]`."""
    return torch.randint(d_vocab, (4, LENGTH), generator=torch.Generator().manual_seed(6))


def keep_logits(name: str, logits: Tensor, d_vocab: int = K) -> None:
    """Write what the original model answered, beside its file."""
    torch.save({"tokens": tokens(d_vocab), "logits": logits.detach().float()}, HERE / f"{name}.logits.pt")
