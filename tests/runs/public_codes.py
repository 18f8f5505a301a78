"""Models with the surface of this field's public codes: config, names, buffers, loss, and how each is saved.

Written anew here; each says which lines of which repository it mirrors.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

K, LENGTH, WIDTH = 5, 7, 8


def drawn(model: nn.Module, seed: int = 5) -> nn.Module:
    """The model with weights that matter, norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def tokens() -> torch.Tensor:
    return torch.randint(K, (4, LENGTH), generator=torch.Generator().manual_seed(6))


def attended(q, k, v, mask):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    return scores.masked_fill(mask == 0, float("-inf")).softmax(-1) @ v


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class NewGELU(nn.Module):
    """karpathy/minGPT@37baab7, mingpt/model.py, lines 21-27."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class MinGPT(nn.Module):
    """karpathy/minGPT@37baab7, mingpt/model.py: attention with its mask as a buffer (29-71), block, model."""

    class Attention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
            self.c_proj = nn.Linear(config.n_embd, config.n_embd)
            size = config.block_size
            self.register_buffer("bias", torch.tril(torch.ones(size, size)).view(1, 1, size, size))
            self.n_head = config.n_head

        def forward(self, x):
            q, k, v = (by_head(part, self.n_head) for part in self.c_attn(x).chunk(3, -1))
            length = x.shape[1]
            y = attended(q, k, v, self.bias[:, :, :length, :length])
            return self.c_proj(y.transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.ln_1 = nn.LayerNorm(config.n_embd)
            self.attn = MinGPT.Attention(config)
            self.ln_2 = nn.LayerNorm(config.n_embd)
            d = config.n_embd
            self.mlp = nn.ModuleDict(
                {
                    "c_fc": nn.Linear(d, 4 * d),
                    "c_proj": nn.Linear(4 * d, d),
                    "act": NewGELU(),
                    "dropout": nn.Dropout(config.resid_pdrop),
                }
            )

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            m = self.mlp
            return x + m["dropout"](m["c_proj"](m["act"](m["c_fc"](self.ln_2(x)))))

    def __init__(self, **changes):
        super().__init__()
        settings = {"n_layer": 2, "n_head": 2, "n_embd": WIDTH, "vocab_size": K, "block_size": LENGTH}
        config = SimpleNamespace(**{**settings, "model_type": None, "resid_pdrop": 0.1, **changes})
        self.block_size = config.block_size
        blocks = [MinGPT.Block(config) for _ in range(config.n_layer)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(config.n_embd),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets=None):
        t = self.transformer
        x = t["drop"](t["wte"](idx) + t["wpe"](torch.arange(idx.shape[1])[None]))
        for block in t["h"]:
            x = block(x)
        logits = self.lm_head(t["ln_f"](x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    def save(self, folder: Path) -> Path:
        """projects/chargpt/chargpt.py, lines 124-126; the config as `setup_logging` writes it."""
        (folder / "config.json").write_text(json.dumps({"model": {"model_type": None, "n_layer": 2}}))
        torch.save(self.state_dict(), folder / "model.pt")
        return folder / "model.pt"


class MarkovGPT(nn.Module):
    """Bond1995/Markov@446eaa1: nanoGPT's layout with `memory`, a bias of the head and logits in a dict.

    Markov-LLM/src/models/base.py: attention 55-100, block 180-196, model 205-303. With `bare` the blocks of
    Markov-Simple/src/models/base.py (180-206) without norms, and its buffers `alpha` and `w` (240-241). With
    `mlp` off those of Markov-LLM-AO (160-176).
    """

    def __init__(self, memory=-1, bare=False, mlp=True, bias=False, heads=1):
        super().__init__()
        self.config = SimpleNamespace(memory=memory, sequence_length=LENGTH, n_head=heads, bce=False)
        self.memory, self.heads = memory, heads

        def block():
            linear = {
                "c_attn": nn.Linear(WIDTH, 3 * WIDTH, bias=bias),
                "c_proj": nn.Linear(WIDTH, WIDTH, bias=bias),
            }
            hidden = {
                "c_fc": nn.Linear(WIDTH, 4 * WIDTH, bias=bias),
                "c_proj": nn.Linear(4 * WIDTH, WIDTH, bias=bias),
            }
            parts = {} if bare else {"ln_1": nn.LayerNorm(WIDTH, bias=bias)}
            parts["attn"] = nn.ModuleDict(linear)
            if mlp:
                parts |= {} if bare else {"ln_2": nn.LayerNorm(WIDTH, bias=bias)}
                parts["mlp"] = nn.ModuleDict(hidden)
            return nn.ModuleDict(parts)

        parts = {"wte": nn.Embedding(K, WIDTH), "wpe": nn.Embedding(LENGTH, WIDTH)}
        parts["h"] = nn.ModuleList([block() for _ in range(2)])
        if not bare:
            parts["ln_f"] = nn.LayerNorm(WIDTH, bias=bias)
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, K, bias=True)
        self.transformer["wte"].weight = self.lm_head.weight
        if bare:
            self.register_buffer("alpha", 2 * torch.bernoulli(0.5 * torch.ones(WIDTH, 1)) - 1)
            self.register_buffer("w", torch.abs(0.1 * torch.randn(1)) * torch.ones(4 * WIDTH, 1))

    def forward(self, idx, targets=None):
        x = self.transformer["wte"](idx) + self.transformer["wpe"].weight[: idx.shape[1]]
        length = idx.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if self.memory >= 0:
            mask = mask * ~torch.ones(length, length, dtype=torch.bool).tril(diagonal=-self.memory - 1)
        same = nn.Identity()
        for block in self.transformer["h"]:
            parts = dict(block.items())
            normed = parts.get("ln_1", same)(x)
            q, k, v = (by_head(part, self.heads) for part in parts["attn"]["c_attn"](normed).chunk(3, -1))
            x = x + parts["attn"]["c_proj"](attended(q, k, v, mask).transpose(1, 2).flatten(2))
            if "mlp" in parts:
                hidden = F.gelu(parts["mlp"]["c_fc"](parts.get("ln_2", same)(x)))
                x = x + parts["mlp"]["c_proj"](hidden)
        logits = self.lm_head(dict(self.transformer.items()).get("ln_f", same)(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, K), targets.view(-1))
        return {"logits": logits, "loss": loss}

    def save(self, path: Path, itr: int) -> Path:
        """Markov-LLM/src/optim/utils.py, lines 244-253 (`save_checkpoint`)."""
        optimiser = torch.optim.AdamW(self.parameters())
        checkpoint = {
            "model": self.state_dict(),
            "optimizer": optimiser.state_dict(),
            "scheduler": torch.optim.lr_scheduler.OneCycleLR(
                optimiser,
                max_lr=1e-3,
                total_steps=10,
                pct_start=0.2,
                anneal_strategy="cos",
                cycle_momentum=False,
            ).state_dict(),
            "itr": itr,
        }
        torch.save(checkpoint, path)
        return path


class RelativeTransformer(nn.Module):
    """EzraEdelman/Evolution-of-Statistical-Induction-Heads, mingpt/model_rpe.py, lines 20-140 and 190-210."""

    class Attention(nn.Module):
        def __init__(self, block_size, heads, attention_only):
            super().__init__()
            self.Q, self.K, self.V = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
            self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
            self.wpe = nn.Embedding(block_size + 1, WIDTH, padding_idx=block_size)
            self.attention_only, self.n_head = attention_only, heads
            self.ln = nn.LayerNorm(WIDTH)
            mask = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)
            self.register_buffer("bias", mask)
            pos = torch.arange(block_size, dtype=torch.long).unsqueeze(0)
            pos = pos.view(-1, 1) - pos.view(1, -1)
            pos = torch.maximum(pos, torch.tensor(-1))
            pos[pos == -1] = block_size
            self.register_buffer("pos", pos)
            if not attention_only:
                self.ln_2 = nn.LayerNorm(WIDTH)
                layers = {"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)}
                self.mlp = nn.ModuleDict({**layers, "act": nn.ReLU(), "dropout": nn.Dropout(0.1)})

        def forward(self, x):
            T = x.shape[1]
            normed = self.ln(x)
            q, k, v = (by_head(layer(normed), self.n_head) for layer in (self.Q, self.K, self.V))
            rel_pos = self.wpe(self.pos[:T, :T]).view(T, T, self.n_head, -1)
            scores = q @ k.transpose(-2, -1) + torch.einsum("Tthe,BhTe->BhTt", rel_pos, q)
            scores = scores * (1.0 / math.sqrt(k.size(-1)))
            pattern = scores.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")).softmax(-1)
            x = self.c_proj((pattern @ v).transpose(1, 2).flatten(2)) + x
            if not self.attention_only:
                m = self.mlp
                x = m["dropout"](m["c_proj"](m["act"](m["c_fc"](self.ln_2(x))))) + x
            return x

    def __init__(self, layers=2, heads=1, attention_only=True):
        super().__init__()
        self.wte = nn.Embedding(K, WIDTH)
        first = RelativeTransformer.Attention(LENGTH, heads, attention_only)
        rest = [RelativeTransformer.Attention(LENGTH, 1, attention_only) for _ in range(layers - 1)]
        self.layers = nn.ModuleList([first, *rest])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, K, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, K), targets.view(-1))
        return logits, loss

    def save(self, path: Path, step: int) -> Path:
        """training_pipeline.py, line 96, where it is commented out."""
        torch.save(self.state_dict(), path / f"model_{step}")
        return path / f"model_{step}"
