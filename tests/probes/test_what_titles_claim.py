"""Models set by hand that would make a title or a tile false, and what the first screen says instead."""

import dataclasses

import numpy as np
import pytest
import torch
from models_by_hand import LOG_P
from probing_cases import config_of, parent_logits, probe_quickly, randomise, run_of, walk_run

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probing.source_check import unlikely_transition
from mechmarkov.report.first_screen.circuit import circuit
from mechmarkov.report.first_screen.headline import at_step, headline
from mechmarkov.report.first_screen.readings import notes
from mechmarkov.sources import Chain, OrderK

PROBES = ["behaviour", "storage", "ablation", "attention"]


def screen(model, source=None, probes=PROBES):
    run = run_of(model) if source is None else run_of(model, source=source)
    result = probe_quickly(run, probes, sequences=64)
    return result, headline(result)


def test_a_chain_whose_bigram_gains_nothing_is_not_learned_by_the_unigram():
    weak = Chain([[0.56, 0.44], [0.44, 0.56]])
    _, shown = screen(direct_table(torch.zeros(2, 2), 8), weak)
    assert shown.badge is None
    assert shown.title == "The unigram and the bigram coincide within 0.01 nats"


def test_the_exact_bigram_of_an_order_two_source_has_not_learned_order_two():
    source = OrderK([[[0.97, 0.03], [0.12, 0.88]], [[0.90, 0.10], [0.03, 0.97]]])
    _, shown = screen(direct_table(torch.tensor(np.log(source.P)).float(), 16), source, ["behaviour"])
    assert shown.badge == "partly"
    assert shown.title.startswith("9")
    assert shown.title.endswith("% of the way from unigram to 3-gram: has the bigram")


def test_a_law_between_unigram_and_best_is_the_title():
    """The token before the current one is not there at position 0."""
    P = np.array([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]])
    two_steps = torch.tensor(np.log(P @ P)).float()
    _, shown = screen(value_table(two_steps, 16, lag=2), Chain(P.tolist()))
    assert shown.badge == "partly"
    assert shown.title == "Has the 2-step law, but not at position 0"


def test_the_uniform_law_below_counts_is_no_way_to_the_best():
    """Rows and columns sum to one: the uniform law is nearer to the best than counts of tokens are."""
    _, shown = screen(
        direct_table(torch.zeros(3, 3), 24), mm.sources.DoublyStochastic(n_states=3), ["behaviour"]
    )
    assert shown.badge == "another law"
    assert shown.title == "Closest to the uniform law, with a loss below the unigram's"


def test_a_path_whose_token_tells_nothing_is_no_near_miss():
    """Two chains in turn: the current token is of the other one."""
    source = mm.sources.LaggedChain(P=[[0.9, 0.1], [0.1, 0.9]], lag=2)
    result, _ = screen(direct_table(torch.eye(2), 16), source, ["alignment"])
    verdict = result["alignment"].verdict
    assert verdict.startswith("No path has a law in its weights")
    assert "nats" not in verdict


def two_lags():
    """A table of the current token in the direct path, and one of the token before it in a head."""
    draw = np.random.default_rng(0).normal(scale=1.5, size=(2, 3, 3))
    model = value_table(torch.tensor(draw[1]).float(), 16, lag=2)
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[:3] = torch.tensor(draw[0]).float()
    kernel = np.exp(draw[0] + draw[1][:, None])  # [token before, current token, next token]
    return model, OrderK(kernel / kernel.sum(-1, keepdims=True))


def test_the_home_of_the_bigram_is_not_said_to_be_that_of_a_better_law():
    """The direct path has the bigram; without the head the second order is lost."""
    model, source = two_lags()
    result, shown = screen(model, source)
    assert shown.badge == "solved"
    assert result["ablation"].data["effect"].sel(component="L0H0", measure="loss", kind="mean")[-1] > 0.05
    assert shown.title == "Learned the 3-gram: in the direct path and L0H0"
    fails = result.claims.first("fails_at")
    assert fails.where.positions == (0,)  # where one token is known, a tile says
    _, of_bigram = screen(direct_table(LOG_P, 16))
    assert of_bigram.title == "Learned the bigram: in the direct path"


@pytest.mark.parametrize(("weak", "answer"), [(True, "Too little to place"), (False, "The direct path")])
def test_the_exact_table_of_a_weak_bigram_is_not_said_to_be_nowhere(weak, answer):
    """It is in the direct path alone, but the unigram is 0.008 nats from it."""
    rows = [[0.7, 0.3], [0.64, 0.36]] if weak else [[0.7, 0.3], [0.4, 0.6]]
    result, shown = screen(direct_table(torch.tensor(np.log(rows)).float(), 16), Chain(rows))
    assert (result["storage"].scores["bigram_home"].value == "none") == weak
    assert shown.tiles[1].answer == answer
    assert result.claims.first("stores").status == ("open" if weak else "shown")


def test_the_law_that_a_tile_names_is_among_its_bars():
    """It comes behind the predictors of one token in the list of all."""
    model, source = two_lags()
    learned = screen(model, source, ["behaviour"])[1].tiles[0]
    assert learned.answer == "The 3-gram"
    assert "At position 0 it is" in learned.sentence
    assert next(bar.label for bar in learned.bars) == "3-gram"
    assert "bigram" in {bar.label for bar in learned.bars}
    fresh = screen(induction_pair(3, 16), mm.DirichletChains(n_states=3), ["behaviour"])[1].tiles[0]
    assert {bar.label for bar in fresh.bars} == {"uniform law", "in-context unigram", "in-context bigram"}


def test_a_head_that_looks_at_the_parent_and_is_worth_nothing_is_not_named():
    decoy = value_table(torch.zeros(3, 3), 8)
    with torch.no_grad():
        decoy.get_parameter("unembed.W_U")[:3] = LOG_P
    for probes, said in (
        (PROBES, "in the direct path"),
        (["behaviour", "ablation"], "the direct path is needed most"),
    ):
        _result, shown = screen(decoy, probes=[*probes, "attention"])
        assert shown.named == ("direct",)
        assert shown.title == f"Learned the bigram: {said}"
    _, shown = screen(decoy, probes=["behaviour", "attention"])
    assert shown.title == "Learned the bigram: L0H0 reads the current token"


def test_an_induction_circuit_that_writes_nothing_is_not_named():
    asked = ["behaviour", "storage", "ablation", "attention", "induction"]
    decoy, real = induction_pair(3, 32), induction_pair(3, 32, gain=2.3)
    with torch.no_grad():
        decoy.blocks[1].attn.W_O.zero_()
        decoy.get_parameter("unembed.W_U")[:3] = LOG_P
    for probes in (asked, ["behaviour", "storage", "induction"]):
        result, shown = screen(decoy, probes=probes)
        assert result["induction"].scores["induction_head"].value == "L1H0"
        assert shown.title == "Learned the bigram: in the direct path"
        lives = next(tile for tile in shown.tiles if tile.question == "Where does it live?")
        assert lives.answer == "The direct path"
    result, shown = screen(real, mm.DirichletChains(n_states=3), asked)
    assert shown.named == ("L0H0", "L1H0")


def test_of_two_heads_that_look_alike_the_one_that_writes_is_named():
    model = induction_pair(3, 32, gain=2.3, readers=2)
    with torch.no_grad():
        model.blocks[1].attn.W_O[0] = 0
        model.blocks[1].attn.W_O[1] *= 2
    result, shown = screen(model, mm.DirichletChains(n_states=3), ["behaviour", "ablation", "induction"])
    assert result["induction"].scores["induction_heads"].value == "L1H0 + L1H1"
    assert shown.named == ("L0H0", "L1H1")
    assert shown.tiles[1].answer == "L0H0 → L1H1"
    assert notes(result.claims, "L1H0") == ["induction head, without effect"]
    assert notes(result.claims, "L1H1") == ["induction head"]
    result, shown = screen(model, mm.DirichletChains(n_states=3), ["behaviour", "induction"])
    assert shown.tiles[1].answer == "L0H0 → L1H0 and L1H1"  # which writes is not known
    assert (
        notes(result.claims, "L1H0", shown.named)
        == notes(result.claims, "L1H1", shown.named)
        == ["induction head"]
    )


def test_of_two_induction_heads_that_write_both_are_named():
    model = induction_pair(3, 32, gain=2.3, readers=2)
    result, shown = screen(model, mm.DirichletChains(n_states=3), ["behaviour", "ablation", "induction"])
    assert shown.named == ("L0H0", "L1H0", "L1H1")
    assert result.claims.first("is_induction_head").subject == ("L1H0", "L1H1")
    assert shown.tiles[1].answer == "L0H0 → L1H0 and L1H1"
    assert (
        notes(result.claims, "L1H0", shown.named)
        == notes(result.claims, "L1H1", shown.named)
        == ["induction head"]
    )


def test_a_part_whose_cut_lowers_the_loss_is_not_said_to_change_it_little():
    result, shown = screen(direct_table(LOG_P[[1, 2, 0]], 8), probes=["ablation", "behaviour"])
    needed = result.claims.first("is_needed", subject="direct")
    assert needed.condition("does harm")
    assert needed.interval[1] < 0
    assert result.claims.first("is_needed_most").status != "shown"
    assert shown.named == ()


def test_a_path_that_holds_the_bigram_at_the_scale_that_another_sets_is_not_its_home():
    """The MLP writes where nothing reads, and so sets how sharp each state's prediction is."""
    logits = np.array([[2.0, 0.0, -2.0], [-2.0, 2.0, 0.0], [0.0, -2.0, 2.0]])
    sharpness = np.array([1.0, 0.25, 0.05])
    P = np.exp(logits * sharpness[:, None])
    shape = {
        "d_model": 8,
        "d_head": 2,
        "n_heads": 1,
        "n_layers": 1,
        "n_ctx": 16,
        "positional_embedding_type": "none",
    }
    model = HookedDecoder(config_of("LNPre", **shape, attn_only=False, d_mlp=3, act_fn="relu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        W_in, W_out, W_U = (
            model.get_parameter(name) for name in ("blocks.0.mlp.W_in", "blocks.0.mlp.W_out", "unembed.W_U")
        )
        for i in range(3):
            sign = torch.tensor([1.0, -1.0])
            model.embed.W_E[i, 2 * i : 2 * i + 2] = sign
            W_in[2 * i, i] = 0.5
            W_out[i, 6:] = sign * np.sqrt(1 / sharpness[i] ** 2 - 1)  # W_U does not read these two
            W_U[2 * i : 2 * i + 2] = sign[:, None] * torch.tensor(logits[i]) / 4
    result, shown = screen(model, Chain(P / P.sum(1, keepdims=True)))
    scores = result["storage"].scores
    assert scores["bigram_home"].value == "none"
    last = result["storage"].data.isel(step=-1)
    assert float(last["home_only"]) < 1e-6
    assert float(last["home_rescaled"]) == pytest.approx(0.19, abs=0.03)
    stores = result.claims.first("stores")
    assert (stores.status, stores.subject) == ("excluded", ("direct",))
    assert stores.condition("only at another scale")
    assert shown.title == "Learned the bigram"


def test_other_parts_may_take_some_of_the_bigram_away():
    model = value_table(-0.4 * LOG_P, 16)
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[:3] = 1.4 * LOG_P
    result, shown = screen(model)
    assert result.claims.first("stores").value == pytest.approx(1.43, abs=0.02)
    lives = next(tile for tile in shown.tiles if tile.question == "Where does it live?")
    assert "more than all of it" in lives.sentence


def test_an_event_that_cannot_be_seen_is_not_said_to_be_missing():
    """On a circle the unigram is the uniform law."""
    flat = run_of(*2 * [direct_table(torch.zeros(6, 6), 8)], source=mm.Circle(n_states=6, p=0.7))
    result = probe_quickly(flat, ["behaviour", "dynamics"], steps="all")
    for shown in (result, at_step(result, 0), at_step(result, 1)):  # wherever the slider is
        status = {claim.object[0]: claim.status for claim in shown.claims.where("came_by")}
        assert status == {"selection": "excluded", "bigram": "excluded", "unigram": "does not apply"}
        came = next(tile for tile in headline(shown).tiles if tile.question == "How did it get there?")
        assert came.answer == "From the start closest to the unigram, here uniform"
        assert "unigram" not in came.sentence


@pytest.mark.parametrize(("window", "n_ctx", "scale"), [(1, 16, 0.02), (None, 3, 0.15)])
def test_nearly_uniform_attention_over_few_tokens_selects_none(window, n_ctx, scale):
    """The parent gets half of two tokens, and the first token of a sequence all of its own."""
    shape = {"n_layers": 1, "n_heads": 1, "window": window, "n_ctx": n_ctx}
    flat = [randomise(HookedDecoder(config_of(**shape)), seed, scale) for seed in (0, 1)]
    result = probe_quickly(run_of(*flat), ["behaviour", "attention", "dynamics"], steps="all")
    assert result["attention"].scores["parent_score"].value > 0.5
    assert not result.claims.where("attends_to", status="shown")
    assert result["dynamics"].scores["t_selection"].value is None
    assert result.claims.first("came_by", object="selection").value is None


@pytest.mark.parametrize(("sharpness", "word"), [(0.6, "partly"), (0.95, "solved")])
def test_the_badge_does_not_hang_on_which_sequences_were_drawn(sharpness, word):
    """0.84 and 0.99 of the way: losses of few sampled states say 0.75 to 0.97 of the first."""
    source = mm.Binary(p=0.35, q=0.35)
    model = direct_table(torch.tensor(sharpness * np.log(source.P)).float(), 16)
    run = run_of(model, source=source, objective=Objective(read="last"))
    found = [mm.probe(run, ["behaviour"], sequences=128, seed=seed) for seed in range(4)]
    assert {headline(result).badge for result in found} == {word}
    progress = [result["behaviour"].scores["progress"] for result in found]
    assert np.ptp([score.value for score in progress]) < 1e-6  # the two states are alike
    assert progress[0].value == pytest.approx({0.6: 0.844, 0.95: 0.997}[sharpness], abs=1e-3)


def test_a_circuit_whose_attention_is_diffuse_is_not_exact():
    """The exact table behind a head that gives the parent 63 %: its own training loss is twice the lowest."""
    source, logits = mm.Circle(n_states=6, p=0.5), np.zeros(33)
    logits[31] = 4.0
    probes = ["behaviour", "alignment", "attention"]
    found = {
        name: headline(probe_quickly(walk_run(source, np.sqrt(source.P).T, shape), probes, sequences=256))
        for name, shape in (("diffuse", logits), ("sharp", parent_logits(33)))
    }
    assert found["diffuse"].badge == "partly"
    assert found["sharp"].badge == "solved"


def test_the_direct_path_is_drawn_as_the_circuit_where_the_title_names_it():
    result, _ = screen(direct_table(LOG_P, 8))
    path = next(line for line in circuit(result).data if line.text and line.text.startswith("embed → logits"))
    assert not path.meta["grey"]


def test_a_small_random_start_at_the_trap_is_not_called_trapped():
    """What is left of the start grows: the same run had 76 % of the bigram 300 steps later."""
    run = mm.example("trap")
    near = dataclasses.replace(run, recipe=run.recipe | {"init": {"scheme": "normal", "std": 1e-4}})
    found, other = (probe_quickly(one, ["symmetry"])["symmetry"] for one in (near, run))
    assert (found.scores["trapped"].value, other.scores["trapped"].value) == (False, True)
    assert found.claims.first("is_trapped_by").condition("it started at random").value == 1e-4


@pytest.mark.parametrize("rare", [0, 8])
def test_a_rare_pair_does_not_hide_a_wrong_law(rare):
    source = Chain([[0.8 - 1e-5, 0.2, 1e-5], [0.2, 0.8 - 1e-5, 1e-5], [0.3, 0.3, 0.4]])
    other = Chain([[0.6, 0.4, 1e-9], [0.4, 0.6, 1e-9], [0.3, 0.3, 0.4]])
    states = other.sample(64, 65, generator=torch.Generator().manual_seed(0)).numpy()
    states[:rare, -2:] = [0, 2]
    said = unlikely_transition(source, states)
    assert "where the source has it" in said
    assert not said.startswith("state 2")  # too rare for a normal law
