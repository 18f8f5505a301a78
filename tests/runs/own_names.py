"""A transformer written by hand, its attention kept in each of the ways in which people keep it."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

LAYOUTS = ("linear", "matrices", "conv1d", "per head", "einsum", "parts", "heads", "grouped")


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; `layout` is how queries, keys and values are kept."""

    layout: str = "linear"
    n_states: int = 5
    n_positions: int = 7
    width: int = 8
    n_heads: int = 2
    d_head: int = 4
    n_layers: int = 2
    hidden: int | None = None
    norm: bool = False
    bias: bool = False

    @property
    def n_shared(self) -> int:
        """Heads with keys of their own."""
        return 1 if self.layout == "grouped" else self.n_heads


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d, n, d_head, all_heads = shape.width, shape.n_heads, shape.d_head, shape.n_heads * shape.d_head
        if shape.layout in ("linear", "per head"):
            sizes = [all_heads] * 3 if shape.layout == "linear" else [d_head] * 3
            copies = 1 if shape.layout == "linear" else n
            self.read = nn.ModuleList(
                nn.ModuleDict(
                    {x: nn.Linear(d, size, bias=shape.bias) for x, size in zip("qkv", sizes, strict=True)}
                )
                for _ in range(copies)
            )
        elif shape.layout in ("matrices", "conv1d"):  # `x @ W`; transformers' Conv1D calls it weight
            suffix = "_weight" if shape.layout == "conv1d" else ""
            for x in "qkv":
                self.register_parameter(x + suffix, nn.Parameter(torch.zeros(d, all_heads)))
        elif shape.layout == "einsum":
            for x in "qkv":
                self.register_parameter(x, nn.Parameter(torch.zeros(n, d, d_head)))
        else:
            self.qkv = nn.Linear(d, (n + 2 * shape.n_shared) * d_head, bias=shape.bias)
        self.out = nn.Linear(all_heads, d, bias=shape.bias)
        self.register_buffer("mask", torch.ones(shape.n_positions, shape.n_positions).tril() == 0)

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values, `[batch, head, position, d_head]` each."""
        n, d_head, layout = self.shape.n_heads, self.shape.d_head, self.shape.layout
        if layout in ("parts", "heads", "grouped"):
            both = self.qkv(x)
            if layout == "heads":  # each head's queries, keys and values in turn, as in GPT-NeoX
                return list(both.unflatten(-1, (n, 3, d_head)).permute(3, 0, 2, 1, 4))
            sizes = [n * d_head, *[self.shape.n_shared * d_head] * 2]
            read = [part.unflatten(-1, (-1, d_head)).transpose(1, 2) for part in both.split(sizes, -1)]
            return [part.repeat_interleave(n // part.shape[1], 1) for part in read]
        if layout == "einsum":
            return [torch.einsum("btd,hde->bhte", x, getattr(self, name)) for name in "qkv"]
        if layout in ("matrices", "conv1d"):
            suffix = "_weight" if layout == "conv1d" else ""
            read = [x @ getattr(self, name + suffix) for name in "qkv"]
        elif layout == "per head":
            return [torch.stack([head[name](x) for head in self.read], 1) for name in "qkv"]
        else:
            read = [self.read[0][name](x) for name in "qkv"]
        return [part.unflatten(-1, (n, d_head)).transpose(1, 2) for part in read]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(x)
        scores = (q @ k.mT / self.shape.d_head**0.5).masked_fill(
            self.mask[: x.shape[1], : x.shape[1]], -torch.inf
        )
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, hidden = shape.width, shape.hidden
        self.attention = Attention(shape)
        self.before = nn.LayerNorm(d) if shape.norm else nn.Identity()
        self.between = nn.LayerNorm(d) if shape.norm and hidden else nn.Identity()
        self.up, self.down = (nn.Linear(d, hidden), nn.Linear(hidden, d)) if hidden else (None, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.relu(self.up(self.between(x)))) if self.up is not None else x


class Own(nn.Module):
    """The model: tokens `[batch, position]` to logits `[batch, position, state]`."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.n_states, shape.width)
        self.positions = nn.Parameter(torch.zeros(1, shape.n_positions, shape.width))  # as in minGPT
        self.stack = nn.Sequential(*[Block(shape) for _ in range(shape.n_layers)])
        self.last = nn.LayerNorm(shape.width) if shape.norm else nn.Identity()
        self.readout = nn.Linear(shape.width, shape.n_states, bias=shape.bias)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[:, : tokens.shape[1]]
        return self.readout(self.last(self.stack(x)))


def names_of(shape: Shape) -> dict:
    """The table for such a model."""
    at, to = r"stack\.(\d+)\.", r"blocks.\1."
    attention = at + r"attention\."
    names: dict = {
        "tokens.weight": "embed.W_E",
        "positions": "pos_embed.W_pos",
        "readout.weight": "unembed.W_U",
        "readout.bias": "unembed.b_U",
        attention + r"out\.weight": to + "attn.W_O",
        attention + r"out\.bias": to + "attn.b_O",
        "missing": "zeros",
    }
    both = {kind: [f"{to}attn.{kind}_{x}" for x in "QKV"] for kind in "Wb"}
    if shape.layout in ("parts", "heads", "grouped"):
        split = "heads" if shape.layout == "heads" else "parts"
        names[attention + r"qkv\.weight"] = {"to": both["W"], "split": split}
        names[attention + r"qkv\.bias"] = {"to": both["b"], "split": split}
    for x in "qkv":
        W, b = f"{to}attn.W_{x.upper()}", f"{to}attn.b_{x.upper()}"
        names |= {
            "linear": {attention + rf"read\.0\.{x}\.weight": W, attention + rf"read\.0\.{x}\.bias": b},
            "per head": {
                attention + rf"read\.(\d+)\.{x}\.weight": {"to": W, "head": r"\2"},
                attention + rf"read\.(\d+)\.{x}\.bias": {"to": b, "head": r"\2"},
            },
            "matrices": {attention + x: W},
            "conv1d": {attention + f"{x}_weight": {"to": W, "transpose": False}},
            "einsum": {attention + x: W},
        }.get(shape.layout, {})
    for theirs, ours in (("before", "ln1"), ("between", "ln2")):
        names |= {at + rf"{theirs}\.weight": f"{to}{ours}.w", at + rf"{theirs}\.bias": f"{to}{ours}.b"}
    for theirs, ours in (("up", "in"), ("down", "out")):
        both = {"weight": "W", "bias": "b"}
        names |= {at + rf"{theirs}\.{kind}": f"{to}mlp.{x}_{ours}" for kind, x in both.items()}
    return names | {"last.weight": "ln_final.w", "last.bias": "ln_final.b"}


def given_of(shape: Shape) -> dict:
    """What the shapes of its weights do not tell."""
    given = {"normalization_type": "LN" if shape.norm else None}
    given |= {} if shape.layout in ("per head", "einsum") else {"n_heads": shape.n_heads}
    given |= {"n_heads": shape.n_heads, "n_key_value_heads": 1} if shape.layout == "grouped" else {}
    # `out` holds all heads in one, whatever the layout of what they read by.
    given |= {"n_heads": shape.n_heads} if shape.layout == "einsum" else {}
    return given | ({"act_fn": "relu"} if shape.hidden else {})
