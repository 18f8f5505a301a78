"""Names of runs, tokens, laws and nearest predictors, and the arguments of a subject."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import mechmarkov as mm
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.dataset import (
    best_heads,
    head_names,
    imitates,
    is_nearest,
    last_model,
    model_axis,
    normal_interval,
)
from mechmarkov.probing.names import LawName, in_words, token_names, tokens_back
from mechmarkov.probing.preconditions import (
    has_one_parent,
    parent_lag,
    predictor_of,
    why_no_bigram,
    why_no_chain,
    why_no_table,
)
from mechmarkov.probing.subject import OF_BOS, why_not
from mechmarkov.runs.description import describe
from mechmarkov.sources import DirichletChains, HiddenMarkov, LaggedChain

SHAPE = {"n_layers": 1, "d_model": 8, "d_head": 4, "n_heads": 2, "n_ctx": 6, "d_vocab": 2}
COIN = mm.Chain(P=[[0.5, 0.5], [0.5, 0.5]])
ONLY = {"attn_only": True, "normalization_type": None}


def run_of(**changes):
    return mm.Run.from_model(HookedDecoder(DecoderConfig(**SHAPE | changes)), source=COIN)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ONLY,
            "1 layer of 2 heads, attention only, width 8, context 6, no norm, standard positions",
        ),
        (
            {"d_mlp": 16, "act_fn": "relu", "n_heads": 1, "n_layers": 2},
            "2 layers of 1 head, MLP of 16 (relu), width 8, context 6, norm LN, standard positions",
        ),
        (
            {"d_mlp": 16, "act_fn": "silu", "gated_mlp": True, "parallel_attn_mlp": True},
            "1 layer of 2 heads, MLP of 16 (gated, parallel, silu), width 8, context 6, norm LN, standard "
            "positions",
        ),
        (
            ONLY | {"tied": True, "window": 3, "use_qk_norm": True, "n_key_value_heads": 1},
            "1 layer of 2 heads, attention only, width 8, context 6, no norm, standard positions, 1 "
            "key-value heads, norms on queries and keys, tied embeddings, window of 3 back",
        ),
        (
            ONLY | {"positional_embedding_type": "none"},
            "1 layer of 2 heads, attention only, width 8, context 6, no norm, no positions",
        ),
    ],
)
def test_a_model_is_described_by_what_it_has(changes, words):
    assert describe(run_of(**changes))["model"] == words


def test_a_model_without_attention_names_its_mixer():
    config = mm.load_recipe("in-context-k3-mamba").decoder_config
    run = mm.Run.from_model(HookedDecoder(config), source=DirichletChains(n_states=3))
    assert describe(run)["model"].endswith(f", mixer {config.mixer}")
    assert ", no MLP, " in describe(run)["model"]


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({}, "cross-entropy, read at every position"),
        ({"read": "last"}, "cross-entropy, read at the last position"),
        ({"kind": "raw_log", "eps": 1e-3}, "-log(score + 0.001) on raw scores, read at every position"),
        ({"kind": "squared"}, "squared error on scores, read at every position"),
        ({"bos": True}, "cross-entropy, read at every position, a beginning-of-sequence token"),
        (
            {"query": True, "read": "last"},
            "cross-entropy, read at the last position, which is an added query token",
        ),
    ],
)
def test_an_objective_is_described_by_its_loss(objective, words):
    assert describe(replace(run_of(**ONLY), objective=Objective(**objective)))["objective"] == words


@pytest.mark.parametrize(
    ("lag", "shift", "source", "names"),
    [
        (0, 0, 1, ("query token",)),
        (1, 0, 1, ("parent", "current token")),
        (1, 1, 1, ("parent", "previous token")),
        (2, 0, 1, ("previous token",)),
        (3, 0, 0, ("2 tokens back",)),
        (3, 1, 3, ("parent", "3 tokens back")),
    ],
)
def test_a_token_is_called_by_its_distance(lag, shift, source, names):
    assert token_names(lag, shift, source) == names
    assert tokens_back(names[-1]) == (lag - 1 + shift if "tokens" in names[-1] else None)


def test_a_law_is_read_back_from_its_name():
    assert [in_words(name) for name in ("order_2", "lag_3", "in_context_step_4", "bag_of_words")] == [
        "order 2",
        "lag 3",
        "in-context 4-step",
        "bag of words",
    ]
    assert LawName.read("in_context_lag_12") == LawName(True, "lag", 12)
    assert LawName.read("lag_x") == LawName(False, "lag_x")


# -- nearest -------------------------------------------------------------------------------------------------


def kls(*values):
    return xr.DataArray(np.array(values), dims="predictor")


@pytest.mark.parametrize(
    ("values", "error", "answer"),
    [
        ((0.0099, 0.05), 0.0, True),
        ((0.01, 0.05), 0.0, False),  # not below the limit
        ((0.0099, 0.2), 0.0, True),
        ((0.0199, 0.2), 0.0, True),  # a tenth of the way to the next
        ((0.021, 0.2), 0.0, False),
        ((0.01, 0.05), 0.001, None),
        ((0.007, 0.05), 0.001, True),
        ((0.013, 0.05), 0.001, False),
        ((0.05, 0.05), 0.0, False),  # two that are one
        ((0.009, 0.009 + 1e-10), 0.0, True),
    ],
)
def test_a_model_imitates_what_it_is_near(values, error, answer):
    assert imitates(kls(*values), kls(*[error] * len(values))) is answer


def test_equals_are_both_the_nearest():
    assert is_nearest(kls(0.1, 0.1 + 0.9e-9, 0.1 + 1.1e-9)).values.tolist() == [True, True, False]
    assert normal_interval(1.0, 0.5) == pytest.approx((0.02, 1.98))
    assert normal_interval(-2.0, 0.5, least=0.0) == (0.0, 0.0)


def test_the_last_model_is_the_last_step():
    data = xr.Dataset({"x": (("step", "layer", "head"), np.arange(12.0).reshape(2, 2, 3))})
    assert float(last_model(data)["x"][0, 0]) == 6
    assert (model_axis(data), model_axis(data.rename(step="seed"))) == ("step", "seed")
    assert head_names(data) == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    data["x"][:, 1, 2] = np.nan
    assert data["x"].isel(best_heads(data["x"])).values.tolist() == [4, 10]


# -- sources -------------------------------------------------------------------------------------------------


def test_sources_say_what_they_have():
    own, lagged = DirichletChains(n_states=3), LaggedChain([[0.9, 0.1], [0.1, 0.9]], lag=3)
    hidden, alike = HiddenMarkov.rrxor(noise=0.1), DirichletChains(n_states=3, rows="alike")
    assert [has_one_parent(source) for source in (COIN, own, lagged, hidden, alike)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [parent_lag(source) for source in (COIN, own, lagged)] == [1, 1, 3]
    assert [predictor_of(source, "bigram") for source in (COIN, own)] == ["bigram", "in_context_bigram"]
    assert [why_no_table(source) is None for source in (COIN, own)] == [True, False]
    assert why_no_bigram(COIN) is None
    assert why_no_chain(COIN, "so") is None
    assert why_no_chain(own, "so there is none").endswith("for every sequence, so so there is none")
    assert "not a first-order chain" in why_no_chain(hidden, "so")
    many = mm.Circle(n_states=257, p=0.3)
    assert why_no_chain(many, "so") == "257 states are more than the 256 whose symmetries are sought"


# -- a subject -----------------------------------------------------------------------------------------------


def test_a_subject_takes_steps_that_are_kept():
    walk = mm.example("walk")
    known = walk.steps.tolist()
    assert mm.Subject.of(walk, sequences=1).coordinates == known[-1:]
    assert mm.Subject.of(walk, "all", sequences=1).coordinates == known
    assert mm.Subject.of(walk, [-1, 0, 0], sequences=1).coordinates == [0, known[-1]]
    assert len(mm.Subject.of(walk, [0, -1], sequences=2).some(slice(1, None)).decoder) == 1
    for steps in ("first", 3):
        with pytest.raises(ValueError, match=f"^steps is {steps!r}, expected 'last', 'all' or a list"):
            mm.Subject.of(walk, steps)


def test_a_million_sequences_are_asked_for_at_most():
    walk = mm.example("walk")
    for wrong in (0, 1_000_001):
        with pytest.raises(ValueError, match=f"^sequences is {wrong}, expected"):
            mm.Subject.of(walk, sequences=wrong)
    with pytest.raises(ValueError, match=r"^sequences is 1, expected none where tokens are given$"):
        mm.Subject.of(walk, sequences=1, tokens=torch.zeros(1, 97, dtype=torch.long))


def test_evaluation_seeds_fit_32_bits():
    run = run_of(**ONLY)
    one, same, other = (mm.Subject.of(run, seed=seed, sequences=8).batch.tokens for seed in (0, 2**32, 1))
    drawn = COIN.sample_held_out(8, 7, generator=torch.Generator().manual_seed(0x9E3779B9))
    assert torch.equal(one, same)
    assert torch.equal(one, drawn[:, :-1])
    assert not torch.equal(one, other)


def test_a_beginning_is_not_taken_for_a_state():
    subject = mm.Subject.of(mm.example("walk"), sequences=1)
    begun = replace(subject, run=replace(subject.run, objective=Objective(bos=True)))
    assert why_not(mm.probing.probe.load_probe("symmetry"), begun) == OF_BOS
    with pytest.raises(ValueError, match="a null has no null"):
        _ = subject.null.null
