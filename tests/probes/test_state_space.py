"""Runs of state-space models: what probes say of them is true, and what makes no sense is skipped."""

import re

import numpy as np
import pytest
import torch
from decoder_cases import config_of, randomise
from mechmarkov.probes.induction.composition import composition
from probing_cases import CHAIN, P3, probe_quickly, random_run, run_of, subject_of

import mechmarkov as mm
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.counting_mamba import counting_mamba
from mechmarkov.objectives import Objective
from mechmarkov.report.first_screen.headline import headline

COUNTS = mm.DirichletChains(n_states=3, start="uniform")
STATE_SPACES = {
    "mamba": {"d_state": 3, "n_heads": 2, "n_groups": 2},
    "mamba1": {"d_state": 2, "n_heads": 3, "d_head": 1},
}
ANSWER, SKIPPED = ("attention", "induction", "storage", "ablation"), ("alignment", "symmetry")


@pytest.fixture(scope="module")
def counting():
    run = mm.Run.from_model(counting_mamba(3, 24), source=COUNTS, objective=Objective(kind="raw_log"))
    probes = ["behaviour", "attention", "induction", "ablation", "program"]
    return probe_quickly(run, probes, nulls=2, sequences=64)


@pytest.mark.parametrize("mixer", STATE_SPACES)
def test_probes_answer_or_say_why_not(mixer):
    shape = {"n_layers": 1, "n_ctx": 4, "positional_embedding_type": "none", "mixer": mixer}
    run = random_run("LN and MLP", **shape, **STATE_SPACES[mixer])
    result = probe_quickly(run, [*ANSWER, *SKIPPED], nulls=2, sequences=8)
    assert result.failed == {}
    assert set(ANSWER) <= set(result)
    for name in SKIPPED:
        words = "no value circuit is a table: what Mamba1? writes is not linear in its values"
        assert re.fullmatch(words, result.skipped[name]), name
    assert all(claim.condition("effective weights") for claim in result["attention"].claims)
    assert f"mixer {mixer}, with MLP" in result.metadata["title"]
    assert (result["attention"].data["qk_table"].isnull()).all()
    assert not [name for name in result["storage"].data["weight"].values if "OV" in name or "QK" in name]


@pytest.mark.parametrize("mixer", STATE_SPACES)
def test_the_loss_surface_of_two_states_is_that_of_the_state_space(mixer):
    """Attention over two tokens and 32 positions would go by a table of its inputs."""
    shape = {"d_vocab": 2, "n_ctx": 32, "positional_embedding_type": "none", "mixer": mixer}
    decoder = randomise(HookedDecoder(config_of(**shape, **STATE_SPACES[mixer])), seed=0)
    trained = ("embed.W_E", "unembed.b_U")
    run = run_of(decoder, source=mm.Binary(p=0.3, q=0.4), trainable=dict.fromkeys(trained))
    subject = subject_of(run, sequences=16)
    population = population_of(subject)
    predicted = loss_surface(subject, population).predictions(0)
    expected = decoder.double()(population.tokens.flatten(0, 1)).softmax(-1)[:, population.read]
    assert torch.allclose(predicted, expected, atol=1e-12)
    assert set(probe_quickly(run, ["landscape"], nulls=2, sequences=16)) == {"landscape"}


def test_one_layer_that_counts_pairs_is_named_as_an_induction_head(counting):
    assert counting.failed == {}
    induction = counting["induction"].scores
    assert induction["induction_head"].value == "L0H0"
    assert induction["induction_score"].value == pytest.approx(float(counting["induction"].data["ideal"][0]))
    assert induction["predecessor_effect"].value == pytest.approx(1, abs=1e-5)
    assert "no OV circuit" in induction["copying_score"].reason
    head = counting["induction"].claims.first("is_induction_head", status="shown")
    assert head.condition("its own convolution") is not None
    assert induction["path_effect"].reason == "no path to cut: no head is before it"


def test_its_predictions_program_and_ablation_are_those_of_counts(counting):
    assert counting["behaviour"].scores["nearest_predictor"].value == "in_context_bigram"
    assert counting["behaviour"].scores["kl_best"].value == pytest.approx(0, abs=1e-6)
    assert "counts of 2" in counting["program"].scores["program"].value
    assert counting["ablation"].scores["largest_effect_component"].value == "L0H0"
    assert counting["attention"].scores["parent_head"].value is None


@torch.no_grad()
def counts_of_tokens(n_ctx):
    """The same with the convolutions of B and C constant: it counts all tokens alike."""
    model = counting_mamba(3, n_ctx)
    mixer = model.blocks[0].attn
    for side in "QK":
        mixer.get_parameter(f"conv_{side}").zero_()
        mixer.get_parameter(f"b_conv_{side}")[..., 0] = 1.0
    return model


def test_counts_are_solved_where_tokens_are_independent():
    """The unigram is the best predictor: there is no way to be between."""
    alike = mm.DirichletChains(n_states=3, rows="alike")
    run = mm.Run.from_model(counts_of_tokens(16), source=alike, objective=Objective(kind="raw_log"))
    result = probe_quickly(run, ["behaviour", "attention", "ablation"], nulls=2)
    assert result["behaviour"].scores["kl_best"].value == pytest.approx(0, abs=1e-6)
    shown = headline(result)
    assert (shown.badge, shown.title[:32]) == ("solved", "Learned the in-context unigram: ")
    assert not result["ablation"].claims.where("follows", status="shown")
    assert result["attention"].claims.first("attends_evenly").is_shown


def test_a_head_that_reads_the_parent_by_its_convolution_is_not_said_to_look_elsewhere():
    model = counts_of_tokens(16)
    mixer = model.blocks[0].attn
    with torch.no_grad():
        mixer.get_parameter("b_conv_Q").zero_()  # nothing but D, at a position itself
        mixer.D.fill_(1.0)
        mixer.conv_V.copy_(mixer.conv_V.flip(-1))  # the previous token
        mixer.W_O[0, :, 3:] = torch.tensor(np.log(P3))
    source = mm.LaggedChain(P3, lag=2)
    steps = probe_quickly(
        run_of(model, model, source=source), ["attention", "dynamics"], nulls=2, steps="all"
    )
    found, swapped = steps["attention"], probe_quickly(run_of(model, source=source), ["ablation"], nulls=2)
    assert swapped["ablation"].scores["parent_swap_followed"].value == 1
    (looks,) = found.claims.where("attends_to", status="shown")
    assert (looks.subject, looks.value) == (("L0H0",), pytest.approx(1, abs=1e-5))
    assert looks.condition("effective weights").value == 2  # tokens of the convolution
    assert not found.claims.where("attends_to", object="parent")
    assert "convolution" in found.scores["parent_head"].reason
    assert "convolution" in steps["dynamics"].scores["t_selection"].reason


def test_a_graph_is_not_recovered_from_attention_to_convolutions():
    source = mm.sources.CausalGraph(n_states=3, parents=[[], [0], [1], [2], []])
    result = probe_quickly(run_of(counts_of_tokens(4), source=source), ["graph"], nulls=2)
    assert result.skipped["graph"].startswith("a position holds a convolution of its last 2 tokens")


def test_heads_that_are_no_product_of_matrices_have_no_composition():
    config = config_of(mixer="mamba", positional_embedding_type="none", **STATE_SPACES["mamba"])
    for found in composition(HookedDecoder(config, n_models=2)).values():
        assert found.shape == (2, 2, 2, 2, 2)
        assert np.isnan(found).all()


def test_a_run_file_says_which_mixer_it_has(tmp_path):
    run = random_run("LN and MLP", mixer="mamba", positional_embedding_type="none", **STATE_SPACES["mamba"])
    run.save(tmp_path / "run.pt")
    again = mm.load(tmp_path / "run.pt")
    assert again.config == run.config
    tokens = CHAIN.sample(2, 4, generator=torch.Generator().manual_seed(0))
    assert (again.model()(tokens) == run.model()(tokens)).all()
