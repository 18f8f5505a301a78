"""Models with the surface of public code, written anew: names, config class, buffers, loss; how each is saved.

| here | its surface | repository, commit and lines |
|---|---|---|
| `CfgNode`, `MinGPT` | minGPT | karpathy/minGPT 37baab7: `mingpt/utils.py` 31-61, `mingpt/model.py` 21-161 and 260-281 |
| `markov_args`, `MarkovGPT` | the unigram trap's code | Bond1995/Markov 446eaa1: `Markov-LLM-m/src/config/markov.py` 6-58, `.../models/base.py` 44-315 |
| `NanoGPT` | nanoGPT | karpathy/nanoGPT 3adf61e: `model.py` |
"""  # noqa: E501

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from mechmarkov.sources import Circle

K, LENGTH, WIDTH = 5, 7, 8
SOURCE = Circle(n_states=K, p=0.3)


def drawn(model: nn.Module) -> nn.Module:
    """The model with weights that matter, norms and biases too."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(k: int = K) -> torch.Tensor:
    return torch.randint(k, (4, LENGTH), generator=torch.Generator().manual_seed(6))


def by_head(qkv: torch.Tensor, heads: int) -> list[torch.Tensor]:
    """Queries, keys and values of one layer, each `[batch, head, position, d_head]`."""
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1)]


def linears(d: int, bias: bool = True) -> dict[str, nn.Linear]:
    """The layers of an MLP by GPT-2's names."""
    return {"c_fc": nn.Linear(d, 4 * d, bias), "c_proj": nn.Linear(4 * d, d, bias)}


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # As in nanoGPT's model.py: `view` asks for contiguous targets.
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


@dataclass
class Config:
    """nanoGPT's GPTConfig."""

    block_size: int = LENGTH
    vocab_size: int = K
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = WIDTH
    dropout: float = 0.1
    bias: bool = True


class Block(nn.Module):
    """A block with nanoGPT's names, its arithmetic written out."""

    def __init__(self, config: Config, activation: nn.Module) -> None:
        super().__init__()
        d = config.n_embd
        self.heads = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(d, bias=config.bias), nn.LayerNorm(d, bias=config.bias)
        into, out = nn.Linear(d, 3 * d, config.bias), nn.Linear(d, d, config.bias)
        self.attn = nn.ModuleDict({"c_attn": into, "c_proj": out})
        others = {"gelu": activation, "dropout": nn.Dropout(config.dropout)}
        self.mlp = nn.ModuleDict({**linears(d, config.bias), **others})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, d = x.shape
        q, k, v = by_head(self.attn["c_attn"](self.ln_1(x)), self.heads)
        scores = q @ k.mT / (d // self.heads) ** 0.5
        mask = torch.ones(length, length).tril() == 0
        mixed = scores.masked_fill(mask, -torch.inf).softmax(-1) @ v
        x = x + self.attn["c_proj"](mixed.transpose(1, 2).reshape(batch, length, d))
        hidden = self.mlp["gelu"](self.mlp["c_fc"](self.ln_2(x)))
        return x + self.mlp["dropout"](self.mlp["c_proj"](hidden))


class NanoGPT(nn.Module):
    """nanoGPT's surface: names, config, its own loss, and logits of the last position without targets."""

    def __init__(self, config: Config, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        d = config.n_embd
        blocks = nn.ModuleList([Block(config, activation or nn.GELU()) for _ in range(config.n_layer)])
        embeddings = {"wte": nn.Embedding(config.vocab_size, d), "wpe": nn.Embedding(config.block_size, d)}
        self.transformer = nn.ModuleDict(
            {**embeddings, "h": blocks, "ln_f": nn.LayerNorm(d, bias=config.bias)}
        )
        self.lm_head = nn.Linear(d, config.vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens, targets=None):
        x = self.transformer["wte"](tokens) + self.transformer["wpe"].weight[: tokens.shape[1]]
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, next_token_loss(logits, targets)


def names_of_gpt2(prefix: str, **way: object) -> dict[str, object]:
    """A table of names for GPT-2's; `way` says how its matrices lie."""
    at, ours = rf"{prefix}\.h\.(\d+)\.", r"blocks.\1."
    table: dict[str, object] = {f"{prefix}.wpe.weight": "pos_embed.W_pos"}
    for kind, gain, end, said in (("W", "w", "weight", way), ("b", "b", "bias", {})):
        table[rf"{prefix}\.ln_f\.{end}"] = f"ln_final.{gain}"
        table[rf"{at}ln_(\d)\.{end}"] = rf"{ours}ln\2.{gain}"
        qkv = [f"{ours}attn.{kind}_{x}" for x in "QKV"]
        table[rf"{at}attn\.c_attn\.{end}"] = {"to": qkv, "split": "parts", **said}
        for theirs, place in {"attn.c_proj": f"attn.{kind}_O", "mlp.c_fc": f"mlp.{kind}_in"}.items():
            table[f"{at}{theirs}.{end}"] = {"to": ours + place, **said}
        table[rf"{at}mlp\.c_proj\.{end}"] = {"to": f"{ours}mlp.{kind}_out", **said}
    return table


def live_gpt2(**changes: object) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    special = {"bos_token_id": 0, "eos_token_id": 0}
    shape = {"vocab_size": K, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 2}
    return drawn(GPT2LMHeadModel(GPT2Config(**(shape | special | changes))))


def of_transformers(family: str, shape: dict[str, object], seed: int) -> nn.Module:
    """A model of a family of transformers, every parameter drawn."""
    import transformers

    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**(special | shape))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = 0.4 * torch.randn(parameter.shape, generator=generator)
            scales = "norm" in name and name.endswith(".weight")
            parameter.copy_(1 + value if scales else value)
    return model.eval()


class CfgNode:
    """minGPT's config: attributes, and a `to_dict` that none of transformers' fields are in."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def to_dict(self):
        return {k: v.to_dict() if isinstance(v, CfgNode) else v for k, v in self.__dict__.items()}


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class MinAttention(nn.Module):
    """The causal mask is a buffer called `bias`; the module keeps how many heads it has."""

    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout, self.resid_dropout = nn.Dropout(config.attn_pdrop), nn.Dropout(config.resid_pdrop)
        size = config.block_size
        self.register_buffer("bias", torch.tril(torch.ones(size, size)).view(1, 1, size, size))
        self.n_head, self.n_embd = config.n_head, config.n_embd

    def forward(self, x):
        length = x.shape[1]
        q, k, v = by_head(self.c_attn(x), self.n_head)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = self.attn_dropout(F.softmax(scores, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


class MinBlock(nn.Module):
    """The MLP is a ModuleDict that a lambda of the block calls."""

    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = MinAttention(config)
        others = {"act": NewGELU(), "dropout": nn.Dropout(config.resid_pdrop)}
        m = self.mlp = nn.ModuleDict({**linears(config.n_embd), **others})
        self.mlpf = lambda x: m["dropout"](m["c_proj"](m["act"](m["c_fc"](x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class MinGPT(nn.Module):
    """Keep only `block_size` of its config; it returns logits at every position and the loss, untied."""

    def __init__(self, config):
        super().__init__()
        self.block_size = config.block_size
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.embd_pdrop),
                "h": nn.ModuleList([MinBlock(config) for _ in range(config.n_layer)]),
                "ln_f": nn.LayerNorm(config.n_embd),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets=None):
        length = idx.size(1)
        assert length <= self.block_size, f"Cannot forward sequence of length {length}"
        positions = torch.arange(length, device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](positions))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        return logits, None if targets is None else next_token_loss(logits, targets)

    def save(self, folder: Path) -> Path:
        """projects/chargpt/chargpt.py, lines 124-126; the config as `setup_logging` writes it."""
        (folder / "config.json").write_text(json.dumps({"model": {"model_type": None, "n_layer": 2}}))
        torch.save(self.state_dict(), folder / "model.pt")
        return folder / "model.pt"


def mingpt(**changes) -> MinGPT:
    fields = {"model_type": None, "n_layer": 2, "n_head": 2, "n_embd": WIDTH, "vocab_size": K}
    fields |= {"block_size": LENGTH, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1}
    return MinGPT(CfgNode(**(fields | changes)))


def markov_args(**changes) -> argparse.Namespace:
    """The unigram trap's arguments: the whole training's, `sequence_length` for the context."""
    fields = {
        "batch_size": 16, "acc_steps": 1, "lr": 2e-3, "opt": "adamw", "vocab_size": 2, "dropout": 0.0,
        "n_head": 1, "n_layer": 1, "n_embd": 8, "sequence_length": 16, "dtype": torch.float16, "bias": False,
        "memory": -1, "bce": False, "no_tying": False, "p": 0.5, "order": 1, "wandb": False,
        "device": torch.device("cpu"), "bare": False, "mlp": True,
    }  # fmt: skip
    return argparse.Namespace(**(fields | changes))


class MarkovNorm(nn.Module):
    """A LayerNorm whose bias may be None."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class MarkovAttention(nn.Module):
    """Fused attention with a window (`memory`), which counts its calls."""

    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout
        self.memory, self.device, self.iter = config.memory, config.device, 0

    def forward(self, x):
        length = x.shape[1]
        q, k, v = by_head(self.c_attn(x), self.n_head)
        mask = torch.ones(length, length, dtype=torch.bool).tril(diagonal=0)
        if self.memory >= 0:
            mask = mask * ~torch.ones(length, length, dtype=torch.bool).tril(diagonal=-self.memory - 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(self.device), dropout_p=self.dropout)
        self.iter += 1
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MarkovMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.activation, self.iter = nn.GELU(), 0

    def forward(self, x):
        self.iter += 1
        return self.c_proj(self.activation(self.c_fc(x)))


class MarkovBlock(nn.Module):
    """With `bare` without norms, as Markov-Simple (180-206); without `mlp` as Markov-LLM-AO (160-176)."""

    def __init__(self, config):
        super().__init__()
        norm = nn.Identity if config.bare else lambda: MarkovNorm(config.n_embd, config.bias)
        self.ln_1, self.attn, self.iter = norm(), MarkovAttention(config), 0
        if config.mlp:
            self.ln_2, self.mlp = norm(), MarkovMLP(config)

    def forward(self, x):
        self.iter += 1
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x)) if hasattr(self, "mlp") else x


class MarkovGPT(nn.Module):
    """A dict of logits and loss, logits only where they are asked for; a head with a bias; calls are counted.

    At call 10 000 the original prints its weights: a call that is not of the training would shift that.
    """

    def __init__(self, config):
        super().__init__()
        self.config, self.iter = config, 0
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.sequence_length, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([MarkovBlock(config) for _ in range(config.n_layer)]),
                "ln_f": nn.Identity() if config.bare else MarkovNorm(config.n_embd, config.bias),
            }
        )
        if config.bare:  # Markov-Simple's buffers (240-241), which it does not use
            self.register_buffer("alpha", 2 * torch.bernoulli(0.5 * torch.ones(config.n_embd, 1)) - 1)
            self.register_buffer("w", torch.abs(0.1 * torch.randn(1)) * torch.ones(4 * config.n_embd, 1))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=True)
        if not config.no_tying:
            self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx, targets=None, get_logits=False):
        positions = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](positions))
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            logits, loss = self.lm_head(x[:, [-1], :]), None
        else:
            logits = self.lm_head(x)
            loss = next_token_loss(logits, targets)
            if self.config.vocab_size == 2 and self.config.bce:
                apart = (logits[:, :, 1] - logits[:, :, 0]).view(-1)
                loss = F.binary_cross_entropy_with_logits(apart, targets.float().view(-1))
        self.iter += 1
        return {"logits": logits if get_logits else None, "loss": loss}

    def save(self, path: Path, itr: int) -> Path:
        """Markov-LLM/src/optim/utils.py, lines 244-253 (`save_checkpoint`)."""
        optimiser = torch.optim.AdamW(self.parameters())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, 10, cycle_momentum=False)
        states = {"model": self, "optimizer": optimiser, "scheduler": scheduler}
        torch.save({**{name: x.state_dict() for name, x in states.items()}, "itr": itr}, path)
        return path


def markov(**changes) -> MarkovGPT:
    """One as it is imported: two layers, in this file's vocabulary."""
    return drawn(MarkovGPT(markov_args(vocab_size=K, sequence_length=LENGTH, n_layer=2, **changes)))


def logits_of(model: nn.Module) -> torch.Tensor:
    """The logits of a `MarkovGPT` at every position."""
    return model(tokens(), tokens(), get_logits=True)["logits"].detach()
