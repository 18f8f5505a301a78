"""The two-layer transformer as the public code trains it, dropout and weight decay included."""

import torch
import torch.nn.functional as F
from torch import Tensor

import mechmarkov as mm
from mechmarkov.models.attention import Attention
from mechmarkov.models.init import initialise

DROPOUT = 0.1
LENGTH, BATCH, STEPS = 100, 64, 2000
LEARNING_RATE, BETAS, WEIGHT_DECAY = 5e-4, (0.9, 0.95), 0.1
START, START_OUT = 0.02, 0.01  # standard deviations: of all weights, and of `W_O`
DECAYED = ("W_Q", "W_K", "W_V", "W_O", "W_U")
ABSENT = ("b_Q", "b_K", "b_V", "b_O", "b_U")  # the public code's linear layers have no bias


def _kept(*shape: int) -> Tensor:
    """A dropout mask: 0 with probability 1/10, else 10/9. Integers are drawn faster than Bernoullis."""
    return (torch.randint(0, 10, shape, dtype=torch.uint8) > 0).float().mul_(10 / 9)


class DroppedAttention(Attention):
    """Attention with dropout of the pattern and of the vector of each query and lag."""

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, length = q.shape[0], q.shape[-2]
        q, k, v = q[:, 0] / self.config.score_scale, k[:, 0], v[:, 0]  # one head: [batch, position, d_head]
        position = torch.arange(length)
        lag = (position[:, None] - position).clamp_min(0)
        future = torch.full((length, length), -torch.inf).triu(1)
        found = []
        for rows in (slice(0, length // 2), slice(length // 2, length)):  # early queries have fewer keys
            seen = slice(0, rows.stop)
            vectors = self.W_rel[0][lag[rows, seen]] * _kept(rows.stop - rows.start, rows.stop, q.shape[-1])
            by_lag = (q[:, rows].transpose(0, 1) @ vectors.mT).transpose(0, 1)
            scores = torch.baddbmm(by_lag, q[:, rows], k[:, seen].mT) + future[rows, seen]
            found.append((scores.softmax(-1) * _kept(batch, *scores.shape[1:])) @ v[:, seen])
        return torch.cat(found, 1)[:, None]


def dropped(config: mm.DecoderConfig) -> mm.HookedDecoder:
    """A decoder with the public code's dropout, always on: for training alone."""
    decoder = mm.HookedDecoder(config)
    decoder.hook_embed.add_hook(lambda x, hook: F.dropout(x, DROPOUT))
    for block in decoder.blocks:
        block.attn = DroppedAttention(config, ())
        block.hook_attn_out.add_hook(lambda x, hook: F.dropout(x, DROPOUT))
    return decoder


def train(source: mm.sources.Source, seed: int, steps: int, every: int, length: int = LENGTH) -> mm.Run:
    """One run of the public settings; weights are kept every so many steps."""
    config = mm.DecoderConfig(
        n_layers=2,
        d_model=16,
        d_head=16,
        n_heads=1,
        n_ctx=length,
        d_vocab=source.n_states,
        attn_only=True,
        positional_embedding_type="relative",
    )
    start = mm.HookedDecoder(config)
    initialise(start, [seed], std=START)
    states = {
        name: value * (START_OUT / START) if name.endswith("W_O") else value
        for name, value in start.state_dict().items()
    }
    model = dropped(config)
    model.load_state_dict(states)
    named = {name: p for name, p in model.named_parameters() if not name.endswith(ABSENT)}
    groups = [
        {"params": [p for name, p in named.items() if name.endswith(DECAYED)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for name, p in named.items() if not name.endswith(DECAYED)], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS)
    generator = torch.Generator().manual_seed(seed)
    snapshots = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of dropout, which takes no generator
        for step in range(steps + 1):
            if step % every == 0:
                snapshots.append({name: value.clone() for name, value in model.state_dict().items()})
            if step == steps:
                break
            tokens = source.sample(BATCH, length + 1, generator=generator)
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    kept_states = {name: torch.stack([shot[name] for shot in snapshots]) for name in snapshots[0]}
    return mm.Run(
        config=config,
        source=source,
        objective=mm.Objective(),
        steps=torch.arange(0, steps + 1, every),
        states=kept_states,
        seed=seed,
    )
