"""Shi & Cao's one-layer model of random walks, in its own form and exactly inside a decoder.

The model (arXiv 2511.23239, section 2) reads a walk `s_1 … s_{N-1}` and scores the next state:

    f(X) = V X softmax(X~^T W x~_N),    X = [x_1 … x_{N-1}, 0],    X~ = [X; P]

with one-hot `x_i`, orthogonal positions `p_i` of one length, and a zero token as the query. Because
`x~_N = (0; p_N)`, only `w = W x~_N` acts on the output: `logit_i = w_x[s_i] + <p_i, w_p>`.

Two trainable forms share one forward pass. `full` holds `V` and `W`. `small` holds `V` and
`u = w / |p_N|`: as `dL/dW = dL/dw x~_N^T`, a gradient step on `W` moves `w` by `-lr |p_N|^2 dL/dw`, which
is exactly a gradient step of the same size on `u`. Either is a `HookedDecoder` with frozen embeddings, in
which `u` is a column of `W_K` and `V` a block of `W_O` (`walk_decoder_config`, `walk_trained_state`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.models.constructions.lookup_tables import handset_config

Positions = Literal["one_hot", "sine"]
Form = Literal["small", "full"]


@dataclass(frozen=True)
class WalkShape:
    """The sizes of a walk model.

    Attributes:
        n_states: Number of states, K.
        n_ctx: Sequence length with the query token, N.
        n_positions: The paper's M. With sine positions it is their dimension; it always sets their
            length, `|p_i|^2 = (M + 1) / 2`.
        positions: `sine` is the paper's `p_i[j] = sin(i j pi / (M + 1))`. `one_hot` is the same model up to
            rounding, in N dimensions: only the positions' orthogonality and length enter the output.
        unit_columns: Whether the columns of `X~` are scaled to unit length, as in the paper's runs from a
            random start (figures 6, 7 and 10). Values are read from `X` itself, which stays one-hot.
    """

    n_states: int
    n_ctx: int
    n_positions: int = 1000
    positions: Positions = "one_hot"
    unit_columns: bool = False

    def __post_init__(self) -> None:
        for name, least in (("n_states", 2), ("n_ctx", 2), ("n_positions", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if self.positions == "sine" and self.n_positions < self.n_ctx:
            raise ValueError(
                f"n_positions is {self.n_positions}, expected at least n_ctx = {self.n_ctx}: "
                "fewer sine positions are not orthogonal"
            )

    @property
    def d_pos(self) -> int:
        """Dimension of the positions: N one-hot, M sine."""
        return self.n_ctx if self.positions == "one_hot" else self.n_positions

    @property
    def width(self) -> int:
        """Dimension of `x~`, which is the decoder's `d_model`: K + `d_pos`."""
        return self.n_states + self.d_pos

    @property
    def norm(self) -> float:
        """Length of the query's column: `sqrt((M + 1) / 2)`, that of all positions, or 1."""
        return 1.0 if self.unit_columns else math.sqrt((self.n_positions + 1) / 2)

    @property
    def token_norm(self) -> float:
        """Length of a token in `X~`: 1, or `1 / sqrt(1 + (M + 1) / 2)` in a unit column."""
        return 1 / math.sqrt(1 + (self.n_positions + 1) / 2) if self.unit_columns else 1.0


def position_table(shape: WalkShape, dtype: torch.dtype = torch.float64) -> Float[Tensor, "position d_pos"]:
    """The positions `p_1 … p_N` as rows, orthogonal and of length `shape.norm`.

    In unit columns all but the query's are a little shorter, since a token shares their column.

    Example:
        >>> table = position_table(WalkShape(n_states=3, n_ctx=4, n_positions=7, positions="sine"))
        >>> torch.allclose(table @ table.T, 4 * torch.eye(4, dtype=torch.float64))
        True
    """
    if shape.positions == "one_hot":
        table = shape.norm * torch.eye(shape.n_ctx, dtype=torch.float64)
    else:
        i = torch.arange(1, shape.n_ctx + 1, dtype=torch.float64)
        j = torch.arange(1, shape.n_positions + 1, dtype=torch.float64)
        table = torch.sin(i[:, None] * j * (math.pi / (shape.n_positions + 1)))
        table *= shape.norm / math.sqrt((shape.n_positions + 1) / 2)
    if shape.unit_columns:
        table[:-1] *= math.sqrt(1 - shape.token_norm**2)
    return table.to(dtype)


def attend(
    x: Float[Tensor, "... batch real n_states"],
    w: Float[Tensor, "... width"],
    positions: Float[Tensor, "position d_pos"],
) -> Float[Tensor, "... batch position"]:
    """Compute the attention of the query over the N-1 real tokens and itself, `softmax(X~^T w)`.

    The query is a zero token, but its position is a key like the others and gets attention.

    Args:
        x: The real tokens, one-hot.
        w: The vector `W x~_N`, first its part for states and then that for positions.
        positions: The positions, a row each.

    Example:
        >>> attend(torch.eye(2)[None], torch.zeros(5), torch.eye(3))  # two tokens and the query
        tensor([[0.3333, 0.3333, 0.3333]])
    """
    n_states = x.shape[-1]
    token = torch.einsum("...bnk,...k->...bn", x, w[..., :n_states])
    position = torch.einsum("nd,...d->...n", positions, w[..., n_states:])
    return (F.pad(token, (0, 1)) + position[..., None, :]).softmax(-1)


def read(
    x: Float[Tensor, "... batch real n_states"],
    V: Float[Tensor, "... state_to state_from"],
    attention: Float[Tensor, "... batch position"],
) -> Float[Tensor, "... batch n_states"]:
    """Compute scores `V X S` of the next state, without a softmax, from one-hot tokens and attention.

    Example:
        >>> read(torch.eye(2)[None], torch.eye(2), torch.tensor([[0.5, 0.25, 0.25]]))
        tensor([[0.5000, 0.2500]])
    """
    mean_token = torch.einsum("...bn,...bnk->...bk", attention[..., :-1], x)
    return torch.einsum("...yx,...bx->...by", V, mean_token)


class WalkModel(nn.Module):
    """The trainable walk model, `form` "small" (`V`, `u`) or "full" (`V`, `W`), started at zero.

    `V[y, x]` is the paper's orientation: the score that state `x` gives to `y`.

    Args:
        shape: The sizes of the model.
        form: Whether attention has a vector ("small") or a matrix ("full").
        n_models: The length of a leading stack axis of every parameter, as in `HookedDecoder`; None for none.
        dtype: Float32 or float64.

    Example:
        >>> model = WalkModel(WalkShape(n_states=3, n_ctx=4))
        >>> model(torch.tensor([[0, 1, 2, 3]])).tolist()  # 3 is the query token; at zero all scores are
        [[0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        shape: WalkShape,
        form: Form = "small",
        n_models: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.shape, self.form = shape, form
        stack = () if n_models is None else (n_models,)
        K, width = shape.n_states, shape.width
        self.V = nn.Parameter(torch.zeros(*stack, K, K, dtype=dtype))
        if form == "small":
            self.u = nn.Parameter(torch.zeros(*stack, width, dtype=dtype))
        else:
            self.W = nn.Parameter(torch.zeros(*stack, width, width, dtype=dtype))
        self.positions: Tensor
        self.register_buffer("positions", position_table(shape, dtype), persistent=False)

    @property
    def w(self) -> Float[Tensor, "... width"]:
        """`W x~_N`, the only part of `W` that acts on the output."""
        if self.form == "small":
            return self.shape.norm * self.u
        return self.W[..., self.shape.n_states :] @ self.positions[-1]

    def one_hot(self, tokens: Int[Tensor, "... batch position"]) -> Float[Tensor, "... batch real n_states"]:
        """Returns the real tokens, one-hot, of sequences `[..., batch, N]` that end in the query token."""
        return F.one_hot(tokens[..., :-1], self.shape.n_states).to(self.V.dtype)

    def run(
        self, x: Float[Tensor, "... batch real n_states"]
    ) -> tuple[Float[Tensor, "... batch n_states"], Float[Tensor, "... batch position"]]:
        """Compute scores of the next state, and the attention, from one-hot tokens."""
        w = self.w
        if self.shape.unit_columns:  # a token's share of its column
            K = self.shape.n_states
            w = torch.cat([self.shape.token_norm * w[..., :K], w[..., K:]], -1)
        attention = attend(x, w, self.positions)
        return read(x, self.V, attention), attention

    def forward(self, tokens: Int[Tensor, "... batch position"]) -> Float[Tensor, "... batch n_states"]:
        """Compute raw scores of the next state, from tokens that end in the query token (id K)."""
        return self.run(self.one_hot(tokens))[0]


def walk_decoder_config(shape: WalkShape) -> DecoderConfig:
    """Returns the shape of the decoder that holds a walk model: one layer, one head, no MLP, no norms.

    The query token is id K, with a zero embedding; the unembedding reads only the K states.
    """
    return handset_config(
        shape.n_states + 1,
        shape.n_ctx,
        d_model=shape.width,
        d_head=shape.n_states,
        d_vocab_out=shape.n_states,
        initializer_range=0.02,  # the null models of a run that started at zero
    )


def walk_trainable(shape: WalkShape) -> Slices:
    """Returns the parts of the decoder that are the walk model's `u` and `V^T`, `[start, stop]` per axis."""
    K = shape.n_states
    return {
        "blocks.0.attn.W_K": [[0, 1], [0, shape.width], [0, 1]],
        "blocks.0.attn.W_O": [[0, 1], [0, K], [0, K]],
    }


def walk_frozen_state(shape: WalkShape, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Returns the decoder's tensors that training never changes, by HookedTransformer's names, unstacked.

    `W_Q` sends the direction of `p_N` to the first head coordinate, so that the query's own is `|p_N|` there;
    `W_V` and `W_U` read the token block, `W_V` as one-hot vectors where unit columns have shortened them.
    """
    K, width = shape.n_states, shape.width
    token_block = torch.eye(width, K, dtype=dtype)
    positions = position_table(shape)
    W_pos, W_Q = torch.zeros(shape.n_ctx, width, dtype=dtype), torch.zeros(1, width, K, dtype=dtype)
    W_pos[:, K:] = positions.to(dtype)
    W_Q[0, K:, 0] = (positions[-1] / shape.norm).to(dtype)
    return {
        "embed.W_E": torch.cat([shape.token_norm * token_block.T, torch.zeros(1, width, dtype=dtype)]),
        "pos_embed.W_pos": W_pos,
        "blocks.0.attn.W_Q": W_Q,
        "blocks.0.attn.W_V": token_block[None] / shape.token_norm,
        **{f"blocks.0.attn.b_{side}": torch.zeros(1, K, dtype=dtype) for side in "QKV"},
        "blocks.0.attn.b_O": torch.zeros(width, dtype=dtype),
        "unembed.W_U": token_block,
        "unembed.b_U": torch.zeros(K, dtype=dtype),
    }


def walk_trained_state(
    V: Float[Tensor, "... state_to state_from"], u: Float[Tensor, "... width"]
) -> dict[str, Tensor]:
    """Put `V` and `u`, bit for bit, into the decoder's `W_O` `[…, 1, K, width]` and `W_K` `[…, 1, width, K]`.

    Example:
        >>> shape = WalkShape(n_states=2, n_ctx=3)
        >>> state = walk_trained_state(torch.eye(2), torch.ones(shape.width))
        >>> {name: tuple(value.shape) for name, value in state.items()}
        {'blocks.0.attn.W_K': (1, 5, 2), 'blocks.0.attn.W_O': (1, 2, 5)}
    """
    K, width = V.shape[-1], u.shape[-1]
    W_K, W_O = u.new_zeros(*u.shape[:-1], 1, width, K), V.new_zeros(*V.shape[:-2], 1, K, width)
    W_K[..., 0, :, 0] = u
    W_O[..., 0, :, :K] = V.mT
    return {"blocks.0.attn.W_K": W_K, "blocks.0.attn.W_O": W_O}


def small_u(model: WalkModel) -> Tensor:
    """Returns `u = W x~_N / |p_N|` of either form, `[..., width]`, detached."""
    return model.u.detach() if model.form == "small" else model.w.detach() / model.shape.norm
