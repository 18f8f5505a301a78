"""Circuits of the benchmark: split table, backup, decoy, contrary induction, plateau, trap, beliefs."""

from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.constructions.belief import belief_model
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import SHARP, handset_config, value_table
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.sources.base.hidden_chain import HiddenChain

Table = Float[Tensor, "state_from state_to"]


@torch.no_grad()
def split_table(table: Table, n_ctx: int) -> HookedDecoder:
    """Half of the table in the head, on its own token, and half in the MLP.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> split_table(table, n_ctx=4)(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    decoder = _head_and_mlp(table, n_ctx, flag=0)
    decoder.get_parameter("blocks.0.attn.W_O").mul_(0.5)
    decoder.get_parameter("blocks.0.mlp.W_out").mul_(0.5)
    return decoder


@torch.no_grad()
def backup_table(table: Table, n_ctx: int) -> HookedDecoder:
    """The table in a head, which also writes a flag; the MLP writes the table where there is no flag.

    With the head's output at zero the MLP takes over, so that nothing seems to be lost. With its output from
    another sequence the flag stays, and the head's whole effect is seen.

    Example:
        >>> from mechmarkov.interventions.ablate import ablate
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> model = backup_table(table, n_ctx=4)
        >>> with ablate(model, "L0H0", kind="zero"):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    return _head_and_mlp(table, n_ctx, flag=1)


def _head_and_mlp(table: Table, n_ctx: int, *, flag: int) -> HookedDecoder:
    """The table in a head on its own token and in an MLP; with a flag the head switches the MLP off."""
    n, head = len(table), value_table(table, n_ctx)
    decoder = _widened(head, d_model=head.config.d_model + 1, d_mlp=n)
    decoder.get_parameter("blocks.0.attn.W_O")[0, :n, -1] = flag
    hidden = decoder.get_parameter("blocks.0.mlp.W_in")
    hidden[:n] = torch.eye(n)
    hidden[-1] = -1.0  # its own state is one-hot: less the flag, no hidden unit is above 0
    decoder.get_parameter("blocks.0.mlp.W_out")[:, n : 2 * n] = table
    return decoder


@torch.no_grad()
def induction_with_decoy(n_states: int, n_ctx: int) -> HookedDecoder:
    """An induction pair, and in its second layer a head that attends to earlier copies and writes nowhere.

    What the decoy writes is not unembedded, and no later layer reads it.
    """
    n, pair = n_states, induction_pair(n_states, n_ctx)
    decoder = _widened(pair, n_heads=2, d_model=pair.config.d_model + n)
    states = torch.arange(n)
    last: Any = decoder.blocks[1].attn
    last.W_Q[1, states, states] = SHARP
    last.W_K[1, states, states] = 1.0
    last.W_V[1, states, states] = 1.0
    last.W_O[1, states, pair.config.d_model + states] = 4.0
    return decoder


@torch.no_grad()
def contrary_induction(n_ctx: int) -> HookedDecoder:
    """Build induction for two states: what follows either, less what follows the other one, is predicted.

    One head of the second layer attends to the keys whose previous token is the other state, and lowers what
    stands there. A second head attends to all keys, and raises it twice as much. Trained two-symbol models
    have the first one.
    """
    decoder = _widened(induction_pair(2, n_ctx, gain=4.0), n_heads=2)
    second: Any = decoder.blocks[1].attn
    second.W_Q[0, :2, :2] = second.W_Q[0, :2, :2].flip(1)
    second.W_O[0].mul_(-1)
    second.W_V[1] = second.W_V[0]
    second.W_O[1] = -2 * second.W_O[0]
    return decoder


@torch.no_grad()
def plateau(table: Table, n_ctx: int) -> HookedDecoder:
    """The unigram of a chain in the output bias; a head reads the parent, and nothing reads the head."""
    decoder = value_table(table, n_ctx)
    decoder.get_parameter("unembed.W_U").zero_()
    pi = torch.linalg.matrix_power(table.softmax(-1).double(), 512)[0]
    decoder.get_parameter("unembed.b_U").copy_(pi.log())
    return decoder


@torch.no_grad()
def tied_plateau(
    P: Float[np.ndarray, "state_from state_to"], n_ctx: int, *, d_model: int, d_mlp: int | None = None
) -> HookedDecoder:
    """The unigram of a chain in the output bias; tied embeddings and the head are zero.

    An MLP of two hidden units (relu) multiplies the stream by 10 where it is above 0, by 7 below.
    """
    config = handset_config(len(P), n_ctx, d_model=d_model, d_head=1, d_mlp=d_mlp)
    tied = {"tied": True, "positional_embedding_type": "none", "act_fn": None if d_mlp is None else "relu"}
    decoder = HookedDecoder(config.model_copy(update=tied))
    decoder.get_parameter("unembed.b_U").copy_(torch.from_numpy(np.linalg.matrix_power(P, 512)[0]).log())
    if d_mlp is not None:
        decoder.get_parameter("blocks.0.mlp.W_in").copy_(torch.tensor([[3.0, -3.0]]))
        decoder.get_parameter("blocks.0.mlp.W_out").copy_(torch.tensor([[3.0], [-2.0]]))
    return decoder


@torch.no_grad()
def rotated(decoder: HookedDecoder, *, seed: int) -> HookedDecoder:
    """The same function in another basis of the residual stream; of a model without norms and MLPs.

    Example:
        >>> model, tokens = value_table(torch.eye(3), n_ctx=4), torch.tensor([[0, 2, 1]])
        >>> torch.allclose(rotated(model, seed=0)(tokens), model(tokens), atol=1e-4)
        True
    """
    draw = np.random.default_rng(seed).normal(size=(decoder.config.d_model,) * 2)
    turn = torch.from_numpy(np.linalg.qr(draw)[0]).float()
    turned = deepcopy(decoder)
    for name in ("embed.W_E", "pos_embed.W_pos", "blocks.0.attn.W_O"):
        turned.get_parameter(name).copy_(decoder.get_parameter(name) @ turn)
    for name in ("blocks.0.attn.W_Q", "blocks.0.attn.W_K", "blocks.0.attn.W_V", "unembed.W_U"):
        turned.get_parameter(name).copy_(turn.T @ decoder.get_parameter(name))
    return turned


@torch.no_grad()
def trap(table: Table, n_ctx: int) -> HookedDecoder:
    """A head that attends to all tokens equally, and writes the unigram of a chain whatever it reads.

    Example:
        >>> chain = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
        >>> trap(chain, n_ctx=4)(torch.tensor([[0, 1]])).exp().round(decimals=4).tolist()
        [[[0.5, 0.5], [0.5, 0.5]]]
    """
    unigram = torch.linalg.matrix_power(table.softmax(-1).double(), 512).log().float()
    decoder = value_table(unigram, n_ctx)
    decoder.get_parameter("blocks.0.attn.W_Q").zero_()
    return decoder


def hidden_belief(
    source: HiddenChain, n_ctx: int, *, carries: bool = True, reads: bool = True
) -> HookedDecoder:
    """The exact belief after the first block, from which the second predicts; see `belief_model`."""
    histories = [np.array(list(product(range(source.n_states), repeat=t + 1))) for t in range(n_ctx)]
    tables = [source.beliefs(tokens)[:, -1] for tokens in histories]
    return belief_model(tables, source.T @ source.E, carries=carries, reads=reads)


def _widened(small: HookedDecoder, **widths: int) -> HookedDecoder:
    """A hand-set model of other widths, with a smaller one's weights in the first entries of its own."""
    shape = small.config.model_dump(include={"n_layers", "n_heads", "d_model", "d_head", "d_mlp"})
    large = HookedDecoder(handset_config(small.config.d_vocab, small.config.n_ctx, **shape | widths))
    for name, value in small.state_dict().items():
        target = large.get_parameter(name)
        target[tuple(slice(0, size) for size in value.shape)] = value
    return large
