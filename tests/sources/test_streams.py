"""Counted numbers: SplitMix64 against integers of Python, what is drawn with them, and who sees which."""

import numpy as np
import pytest
import torch
from scipy import stats

import mechmarkov as mm
from mechmarkov.sources.sampling.paths import MAX_ENTRIES_GPU
from mechmarkov.sources.sampling.stacks import Counted, Generators, draws_of, group_of
from mechmarkov.sources.sampling.streams import GAMMA, PROPOSALS, Streams, mix, signed

CPU = torch.device("cpu")
P3 = ((0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.25, 0.25, 0.5))
SOURCES = [
    mm.Binary(p=0.2, q=0.3),
    mm.Circle(n_states=6, p=0.7),
    mm.DirichletChains(n_states=3),
    mm.DirichletChains(n_states=2, start="uniform", order=2),
    mm.sources.DoublyStochastic(n_states=2, law="uniform"),
    mm.sources.DoublyStochastic(n_states=3),
    mm.LaggedChain(lag=2, P=P3),
    mm.sources.SelectiveLag(P=P3, lags=[1, 3]),
    mm.OrderK(kernel=[[[0.9, 0.1], [0.3, 0.7]], [[0.6, 0.4], [0.2, 0.8]]]),
    mm.HiddenMarkov(transitions=P3, emissions=P3),
    mm.sources.Tokenised(
        source=mm.Binary(p=0.2, q=0.3), tokeniser={"kind": "merges", "merges": [["a", "a"]]}
    ),
    mm.sources.HiddenMixture(
        tasks=[{"transitions": P3, "emissions": P3}, {"transitions": P3[::-1], "emissions": P3}]
    ),
    mm.sources.FactoredHiddenMarkov(factors=[{"transitions": P3, "emissions": P3}] * 2),
    mm.sources.GeneralisedHiddenMarkov.qubit(turn=0.7, strength=0.6),
    mm.sources.ContextTree(leaves=[{"context": [i], "law": row} for i, row in enumerate(P3)]),
    mm.sources.ContextTrees(n_states=2, depth=2),
    mm.sources.ChainMixture(chains=[P3, P3[::-1]]),
    mm.sources.RelabelledGraph(graph={"edges": [[0, 1], [1, 2]], "n_states": 3}, endpoint=0, at=4),
    mm.sources.TriggerBigram(P=P3, triggers=[0]),
    mm.sources.ContextConditionedChain(P=P3),
    mm.sources.TriggerBigram(P=[[0.2, 0.5, 0.3]] * 3, triggers=[0], start="stationary"),
    mm.Observed("the cat sat on the mat. " * 40, order=1),
]
NAMES = [f"{source.kind} {i}" for i, source in enumerate(SOURCES)]
ORDER_2 = ([[0.9, 0.1], [0.3, 0.7]], [[0.6, 0.4], [0.2, 0.8]])


def splitmix64(seed, count):
    """Vigna's reference code, in integers of Python."""
    word, found = 2**64, []
    for _ in range(count):
        seed = (seed + GAMMA) % word
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % word
        found.append(z ^ (z >> 31))
    return found


@pytest.mark.parametrize("seed", [0, 1234567, 2**63, 2**64 - 1])
def test_the_bijection_is_splitmix64(seed):
    states = torch.tensor([signed((seed + k * GAMMA) % 2**64) for k in range(1, 9)])
    assert [int(z) % 2**64 for z in mix(states)] == splitmix64(seed, 8)


def test_published_outputs():
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_number_is_a_function_of_its_place():
    """The row's key is the seed's output at the row, moved by the draw; its outputs are the columns."""
    numbers = Streams([7, 2**63 + 5], CPU, start=3, rows=2)
    numbers.uniform(4, 1)
    second = numbers.uniform(4, 2, 3)
    for member, seed in enumerate([7, 2**63 + 5]):
        for i, row in enumerate((3, 4)):
            key = splitmix64(splitmix64(seed, row + 1)[-1] + (2 - 1) * GAMMA, 1)[0]
            expected = [(z >> 11) * 2.0**-53 for z in splitmix64(key, 6)]
            assert second[2 * member + i].flatten().tolist() == expected


def test_rows_that_do_not_belong_to_members_are_refused():
    with pytest.raises(ValueError, match="5 rows are drawn, expected a multiple of 2 members of 2"):
        Streams([1, 2], CPU, rows=2).uniform(5)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_a_member_has_what_it_has_alone_in_any_stack_and_any_chunk(source):
    together = Counted([source] * 3, [5, 6, 7], 12, CPU).draw(0, 20)
    alone = Counted([source], [6], 12, CPU)
    assert torch.equal(torch.cat([alone.draw(0, 8), alone.draw(8, 12)], 1)[0], together[1])
    assert not torch.equal(together[0], together[1])


def test_chains_that_differ_are_drawn_together_as_each_alone():
    sources = [mm.Binary(p=0.2, q=0.3), mm.Chain(P=[[0.3, 0.7], [0.6, 0.4]]), mm.Binary(p=0.9, q=0.1)]
    sources += [mm.Chain(P=[[0.5, 0.5], [0.1, 0.9]]), mm.Chain(P=[[0.3, 0.7], [0.6, 0.4]])]
    together = Counted(sources, range(5), 30, CPU).draw(4, 6)
    for i, source in enumerate(sources):
        assert torch.equal(Counted([source], [i], 30, CPU).draw(4, 6)[0], together[i])


@pytest.mark.parametrize(
    "sources",
    [
        [mm.Circle(n_states=5, p=p) for p in (0.1, 0.7, 0.7, 1.0)],
        [mm.OrderK(kernel=kernel) for kernel in (ORDER_2, ORDER_2[::-1], ORDER_2)],
        [
            mm.OrderK(kernel=ORDER_2),
            mm.OrderK(kernel=ORDER_2[0]),
            mm.Binary(p=0.2, q=0.3),
            mm.Circle(n_states=3, p=0.2),
        ],
    ],
    ids=["circles", "of order 2", "of several kinds"],
)
@pytest.mark.parametrize("length", [1, 2, 40])
def test_members_that_differ_have_what_each_has_alone(sources, length):
    together = Counted(sources, range(len(sources)), length, CPU).draw(4, 6)
    for i, source in enumerate(sources):
        assert torch.equal(Counted([source], [i], length, CPU).draw(4, 6)[0], together[i])


def test_sources_of_a_kind_that_stacks_are_one_group():
    circles = [mm.Circle(n_states=5, p=p) for p in (0.1, 0.7)]
    orders = [mm.OrderK(kernel=ORDER_2), mm.OrderK(kernel=ORDER_2[::-1])]
    chains = [mm.Binary(p=0.2, q=0.3), mm.Chain(P=[[0.3, 0.7], [0.6, 0.4]])]
    hidden = [mm.DirichletChains(n_states=3), mm.DirichletChains(n_states=3, concentration=2.0)]
    groups = [len({group_of(source) for source in pair}) for pair in (circles, orders, chains, hidden)]
    assert groups == [1, 1, 1, 2]


def test_a_chunk_is_as_long_as_its_widest_numbers_allow():
    """Twelve proposals a number of a fresh chain are more than a sequence's own states; one is not."""
    source = mm.DirichletChains(n_states=20, concentration=0.5)
    counted = Counted([source] * 256, range(256), 65, CPU)
    assert counted.steps_at_once(16) == MAX_ENTRIES_GPU // (256 * 16 * 20 * 20 * PROPOSALS) == 6
    exponential = Counted([mm.DirichletChains(n_states=20)] * 256, range(256), 65, CPU)
    assert exponential.steps_at_once(16) == MAX_ENTRIES_GPU // (256 * 16 * 20 * 65) == 25
    assert Counted([mm.Binary(p=0.2, q=0.3)] * 256, range(256), 65, CPU).steps_at_once(16) == 64


def test_uniform_numbers_are_uniform_and_independent_of_their_neighbours():
    """Along columns, rows, draws and members; 16 cells of pairs, at a level of 0.001 each."""
    numbers = Streams([0, 1], CPU, rows=100)
    one, two = numbers.uniform(200, 100).view(2, 100, 100), numbers.uniform(200, 100).view(2, 100, 100)
    pairs = {"column": (one[..., :-1], one[..., 1:]), "row": (one[:, :-1], one[:, 1:])}
    pairs |= {"draw": (one, two), "member": (one[0], one[1])}
    for name, (a, b) in pairs.items():
        cells = (4 * a).long() * 4 + (4 * b).long()
        assert stats.chisquare(torch.bincount(cells.flatten(), minlength=16)).pvalue > 1e-3, name
    assert stats.kstest(one.flatten(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("concentration", [0.1, 0.5, 1.0, 3.0])
def test_gamma_variables_have_their_law(concentration):
    found = Streams([0], CPU, rows=100_000).log_gamma((100_000, 2), concentration)
    assert stats.kstest(found.flatten().numpy(), stats.loggamma(concentration).cdf).pvalue > 1e-3


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_sequences_have_the_law_of_those_of_generators(source):
    """Counts of the last three tokens, by a χ² test of both samples."""
    length, K = 6, source.n_states
    found = []
    for draws in (Counted, Generators):
        tokens = draws([source] * 2, [1, 2], length, CPU).draw(0, 2000).flatten(0, 1)[:, -3:]
        cells = (tokens * torch.tensor([K * K, K, 1])).sum(1)
        found.append(torch.bincount(cells, minlength=K**3).numpy())
    table = np.array(found)
    assert stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue > 1e-3


def test_the_processor_has_generators_and_a_source_of_another_package_keeps_them():
    assert isinstance(draws_of([SOURCES[0]], [0], 4, CPU), Generators)

    class Own(mm.Binary):
        def sample(self, batch, length, *, generator, device="cpu"):
            return torch.zeros(batch, length, dtype=torch.int64)

    assert mm.Binary.takes_streams
    assert not Own.takes_streams
