"""Models set by hand whose truth their names say: rows that a cosine hardly sees, pairs, two circuits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from further_models import after_which, of_cells
from mixed_models import LONG, N_CTX, P, Table, direct, lag, log_of, reading, with_direct_table
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
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.sources import Chain, DirichletChains, LaggedChain, OrderK, Switch, Tokenised, TriggerBigram

Make = Callable[[], torch.nn.Module | list[torch.nn.Module]]
L, NONE, OWN = log_of(P), torch.zeros(3, 3), lag(1)
TWO_STEPS = log_of(P @ P)
HARDLY = 1e-5
IN_PAIRS = np.kron(np.eye(2), np.ones((2, 2)))
LIKELY = np.array([[0.8, 0.2, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.6, 0.4], [0, 0, 0.25, 0.75]])
TWO_LIKELY = np.where(IN_PAIRS > 0, LIKELY - HARDLY, HARDLY)  # of four, the others hardly possible
SWAPPED = TWO_LIKELY[:, [1, 0, 2, 3]] * np.eye(4)[:, :1] + TWO_LIKELY * (1 - np.eye(4)[:, :1])
WHICH_ONLY = np.where(IN_PAIRS > 0, 0.5 - HARDLY, HARDLY)
RING = np.array([[0.55, 0.45, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.3, 0.7], [0.7, 0, 0, 0.3]]).clip(1e-4)
RING = RING / RING.sum(1, keepdims=True)
SURER = np.concatenate([[[0.9, 0.0998, 1e-4, 1e-4]], RING[1:]])
TWO = np.array([[0.8, 0.2], [0.35, 0.65]])
THIRTY = np.random.default_rng(5).dirichlet(np.full(30, 0.2), size=30).clip(1e-3)
THIRTY = THIRTY / THIRTY.sum(1, keepdims=True)
ORDER_2 = np.array([[[0.9, 0.1], [0.1, 0.9]], [[0.2, 0.8], [0.6, 0.4]]])


SELDOM = np.array(  # the last state seldom comes, and rows of the others hardly depend on a slope
    [[0.5, 0.299, 0.2, 0.001], [0.2, 0.5, 0.299, 0.001], [0.3, 0.2, 0.499, 0.001], [0.3, 0.3, 0.3, 0.1]]
)
TURNS = np.array([[0.2, 0.6, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [0.1, 0.1, 0.2, 0.6], [0.6, 0.1, 0.1, 0.2]])
APART = np.array([[0.6, 0.398, 0.002], [0.4, 0.598, 0.002], [0.002, 0.002, 0.996]])


def with_row(table: Table, state: int, row: np.ndarray | Table) -> Table:
    """Returns a table with another row after one state."""
    changed = table.clone()
    changed[state] = torch.as_tensor(row)
    return changed


def by_pair(tables: Mapping[tuple[int, int], Table], elsewhere: Table) -> HookedDecoder:
    """Build an MLP that applies a table after some pairs of last states, earlier first, or another one."""
    n = len(elsewhere)
    cells = {
        (state, n + N_CTX + before): tables.get((before, state), elsewhere)[state]
        for before, state in product(range(n), repeat=2)
    }
    return of_cells(n, cells, seen=[lag(2)])


def equal(table: Table) -> dict[tuple[int, int], Table]:
    """Returns a table after each pair of equal states."""
    return {(state, state): table for state in range(len(table))}


@torch.no_grad()
def two_pairs(gains: Sequence[float], n: int = 3, n_ctx: int = LONG) -> HookedDecoder:
    """Build induction heads that each read a previous-token head of their own; one of gain 0 is not there."""
    states, at, out = torch.arange(n), torch.arange(n_ctx), 3 * n + n_ctx
    shape = {"n_layers": 2, "n_heads": 2, "d_model": out + n, "d_head": max(n + 1, n_ctx)}
    model = embedding_frame(n, n_ctx, positions=n, output=out, **shape)
    first, second = (block.attn for block in model.blocks)
    for head, gain in enumerate(gains):
        carried = n + n_ctx + n * head
        first.W_Q[head, n + at, (at - 1).clamp_min(0)] = SHARP
        first.W_K[head, n + at, at] = 1.0
        first.W_V[head, states, states] = 1.0
        if gain == 0:
            continue
        first.W_O[head, states, carried + states] = 1.0
        second.W_Q[head, states, states] = SHARP
        second.W_K[head, carried + states, states] = 1.0
        second.W_Q[head, states, n] = SHARP  # the first token has no predecessor
        second.W_K[head, n, n] = -2.0
        second.W_V[head, states, states] = 1.0
        second.W_O[head, states, out + states] = gain
    return model


@torch.no_grad()
def fed_by_two(against: float) -> HookedDecoder:
    """Build an induction head whose keys one head feeds, and another with a factor of the opposite."""
    model = induction_pair(3, LONG, gain=2.0, readers=2)
    first, second = (block.attn for block in model.blocks)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        getattr(first, name)[1] = getattr(first, name)[0]
    first.W_O[1] *= -against
    second.W_O[0] *= 2.0
    second.W_O[1] = 0.0
    return model


@torch.no_grad()
def composed(table: Table, n_ctx: int = N_CTX) -> HookedDecoder:
    """Build two heads that look one token back, the second at what the first writes: two back together."""
    n, at = len(table), torch.arange(n_ctx)
    out = n + n_ctx + n
    shape = {"n_layers": 2, "d_model": out + n, "d_head": max(n, n_ctx)}
    model = embedding_frame(n, n_ctx, positions=n, output=out, **shape)
    first, second = (block.attn for block in model.blocks)
    for attn in (first, second):
        attn.W_Q[0, n + at, torch.tensor(lag(2, n_ctx))] = SHARP
        attn.W_K[0, n + at, at] = 1.0
    first.W_V[0, :n, :n] = torch.eye(n)
    first.W_O[0, :n, n + n_ctx : out] = torch.eye(n)
    second.W_V[0, n + n_ctx : out, :n] = torch.eye(n)
    second.W_O[0, :n, out:] = table
    return model


def of_new_kinds() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    """Yields names, models (several are the steps of one run) and their sources."""
    yield from _of_rows()
    yield from _of_pairs()
    yield from _of_circuits()
    yield from _of_opposites()
    yield from _of_tokens()
    yield "always state 0, a bigram beneath", lambda: with_bias(direct_table(L, N_CTX), 30.0, 0, 0), Chain(P)
    steps = {
        "learned twice and lost twice": [NONE, L, NONE, L, NONE],
        "there at first, and fading": [L, 0.6 * L, 0.3 * L, 0.1 * L],
        "surer, and less sure again": [NONE, 0.5 * L, L, 0.5 * L, 0.2 * L],
    }
    turned = [torch.zeros(4, 4), log_of(TURNS).T.contiguous()]
    yield "comes to the chain backwards", lambda: [direct_table(one, N_CTX) for one in turned], Chain(TURNS)
    for name, tables in steps.items():
        yield name, partial(lambda tables: [direct_table(one, N_CTX) for one in tables], tables), Chain(P)


def _of_rows() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    thirty, two = log_of(THIRTY), log_of(TWO)
    yield "a row swapped, next to hardly possible ones", direct(log_of(SWAPPED)), Chain(TWO_LIKELY)
    yield "only which transitions are likely", direct(log_of(WHICH_ONLY)), Chain(TWO_LIKELY)
    yield "a row too sure on a ring, MLP", partial(mlp_table, log_of(SURER), N_CTX), Chain(RING)
    halves = partial(reading, [0 * L4], [OWN], direct=only_after(L4, [0, 1]), mlp=only_after(L4, [2, 3]))
    yield "two rows in the direct path, two in the MLP", halves, Chain(P4)
    unigram = with_row(thirty, 7, log_of(stationary(THIRTY)))
    yield "thirty states, the unigram after one", direct(unigram), Chain(THIRTY)
    yield "two states, the unigram after one", direct(with_row(two, 1, log_of(stationary(TWO)))), Chain(TWO)


def _of_opposites() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    wrong, seldom = L.flip(1), log_of(np.array([0.05, 0.05, 0.05, 0.85]))
    yield "a head and the direct path undo each other", partial(reading, [-L], [OWN], direct=L), Chain(P)
    yield "three times the direct path less two", partial(reading, [-2 * L], [OWN], direct=3 * L), Chain(P)
    yield "reversed where no 0 came before", partial(after_which, [L, wrong, wrong]), Chain(P)
    for factor in (0.4, 1.0):
        name = f"a previous-token head less {factor} of it"
        yield name, partial(fed_by_two, factor), DirichletChains(n_states=3)
    yield "a row swapped that seldom comes", direct(with_row(log_of(SELDOM), 3, seldom)), Chain(SELDOM)
    yield "only the row of a class apart", direct(only_after(log_of(APART), [2])), Chain(APART)


def _of_tokens() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    """Yields models on tokens of symbols, and such as are right from some position on, or disturb others."""
    pairs = Tokenised(source=Switch(p=0.8, q=0.6, lag=1), tokeniser={"kind": "strings", "length": 2})
    merged = Tokenised(
        source=Switch(p=0.8, q=0.7, lag=2),
        tokeniser={"kind": "merges", "merges": [["a", "b"], ["b", "a"]]},
    )
    table = log_of(pairs.P)
    yield "pairs of symbols, one row wrong", direct(with_row(table, 1, table[2])), pairs
    yield "merged symbols, the previous token", partial(value_table, log_of(merged.P), N_CTX, lag=2), merged
    late = [[0, 0, 0, 0, *range(4, N_CTX)]]
    yield "a head that begins at position 4", partial(reading, [L], late), Chain(P)
    disturbed = partial(_beside, partial(induction_pair, 3, LONG, gain=2.0), 0.5 * L)
    yield "half a table, disturbed by induction", disturbed, Chain(P)
    pair = partial(induction_pair, 4, LONG, gain=6.0, only_after=[0, 2])
    yield "two triggers", partial(_beside, pair, only_after(L4, [1, 3])), TriggerBigram(P4.tolist(), [0, 2])


def _beside(make: Callable[[], HookedDecoder], table: Table) -> HookedDecoder:
    return with_direct_table(make(), table)


def _of_pairs() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    two, kernel = log_of(TWO), log_of(ORDER_2)
    yield "two steps after two equal states", partial(by_pair, equal(TWO_STEPS), L), Chain(P)
    yield "bigram only after two equal states", partial(by_pair, equal(L), NONE), Chain(P)
    wrong = L.flip(1)
    yield "reversed after two pairs", partial(by_pair, {(0, 1): wrong, (2, 0): wrong}, L), Chain(P)
    yield "two states, reversed after different ones", partial(by_pair, equal(two), two.flip(1)), Chain(TWO)
    one_wrong = ORDER_2.copy()
    one_wrong[0, 1] = one_wrong[0, 1, ::-1]
    order_2 = OrderK(ORDER_2.tolist())
    yield "an order-two law, wrong after one pair", partial(n_gram_model, one_wrong, 16), order_2
    both = log_of(order_2.P)
    after_equal = {(state, state): with_row(both, state, kernel[state, state]) for state in range(2)}
    yield "trigram after two equal states", partial(by_pair, after_equal, both), order_2


def _of_circuits() -> Iterator[tuple[str, Make, mm.sources.Source]]:
    redrawn = DirichletChains(n_states=3)
    yield "two induction pairs side by side", partial(two_pairs, (1.0, 1.0)), redrawn
    yield "two induction pairs, one strong", partial(two_pairs, (2.0, 0.3)), redrawn
    gains = [(0.0, 0.0), (2.0, 0.0), (0.0, 0.0), (0.0, 2.0)]
    yield "induction moves to another pair", lambda: [two_pairs(one) for one in gains], redrawn
    yield "two heads that read the parent together", partial(composed, L), LaggedChain(P.tolist(), 3)
    counts = partial(reading, [3 * torch.eye(4)], [None], LONG)
    yield "counts of independent tokens", counts, Chain(np.tile([0.4, 0.3, 0.2, 0.1], (4, 1)))
