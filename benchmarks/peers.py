"""What people train such models with: a nanoGPT-style module, and HookedTransformer where it exists."""

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import mechmarkov as mm


class _Block(nn.Module):
    def __init__(self, d: int, d_mlp: int, norm: bool, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(d) if norm else nn.Identity()
        self.ln_2 = nn.LayerNorm(d) if norm else nn.Identity()
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.mlp_proj = nn.Linear(d, d_mlp), nn.Linear(d_mlp, d)

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream `[batch, position, d]` after the block."""
        q, k, v = rearrange(
            self.c_attn(self.ln_1(x)), "b t (three h d) -> three b h t d", three=3, h=self.heads
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(rearrange(z, "b h t d -> b t (h d)"))
        return x + self.mlp_proj(F.relu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """A plain GPT with fused attention, as karpathy/nanoGPT writes it."""

    def __init__(self, layers: int, n_ctx: int, d: int, vocab: int, norm: bool, heads: int = 1) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(n_ctx, d)
        self.blocks = nn.ModuleList([_Block(d, 4 * d, norm, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(d) if norm else nn.Identity()
        self.lm_head = nn.Linear(d, vocab)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("c_proj.weight", "mlp_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, position, vocab]`."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


def hooked_transformer(config: mm.DecoderConfig) -> nn.Module | None:
    """A HookedTransformer of that shape, or None where TransformerLens has none any more (4.x)."""
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        return None
    dump = config.model_dump()
    known = {field.name for field in dataclasses.fields(HookedTransformerConfig)} - {"window_size"}
    fields = {k: v for k, v in dump.items() if k in known and v is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fields |= {"normalization_type": config.normalization_type, "init_weights": True}
        model: nn.Module = HookedTransformer(HookedTransformerConfig(**fields))
    return model


def sample_a_step(source: mm.Binary, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """The reference code's sampler: one multinomial call a time step, for the whole batch."""
    P = torch.tensor(source.P, dtype=torch.float32)
    states = [torch.multinomial(torch.tensor(source.pi), batch, replacement=True, generator=generator)]
    for _ in range(length - 1):
        states.append(torch.multinomial(P[states[-1]], 1, generator=generator)[:, 0])
    return torch.stack(states, dim=1)


def train_one(model: nn.Module, draw: Callable[[int], Tensor], steps: int) -> Callable[[], object]:
    """A training loop as people write it, data and optimiser included; `draw` gives a step's sequences."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10**6)

    def run() -> object:
        for step in range(steps):
            states = draw(step)
            logits = model(states[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), states[:, 1:].flatten())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
        return model

    return run


def train_stack(
    models: Sequence[nn.Module], draw: Callable[[int], Tensor], steps: int
) -> Callable[[], object]:
    """The same for several models as one: `stack_module_state` and `vmap`, forward and backward compiled.

    `draw` gives a step's sequences of all models, `[model, batch, position]`.
    """
    stacked, _ = stack_module_state([*models])
    parameters = {name: value.detach().requires_grad_() for name, value in stacked.items()}
    skeleton = copy.deepcopy(models[0]).to("meta")
    optimiser = torch.optim.AdamW([*parameters.values()], lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10**6)

    def loss(own: dict[str, Tensor], states: Tensor) -> Tensor:
        logits = functional_call(skeleton, own, (states[:, :-1],))
        return F.cross_entropy(logits.flatten(0, 1), states[:, 1:].flatten())

    total = torch.compile(lambda own, states: vmap(loss)(own, states).sum())

    def run() -> object:
        for step in range(steps):
            optimiser.zero_grad(set_to_none=True)
            total(parameters, draw(step)).backward()
            optimiser.step()
            schedule.step()
        return parameters

    return run
