"""Decoders as strangers write them: nobody told them what to call a weight, or where to keep it."""

import math

import torch
from einops import einsum, rearrange
from torch import nn
from torch.nn import functional as F

K, LENGTH, WIDTH, HEADS = 5, 9, 16, 4
D_HEAD = WIDTH // HEADS


def later(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * 0.3)


class Base(nn.Module):
    """Embeddings of tokens and positions, and logits."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.e, self.p, self.u = nn.Embedding(K, width), nn.Embedding(LENGTH, width), nn.Linear(width, K)

    def stream(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.e(tokens) + self.p(torch.arange(tokens.shape[1]))


class TorchEncoder(nn.Module):
    """Two of torch's own layers, positions in a parameter."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.tok, self.pos = nn.Embedding(K, WIDTH), nn.Parameter(torch.randn(1, LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 32, activation="gelu", batch_first=batch_first, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, K)

    def forward(self, tokens):
        x = self.tok(tokens) * math.sqrt(WIDTH) + self.pos[:, : tokens.shape[1]]
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]))
        return self.head(x if self.batch_first else x.transpose(0, 1))


class Einsums(nn.Module):
    """Bare parameters with an axis of heads, norms by hand, as in ARENA's exercises."""

    def __init__(self) -> None:
        super().__init__()
        self.W_tok, self.W_places, self.W_out, self.b_out = (
            matrix(K, WIDTH), matrix(LENGTH, WIDTH), matrix(WIDTH, K), matrix(K)
        )  # fmt: skip
        self.layers = nn.ModuleList()
        for _ in range(2):
            layer = nn.Module()
            for side in "qkv":
                layer.register_parameter(f"W_{side}", matrix(HEADS, WIDTH, D_HEAD))
                layer.register_parameter(f"b_{side}", matrix(HEADS, D_HEAD))
            layer.W_o, layer.b_o = matrix(HEADS, D_HEAD, WIDTH), matrix(WIDTH)
            layer.g1, layer.s1, layer.g2, layer.s2 = (matrix(WIDTH) for _ in range(4))
            layer.up, layer.b_up, layer.down, layer.b_down = (
                matrix(WIDTH, 40), matrix(40), matrix(40, WIDTH), matrix(WIDTH)
            )  # fmt: skip
            self.layers.append(layer)
        self.g, self.s = matrix(WIDTH), matrix(WIDTH)

    @staticmethod
    def norm(x, gain, shift):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt() * gain + shift

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.W_tok[tokens] + self.W_places[:length]
        for layer in self.layers:
            y = self.norm(x, layer.g1, layer.s1)
            q, k, v = (
                einsum(y, getattr(layer, f"W_{side}"), "b t d, h d k -> b t h k")
                + getattr(layer, f"b_{side}")
                for side in "qkv"
            )
            scores = einsum(q, k, "b q h k, b s h k -> b h q s") / D_HEAD**0.5
            weights = scores.masked_fill(later(length), -1e5).softmax(-1)
            z = einsum(weights, v, "b h q s, b s h k -> b q h k")
            x = x + einsum(z, layer.W_o, "b q h k, h k d -> b q d") + layer.b_o
            y = self.norm(x, layer.g2, layer.s2)
            x = x + F.gelu(y @ layer.up + layer.b_up) @ layer.down + layer.b_down
        return self.norm(x, self.g, self.s) @ self.W_out + self.b_out


class ModulePerHead(Base):
    """A module for each head, as in a lecture on GPTs."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(WIDTH, D_HEAD, bias=False) for name in ("key", "query", "value")})
            for _ in range(HEADS)
        )
        self.proj, self.norm1, self.norm2, self.norm = (
            nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        )  # fmt: skip
        self.ff = nn.Sequential(nn.Linear(WIDTH, 40), nn.ReLU(), nn.Linear(40, WIDTH), nn.Dropout(0.1))
        self.register_buffer("tril", torch.ones(LENGTH, LENGTH).tril())

    def forward(self, tokens, targets=None):
        length, x = tokens.shape[1], self.stream(tokens)
        y, out = self.norm1(x), []
        for head in self.heads:
            k, q, v = head["key"](y), head["query"](y), head["value"](y)
            scores = q @ k.transpose(-2, -1) * D_HEAD**-0.5
            scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
            out.append(F.softmax(scores, dim=-1) @ v)
        x = x + self.proj(torch.cat(out, -1))
        return self.u(self.norm(x + self.ff(self.norm2(x)))), targets


class OutputPerHead(Base):
    """Each head adds what a matrix of its own makes of it."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"wq": (WIDTH, 4), "wk": (WIDTH, 4), "wv": (WIDTH, 4), "wo": (4, WIDTH)}
        self.heads = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
            for _ in range(3)
        )

    def forward(self, tokens):
        x = out = self.stream(tokens)
        for head in self.heads:
            scores = head["wq"](x) @ head["wk"](x).mT / 2
            weights = scores.masked_fill(later(tokens.shape[1]), -torch.inf).softmax(-1)
            out = out + head["wo"](weights @ head["wv"](x))
        return self.u(out)


class NoOutput(Base):
    """One head without an output matrix, scores over the root of the width."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, tokens):
        x = self.stream(tokens)
        scores = self.b(x) @ self.a(x).mT / math.sqrt(WIDTH)  # keys come first
        mask = torch.full((tokens.shape[1],) * 2, -torch.inf).triu(1)
        return self.u(x + (scores + mask).softmax(-1) @ self.c(x))


class Merged(Base):
    """Theory's attention: one matrix between tokens, one for values, before or after the mean."""

    def __init__(self, after: bool, n_layers: int = 1) -> None:
        super().__init__()
        self.after = after
        self.A, self.V = (nn.ParameterList([matrix(WIDTH, WIDTH) for _ in range(n_layers)]) for _ in range(2))

    def forward(self, tokens):
        x = self.stream(tokens)
        for a, v in zip(self.A, self.V, strict=True):
            weights = (x @ a @ x.mT).masked_fill(later(x.shape[1]), -torch.inf).softmax(-1)
            x = x + ((weights @ x) @ v if self.after else weights @ (x @ v))
        return self.u(x)


class Concatenated(nn.Module):
    """A token next to its position, as one-hot vectors or embedded."""

    def __init__(self, one_hot: bool) -> None:
        super().__init__()
        width = K + LENGTH if one_hot else 2 * WIDTH
        self.one_hot = one_hot
        if not one_hot:
            self.e, self.p = nn.Embedding(K, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.A, self.V, self.u = matrix(width, width), matrix(width, width), nn.Linear(width, K, bias=False)
        self.register_buffer("mask", later(LENGTH))

    def forward(self, tokens):
        n, length = tokens.shape
        places = torch.arange(length).expand(n, length)
        if self.one_hot:
            both = [F.one_hot(tokens, K).to(self.A), F.one_hot(places, LENGTH).to(self.A)]
        else:
            both = [self.e(tokens), self.p(places)]
        x = torch.cat(both, -1)
        weights = (x @ self.A @ x.mT).masked_fill(self.mask[:length, :length], -torch.inf).softmax(-1)
        return self.u(x + weights @ x @ self.V)


class Bracketed(Base):
    """Queries apart from keys and values, RMS norms by hand, a gate and its values in one matrix."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.g

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(2):
            sizes = ((WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (WIDTH, WIDTH), (WIDTH, 96), (48, WIDTH))
            linears = [nn.Linear(*size, bias=False) for size in sizes]
            self.layers.append(nn.ModuleList([*linears, self.Norm(), self.Norm()]))
        self.norm = self.Norm()

    def forward(self, tokens):
        x = self.stream(tokens)
        for to_q, to_kv, out, up, down, norm1, norm2 in self.layers:
            y = norm1(x)
            q, k, v = (
                rearrange(z, "b n (h d) -> b h n d", h=HEADS) for z in (to_q(y), *to_kv(y).chunk(2, -1))
            )
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(rearrange(z, "b h n d -> b n (h d)"))
            hidden, gate = up(norm2(x)).chunk(2, -1)
            x = x + down(hidden * F.silu(gate))
        return self.u(self.norm(x))


class ConvLayers(Base):
    """GPT-2's linear layers with other names, a tied unembedding."""

    class Conv(nn.Module):
        def __init__(self, rows: int, columns: int) -> None:
            super().__init__()
            self.weight, self.bias = matrix(rows, columns), nn.Parameter(torch.zeros(columns))

        def forward(self, x):
            flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
            return flat.view(*x.shape[:-1], -1)

    def __init__(self) -> None:
        super().__init__()
        del self.u
        self.a, self.b, self.c, self.d = (
            self.Conv(WIDTH, 3 * WIDTH), self.Conv(WIDTH, WIDTH), self.Conv(WIDTH, 40), self.Conv(40, WIDTH)
        )  # fmt: skip
        self.n1, self.n2, self.n3 = (nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, tokens):
        n, length = tokens.shape
        x = self.stream(tokens)
        q, k, v = (
            z.view(n, length, HEADS, D_HEAD).permute(0, 2, 1, 3) for z in self.a(self.n1(x)).split(WIDTH, 2)
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / v.size(-1) ** 0.5
        scores = torch.where(~later(length), scores, torch.full([], -1e4, dtype=scores.dtype))
        z = torch.matmul(F.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        x = x + self.b(z.view(n, length, WIDTH))
        x = x + self.d(F.gelu(self.c(self.n2(x)), approximate="tanh"))
        return F.linear(self.n3(x), self.e.weight)


class LlamaLike(nn.Module):
    """Rotary positions in complex numbers, shared keys, a gate; it nowhere says how much it reads."""

    def __init__(self, qk_norm: bool = False) -> None:
        super().__init__()
        self.qk_norm = qk_norm
        self.tok, self.out = nn.Embedding(K, WIDTH), nn.Linear(WIDTH, K, bias=False)
        sizes = {
            "wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH // 2), "wv": (WIDTH, WIDTH // 2), "wo": (WIDTH, WIDTH),
            "w1": (WIDTH, 40), "w2": (40, WIDTH), "w3": (WIDTH, 40),
        }  # fmt: skip
        for name, size in sizes.items():
            self.add_module(name, nn.Linear(*size, bias=False))
        self.n1, self.n2, self.n3 = (nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(3))
        if qk_norm:
            self.nq, self.nk = nn.RMSNorm(D_HEAD, eps=1e-6), nn.RMSNorm(D_HEAD, eps=1e-6)

    @staticmethod
    def turned(x):
        length, d_head = x.shape[1], x.shape[-1]
        rate = 1 / 10000 ** (torch.arange(0, d_head, 2) / d_head)
        turn = torch.polar(
            torch.ones(length, d_head // 2), torch.outer(torch.arange(length).float(), rate.float())
        )
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn[:, None]).flatten(3).type_as(x)

    def forward(self, tokens):
        (n, length), x = tokens.shape, self.tok(tokens)
        y = self.n1(x)
        q, k, v = (z.view(n, length, -1, D_HEAD) for z in (self.wq(y), self.wk(y), self.wv(y)))
        if self.qk_norm:
            q, k = self.nq(q), self.nk(k)
        q, k = self.turned(q), self.turned(k)
        k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
        z = F.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)), is_causal=True)
        x = x + self.wo(z.transpose(1, 2).reshape(n, length, WIDTH))
        y = self.n2(x)
        return self.out(self.n3(x + self.w2(F.silu(self.w1(y)) * self.w3(y))))


class InParallel(Base):
    """Attention and an MLP read one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o, self.up, self.down = (
            nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 30), nn.Linear(30, WIDTH)
        )  # fmt: skip
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.stream(tokens)
        y = self.n1(x)
        q, k, v = self.qkv(y).unflatten(-1, (3, HEADS, D_HEAD)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.u(self.n2(x + self.o(z) + self.down(F.relu(self.up(y)))))


class OneLength(nn.Module):
    """It takes sequences of one length only; positions are computed by its code."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.u = nn.Embedding(K, WIDTH), nn.Linear(WIDTH, K)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.register_buffer("mask", later(LENGTH))

    def forward(self, tokens):
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(1e4) / WIDTH))
        angles = torch.arange(LENGTH)[:, None] * rate
        x = self.e(tokens) + torch.cat([angles.sin(), angles.cos()], -1).to(self.u.weight)
        return self.u(x + self.attention(x, x, x, attn_mask=self.mask)[0])


class Gated(Base):
    """A gate multiplies what heads give; no HookedDecoder has one."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.gate, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, tokens):
        x = self.stream(tokens)
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.u(x + self.o(z * self.gate(x).sigmoid()))


class Recurrent(Base):
    """No attention at all."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, tokens):
        return self.u(self.gru(self.e(tokens))[0])


class SeesAll(NoOutput):
    """Scores without a mask: later tokens are seen."""

    def forward(self, tokens):
        x = self.stream(tokens)
        return self.u(x + (self.a(x) @ self.b(x).mT).softmax(-1) @ self.c(x))


class OddActivation(Base):
    """An MLP whose activation is none of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, tokens):
        x = self.stream(tokens)
        x = x + self.attention(x, x, x, attn_mask=later(x.shape[1]))[0]
        return self.u(x + self.down(F.softplus(self.up(x))))


class PartOfTheStream(Base):
    """Only the first coordinates are unembedded."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.u = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(K, K)

    def forward(self, tokens):
        x = self.stream(tokens)
        x = x + self.attention(x, x, x, attn_mask=later(x.shape[1]))[0]
        return self.u(x[..., :K])
