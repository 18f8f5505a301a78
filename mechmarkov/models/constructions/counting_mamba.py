"""One layer of Mamba-2 that counts what followed the current history, set by hand."""

from itertools import product
from typing import Any

import torch

from mechmarkov.models.constructions.lookup_tables import handset_config
from mechmarkov.models.decoder import HookedDecoder

NO_DECAY = -1e4  # of A_log: its exponential is 0, and a decay of 1 keeps every count


@torch.no_grad()
def counting_mamba(n_states: int, n_ctx: int, *, order: int = 1, concentration: float = 1.0) -> HookedDecoder:
    """Scores `n_j + β`: how often state j followed the last `order` states, and a constant.

    Divided by their sum (objective `raw_log`), they are the add-β estimator, the Bayes-optimal predictor of
    `DirichletChains(start="uniform")`. It is the construction of Bondaschi et al. 2025 (arXiv 2502.10178,
    theorem 1) in this mixer: no gate, no norm, decay 1, and a window of `order + 1`. The convolution writes
    `B_t`, the history before the current state, and `C_t`, the history that ends with it. With `x_t` the
    current state, what is read is the sum of `x_s` over all s with `B_s = C_t`. Scores are exact as long as
    float32 holds them. Above order 1, which the paper leaves open, a history has a channel: a ReLU
    of how many of its states match. There are then 2 states, which a channel tells apart by their signs. β is
    `concentration`.

    Raises:
        ValueError: For an order below 1, or above 1 with more than two states.

    Example:
        >>> model = counting_mamba(3, n_ctx=6)
        >>> model(torch.tensor([[0, 1, 0, 2, 0]]))[0, -1].tolist()
        [1.0, 2.0, 2.0]
    """
    if order < 1 or (order > 1 and n_states != 2):
        raise ValueError(f"order is {order} on {n_states} states, expected 1, or more on two states")
    n = n_states
    fields: dict[str, Any] = {
        "mixer": "mamba",
        "d_state": n**order,
        "d_conv": order + 1,
        "conv_act_fn": "relu",
    }
    fields |= {"use_gate": False, "use_gate_norm": False}
    model = HookedDecoder(handset_config(n, n_ctx, d_model=2 * n, d_head=n, **fields))
    state = torch.eye(n)
    model.embed.W_E[:, :n] = state
    model.embed.W_E[:, n:] = concentration  # the stream's second half goes to the scores
    mixer: Any = model.blocks[0].attn
    mixer.W_V[0, :n] = state
    mixer.conv_V[..., -1] = 1.0
    mixer.W_O[0, :, n:] = state
    mixer.A_log.fill_(NO_DECAY)
    mixer.b_dt.fill_(torch.ones(()).expm1().log())  # softplus of it is 1
    if order == 1:
        mixer.W_K[0, :n] = mixer.W_Q[0, :n] = state
        mixer.conv_K[..., 0] = mixer.conv_Q[..., 1] = 1.0
    else:
        histories = 2.0 * torch.tensor(list(product(range(2), repeat=order))) - 1  # oldest state first
        sign = torch.tensor([-1.0, 1.0])[:, None].expand(2, n**order)
        mixer.W_K[0, :n] = mixer.W_Q[0, :n] = sign
        mixer.conv_K[0, :, :-1] = mixer.conv_Q[0, :, 1:] = histories
        mixer.b_conv_K.fill_(1.0 - order)  # only where all match is their sum above order - 1
        mixer.b_conv_Q.fill_(1.0 - order)
    model.unembed.W_U[n:] = state
    return model
