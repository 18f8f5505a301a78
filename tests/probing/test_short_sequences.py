"""Sequences that are no longer than the context: what they reach is evaluated, and the result says so."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from probing_cases import RAW_LOG, config_of, random_run, randomise

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.models import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing import Subject
from mechmarkov.sources.estimation import stretches
from mechmarkov.sources.estimation.estimate import Blocks
from mechmarkov.sources.estimation.homogeneity import OneLawWarning
from mechmarkov.sources.observed import Observed

CHAIN = mm.Chain([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
LENGTH = 12


def sequences(number=60, length=LENGTH, seed=0):
    return CHAIN.sample(number, length, generator=torch.Generator().manual_seed(seed)).numpy()


def decoder(n_ctx=LENGTH, **changes):
    return randomise(HookedDecoder(config_of(n_ctx=n_ctx, **changes)))


@pytest.mark.parametrize("number", [20, 60, 400])
@pytest.mark.parametrize("n_ctx", [LENGTH, 3 * LENGTH, 1024])
def test_a_run_evaluates_on_sequences_as_long_as_its_context_or_shorter(number, n_ctx):
    rows = sequences(number)
    run = mm.Run.from_model(decoder(n_ctx), source=Observed(rows, order=1))
    assert run.config.n_ctx == n_ctx
    batch = Subject.of(run).batch
    assert batch.tokens.shape == (number // 5, LENGTH - 1)
    assert batch.read.tolist() == batch.known.tolist() == list(range(LENGTH - 1))
    assert {tuple(row) for row in batch.states.tolist()} <= {tuple(row) for row in rows.tolist()}
    assert torch.equal(batch.targets, batch.states[:, 1:])


@pytest.mark.usefixtures("few_nulls")
def test_every_probe_answers_and_the_result_says_what_was_read():
    run = mm.Run.from_model(decoder(), source=Observed(sequences(), order=1))
    result = mm.probe(run, sequences=20, law_draws=2)
    assert result.failed == {}
    assert {"behaviour", "attention", "alignment", "induction", "ablation", "storage", "program"} <= set(
        result
    )
    said = [warning for warning in result.warnings if "next state to predict" in warning]
    assert said == [
        "the sequences have 12 states, so that 11 positions have a next state to predict: "
        "the last 1 of the context are not evaluated"
    ]
    assert result.metadata["evaluation"]["positions"] == LENGTH - 1
    whole = mm.probe(mm.Run.from_model(decoder(LENGTH - 1), source=run.source), ["behaviour"], law_draws=0)
    assert not any("next state to predict" in warning for warning in whole.warnings)
    assert "positions" not in whole.metadata["evaluation"]


def test_the_scores_are_those_of_a_context_that_fits():
    """The model cut to its first 11 positions reads the same sequences in the same way."""
    source, long = Observed(sequences(), order=1), decoder()
    short = HookedDecoder(config_of(n_ctx=LENGTH - 1))
    short.load_state_dict(
        {name: value[: short.state_dict()[name].shape[0]] for name, value in long.state_dict().items()}
    )
    names = ["behaviour", "attention", "ablation"]
    one, other = (
        mm.probe(mm.Run.from_model(model, source=source), names, law_draws=0, sequences=10)
        for model in (long, short)
    )
    for name in names:
        for score, found in one[name].scores.items():
            assert found.value == other[name].scores[score].value


@pytest.mark.parametrize("objective", [Objective(read="last"), RAW_LOG], ids=["last", "query"])
def test_a_model_that_is_read_at_its_last_position_needs_all_of_it(objective):
    length = LENGTH if objective.query else LENGTH + 1
    model = decoder(d_vocab=3 + objective.query, d_vocab_out=3)
    with pytest.raises(
        ValueError, match=rf"^length is {length}, expected at most {length - 1}, .* no sequence is longer"
    ):
        mm.Run.from_model(model, source=Observed(sequences(60, length - 1), order=1), objective=objective)
    run = mm.Run.from_model(model, source=Observed(sequences(60, length), order=1), objective=objective)
    assert Subject.of(run).batch.states.shape[1] == length


@pytest.mark.parametrize("length", [2, 5, 7, 8])
def test_ones_own_sequences_may_be_as_long_as_the_context_or_shorter(length):
    run = random_run()
    rows = sequences(30, length)
    result = mm.probe(run, ["behaviour"], tokens=rows)
    assert ("positions" in result.metadata["evaluation"]) == (length < 8)
    assert Subject.of(run, tokens=rows).batch.tokens.shape == (30, length - 1)
    last = replace(run, objective=Objective(read="last"))
    if length < 8:
        with pytest.raises(
            ValueError, match=rf"^tokens have shape \(30, {length}\), expected \(sequences, 8\)$"
        ):
            Subject.of(last, tokens=rows)


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    """An import that succeeds can be probed."""
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": decoder().state_dict(), "cfg": LENS}, "model.pt")
    np.save("x.npy", sequences())
    main(["import", "model.pt", "--source", "x.npy"])
    assert "its sequences have 12 states: probes read 11 of 12 positions" in capsys.readouterr().out
    main(["probe", "run.pt", "--probes", "attention"])
    assert "the last 1 of the context are not evaluated" in capsys.readouterr().err
    torch.save({"state_dict": decoder(32).state_dict(), "cfg": LENS | {"n_ctx": 32}}, "long.pt")
    for text in ("abcab" * 100, "abc" * 60):
        (tmp_path / "input.txt").write_text(text)
        with pytest.raises(SystemExit):
            main(["import", "long.pt", "--source", "input.txt", "--out", "other.pt"])
        assert "Observed(…, block=33) makes them longer" in capsys.readouterr().err
        assert not (tmp_path / "other.pt").exists()
        main(["import", "long.pt", "--source", '{"kind": "observed", "path": "input.txt", "block": 33}'])
    main(["probe", "run.pt", "--probes", "attention"])


LENS = {
    "n_layers": 2,
    "n_heads": 2,
    "d_model": 8,
    "d_head": 3,
    "n_ctx": LENGTH,
    "d_vocab": 3,
    "attn_only": True,
    "normalization_type": None,
    "positional_embedding_type": "standard",
}


def seeded():
    return torch.Generator().manual_seed(0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(2, 60),
    st.sampled_from(["every_fifth", "last_tenth"]),
    st.integers(2, 30),
)
def test_what_a_message_advises_works(lengths, wanted, held_out, block):
    """Whatever the lengths, there are sequences to evaluate on, or the option that is named gives them."""
    total = sum(lengths)
    states = np.arange(total) % 2
    assume(Blocks.of(states, lengths, block, 2).n_blocks >= 5 and total - len(lengths) >= 100)
    rows = np.split(states, np.cumsum(lengths)[:-1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OneLawWarning)
            source = Observed(rows, order=0, block=block, held_out=held_out)
    except ValueError:  # too short to estimate from
        reject()
    check_advice(source, wanted)


def check_advice(source, wanted):
    length = source.held_out_length(wanted)
    enough = stretches.room(source.blocks, ~source.training_blocks).max() >= length
    block = stretches.longer_block(source.blocks, source.lengths, source.held_out, length)
    other = stretches.other_half(source.blocks, source.held_out, length)
    if enough:
        found = source.sample_held_out(9, length, generator=seeded())
        assert found.shape[1] == length <= wanted
        return
    assert length == wanted
    with pytest.raises(ValueError, match=r"^length is") as error:
        source.sample_held_out(9, length, generator=seeded())
    named = {"block": block} if block else {"held_out": other} if other else {}
    for option, value in named.items():
        assert f"{option}={value!r}" in str(error.value)
        again = mm.sources.source_from_data(source.model_dump(mode="json") | named)
        found = again.sample_held_out(9, again.held_out_length(wanted), generator=seeded())
        assert found.shape[1] >= (block or length)


@pytest.mark.parametrize("lengths", [[1000], [300, 700], [33] * 30, [12] * 400, [65] * 10])
@pytest.mark.parametrize("size", [17, 33, 129])
def test_no_piece_of_a_longer_sequence_is_shorter_than_a_block(lengths, size):
    blocks = Blocks.of(np.zeros(sum(lengths), dtype=int), lengths, size, 2)
    pieces = np.diff(np.append(np.flatnonzero(blocks.place == 0), sum(lengths)))
    assert pieces.min() >= min(size, min(lengths))


def test_a_chain_a_sequence_is_warned_of_when_a_run_is_probed():
    chains = mm.DirichletChains(n_states=3).sample(100, LENGTH, generator=torch.Generator().manual_seed(0))
    with pytest.warns(OneLawWarning):
        source = Observed(chains)
    result = mm.probe(mm.Run.from_model(decoder(), source=source), ["behaviour"], law_draws=0, sequences=10)
    assert source.doubt_of_one_law() in result.warnings
    one = mm.Run.from_model(decoder(), source=Observed(sequences()))
    assert not any("one law" in said for said in mm.probe(one, ["behaviour"], law_draws=0).warnings)
