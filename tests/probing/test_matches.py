"""Matches and what lag and tokens say of them, against loops and on data where one of the two tells."""

from itertools import product

import numpy as np
import pytest
import torch
from mechmarkov.probes.induction import matches as module
from mechmarkov.probes.induction.matches import Matches, find_matches, sequences_for

from mechmarkov.probing.batch import Batch
from mechmarkov.sources import DirichletChains


def batch_of(states: torch.Tensor, *, query: bool = False, last: bool = False) -> Batch:
    history = states
    tokens = torch.cat([history, torch.full_like(history[:, :1], 9)], 1) if query else history
    n = history.shape[1]
    known = torch.tensor([n - 1]) if query or last else torch.arange(n)
    return Batch(tokens, history, history, known + query, known)


def random_states(n: int, length: int) -> torch.Tensor:
    return torch.randint(0, 3, (n, length), generator=torch.Generator().manual_seed(0))


def matched(x: list[int], t: int, s: int, k: int) -> bool:
    return s >= k and t >= k - 1 and all(x[s - j] == x[t - j + 1] for j in range(1, k + 1))


def by_hand(batch: Batch, window: int | None, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Match and surprise in loops and dictionaries."""
    n, real = batch.history.shape
    rows = list(zip(batch.read.tolist(), batch.known.tolist(), strict=True))
    match = np.zeros((n, len(rows), real))
    surprise = np.zeros_like(match)
    counted = []  # sequence, row, key
    for b, x in enumerate(batch.history.tolist()):
        for r, (q, t) in enumerate(rows):
            seen = [s for s in range(t + 1) if window is None or q - s <= window]
            alike = [s for s in seen if s >= k and t >= k - 1 and (k == 1 or matched(x, t, s, k - 1))]
            match[b, r, [s for s in alike if matched(x, t, s, k)]] = 1
            if match[b, r].any():
                counted += [(b, r, s) for s in alike]
    surprise = match.copy()

    def centre(values: np.ndarray) -> np.ndarray:
        out = np.zeros_like(values)
        for b, r, s in counted:
            x = batch.history[b].tolist()
            same = [j for (i, p, j) in counted if (i, p) == (b, r) and x[j] == x[s]]
            out[b, r, s] = values[b, r, s] - np.mean([values[b, r, j] for j in same])
        return out

    def cell(b: int, r: int, s: int) -> tuple[int, ...]:
        t = rows[r][1]
        tokens = int(batch.history[b, t]), int(batch.history[b, s])
        return (t - s, *tokens) if n * len(rows) >= 2 * module.PAIRS_A_CELL * 9 else (t - s,)

    surprise = centre(surprise)
    for _ in range(module.ROUNDS):
        lag = np.zeros_like(surprise)
        for b, r, s in counted:
            alike = [where for where in counted if cell(*where) == cell(b, r, s)]
            lag[b, r, s] = np.mean([surprise[where] for where in alike])
        surprise = surprise - centre(lag)
    return match, surprise


@pytest.mark.parametrize(
    ("window", "reading", "pairs"),
    [
        *product((None, 3), ({}, {"last": True}, {"query": True}), [0]),
        (None, {}, 16),
        (3, {"query": True}, 16),
    ],
)
def test_matches_and_surprises_are_those_of_loops(monkeypatch, window, reading, pairs):
    monkeypatch.setattr(module, "PAIRS_A_CELL", pairs)
    batch = batch_of(random_states(4, 7), **reading)
    found = find_matches(batch, 3, window=window)
    for k in (1, 2, 3):
        match, surprise = by_hand(batch, window, k)
        assert np.array_equal(found.match[k - 1].numpy(), match)
        assert found.surprise[k - 1].numpy() == pytest.approx(surprise, abs=1e-6)
    assert np.array_equal(found.count.numpy(), found.match.numpy().sum(-1))
    assert np.array_equal(found.queries.numpy(), (found.match.numpy().sum(-1) > 0).sum(-1))


def test_the_ideal_pattern_is_uniform_on_matches():
    found = find_matches(batch_of(random_states(5, 9)), 3)
    total = found.uniform.sum(-1)
    assert set(total.unique().tolist()) <= {0.0, 1.0} or total[total > 0] == pytest.approx(1)
    assert bool(((found.uniform > 0) == (found.match > 0)).all())


def score(found: Matches, pattern: torch.Tensor, k: int = 1) -> tuple[float, float]:
    """The induction score of a pattern `[batch, query, key]`, and its standard error over sequences."""
    sums = (pattern * found.surprise[k - 1]).double().sum((-2, -1))
    queries = found.queries[k - 1]
    value = float(sums.sum() / queries.sum())
    off = sums - value * queries
    return value, float(off.square().sum().sqrt() / queries.sum())


def causal_softmax(logits: torch.Tensor) -> torch.Tensor:
    length = logits.shape[-1]
    return logits.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1)


CHAINS = DirichletChains(n_states=3).sample(300, 24, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("seed", range(4))
def test_a_head_that_only_sees_tokens_scores_nothing_whatever_the_sequence(seed):
    """Among others one that avoids copies: it is where matches are in sequences of mostly one state."""
    table = 2 * torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
    if seed == 0:
        table = -5 * torch.eye(3)
    found = find_matches(batch_of(CHAINS), 3)
    pattern = causal_softmax(table[CHAINS[:, :, None], CHAINS[:, None, :]])
    for k in (1, 2, 3):
        assert abs(score(found, pattern, k)[0]) < 1e-6
    assert score(found, found.uniform[0])[0] > 0.3


@pytest.mark.parametrize("k", [2, 3])
def test_a_head_that_matches_one_token_fewer_scores_nothing(k):
    found = find_matches(batch_of(CHAINS), 3)
    assert abs(score(found, found.uniform[k - 2], k)[0]) < 1e-6
    assert score(found, found.uniform[k - 1], k)[0] > 0.15
    assert score(found, found.uniform[k - 1], 1)[0] > 0.15


def second_order(n: int, length: int) -> torch.Tensor:
    """Each token copies the one two back with probability 0.8, whatever the last."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, 3, (n, length), generator=generator)
    for t in range(2, length):
        copied = torch.rand(n, generator=generator) < 0.8
        x[:, t] = torch.where(copied, x[:, t - 2], x[:, t])
    return x


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
@pytest.mark.parametrize("order", [1, 2])
def test_a_head_that_only_sees_lags_scores_nothing_on_average(lag, order):
    x = CHAINS if order == 1 else second_order(300, 24)
    found = find_matches(batch_of(x), 3)
    position = torch.arange(24)
    pattern = causal_softmax(30.0 * (position[:, None] - position == lag)).expand(len(x), -1, -1)
    for k in (1, 2, 3):
        value, error = score(found, pattern, k)
        assert abs(value) < 4 * error + 0.002


def test_a_chain_of_second_order_tells_by_lag_and_tokens_alone_would_not_see_it(monkeypatch):
    x = second_order(300, 24)
    position = torch.arange(24)
    previous = causal_softmax(30.0 * (position[:, None] - position == 1)).expand(len(x), -1, -1)
    corrected = score(find_matches(batch_of(x), 3), previous)
    monkeypatch.setattr(module, "ROUNDS", 0)
    by_tokens = score(find_matches(batch_of(x), 3), previous)
    assert by_tokens[0] > 0.1
    assert abs(corrected[0]) < 0.003


def test_where_data_are_few_lag_alone_is_told_apart():
    few, many = second_order(12, 16), second_order(60, 16)  # 2 * 16 * 9 = 288 queries divide the two
    position = torch.arange(16)
    for x in (few, many):
        previous = causal_softmax(30.0 * (position[:, None] - position == 1)).expand(len(x), -1, -1)
        found = find_matches(batch_of(x), 3)
        assert abs(score(found, previous)[0]) < 0.01
        pairs = torch.ones(16, 16).tril().nonzero(as_tuple=True)
        assert int(module._cells(batch_of(x), *pairs, 3).max()) == (15 if x is few else 15 * 9 + 8)


@pytest.mark.parametrize(
    ("length", "last", "expected"), [(4, False, 40), (600, False, 8), (200, False, 40), (600, True, 40)]
)
def test_memory_is_bounded(length, last, expected):
    assert sequences_for(batch_of(torch.zeros(40, length, dtype=torch.long), last=last)) == expected
