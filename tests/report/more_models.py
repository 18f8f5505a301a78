"""More models set by hand whose truth their names say: states divided, laws erased, sets that cancel."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from mixed_models import LONG, N_CTX, ORDER_2, Table, direct, lag, log_of, reading

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    SHARP,
    direct_table,
    embedding_frame,
    handset_config,
    value_table,
)
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.sources import Chain, HiddenMarkov, LaggedChain, OrderK, SelectiveLag

Make = Callable[[], torch.nn.Module | list[torch.nn.Module]]
P4 = np.array([[0.7, 0.1, 0.1, 0.1], [0.05, 0.15, 0.75, 0.05], [0.2, 0.2, 0.1, 0.5], [0.3, 0.4, 0.2, 0.1]])
TINY = np.array([[0.7, 0.299, 0.001], [0.001, 0.6, 0.399], [0.3, 0.001, 0.699]])
ABSORBING = np.array([[0.8, 0.15, 0.05], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]])
PERIODIC = np.array([[0, 0, 0.8, 0.2], [0, 0, 0.3, 0.7], [0.6, 0.4, 0, 0], [0.1, 0.9, 0, 0]])
NEAR_EQUAL = np.array([[0.58, 0.42], [0.5, 0.5]])
RARELY = np.array([[0.6, 0.385, 0.015], [0.385, 0.6, 0.015], [0.5, 0.3, 0.2]])
HIDDEN = HiddenMarkov(transitions=[[0.9, 0.1], [0.1, 0.9]], emissions=[[0.85, 0.15], [0.15, 0.85]])
L4, OWN = log_of(P4), lag(1)


def stationary(rows: np.ndarray) -> np.ndarray:
    """Returns the stationary law of a chain, periodic or not."""
    return np.asarray(np.linalg.matrix_power((rows + np.eye(len(rows))) / 2, 2000)[0])


def only_after(table: Table, states: Sequence[int]) -> Table:
    """Returns the rows of a table after some states, and nothing after the others."""
    kept = torch.zeros_like(table)
    kept[[*states]] = table[[*states]]
    return kept


def drawn(seed: int) -> Table:
    """Returns a table that has nothing to do with a law."""
    return torch.tensor(np.random.default_rng(seed).normal(scale=2.0, size=(4, 4))).float()


def of_30_states() -> np.ndarray:
    """Returns a sparse chain on thirty states."""
    P = np.random.default_rng(3).dirichlet(np.full(30, 0.3), size=30).clip(1e-4)
    return np.asarray(P / P.sum(1, keepdims=True))


def merged(P: np.ndarray) -> np.ndarray:
    """Returns a chain that cannot tell its first two states apart."""
    pi = stationary(P)[:2]
    together = P.copy()
    together[:2] = pi @ P[:2] / pi.sum()
    return together


def only_classes(P: np.ndarray) -> np.ndarray:
    """Returns rows that know which half of four states comes, and which state of it as the unigram does."""
    pi, rows = stationary(P), P.copy()
    for half in ([0, 1], [2, 3]):
        rows[:, half] = P[:, half].sum(1, keepdims=True) * pi[half] / pi[half].sum()
    return rows


@torch.no_grad()
def with_bias(model: HookedDecoder, *bias: float) -> HookedDecoder:
    """Returns the model with a bias of its logits."""
    model.get_parameter("unembed.b_U").copy_(torch.tensor(bias))
    return model


@torch.no_grad()
def erased(table: Table, gain: float, direct: Table | None = None) -> HookedDecoder:
    """Build a head that writes a table twice, and one behind it that adds `gain` times as much."""
    n = len(table)
    shape = {"d_model": 2 * n + N_CTX, "d_head": max(n, N_CTX), "n_layers": 2}
    model = embedding_frame(n, N_CTX, positions=2 * n, output=n, **shape)
    at = torch.arange(N_CTX)
    first, second = (block.attn for block in model.blocks)
    for attn in (first, second):
        attn.W_Q[0, 2 * n + at, at] = SHARP
        attn.W_K[0, 2 * n + at, at] = 1.0
    first.W_V[0, :n, :n] = torch.eye(n)
    first.W_O[0, :n, n : 2 * n] = 2 * table
    second.W_V[0, n : 2 * n, :n] = torch.eye(n)
    second.W_O[0, :n, n : 2 * n] = gain * torch.eye(n)
    if direct is not None:
        model.get_parameter("unembed.W_U")[:n] = direct
    return model


@torch.no_grad()
def even_or_token(table: Table, token: int) -> HookedDecoder:
    """Build a head that reads the current token at even positions, and one kind of token at odd ones."""
    n, at = len(table), torch.arange(N_CTX)
    shape = {"d_model": 2 * n + N_CTX, "d_head": n + N_CTX}
    model = embedding_frame(n, N_CTX, positions=2 * n, output=n, **shape)
    attn = model.blocks[0].attn
    attn.W_K[0, 2 * n + at, at] = 1.0
    attn.W_K[0, torch.arange(n), N_CTX + torch.arange(n)] = 1.0
    attn.W_Q[0, 2 * n + at[::2], at[::2]] = SHARP
    attn.W_Q[0, 2 * n + at[1::2], N_CTX + token] = SHARP
    attn.W_V[0, :n, :n] = torch.eye(n)
    attn.W_O[0, :n, n : 2 * n] = table
    return model


@torch.no_grad()
def at_two_lags(table: Table, other: int, n_ctx: int = N_CTX) -> HookedDecoder:
    """Build a head that gives half of its attention to the current token, and half to another lag."""
    model = reading([table], [lag(1, n_ctx)], n_ctx)
    query = 2 * len(table) + torch.arange(n_ctx)
    model.blocks[0].attn.W_Q[0, query, torch.tensor(lag(other, n_ctx))] = SHARP
    return model


@torch.no_grad()
def by_position_only() -> HookedDecoder:
    """Build a model that predicts another law at each position, whatever the tokens."""
    model = embedding_frame(4, N_CTX, positions=8, output=4, d_model=8 + N_CTX, d_head=N_CTX)
    law = np.random.default_rng(1).normal(size=(N_CTX, 4))
    model.get_parameter("unembed.W_U")[8:] = torch.tensor(law).float()
    return model


@torch.no_grad()
def value_signs(sign: float, direct: Table | None = None) -> HookedDecoder:
    """Build two heads of which one has W_V of the other sign, and W_O of that times `sign`."""
    model = reading([0.5 * L4, 0.5 * L4], [OWN, OWN], direct=direct)
    model.blocks[0].attn.W_V[1] *= -1
    model.blocks[0].attn.W_O[1] *= sign
    return model


@torch.no_grad()
def mlps(*tables: Table) -> HookedDecoder:
    """Build a table in the MLP of each layer."""
    n, layers = len(tables[0]), len(tables)
    model = HookedDecoder(handset_config(n, N_CTX, d_model=2 * n, d_head=n, d_mlp=n, n_layers=layers))
    model.embed.W_E[:, :n] = torch.eye(n)
    model.get_parameter("unembed.W_U")[n:] = torch.eye(n)
    for block, table in zip(model.blocks, tables, strict=True):
        block.mlp.W_in[:n] = torch.eye(n)
        block.mlp.W_out[:, n:] = table
    return model


@torch.no_grad()
def behind_rms() -> HookedDecoder:
    """Build a table in the direct path that is right behind a norm that keeps the mean."""
    config = handset_config(4, N_CTX, d_model=4, d_head=4).model_dump() | {"normalization_type": "RMS"}
    model = HookedDecoder(DecoderConfig(**config))
    for parameter in model.parameters():
        parameter.zero_()
    model.embed.W_E.copy_(torch.eye(4))
    model.ln_final.w.fill_(1.0)
    model.get_parameter("unembed.W_U").copy_(L4 / 2)  # sqrt(4): each embedding has one entry
    return model


@torch.no_grad()
def two_of_each() -> HookedDecoder:
    """Build an induction circuit whose previous-token head is two halves, read by two readers."""
    model = induction_pair(3, LONG, gain=4.0, readers=2)
    first = model.blocks[0].attn
    for name in ("W_Q", "W_K", "W_V"):
        getattr(first, name)[1] = getattr(first, name)[0]
    first.W_O[0] *= 0.5
    first.W_O[1] = first.W_O[0]
    return model


@torch.no_grad()
def with_a_sink() -> HookedDecoder:
    """Build an induction pair that also looks at the first token, as if it matched by half."""
    model = induction_pair(3, LONG, gain=2.0)
    model.blocks[1].attn.W_K[0, 3, 3] = 0.5
    return model


def more() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    """Yields names, models (several are the steps of one run) and their sources."""
    yield from ((name, make, Chain(P4)) for name, make in _of_four_states())
    yield from _of_odd_chains()
    yield from _of_several_tokens()


def _of_four_states() -> Iterator[tuple[str, Make]]:
    A, B, none = drawn(5), drawn(6), 0 * L4
    pi = torch.tensor(np.log(stationary(P4))).float().tolist()
    sharp = torch.tensor([3.0, 0.3, 1.0, 1.0])[:, None] * L4
    two = log_of(P4 @ P4)
    yield "sharp after 0, blunt after 1", direct(sharp)
    yield "three heads that cancel", partial(reading, [A, B, -A - B], [OWN] * 3, direct=L4)
    yield "one head against two halves", partial(reading, [2 * A, -A, -A], [OWN] * 3, direct=L4)
    yield "any of two sets cancels", partial(reading, [3 * L4, -2 * L4, -L4], [OWN] * 3, mlp=L4)
    yield "layer 1 erases what layer 0 writes", partial(erased, L4, -1.0, direct=L4)
    yield "layer 1 erases all there is", partial(erased, L4, -1.0)
    yield "layer 1 takes half", partial(erased, L4, -0.5)
    low, high = only_after(L4, [0, 1]), only_after(L4, [2, 3])
    yield "two heads divide the states", partial(reading, [low, high], [OWN, OWN])
    three = partial(reading, [only_after(L4, [0])], [OWN], direct=high, mlp=only_after(L4, [1]))
    yield "head, MLP and direct path divide the states", three
    yield "transposed", direct(L4.T.contiguous())
    yield "two states taken for one", direct(log_of(merged(P4)))
    yield "which half comes, not which state", direct(log_of(only_classes(P4)))
    yield "states 0 and 1 renamed", direct(log_of(P4[[1, 0, 2, 3]][:, [1, 0, 2, 3]]))
    yield "two steps after odd states", direct(only_after(L4, [0, 2]) + only_after(two, [1, 3]))
    yield "current token at even positions, any 0 at odd ones", partial(even_or_token, L4, 0)
    yield "half current, half previous token", partial(at_two_lags, 2 * L4, 2)
    yield "the first token in a second head", partial(reading, [L4, 0.5 * L4], [OWN, [0] * N_CTX])
    yield "the unigram in the bias", lambda: with_bias(direct_table(none, N_CTX), *pi)
    yield "a wrong bias only", lambda: with_bias(direct_table(none, N_CTX), 2.0, -1.0, 0.0, -3.0)
    yield "a bias on top of the bigram", lambda: with_bias(direct_table(L4, N_CTX), 1.5, 0.0, 0.0, 0.0)
    yield "positions only", by_position_only
    yield "three tenths uniform", direct(log_of(0.7 * P4 + 0.3 / 4))
    yield "value weights of opposite signs", partial(value_signs, -1.0)
    yield "values of opposite signs", partial(value_signs, 1.0, direct=L4)
    yield "the MLP of layer 1", partial(mlps, none, L4)
    yield "half in each MLP", partial(mlps, 0.5 * L4, 0.5 * L4)
    yield "behind a norm of the root mean square", behind_rms
    yield "learned, then decayed", lambda: [direct_table(t * L4, N_CTX) for t in (0.0, 1.0, 0.5, 0.2)]
    yield "too sure, then right", lambda: [direct_table(t * L4, N_CTX) for t in (0.0, 3.0, 2.0, 1.0)]
    yield "lost state by state", lambda: [direct_table(only_after(L4, range(k)), N_CTX) for k in (4, 3, 2, 1)]


def _of_odd_chains() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    many = of_30_states()
    gaps, other = log_of(many), (np.ones((4, 4)) - np.eye(4)) / 3
    gaps[5:10] = 0.0
    wrong = stationary(RARELY)
    wrong[2] *= 6
    for times in (4, 7):
        yield f"{times} times as sure, of the hardly possible", direct(times * log_of(TINY)), Chain(TINY)
    yield "an absorbing chain", direct(log_of(ABSORBING)), Chain(ABSORBING)
    yield "a periodic chain", direct(log_of(PERIODIC)), Chain(PERIODIC)
    yield "a periodic chain, only its phase", direct(log_of(only_classes(PERIODIC))), Chain(PERIODIC)
    three_steps = log_of(np.linalg.matrix_power(PERIODIC, 3))
    from_lag_3 = partial(value_table, three_steps, N_CTX, lag=3)
    yield "a periodic chain, from lag 3", from_lag_3, Chain(PERIODIC)
    yield "nearly equal rows", direct(log_of(NEAR_EQUAL)), Chain(NEAR_EQUAL)
    one_wrong = log_of(np.array([[0.1, 0.9], [0.5, 0.5]]))
    yield "nearly equal rows, one wrong", direct(one_wrong), Chain(NEAR_EQUAL)
    yield "thirty states", direct(log_of(many)), Chain(many)
    yield "thirty states, uniform after five", direct(gaps), Chain(many)
    yield (
        "unigram, a rare state too likely",
        lambda: with_bias(direct_table(torch.zeros(3, 3), N_CTX), *np.log(wrong / wrong.sum()).tolist()),
        Chain(RARELY),
    )
    yield "a copy where none repeats", direct(4 * torch.eye(4)), Chain(other)


def _of_several_tokens() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    one, redrawn = log_of(P4), mm.DirichletChains(n_states=3)
    either, lagged = SelectiveLag(P4.tolist(), [1, 3]), LaggedChain(P4.tolist(), 3)
    kernel, order_2 = np.array(ORDER_2), OrderK(ORDER_2)
    kernel[:, 1] = order_2.P[1]
    joint = 0.5 * np.array(HIDDEN.emissions)  # [hidden state, token]
    tokens = (joint / joint.sum(0)).T @ np.array(HIDDEN.transitions) @ np.array(HIDDEN.emissions)
    yield "one head of both lags", partial(at_two_lags, one, 3, 16), either
    halves = partial(reading, [0.5 * one, 0.5 * one], [lag(1, 16), lag(3, 16)], 16)
    noisy = partial(reading, [one, 0.5 * one.roll(1, 1)], [lag(3), OWN])
    yield "two heads of both lags", halves, either
    yield "the parent, and noise of the current token", noisy, lagged
    yield "three tokens after one state, two after the other", partial(n_gram_model, kernel, 16), order_2
    yield "a table of tokens of hidden states", direct(log_of(tokens)), HIDDEN
    yield "two tokens matched", partial(induction_pair, 3, LONG, lags=(1, 2)), redrawn
    yield "the wrong token matched", partial(induction_pair, 3, LONG, lags=(2,)), redrawn
    yield "two previous-token heads, two readers", two_of_each, redrawn
    yield "induction with a sink", with_a_sink, redrawn
    yield "induction and a bias", lambda: with_bias(induction_pair(3, LONG, gain=2.0), 2.0, 0.0, 0.0), redrawn
