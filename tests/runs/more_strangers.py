"""Decoders that hide what they are: other orders of axes, softmaxes by hand, what small weights hide."""

from functools import lru_cache

import torch
from strangers import D_HEAD, HEADS, LENGTH, WIDTH, Base, later, matrix
from torch import nn
from torch.nn import functional as F


class One(Base):
    """A layer of attention, whose steps others change."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def weights(self, scores):
        return scores.masked_fill(later(scores.shape[-1]), -torch.inf).softmax(-1)

    def attention(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o((self.weights(q @ k.mT / D_HEAD**0.5) @ v).transpose(1, 2).flatten(2))

    def forward(self, tokens):
        x = self.stream(tokens)
        return self.u(x + self.attention(x))


class AxesOfHeads(Base):
    """Weights with an axis of heads, in an order of their own: h heads, d the stream, k the head."""

    def __init__(self, order: str, out: str) -> None:
        super().__init__()
        self.order, self.out = order, out
        sizes = {"h": HEADS, "d": WIDTH, "k": D_HEAD}
        for side in "qkv":
            self.register_parameter(f"W_{side}", matrix(*(sizes[axis] for axis in order)))
        self.W_o = matrix(*(sizes[axis] for axis in out))

    def forward(self, tokens):
        x = self.stream(tokens)
        weights = (getattr(self, f"W_{side}") for side in "qkv")
        q, k, v = (torch.einsum(f"btd,{self.order}->bthk", x, weight) for weight in weights)
        scores = torch.einsum("bqhk,bshk->bhqs", q, k) / D_HEAD**0.5
        z = torch.einsum("bhqs,bshk->bqhk", scores.masked_fill(later(x.shape[1]), -1e9).softmax(-1), v)
        return self.u(x + torch.einsum(f"bqhk,{self.out}->bqd", z, self.W_o))


class Broadcast(AxesOfHeads):
    """One stream times the matrices of all heads."""

    def forward(self, tokens):
        x = self.stream(tokens)
        q, k, v = (x[:, None] @ getattr(self, f"W_{side}") for side in "qkv")
        scores = (q @ k.mT / D_HEAD**0.5).masked_fill(later(x.shape[1]), -torch.inf)
        return self.u(x + (scores.softmax(-1) @ v @ self.W_o).sum(1))


class MergedHeads(Base):
    """Theory's attention with two heads: each has a matrix between tokens, and one for what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.V = (nn.ParameterList([matrix(WIDTH, WIDTH) for _ in range(2)]) for _ in range(2))

    def forward(self, tokens):
        x = out = self.stream(tokens)
        for a, v in zip(self.A, self.V, strict=True):
            out = out + (x @ a @ x.mT).masked_fill(later(x.shape[1]), -torch.inf).softmax(-1) @ x @ v
        return self.u(out)


class ByHand(One):
    """A softmax that is written out."""

    def weights(self, scores):
        scores = scores.masked_fill(later(scores.shape[-1]), -torch.inf)
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        return shares / shares.sum(-1, keepdim=True)


class MaskParameter(One):
    """A mask among the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tril = nn.Parameter(torch.ones(LENGTH, LENGTH).tril(), requires_grad=False)

    def weights(self, scores):
        seen = self.tril[: scores.shape[-2], : scores.shape[-1]]
        return scores.masked_fill(seen == 0, -torch.inf).softmax(-1)


@lru_cache
def kept_mask(length: int) -> torch.Tensor:
    return torch.full((length, length), -torch.inf).triu(1)


class KeptMask(One):
    """Its masks are made once for all."""

    def __init__(self) -> None:
        super().__init__()
        self.block_size = LENGTH

    def weights(self, scores):
        return (scores + kept_mask(scores.shape[-1])).softmax(-1)


class Noisy(One):
    """A dropout that is left on."""

    def attention(self, x):
        return F.dropout(super().attention(x), 0.2)


class Relu6(One):
    """Its activation is relu up to 6."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, tokens):
        x = self.stream(tokens)
        x = x + self.attention(x)
        return self.u(x + self.down(F.relu6(self.up(x))))


class CappedLogits(One):
    def forward(self, tokens):
        return super().forward(tokens).clamp(-3, 3)


class CappedScores(One):
    def weights(self, scores):
        return super().weights(50 * (scores / 50).tanh())


class BehindZeros(One):
    """Something is done with what an output of zeros gives."""

    def attention(self, x):
        return super().attention(x).tanh()


class ByLength(One):
    """Scores fall with the length of the sequence."""

    def weights(self, scores):
        return super().weights(scores * D_HEAD**0.5 / scores.shape[-1] ** 0.5)


class InParts(One):
    """One weight for three, a part of it for each."""

    def __init__(self) -> None:
        super().__init__()
        self.all = matrix(3, WIDTH, WIDTH)

    def attention(self, x):
        q, k, v = ((x @ self.all[i]).unflatten(-1, (HEADS, -1)).transpose(1, 2) for i in range(3))
        return self.o((self.weights(q @ k.mT / D_HEAD**0.5) @ v).transpose(1, 2).flatten(2))


class WideValues(Base):
    """Values are as wide as the stream, queries are not."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        x = self.stream(tokens)
        scores = (self.q(x) @ self.k(x).mT / 2).masked_fill(later(x.shape[1]), -torch.inf)
        return self.u(x + scores.softmax(-1) @ self.v(x))


class SeesOthersOnly(One):
    """No token sees itself."""

    def weights(self, scores):
        others = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        return scores.masked_fill(~others, -torch.inf).softmax(-1).nan_to_num()


class TwoLogits(One):
    """A second head of logits, of the token after the next."""

    def __init__(self) -> None:
        super().__init__()
        self.u2 = nn.Linear(WIDTH, self.u.out_features)

    def forward(self, tokens):
        x = self.stream(tokens)
        x = x + self.attention(x)
        return self.u(x), self.u2(x)


class OfMemory(Base):
    """Torch's attention, whose keys are not of what its queries are."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, tokens):
        x, places = self.stream(tokens), self.p.weight[: tokens.shape[1]].expand(len(tokens), -1, -1)
        return self.u(x + self.a(places, places, x, attn_mask=later(tokens.shape[1]))[0])


class LearnedKey(OfMemory):
    """Torch's attention with a learned key."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_bias_kv=True)

    def forward(self, tokens):
        x = self.stream(tokens)
        return self.u(x + self.a(x, x, x, attn_mask=later(tokens.shape[1]))[0])
