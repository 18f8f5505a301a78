"""Models set by hand whose truth their names say: laws mixed by state, position, part and head."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    SHARP,
    direct_table,
    embedding_frame,
    handset_config,
    mlp_table,
    value_table,
)
from mechmarkov.models.constructions.n_grams import k_gram_counter
from mechmarkov.sources import Chain, ChainMixture, LaggedChain, OrderK, SelectiveLag

Table = Float[Tensor, "state_from state_to"]
Make = Callable[[], torch.nn.Module | list[torch.nn.Module]]
N_CTX, LONG = 12, 24
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.15, 0.6]])
TURNING = np.array(
    [[0.1, 0.8, 0.05, 0.05], [0.05, 0.1, 0.8, 0.05], [0.3, 0.05, 0.05, 0.6], [0.7, 0.1, 0.1, 0.1]]
)
RARE = np.array([[0.6, 0.38, 0.02], [0.38, 0.6, 0.02], [0.5, 0.1, 0.4]])
NEVER = np.array([[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.5, 0.5, 0.0]])  # nothing leads to the last state
ORDER_2 = [[[0.9, 0.1], [0.1, 0.9]], [[0.2, 0.8], [0.8, 0.2]]]


def log_of(rows: np.ndarray) -> Table:
    """Returns the logarithm of a table; of what is impossible that of a very small probability."""
    return torch.tensor(np.log(np.maximum(rows, 1e-6))).float()


def stationary(rows: np.ndarray) -> np.ndarray:
    """Returns the stationary law of a chain."""
    return np.asarray(np.linalg.matrix_power(rows, 2000)[0])


@torch.no_grad()
def reading(
    tables: Sequence[Table],
    seen: Sequence[Sequence[int] | None],
    n_ctx: int = N_CTX,
    direct: Table | None = None,
    mlp: Table | None = None,
) -> HookedDecoder:
    """Build heads that each apply a table to the token at one position a query; None: the same everywhere.

    Args:
        tables: One a head.
        seen: For each head the position that each query reads.
        n_ctx: Length of the context.
        direct: A table of the current token in the direct path.
        mlp: One in the MLP.
    """
    n, at = len(tables[0]), torch.arange(n_ctx)
    shape = {"d_model": 2 * n + n_ctx, "d_head": max(n, n_ctx), "n_heads": len(tables)}
    if mlp is not None:
        shape["d_mlp"] = n
    model = embedding_frame(n, n_ctx, positions=2 * n, output=n, **shape)
    attn = model.blocks[0].attn
    for head, (table, positions) in enumerate(zip(tables, seen, strict=True)):
        attn.W_K[head, 2 * n :, :n_ctx] = torch.eye(n_ctx)
        attn.W_V[head, :n, :n] = torch.eye(n)
        if positions is not None:
            attn.W_Q[head, 2 * n + at, torch.tensor(positions)] = SHARP
        attn.W_O[head, :n, n : 2 * n] = table
    if direct is not None:
        model.get_parameter("unembed.W_U")[:n] = direct
    if mlp is not None:
        model.blocks[0].mlp.W_in[:n] = torch.eye(n)
        model.blocks[0].mlp.W_out[:, n : 2 * n] = mlp
    return model


def lag(k: int, n_ctx: int = N_CTX) -> list[int]:
    """Returns the position that each query reads to see the token `k` before the predicted one."""
    return [max(0, at - k + 1) for at in range(n_ctx)]


@torch.no_grad()
def by_position(*tables: Table, n_ctx: int = N_CTX) -> HookedDecoder:
    """Build an MLP that applies one of several tables of the current token, in turn over positions."""
    n, k = len(tables[0]), len(tables)
    model = HookedDecoder(handset_config(n, n_ctx, d_model=2 * n + k, d_head=n, d_mlp=n * k))
    model.embed.W_E[:, :n] = torch.eye(n)
    at = torch.arange(n_ctx)
    model.get_parameter("pos_embed.W_pos")[at, 2 * n + at % k] = 1.0
    mlp = model.blocks[0].mlp
    mlp.b_in.fill_(-1.0)
    for turn, table in enumerate(tables):
        units = turn * n + torch.arange(n)
        mlp.W_in[torch.arange(n), units] = 1.0
        mlp.W_in[2 * n + turn, units] = 1.0
        mlp.W_out[units, n : 2 * n] = table
    model.get_parameter("unembed.W_U")[n : 2 * n] = torch.eye(n)
    return model


@torch.no_grad()
def with_direct_table(model: HookedDecoder, table: Table) -> HookedDecoder:
    """Returns the model with a table of the current token in its direct path."""
    model.get_parameter("unembed.W_U")[: len(table)] = table
    return model


@torch.no_grad()
def normalised(table: Table, *, gain: float = 1.0, dead: int | None = None) -> HookedDecoder:
    """Build a table in the direct path that is right behind a LayerNorm, whose gain may be another."""
    n = len(table)
    plain = handset_config(n, N_CTX, d_model=n, d_head=n).model_dump()
    model = HookedDecoder(DecoderConfig(**plain | {"normalization_type": "LN"}))
    for parameter in model.parameters():
        parameter.zero_()
    model.embed.W_E.copy_(torch.eye(n))
    model.get_parameter("unembed.W_U").copy_((table - table.mean(0)) * np.sqrt((1 / n) * (1 - 1 / n)))
    model.get_parameter("unembed.b_U").copy_(table.mean(0))
    model.ln_final.w.fill_(gain)
    if dead is not None:
        model.ln_final.w[dead] = 0.0
    return model


@torch.no_grad()
def induction_within(n: int, n_ctx: int, least: int, most: int, gain: float = 2.0) -> HookedDecoder:
    """Build an induction pair that sees keys at some distances only."""
    base = induction_pair(n, n_ctx, gain=gain)
    wide, written = base.config.d_head, 2 * n + n_ctx
    shape = {"n_layers": 2, "d_model": written + n, "d_head": wide + n_ctx}
    model = embedding_frame(n, n_ctx, positions=n, output=written, **shape)
    for old, new in zip(base.blocks, model.blocks, strict=True):
        for name in ("W_Q", "W_K", "W_V"):
            getattr(new.attn, name)[:, :, :wide] = getattr(old.attn, name)
        new.attn.W_O[:, :wide] = old.attn.W_O
    at = torch.arange(n_ctx)
    away = at[:, None] - at
    second = model.blocks[1].attn
    second.W_Q[0, n : n + n_ctx, wide:] = -200.0 * ((away < least) | (away > most))
    second.W_K[0, n + at, wide + at] = 1.0
    return model


@torch.no_grad()
def two_readers(first: float, second: float) -> HookedDecoder:
    """Build two induction heads on one previous-token head, with gains of their own."""
    model, n = induction_pair(3, LONG, readers=2), 3
    out = model.blocks[1].attn.W_O
    for head, gain in enumerate((first, second)):
        out[head, :n, 2 * n + LONG :] = gain * torch.eye(n)
    return model


@torch.no_grad()
def heads_that_cancel(table: Table, gain: float) -> HookedDecoder:
    """Build an induction pair, and two heads of which one takes back what the other writes."""
    n, base = len(table), induction_pair(len(table), LONG, gain=gain)
    written = 2 * n + LONG
    shape = {"n_layers": 2, "n_heads": 3, "d_model": written + n, "d_head": base.config.d_head}
    model = embedding_frame(n, LONG, positions=n, output=written, **shape)
    for old, new in zip(base.blocks, model.blocks, strict=True):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            getattr(new.attn, name)[:1] = getattr(old.attn, name)
    second, at = model.blocks[1].attn, torch.arange(LONG)
    for head, sign in ((1, 1.0), (2, -1.0)):
        second.W_Q[head, n + at, at] = SHARP
        second.W_K[head, n + at, at] = 1.0
        second.W_V[head, :n, :n] = torch.eye(n)
        second.W_O[head, :n, written:] = sign * table
    return model


def direct(table: Table) -> Make:
    """Returns how to build a table in the direct path."""
    return partial(direct_table, table, N_CTX)


def mixed() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    """Yields names, models (several are the steps of one run) and their sources."""
    yield from ((name, make, Chain(P)) for name, make in _of_one_chain())
    yield from _of_other_chains()
    yield from _in_context()
    yield from ((name, make, Chain(P)) for name, make in _trajectories())


def _of_one_chain() -> Iterator[tuple[str, Make]]:
    L, none = log_of(P), 0 * log_of(P)
    own, first = lag(1), [0] * N_CTX
    moved = [at if at < N_CTX // 2 else at - 1 for at in range(N_CTX)]
    after_0 = torch.cat([L[:1], none[1:]])
    yield "right at every other position, reversed between", partial(by_position, L, L.flip(1))
    yield "right at every other position, sharply wrong between", partial(by_position, L, -2 * L)
    yield "right at one position of three", partial(by_position, L, L.flip(1), L.roll(1, 0))
    yield "right at the last position only", partial(by_position, *[none] * (N_CTX - 1), L)
    yield "half as sure at every other position", partial(by_position, 0.4 * L, L)
    scaled = torch.tensor([0.4, 2.5, 1.0])[:, None] * L
    yield "another temperature after each state", direct(scaled)
    for sureness in (0.02, 0.05, 3.0):
        yield f"{sureness} times as sure, direct", direct(sureness * L)
        yield f"{sureness} times as sure, MLP", partial(mlp_table, sureness * L, N_CTX)
    yield "half direct, half MLP", partial(reading, [none], [own], direct=0.5 * L, mlp=0.5 * L)
    yield "two heads, half each", partial(reading, [0.5 * L, 0.5 * L], [own, own])
    yield "three thirds", partial(reading, [0.3 * L], [own], direct=0.4 * L, mlp=0.3 * L)
    yield "an MLP takes back half of the direct path", partial(reading, [none], [own], direct=2 * L, mlp=-L)
    yield "a head takes back what an MLP writes", partial(reading, [-L], [own], direct=L, mlp=L)
    yield "two heads for it, one against", partial(reading, [L, L, -L], [own, own, own])
    divided = partial(reading, [L - after_0], [own], direct=after_0)
    yield "after one state direct, after the others a head", divided
    yield "first token", partial(reading, [L], [first])
    yield "bag of tokens", partial(reading, [L], [None])
    yield "current token, later the previous one", partial(reading, [L], [moved])
    little = 0.3 * log_of(P @ P @ P)
    yield "current token, and a little of lag 3", partial(reading, [L, little], [own, lag(3)])
    yield "two steps from the current token", direct(log_of(P @ P))
    yield "two steps from the previous token", partial(value_table, log_of(P @ P), N_CTX, lag=2)
    yield "always state 0", direct(torch.tensor([[8.0, 0.0, 0.0]]).repeat(3, 1))
    yield "against the bigram", direct(-L)
    yield "outputs renamed", direct(L.roll(1, 1))
    yield "behind a norm", partial(normalised, L)
    yield "behind a norm with a gain of 3", partial(normalised, L, gain=3.0)
    yield "behind a norm with a dead dimension", partial(normalised, L, dead=0)
    yield "copies of the current token on a sticky chain", partial(duplicate_token_head, 3, LONG)
    yield "induction on a fixed chain", partial(induction_pair, 3, LONG, gain=3.0)
    for gain, table in ((-1.0, 1.0), (-1.0, 2.5), (-2.0, 2.0), (2.0, 1.0)):
        pair = partial(induction_pair, 3, LONG, gain=gain)
        yield f"{table} times the table, {gain} times induction", partial(_beside, pair, table * L)


def _beside(make: Callable[[], HookedDecoder], table: Table) -> HookedDecoder:
    return with_direct_table(make(), table)


def _of_other_chains() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    pi, turning = stationary(TURNING), Chain(TURNING)
    backwards = TURNING.T * pi / pi[:, None]
    yield "the chain backwards", direct(log_of(backwards)), turning
    yield "a lazy chain", direct(log_of((TURNING + np.eye(4)) / 2)), turning
    yield "between unigram and bigram", direct(log_of((TURNING + pi) / 2)), turning
    yield "the unigram in the direct path", direct(log_of(pi).repeat(4, 1)), turning
    yield "a copy on a chain that moves", direct(4 * torch.eye(4)), turning
    wrong = log_of(RARE)
    wrong[2] = log_of(np.array([0.1, 0.1, 0.8]))
    yield "wrong after a rare state, MLP", partial(mlp_table, wrong, N_CTX), Chain(RARE)
    never = log_of(NEVER)
    never[2] = torch.tensor([0.0, 0.0, 9.0])
    yield "wrong after a state that never comes", direct(never), Chain(NEVER)
    cycle = np.roll(np.eye(5), 2, axis=1)
    for k in (1, 3, 5):
        table = torch.tensor(12 * np.linalg.matrix_power(cycle, k)).float()
        yield f"a cycle, read at lag {k}", partial(value_table, table, N_CTX, lag=k), Chain(cycle)
    one = log_of(P)
    yield "the parent of a lagged chain", partial(value_table, one, N_CTX, lag=2), LaggedChain(P.tolist(), 2)
    yield "not the parent of a lagged chain", direct(one), LaggedChain(P.tolist(), 2)
    order_2 = OrderK(ORDER_2)
    yield "the bigram of an order-two source", direct(log_of(order_2.P)), order_2
    either = SelectiveLag(P.tolist(), [1, 3])
    both = partial(reading, [0.5 * one, 0.5 * one], [lag(1, 16), lag(3, 16)], 16)
    yield "one of two lags, direct", partial(direct_table, one, 16), either
    yield "the other of two lags", partial(value_table, one, 16, lag=3), either
    yield "both lags, half each", both, either
    chains = ChainMixture(chains=(P.tolist(), P[:, ::-1].tolist()))
    yield "one of two chains", partial(direct_table, one, 16), chains


def _in_context() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    redrawn = mm.DirichletChains(n_states=3)
    draw = torch.tensor(np.random.default_rng(4).normal(scale=2.0, size=(3, 3))).float()
    circuits: dict[str, Make] = {
        "induction far away only": partial(induction_within, 3, LONG, 8, LONG),
        "induction nearby only": partial(induction_within, 3, LONG, 0, 6),
        "induction after one state only": partial(induction_pair, 3, LONG, gain=2.0, only_after=[0]),
        "two readers": partial(two_readers, 1.0, 1.0),
        "one reader against another": partial(two_readers, 3.0, -1.0),
        "heads that cancel": partial(heads_that_cancel, draw, 2.0),
        "heads that cancel, a sharp circuit": partial(heads_that_cancel, draw, 4.0),
        "counts of triples": partial(k_gram_counter, 3, LONG, order=2),
        "even attention that copies": partial(reading, [3 * torch.eye(3)], [None], LONG),
    }
    for name, make in circuits.items():
        yield name, make, redrawn


def _trajectories() -> Iterator[tuple[str, Make]]:
    L, none, pi = log_of(P), 0 * log_of(P), log_of(stationary(P)).repeat(3, 1)
    own = lag(1)

    def tables(*steps: Table) -> list[torch.nn.Module]:
        return [direct_table(step, N_CTX) for step in steps]

    def parts(*steps: tuple[float, float]) -> list[torch.nn.Module]:
        return [reading([head * L], [own], direct=direct * L) for direct, head in steps]

    yield "learned and lost", partial(tables, none, pi, L, pi)
    yield "learned and turned round", partial(tables, none, L, -L)
    yield "surer and surer", partial(tables, none, 0.1 * L, 0.5 * L, L, 2 * L)
    yield "state by state", partial(tables, *(torch.cat([L[:k], none[k:]]) for k in range(4)))
    yield "from the direct path to a head", partial(parts, (0, 0), (1, 0), (0.5, 0.5), (0, 1))
