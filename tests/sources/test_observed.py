"""`Observed` against chains whose law is known: kernel, order, held-out blocks, files and refusals."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from enumeration import generator

import mechmarkov as mm
from mechmarkov.sources.estimation.estimate import CONCENTRATIONS, MAX_ORDER
from mechmarkov.sources.estimation.homogeneity import OneLawWarning
from mechmarkov.sources.observed import Observed
from mechmarkov.theory import predictors

TEXT = "the cat sat on the mat. " * 20
THREE = np.random.default_rng(0).dirichlet(np.ones(3), 3)
SECOND = np.random.default_rng(1).dirichlet(np.ones(3), (3, 3)).tolist()
SOURCES = {0: mm.Chain(np.tile(THREE[0], (3, 1))), 1: mm.Chain(THREE), 2: mm.OrderK(SECOND)}


def drawn(source, n, seed=0):
    return source.sample(1, n, generator=generator(seed))[0]


@pytest.mark.parametrize("order", SOURCES)
def test_the_order_of_a_known_law_is_chosen(order):
    """All of 20 samples; the order of the lowest loss alone would be wrong for each of the three."""
    assert [Observed(drawn(SOURCES[order], 4000, seed)).order for seed in range(20)] == [order] * 20


@pytest.mark.parametrize("n_states", [2, 6, 20])
@pytest.mark.parametrize("n", [120, 600, 5000])
def test_a_deterministic_cycle_is_of_order_1(n_states, n):
    """What the smoothing of order 1 leaves is less at every higher order, in every block."""
    source = Observed(np.arange(n) % n_states)
    assert source.title() == f"Order-1 law of {n_states} states, estimated from {n} tokens"
    assert source.choice.losses[0] > 0.6
    assert 0 < source.choice.losses[2] < source.choice.losses[1] < 0.2 * n_states / n


def test_independent_symbols_never_get_a_higher_order():
    """Of 60 samples from 60 laws."""
    orders = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n_states = [2, 5, 30][seed % 3]
        tokens = rng.choice(n_states, 1500, p=rng.dirichlet(np.ones(n_states)))
        orders.append(Observed(tokens, alphabet=range(n_states)).order)
    assert orders == [0] * 60


@pytest.mark.repeated
def test_the_kernel_is_in_its_interval_as_often_as_stated():
    """95 % and 50 % of the entries, over 60 chains; the error of each share is below 0.02."""
    for level, least, most in ((0.95, 0.92, 0.98), (0.5, 0.44, 0.56)):
        inside = []
        for seed in range(60):
            P = np.random.default_rng(seed).dirichlet(np.ones(4), 4)
            low, high = Observed(drawn(mm.Chain(P), 3000, seed), order=1).kernel_interval(level)
            inside.append(((low <= P) & (high >= P)).mean())
        assert least < np.mean(inside) < most


def test_the_kernel_comes_nearer_with_more_data():
    far = [np.abs(Observed(drawn(SOURCES[1], n), order=1).P - THREE).max() for n in (300, 30_000)]
    assert far[1] < 0.02 < far[0]


@pytest.mark.parametrize("data", [[[0, 0], [0, 1], [1, 1], [1, 0]] * 50, [[0, 1, 1]] * 50])
def test_an_order_for_which_no_sequence_is_long_enough_is_refused_in_one_line(data):
    with pytest.raises(ValueError, match="order is 3, but no sequence or block to estimate from"):
        Observed(data, order=3)


def test_laws_by_counting_with_a_loop():
    """The hierarchical posterior mean and add-one, spelled out for every position of some sequences."""
    source = Observed(TEXT, order=2)
    blocks, K = source.blocks, source.n_states
    counts = [{}, {}, {}]
    for t in range(len(blocks.states)):
        for j in range(3):
            if source.training_blocks[blocks.block[t]] and blocks.place[t] >= j:
                history = tuple(blocks.states[t - j : t])
                counts[j].setdefault(history, np.zeros(K))[blocks.states[t]] += 1
    tokens = source.sample_held_out(3, 9, generator=generator()).numpy()
    tokens[0, 4] = 0  # histories that never occurred
    for smoothing in (source.smoothing, "add_one"):
        made = source.model_copy(update={"smoothing": smoothing})
        found = made.predictors()["order_2"].probabilities(tokens)
        for i, t in np.ndindex(tokens.shape):
            law = np.full(K, 1 / K)
            for j in range(min(t + 1, 2) + 1):
                seen = counts[j].get(tuple(tokens[i, t + 1 - j : t + 1]), np.zeros(K))
                if smoothing == "add_one":
                    law = (seen + 1) / (seen.sum() + K) if seen.sum() else law
                else:
                    law = (seen + smoothing[j] * law) / (seen.sum() + smoothing[j])
            assert np.allclose(found[i, t], law, atol=1e-12)
    bigram = source.predictors()["bigram"].probabilities(tokens)
    assert np.allclose(bigram, predictors.bigram(tokens, source.P))


def test_the_choice_is_of_the_smallest_loss_on_held_out_blocks():
    """The losses by an independent loop over folds, order 1, at the chosen concentrations and at others."""
    source = Observed(drawn(SOURCES[1], 600), order=1)
    choice, blocks = source.choice, source.blocks
    train = np.flatnonzero(source.training_blocks)
    at = [t for t in range(600) if source.training_blocks[blocks.block[t]] and blocks.place[t] >= MAX_ORDER]

    def loss(smoothing):
        total = 0.0
        for fold in range(5):
            held = {block for number, block in enumerate(train) if number % 5 == fold}
            one, two = np.zeros(3), np.zeros((3, 3))
            for t in range(600):
                if source.training_blocks[blocks.block[t]] and blocks.block[t] not in held:
                    one[blocks.states[t]] += 1
                    if blocks.place[t]:
                        two[blocks.states[t - 1], blocks.states[t]] += 1
            law = (one + smoothing[0] / 3) / (one.sum() + smoothing[0])
            rows = (two + smoothing[1] * law) / (two.sum(1, keepdims=True) + smoothing[1])
            total -= sum(
                np.log(rows[blocks.states[t - 1], blocks.states[t]]) for t in at if blocks.block[t] in held
            )
        return total / len(at)

    assert choice.order == 1
    if choice.smoothing is not None:
        assert loss(choice.smoothing) == pytest.approx(choice.losses[1], abs=1e-10)
    others = [loss((*(choice.smoothing or (1.0,))[:1], a)) for a in CONCENTRATIONS]
    assert choice.losses[1] <= min(others) + 1e-10
    assert choice.errors[1] == 0
    assert choice.errors[0] > 0


def test_held_out_blocks_are_not_counted_and_not_sampled_for_training():
    text = "ab" * 400
    source = Observed(text, order=1, block=20)
    held = ~source.training_blocks
    assert held.sum() == 8
    assert source.estimate.counts(0).sum() == 32 * 20
    assert source.estimate.counts(1).sum() == 32 * 19
    number = np.arange(800) % 400  # a text whose symbols say where they stand
    places = Observed(np.where(number < 400, number, 0), order=0, block=20)
    block = np.arange(800) // 20
    for batch, chosen in (
        (places.sample(500, 7, generator=generator()), block % 5 != 4),
        (places.sample_held_out(500, 7, generator=generator()), block % 5 == 4),
    ):
        seen = set(batch.flatten().tolist())
        assert seen <= set(number[chosen].tolist())
        assert (batch.diff(dim=1) == 1).all()  # no stretch runs over the end of a block
    held_out = places.sample_held_out(500, 7, generator=generator())
    assert len(held_out) == 8 * 2  # two stretches in each block, each once
    assert len(held_out.unique(dim=0)) == 8  # the second half of the text repeats the first
    assert torch.equal(held_out, places.sample_held_out(500, 7, generator=generator()))


def test_the_last_tenth_is_what_nanogpt_holds_out():
    source = Observed(np.arange(1000) % 500, order=0, held_out="last_tenth")
    assert source.tokens[np.repeat(source.training_blocks, 20)].tolist() == (np.arange(900) % 500).tolist()


def test_sequences_are_not_joined():
    sequences = [[0, 1] * 10, [1, 1, 0] * 7] * 6
    with pytest.warns(OneLawWarning, match="do not look like draws of one law of order 1"):
        source = Observed(sequences, order=1)
    pairs = source.estimate.counts(1).sum() + source.blocks.place.tolist().count(0)
    with pytest.warns(OneLawWarning):
        whole = Observed(sequences, order=1, held_out="last_tenth")
    assert whole.lengths == (20, 21) * 6
    assert pairs <= len(source.tokens)
    assert not {0, 1} - set(whole.tokens.tolist())
    joined = [end for end in np.cumsum(source.lengths)[:-1] if source.blocks.place[end] != 0]
    assert joined == []


@pytest.mark.parametrize("order", range(MAX_ORDER + 1))
def test_laws_are_laws_and_the_source_is_plain_data(order):
    source = Observed(TEXT, order=order)
    assert mm.sources.source_from_data(source.model_dump(mode="json")) == source
    assert np.allclose(source.P.sum(1), 1)
    assert np.allclose(source.pi @ source.P, source.pi)
    tokens = source.sample(4, 8, generator=generator()).numpy()
    for rule in source.predictors().values():
        probabilities = rule.probabilities(tokens)
        assert probabilities.shape == (4, 8, source.n_states)
        assert np.allclose(probabilities.sum(-1), 1)
        assert rule.exact == (rule.name == "uniform")
        assert ("estimated" in rule.label) == (rule.name != "uniform")
    for m in range(4):
        assert np.allclose(source.step_law(m).sum(1), 1)
    again = source.resampled(3)
    assert again.order == order
    assert again == source  # as data: the draw is not kept
    assert np.array_equal(again.P, source.resampled(3).P)
    assert not np.array_equal(again.pi, source.pi)
    if order == 0:
        assert np.allclose(source.P, source.pi)


def test_the_same_states_from_every_kind_of_data(tmp_path):
    states = drawn(SOURCES[1], 200).tolist()
    expected = Observed(states, order=1)
    table = pd.DataFrame({"state": states, "row": range(200)})
    table.to_csv(tmp_path / "A.CSV", index=False)  # whatever the case of its name
    table.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    table.to_parquet(tmp_path / "a.parquet")
    np.save(tmp_path / "a.npy", np.array(states))
    for tokens in (np.array(states, dtype=np.uint16), torch.tensor(states), table["state"], tuple(states)):
        assert Observed(tokens, order=1) == expected
    for name in ("A.CSV", "a.tsv", "a.parquet"):
        assert Observed.read(tmp_path / name, column="state", order=1) == expected
    assert Observed.read(tmp_path / "a.npy", order=1) == expected


def test_texts_by_character_and_by_word(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    characters = Observed.read(tmp_path / "a.txt")
    assert characters == Observed(TEXT)
    assert characters.names == tuple(sorted(set(TEXT)))
    assert characters.labels[0] == "␣"
    words = Observed.read(tmp_path / "a.txt", unit="word")
    assert words.names == (".", "cat", "mat", "on", "sat", "the")
    assert len(words.tokens) == 20 * 7
    (tmp_path / "a.txt").write_text(TEXT, "utf-8-sig")  # as some editors save it
    assert Observed.read(tmp_path / "a.txt") == characters
    wider = Observed(TEXT, alphabet="zyx" + "".join(words_of(TEXT)))
    assert wider.names[:3] == ("z", "y", "x")


def words_of(text):
    return sorted(set(text))


def test_rare_states_become_one_by_choice():
    tokens = np.random.default_rng(0).zipf(1.5, 20_000) - 1
    with pytest.raises(
        ValueError, match=r"^tokens go up to \d+, expected at most 2000 states: max_states=2000"
    ):
        Observed(tokens)
    source = Observed(tokens, max_states=50, order=1)
    assert source.n_states == 50
    assert source.names[-1] == "<rest>"
    share = 1 - np.sort(np.unique(tokens, return_counts=True)[1])[-49:].sum() / 20_000
    assert (source.tokens == 49).mean() == pytest.approx(share)
    assert f"({share:.1%} in <rest>)" in source.title()
    words = [f"word {number}" for number in range(2500)] * 2
    with pytest.raises(ValueError, match=r"^tokens have 2500 different states, expected at most 2000: max_"):
        Observed(words, each="state")


def test_a_table_whose_empty_lines_are_gaps(tmp_path):
    (tmp_path / "a.csv").write_text("state\n" + "0\n1\n\n" * 50)
    with pytest.raises(ValueError, match=r"^tokens\[2\] is None, expected a state at every place: at a gap"):
        Observed.read(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("state\n" + "NA\nnull\n" * 60)
    assert Observed.read(tmp_path / "a.csv", each="state", order=1).names == ("NA", "null")


def test_a_row_that_belongs_to_no_sequence_is_refused(tmp_path):
    """Left out, it would join the rows around it."""
    (tmp_path / "a.csv").write_text("state,who\n" + "0,a\n1,a\n1,\n0,a\n" * 60)
    with pytest.raises(ValueError, match=r"^who\[2\] is missing, expected the sequence of every row$"):
        Observed.read(tmp_path / "a.csv", sequence="who")


@pytest.mark.parametrize("suffix", ["npy", "parquet", "csv"])
def test_a_table_that_cannot_be_read_is_named(tmp_path, suffix):
    (tmp_path / f"a.{suffix}").write_bytes(b"")
    with pytest.raises(ValueError, match=rf"^a.{suffix} cannot be read: .*; expected a sound"):
        Observed.read(tmp_path / f"a.{suffix}")


def test_options_that_make_no_sense(tmp_path):
    for options, message in (
        ({"order": 6}, "order is 6, expected an integer from 0 to 5"),
        ({"order": True}, "order is True, expected an integer from 0 to 5"),
        ({"max_state": 9}, "Observed has no option 'max_state', expected one of order, alphabet,"),
        ({"alphabet": "the cason"}, r"tokens\[19\] is 'm', expected one of the 9 symbols of alphabet"),
        ({"alphabet": "tthe caonsm."}, "alphabet has 12 symbols of which 11 differ, expected no repeats"),
        ({"max_states": 1}, "max_states is 1, expected an integer from 2 to 2000"),
        ({"held_out": "all"}, "held_out is 'all', expected 'every_fifth' or 'last_tenth'"),
        ({"block": 0}, "block is 0, expected an integer from 2 to 2000000"),
        ({"block": 2_000_001}, "block is 2000001, expected an integer from 2 to 2000000"),
        ({"block": 200}, "Observed: block is 200, which makes 2 blocks of 480 states, expected at least 5"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            Observed(TEXT, **options)
    with pytest.raises(ValueError, match=r"^tokens\[2\] is 2, expected below 2, the size of alphabet$"):
        Observed([0, 1, 2] * 50, alphabet="ab")
    source = Observed(TEXT, block=24)
    with pytest.raises(ValueError, match=r"^length is 25, expected at most 24, .* Observed\(…, block=25\)"):
        source.sample(1, 25, generator=generator())
    with pytest.raises(ValueError, match="order is 0, expected at least 1"):
        Observed(TEXT, order=0).kernel_interval()
    assert Observed(TEXT, order=np.int64(1)) == Observed(TEXT, order=1)
    pd.DataFrame({"a": [1], "b": [2]}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(
        ValueError,
        match=r'^column is None, expected one of a, b: column="b" takes that one; '
        r'column="b", sequence="a" takes it with a sequence for each a$',
    ):
        Observed.read(tmp_path / "a.csv")
    for lines in (["A", "B"], ["0", "1"]):
        (tmp_path / "a.csv").write_text("\n".join(lines * 60))
        with pytest.raises(
            ValueError, match=rf"^the first line of a.csv is '{lines[0]}', which is a state below: expected"
        ):
            Observed.read(tmp_path / "a.csv")
        assert len(Observed.read(tmp_path / "a.csv", column=lines[0], order=1).tokens) == 119
    pd.DataFrame({"0": [0, 1] * 60}).to_parquet(tmp_path / "a.parquet")
    assert len(Observed.read(tmp_path / "a.parquet", order=1).tokens) == 120
    (tmp_path / "a.txt").write_text(TEXT)
    for field in ("column", "sequence"):
        with pytest.raises(ValueError, match=f"^{field} is 'who', expected none for a.txt, which is a text$"):
            Observed.read(tmp_path / "a.txt", **{field: "who"})


DATA = Observed(TEXT, order=1).model_dump(mode="json")
BROKEN = [
    ({"states": "§"}, "states is not base64"),
    (
        {"states": DATA["states"][:-4]},
        r"states are 477 bytes, expected 1 for each of the 480 states in lengths",
    ),
    ({"lengths": [480, 0]}, "states are 480 bytes"),
    ({"names": DATA["names"][:3]}, r"states hold \d+, expected below 3"),
    ({"names": ["a"] * len(DATA["names"])}, "names has repeats"),
    ({"smoothing": [1.0]}, "smoothing has 1 entries, expected 2"),
    ({"smoothing": [1.0, -1.0]}, "smoothing holds -1.0, expected concentrations above 0"),
    ({"order": 9}, "order"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_lies_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        mm.sources.source_from_data({**DATA, **change})


def test_a_path_is_not_read_as_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.txt").write_text("01" * 99)
    with pytest.raises(ValueError, match=r"at least 100; of the file of this name: Observed.read\('s.txt'\)"):
        Observed("s.txt")
    with pytest.raises(ValueError, match=r"a path: Observed.read\(path\) reads a file$"):
        Observed(Path("s.txt"))
