"""A small decoder as people write it for experiments on sequences, in the styles that they use."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

K, LENGTH, WIDTH, HEADS, D_HEAD = 5, 7, 8, 2, 4
ALIBI = torch.tensor([2.0**-4, 2.0**-8])  # the slopes of two heads
EPS = torch.finfo(torch.float32).eps  # what `nn.RMSNorm` takes where none is given
R, B = r"layers\.(\d+)\.", r"blocks.\1."  # a layer's names, and HookedTransformer's


@dataclass(frozen=True)
class Style:
    """A way to write a decoder; no HookedDecoder has what `norm="residual"` is."""

    reads: str = "tokens"  # or "one-hot"
    position_first: bool = False
    positions: str = "learned"  # "sinusoidal", "computed", "rotary", "none"
    embed_scale: float = 1.0
    qkv: str = "parts"  # "heads", "interleaved"
    scale: float = D_HEAD**-0.5
    soft: bool = True  # attention's weights are a softmax
    bias_of_scores: str = "none"  # "alibi", "slopes", "pairs" (of positions), "lags", "computed"
    norm: str = "pre"  # "post", "none", "residual": the stream itself is normed before attention
    rms: bool = False
    last_norm: bool = True
    mlp: str = "gelu"  # "relu", "gated", "none"
    bias: bool = True
    tied: bool = False
    gives: str = "logits"  # "probabilities", "last", "dict", "tuple"
    always_drops: bool = False
    repeats: int = 1
    n_layers: int = 2


def norm(style: Style) -> nn.Module:
    return nn.RMSNorm(WIDTH) if style.rms else nn.LayerNorm(WIDTH)


class Layer(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=style.bias)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=style.bias)
        if style.bias_of_scores == "lags":
            self.lags = nn.Embedding(LENGTH, HEADS)
        if style.mlp != "none":
            self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=style.bias)
            self.down = nn.Linear(4 * WIDTH, WIDTH, bias=style.bias)
        if style.mlp == "gated":
            self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=style.bias)
        if style.norm != "none":
            self.norm1 = norm(style)
            self.norm2 = norm(style) if style.mlp != "none" else nn.Identity()

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.qkv(x)
        if self.style.qkv == "parts":
            parts = [part.unflatten(-1, (HEADS, D_HEAD)) for part in y.chunk(3, -1)]
        elif self.style.qkv == "heads":
            parts = list(y.unflatten(-1, (HEADS, 3 * D_HEAD)).chunk(3, -1))
        else:
            parts = list(y.unflatten(-1, (HEADS, D_HEAD, 3)).unbind(-1))
        return [part.transpose(1, 2) for part in parts]

    def bias(self, lags: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor | float:
        """Returns what is added to scores, `[head, query, key]`, from a buffer or computed."""
        kind, n = self.style.bias_of_scores, len(lags)
        if kind == "lags":
            return self.lags(lags.clamp(min=0)).permute(2, 0, 1)
        if kind == "pairs":
            return own[:, :n, :n]
        slopes = {"alibi": ALIBI, "slopes": own, "computed": torch.tensor([0.5, 0.5])}.get(kind)
        return 0.0 if slopes is None else -slopes[:, None, None] * lags

    def attention(self, x: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.heads(x)
        if self.style.positions == "rotary":
            q, k = rotated(q), rotated(k)
        length = torch.arange(x.shape[1])
        lags = length[:, None] - length
        scores = q @ k.mT * self.style.scale + self.bias(lags, own)
        if self.style.soft:
            weights = scores.masked_fill(lags < 0, -torch.inf).softmax(-1)
        else:
            weights = scores.masked_fill(lags < 0, 0)
        out = self.proj((weights @ v).transpose(1, 2).flatten(2))
        return F.dropout(out, 0.1, training=True) if self.style.always_drops else out

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        if self.style.mlp == "gated":
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(getattr(F, self.style.mlp)(self.up(x)))

    def forward(self, x: torch.Tensor, own: torch.Tensor | None = None) -> torch.Tensor:
        kind, has_mlp = self.style.norm, self.style.mlp != "none"
        if kind == "post":
            x = self.norm1(x + self.attention(x, own))
            return self.norm2(x + self.feed(x)) if has_mlp else x
        normed = self.norm1(x) if kind != "none" else x
        x = (normed if kind == "residual" else x) + self.attention(normed, own)
        if not has_mlp:
            return x
        return x + self.feed(self.norm2(x) if kind != "none" else x)


def rotated(x: torch.Tensor) -> torch.Tensor:
    rate = 10000.0 ** (-torch.arange(0, D_HEAD, 2, dtype=x.dtype) / D_HEAD)
    angles = (torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rate).repeat(1, 2)
    half = D_HEAD // 2
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


def sinusoids() -> torch.Tensor:
    """Vaswani et al.'s table `[1, position, width]`, as their code's many copies keep it."""
    angles = torch.arange(LENGTH)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(1e4) / WIDTH))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None]


class Hand(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.tok = nn.Embedding(K, WIDTH)
        if style.positions == "learned":
            self.pos = nn.Embedding(LENGTH, WIDTH)
        if style.positions == "sinusoidal":
            self.register_buffer("pe", sinusoids())
        if style.bias_of_scores == "slopes":
            self.register_buffer("slopes", torch.tensor([0.5, 0.2]))
        if style.bias_of_scores == "pairs":
            lags = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
            self.register_buffer("slopes", -torch.tensor([0.1, 0.03])[:, None, None] * lags**2)
        self.layers = nn.ModuleList(Layer(style) for _ in range(style.n_layers))
        self.norm = norm(style) if style.norm != "none" and style.last_norm else nn.Identity()
        self.head = nn.Linear(WIDTH, K, bias=False)
        if style.tied:
            self.head.weight = self.tok.weight
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor):
        style = self.style
        tokens = tokens.transpose(0, 1) if style.position_first else tokens
        x = (tokens @ self.tok.weight if style.reads == "one-hot" else self.tok(tokens)) * style.embed_scale
        if style.positions == "learned":
            x = x + self.pos(torch.arange(x.shape[1]))
        elif style.positions in ("sinusoidal", "computed"):
            x = x + (self.pe if style.positions == "sinusoidal" else sinusoids())[:, : x.shape[1]].to(x)
        x = self.drop(x)
        for _ in range(style.repeats):
            for layer in self.layers:
                x = layer(x, self.slopes if style.bias_of_scores in ("slopes", "pairs") else None)
        logits = self.head(self.norm(x))
        logits = logits.transpose(0, 1) if style.position_first else logits
        return {
            "logits": lambda: logits,
            "probabilities": lambda: logits.softmax(-1),
            "last": lambda: logits[:, -1],
            "dict": lambda: {"hidden": x, "logits": logits},
            "tuple": lambda: (logits, x, None),
        }[style.gives]()


def names_of(style: Style) -> dict:
    """The table of names of `Hand`; lines that fit no weight are of no harm."""
    times = [B, "blocks.1."][: style.repeats]
    names: dict = {
        "tok.weight": {"to": "embed.W_E", "scale": style.embed_scale},
        "head.weight": "" if style.tied else "unembed.W_U",
        "pos.weight": "pos_embed.W_pos",
        "pe": "pos_embed.W_pos",
        "norm.weight": "ln_final.w",
        "norm.bias": "ln_final.b",
        "missing": "zeros",
    }
    names[rf"{R}lags\.weight"] = f"{B}attn.b_rel"
    every = [f"blocks.{layer}.attn.b_rel" for layer in range(style.n_layers)]
    names["slopes"] = {"to": every, "slopes": style.bias_of_scores == "slopes"}
    if style.tied:
        names["tok.weight"] = [names["tok.weight"], "unembed.W_U"]
    for kind, ours in (("weight", "W"), ("bias", "b")):
        names[rf"{R}qkv\.{kind}"] = [
            {"to": [f"{at}attn.{ours}_{x}" for x in "QKV"], "split": style.qkv} for at in times
        ]
        for theirs, place in (("proj", "attn.{}_O"), ("up", "mlp.{}_in"), ("down", "mlp.{}_out")):
            names[rf"{R}{theirs}\.{kind}"] = [at + place.format(ours) for at in times]
        names[rf"{R}gate\.{kind}"] = f"{B}mlp.{ours}_gate"
        for number in "12":
            names[rf"{R}norm{number}\.{kind}"] = [f"{at}ln{number}.{kind[0]}" for at in times]
    return names


def given_of(style: Style) -> dict:
    """Fields of a config that no shape tells."""
    given: dict = {"n_heads": HEADS, "normalization_type": None, "attn_scale": 1 / style.scale}
    if style.norm != "none":
        given |= {"normalization_type": "RMS", "eps": EPS} if style.rms else {"normalization_type": "LN"}
        given |= {"norm_first": False} if style.norm == "post" else {}
    if style.mlp != "none":
        given["act_fn"] = "silu" if style.mlp == "gated" else style.mlp
    if style.positions not in ("learned", "sinusoidal"):
        rotary = {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": False}
        given |= rotary if style.positions == "rotary" else {"positional_embedding_type": "none"}
        given["n_ctx"] = LENGTH
    if style.bias_of_scores != "none" and style.positions == "none":
        kind = "alibi" if style.bias_of_scores == "alibi" else "relative_bias"
        given["positional_embedding_type"] = kind
    return given
