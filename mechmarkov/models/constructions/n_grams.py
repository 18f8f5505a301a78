"""n-gram models set by hand: one that holds a table of laws, and one that counts in the context.

No norms. The residual stream has a block for the token, one for the position, one for what heads read, and
one for the output, which is unembedded. A head is sharp: all but `(n_ctx - 1) e^-sharpness` of its mass is
where it should be, so that it stands for hard attention. An MLP looks up what the heads have read.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.models.constructions.lookup_tables import SHARP, embedding_frame, write_piecewise_linear
from mechmarkov.models.decoder import HookedDecoder

Form = Literal["heads", "layers", "digits"]
LOG_OF_ZERO = -60.0  # nats, in place of the logarithm of a probability of zero


@torch.no_grad()
def n_gram_model(
    kernel: Float[np.ndarray, "*history state_to"],
    n_ctx: int,
    *,
    form: Form = "heads",
    sharpness: float = SHARP,
    dtype: torch.dtype = torch.float32,
) -> HookedDecoder:
    """A decoder that predicts the law of the next state given the last k, at every position that knows k.

    The forms are those of Svete & Cotterell (2024, arXiv 2404.14994), where k is n - 1. Earlier positions
    predict nothing of use.

    Args:
        kernel: k axes of length K, the oldest state first, and the law of the next state (probability).
        n_ctx: Length of the context.
        form: "heads": k heads in one layer, each copies one token. "layers": k layers of one head, each
            after the first shifts what the one before has copied. Behind both, each hidden unit of the last
            MLP knows one history. "digits": one head in one layer weighs the last k tokens as the digits of
            one number, and the MLP is a piecewise linear function of it.
        sharpness: The attention logit of what a head attends to; that of other keys is 0.
        dtype: The dtype of the weights.

    Raises:
        ValueError: The kernel has not K entries along every axis, or a law does not sum to 1.

    Example:
        >>> copies_two_back = np.array([[[0.9, 0.1], [0.9, 0.1]], [[0.1, 0.9], [0.1, 0.9]]])
        >>> model = n_gram_model(copies_two_back, n_ctx=4)
        >>> model(torch.tensor([[1, 0, 0, 1]])).softmax(-1)[0, 1:].detach()
        tensor([[0.1000, 0.9000],
                [0.9000, 0.1000],
                [0.9000, 0.1000]])
    """
    log_law, n, k = _checked(kernel)
    read = n + n_ctx  # where the block of what heads read begins
    out = read + (1 if form == "digits" else n * k)
    shape = {"n_layers": k if form == "layers" else 1, "n_heads": k if form == "heads" else 1}
    shape |= {"d_model": out + n, "d_head": max(n, n_ctx), "d_mlp": len(log_law)}
    decoder = embedding_frame(n, n_ctx, positions=n, output=out, **shape).double()
    mixers: list[Any] = [block.attn for block in decoder.blocks]
    mlp: Any = decoder.blocks[-1].mlp
    if form == "digits":
        _read_digits(mixers[0], n, n_ctx, k, sharpness, to=read)
        number, knots = np.eye(out + n)[read], np.arange(float(n**k))
        write_piecewise_linear(mlp, slice(0, -1), number, knots, log_law, out, mlp.b_out)
        return decoder.to(dtype)
    for j in range(k):  # block j holds the token at lag j + 1 from the predicted one
        attn, head = (mixers[0], j) if form == "heads" else (mixers[j], 0)
        shifts = form == "layers" and j
        attend_back(attn, head, n, n_ctx, {1 if shifts else j: 0.0}, sharpness)
        seen = read + n * (j - 1) if shifts else 0
        attn.W_V[head, seen : seen + n, :n] = torch.eye(n)
        attn.W_O[head, :n, read + n * j : read + n * (j + 1)] = torch.eye(n)
    of_histories = np.indices((n,) * k).reshape(k, -1)[::-1]
    for j, states in enumerate(of_histories):  # the states at lag j + 1
        mlp.W_in[read + n * j + states, np.arange(n**k)] = 1.0
    mlp.b_in.fill_(1.0 - k)  # only where all match is the sum above k - 1
    mlp.W_out[:, out:] = torch.from_numpy(log_law)
    return decoder.to(dtype)


def n_gram_error(
    kernel: Float[np.ndarray, "*history state_to"], n_ctx: int, *, form: Form, sharpness: float = SHARP
) -> float:
    """Returns how far any log-probability of `n_gram_model` can be off, in nats, before rounding.

    Each head has `epsilon = (n_ctx - 1) e^-sharpness` of its mass elsewhere. "digits": the number is wrong
    by `epsilon (K^k - 1)` at most, a logit by that times the steepest slope. Else a copied token is wrong by
    epsilon, and by as much again with each layer. The sum E of these reduces the hidden unit of the history,
    and raises at most the `k (K - 1)` that miss one token. A softmax doubles what logits are wrong by.

    Args:
        kernel: The table, as of `n_gram_model`, and so are the others.
        n_ctx: Length of the context.
        form: How heads read.
        sharpness: The attention logit of what a head attends to.

    Raises:
        ValueError: Hard attention is too far away for this to be a bound, E >= 1.

    Example:
        >>> copies_two_back = np.array([[[0.9, 0.1], [0.9, 0.1]], [[0.1, 0.9], [0.1, 0.9]]])
        >>> n_gram_error(copies_two_back, 4, form="heads") < 1e-20
        True
    """
    log_law, n, k = _checked(kernel)
    epsilon = (n_ctx - 1) * math.exp(-sharpness)
    if form == "digits":
        return float(2 * epsilon * (n**k - 1) * np.abs(np.diff(log_law, axis=0)).max())
    copied = epsilon * (k if form == "heads" else k * (k + 1) / 2)
    if copied >= 1:
        raise ValueError(
            f"sharpness is {sharpness}, expected more where n_ctx is {n_ctx} and the order is {k}"
        )
    return float(2 * copied * (1 + k * (n - 1)) * np.abs(log_law).max())


@torch.no_grad()
def k_gram_counter(
    n_states: int, n_ctx: int, *, order: int, sharpness: float = SHARP, dtype: torch.dtype = torch.float32
) -> HookedDecoder:
    """The frequencies of what followed the last `order` tokens: two layers of one head, whatever the order.

    That two suffice is the theorem of Ekbote et al. (2025, arXiv 2508.07208); these weights are ours. The
    first head reads the last k + 1 tokens as the digits of one number. The MLP makes of it the k tokens
    before the current one, for keys, and the last k, for queries. The second head attends uniformly to the
    keys whose predecessors are the last k tokens, and writes the mean of the tokens there. Where there are
    none, attention is uniform over the keys that have k predecessors. `sharpness` is as of `n_gram_model`.

    Example:
        >>> model = k_gram_counter(2, n_ctx=8, order=2)
        >>> model(torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1]]))[0, -1].round(decimals=4).tolist()
        [0.5, 0.5]
    """
    n, histories, states, positions = n_states, n_states**order, torch.arange(n_states), torch.arange(n_ctx)
    number = n + n_ctx
    before, last, out = number + 1, number + 1 + histories, number + 1 + 2 * histories
    words = np.arange(n * histories)  # of k + 1 tokens, in the order of their numbers
    shape = {"n_layers": 2, "d_model": out + n, "d_head": max(n_ctx, histories + 1), "d_mlp": len(words)}
    decoder = embedding_frame(n, n_ctx, positions=n, output=out, **shape).double()
    attn: Any = decoder.blocks[1].attn
    mlp: Any = decoder.blocks[0].mlp
    _read_digits(decoder.blocks[0].attn, n, n_ctx, order + 1, sharpness, to=number)
    both = np.eye(histories)[np.stack([words // n, words % histories], axis=1)].reshape(len(words), -1)
    reading, knots = np.eye(out + n)[number], words.astype(float)
    write_piecewise_linear(mlp, slice(0, -1), reading, knots, both, before, mlp.b_out)
    attn.W_Q[0, last:out, :histories] = sharpness * torch.eye(histories)
    attn.W_K[0, before:last, :histories] = torch.eye(histories)
    # A key without k predecessors stands for no history: a term in every query masks it.
    attn.W_Q[0, states, histories] = sharpness
    attn.W_K[0, n + positions[:order], histories] = -2.0
    attn.W_V[0, states, states] = 1.0
    attn.W_O[0, states, out + states] = 1.0
    return decoder.to(dtype)


def _checked(
    kernel: Float[np.ndarray, "*history state_to"],
) -> tuple[Float[np.ndarray, "_ state_to"], int, int]:
    """The log-probabilities, a history a row, the number of states and the order."""
    n, k = kernel.shape[-1], kernel.ndim - 1
    if k < 1 or set(kernel.shape) != {n}:
        raise ValueError(f"kernel has shape {kernel.shape}, expected two or more axes of one length")
    if kernel.min() < 0 or np.abs(kernel.sum(-1) - 1).max() > 1e-6:
        raise ValueError("kernel has a law that does not sum to 1, expected probabilities on its last axis")
    return np.log(kernel.reshape(-1, n).clip(min=math.exp(LOG_OF_ZERO))), n, k


def attend_back(attn: Any, head: int, n: int, n_ctx: int, back: dict[int, float], sharpness: float) -> None:
    """Set a head to attend to tokens some steps back.

    Args:
        attn: The layer's attention.
        head: The number of the head.
        n: The dimension of the stream from which on positions are one-hot.
        n_ctx: Length of the context.
        back: By how many steps back, the logarithm of a weight.
        sharpness: The attention logit of a weight of one; other tokens have 0.
    """
    positions = torch.arange(n_ctx)
    attn.W_K[head, n + positions, positions] = 1.0
    for lag, log_weight in back.items():
        attn.W_Q[head, n + positions[lag:], positions[: n_ctx - lag]] = sharpness + log_weight


def _read_digits(attn: Any, n: int, n_ctx: int, count: int, sharpness: float, *, to: int) -> None:
    """Read the last `count` tokens as the digits of an integer to the base n, the oldest first."""
    attend_back(attn, 0, n, n_ctx, {j: j * math.log(n) for j in range(count)}, sharpness)
    attn.W_V[0, :n, 0] = torch.arange(n) * ((n**count - 1) // (n - 1))  # attention divides by this sum
    attn.W_O[0, 0, to] = 1.0
