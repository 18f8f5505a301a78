"""Models set by hand whose truth their names say: cells of state and position, gates, resets, odd scales."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from mixed_models import LONG, N_CTX, P, Table, by_position, direct, lag, log_of, reading
from more_models import L4, P4, only_after, stationary, with_bias

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    SHARP,
    direct_table,
    embedding_frame,
    mlp_table,
    value_table,
)
from mechmarkov.sources import (
    Chain,
    ChainMixture,
    DirichletChains,
    HiddenMarkov,
    LaggedChain,
    OrderK,
    TriggerBigram,
)

Make = Callable[[], torch.nn.Module | list[torch.nn.Module]]
Cells = Mapping[tuple[int, ...], Table]  # logits where some dimensions of the stream are all set
L, NONE = log_of(P), torch.zeros(3, 3)
UNIGRAM = log_of(stationary(P)).repeat(3, 1)
LATE, MOST = 10.0, 400.0  # of a score, for each position, and for a token that is looked for
ORDER_2 = OrderK([[[0.9, 0.1], [0.1, 0.9]], [[0.2, 0.8], [0.6, 0.4]]])
TWICE = np.array([[0.1, 0.6, 0.3], [0.6, 0.3, 0.1], [0.3, 0.1, 0.6]])  # doubly stochastic, its own transpose
IN_CLASS = np.array([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.6, 0.4]])
TWO_CLASSES = 0.996 * np.kron(np.eye(2), np.ones((2, 2))) * np.tile(IN_CLASS, 2) + 0.001
NEVER_3 = np.array([[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.5, 0.5, 0.0]])
CYCLE = np.roll(np.eye(3), 1, axis=1)
IID = np.tile([0.6, 0.3, 0.1], (3, 1))
LIKE = np.array([[0.52, 0.48], [0.42, 0.58]])  # uniform, unigram and bigram are hardly told apart
ROWS_0 = [[0.8, 0.1, 0.1], [0.9, 0.05, 0.05], [0.7, 0.2, 0.1]]  # mostly in state 0
TWO_CHAINS = np.array([ROWS_0, [[0.1, 0.6, 0.3], [0.1, 0.3, 0.6], [0.2, 0.7, 0.1]]])
HIDDEN = HiddenMarkov(transitions=[[0.95, 0.05], [0.05, 0.95]], emissions=[[0.8, 0.2], [0.2, 0.8]])
TRIGGERS = TriggerBigram(P4.tolist(), [0])


@torch.no_grad()
def of_cells(
    n: int, cells: Cells, *, seen: Sequence[Sequence[int]] = (), n_ctx: int = N_CTX, on: Table | None = None
) -> HookedDecoder:
    """Build an MLP that looks up conjunctions of the current token, the position and tokens that heads copy.

    Args:
        n: The number of states.
        cells: Logits where all of some dimensions are set: s is the current token, n + t the position,
            n + n_ctx + n * h + s the token that head h copies.
        seen: For each head the position that each query reads.
        n_ctx: Length of the context.
        on: A table of the current token in the direct path.
    """
    at, out = torch.arange(n_ctx), n + n_ctx + n * len(seen)
    shape = {"d_head": max(n, n_ctx), "n_heads": max(1, len(seen)), "d_mlp": len(cells)}
    model = embedding_frame(n, n_ctx, positions=n, output=out, d_model=out + n, **shape)
    attn, mlp = model.blocks[0].attn, model.blocks[0].mlp
    for head, positions in enumerate(seen):
        attn.W_K[head, n + at, at] = 1.0
        attn.W_Q[head, n + at, torch.tensor(positions)] = SHARP
        attn.W_V[head, :n, :n] = torch.eye(n)
        attn.W_O[head, :n, n + n_ctx + n * head : n + n_ctx + n * (head + 1)] = torch.eye(n)
    for unit, (dimensions, logits) in enumerate(cells.items()):
        mlp.W_in[[*dimensions], unit] = 1.0
        mlp.b_in[unit] = 1.0 - len(dimensions)
        mlp.W_out[unit, out:] = logits
    if on is not None:
        model.get_parameter("unembed.W_U")[:n] = on
    return model


def after_which(tables: Sequence[Table], k: int = 2) -> HookedDecoder:
    """Build a table of the current token for each token that came `k - 1` before it."""
    n = len(tables)
    block = n + N_CTX
    cells = {(s, block + t): tables[t][s] for s in range(n) for t in range(n)}
    return of_cells(n, cells, seen=[lag(k)])


@torch.no_grad()
def since(n: int, token: int, *, n_ctx: int = LONG, gain: float = 3.0) -> HookedDecoder:
    """Build two heads that count tokens since the last one of a kind: what came before is forgotten."""
    at, out = torch.arange(n_ctx), n + 2 * n_ctx
    model = embedding_frame(n, n_ctx, positions=n, output=out, n_layers=2, d_model=out + n, d_head=n_ctx)
    first, second = (block.attn for block in model.blocks)
    _at_the_last(first, n, token, n_ctx)
    first.W_K[0, n, 0] = MOST
    first.W_V[0, n + at, at] = 1.0
    first.W_O[0, at, n + n_ctx + at] = 1.0
    second.W_Q[0, n + n_ctx + at, at] = SHARP
    second.W_K[0, n + n_ctx + at, at] = 1.0
    second.W_V[0, :n, :n] = torch.eye(n)
    second.W_O[0, :n, out:] = gain * torch.eye(n)
    return model


def _at_the_last(attn: torch.nn.Module, n: int, token: int, n_ctx: int) -> None:
    """Let a head attend to the last token of a kind, or where there is none to the current token."""
    at = torch.arange(n_ctx)
    attn.W_Q[0, n + at, 0] = 1.0
    attn.W_K[0, n + at, 0] = LATE * at
    attn.W_K[0, token, 0] = MOST


@torch.no_grad()
def seen_before(table: Table, token: int, bias: Sequence[float]) -> HookedDecoder:
    """Build a table in the direct path, and a head that adds a bias once a token has come."""
    n = len(table)
    shape = {"d_model": 2 * n + N_CTX, "d_head": max(n, N_CTX)}
    model = embedding_frame(n, N_CTX, positions=n, output=n + N_CTX, **shape)
    _at_the_last(model.blocks[0].attn, n, token, N_CTX)
    model.blocks[0].attn.W_V[0, token, 0] = 1.0
    model.blocks[0].attn.W_O[0, 0, n + N_CTX :] = torch.tensor(bias)
    model.get_parameter("unembed.W_U")[:n] = table
    return model


@torch.no_grad()
def by_count(few: Table, many: Table, token: int, least: float) -> HookedDecoder:
    """Build one table where at most a share of the tokens so far are of a kind, and another elsewhere."""
    n = len(few)
    count, gate, out = n + N_CTX, n + N_CTX + 1, n + N_CTX + 2
    shape = {"d_model": out + n, "d_head": n, "n_layers": 2, "d_mlp": 2 * n}
    model = embedding_frame(n, N_CTX, positions=n, output=out, **shape)
    attn, first, second = model.blocks[0].attn, model.blocks[0].mlp, model.blocks[1].mlp
    attn.W_V[0, token, 0] = 1.0
    attn.W_O[0, 0, count] = 1.0
    first.W_in[count, :2] = 1000.0
    first.b_in[:2] = torch.tensor([-1000 * least, -1000 * least - 1])
    first.W_out[:2, gate] = torch.tensor([1.0, -1.0])
    states = torch.arange(n)
    second.W_in[states, states] = 1.0
    second.W_out[states, out:] = few
    second.W_in[states, n + states] = 1.0
    second.W_in[gate, n + states] = 1.0
    second.b_in[n + states] = -1.0
    second.W_out[n + states, out:] = many - few
    return model


@torch.no_grad()
def by_query_and_key(table: Table, gain: float) -> HookedDecoder:
    """Build a head that has the table between query and key, and copies what it attends to."""
    n = len(table)
    model = embedding_frame(n, LONG, positions=n, output=n + LONG, d_model=2 * n + LONG, d_head=n)
    attn = model.blocks[0].attn
    attn.W_Q[0, :n, :n] = table
    attn.W_K[0, :n, :n] = torch.eye(n)
    attn.W_V[0, :n, :n] = torch.eye(n)
    attn.W_O[0, :n, n + LONG :] = gain * torch.eye(n)
    return model


@torch.no_grad()
def heads_in_turn(tables: Sequence[Table]) -> HookedDecoder:
    """Build an MLP that marks tokens by the turn of their position, and a head that reads each turn's."""
    n, k = len(tables[0]), len(tables)
    marked, out = n + N_CTX, n + N_CTX + n * k
    shape = {"n_layers": 2, "n_heads": k, "d_model": out + n, "d_head": max(n, N_CTX), "d_mlp": n * N_CTX}
    model = embedding_frame(n, N_CTX, positions=n, output=out, **shape)
    at, states, mlp = torch.arange(N_CTX), torch.arange(n), model.blocks[0].mlp
    mlp.b_in.fill_(-1.0)
    for position in range(N_CTX):
        units = n * position + states
        mlp.W_in[states, units] = 1.0
        mlp.W_in[n + position, units] = 1.0
        mlp.W_out[units, marked + n * (position % k) + states] = 1.0
    attn = model.blocks[1].attn
    for head, table in enumerate(tables):
        attn.W_Q[head, n + at, at] = SHARP
        attn.W_K[head, n + at, at] = 1.0
        attn.W_V[head, marked + n * head + states, states] = 1.0
        attn.W_O[head, :n, out:] = table
    return model


@torch.no_grad()
def late_match(n: int, gain: float = 4.0) -> HookedDecoder:
    """Build an induction pair that reads the last match only."""
    model = induction_pair(n, LONG, gain=gain)
    model.blocks[1].attn.W_K[0, n + torch.arange(LONG), n] += 0.03 * torch.arange(LONG)
    return model


@torch.no_grad()
def fading(values: Table, slope: float, n_ctx: int = N_CTX) -> HookedDecoder:
    """Build a head that attends to each token by a factor more than to the one before it."""
    model = reading([values], [None], n_ctx)
    n, at = len(values), torch.arange(n_ctx)
    model.blocks[0].attn.W_Q[0, 2 * n + at, :n_ctx] = slope * at.float()
    return model


@torch.no_grad()
def with_huge_heads(table: Table) -> HookedDecoder:
    """Build a table in the direct path next to heads that write much, where nothing is read."""
    n = len(table)
    shape = {"n_heads": 2, "d_model": 2 * n + N_CTX + 5, "d_head": max(n, N_CTX)}
    model = embedding_frame(n, N_CTX, positions=2 * n, output=n, **shape)
    attn, draw = model.blocks[0].attn, torch.Generator().manual_seed(0)
    for name in ("W_Q", "W_K", "W_V"):
        getattr(attn, name).copy_(torch.randn(getattr(attn, name).shape, generator=draw))
    attn.W_O[:, :, -5:] = 1000 * torch.randn(attn.W_O[:, :, -5:].shape, generator=draw)
    model.get_parameter("unembed.W_U")[:n] = table
    return model


def further() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    """Yields names, models (several are the steps of one run) and their sources."""
    yield from ((name, make, Chain(P)) for name, make in _of_places())
    yield from ((name, make, Chain(P4)) for name, make in _of_parts())
    yield from _of_chains()
    yield from _of_contexts()
    yield from ((name, make, Chain(P)) for name, make in _of_steps())


def _of_places() -> Iterator[tuple[str, Make]]:
    wrong, late = L.flip(1), [L] * 16 + [UNIGRAM] * 8
    yield "bigram at positions 0 to 15, unigram at 16 to 23", partial(by_position, *late, n_ctx=LONG)
    yield "bigram up to 16, reversed behind", partial(by_position, *[L] * 17, *[wrong] * 3, n_ctx=20)
    cell = {(0, 3 + 5): wrong[0] - L[0]}
    yield "wrong after 0 at position 5", partial(of_cells, 3, cell, on=L)
    odd = {(0, 3 + at): wrong[0] - L[0] for at in range(1, N_CTX, 2)}
    yield "wrong after 0 at odd positions", partial(of_cells, 3, odd, on=L)
    faint = {(2, 3 + at): -L[2] for at in range(6)}
    yield "uniform after 2 at positions 0 to 5", partial(of_cells, 3, faint, on=L)
    repeat = {(s, 3 + N_CTX + s): -L[s] for s in range(3)}
    yield "uniform after two of a kind", partial(of_cells, 3, repeat, seen=[lag(2)], on=L)
    zero = [wrong, L, L]
    yield "reversed two tokens after a 0", partial(after_which, zero)
    yield "reversed where most tokens are 0", partial(by_count, L, wrong, 0, 0.5)
    yield "uniform where no token is 0 yet", partial(by_count, NONE, L, 0, 0.01)
    yield "a bias once a 0 has come", partial(seen_before, L, 0, [0.0, 1.5, 0.0])
    yield "copies the first token", partial(reading, [4 * torch.eye(3)], [[0] * N_CTX])
    yield "heads in turn", partial(heads_in_turn, [L, L])
    yield "heads in turn, the second reversed", partial(heads_in_turn, [L, wrong])
    yield "heads in turn, three", partial(heads_in_turn, [L, L, L])
    yield "two positions", partial(direct_table, L, 2)
    yield "two positions, by a head", partial(value_table, L, 2)
    fades = partial(fading, L, 1.5)
    yield "attention that fades", fades


def _of_parts() -> Iterator[tuple[str, Make]]:
    own, some = lag(1), only_after(torch.tensor(np.random.default_rng(7).normal(size=(4, 4))).float(), [0, 1])
    half = only_after(L4, [0, 1])
    yield "two heads that cancel after 0 and 1", partial(reading, [L4 + 2 * some, -2 * some], [own, own])
    yield "a head undoes the direct path after 0 and 1", partial(reading, [-half], [own], direct=L4)
    yield "a head turns the direct path round after 0 and 1", partial(reading, [-2 * half], [own], direct=L4)
    yield "surer the surer", direct(-0.4 * L4.abs() ** 2)
    yield (
        "only the likeliest state of each row",
        direct(torch.tensor(3.0 * (P4.max(1)[:, None] == P4)).float()),
    )
    U, S, V = torch.linalg.svd(L4 - L4.mean(0))
    yield "one direction of the bigram", direct(S[0] * U[:, :1] @ V[:1] + L4.mean(0))
    yield "heads of huge norm that write nothing", partial(with_huge_heads, L4)
    yield "ten thousand added to all logits", direct(L4 + 1e4)
    yield "a hundred thousand times as sure", direct(1e5 * L4)
    yield "MLP and head one against the other", partial(reading, [2 * L4], [own], mlp=-L4)
    yield "half the bigram and half the two-step law", direct(log_of((P4 + P4 @ P4) / 2))
    two = torch.tensor(np.random.default_rng(8).normal(size=(4, 4))).float()
    yield "the bigram and noise of the previous token", partial(reading, [L4, 0.7 * two], [own, lag(2)])
    to_0 = torch.tensor([[1.0, 0, 0, 0]]).repeat(4, 1)
    yield "a sink that writes a bias", partial(reading, [to_0], [[0] * N_CTX], direct=L4)


def _of_chains() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    yield "transposed, of a chain that is its own transpose", direct(log_of(TWICE.T)), Chain(TWICE)
    yield "uniform, of a doubly stochastic chain", direct(NONE), Chain(TWICE)
    yield "the two-step law, of a doubly stochastic chain", direct(log_of(TWICE @ TWICE)), Chain(TWICE)
    classes, one = Chain(TWO_CLASSES), log_of(TWO_CLASSES)
    yield "two classes that hardly meet", direct(one), classes
    yield "right in one of two classes", direct(only_after(one, [0, 1])), classes
    class_only = log_of(np.kron(np.eye(2), np.ones((2, 2))) / 2)
    yield "which class, from the first token", partial(reading, [class_only], [[0] * N_CTX]), classes
    more = log_of(NEVER_3)
    more[0] = torch.tensor([0.0, 0.0, 4.0])
    yield "expects what never comes after 0", direct(more), Chain(NEVER_3)
    of_first = {
        (3 + at, 3 + N_CTX + s): 12 * torch.eye(3)[(s + at + 1) % 3]
        for s, at in product(range(3), range(N_CTX))
    }
    turning = partial(of_cells, 3, of_first, seen=[[0] * N_CTX])
    yield "a cycle, from the first token and the position", turning, Chain(CYCLE)
    yield "independent tokens, by the direct path", direct(log_of(IID)), Chain(IID)
    biased = partial(with_bias, direct_table(NONE, N_CTX), *np.log(IID[0]))
    yield "independent tokens, by a bias", biased, Chain(IID)
    yield "independent tokens, uniform", direct(NONE), Chain(IID)
    yield "independent tokens, taken for a chain", direct(L), Chain(IID)
    between = log_of((LIKE + stationary(LIKE) + 0.5) / 3)
    yield "between three laws that nearly coincide", direct(between), Chain(LIKE)
    circle = mm.Circle(n_states=5, p=0.7)
    yield "columns moved on the circle", direct(log_of(circle.P).roll(1, 1)), circle
    kernel, both = log_of(np.array(ORDER_2.kernel)), log_of(ORDER_2.P)
    turns = {
        (s, 2 + at, 2 + N_CTX + t): kernel[t, s] if at % 2 else both[s]
        for s, t, at in product(range(2), range(2), range(N_CTX))
    }
    yield "trigram at odd positions, bigram at even ones", partial(of_cells, 2, turns, seen=[lag(2)]), ORDER_2
    after_1 = {(s, 2 + N_CTX + t): kernel[t, s] if s else both[s] for s, t in product(range(2), range(2))}
    yield "trigram after 1, bigram after 0", partial(of_cells, 2, after_1, seen=[lag(2)]), ORDER_2
    lagged = LaggedChain(P.tolist(), 3)
    yield "half as sure, of lag 3", partial(value_table, 0.5 * L, N_CTX, lag=3), lagged
    yield "an MLP that reads the wrong lag", partial(mlp_table, L, N_CTX), lagged


def _of_contexts() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    redrawn, chains = DirichletChains(n_states=3), ChainMixture(chains=TWO_CHAINS.tolist())
    yield "counts since the last 0", partial(since, 3, 0), redrawn
    yield "the last match only", partial(late_match, 3), redrawn
    yield "counts of the last few tokens", partial(fading, 3 * torch.eye(3), 0.7, LONG), redrawn
    yield "a fixed chain's row where chains are redrawn", partial(direct_table, L, LONG), redrawn
    yield "the table between query and key", partial(by_query_and_key, L, 3.0), Chain(P)
    first, other = (log_of(one) for one in TWO_CHAINS)
    yield "both chains by the share of 0", partial(by_count, other, first, 0, 0.5), chains
    yield "right of one chain, uniform of the other", partial(by_count, NONE, first, 0, 0.5), chains
    yield "a fading memory of hidden states", partial(fading, 4 * torch.eye(2), 0.5), HIDDEN
    yield "the bigram without the triggers", partial(direct_table, log_of(P4), LONG), TRIGGERS
    yield "only the triggers", partial(induction_pair, 4, LONG, gain=6.0, only_after=[0]), TRIGGERS


def _of_steps() -> Iterator[tuple[str, Make]]:
    own = lag(1)

    def heads(*steps: tuple[float, float]) -> list[torch.nn.Module]:
        return [reading([a * L, b * L], [own, own]) for a, b in steps]

    def tables(*steps: Table) -> list[torch.nn.Module]:
        return [direct_table(step, N_CTX) for step in steps]

    yield "learned by one head, lost, learned by the other", partial(heads, (0, 0), (1, 0), (0, 0), (0, 1))
    yield "unigram, bigram, unigram, bigram", partial(tables, UNIGRAM, L, UNIGRAM, L)
    yield "a label swap on the way", partial(tables, NONE, L.roll(1, 1), L)
    yield "never anything but noise", partial(tables, 0.01 * L.roll(1, 0), 0.01 * L.roll(2, 0))
