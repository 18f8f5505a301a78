"""Models and loops with the surface of public code, written anew: names, config class, buffers, loss and loop.

| here | its surface | repository, commit and lines |
|---|---|---|
| `CfgNode`, `MinGPT`, `mingpt_run` | minGPT | karpathy/minGPT 37baab7: `mingpt/utils.py` 31-61, `mingpt/model.py` 21-161 and 260-281, `mingpt/trainer.py` 13-109 |
| `markov_args`, `MarkovGPT`, `train_base` | the unigram trap's code | Bond1995/Markov 446eaa1: `Markov-LLM-m/src/config/markov.py` 6-58, `.../models/base.py` 44-315, `.../optim/base.py` 12-45 |

The statistical induction heads' code (EzraEdelman/Evolution-of-Statistical-Induction-Heads 3ab0b29) has minGPT's
GPT and Trainer too. nanoGPT's surface is `NanoGPT` in `test_live_gpt2.py`.
"""  # noqa: E501

import argparse
import math
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn


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
        batch, length, width = x.shape
        q, k, v = (
            y.view(batch, length, self.n_head, -1).transpose(1, 2)
            for y in self.c_attn(x).split(self.n_embd, 2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = self.attn_dropout(F.softmax(scores, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width)))


class MinBlock(nn.Module):
    """The MLP is a ModuleDict that a lambda of the block calls."""

    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = MinAttention(config)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(config.n_embd, 4 * config.n_embd),
                "c_proj": nn.Linear(4 * config.n_embd, config.n_embd),
                "act": NewGELU(),
                "dropout": nn.Dropout(config.resid_pdrop),
            }
        )
        m = self.mlp
        self.mlpf = lambda x: m["dropout"](m["c_proj"](m["act"](m["c_fc"](x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class MinGPT(nn.Module):
    """Of its config it keeps `block_size`; it returns logits at every position and the loss, untied."""

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
        positions = torch.arange(0, length, dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](positions))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


def mingpt_run(config, model, rows, callbacks):
    """minGPT's `Trainer.run`: an endless loader, clipping, callbacks at the end of a batch."""
    registered = defaultdict(list, {"on_batch_end": list(callbacks)})
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
    sampler = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=1000)
    model.train()
    loader = torch.utils.data.DataLoader(rows, sampler=sampler, batch_size=config.batch_size)
    for iteration, batch in enumerate(loader):
        _, loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        for callback in registered["on_batch_end"]:
            callback(iteration, model)
        if iteration + 1 >= config.max_iters:
            return


def markov_args(**changes) -> argparse.Namespace:
    """The unigram trap's arguments: the whole training's, `sequence_length` for the context."""
    fields = {
        "batch_size": 16, "acc_steps": 1, "lr": 2e-3, "opt": "adamw", "vocab_size": 2, "dropout": 0.0,
        "n_head": 1, "n_layer": 1, "n_embd": 8, "sequence_length": 16, "dtype": torch.float16, "bias": False,
        "memory": -1, "bce": False, "no_tying": False, "p": 0.5, "order": 1, "wandb": False,
        "device": torch.device("cpu"),
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
        batch, length, width = x.shape
        q, k, v = (
            y.view(batch, length, self.n_head, -1).transpose(1, 2)
            for y in self.c_attn(x).split(self.n_embd, 2)
        )
        mask = torch.ones(length, length, dtype=torch.bool).tril(diagonal=0)
        if self.memory >= 0:
            mask = mask * ~torch.ones(length, length, dtype=torch.bool).tril(diagonal=-self.memory - 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(self.device), dropout_p=self.dropout)
        self.iter += 1
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


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
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = MarkovNorm(config.n_embd, config.bias), MarkovNorm(config.n_embd, config.bias)
        self.attn, self.mlp, self.iter = MarkovAttention(config), MarkovMLP(config), 0

    def forward(self, x):
        self.iter += 1
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


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
                "ln_f": MarkovNorm(config.n_embd, config.bias),
            }
        )
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
            if self.config.vocab_size == 2 and self.config.bce:
                loss = F.binary_cross_entropy_with_logits(
                    (logits[:, :, 1] - logits[:, :, 0]).view(-1), targets.float().view(-1)
                )
            else:
                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        self.iter += 1
        return {"logits": logits if get_logits else None, "loss": loss}


def train_base(model, batch_of, iterations, args, recorder=None):
    """The unigram trap's loop: micro steps, no zero_grad before the first, an evaluation after each step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=1e-3)
    model.train()
    for step in range(iterations):
        if recorder is not None:
            recorder(step, model)
        for _ in range(args.acc_steps):
            x, y = batch_of()
            (model(x, targets=y)["loss"] / args.acc_steps).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        model.eval()
        with torch.no_grad():
            model(*batch_of(), get_logits=True)
        model.train()
